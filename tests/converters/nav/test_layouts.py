"""RECON, VAMOS and FrodoBots, and what is refused by its name."""

from __future__ import annotations

import csv
import itertools
import json
import os
import sys

import h5py
import numpy as np
import pytest
from helpers.nav_fixtures import body_steps, jpeg, open_nav, write_gnm, write_recon, write_vamos
from wdsmix.converters.isolate import Isolated

from wdsmix import ShardSet, cli
from wdsmix.errors import ConfigError, DataError


def opened(source, number=0):
    with source.read(source.episodes()[number]) as episode:
        pictures = {slot: list(stream.read(episode.rows)) for slot, stream in episode.images.items()}
        return episode, {name: values.copy() for name, values in episode.vectors.items()}, pictures


@pytest.mark.parametrize("column_yaw", [False, True])
def test_recon_files(tmp_path, column_yaw):
    written = {n: write_recon(tmp_path / f"jackal_{n}.hdf5", 9, seed=n, column_yaw=column_yaw) for n in (2, 10)}
    (tmp_path / "broken_1.hdf5").write_bytes((tmp_path / "jackal_2.hdf5").read_bytes()[:3000])
    source = open_nav(tmp_path)
    refs = source.episodes()
    assert [ref.id for ref in refs] == ["broken_1", "jackal_2", "jackal_10"]
    assert refs[0].fault_kind == "file"
    assert "truncated" in refs[0].fault
    for number, n in ((1, 2), (2, 10)):
        _, vectors, pictures = opened(source, number)
        np.testing.assert_allclose(vectors["action"], body_steps(written[n]["position"], written[n]["yaw"]), atol=1e-6)
        np.testing.assert_allclose(vectors["command"], written[n]["command"], rtol=1e-6)
        assert pictures == {"cam0": written[n]["left"]}
    info = source.describe()
    assert info.kind == "nav/recon"
    assert info.embodiment == "jackal"
    assert info.cameras["cam0"].key == "rgb_left"
    both = open_nav(tmp_path / "jackal_2.hdf5", "--camera", "cam0=rgb_right", "--camera", "cam1=rgb_left")
    assert opened(both)[2]["cam1"] == written[2]["left"]
    with pytest.raises(ConfigError, match="rgb_left, rgb_right"):
        open_nav(tmp_path, "--camera", "cam0=thermal").episodes()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ("short", "too short"),
        ("nan", "not finite"),
        ("lengths", "lengths differ"),
        ("no_pictures", "no pictures"),
        ("other", "no RECON file"),
    ],
)
def test_recon_defects(tmp_path, change, reason):
    write_recon(tmp_path / "a.hdf5", 8)
    write_recon(tmp_path / "b.hdf5", 1 if change == "short" else 8, right=False)
    with h5py.File(tmp_path / "b.hdf5", "a") as file:
        if change == "nan":
            file["jackal/yaw"][3] = np.nan
        elif change == "lengths":
            del file["jackal/yaw"]
            file["jackal/yaw"] = np.zeros(5)
        elif change == "no_pictures":
            del file["images"]
        elif change == "other":
            del file["jackal"]
    refs = open_nav(tmp_path).episodes()
    assert refs[0].fault is None
    assert reason in refs[1].fault


def test_recon_converts(tmp_path):
    (tmp_path / "src").mkdir()
    written = write_recon(tmp_path / "src" / "a.hdf5", 8)
    assert cli.main(["convert", "nav", str(tmp_path / "src"), str(tmp_path / "set"), "--quiet", "--workers", "1"]) == 0
    opened_set = ShardSet(tmp_path / "set")
    members = opened_set.shard(0).members(3)
    assert bytes(members["cam0.jpg"]) == written["left"][3]
    camera = opened_set.manifest.cameras["cam0"]
    assert (camera.passthrough, camera.sizes) == (8, [(64, 48)])


