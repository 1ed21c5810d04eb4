"""ManiSkill, Minari, RoboHive, D4RL: what their files leave to the reader."""

from __future__ import annotations

import json
import os

import h5py
import numpy as np
import pytest
from helpers import sim_fixtures as sim
from helpers.hdf5_fixtures import open_source, read_all, rgb
from wdsmix.converters.hdf5.dialects.maniskill import control_kinds
from wdsmix.converters.hdf5.safe import Tree
from wdsmix.converters.hdf5.sidecar import MAX_SIDECAR_BYTES, read_beside

from wdsmix.errors import ConflictError


@pytest.fixture
def demos():
    return sim.made()


def extras(source):
    found = []
    for ref in source.episodes():
        if ref.fault is None:
            with source.read(ref) as episode:
                found.append((*episode.tasks, dict(episode.extras)))
    return found


def test_maniskill_metadata(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos, rate=50)
    source = open_source(tmp_path)
    refs = source.episodes()
    assert [ref.id for ref in refs] == ["traj_0", "traj_1", "traj_10"]  # written in another order, with a gap
    assert [ref.frames for ref in refs] == [7, 7, 7]
    assert extras(source) == [
        ("PickCube-v1", {"control_mode": "pd_ee_delta_pose", "episode_seed": 7 + number, "success": fine})
        for number, fine in ((0, True), (1, False), (10, True))
    ]
    info = source.describe()
    assert (info.fps, info.embodiment, info.details["fps_from"]) == (50, "panda", ["file"])
    assert info.vectors["action"].kinds == ("delta",) * 3 + ("delta_rotation",) * 3 + ("absolute",)
    assert info.details["facts"] == {
        "env_id": ["PickCube-v1"],
        "control_mode": ["pd_ee_delta_pose"],
        "obs_mode": ["rgb"],
    }
    refs = open_source(tmp_path, "--failed", "drop").episodes()
    assert [ref.fault_kind for ref in refs if ref.fault] == ["filter"]
    assert open_source(tmp_path, "--fps", "10").describe().fps == 10
    assert extras(open_source(tmp_path, "--instruction", "pick"))[0][0] == "pick"


@pytest.mark.parametrize(
    ("mode", "width", "kinds"),
    [
        ("pd_joint_pos", 8, "a" * 8),
        ("pd_joint_delta_pos", 8, "d" * 7 + "a"),
        ("pd_joint_target_delta_pos", 7, "d" * 7),
        ("pd_ee_delta_pose", 7, "dddrrra"),
        ("pd_ee_target_delta_pose", 6, "dddrrr"),
        ("pd_ee_delta_pos", 4, "ddda"),
        ("pd_joint_delta_pos", 15, ""),
        ("pd_joint_vel", 8, ""),
        ("", 8, ""),
    ],
)
def test_maniskill_kinds(mode, width, kinds):
    words = {"a": "absolute", "d": "delta", "r": "delta_rotation"}
    assert control_kinds(mode, width) == tuple(words[letter] for letter in kinds)


@pytest.mark.parametrize(
    ("content", "warning"),
    [
        (None, "no a.json beside it"),
        ("{", "not valid JSON"),
        ("[1, 2]", "holds no object"),
        ("[" * 100_000, "not valid JSON"),
        ('{"env_info": [], "episodes": {"a": 1}}', None),
        ('{"env_info": {"env_kwargs": 7, "env_id": null}, "episodes": [null, {"episode_id": {}}, 3]}', "lacks"),
        ('{"env_info": {"env_kwargs": {"sim_config": {"control_freq": "NaN"}}}}', None),
    ],
)
def test_maniskill_bad_metadata_are_a_warning(demos, tmp_path, content, warning):
    sim.write_maniskill(tmp_path / "a.h5", demos, sidecar=False)
    if content is not None:
        (tmp_path / "a.json").write_text(content)
    source = open_source(tmp_path)
    assert [ref.fault for ref in source.episodes()] == [None] * 3
    assert [entry["success"] for *_, entry in extras(source)] == [True, False, True]  # of the datasets
    warnings = " ".join(source.describe().warnings)
    assert "20 frames/s assumed" in warnings
    assert warning is None or warning in warnings


