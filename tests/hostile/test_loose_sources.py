"""Folders of files: pipes and devices, links, absurd numbers, encodings, clocks that jump. Each ends in its reason."""

from __future__ import annotations

import csv
import json
import os

import numpy as np
import pytest
from helpers.nav_fixtures import jpeg, open_nav, walk, write_gnm, write_recon, write_vamos
from helpers.unitree_fixtures import edited, make_items, open_unitree, read_all, write_json, write_pictures, write_raw
from wdsmix.converters.nav.frodobots import _rising
from wdsmix.converters.nav.pickles import read_poses

from wdsmix.errors import ConfigError

START = 1_700_000_000.0
NAMES = ["linear", "angular", "rpm_1", "rpm_2", "rpm_3", "rpm_4", "timestamp"]


def replaced(path, how, tmp_path):
    """A file turned into a pipe, or a link to what never ends."""
    path.unlink()
    if how == "pipe":
        os.mkfifo(path)
    elif how == "device":
        path.symlink_to("/dev/zero")
    elif how == "dangling":
        path.symlink_to("nowhere")
    else:
        path.mkdir()


@pytest.mark.parametrize("how", ["pipe", "device", "dangling", "folder"])
@pytest.mark.parametrize("name", ["2.jpg", "traj_data.pkl"])
def test_what_is_no_file_in_a_trajectory(tmp_path, how, name):
    write_gnm(tmp_path / "set" / "bad", 4)
    write_gnm(tmp_path / "set" / "good", 4, seed=1)
    replaced(tmp_path / "set" / "bad" / name, how, tmp_path)
    source = open_nav(tmp_path / "set")
    assert len(source.fingerprint()) == 64
    bad, good = source.episodes()
    assert any(said in bad.fault for said in ("pipe", "refused", "missing", "no traj_data.pkl", "directory"))
    assert good.fault is None


@pytest.mark.parametrize("how", ["pipe", "device", "dangling"])
def test_what_is_no_file_in_a_recording(tmp_path, how):
    for name in ("a", "b"):
        write_raw(tmp_path / "set" / name, 4)
    replaced(tmp_path / "set" / "a" / "data.json", how, tmp_path)
    replaced(tmp_path / "set" / "b" / "colors" / "000002_color_1.jpg", how, tmp_path)
    source = open_unitree(tmp_path / "set")
    assert len(source.fingerprint()) == 64
    first, second = source.episodes()
    assert any(said in first.fault for said in ("pipe", "refused", "can't be read"))
    if how == "device":
        assert "refused: a link" in second.fault
    else:
        assert second.frames == 3


@pytest.mark.parametrize(("suffix", "writer"), [(".parquet", "vamos"), (".hdf5", "recon")])
def test_a_pipe_among_files_of_one_layout(tmp_path, suffix, writer):
    os.mkfifo(tmp_path / f"a{suffix}")
    if writer == "recon":
        write_recon(tmp_path / "b.hdf5", 4)
    else:
        rows = [{"image": {"bytes": jpeg(1), "path": ""}, "trajectory_3d": [[0.0, 0, 0], [1.0, 0, 0]]}]
        write_vamos(tmp_path / "b.parquet", rows)
    source = open_nav(tmp_path)
    assert len(source.fingerprint()) == 64
    bad, good = source.episodes()
    assert "pipe" in bad.fault
    assert good.fault is None


def test_a_recording_without_its_json_is_listed(tmp_path):
    write_raw(tmp_path / "episode_0000", 4)
    written = write_raw(tmp_path / "episode_0001", 4)
    (tmp_path / "episode_0001" / "data.json").unlink()
    first, second = open_unitree(tmp_path).episodes()
    assert first.fault is None
    assert "no data.json" in second.fault
    assert len(written["items"]) == 4


