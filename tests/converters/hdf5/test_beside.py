"""Pictures beside HDF5 files, named by rows or in videos: nothing outside is read, each fault has a line of its own."""

from __future__ import annotations

import io
import json
import os
import shutil

import h5py
import numpy as np
import pytest
from helpers.hdf5_fixtures import open_source, read_all, rgb
from helpers.hdf5_real_robots import agibot, agilex_paths, droid, jpeg, real_frames, robomind_agilex, video
from wdsmix.converters.video import VideoReader

from wdsmix.cli import main
from wdsmix.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def real(samples):
    return real_frames(samples, frames=8)


@pytest.fixture(scope="module")
def agilex_source(real, tmp_path_factory):
    root = tmp_path_factory.mktemp("agilex")
    agilex_paths(root / "x.hdf5", real)
    return root


@pytest.fixture(scope="module")
def agibot_source(real, tmp_path_factory):
    root = tmp_path_factory.mktemp("agibot")
    agibot(root / "x.hdf5", real)
    return root


@pytest.fixture(scope="module")
def droid_source(real, tmp_path_factory):
    root = tmp_path_factory.mktemp("droid")
    droid(root / "x.hdf5", real)
    return root


@pytest.fixture
def copied(tmp_path):
    def copy(source):
        shutil.copytree(source, tmp_path / "source", symlinks=True)
        return tmp_path / "source"

    return copy


def only(source):
    (ref,) = source.episodes()
    return ref


def set_row(root, row, name):
    with h5py.File(root / "episode0/data.hdf5", "a") as file:
        rows = file["camera/color/front"][()]
        rows[row] = name
        del file["camera/color/front"]
        file.create_dataset("camera/color/front", data=rows, dtype=h5py.string_dtype())


# rows that name files


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("../secret.jpg", "a path that leaves the folder"),
        ("camera/../../secret.jpg", "a path that leaves the folder"),
        ("..\\secret.jpg", "a path that leaves the folder"),
        ("/etc/hostname", "a path that leaves the folder"),
        ("C:\\secret.jpg", "a path that leaves the folder"),
        ("camera/color/front/out.jpg", "a link that leads outside"),
        ("elsewhere/secret.jpg", "a link that leads outside"),
        ("camera/color/front/absent.jpg", "the picture that the row names is missing"),
        ("camera/color/front/pipe.jpg", "the picture that the row names is missing"),
        ("camera/color/front", "the picture that the row names is missing"),
        ("", "no name of a picture"),
        ("a" * 2000, "no name of a picture"),
        ("a\nb.jpg", "a path that leaves the folder"),
        ("\x1b[31m.jpg", "a path that leaves the folder"),
    ],
)
def test_rows_that_name_no_file_of_the_episode(agilex_source, copied, tmp_path, name, reason):
    root = copied(agilex_source)
    (root / "secret.jpg").write_bytes(jpeg(np.zeros((84, 84, 3), np.uint8)))
    (root / "episode0/camera/color/front/out.jpg").symlink_to(root / "secret.jpg")
    (root / "episode0/elsewhere").symlink_to(root)
    os.mkfifo(root / "episode0/camera/color/front/pipe.jpg")
    set_row(root, 5, name)
    fault = only(open_source(root)).fault
    assert reason in fault
    assert "/camera/color/front row 5" in fault
    assert not {char for char in fault if ord(char) < 32}


def test_links_and_slashes_within_the_episode_are_fine(agilex_source, copied):
    root = copied(agilex_source)
    folder = root / "episode0/camera/color/front"
    first = sorted(folder.iterdir())[0]
    (folder / "link.jpg").symlink_to(first)
    set_row(root, 1, "camera\\color\\front\\link.jpg")
    source = open_source(root)
    _, views = read_all(source, only(source))
    assert views["cam0"][1] == first.read_bytes()


