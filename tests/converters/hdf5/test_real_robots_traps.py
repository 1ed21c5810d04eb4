"""Traps of the layouts of real robots: overrides, sidecars, lengths, sparse commands, rows that are left out."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source, read_all, rgb
from helpers.hdf5_real_robots import (
    SKIPPED,
    act_plus_plus,
    act_sim,
    agibot,
    agilex_paths,
    cobot_magic,
    droid,
    fastumi,
    mobile_aloha,
    rdt,
    real_frames,
    robomind_agilex,
    robomind_sim,
    robotwin,
    robotwin_legacy,
    unitree_h5,
)

from wdsmix.errors import ConfigError


@pytest.fixture(scope="module")
def real(samples):
    return real_frames(samples, frames=8)


def only(source):
    (ref,) = source.episodes()
    return ref


def warned(source, text):
    source.episodes()
    return any(text in warning for warning in source.describe().warnings)


# ALOHA and its kin


def test_order_and_flip_can_be_set_for_raw_and_encoded_pictures(real, tmp_path):
    act_sim(tmp_path / "a.hdf5", real)
    source = open_source(tmp_path, "--jpeg-order", "bgr", "--image-flip", "vertical")
    only(source)
    camera = source.describe().cameras["cam0"]
    assert (camera.order, camera.flip) == ("bgr", "vertical")
    assert source.describe().details["cameras"]["aloha:cam0"]["order_flip"] == [["bgr", "vertical"]]


def test_the_variants_are_told_apart(real, tmp_path):
    for number, write in enumerate((act_sim, mobile_aloha, cobot_magic, unitree_h5)):
        write(tmp_path / f"episode_{number}.hdf5", real.cut(3))
    source = open_source(tmp_path)
    refs = source.episodes()
    assert source.describe().details["facts"]["variant"] == ["act-sim", "cobot-magic", "mobile-aloha", "unitree-h5"]
    assert sum(ref.fault is None for ref in refs) == 2  # 50 frames/s, or 30: the fewer are a fault
    assert all(ref.fault is None for ref in open_source(tmp_path, "--fps", "50").episodes())


def test_a_base_that_moves_is_named_and_can_be_taken(real, tmp_path):
    written = mobile_aloha(tmp_path / "a.hdf5", real)
    assert warned(open_source(tmp_path), "--action action,base_action")
    source = open_source(tmp_path, "--action", "action,base_action")
    vectors, _ = read_all(source, only(source))
    np.testing.assert_array_equal(vectors["action"][:, :14], written.action)
    np.testing.assert_array_equal(vectors["action"][:, 14:], real.command[:, :2].astype(np.float32))
    cobot_magic(tmp_path / "a.hdf5", real)  # it stands still
    assert not warned(open_source(tmp_path), "base_action")


def test_relative_actions_and_mirrored_copies(real, tmp_path):
    written = act_sim(tmp_path / "mirror_episode_0.hdf5", real)
    with h5py.File(tmp_path / "mirror_episode_0.hdf5", "a") as file:
        file["relative_action"] = written.action * 0
    source = open_source(tmp_path)
    vectors, _ = read_all(source, only(source))
    np.testing.assert_array_equal(vectors["action"], written.action)
    assert warned(source, "mirrored copy")


def test_instructions_of_rdt(real, tmp_path):
    rdt(tmp_path / "a.hdf5", real.cut(3))

    def task(*argv):
        source = open_source(tmp_path, *argv)
        with source.read(only(source)) as episode:
            return episode.tasks[0], source

    assert task("--instruction-key", "simplified_instruction")[0] == "Lift cube."
    found, source = task("--instruction-key", "short")
    assert found == ""
    assert warned(source, "has no 'short'")
    assert task("--instruction-key", "short", "--instruction", "go")[0] == "go"
    sidecar = tmp_path / "expanded_instruction_gpt-4-turbo.json"
    before = source.fingerprint()
    assert sidecar in source.inputs()
    sidecar.write_text("{")
    found, source = task()
    assert found == ""
    assert warned(source, "not valid JSON")
    assert source.fingerprint() != before
    outside = tmp_path.parent / f"{tmp_path.name}-secret.json"
    outside.write_text(json.dumps({"instruction": "secret"}))
    sidecar.unlink()
    sidecar.symlink_to(outside)
    found, source = task()
    assert found == ""
    assert warned(source, "a link that leads elsewhere")


def test_instructions_from_a_file_and_from_names(real, tmp_path):
    (tmp_path / "open_the_door").mkdir()
    act_sim(tmp_path / "open_the_door/episode_0.hdf5", real.cut(3))
    unitree_h5(tmp_path / "episode_1.hdf5", real.cut(3))

    def tasks(*argv):
        source = open_source(tmp_path, "--fps", "30", *argv)
        found = []
        for ref in source.episodes():
            with source.read(ref) as episode:
                found.append(episode.tasks[0])
        return found

    assert tasks("--instruction", "{folder} with {file}") == ["lift the cube", "open the door with episode 0"]
    table = tmp_path / "table.csv"
    table.write_text("index,task,instruction\n0,open_the_door,Open it!\n1,nothing,x\n")
    assert tasks("--instructions", str(table)) == ["lift the cube", "Open it!"]
    table = tmp_path / "table.json"
    table.write_text(json.dumps({"episode_?.hdf5": ["by pattern"], "open_the_door": {"instruction": "by name"}}))
    assert tasks("--instructions", str(table)) == ["by pattern", "by name"]
    for text in ("[]", "a,b\n1,2\n", '{"a": 3}', ""):
        table.write_text(text)
        with pytest.raises(ConfigError, match="no instructions"):
            tasks("--instructions", str(table))


def test_padded_rows_without_their_end_or_never_written(real, tmp_path):
    act_plus_plus(tmp_path / "a.hdf5", real)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        rows = file["observations/images/cam_high"]
        rows[3, rows.shape[1] // 3 :] = 0
        file["observations/images/cam_left_wrist"][5] = 0
    source = open_source(tmp_path)
    with source.read(only(source)) as episode:
        stream = episode.images["cam1"].read(np.arange(8))
        with pytest.raises(Exception, match=r"cam_left_wrist row 5: no picture: never written"):
            list(stream)
        seen = list(episode.images["cam0"].read(np.arange(8)))
        with pytest.raises(OSError, match="truncated"):
            rgb(seen[3])


def test_rows_padded_with_anything(real, tmp_path):
    written = act_plus_plus(tmp_path / "a.hdf5", real)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        rows = file["observations/images/cam_high"][()]
        ends = [max(np.flatnonzero(row)) + 1 for row in rows]
        wide = np.full((8, rows.shape[1] + 500), 0xAB, np.uint8)
        for k, end in enumerate(ends):
            wide[k, :end] = rows[k, :end]
        del file["observations/images/cam_high"]
        file["observations/images/cam_high"] = wide
    source = open_source(tmp_path)
    _, views = read_all(source, only(source))
    assert [len(data) for data in views["cam0"]] == ends
    for data, view in zip(views["cam0"], written.views["cam0"], strict=True):
        assert np.abs(rgb(data)[..., ::-1].astype(int) - view).mean() < 2.5


@pytest.mark.parametrize(
    ("policy", "frames"), [("drop", None), ("truncate", 7), ("index-resample", 8)], ids=lambda value: str(value)
)
def test_wrong_lengths(real, tmp_path, policy, frames):
    act_sim(tmp_path / "a.hdf5", real)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        pictures = file["observations/images/top"][()]
        del file["observations/images/top"]
        file["observations/images/top"] = pictures[:7]
    ref = only(open_source(tmp_path, "--on-length-mismatch", policy))
    if frames is None:
        assert "first dimensions differ (expected 8 rows each, found qpos 8, action 8, top 7)" in ref.fault
    else:
        assert (ref.fault, ref.frames) == (None, frames)


def test_substeps_of_other_length_are_left_out(real, tmp_path):
    unitree_h5(tmp_path / "a.hdf5", real)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["substep_reasonings"]
        file["substep_reasonings"] = np.array(["x", "y"], object)
    source = open_source(tmp_path)
    assert warned(source, "substep_reasonings left out: 2 rows, the action has 8")


def test_fastumi_is_not_taken_for_aloha_with_eight_joints(real, tmp_path):
    fastumi(tmp_path / "a.hdf5", real, arms=1)
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        file["observations/qvel"] = np.zeros((8, 8))
    assert only(open_source(tmp_path)).locator["dialect"] == "aloha"


# RoboTwin


def test_legacy_robotwin_with_vectors_alone_and_early_poses(real, tmp_path):
    written = robotwin_legacy(tmp_path / "x.hdf5", real)
    with h5py.File(tmp_path / "data/episode3.hdf5", "a") as file:
        for name in ("left_arm", "left_gripper", "right_arm", "right_gripper"):
            del file[f"joint_action/{name}"]
        del file["endpose"]
        file["endpose"] = np.hstack([real.joints, real.joints])
    source = open_source(tmp_path)
    vectors, _ = read_all(source, only(source))
    np.testing.assert_array_equal(vectors["action"], written.action.astype(np.float32))
    source = open_source(tmp_path, "--state", "endpose", "--action", "endpose")
    vectors, _ = read_all(source, only(source))
    np.testing.assert_array_equal(vectors["action"][:-1], vectors["state"][1:])
    assert vectors["state"].shape == (7, 14)


def test_instructions_of_legacy_robotwin(real, tmp_path):
    robotwin_legacy(tmp_path / "x.hdf5", real.cut(4))
    source = open_source(tmp_path, "--instruction-key", "unseen")
    with source.read(only(source)) as episode:
        assert episode.tasks == ("Raise the block.",)
    assert [path.name for path in source.inputs()] == ["episode3.hdf5", "episode3.json"]
    (tmp_path / "instructions/episode3.json").write_text('{"other": []}')
    assert warned(open_source(tmp_path), "no instruction under seen or unseen")


def test_frequency_of_robotwin(real, tmp_path):
    robotwin(tmp_path / "a.hdf5", real.cut(4))
    source = open_source(tmp_path)
    assert warned(source, "frequency says 15, taken as frames/s")
    assert warned(source, "16.67 frames/s")
    assert open_source(tmp_path, "--fps", "12").describe().fps == 12
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["additional_info"]
        del file["instructions"]
        file["instructions"] = "[not json"
    source = open_source(tmp_path)
    assert source.describe().fps == pytest.approx(250 / 15)
    assert warned(source, "instructions is not valid JSON")


# RoboMIND


def test_other_rates_in_simulated_robomind(real, tmp_path):
    robomind_sim(tmp_path / "x.hdf5", real)
    path = next(tmp_path.rglob("trajectory.hdf5"))
    with h5py.File(path, "a") as file:
        del file["franka/joint_position"]
        fine = np.arange(29, dtype=np.float64)[:, None] * np.ones(8)  # four rows a picture, both ends alike
        file["franka/joint_position"] = fine
    fault = only(open_source(tmp_path)).fault
    assert "joint_position 29" in fault
    assert "camera_handeye 8" in fault
    source = open_source(tmp_path, "--on-length-mismatch", "index-resample")
    vectors, views = read_all(source, only(source))
    assert vectors["state"][:, 0].tolist() == [0, 4, 8, 12, 16, 20, 24]
    assert vectors["action"][:, 0].tolist() == [4, 8, 12, 16, 20, 24, 28]
    np.testing.assert_array_equal(np.stack(views["cam0"]), real.front[:7])


def test_robomind_by_its_folders(real, tmp_path):
    robomind_agilex(tmp_path / "x.hdf5", real.cut(3))
    path = next(tmp_path.rglob("trajectory.hdf5"))
    source = open_source(tmp_path)
    assert only(source).split == "train"
    assert source.describe().embodiment == "agilex_3rgb"
    assert not warned(source, "differs by robot")
    path.rename(tmp_path / "trajectory.hdf5")
    source = open_source(tmp_path / "trajectory.hdf5")
    assert only(source).split is None
    assert warned(source, "--jpeg-order bgr")
    with h5py.File(tmp_path / "trajectory.hdf5", "a") as file:
        del file["master"]
    source = open_source(tmp_path / "trajectory.hdf5")
    assert warned(source, "the action is the state of the next row")
    vectors, _ = read_all(source, only(source))
    np.testing.assert_array_equal(vectors["action"][0], vectors["state"][1])
    with h5py.File(tmp_path / "trajectory.hdf5", "a") as file:
        del file["puppet/joint_position_left"]
    ref = only(open_source(tmp_path / "trajectory.hdf5"))
    assert "'joint_position' is missing" in ref.fault
    assert "end_effector_left" in ref.fault


# AgiBot


def edit_agibot(root, change):
    with h5py.File(root / "proprio_stats/327/648642/proprio_stats.h5", "a") as file:
        change(file)


def replaced(file, name, values):
    del file[name]
    file[name] = values


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f: replaced(f, "action/joint/position", np.zeros((9, 14))), "more commands than states"),
        (lambda f: replaced(f, "action/joint/index", np.array([0, 1, 2, 5, 6, 8])), "an index that does not fit"),
        (lambda f: replaced(f, "action/joint/index", np.zeros(0, int)), "an index that does not fit"),
        (lambda f: replaced(f, "action/effector/position", np.zeros((0, 2))), "the state can't stand for it"),
        (lambda f: replaced(f, "state/head/position", np.zeros((5, 2))), "can't stand for it"),
        (lambda f: replaced(f, "state/effector/position", np.zeros((5, 2))), "first dimensions differ"),
    ],
)
def test_agibot_files_that_do_not_fit(real, tmp_path, change, reason):
    agibot(tmp_path / "x.hdf5", real)
    edit_agibot(tmp_path, change)
    assert reason in only(open_source(tmp_path)).fault


def test_agibot_ends_with_the_index_of_the_joints(real, tmp_path):
    agibot(tmp_path / "x.hdf5", real)

    def change(file):
        file["action/end/position"] = np.arange(5.0)[:, None, None] * np.ones((5, 2, 3))
        file["action/end/index"] = np.zeros(0, np.int64)

    edit_agibot(tmp_path, change)
    source = open_source(tmp_path, "--state", "joint/position", "--action", "end/position", "--fps", "30")
    vectors, _ = read_all(source, only(source))
    assert vectors["action"][:, 0].tolist() == [0, 1, 2, 2, 2, 3, 4, 4]
    assert source.describe().vectors["action"].names[0] == "end_0"


def test_agibot_clock_and_other_episodes(real, tmp_path):
    agibot(tmp_path / "x.hdf5", real)
    edit_agibot(tmp_path, lambda f: replaced(f, "timestamp", np.arange(8) * 10**8))
    (tmp_path / "task_info/task_327.json").write_text("[]")
    source = open_source(tmp_path)
    assert warned(source, "tell 10 frames/s, 30 are taken")
    assert warned(source, "does not name an episode that is there")
    assert not warned(open_source(tmp_path, "--fps", "10"), "frames/s")


# AgileX data_tools


def test_agilex_instructions(real, tmp_path):
    agilex_paths(tmp_path / "x.hdf5", real.cut(3))
    folder = tmp_path / "episode0"

    def task():
        source = open_source(tmp_path)
        with source.read(only(source)) as episode:
            return episode.tasks[0], source

    np.save(folder / "instructions.npy", np.zeros((3, 4096), np.float32))
    found, source = task()
    assert found == ""
    assert warned(source, "holds no text")
    (folder / "instructions.json").write_text(json.dumps({"instructions": ["take it"]}))
    assert task()[0] == "take it"


def test_agilex_without_masters(real, tmp_path):
    agilex_paths(tmp_path / "x.hdf5", real.cut(3))
    with h5py.File(tmp_path / "episode0/data.hdf5", "a") as file:
        for side in ("Left", "Right"):
            del file[f"arm/jointStatePosition/master{side}"]
    fault = only(open_source(tmp_path)).fault
    assert "no master arm" in fault
    assert "puppetLeft, puppetRight" in fault
    ref = only(open_source(tmp_path, "--action", "arm/endPose/puppetLeft"))
    assert ref.vectors == {"state": 14, "action": 7}


# DROID


def test_droid_rows_that_are_left_out(real, tmp_path):
    droid(tmp_path / "x.hdf5", real)
    source = open_source(tmp_path)
    with source.read(only(source)) as episode:
        kept = [row for row in range(8) if row not in SKIPPED]
        assert episode.rows.tolist() == kept
        np.testing.assert_allclose(episode.timestamps, np.array(kept) / 15)
        assert episode.extras["rows_left_out"] == 3
        assert episode.extras["success"] is True
        assert "its last frame stands for two" in episode.extras["frame_mapping"]["cam2"]
    assert warned(source, "rows without movement")
    path = next(tmp_path.rglob("trajectory.h5"))
    with h5py.File(path, "a") as file:
        file["observation/timestamp/skip_action"][...] = True
    assert "too short (expected 2 frames or more, found 0)" in only(open_source(tmp_path)).fault


@pytest.mark.parametrize("shift", [-1, 1])
def test_shifted_observations_with_rows_left_out_and_held_commands(real, tmp_path, shift):
    written = agibot(tmp_path / "x.hdf5", real)
    source = open_source(tmp_path, "--obs-shift", str(shift))
    vectors, views = read_all(source, only(source))
    first, second = (0, 1) if shift < 0 else (1, 0)
    np.testing.assert_array_equal(vectors["state"], written.state.astype(np.float32)[first : 7 + first])
    np.testing.assert_array_equal(vectors["action"], written.action.astype(np.float32)[second : 7 + second])
    for k, picture in enumerate(views["cam0"]):
        assert np.abs(rgb(picture).astype(int) - real.front[k + first]).mean() < 2.5
    (tmp_path / "droid").mkdir()
    droid(tmp_path / "droid/x.hdf5", real)
    source = open_source(tmp_path / "droid", "--obs-shift", str(shift))
    with source.read(only(source)) as episode:
        moved = [row for row in range(8) if row not in SKIPPED]
        kept = [row - 1 for row in moved if row] if shift < 0 else [row for row in moved if row < 7]
        assert episode.rows.tolist() == kept
        np.testing.assert_array_equal(
            episode.vectors["action"][:, :7], real.command[np.array(kept) + second].astype(np.float32)
        )
        np.testing.assert_array_equal(
            episode.vectors["state"][:, :7], real.joints[np.array(kept) + first].astype(np.float32)
        )


def test_droid_metadata_tells_task_success_and_cameras(real, tmp_path):
    droid(tmp_path / "x.hdf5", real)
    folder = next(tmp_path.rglob("trajectory.h5")).parent
    about = {
        "uuid": "LAB+1+2",
        "current_task": "Fold it",
        "success": False,
        "wrist_cam_serial": "17225336",
        "ext1_cam_serial": "29838012",
        "ext2_cam_serial": "23404442",
    }
    (folder / "metadata_LAB+1+2.json").write_text(json.dumps(about))
    table = tmp_path / "annotations.json"
    table.write_text(json.dumps({"LAB+1+2": {"language_instruction1": "Fold the towel"}}))
    source = open_source(tmp_path, "--instructions", str(table))
    with source.read(only(source)) as episode:
        assert episode.tasks == ("Fold the towel",)
        assert episode.extras["success"] is False
        assert "frame_mapping" in episode.extras
        assert set(episode.extras["frame_mapping"]) == {"cam0"}
    assert "failed" in only(open_source(tmp_path, "--failed", "drop")).fault
