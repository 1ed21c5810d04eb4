"""Rows to frames by position, and the rate by what spans, videos and rows say."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from helpers.lerobot_fixtures import Made, change_episodes, change_info, check_all, opened, picture, shown, write_video
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.lerobot.positions import Segment, frame_numbers

from wdsmix.errors import DataError


def numbers(rows, frames, *, segment=None, stamps=None, policy="nearest", rate=20.0):
    found, told = frame_numbers(rows, frames, rate=rate, segment=segment, stamps=stamps, policy=policy)
    return found.tolist(), told


def test_equal_counts():
    assert numbers(5, 5) == ([0, 1, 2, 3, 4], "")


def test_one_frame_less_or_more():
    """droid#54."""
    less, told = numbers(5, 4)
    assert less == [0, 1, 2, 3, 3]
    assert "one frame less" in told
    more, told = numbers(5, 6)
    assert more == [0, 1, 2, 3, 4]
    assert "one frame more" in told


def test_times_decide_only_where_counts_differ_by_more():
    wall_clock = np.cumsum(np.random.default_rng(0).uniform(0.03, 0.3, 20))
    assert numbers(20, 20, stamps=wall_clock) == (list(range(20)), "")
    found, told = numbers(10, 20, stamps=np.arange(10) / 10)
    assert found == list(range(0, 20, 2))
    assert told == "20 frames for 10 rows: mapped by time"
    assert numbers(10, 20, stamps=np.arange(10) / 10 + 0.1)[0] == list(range(0, 20, 2))  # starts at one step


@pytest.mark.parametrize(
    "stamps",
    [None, np.arange(10) / 20, np.arange(10) / 2, np.zeros(10), np.arange(10) / 10 + 50, np.full(10, np.nan)],
    ids=["none", "too fast", "too slow", "all the same", "elsewhere", "nan"],
)
def test_other_counts_are_refused_with_both(stamps):
    with pytest.raises(DataError, match=r"expected 10 frames, one a row, found 20 frames"):
        numbers(10, 20, stamps=stamps)
    with pytest.raises(DataError, match="found 20 frames"):
        numbers(10, 20, stamps=np.arange(10) / 10, policy="drop")


def segment(**changes):
    usual = {"start": 0.0, "stop": None, "before": 0, "after": None, "total": 0}
    return Segment(**{**usual, **changes})


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=12),
    rate=st.sampled_from([10.0, 15.0, 29.97, 30.0, 50.0]),
    drift=st.floats(-0.01, 0.01),
)
def test_every_frame_of_a_shared_video_is_given_once(lengths, rate, drift):
    starts = np.concatenate([[0], np.cumsum(lengths)])
    found = []
    for k, length in enumerate(lengths):
        place = segment(
            start=starts[k] / rate + k * drift,
            stop=starts[k + 1] / rate + k * drift,
            before=int(starts[k]),
            after=starts[k + 1] / rate if k + 1 < len(lengths) else None,
            total=int(starts[-1]),
        )
        found += numbers(length, int(starts[-1]), segment=place, rate=rate)[0]
    assert found == list(range(int(starts[-1])))


def test_a_gap_in_the_video_belongs_to_nobody():
    place = segment(start=1.0, stop=1.5, before=0, after=3.0, total=50)
    assert numbers(10, 100, segment=place)[0] == list(range(20, 30))


def test_a_short_segment_of_a_shared_video():
    place = segment(start=1.0, stop=1.45, before=20, after=1.45, total=49)
    found, told = numbers(10, 48, segment=place)
    assert found == [*range(20, 29), 28]
    assert "one frame less" in told


@pytest.mark.parametrize(
    "place",
    [segment(start=52.9, total=999), segment(start=None, before=598, total=600), segment(start=-3.0, total=999)],
)
def test_a_video_that_ends_before_its_episode(place):
    """lerobot#2627, #2328: 1058 s asked of a video of 598 s."""
    with pytest.raises(DataError, match="the video ends before the episode"):
        numbers(10, 600, segment=place)


def film_of(change: int):
    return lambda episode, length: [(episode, k) for k in range(length + change)]


@pytest.mark.parametrize("layout", [2, 3])
def test_videos_one_frame_short_are_kept_and_flagged(tmp_path, layout):
    """droid#54, lerobot PR#4533."""
    made = Made(layout=layout, film=film_of(-1))
    source, refs = opened(made.write(tmp_path / "robot"))
    for number, (ref, length) in enumerate(zip(refs, made.lengths, strict=True)):
        episode = source.read(ref)
        assert shown(episode) == [*((number, k, 0) for k in range(length - 1)), (number, length - 2, 0)]
        assert set(episode.extras["frame_mapping"]) == {"cam0", "cam1"}


@pytest.mark.parametrize("layout", [2, 3])
def test_videos_one_frame_long(tmp_path, layout):
    made = Made(layout=layout, film=film_of(1))
    check_all(made, made.write(tmp_path / "robot"))


def test_a_video_that_lost_many_frames_costs_its_episode(tmp_path):
    made = Made(layout=2, film=lambda e, length: [(e, k) for k in range(length - 4 if e == 1 else length)])
    source, refs = opened(made.write(tmp_path / "robot"))
    assert shown(source.read(refs[0])) == [(0, k, 0) for k in range(9)]
    with pytest.raises(DataError, match=r"observation\.images\.front.*expected 12 frames, one a row, found 8 frames"):
        source.read(refs[1])


