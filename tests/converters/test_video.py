"""Frames of a video by number, against a plain full decode of the same file."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from helpers.lerobot_fixtures import SIDE, av, full_decode, identity, picture, write_video
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from wdsmix.converters.video import VideoPool, VideoReader, probe

from wdsmix.errors import DataError

CODECS = {
    "h264": ("libx264", {"g": "15", "bf": "3", "crf": "15"}),
    "h264-short": ("libx264", {"g": "2", "bf": "0", "crf": "15"}),
    "h264-open": ("libx264", {"g": "12", "bf": "3", "crf": "15", "x264-params": "open-gop=1"}),
    "hevc": ("libx265", None),
    "av1": ("libsvtav1", None),
    "mpeg4": ("mpeg4", None),
}
COUNT = 60


@pytest.fixture(scope="module")
def videos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    made = {}
    for name, (codec, options) in CODECS.items():
        write_video(folder / f"{name}.mp4", [picture(1, k) for k in range(COUNT)], codec=codec, options=options)
        made[name] = (folder / f"{name}.mp4", full_decode(folder / f"{name}.mp4"))
    return made


@pytest.mark.parametrize("name", CODECS)
def test_all_frames_in_order(videos, name):
    path, full = videos[name]
    with VideoReader(path) as reader:
        assert reader.frames == COUNT
        frames = list(reader.read(range(COUNT)))
    assert [identity(frame) for frame in frames] == [(1, k, 0) for k in range(COUNT)]
    assert all(np.array_equal(frame, other) for frame, other in zip(frames, full, strict=True))
    assert (reader.seeks, reader.decoded) == (0, COUNT)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(runs=st.lists(st.sets(st.integers(0, COUNT - 1), min_size=1, max_size=6), min_size=1, max_size=4))
def test_any_frames_in_any_order_of_calls(videos, name, runs):
    path, full = videos[name]
    with VideoReader(path) as reader:
        for run in runs:
            numbers = sorted(run)
            for number, frame in zip(numbers, reader.read(numbers), strict=True):
                assert np.array_equal(frame, full[number])


def test_going_on_costs_nothing_and_a_jump_one_group_of_pictures(videos):
    path, _ = videos["h264"]
    with VideoReader(path) as reader:
        list(reader.read(range(0, 20)))
        list(reader.read(range(20, 40)))
        assert (reader.seeks, reader.decoded) == (0, 40)
    with VideoReader(path) as reader:  # what another worker does for the second shard
        list(reader.read(range(40, 60)))
        assert reader.seeks == 1
        assert reader.decoded <= 20 + 15 + 3


def test_a_frame_that_comes_twice_is_decoded_once(videos):
    path, full = videos["h264"]
    with VideoReader(path) as reader:
        frames = list(reader.read([3, 3, 4]))
        again = list(reader.read([4, 5]))
        assert reader.decoded == 6
    assert [identity(f)[1] for f in [*frames, *again]] == [3, 3, 4, 4, 5]
    assert np.array_equal(frames[0], full[3])


def test_facts(videos):
    facts = probe(videos["av1"][0])
    assert (facts.codec, facts.width, facts.height, facts.rate, facts.frames) == ("av1", SIDE, SIDE, 20, COUNT)
    assert facts.pixel_format == "yuv420p"
    assert not facts.grey16
    assert facts.duration == pytest.approx(3.0)
    assert probe(videos["mpeg4"][0]).codec == "mpeg4"


@pytest.mark.parametrize("size", [(48, 36), (33, 47), (64, 64)])
@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv444p", "yuvj420p", "gray"])
def test_sizes_and_formats_become_rgb(tmp_path, size, pixel_format):
    if pixel_format in ("yuv420p", "yuvj420p") and size[0] % 2:
        size = (size[0] + 1, size[1] + 1)
    write_video(tmp_path / "v.mp4", [picture(0, k, size=size) for k in range(5)], pixel_format=pixel_format)
    with VideoReader(tmp_path / "v.mp4") as reader:
        frames = list(reader.read(range(5)))
    assert frames[0].shape == (size[1], size[0], 3)
    assert frames[0].flags["C_CONTIGUOUS"]
    assert [identity(frame)[1] for frame in frames] == list(range(5))
    assert all(np.array_equal(f, o) for f, o in zip(frames, full_decode(tmp_path / "v.mp4"), strict=True))


@pytest.mark.parametrize("side", [40, 96, 112])
def test_scaled_frames_are_pillows_bilinear(tmp_path, side):
    """Within one grey level of it in the mean, from pixels converted exactly (plain swscale is a level darker)."""
    rng = np.random.default_rng(5)
    coarse = rng.integers(30, 220, (6, 12, 16, 3), dtype=np.uint8)
    smooth = [np.asarray(Image.fromarray(c).resize((320, 240), Image.BICUBIC)) for c in coarse]
    noisy = [np.clip(p.astype(int) + rng.integers(-12, 12, p.shape), 0, 255).astype(np.uint8) for p in smooth]
    write_video(tmp_path / "v.mp4", noisy, options={"crf": "5"})
    with VideoReader(tmp_path / "v.mp4") as reader:
        scaled = list(reader.read(range(6), size=side))
    with av.open(str(tmp_path / "v.mp4")) as container:
        planes = [frame.to_ndarray(format="yuv444p").astype(float) for frame in container.decode(video=0)]
    for pixels, (y, u, v) in zip(scaled, planes, strict=True):
        luma, u, v = (y - 16) * 255 / 219, (u - 128) * 255 / 224, (v - 128) * 255 / 224
        exact = np.stack([luma + 1.402 * v, luma - 0.344136 * u - 0.714136 * v, luma + 1.772 * u], -1)
        reference = Image.fromarray(np.clip(np.rint(exact), 0, 255).astype(np.uint8)).resize(
            (side, side), Image.BILINEAR
        )
        assert np.abs(pixels.astype(float) - np.asarray(reference)).mean() < 1.0
        assert abs(pixels.mean() - np.asarray(reference).mean()) < 0.5


def test_a_track_that_starts_late_is_counted_from_its_first_frame(tmp_path):
    write_video(tmp_path / "v.mp4", [picture(0, k) for k in range(30)], first=7)
    with VideoReader(tmp_path / "v.mp4") as reader:
        assert [identity(f)[1] for f in reader.read([0, 1, 28, 29])] == [0, 1, 28, 29]
        assert [identity(f)[1] for f in reader.read([15])] == [15]


def test_an_uneven_rate_does_not_matter(tmp_path):
    stamps = [0, 1, 5, 6, 7, 20, 21, 40, 41, 42, 43, 44]
    write_video(tmp_path / "v.mp4", [picture(0, k) for k in range(12)], stamps=stamps, options={"g": "3", "bf": "1"})
    with VideoReader(tmp_path / "v.mp4") as reader:
        assert reader.frames == 12
        assert [identity(f)[1] for f in reader.read([7, 9])] == [7, 9]
        assert [identity(f)[1] for f in reader.read([2, 5])] == [2, 5]


def test_a_fractional_rate_is_kept_as_one(tmp_path):
    """hflow#461: 29.97 floored to 29 drifts by 6 s in 3 minutes."""
    write_video(tmp_path / "v.mp4", [picture(0, k) for k in range(30)], fps=Fraction(30000, 1001))
    assert probe(tmp_path / "v.mp4").rate == Fraction(30000, 1001)