def test_maniskill_metadata_of_other_trajectories_and_modes(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos)
    told = json.loads((tmp_path / "a.json").read_text())
    told["episodes"].append({"episode_id": 77, "control_mode": "pd_joint_pos"})
    (tmp_path / "a.json").write_text(json.dumps(told))
    info = open_source(tmp_path).describe()
    assert any("1 trajectory that the file lacks: traj_77" in warning for warning in info.warnings)
    assert any("several control modes: pd_ee_delta_pose, pd_joint_pos" in warning for warning in info.warnings)
    assert info.vectors["action"].kinds == ()


def test_metadata_beside_count_as_input(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos)
    source = open_source(tmp_path)
    assert {path.name for path in source.inputs()} == {"a.h5", "a.json"}
    before = source.fingerprint()
    assert open_source(tmp_path).fingerprint() == before
    (tmp_path / "a.json").write_text((tmp_path / "a.json").read_text().replace("PickCube", "PushCube"))
    changed = open_source(tmp_path).fingerprint()
    assert changed != before
    (tmp_path / "a.json").unlink()
    assert open_source(tmp_path).fingerprint() not in (before, changed)
    assert [path.name for path in open_source(tmp_path).inputs()] == ["a.h5"]


def test_a_file_that_changes_while_it_is_scanned(demos, tmp_path, monkeypatch):
    sim.write_maniskill(tmp_path / "a.h5", demos)
    source = open_source(tmp_path)
    scan = source._scan

    def slow():
        found = scan()
        os.utime(tmp_path / "a.h5", ns=(1, 1))
        return found

    monkeypatch.setattr(source, "_scan", slow)
    with pytest.raises(ConflictError, match="while it was scanned"):
        source.inputs()
    assert len(source.inputs()) == 2


def test_metadata_beside_are_only_files_of_that_folder(demos, tmp_path):
    inside = tmp_path / "set"
    inside.mkdir()
    for name in ("link", "pipe", "folder", "large", "near"):
        sim.write_maniskill(inside / f"{name}.h5", demos[:1], sidecar=False)
    (tmp_path / "secret.json").write_text(json.dumps({"env_info": {"env_id": "secret"}}))
    (inside / "link.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(inside / "pipe.json")
    (inside / "folder.json").mkdir()
    with (inside / "large.json").open("wb") as file:
        file.truncate(MAX_SIDECAR_BYTES + 1)
    (inside / "beside.json").write_text(json.dumps({"env_info": {"env_id": "Near-v1"}}))
    (inside / "near.json").symlink_to("beside.json")
    reasons = {}
    for name in ("link", "pipe", "folder", "large", "near"):
        with Tree(inside / f"{name}.h5") as tree:
            reasons[name] = read_beside(tree, f"{name}.json")
    assert "leads elsewhere" in reasons["link"][1]
    assert "not a regular file" in reasons["pipe"][1]
    assert "not a regular file" in reasons["folder"][1]
    assert "too large" in reasons["large"][1]
    assert reasons["near"] == ({"env_info": {"env_id": "Near-v1"}}, None)
    source = open_source(inside)
    assert source.fingerprint()  # never waits for a pipe
    assert "secret" not in json.dumps([task for task, _ in extras(source)])


def test_maniskill_observation_modes(demos, tmp_path):
    sim.write_maniskill(tmp_path / "state.h5", demos[:1])
    sim.write_maniskill(tmp_path / "none.h5", demos[:1])
    sim.write_maniskill(tmp_path / "old_none.h5", demos[:1], version=2)
    flat = np.arange(8 * 5, dtype=np.float32).reshape(8, 5)
    with h5py.File(tmp_path / "state.h5", "a") as file:
        del file["traj_0/obs"]
        file["traj_0/obs"] = flat
    for name in ("none", "old_none"):
        with h5py.File(tmp_path / f"{name}.h5", "a") as file:
            del file["traj_0/obs"]
    refs = open_source(tmp_path).episodes()
    assert [(ref.file, ref.fault is None) for ref in refs] == [
        ("none.h5", False),
        ("old_none.h5", False),
        ("state.h5", True),
    ]
    assert "obs_mode none" in refs[0].fault
    source = open_source(tmp_path, "--allow-no-camera")
    refs = source.episodes()
    assert [ref.fault for ref in refs] == [None] * 3
    got = [read_all(source, ref)[0]["state"] for ref in refs]
    assert (got[0][:, :13] == 0).all()
    assert (got[0][:, 13:] == 1).all()  # actors, then articulations
    assert got[0].shape == (7, 44)
    assert got[1].shape == (7, 44)
    np.testing.assert_array_equal(got[2], flat[:-1])


def test_maniskill_state_and_camera_keys(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos[:1])
    source = open_source(tmp_path, "--state", "qpos,extra/tcp_pose", "--camera", "cam0=hand_camera")
    (ref,) = source.episodes()
    got, views = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], demos[0].state("joints", "pos", "quat")[:-1])
    np.testing.assert_array_equal(np.stack(views["cam0"]), demos[0].wrist[:-1])
    assert list(views) == ["cam0"]


