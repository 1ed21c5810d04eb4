"""robomimic, mimicgen, robocasa, and the raw demonstrations they come from."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source, pictures, read_all, vectors, write_robomimic
from wdsmix.converters.hdf5 import images
from wdsmix.converters.hdf5.dialects.robomimic import controller_kinds

from wdsmix.errors import ConfigError

STATE = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")


def test_vectors_pictures_order_and_splits(tmp_path):
    written = write_robomimic(tmp_path / "lift.hdf5")
    source = open_source(tmp_path / "lift.hdf5")
    refs = source.episodes()
    assert [ref.id for ref in refs] == ["demo_0", "demo_1", "demo_10"]  # natural order, gaps allowed
    assert [ref.split for ref in refs] == ["train", "train", "val"]
    for ref in refs:
        entry = written[ref.id]
        got, views = read_all(source, ref)
        np.testing.assert_array_equal(got["state"], np.hstack([entry[key] for key in STATE]).astype(np.float32))
        np.testing.assert_array_equal(got["action"], entry["actions"].astype(np.float32))
        assert got["reward"].shape == got["done"].shape == (9, 1)
        assert got["done"].ravel().tolist() == [0] * 8 + [1]
        np.testing.assert_array_equal(np.stack(views["cam0"]), entry["agentview_image"])
        np.testing.assert_array_equal(np.stack(views["cam1"]), entry["robot0_eye_in_hand_image"])
    info = source.describe()
    assert info.fps == 20
    assert info.kind == "hdf5/robomimic"
    assert info.embodiment == "panda"
    assert info.warnings == ()
    assert info.vectors["action"].kinds == ("delta",) * 3 + ("delta_rotation",) * 3 + ("absolute",)
    assert info.vectors["state"].names[0] == "robot0_eef_pos_0"
    with source.read(refs[0]) as episode:
        assert episode.tasks == ("Lift",)


def test_instruction_of_the_episode_beats_the_option_beats_the_environment(tmp_path):
    path = tmp_path / "a.hdf5"
    write_robomimic(path)
    with h5py.File(path, "a") as file:
        file["data/demo_0"].attrs["ep_meta"] = json.dumps({"lang": "close the drawer"})
        file["data/demo_1"].attrs["ep_meta"] = "{not json"
    source = open_source(path, "--instruction", "lift it")
    tasks = []
    for ref in source.episodes():
        with source.read(ref) as episode:
            tasks.append(episode.tasks[0])
    assert tasks == ["close the drawer", "lift it", "lift it"]
    assert any("ep_meta" in warning for warning in source.describe().warnings)


def test_bad_environment_arguments_are_a_warning(tmp_path):
    path = tmp_path / "a.hdf5"
    write_robomimic(path, env_args="{'python': 'repr'}")
    source = open_source(path)
    assert [ref.fault for ref in source.episodes()] == [None] * 3
    info = source.describe()
    assert info.fps == 20
    assert info.details["fps_from"] == ["default"]
    assert any("not valid JSON" in warning for warning in info.warnings)
    assert any("20 frames/s assumed" in warning for warning in info.warnings)


def test_control_frequency_is_the_rate(tmp_path):
    write_robomimic(tmp_path / "a.hdf5", env_args={"env_name": "X", "type": 1, "env_kwargs": {"control_freq": 10}})
    assert open_source(tmp_path).describe().fps == 10
    assert open_source(tmp_path, "--fps", "12.5").describe().fps == 12.5


@pytest.mark.parametrize(
    ("config", "width", "kinds"),
    [
        ({"type": "OSC_POSE"}, 7, "dddrrra"),
        ({"type": "OSC_POSE", "control_delta": False}, 7, "aaaaaaa"),
        ({"type": "OSC_POSITION", "control_delta": True}, 4, "ddda"),
        ({"type": "BASIC", "body_parts": {"right": {"type": "OSC_POSE", "input_type": "delta"}}}, 7, "dddrrra"),
        ({"type": "BASIC", "body_parts": {"right": {"type": "OSC_POSE", "input_type": "absolute"}}}, 7, "aaaaaaa"),
        ({"type": "JOINT_VELOCITY"}, 8, ""),
        ({"type": "OSC_POSE"}, 12, ""),
        (None, 7, ""),
    ],
)
def test_kinds_of_the_action(config, width, kinds):
    words = {"d": "delta", "r": "delta_rotation", "a": "absolute"}
    found = controller_kinds({"controller_configs": config, "robots": ["Panda"]}, width)
    assert found == tuple(words[letter] for letter in kinds)


def test_two_arms(tmp_path):
    env = {
        "env_name": "Transport",
        "type": 1,
        "env_kwargs": {"control_freq": 20, "robots": ["Panda", "Panda"], "controller_configs": {"type": "OSC_POSE"}},
    }
    path = tmp_path / "a.hdf5"
    write_robomimic(path, env_args=env, demos=[0])
    with h5py.File(path, "a") as file:
        demo = file["data/demo_0"]
        for key in STATE:
            demo[f"obs/{key.replace('robot0', 'robot1')}"] = demo[f"obs/{key}"][()] + 1
        del demo["actions"]
        demo["actions"] = vectors(9, 14, 3)
    source = open_source(path)
    (ref,) = source.episodes()
    assert ref.vectors["state"] == 18
    assert source.describe().vectors["action"].kinds[6:8] == ("absolute", "delta")


def test_state_keys(tmp_path):
    written = write_robomimic(tmp_path / "a.hdf5")
    source = open_source(tmp_path, "--state", "robot0_eef_pos,states")
    (first, *_) = source.episodes()
    assert first.fault is not None  # states has more rows than actions: a mapped stream, so it counts
    assert "first dimensions differ" in first.fault
    source = open_source(tmp_path, "--state", "robot0_eef_quat")
    got, _ = read_all(source, source.episodes()[0])
    np.testing.assert_array_equal(got["state"], written["demo_0"]["robot0_eef_quat"].astype(np.float32))
    (first, *_) = open_source(tmp_path, "--state", "qpos").episodes()
    assert "'qpos' is missing" in first.fault
    assert "robot0_eef_pos" in first.fault


def test_no_default_state_lists_the_keys(tmp_path):
    path = tmp_path / "a.hdf5"
    write_robomimic(path, demos=[0])
    with h5py.File(path, "a") as file:
        for key in STATE:
            file.move(f"data/demo_0/obs/{key}", f"data/demo_0/obs/x_{key}")
    (ref,) = open_source(path).episodes()
    assert "--state" in ref.fault
    assert "x_robot0_eef_pos" in ref.fault


def test_masks(tmp_path):
    path = tmp_path / "a.hdf5"
    write_robomimic(path)
    with h5py.File(path, "a") as file:
        file["mask/20_percent"] = np.array([b"demo_1"])
        file["mask/test"] = np.array(["demo_0"], dtype=object)
        del file["mask/train"]
        file["mask/train"] = np.array([b"demo_0", b"demo_1", b"demo_77"])
    source = open_source(path)
    assert [ref.split for ref in source.episodes()] == ["test", "train", "val"]  # never a tested one in training
    warnings = " ".join(source.describe().warnings)
    assert "mask/train names 1 demonstration that the file lacks: demo_77" in warnings
    assert "demo_0 is in the masks of two splits" in warnings

    refs = open_source(path, "--mask", "20_percent").episodes()
    assert [ref.fault is None for ref in refs] == [False, True, False]
    assert refs[0].fault_kind == "filter"
    (ref,) = open_source(path, "--mask", "50_percent").episodes()
    assert ref.fault_kind == "file"
    assert "20_percent" in ref.fault


def test_stale_total_is_told_and_ignored(tmp_path):
    path = tmp_path / "a.hdf5"
    write_robomimic(path)
    with h5py.File(path, "a") as file:
        file["data"].attrs["total"] = 9666
    source = open_source(path)
    assert [ref.frames for ref in source.episodes()] == [9, 9, 9]
    assert any("9666" in warning for warning in source.describe().warnings)


def test_depth_is_left_out_and_float_or_grey_pictures_become_rgb(tmp_path):
    path = tmp_path / "a.hdf5"
    written = write_robomimic(path, demos=[0])
    views = written["demo_0"]["agentview_image"]
    with h5py.File(path, "a") as file:
        obs = file["data/demo_0/obs"]
        obs["agentview_depth"] = np.zeros((9, 84, 84, 1), np.float32)
        obs["unit_image"] = (views / 255).astype(np.float32)
        obs["byte_image"] = views.astype(np.float64)
        obs["grey_image"] = views[..., :1]
        obs["alpha_image"] = np.concatenate([views, views[..., :1]], -1)
    source = open_source(path)
    (ref,) = source.episodes()
    _, seen = read_all(source, ref)
    by_key = {source.describe().cameras[slot].key: np.stack(frames) for slot, frames in seen.items()}
    assert "agentview_depth" not in by_key
    for key in ("unit_image", "byte_image", "alpha_image"):
        np.testing.assert_array_equal(by_key[key], views)
    np.testing.assert_array_equal(by_key["grey_image"], np.repeat(views[..., :1], 3, -1))


def test_no_rewards_is_fine_and_empty_ones_are_left_out(tmp_path):
    path = tmp_path / "a.hdf5"
    write_robomimic(path, demos=[0, 1])
    with h5py.File(path, "a") as file:
        del file["data/demo_0/rewards"]
        del file["data/demo_1/dones"]
        file.create_dataset("data/demo_1/dones", (9,), dtype="i8")  # declared, never written
    refs = open_source(path).episodes()
    assert [sorted(ref.vectors) for ref in refs] == [["action", "done", "state"], ["action", "reward", "state"]]


def write_robosuite(path, actions=True):
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env"] = "Door"
        for number in (1, 2):
            data[f"demo_{number}/states"] = vectors(6, 23, number)
            if actions:
                data[f"demo_{number}/actions"] = vectors(6, 7, number)


def test_raw_robosuite_is_refused_with_what_to_do(tmp_path):
    write_robosuite(tmp_path / "a.hdf5")
    (ref,) = open_source(tmp_path).episodes()
    assert ref.fault_kind == "file"
    assert "dataset_states_to_obs.py" in ref.fault
    assert "actions" in ref.fault
    source = open_source(tmp_path, "--allow-no-camera")
    refs = source.episodes()
    assert [ref.vectors for ref in refs] == [{"state": 23, "action": 7}] * 2
    with source.read(refs[0]) as episode:
        assert episode.tasks == ("Door",)
        assert episode.images == {}
    write_robosuite(tmp_path / "a.hdf5", actions=False)
    assert all("'actions' is missing" in ref.fault for ref in open_source(tmp_path, "--allow-no-camera").episodes())


def test_no_demonstrations_is_a_warning(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_group("data")
    source = open_source(tmp_path)
    assert source.episodes() == []
    assert any("0 episodes" in warning for warning in source.describe().warnings)


def test_libero_and_isaac_lab_are_not_taken_for_robomimic(tmp_path):
    for name in ("libero.hdf5", "isaac.hdf5"):
        write_robomimic(tmp_path / name, demos=[0], masks=False)
    with h5py.File(tmp_path / "libero.hdf5", "a") as file:
        file["data"].attrs["problem_info"] = json.dumps({"language_instruction": "x"})
    with h5py.File(tmp_path / "isaac.hdf5", "a") as file:
        file["data"].attrs["env_args"] = json.dumps({"env_name": "Isaac-Lift", "type": 2})
    isaac, libero = open_source(tmp_path, "--state", "robot0_eef_pos").episodes()
    assert [isaac.locator["dialect"], libero.locator["dialect"]] == ["isaaclab", "libero"]
    refs = open_source(tmp_path, "--dialect", "robomimic").episodes()
    assert [ref.fault for ref in refs] == [None, None]
    with pytest.raises(ConfigError, match="platform"):
        open_source(tmp_path, "--dialect", "robomimik").episodes()


def test_the_real_sample(samples):
    path = samples / "hdf5/robomimic_lift_images/test_first3.hdf5"
    source = open_source(path)
    refs = source.episodes()
    assert [(ref.id, ref.frames, ref.split) for ref in refs] == [
        ("demo_0", 59, "val"),
        ("demo_1", 58, "train"),
        ("demo_8", 44, "val"),
    ]
    with h5py.File(path, locking=False) as file:
        for ref in refs:
            demo = file[f"data/{ref.id}"]
            got, views = read_all(source, ref)
            state = np.hstack([demo[f"obs/{key}"][()] for key in STATE]).astype(np.float32)
            assert got["state"].tobytes() == state.tobytes()
            assert got["action"].tobytes() == demo["actions"][()].astype(np.float32).tobytes()
            np.testing.assert_array_equal(np.stack(views["cam0"]), demo["obs/agentview_image"][()])
            np.testing.assert_array_equal(np.stack(views["cam1"]), demo["obs/robot0_eye_in_hand_image"][()])


@pytest.mark.parametrize("block", [1, 40_000, 32 << 20])
def test_chunked_pictures_of_every_shape(tmp_path, monkeypatch, block):
    monkeypatch.setattr(images, "_BLOCK_BYTES", block)
    monkeypatch.setattr(images, "_CHUNK_ROW_BYTES", 2 * block)  # small: chunks go through the temporary file
    views = pictures(50, width=32, height=24)
    for number, chunks in enumerate([(1, 24, 32, 3), (7, 12, 16, 1), (50, 6, 8, 3), (64, 24, 32, 3), None]):
        path = tmp_path / f"{number}.hdf5"
        write_robomimic(path, demos=[0], frames=50)
        with h5py.File(path, "a") as file:
            del file["data/demo_0/obs/agentview_image"]
            options = {"chunks": chunks, "maxshape": (None, 24, 32, 3), "compression": "lzf"} if chunks else {}
            file.create_dataset("data/demo_0/obs/agentview_image", data=views, **options)
        source = open_source(path)
        (ref,) = source.episodes()
        _, seen = read_all(source, ref)
        np.testing.assert_array_equal(np.stack(seen["cam0"]), views)
        with source.read(ref) as episode:
            for rows in (np.arange(0, 50, 7), np.array([0, 1, 30, 49])):
                np.testing.assert_array_equal(np.stack(list(episode.images["cam0"].read(rows))), views[rows])