def test_audio_is_ignored(tmp_path):
    write_video(tmp_path / "v.mp4", [picture(0, k) for k in range(10)], audio=True)
    with VideoReader(tmp_path / "v.mp4") as reader:
        assert [identity(f)[1] for f in reader.read(range(10))] == list(range(10))


def test_codes_of_a_grey_video_come_out_exact(tmp_path):
    rng = np.random.default_rng(0)
    codes = [np.sort(rng.integers(0, 4096, (48, 64), dtype=np.uint16), axis=1) for _ in range(4)]
    write_video(
        tmp_path / "v.mp4",
        codes,
        codec="libx265",
        options={"x265-params": "lossless=1:log-level=none:pools=1"},
        pixel_format="gray12le",
    )
    assert probe(tmp_path / "v.mp4").grey16
    with VideoReader(tmp_path / "v.mp4") as reader:
        for found, made in zip(reader.read(range(4), form="grey16"), codes, strict=True):
            assert found.dtype == np.uint16
            assert np.array_equal(found, made)


def test_no_codes_in_a_colour_video(videos):
    with VideoReader(videos["h264"][0]) as reader, pytest.raises(DataError, match="no depth codes"):
        next(reader.read([0], form="grey16"))


@pytest.mark.parametrize("numbers", [[-1], [COUNT], [0, COUNT + 3]])
def test_frames_that_are_not_there(videos, numbers):
    with VideoReader(videos["h264"][0]) as reader, pytest.raises(DataError, match="no such frame"):
        list(reader.read(numbers))