def arc(count, turn=0.05):
    angle = np.arange(count) * turn
    return np.cumsum(np.stack([np.cos(angle), np.sin(angle), -0.01 * angle], 1), 0) * 0.3 + [2.6, 0.1, -0.03]


def equal_steps(path, points):
    """Points at equal distances, by walking along the path in tiny steps."""
    fine = np.concatenate([np.linspace(a, b, 2001)[:-1] for a, b in itertools.pairwise(path)])
    fine = np.concatenate([fine, path[-1:]])
    along = np.concatenate([[0], np.cumsum(np.hypot(*np.diff(fine, axis=0).T))])
    return np.stack([fine[np.argmin(np.abs(along - d))] for d in np.linspace(0, along[-1], points)])


def test_vamos_rows_become_frames_with_their_path(tmp_path):
    paths = [arc(7), arc(30, -0.1), arc(2)]
    rows = [
        {
            "image": {"bytes": jpeg(k, 128, 72), "path": f"{k}.jpg"},
            "text": f"Navigate to x=<loc{k:04d}>, y=<loc0500>.",
            "trajectory_3d": path.tolist(),
            "trajectory_2d": [[1, 2]] * len(path),
            "horizon": len(path),
            "curvature": 1.1,
            "camera_params": json.dumps({"resolution": [128, 72]}),
        }
        for k, path in enumerate(paths)
    ]
    rows.insert(1, {**rows[0], "trajectory_3d": arc(1).tolist()})
    rows.append({**rows[0], "trajectory_3d": None})
    rows.append({**rows[0], "trajectory_3d": [[1.0, 0.0, 0.0]] * 5, "text": "What is on the table?"})
    rows.append({**rows[0], "trajectory_3d": [[1.0, np.nan, 0.0], [2.0, 1.0, 0.0]]})
    write_vamos(tmp_path / "vamos" / "data" / "train-00000-of-00001.parquet", rows)
    write_vamos(tmp_path / "vamos" / "data" / "validation-00000-of-00001.parquet", rows[:1])
    source = open_nav(tmp_path / "vamos", "--path-points", "4")
    refs = source.episodes()
    assert [ref.split for ref in refs] == ["train"] * 7 + ["val"]
    assert [ref.fault is None for ref in refs] == [True, False, True, True, False, False, False, True]
    for number, reason in ((1, "one point"), (4, "pixels only"), (5, "filler"), (6, "not finite")):
        assert reason in refs[number].fault
    for number, k in ((0, 0), (2, 1), (3, 2)):
        episode, vectors, pictures = opened(source, number)
        wanted = equal_steps(paths[k][:, :2], 4)
        np.testing.assert_allclose(vectors["action"].reshape(4, 2), wanted, atol=1e-3)
        np.testing.assert_allclose(vectors["action"].reshape(4, 2)[[0, -1]], paths[k][[0, -1], :2], rtol=1e-6)
        assert pictures["cam0"] == [rows[[0, 2, 3][k]]["image"]["bytes"]]
        assert episode.tasks == (rows[[0, 2, 3][k]]["text"],)
        assert episode.extras["camera_params"] == {"resolution": [128, 72]}
    assert source.describe().vectors["action"].names == ("x_1", "y_1", "x_2", "y_2", "x_3", "y_3", "x_4", "y_4")
    kinds = [ref.fault_kind for ref in open_nav(tmp_path / "vamos", "--task", "navigate to").episodes()]
    assert kinds.count("filter") == 1
    out = tmp_path / "set"
    command = ["convert", "nav", str(tmp_path / "vamos"), str(out), "--split-by", "source", "--quiet", "--workers", "1"]
    assert cli.main(command) == 0
    assert {n: s.frames for n, s in ShardSet(out).manifest.splits.items()} == {"train": 3, "val": 1}