@pytest.mark.parametrize("number", [-1, 1 << 31, 9 * 10**18, 10**30])
def test_frame_numbers_that_no_recorder_writes(tmp_path, number):
    items, _ = make_items(5)
    write_pictures(tmp_path / "e", items)
    changed = edited(items)
    changed[4]["idx"] = number
    write_json(tmp_path / "e", changed)
    (ref,) = open_unitree(tmp_path).episodes()
    assert "no frame has such a number" in ref.fault


def test_a_number_of_thousands_of_digits_is_said_plainly(tmp_path):
    items, _ = make_items(4)
    write_pictures(tmp_path / "e", items)
    path = write_json(tmp_path / "e", items)
    path.write_text(path.read_text().replace('"idx": 2', '"idx": ' + "9" * 5000))
    (ref,) = open_unitree(tmp_path).episodes()
    assert "a number of thousands of digits" in ref.fault
    assert "set_int_max" not in ref.fault


def test_one_picture_for_two_cameras_is_told(tmp_path):
    items, _ = make_items(5)
    write_pictures(tmp_path / "e", items)
    changed = edited(items)
    changed[3]["colors"]["color_1"] = changed[3]["colors"]["color_0"]
    write_json(tmp_path / "e", changed)
    (ref,) = open_unitree(tmp_path).episodes()
    assert "data[3]: one picture for two cameras (found color_0 and color_1)" in ref.fault


@pytest.mark.parametrize("indent", [None, 4])
def test_a_file_cut_anywhere_gives_whole_frames_or_a_reason(tmp_path, indent):
    items, vectors = make_items(4, cameras=1)
    write_pictures(tmp_path / "e", items)
    raw = json.dumps({"info": {"image": {"fps": 30}}, "text": {"goal": "ä"}, "data": items}, indent=indent).encode()
    counts = set()
    for cut in range(1, len(raw), 211 if indent else 173):
        (tmp_path / "e" / "data.json").write_bytes(raw[:cut])
        source = open_unitree(tmp_path)
        (ref,) = source.episodes()
        if ref.fault is None:
            counts.add(ref.frames)
            found = read_all(source, ref)[1]["state"]
            np.testing.assert_allclose(found, vectors["state"][: ref.frames], atol=1e-7)
        else:
            assert any(said in ref.fault for said in ("cut off", "no frames", "too short", "not valid JSON"))
    assert {2, 3} <= counts


@pytest.mark.parametrize("option", ["--fps", "--spacing"])
def test_zero_is_no_rate_and_no_spacing(tmp_path, option):
    write_gnm(tmp_path / "set" / "a", 3)
    with pytest.raises(ConfigError, match="more than 0"):
        open_nav(tmp_path / "set", option, "0")


@pytest.mark.parametrize("where", [-np.pi, np.pi])
def test_steps_over_the_seam_of_the_circle(tmp_path, where):
    import pickle

    yaw = where + np.array([-0.2, -0.1, 0.0, 0.1, 0.2, 0.1, -0.1])
    written = write_gnm(tmp_path / "set" / "a", 7)
    wrapped = (yaw + np.pi) % (2 * np.pi) - np.pi
    (tmp_path / "set" / "a" / "traj_data.pkl").write_bytes(
        pickle.dumps({"position": written["position"], "yaw": wrapped})
    )
    source = open_nav(tmp_path / "set")
    with source.read(source.episodes()[0]) as episode:
        np.testing.assert_allclose(episode.vectors["action"][:, 2], [0.1, 0.1, 0.1, 0.1, -0.1, -0.2, 0], atol=1e-6)
        assert np.abs(np.diff(episode.vectors["state"][:, 2])).max() < 0.21


