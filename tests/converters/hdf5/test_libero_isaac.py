"""LIBERO and Isaac Lab: what their files leave to the reader."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers import sim_fixtures as sim
from helpers.hdf5_fixtures import open_source, read_all
from wdsmix.converters.hdf5 import nested


@pytest.fixture
def demos():
    return sim.made()


def tasks(source):
    found = []
    for ref in source.episodes():
        with source.read(ref) as episode:
            found.append(episode.tasks[0])
    return found


def ways(source):
    """Slot -> (key, order, flip)."""
    return {slot: (camera.key, camera.order, camera.flip) for slot, camera in source.describe().cameras.items()}


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("pick up the bowl", "pick up the bowl"),
        ('"pick up the bowl"', "pick up the bowl"),
        (["pick", "up", "the", "bowl"], "pick up the bowl"),
        (list("pick up the bowl"), "pick up the bowl"),
        ("", "put the mug on the plate"),
        (None, "put the mug on the plate"),
        (7, "put the mug on the plate"),
    ],
)
def test_libero_language(demos, tmp_path, language, text):
    path = tmp_path / "LIVING_ROOM_SCENE10_put_the_mug_on_the_plate_demo.hdf5"
    sim.write_libero(path, demos[:1], language=language)
    assert tasks(open_source(path)) == [text]
    own = text == "pick up the bowl"
    assert tasks(open_source(path, "--instruction", "do it")) == [text if own else "do it"]
    assert any("no instruction" in warning for warning in open_source(path).describe().warnings) == (not own)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("KITCHEN_SCENE1_open_the_drawer_demo.hdf5", "open the drawer"),
        ("turn_on_the_stove_demo.hdf5", "turn on the stove"),
        ("STUDY_SCENE2_pick_up_the_book.h5", "pick up the book"),
        ("stove_SCENE1_x_demo.hdf5", "stove SCENE1 x"),
    ],
)
def test_libero_language_of_the_files_name(demos, tmp_path, name, text):
    sim.write_libero(tmp_path / name, demos[:1], attributes=False)
    assert tasks(open_source(tmp_path)) == [text]


def test_libero_bad_problem_info(demos, tmp_path):
    path = tmp_path / "open_it_demo.hdf5"
    sim.write_libero(path, demos[:1])
    with h5py.File(path, "a") as file:
        file["data"].attrs["problem_info"] = "{'not': json}"
    source = open_source(path)
    assert tasks(source) == ["open it"]
    assert any("problem_info of /data is not valid JSON" in warning for warning in source.describe().warnings)


def test_libero_orientation(demos, tmp_path):
    for convention, flip in (("opengl", "vertical"), ("opencv", "none")):
        path = tmp_path / f"{convention}.hdf5"
        sim.write_libero(path, demos[:1], convention=convention)
        source = open_source(path)
        (ref,) = source.episodes()
        assert ways(source) == {"cam0": ("agentview_rgb", "rgb", flip), "cam1": ("eye_in_hand_rgb", "rgb", flip)}
        stored = np.stack(read_all(source, ref)[1]["cam0"])
        upright = stored[:, ::-1] if flip == "vertical" else stored
        np.testing.assert_array_equal(upright[:-1], demos[0].front[1:])
        assert not any("upside down" in warning for warning in source.describe().warnings)
        source = open_source(path, "--image-flip", "rot180", "--jpeg-order", "bgr")
        assert ways(source)["cam1"] == ("eye_in_hand_rgb", "bgr", "rot180")
        assert source.describe().details["facts"]["image_convention"] == [convention]


def test_libero_without_attributes_is_taken_as_upside_down_and_says_so(demos, tmp_path):
    sim.write_libero(tmp_path / "a_demo.hdf5", demos, attributes=False)  # regenerated: gaps, no attribute at all
    with h5py.File(tmp_path / "a_demo.hdf5", "a") as file:
        file.move("data/demo_1", "data/demo_12")
    source = open_source(tmp_path)
    assert [ref.id for ref in source.episodes()] == ["demo_0", "demo_2", "demo_12"]
    info = source.describe()
    assert info.kind == "hdf5/libero"
    assert ways(source)["cam0"][2] == "vertical"
    assert any("--image-flip none" in warning for warning in info.warnings)
    assert info.vectors["action"].kinds == ("delta",) * 3 + ("delta_rotation",) * 3 + ("absolute",)
    assert info.fps == 20


def test_libero_state(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_libero(path, demos[:1])
    demo, after = demos[0], np.minimum(np.arange(8) + 1, 7)

    def state(*argv):
        source = open_source(path, *argv)
        return read_all(source, source.episodes()[0])[0]["state"]

    pose = np.hstack([demo.pos, demo.quat[:, :3], demo.gripper])[after].astype(np.float32)
    np.testing.assert_array_equal(state(), pose)
    joints = np.hstack([demo.joints, demo.gripper])[after].astype(np.float32)
    np.testing.assert_array_equal(state("--state", "joint_states,gripper_states"), joints)
    np.testing.assert_array_equal(state("--state", "robot_states")[:, 2:5], demo.pos[after].astype(np.float32))
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/ee_states"]
    np.testing.assert_array_equal(state(), pose)  # position and orientation apart
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/ee_pos"]
    np.testing.assert_array_equal(state(), joints)
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs/gripper_states"]
    assert state().shape == (8, 9)
    with h5py.File(path, "a") as file:
        del file["data/demo_0/robot_states"]
    (ref,) = open_source(path).episodes()
    assert "--state" in ref.fault
    assert "joint_states" in ref.fault


@pytest.mark.parametrize(("shift", "seen", "acted"), [(-1, (0, 7), (1, 8)), (0, (0, 8), (0, 8)), (1, (1, 8), (0, 7))])
def test_observations_are_shifted_and_rewards_stay_with_their_action(demos, tmp_path, shift, seen, acted):
    path = tmp_path / "a.hdf5"
    sim.write_mimicgen(path, demos[:1])
    source = open_source(path, "--obs-shift", str(shift))
    (ref,) = source.episodes()
    assert ref.frames == seen[1] - seen[0]
    got, views = read_all(source, ref)
    demo, seen, acted = demos[0], slice(*seen), slice(*acted)
    np.testing.assert_array_equal(got["state"], demo.state("pos", "quat", "gripper")[seen])
    np.testing.assert_array_equal(got["action"], demo.actions[acted].astype(np.float32))
    np.testing.assert_array_equal(got["reward"].ravel(), demo.rewards[acted].astype(np.float32))
    np.testing.assert_array_equal(got["done"].ravel(), demo.dones[acted].astype(np.float32))
    np.testing.assert_array_equal(np.stack(views["cam0"]), demo.front[seen])
    np.testing.assert_array_equal(np.stack(views["cam1"]), demo.wrist[seen])
    words = source.describe().details["pairing"]
    assert ("later" in words, "earlier" in words) == (shift > 0, shift < 0)
    assert source.arguments()["obs_shift"] == shift


def test_isaac_reads_actions_of_the_row_and_never_the_previous_ones(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_isaac(path, demos)
    source = open_source(path)
    refs = source.episodes()
    assert [ref.fault for ref in refs] == [None] * 3
    for ref, demo in zip(refs, demos, strict=True):
        got, views = read_all(source, ref)
        assert set(views) == {"cam0", "cam1"}  # neither depth nor segmentation
        np.testing.assert_array_equal(got["action"], demo.actions.astype(np.float32))
        np.testing.assert_array_equal(np.stack(views["cam1"]), demo.wrist)
    info = source.describe()
    assert ways(source) == {"cam0": ("table_cam", "rgb", "none"), "cam1": ("wrist_cam", "rgb", "none")}
    assert info.vectors["action"].kinds == ("delta",) * 3 + ("delta_rotation",) * 3 + ("absolute",)  # IK-Rel
    assert info.details["fps_from"] == ["default"]
    assert any("20 frames/s assumed" in warning for warning in info.warnings)
    assert any("--instruction" in warning for warning in info.warnings)
    refs = open_source(path, "--action", "obs/actions").episodes()
    assert all("the action of the row before" in ref.fault for ref in refs)
    got, _ = read_all(source := open_source(path, "--state", "joint_pos,obs/actions"), source.episodes()[0])
    np.testing.assert_array_equal(got["state"][1:, 7:], demos[0].actions[:-1].astype(np.float32))


def test_isaac_states_are_those_of_the_row_before(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_isaac(path, demos[:1])
    source = open_source(path, "--state", "states/articulation/robot/joint_position,eef_pos")
    (ref,) = source.episodes()
    assert ref.frames == 7
    got, views = read_all(source, ref)
    demo = demos[0]
    np.testing.assert_array_equal(got["state"], demo.state("joints", "pos")[1:])  # both of the moment of the picture
    np.testing.assert_array_equal(got["action"], demo.actions[1:].astype(np.float32))
    np.testing.assert_array_equal(np.stack(views["cam0"]), demo.front[1:])
    assert any("first frame is left out" in warning for warning in source.describe().warnings)


def test_isaac_failed_attempts(demos, tmp_path):
    path = tmp_path / "a_failed.hdf5"
    sim.write_isaac(path, demos, success=(True, False, None))
    refs = open_source(path).episodes()
    assert [ref.fault is None for ref in refs] == [True, False, True]
    assert refs[1].fault_kind == "filter"
    assert "--failed keep" in refs[1].fault
    source = open_source(path, "--failed", "keep")
    told = []
    for ref in source.episodes():
        with source.read(ref) as episode:
            told.append(episode.extras.get("success"))
    assert told == [True, False, None]


def test_isaac_observations_in_one_dataset_need_no_key(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_isaac(path, demos[:1])
    with h5py.File(path, "a") as file:
        del file["data/demo_0/obs"]
        file["data/demo_0/obs"] = demos[0].joints.astype(np.float32)
    source = open_source(path)
    (ref,) = source.episodes()
    assert ref.cameras == ()
    np.testing.assert_array_equal(read_all(source, ref)[0]["state"], demos[0].state("joints"))


def test_isaac_nested_observations(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_isaac(path, demos[:1], nested="policy/left/")
    with h5py.File(path, "a") as file:
        group = file["data/demo_0/obs/policy"]
        group["right/joint_pos"], group["right/table_cam"] = demos[1].joints, demos[1].front
        group["loop"] = group  # a hard link to itself: walked once
    source = open_source(path)
    (ref,) = source.episodes()
    assert ref.fault is None
    assert ref.vectors["state"] == 14  # left, then right
    keys = [key for key, *_ in ways(source).values()]
    assert keys == ["policy/left/table_cam", "policy/left/wrist_cam", "policy/right/table_cam"]
    got, views = read_all(source, ref)
    np.testing.assert_array_equal(got["state"][:, 7:], demos[1].state("joints"))
    np.testing.assert_array_equal(np.stack(views["cam2"]), demos[1].front)
    (ref,) = open_source(path, "--state", "joint_pos").episodes()
    assert "not unique" in ref.fault
    source = open_source(path, "--state", "right/joint_pos", "--camera", "cam0=right/table_cam")
    (ref,) = source.episodes()
    got, views = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], demos[1].state("joints"))
    np.testing.assert_array_equal(np.stack(views["cam0"]), demos[1].front)
    (ref,) = open_source(path, "--state", "joint_speed").episodes()
    assert "'joint_speed' is missing" in ref.fault
    assert "policy/left/joint_pos" in ref.fault


def test_isaac_link_out_of_nested_observations_is_refused(demos, tmp_path):
    sim.write_isaac(tmp_path / "a.hdf5", demos)
    (tmp_path / "other").mkdir()
    sim.write_mimicgen(tmp_path / "other/secret.hdf5", demos[:1])
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["data/demo_1/obs/deep/cam"] = h5py.ExternalLink(str(tmp_path / "other/secret.hdf5"), "/data")
    refs = open_source(tmp_path / "a.hdf5").episodes()
    assert [ref.fault is None for ref in refs] == [True, False, True]
    assert "external link" in refs[1].fault


def test_isaac_endless_observations_are_refused(demos, tmp_path, monkeypatch):
    sim.write_isaac(tmp_path / "a.hdf5", demos)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        for number in range(20):
            file[f"data/demo_0/obs/more/{number}"] = np.zeros(8)
    monkeypatch.setattr(nested, "_MOST", 12)
    first, *others = open_source(tmp_path).episodes()
    assert "too many datasets" in first.fault
    assert [ref.fault for ref in others] == [None, None]


def test_isaac_ragged_after_a_kill(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_isaac(path, demos)
    with h5py.File(path, "a") as file:
        file["data/demo_2/obs/wrist_cam"].resize(6, 0)
    refs = open_source(path).episodes()
    assert "first dimensions differ" in refs[2].fault
    assert "wrist_cam 6" in refs[2].fault
    refs = open_source(path, "--on-length-mismatch", "truncate").episodes()
    assert [ref.frames for ref in refs] == [8, 8, 6]


def test_isaac_floating_point_pictures(demos, tmp_path):
    path = tmp_path / "a.hdf5"
    sim.write_isaac(path, demos[:2])
    with h5py.File(path, "a") as file:
        for number, lower in ((0, 0.0), (1, 0.5)):  # the second as Isaac Lab normalises: less its mean
            place = f"data/demo_{number}/obs/table_cam"
            del file[place]
            file[place] = (demos[number].front / 255 - lower).astype(np.float32)
    source = open_source(path)
    first, second = source.episodes()
    np.testing.assert_array_equal(np.stack(read_all(source, first)[1]["cam0"]), demos[0].front)
    with pytest.raises(Exception, match="signed pictures are not converted"):
        read_all(source, second)


def test_isaac_no_demonstrations(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group("data").attrs["env_args"] = json.dumps({"env_name": "Isaac-X", "type": 2})
    source = open_source(tmp_path)
    assert source.episodes() == []
    assert any("0 episodes" in warning for warning in source.describe().warnings)
