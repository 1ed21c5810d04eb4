"""HDF5 to a shard set, through the command, against h5py and tarfile by hand."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers.hdf5_converted import convert, npy
from helpers.hdf5_fixtures import ENCODED, rgb, write_aloha, write_platform
from helpers.tars import samples_of

from wdsmix.cli import main


def test_the_real_sample(samples, tmp_path):
    path = samples / "hdf5/robomimic_lift_images/test_first3.hdf5"
    assert convert(path, tmp_path / "set", "--split-by", "source") == 0
    found = samples_of(tmp_path / "set")
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["kind"] == "hdf5/robomimic"
    assert manifest["hz"] == 20
    assert {name: counts["frames"] for name, counts in manifest["splits"].items()} == {"train": 58, "val": 103}
    keys = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
    train = []
    with h5py.File(path, locking=False) as file:
        for number, name in enumerate(["demo_0", "demo_1", "demo_8"]):
            demo = file[f"data/{name}"]
            state = np.hstack([demo[f"obs/{key}"][()] for key in keys]).astype(np.float32)
            action = demo["actions"][()].astype(np.float32)
            if name == "demo_1":
                train = [state, action]
            for frame in range(len(action)):
                sample = found.pop(f"{number:06d}_{frame:06d}")
                assert npy(sample["state.npy"]).tobytes() == state[frame].tobytes()
                assert npy(sample["action.npy"]).tobytes() == action[frame].tobytes()
                assert npy(sample["reward.npy"]) == np.float32(demo["rewards"][frame])
                assert json.loads(sample["json"])["task"] == "Lift"
                for member, camera in (("cam0.jpg", "agentview_image"), ("cam1.jpg", "robot0_eye_in_hand_image")):
                    error = np.abs(rgb(sample[member]).astype(int) - demo[f"obs/{camera}"][frame])
                    assert error.mean() < 3
    assert not found
    stats = json.loads((tmp_path / "set/stats.json").read_text())["fields"]
    for name, values in zip(("state", "action"), train, strict=True):
        np.testing.assert_allclose(stats[name]["mean"], values.astype(np.float64).mean(0), rtol=1e-9, atol=1e-15)
        np.testing.assert_allclose(stats[name]["std"], values.astype(np.float64).std(0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("storage", ENCODED)
def test_every_storage_class_gives_the_same_shards_and_the_sources_jpeg(tmp_path, storage):
    source = tmp_path / "source"
    source.mkdir()
    written = {k: write_platform(source / f"chunk_{k:03d}.hdf5", storage=storage, seed=k, frames=6) for k in (1, 2)}
    assert convert(source, tmp_path / "set") == 0
    found = samples_of(tmp_path / "set")
    number = 0
    for chunk in (1, 2):
        for entry in written[chunk].values():
            for frame in range(6):
                sample = found.pop(f"{number:06d}_{frame:06d}")
                assert sample["cam0.jpg"] == entry["jpeg:camera_01"][frame]
                assert sample["cam1.jpg"] == entry["jpeg:camera_02"][frame]
                np.testing.assert_array_equal(npy(sample["action.npy"]), entry["action"][frame])
                np.testing.assert_array_equal(npy(sample["state.npy"])[:7], entry["state"][frame])
                extras = json.loads(sample["json"])
                assert extras["task"].startswith("put block")
                assert extras["task_zh"].startswith("把积木")
                assert extras["score"] in (0.6, 0.7)
            number += 1
    assert not found


def test_one_bad_file_among_good_ones(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for number in (1, 2, 3):
        write_platform(source / f"chunk_{number:03d}.hdf5", frames=5, episodes=[1])
    data = (source / "chunk_002.hdf5").read_bytes()
    (source / "chunk_002.hdf5").write_bytes(data[:-1000])
    assert main(["convert", "hdf5", str(source), str(tmp_path / "set"), "--workers", "1"]) == 1
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert manifest["counts"]["episodes"] == 2
    (dropped,) = manifest["dropped"]
    assert dropped["source_file"] == "chunk_002.hdf5"
    assert dropped["kind"] == "file"
    assert "truncated file" in dropped["reason"]
    assert str(tmp_path) not in json.dumps(manifest)
    assert "truncated" in "".join(capsys.readouterr())
    assert {key[:6] for key in samples_of(tmp_path / "set")} == {"000000", "000002"}


def test_aloha_colours_come_out_right(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    written = [write_aloha(source / f"episode_{k}.hdf5", storage="padded", frames=4) for k in (0, 1)]
    assert convert(source, tmp_path / "set", "--val-fraction", "0.5") == 0
    found = samples_of(tmp_path / "set")
    for number in (0, 1):
        for frame in range(4):
            seen = rgb(found[f"{number:06d}_{frame:06d}"]["cam0.jpg"]).astype(int)
            assert np.abs(seen - written[number]["views"]["cam_high"][frame]).mean() < 3
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    assert set(manifest["splits"]) == {"train", "val"}
    assert manifest["details"]["cameras"]["aloha:cam0"] == {"key": "cam_high", "order_flip": [["bgr", "none"]]}


def test_nothing_to_convert(samples, tmp_path, capsys):
    for name, reason in (("robosuite_1.0_raw", "dataset_states_to_obs"), ("lfs_pointer", "LFS"), ("d4rl_guda", "D4RL")):
        assert convert(samples / "hdf5" / name, tmp_path / name) != 0
        assert reason in "".join(capsys.readouterr())
        assert not (tmp_path / name / "manifest.json").exists()


def test_states_alone(samples, tmp_path):
    source = samples / "hdf5/robosuite_1.0_raw/lift_panda_demo.hdf5"
    assert convert(source, tmp_path / "set", "--allow-no-camera", "--fps", "20") == 0
    found = samples_of(tmp_path / "set")
    assert len(found) == 412
    assert set(found["000000_000000"]) == {"state.npy", "action.npy", "json"}