def test_a_path_beyond_any_map(tmp_path):
    good = {"image": {"bytes": jpeg(1), "path": ""}, "trajectory_3d": [[0.0, 0, 0], [1.0, 0.5, 0]]}
    write_vamos(tmp_path / "train-0.parquet", [good, {**good, "trajectory_3d": [[0.0, 0, 0], [1e300, 1, 0]]}])
    first, second = open_nav(tmp_path).episodes()
    assert first.fault is None
    assert "is no path" in second.fault


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ([1, 2, 3], [0, 1, 2]),
        ([1, 2, 9, 3, 4], [0, 1, 3, 4]),
        ([5, 1, 2, 3], [1, 2, 3]),
        ([1, 2, 2, 3], [0, 1, 3]),
        ([], []),
    ],
)
def test_a_longest_rising_part(values, kept):
    found = _rising([float(value) for value in values])
    assert len(found) == len(kept)
    assert [values[k] for k in found] == sorted({values[k] for k in found})


def write_csv(path, names, rows, encoding="utf-8"):
    with path.open("w", newline="", encoding=encoding) as file:
        csv.writer(file).writerows([names, *rows])


def write_ride(folder, times, *, encoding="utf-8", seconds=8):
    """A ride with controls ten times a second, and a frame at each of the times."""
    av = pytest.importorskip("av")
    folder.mkdir(parents=True)
    rows = [[0.5, 0.1, 30, 33, 30, 33, repr(START + k / 10)] for k in range(10 * seconds)]
    write_csv(folder / "control_data_1.csv", NAMES, rows, encoding)
    stamps = [[k, repr(float(START + time))] for k, time in enumerate(times)]
    write_csv(folder / "front_camera_timestamps_1.csv", ["frame_id", "timestamp"], stamps, encoding)
    with av.open(str(folder / "front_1000.mp4"), "w") as container:
        stream = container.add_stream("mpeg4", rate=20)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for _ in times:
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 90, np.uint8), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


REGULAR = np.arange(40) / 20


@pytest.mark.parametrize(
    ("times", "frames", "said"),
    [
        (np.where(np.arange(40) >= 25, REGULAR + 3, REGULAR), 25, "pause"),
        (np.where(np.arange(40) == 3, 1.9, REGULAR), 39, "backwards"),
        (np.where(np.arange(40) >= 20, REGULAR - 0.3, REGULAR), 34, "backwards"),
    ],
    ids=["gap", "stray", "back"],
)
def test_clocks_of_a_camera_that_jump(tmp_path, times, frames, said):
    write_ride(tmp_path / "rides" / "ride_1", times)
    source = open_nav(tmp_path / "rides")
    (ref,) = source.episodes()
    assert ref.frames == frames
    assert any(said in warning for warning in source.describe().warnings)
    with source.read(ref) as episode:
        stamps = episode.timestamps
        assert (np.diff(stamps) > 0).all()
        assert np.diff(stamps).max() < 1
        assert np.abs(episode.vectors["action"][:, 0]).max() < 0.1  # no step over a pause


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_tables_of_other_encodings(tmp_path, encoding):
    write_ride(tmp_path / "rides" / "ride_1", REGULAR, encoding=encoding)
    (ref,) = open_nav(tmp_path / "rides").episodes()
    assert ref.frames == 40


def test_wheels_of_no_robot(tmp_path):
    write_ride(tmp_path / "rides" / "ride_1", REGULAR)
    rows = [[0.5, 0.1, "1e300", 33, 30, 33, repr(START + k / 10)] for k in range(80)]
    write_csv(tmp_path / "rides" / "ride_1" / "control_data_1.csv", NAMES, rows)
    (ref,) = open_nav(tmp_path / "rides").episodes()
    assert "no pose" in ref.fault


def test_long_trajectories_of_boxed_numbers_are_read_exactly(tmp_path):
    write_gnm(tmp_path / "t", 500, position="objects", yaw="objects", pictures=1)
    positions, yaws, _ = read_poses(tmp_path / "t" / "traj_data.pkl")
    wanted = walk(500)
    np.testing.assert_array_equal(positions, wanted[0])
    np.testing.assert_array_equal(yaws, wanted[1])