def test_files_that_are_no_pictures_or_cut_off(agilex_source, copied, capsys, tmp_path):
    root = copied(agilex_source)
    folder = root / "episode0/camera/color/front"
    third = sorted(folder.iterdir())[3]
    whole = third.read_bytes()
    third.write_bytes(b"#!/bin/sh")
    source = open_source(root)
    with pytest.raises(DataError, match=r"not a JPEG, PNG or WebP picture"):
        read_all(source, only(source))
    third.write_bytes(whole[: len(whole) // 2])
    assert main(["convert", "hdf5", str(root), str(tmp_path / "set"), "--workers", "1"]) == 1
    told = "".join(capsys.readouterr())
    assert "cam0, frame 3" in told
    assert not (tmp_path / "set/manifest.json").exists()


def test_a_huge_file_is_not_read(agilex_source, copied):
    root = copied(agilex_source)
    with (root / "episode0/huge.jpg").open("wb") as file:
        file.truncate(1 << 40)
    set_row(root, 0, "huge.jpg")
    assert "refused: a picture is too large" in only(open_source(root)).fault


class Evil:
    def __reduce__(self):
        return (print, ("code ran",))


def test_instructions_run_no_code_and_stay_inside(agilex_source, copied, capsys):
    root = copied(agilex_source)
    np.save(root / "episode0/instructions.npy", np.array([Evil()], object), allow_pickle=True)
    source = open_source(root)
    assert only(source).fault is None
    assert any("instructions.npy can't be read" in text for text in source.describe().warnings)
    assert "code ran" not in capsys.readouterr().out
    with h5py.File(root / "episode0/data.hdf5", "a") as file:
        del file["instruction"]
        file["instruction"] = "../secret.npy"
    assert "a path that leaves the folder" in only(open_source(root)).fault


def test_pictures_are_inputs(agilex_source, copied):
    root = copied(agilex_source)
    source = open_source(root)
    before = source.fingerprint()
    inputs = source.inputs()
    assert len(inputs) == 1 + 16 + 1  # the file, the pictures, instructions.npy
    picture = sorted((root / "episode0/camera/color/left").iterdir())[0]
    assert picture in inputs
    assert open_source(root).fingerprint() == before
    picture.write_bytes(picture.read_bytes() + b"\0")
    assert open_source(root).fingerprint() != before


# videos


def test_each_video_is_decoded_once_and_in_order(droid_source, monkeypatch):
    opened, closed = [], []

    class Counting(VideoReader):
        def __init__(self, path):
            super().__init__(path)
            opened.append(self)

        def close(self):
            super().close()
            closed.append(self)

    monkeypatch.setattr("wdsmix.converters.hdf5.beside.VideoReader", Counting)
    source = open_source(droid_source)
    ref = only(source)
    assert not opened  # the scan reads headers
    with source.read(ref) as episode:
        for stream in episode.images.values():
            assert sum(1 for _ in stream.read(episode.rows)) == ref.frames
        assert sorted(reader.path.stem for reader in opened) == ["17225336", "23404442", "29838012"]
        for reader in opened:
            assert reader.seeks == 0
            assert reader.decoded <= reader.frames
    assert closed == opened


def test_pictures_of_a_video_come_scaled(agibot_source, real):
    source = open_source(agibot_source)
    with source.read(only(source)) as episode:
        (small,) = episode.images["cam0"].at_size(42).read(np.array([3]))
    assert small.shape == (42, 42, 3)
    halved = real.front[3].reshape(42, 2, 42, 2, 3).mean((1, 3))
    assert np.abs(small - halved).mean() < 4


VIDEO = "recordings/MP4/29838012.mp4"


def droid_folder(root):
    return next(root.rglob("trajectory.h5")).parent


def cut(path, share):
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: path.unlink(), "the video is missing"),
        (lambda path: (path.unlink(), path.symlink_to("nowhere")), "a link that leads nowhere"),
        (lambda path: cut(path, 0.7), "video does not open"),
        (lambda path: path.write_bytes(b""), "video does not open"),
        (lambda path: path.write_text("version https://git-lfs.github.com/spec/v1\nsize 5\n"), "a Git LFS pointer"),
        (lambda path: (path.unlink(), path.mkdir()), "the video is missing"),
    ],
    ids=["missing", "dangling", "truncated", "empty", "lfs", "folder"],
)
def test_a_video_that_can_not_be_had(droid_source, copied, change, reason):
    root = copied(droid_source)
    change(droid_folder(root) / VIDEO)
    fault = only(open_source(root)).fault
    assert reason in fault
    assert VIDEO in fault
    assert str(root) not in fault
    chosen = open_source(root, "--camera", "cam0=exterior_1", "--camera", "cam1=wrist")
    assert only(chosen).fault is None  # a fault of a camera that nobody wants costs nothing
    assert only(open_source(root, "--camera", "cam0=23404442")).cameras == ("cam0",)


@pytest.mark.parametrize("link", ["file", "folder"])
def test_videos_behind_links(droid_source, copied, tmp_path, link):
    root = copied(droid_source)
    linked = droid_folder(root) / (VIDEO if link == "file" else "recordings/MP4")
    linked.rename(tmp_path / "outside")
    linked.symlink_to(tmp_path / "outside")
    assert "refused: a link that leads outside the dataset" in only(open_source(root)).fault


def test_a_video_whose_end_is_missing(droid_source, copied, real):
    root = copied(droid_source)
    path = droid_folder(root) / VIDEO
    video(path, np.concatenate([real.front] * 1), faststart=True)
    cut(path, 0.75)
    source = open_source(root)
    with pytest.raises(DataError, match=r"29838012\.mp4: video is cut off \(expected 8 frames by its header"):
        source.read(only(source))