def test_vamos_rows_beyond_the_first_block(tmp_path):
    rows = [
        {"image": {"bytes": jpeg(k, 32, 24), "path": ""}, "text": "go", "trajectory_3d": (arc(3) + k).tolist()}
        for k in range(140)
    ]
    write_vamos(tmp_path / "v" / "train-0.parquet", rows)
    source = open_nav(tmp_path / "v")
    for number in (0, 49, 50, 63, 64, 99, 100, 128, 139):
        _, vectors, pictures = opened(source, number)
        assert pictures["cam0"] == [rows[number]["image"]["bytes"]]
        np.testing.assert_allclose(vectors["action"][0, :2], rows[number]["trajectory_3d"][0][:2], rtol=1e-6)


def test_vamos_damaged_file(tmp_path):
    row = {"image": {"bytes": jpeg(0), "path": ""}, "text": "go", "trajectory_3d": arc(3).tolist()}
    write_vamos(tmp_path / "v" / "train-0.parquet", [row])
    (tmp_path / "v" / "train-1.parquet").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    refs = open_nav(tmp_path / "v").episodes()
    assert [ref.fault_kind for ref in refs if ref.fault] == ["file"]


def write_csv(path, names, rows):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows(rows)


def write_ride(folder, *, frames=40, segments=2, control_rate=10.0, rpm=None, camera_rate=20.0):
    """A ride: 20 frames/s of picture, 10 controls/s, the recording in pieces."""
    av = pytest.importorskip("av")
    (folder / "recordings").mkdir(parents=True)
    start = 1_700_000_000.0
    camera = start + np.arange(frames) / camera_rate
    control = start + np.arange(int(frames / camera_rate * control_rate) + 1) / control_rate
    left = 30 + 5 * np.sin(np.arange(len(control)) / 3) if rpm is None else np.full(len(control), rpm[0])
    right = 34 + 5 * np.cos(np.arange(len(control)) / 4) if rpm is None else np.full(len(control), rpm[1])
    names = ["linear", "angular", "rpm_1", "rpm_2", "rpm_3", "rpm_4", "timestamp"]
    rows = [[0.5, 0.01 * (r - l), l, r, l, r, repr(float(t))] for l, r, t in zip(left, right, control, strict=True)]
    write_csv(folder / "control_data_1.csv", names, rows)
    write_csv(
        folder / "front_camera_timestamps_1.csv", ["frame_id", "timestamp"], enumerate(map(repr, camera.tolist()))
    )
    write_csv(
        folder / "gps_data_1.csv",
        ["latitude", "longitude", "timestamp"],
        [[52.0 + 1e-5 * k, 4.0, repr(start + k)] for k in range(4)],
    )
    playlist = ["#EXTM3U"]
    for piece in range(segments):
        name = f"abc_1000_{piece}.ts"
        playlist += ["#EXTINF:1.0,", name]
        with av.open(str(folder / "recordings" / name), "w", format="mpegts") as container:
            stream = container.add_stream("mpeg2video", rate=int(camera_rate))
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
            stream.bit_rate = 4_000_000
            for k in range(piece * frames // segments, (piece + 1) * frames // segments):
                shade = np.full((48, 64, 3), 40 + 4 * k, np.uint8)
                for packet in stream.encode(av.VideoFrame.from_ndarray(shade, format="rgb24")):
                    container.mux(packet)
            for packet in stream.encode(None):
                container.mux(packet)
    (folder / "recordings" / "abc_uid_s_1000__uid_e_video.m3u8").write_text("\n".join(playlist) + "\n#EXT-X-ENDLIST\n")
    (folder / "recordings" / "abc_uid_s_1000__uid_e_audio.m3u8").write_text("#EXTM3U\n")
    return names, rows, left, right, control, camera


def test_frodobots_ride(tmp_path):
    _, _, left, right, control, camera = write_ride(tmp_path / "rides" / "ride_1_20240101")
    source = open_nav(tmp_path / "rides")
    (ref,) = source.episodes()
    assert ref.fault is None
    assert ref.vectors == {"state": 3, "action": 3, "command": 2, "gps": 2}
    episode, vectors, pictures = opened(source)
    assert source.describe().fps == 20
    x = y = yaw = 0.0
    path = [(x, y, yaw)]
    for k in range(len(control) - 1):  # by hand: small steps along the arc
        dt = (control[k + 1] - control[k]) / 2000
        speed = (left[k] + right[k]) / 2 * 2 * np.pi / 60 * 0.065
        turn = (right[k] - left[k]) * 2 * np.pi / 60 * 0.065 / 0.306
        for _ in range(2000):
            x, y, yaw = x + speed * dt * np.cos(yaw), y + speed * dt * np.sin(yaw), yaw + turn * dt
        path.append((x, y, yaw))
    wanted = np.stack([np.interp(camera, control, column) for column in np.array(path).T], 1)
    np.testing.assert_allclose(vectors["state"], wanted[: len(vectors["state"])], atol=2e-4)
    shades = [int(picture.mean()) for picture in pictures["cam0"]]
    assert len(shades) == len(vectors["state"]) == 40
    np.testing.assert_allclose(shades, 40 + 4 * np.arange(40), atol=4)  # both pieces, in order
    np.testing.assert_allclose(episode.timestamps, np.arange(40) / 20, atol=1e-6)
    np.testing.assert_allclose(vectors["gps"][:, 1], np.radians(1e-5) * 6_371_000 * np.arange(40) / 20, rtol=1e-3)
    assert vectors["command"].shape == (40, 2)


def test_frodobots_defects(tmp_path):
    names, rows, *_ = write_ride(tmp_path / "rides" / "ride_2_b")
    holes = [row if k % 4 else [float("nan")] * 6 + row[6:] for k, row in enumerate(rows)]
    write_csv(tmp_path / "rides" / "ride_2_b" / "control_data_1.csv", names, [*holes[:12], *holes[11:]])
    source = open_nav(tmp_path / "rides")
    assert source.episodes()[0].fault is None
    assert any("without numbers or with a repeated time" in text for text in source.describe().warnings)
    write_ride(tmp_path / "rides" / "ride_3_c", frames=20)
    write_csv(
        tmp_path / "rides" / "ride_3_c" / "front_camera_timestamps_1.csv",
        ["frame_id", "timestamp"],
        [[k, repr(1_700_000_000.0 + k / 20)] for k in range(30)],
    )
    write_ride(tmp_path / "rides" / "ride_4_d", frames=20)
    (tmp_path / "rides" / "ride_4_d" / "recordings" / "abc_uid_s_1000__uid_e_video.m3u8").write_text(
        "#EXTM3U\n../../ride_3_c/recordings/abc_1000_0.ts\n"
    )
    (tmp_path / "rides" / "ride_5_e").mkdir()
    write_csv(tmp_path / "rides" / "ride_5_e" / "control_data_1.csv", names, rows)
    faults = {ref.id: ref.fault for ref in open_nav(tmp_path / "rides").episodes()}
    assert "other than the frames of its time stamps" in faults["ride_3_c"]
    assert "refused" in faults["ride_4_d"]
    assert "front_camera_timestamps" in faults["ride_5_e"]


def test_frodobots_without_pyav_says_so(tmp_path, monkeypatch):
    write_ride(tmp_path / "rides" / "ride_1_a", frames=10)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(ConfigError, match="PyAV"):
        open_nav(tmp_path / "rides").episodes()


@pytest.mark.parametrize(
    ("files", "said"),
    [
        (["maps/lab/0.png", "maps/lab/1.png"], "topomap"),
        (["run_1.bag"], "ROS bags"),
        (["set/1.0.0/x.tfrecord-00000-of-00001"], "RLDS"),
        (["go/f/image/00000001.jpg", "go/f/pickle/00000001.pkl"], "LeLaN"),
        (["run/gps.json", "run/img/1.jpg"], "BDD"),
        (["traj_000001.npz"], "CAST"),
        (["videos/a.mp4", "poses/a.txt"], "CityWalker"),
        (["train/1/frame_0.jpg", "annotations.json"], "NaVILA"),
        (["meta/info.json", "data/chunk-000/a.parquet"], "LeRobot"),
        (["task/episode_0000/data.json"], "Unitree"),
        (["20210902/image_left_color/0.png"], "TartanDrive"),
        (["a/0.jpg", "a/1.jpg"], "without traj_data.pkl"),
        (["notes.txt"], "no layout that is known"),
        ([], "empty folder"),
    ],
)
def test_what_is_not_read_is_refused_by_its_name(tmp_path, capsys, files, said):
    (tmp_path / "src").mkdir()
    for name in files:
        path = tmp_path / "src" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(1) if name.endswith(".jpg") else b"x")
    with pytest.raises(DataError) as caught:
        open_nav(tmp_path / "src").episodes()
    assert said in str(caught.value)
    assert cli.main(["convert", "nav", str(tmp_path / "src"), str(tmp_path / "out"), "--quiet"]) == 1