def test_maniskill_two_robots(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos[:1])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        group = file["traj_0"]
        del group["actions"], group["obs/agent"]
        for robot in (1, 0):
            group[f"obs/agent/panda-{robot}/qpos"] = demos[robot].joints
            group[f"obs/agent/panda-{robot}/controller/target"] = np.zeros((8, 3))
            group[f"actions/panda-{robot}"] = demos[robot].actions[:-1]
    source = open_source(tmp_path)
    (ref,) = source.episodes()
    got, _ = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], np.hstack([demos[k].state("joints")[:-1] for k in (0, 1)]))
    np.testing.assert_array_equal(got["action"], np.hstack([demos[k].state("actions")[:-1] for k in (0, 1)]))


@pytest.mark.parametrize(("shift", "frames", "seen", "acted"), [(1, 7, (1, 8), (0, 7)), (-1, 6, (0, 6), (1, 7))])
def test_one_observation_more_shifted(demos, tmp_path, shift, frames, seen, acted):
    sim.write_maniskill(tmp_path / "a.h5", demos[:1])
    source = open_source(tmp_path, "--obs-shift", str(shift))
    (ref,) = source.episodes()
    assert ref.frames == frames
    got, views = read_all(source, ref)
    np.testing.assert_array_equal(got["state"], demos[0].state("joints", "speeds")[slice(*seen)])
    np.testing.assert_array_equal(got["action"], demos[0].actions[slice(*acted)].astype(np.float32))
    np.testing.assert_array_equal(np.stack(views["cam0"]), demos[0].front[slice(*seen)])


def test_maniskill_too_few_observations(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos[:2])
    with h5py.File(tmp_path / "a.h5", "a") as file:
        del file["traj_1/obs/sensor_data/hand_camera/rgb"]
        file["traj_1/obs/sensor_data/hand_camera/rgb"] = demos[1].wrist[:5]
    good, *bad = open_source(tmp_path).episodes()
    assert good.fault is None
    assert "first dimensions differ" in bad[0].fault


@pytest.mark.parametrize("pictures", ["vlen", "equal", "raw", "none"])
@pytest.mark.parametrize("newer", [True, False])
def test_minari_spaces(demos, tmp_path, pictures, newer):
    path = sim.write_minari(tmp_path / "pick", demos, pictures=pictures, newer=newer)
    source = open_source(path)
    refs = source.episodes()
    assert [ref.frames for ref in refs] == [7] * 3
    for ref, demo in zip(refs, demos, strict=True):
        got, views = read_all(source, ref)
        np.testing.assert_array_equal(got["state"], demo.state("joints", "pos")[:-1])
        np.testing.assert_array_equal(got["reward"].ravel(), demo.rewards[:-1].astype(np.float32))
        assert got["done"].ravel().tolist() == [0] * 6 + [1]
        assert set(views) == (set() if pictures == "none" else {"cam0"})
        for seen, meant in zip(views.get("cam0", []), demo.front[:-1], strict=False):
            assert np.abs(rgb(seen).astype(int) - meant).mean() < (3 if pictures != "raw" else 1e-9)
    assert {task for task, _ in extras(source)} == {"FetchPickAndPlace-v4"}
    info = source.describe()
    assert info.details["facts"] == {"dataset_id": ["fetch/pick-v0"], "env_id": ["FetchPickAndPlace-v4"]}
    assert info.details["fps_from"] == ["default"]