@pytest.mark.parametrize(
    ("count", "policy", "frames", "rows"),
    [
        (9, "drop", 8, range(8)),
        (7, "drop", 8, [0, 1, 2, 3, 4, 5, 6, 6]),
        (10, "drop", None, ()),
        (5, "drop", None, ()),
        (6, "truncate", 6, range(6)),
        (4, "index-resample", 8, [0, 0, 1, 1, 2, 2, 3, 3]),
    ],
)
def test_videos_of_other_lengths(agibot_source, copied, real, count, policy, frames, rows):
    root = copied(agibot_source)
    views = np.concatenate([real.front, real.front[::-1]])
    video(next(root.rglob("head_color.mp4")), views[:count])
    source = open_source(root, "--on-length-mismatch", policy)
    ref = only(source)
    if frames is None:
        assert f"head_color {count}" in ref.fault
        return
    assert (ref.fault, ref.frames) == (None, frames)
    _, seen = read_all(source, ref)
    for picture, row in zip(seen["cam0"], rows, strict=True):
        errors = [np.abs(rgb(picture).astype(int) - view).mean() for view in views[:count]]
        assert int(np.argmin(errors)) == row


def test_no_videos_at_all(agibot_source, droid_source, copied):
    root = copied(agibot_source)
    shutil.rmtree(root / "observations")
    fault = only(open_source(root)).fault
    assert "its videos are missing" in fault
    assert "../../../observations/327/648642/videos" in fault
    source = open_source(root, "--allow-no-camera")
    assert (only(source).fault, only(source).cameras) == (None, ())
    shutil.rmtree(root)
    root = copied(droid_source)
    shutil.rmtree(droid_folder(root) / "recordings")
    assert "the video is missing" in only(open_source(root)).fault
    assert only(open_source(root, "--allow-no-camera")).fault is None


def test_one_bad_episode_among_good_ones(agibot_source, copied, tmp_path, capsys):
    root = copied(agibot_source)
    for kind in ("proprio_stats", "observations"):
        shutil.copytree(root / kind / "327/648642", root / kind / "327/648643")
    (root / "observations/327/648643/videos/hand_left_color.mp4").write_bytes(b"none")
    assert main(["convert", "hdf5", str(root), str(tmp_path / "set"), "--workers", "1"]) == 0
    manifest = json.loads((tmp_path / "set/manifest.json").read_text())
    (dropped,) = manifest["dropped"]
    assert dropped["source_file"] == "proprio_stats/327/648643/proprio_stats.h5"
    assert "hand_left_color.mp4: video does not open" in dropped["reason"]
    assert str(tmp_path) not in json.dumps(manifest)
    assert "video does not open" in "".join(capsys.readouterr())
    assert main(["check", "hdf5", str(root), "--workers", "1"]) == 1
    assert "video does not open" in "".join(capsys.readouterr())


def test_videos_are_inputs(agibot_source, copied):
    root = copied(agibot_source)
    source = open_source(root / "proprio_stats")
    assert only(source).fault is None
    assert source.libraries == ("h5py", "av")
    names = {path.resolve().relative_to(root.resolve()).as_posix() for path in source.inputs()}
    assert names == {
        "proprio_stats/327/648642/proprio_stats.h5",
        "observations/327/648642/videos/head_color.mp4",
        "observations/327/648642/videos/hand_left_color.mp4",
        "task_info/task_327.json",
    }
    before = source.fingerprint()
    path = root / "observations/327/648642/videos/head_color.mp4"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert open_source(root / "proprio_stats").fingerprint() != before


def test_a_camera_that_is_not_there(agibot_source):
    with pytest.raises(ConfigError, match=r"no such camera.*hand_left, head"):
        open_source(agibot_source, "--camera", "cam0=tail").episodes()


def test_links_in_the_file_are_refused(real, tmp_path):
    robomind_agilex(tmp_path / "x.hdf5", real.cut(3))
    path = next(tmp_path.rglob("trajectory.hdf5"))
    shutil.copy(path, tmp_path / "other.bin")
    with h5py.File(path, "a") as file:
        del file["observations/rgb_images/camera_front"]
        file["observations/rgb_images/camera_front"] = h5py.ExternalLink(
            str(tmp_path / "other.bin"), "/observations/rgb_images/camera_front"
        )
    assert "refused: an external link" in only(open_source(tmp_path)).fault


def test_the_fixture_is_a_pickle():
    buffer = io.BytesIO()
    np.save(buffer, np.array([Evil()], object), allow_pickle=True)
    assert b"code ran" in buffer.getvalue()