def test_two_layouts_in_one_source_are_refused(tmp_path):
    write_gnm(tmp_path / "a")
    write_recon(tmp_path / "b.hdf5")
    with pytest.raises(DataError, match="two layouts"):
        open_nav(tmp_path).episodes()


def test_state_and_action_are_not_chosen(tmp_path):
    with pytest.raises(ConfigError, match="fixed"):
        open_nav(tmp_path, "--state", "position")


@pytest.mark.parametrize("name", ["traj_data.pkl", "1.jpg"])
def test_links_out_of_the_source_are_refused(tmp_path, name):
    write_gnm(tmp_path / "src" / "a", 4)
    write_gnm(tmp_path / "src" / "b", 4, seed=1)
    (tmp_path / "src" / "a" / name).rename(tmp_path / "secret")
    (tmp_path / "src" / "a" / name).symlink_to(tmp_path / "secret")
    refs = open_nav(tmp_path / "src").episodes()
    assert "refused: a link" in refs[0].fault
    assert refs[1].fault is None


def test_a_linked_file_is_refused(tmp_path):
    (tmp_path / "src").mkdir()
    write_recon(tmp_path / "src" / "a.hdf5", 4)
    write_recon(tmp_path / "b.hdf5", 4)
    (tmp_path / "src" / "b.hdf5").symlink_to(tmp_path / "b.hdf5")
    assert ["refused" in (ref.fault or "") for ref in open_nav(tmp_path / "src").episodes()] == [False, True]


@pytest.mark.parametrize("option", [("--path-points", "7"), ("--task", "x")])
def test_options_without_meaning_are_refused(tmp_path, option):
    write_gnm(tmp_path / "src" / "a", 4)
    with pytest.raises(ConfigError, match="no meaning for the layout gnm"):
        open_nav(tmp_path / "src", *option).episodes()


@pytest.mark.parametrize("option", [("--stride", "2"), ("--spacing", "0.3"), ("--strict",)])
def test_options_of_poses_are_refused_for_paths(tmp_path, option):
    row = {"image": {"bytes": jpeg(0), "path": ""}, "text": "go", "trajectory_3d": arc(3).tolist()}
    write_vamos(tmp_path / "v" / "train-0.parquet", [row])
    with pytest.raises(ConfigError, match="no meaning for the layout vamos"):
        open_nav(tmp_path / "v", *option).episodes()


def test_a_call_that_crashes_its_process_is_told_and_the_next_one_works():
    with Isolated() as child:
        assert child.call(len, [1, 2]) == 2
        with pytest.raises(DataError, match="crashed"):
            child.call(os.abort)
        assert child.call(len, [1]) == 1