def test_minari_discrete_actions_text_and_chosen_keys(demos, tmp_path):
    path = sim.write_minari(tmp_path, demos[:1], newer=False)
    with h5py.File(path, "a") as file:
        group = file["episode_0"]
        del group["actions"]
        group["actions"] = np.arange(7)
        group["observations/mission"] = np.array(["open the red door"] * 8, dtype=h5py.string_dtype())
        group["observations/direction"] = np.arange(8)
    source = open_source(path)
    (ref,) = source.episodes()
    got, _ = read_all(source, ref)
    assert got["action"].ravel().tolist() == list(range(7))
    assert got["state"][:, 0].tolist() == list(range(7))  # direction, then the robot's
    assert extras(source)[0][0] == "open the red door"
    source = open_source(path, "--state", "robot/_index_1")
    np.testing.assert_array_equal(read_all(source, source.episodes()[0])[0]["state"], demos[0].state("pos")[:-1])


def test_minari_pictures_alone_ask_for_a_state(demos, tmp_path):
    path = sim.write_minari(tmp_path, demos[:1], pictures="raw")
    with h5py.File(path, "a") as file:
        del file["episode_0/observations/robot"]
    (ref,) = open_source(path).episodes()
    assert "no numbers for the state" in ref.fault
    assert "--state" in ref.fault


def test_robohive_rate_and_last_row(demos, tmp_path):
    for last, frames in ((True, 7), (False, 8)):
        path = tmp_path / f"{last}.h5"
        sim.write_robohive(path, demos, step=0.04, last=last)
        source = open_source(path)
        assert [ref.frames for ref in source.episodes()] == [frames] * 3
        info = source.describe()
        assert (info.fps, info.details["fps_from"]) == (25, ["file"])
        assert [camera.key for camera in info.cameras.values()] == ["top_cam", "wrist_cam"]
    with h5py.File(path, "a") as file:
        for number in range(3):
            file[f"Trial{number}/time"][...] = np.float32(1.7e9)  # Unix time without the digits to tell steps
    source = open_source(path)
    assert source.describe().details["fps_from"] == ["default"]
    assert any("do not advance" in warning for warning in source.describe().warnings)
    assert open_source(path, "--fps", "12.5").describe().fps == 12.5


def test_d4rl_episodes_end_where_they_should(demos, tmp_path):
    rows = 20
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"] = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
        file["actions"], file["rewards"] = np.zeros((rows, 1)), np.zeros(rows)
        file["terminals"] = np.isin(np.arange(rows), [4, 5])
        file["timeouts"] = np.isin(np.arange(rows), [11])
    source = open_source(tmp_path, "--allow-no-camera")
    refs = source.episodes()
    assert [(ref.id, ref.frames) for ref in refs] == [("rows_0-4", 5), ("rows_6-11", 6), ("rows_12-19", 8)]
    got, _ = read_all(source, refs[1])
    assert got["state"][:, 0].tolist() == [12, 14, 16, 18, 20, 22]
    assert got["done"].ravel().tolist() == [0] * 6
    assert any("1 episode of a single row left out" in warning for warning in source.describe().warnings)
    got, _ = read_all(source := open_source(tmp_path, "--allow-no-camera", "--obs-shift", "1"), source.episodes()[1])
    assert got["state"][:, 0].tolist() == [14, 16, 18, 20, 22]


def test_d4rl_unequal_columns_are_a_fault_of_the_file(tmp_path):
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["observations"], file["actions"] = np.zeros((9, 2)), np.zeros((9, 1))
        file["rewards"], file["terminals"] = np.zeros(9), np.zeros(8, bool)
    (ref,) = open_source(tmp_path, "--allow-no-camera").episodes()
    assert ref.fault_kind == "file"
    assert "/terminals" in ref.fault
    with h5py.File(tmp_path / "a.hdf5", "a") as file:
        del file["terminals"], file["observations"]
        file["observations"] = np.zeros((7, 2))
    (ref,) = open_source(tmp_path, "--allow-no-camera").episodes()
    assert "first dimensions differ" in ref.fault


def test_a_first_episode_that_leads_outside_costs_only_itself(demos, tmp_path):
    sim.write_maniskill(tmp_path / "a.h5", demos)
    sim.write_robohive(tmp_path / "b.h5", demos)
    minari = sim.write_minari(tmp_path / "c", demos)
    for path, name in ((tmp_path / "a.h5", "traj_0"), (tmp_path / "b.h5", "Trial0"), (minari, "episode_0")):
        with h5py.File(path, "a") as file:
            del file[f"{name}/actions"]
            file[f"{name}/actions"] = h5py.ExternalLink("/etc/passwd", "/x")
        first, *others = open_source(path).episodes()
        assert "external link" in first.fault
        assert first.fault_kind == "episode"
        assert [ref.fault for ref in others] == [None, None]
