"""Simulators and offline-RL suites: real frames in each layout, through the command, come out as they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from helpers import sim_fixtures as sim
from helpers.hdf5_converted import convert, npy
from helpers.hdf5_fixtures import rgb
from helpers.tars import samples_of

from wdsmix.cli import main

POSE = ("pos", "quat", "gripper")


@pytest.fixture(scope="module")
def demos(samples):
    return sim.lift(samples)


def episodes_of(folder):
    """Episode number -> its samples in order, each suffix -> bytes, by tarfile."""
    found = {}
    for key, files in samples_of(folder).items():
        found.setdefault(int(key[:6]), {})[int(key[7:])] = files
    return {number: [frames[k] for k in range(len(frames))] for number, frames in sorted(found.items())}


def column(frames, name):
    return np.stack([npy(frame[f"{name}.npy"]) for frame in frames])


def views(frames, slot):
    return np.stack([rgb(frame[f"{slot}.jpg"]) for frame in frames]).astype(int)


def lay(name, demos, folder):
    """Writes a layout; gives the source, options, and what each frame of an episode must hold."""
    whole, ends = slice(None), np.eye(1, 7, 6, dtype=np.float32)[0]
    if name == "mimicgen":
        sim.write_mimicgen(folder / "a.hdf5", demos)
        return folder, (), [(d, whole, whole, d.state(*POSE), d.rewards, d.dones, "Lift") for d in demos]
    if name == "robocasa":
        sim.write_robocasa(folder / "a.hdf5", demos)
        return (
            folder,
            ("--camera", "cam0=robot0_agentview_left_image", "--camera", "cam1=robot0_eye_in_hand_image"),
            [(d, whole, whole, d.state(*POSE), None, None, f"close drawer {k}") for k, d in enumerate(demos, 1)],
        )
    if name == "libero":
        sim.write_libero(folder / "pick_up_the_cube_demo.hdf5", demos)
        seen = acted = slice(1, None)  # row t holds observation t+1, which goes with action t+1
        return (
            folder,
            ("--obs-shift", "-1"),
            [
                (
                    d,
                    seen,
                    acted,
                    np.hstack([d.pos, d.quat[:, :3], d.gripper])[seen],
                    d.dones,
                    d.dones,
                    "pick up the cube",
                )
                for d in demos
            ],
        )
    if name == "isaaclab":
        sim.write_isaac(folder / "a.hdf5", demos, nested="policy/")
        task = "stack the cubes"
        return (
            folder,
            ("--instruction", task, "--fps", "20"),
            [(d, whole, whole, d.joints - d.joints[0], None, None, task) for d in demos],
        )
    if name == "leisaac":
        sim.write_isaac(folder / "a.hdf5", demos, name="LeIsaac-SO101-PickOrange-v0", compression="lzf")
        return (
            folder,
            ("--state", "states/articulation/robot/joint_position", "--fps", "20"),
            [
                (d, slice(1, None), slice(1, None), d.joints[1:], None, None, "LeIsaac-SO101-PickOrange-v0")
                for d in demos
            ],
        )
    if name in ("maniskill2", "maniskill3"):
        sim.write_maniskill(folder / "a.h5", demos, version=int(name[-1]))
        state = [d.state("joints", "speeds")[:-1] for d in demos]
    elif name == "minari":
        sim.write_minari(folder, demos)
        state = [d.state("joints", "pos")[:-1] for d in demos]
    elif name == "robohive":
        sim.write_robohive(folder / "a.h5", demos)
        cut = slice(None, -1)
        return (
            folder,
            ("--instruction", "lift it"),
            [(d, cut, cut, d.state("joints", "pos")[cut], d.rewards[cut], d.dones[cut], "lift it") for d in demos],
        )
    task = {"minari": "FetchPickAndPlace-v4"}.get(name, "PickCube-v1")
    cut = slice(None, -1)
    return folder, (), [(d, cut, cut, s, d.rewards[cut], ends, task) for d, s in zip(demos, state, strict=True)]


LAYOUTS = {
    "mimicgen": ("mimicgen", 20, "same row"),
    "robocasa": ("robocasa", 20, "same row"),
    "libero": ("libero", 20, "1 row earlier"),
    "isaaclab": ("isaaclab", 20, "previous action"),
    "leisaac": ("leisaac", 20, "previous action"),
    "maniskill2": ("maniskill", 20, "last observation left out"),
    "maniskill3": ("maniskill", 20, "last observation left out"),
    "minari": ("minari", 20, "last observation left out"),
    "robohive": ("robohive", 12.5, "same row"),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_pictures_vectors_and_manifest(demos, tmp_path, name):
    source = tmp_path / "source"
    source.mkdir()
    source, argv, expected = lay(name, demos, source)
    dialect, rate, pairing = LAYOUTS[name]
    assert convert(source, tmp_path / "set", *argv) == 0
    found = episodes_of(tmp_path / "set")
    assert len(found) == 3
    for frames, (demo, seen, acted, state, reward, done, task) in zip(found.values(), expected, strict=True):
        np.testing.assert_array_equal(column(frames, "state"), state.astype(np.float32))
        np.testing.assert_array_equal(column(frames, "action"), demo.actions[acted].astype(np.float32))
        for vector, values in (("reward", reward), ("done", done)):
            if values is None:
                assert f"{vector}.npy" not in frames[0]
            else:
                values = values if len(values) == len(frames) else values[acted]
                np.testing.assert_array_equal(column(frames, vector).ravel(), values.astype(np.float32))
        assert np.abs(views(frames, "cam0") - demo.front[seen]).mean() < 3
        if name != "minari":
            assert np.abs(views(frames, "cam1") - demo.wrist[seen]).mean() < 3
        assert {json.loads(frame["json"])["task"] for frame in frames} == {task}
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    details = manifest["details"]
    assert manifest["kind"] == f"hdf5/{dialect}"
    assert manifest["hz"] == rate
    assert pairing in details["pairing"]
    flip = "vertical" if name == "libero" else "none"
    assert details["cameras"][f"{dialect}:cam0"]["order_flip"] == [["rgb", flip]]
    assert main(["validate", str(tmp_path / "set"), "--level", "full", "--quiet"]) == 0


@pytest.mark.parametrize(("timeouts", "following"), [(True, False), (False, True)])
def test_d4rl_rows_are_cut_into_episodes(demos, tmp_path, capsys, timeouts, following):
    sim.write_d4rl(tmp_path / "a.hdf5", demos, timeouts=timeouts, following=following)
    assert convert(tmp_path / "a.hdf5", tmp_path / "set") == 1
    assert "D4RL files hold no images" in capsys.readouterr().err
    assert convert(tmp_path / "a.hdf5", tmp_path / "set", "--allow-no-camera", "--fps", "50") == 0
    found = list(episodes_of(tmp_path / "set").values())
    assert [len(frames) for frames in found] == [8, 8, 8]
    for number, (frames, demo) in enumerate(zip(found, demos, strict=True)):
        assert set(frames[0]) == {"state.npy", "action.npy", "reward.npy", "done.npy", "json"}
        np.testing.assert_array_equal(column(frames, "state"), demo.state("joints", "pos"))
        np.testing.assert_array_equal(column(frames, "action"), demo.actions.astype(np.float32))
        np.testing.assert_array_equal(column(frames, "reward").ravel(), demo.rewards.astype(np.float32))
        assert column(frames, "done").ravel().tolist() == [0] * 7 + [float(number == 0)]  # a timeout ends no task
    assert main(["validate", str(tmp_path / "set"), "--level", "full", "--quiet"]) == 0


def test_each_file_is_turned_over_by_its_own_attribute(demos, tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    sim.write_libero(source / "a_demo.hdf5", demos[:1], convention="opengl")
    sim.write_libero(source / "b_demo.hdf5", demos[1:2], convention="opencv")
    assert convert(source, tmp_path / "set") == 0
    for frames, demo in zip(episodes_of(tmp_path / "set").values(), demos, strict=False):
        assert np.abs(views(frames[:-1], "cam0") - demo.front[1:]).mean() < 3
        assert np.abs(views(frames[:-1], "cam1") - demo.wrist[1:]).mean() < 3
    details = json.loads((tmp_path / "set/manifest.json").read_text())["details"]
    assert details["cameras"]["libero:cam0"]["order_flip"] == [["rgb", "none"], ["rgb", "vertical"]]


def test_check_shows_each_files_dialect(demos, tmp_path, capsys):
    sim.write_libero(tmp_path / "libero.hdf5", demos)
    sim.write_mimicgen(tmp_path / "mimicgen.hdf5", demos)
    sim.write_maniskill(tmp_path / "maniskill.h5", demos)
    assert main(["check", "hdf5", str(tmp_path), "--fps", "20"]) == 0
    shown = "".join(capsys.readouterr())
    for dialect in ("libero", "mimicgen", "maniskill"):
        assert dialect in shown


def test_real_samples_that_hold_no_pictures(samples, tmp_path, capsys):
    source = samples / "hdf5/maniskill_fmb"
    assert convert(source, tmp_path / "set") == 1
    assert "replay_trajectory --obs-mode rgb" in capsys.readouterr().err
    assert convert(source, tmp_path / "set", "--allow-no-camera") == 0
    (frames,) = episodes_of(tmp_path / "set").values()
    assert len(frames) == 812
    assert {name: npy(frames[0][f"{name}.npy"]).shape for name in ("state", "action", "done")} == {
        "state": (135,),
        "action": (8,),
        "done": (1,),
    }
    told = json.loads(frames[0]["json"])
    assert (told["task"], told["success"], told["control_mode"]) == ("FMBAssembly1-v0", False, "pd_joint_pos")

    source = samples / "hdf5/d4rl_guda"
    assert convert(source / "FetchPush-v2.hdf5", tmp_path / "fetch", "--allow-no-camera") == 0
    assert [len(frames) for frames in episodes_of(tmp_path / "fetch").values()] == [50, 50, 50]
    assert convert(source / "scoring_empty.hdf5", tmp_path / "none", "--allow-no-camera") == 1
    assert "no episode at all" in capsys.readouterr().err