def test_rows_slower_than_the_video_are_mapped_by_time(tmp_path):
    def columns(episode, length):
        return {"timestamp": pa.array(np.arange(length) / 10)}

    made = Made(layout=2, fps=10.0, cameras=("observation.images.front",), columns=columns)
    root = made.write(tmp_path / "robot")
    for episode, length in enumerate(made.lengths):
        frames = [picture(episode, k) for k in range(2 * length)]
        write_video(root / f"videos/chunk-000/observation.images.front/episode_{episode:06d}.mp4", frames, fps=20)
    with pytest.raises(DataError, match=r"expected 10 frames/s \(info.json\), found 20 frames/s"):
        opened(root)
    source, refs = opened(root, fps=10.0)
    assert shown(source.read(refs[1])) == [(1, 2 * k, 0) for k in range(12)]
    source, refs = opened(root, fps=10.0, video_mismatch="drop")
    with pytest.raises(DataError, match="found 24 frames"):
        source.read(refs[1])


def clock(stamps):
    return Made(layout=2, lengths=(30, 30), columns=lambda episode, length: {"timestamp": pa.array(stamps(length))})


def test_time_stamps_that_start_late_do_not_move_a_frame(tmp_path):
    """GR00T's demo: 415 of 416 rows would get their neighbour's frame."""
    made = clock(lambda length: np.arange(1, length + 1) / 20)
    source = check_all(made, made.write(tmp_path / "robot"))
    assert source.read(source.episodes()[0]).timestamps[0] == 0.05
    assert not source.describe().warnings


def test_jitter_is_told_and_kept(tmp_path):
    """lerobot#2364, #933, #2814: wall clocks violate any tolerance; up to 25 frames off by time."""
    wall = np.cumsum(np.random.default_rng(3).uniform(0.03, 0.07, 30))
    made = clock(lambda length: wall[:length])
    source = check_all(made, made.write(tmp_path / "robot"))
    assert np.array_equal(source.read(source.episodes()[1]).timestamps, wall)
    info = source.describe()
    assert any("uneven" in text or "the rows' time stamps tell" in text for text in info.warnings)
    assert info.details["rate"]["declared"] == 20
    assert info.details["rate"]["jitter"] > 0.1


def test_a_measured_rate_that_is_not_the_declared_one(tmp_path):
    made = clock(lambda length: np.arange(length) / 18.5)
    info = check_all(made, made.write(tmp_path / "robot")).describe()
    assert "the rows' time stamps tell 18.5 frames/s, 20 are declared; they are kept as they are" in info.warnings
    assert info.details["rate"] == {
        "declared": 20.0, "taken": 20.0, "measured_hz": 18.5, "jitter": 0.0, "episodes_measured": 2,
    }  # fmt: skip


def test_time_stamps_that_are_no_numbers_are_left_out(tmp_path):
    made = clock(lambda length: [None] + [0.1] * (length - 1))
    source = check_all(made, made.write(tmp_path / "robot"))
    assert source.read(source.episodes()[0]).timestamps is None


def test_spans_against_the_declared_rate(tmp_path):
    made = Made(lengths=(40, 50), cameras=("observation.images.front",))
    root = made.write(tmp_path / "robot")
    change_info(root, lambda info: info.update(fps=30))
    with pytest.raises(DataError) as said:
        opened(root)
    text = str(said.value)
    assert "contradicts the spans" in text
    assert "expected 20 frames/s" in text
    assert "found 30" in text
    assert "--fps 20" in text
    source, _ = opened(root, fps=20.0)
    assert source.describe().fps == 20
    assert source.describe().details["rate"]["declared"] == 30


def test_a_span_off_by_one_frame_explains_itself(tmp_path):
    made = Made(lengths=(4, 5), cameras=("observation.images.front",))  # one frame of four is 25 %
    root = made.write(tmp_path / "robot")

    def early(rows):
        for row in rows:
            row["videos/observation.images.front/to_timestamp"] -= 0.05

    change_episodes(root, early)
    check_all(made, root)


def test_the_video_against_the_declared_rate(tmp_path):
    made = Made(layout=2)
    root = made.write(tmp_path / "robot")
    change_info(root, lambda info: info.update(fps=25))
    with pytest.raises(DataError, match=r"expected 25 frames/s \(info.json\), found 20 frames/s\); --fps says which"):
        opened(root)
    check_all(made, root, fps=25.0)


def test_fractional_rates(tmp_path):
    made = Made(fps=29.97, lengths=(40, 40, 40))
    check_all(made, made.write(tmp_path / "robot"))


def test_videos_are_decoded_not_just_their_first_frame(tmp_path):
    """GR00T#342: a wrong backend gives frame 0 for all, and training runs."""
    made = Made(layout=2, lengths=(25,), cameras=("observation.images.front",))
    source, refs = opened(made.write(tmp_path / "robot"))
    frames = list(source.read(refs[0]).images["cam0"].read(np.arange(25)))
    assert len({frame.tobytes() for frame in frames}) == 25