def test_files_that_are_no_video(tmp_path):
    (tmp_path / "pointer.mp4").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n")
    with pytest.raises(DataError, match="LFS pointer"):
        VideoReader(tmp_path / "pointer.mp4")
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(DataError, match="does not open"):
        VideoReader(tmp_path / "empty.mp4")
    with pytest.raises(DataError, match="no such video"):
        probe(tmp_path / "absent.mp4")


def test_a_cut_off_video_is_an_error_not_an_end(tmp_path, videos):
    """lerobot PR#4237: a decode error taken for the end loses data silently."""
    data = videos["mpeg4"][0].read_bytes()
    moov = data.rfind(b"moov") - 4
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(data[: moov // 2])  # without its index
    with pytest.raises(DataError, match="does not open"):
        VideoReader(cut)
    hole = bytearray(data)
    start = moov // 2
    hole[start : start + 400] = bytes(400)
    cut.write_bytes(bytes(hole))  # a hole in the middle: either each frame is there, or it says so
    said = ""
    with VideoReader(cut) as reader:
        try:
            assert len(list(reader.read(range(reader.frames)))) == COUNT
        except DataError as error:
            said = str(error)
    assert not said or (str(cut) in said and "frame" in said)


def test_a_video_whose_end_is_missing(tmp_path):
    write_video(tmp_path / "v.mp4", [picture(0, k) for k in range(40)], faststart=True)
    data = (tmp_path / "v.mp4").read_bytes()
    (tmp_path / "v.mp4").write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(DataError, match=r"cut off.*40 frames"):
        VideoReader(tmp_path / "v.mp4")


def test_a_pool_keeps_one_file_a_camera(videos):
    pool = VideoPool()
    first, own = pool.reader("front", videos["h264"][0])
    assert not own
    assert pool.reader("front", videos["h264"][0]) == (first, False)
    other, own = pool.reader("wrist", videos["av1"][0])
    assert not own
    stream = first.read(range(5))
    next(stream)
    spare, own = pool.reader("front", videos["h264"][0])  # two episodes read at once
    assert own
    assert spare is not first
    assert [identity(f)[1] for f in spare.read([7])] == [7]
    spare.close()
    stream.close()
    next_file, own = pool.reader("front", videos["hevc"][0])
    assert not own
    assert next_file is not first
    assert [identity(f)[1] for f in other.read([1])] == [1]
    pool.close()


class _Older:
    """PyAV as it was: without ``threads`` before 17, without flags before 15."""

    def __init__(self, real, *, flags: bool):
        self.real, self.flags = real, flags

    def reformat(self, frame, *, width=None, height=None, format=None, interpolation=None):
        if isinstance(interpolation, int) and not self.flags:
            raise KeyError(interpolation)
        return self.real.reformat(frame, width=width, height=height, format=format, interpolation=interpolation)


def test_older_pyav_scales_as_well_as_it_can(videos):
    scaled = {}
    for name, flags in (("now", None), ("threadless", True), ("flagless", False)):
        with VideoReader(videos["h264"][0]) as reader:
            if flags is not None:
                reader._reformatter = _Older(reader._reformatter, flags=flags)
            (scaled[name],) = reader.read([7], size=40)
            (whole,) = reader.read([8])
            assert np.array_equal(whole, videos["h264"][1][8])
    assert np.array_equal(scaled["now"], scaled["threadless"])
    assert not np.array_equal(scaled["now"], scaled["flagless"])
    assert np.abs(scaled["now"].astype(int) - scaled["flagless"]).mean() < 4
