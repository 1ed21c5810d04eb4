"""Which frame of a video belongs to which row of an episode: by position.

Time stamps are no way to tell: in real sets the frame nearest to a row's time stamp is up to 25 frames from the row's
own, while all of them have exactly one frame a row. Only where the counts differ by more than one are times asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError

__all__ = ["Segment", "agreeing", "frame_numbers", "in_order", "median_rate"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """Where an episode lies in a video that it shares with others."""

    start: float | None
    """s, by the metadata."""
    stop: float | None
    before: int
    """Frames of the episodes before it in this file."""
    after: float | None
    """Start of the next episode in this file, s; None: it is the last one."""
    total: int
    """Frames of all episodes in this file."""
    counted: bool = True
    """Whether the metadata's start agrees with counting, as far as it tells; see `in_order`."""


def frame_numbers(
    rows: int,
    frames: int,
    *,
    rate: float,
    segment: Segment | None,
    stamps: npt.NDArray[np.float64] | None,
    policy: Literal["nearest", "drop"],
    index: npt.NDArray[np.int64] | None = None,
) -> tuple[npt.NDArray[np.int64], str]:
    """Maps the rows of an episode to the frames of a video.

    Args:
        rows: Rows of the episode.
        frames: Frames of the file.
        rate: Frames per second of the file.
        segment: Its place in a shared file; None: the file is the episode's own.
        stamps: float64 [rows] time stamps of the rows, s; None where there are none.
        policy: What is done where the counts differ by more than one.
        index: int64 [rows] ``frame_index`` of the rows; tells the frames where rows were taken out of an episode.

    Returns:
        int64 [rows], ascending, and what is to be told of it: empty where counts agree.

    Raises:
        DataError: they can't be mapped; tells both counts.
    """
    first, there = (0, frames) if segment is None else _extent(rows, frames, rate, segment)
    if there == rows:
        return np.arange(first, first + rows, dtype=np.int64), _shortage(frames, segment, policy)
    if index is not None and rows < there and _has_gaps(index, there):
        return index + first, f"{there - rows} frames have no row: mapped by frame_index"
    if there == rows - 1 and there > 0:
        numbers = np.arange(first, first + rows, dtype=np.int64)
        numbers[-1] -= 1
        return numbers, "the video has one frame less than the episode has rows: its last frame stands for two"
    if there == rows + 1:
        return np.arange(first, first + rows, dtype=np.int64), "the video has one frame more than the episode has rows"
    counts = {"expected": f"{rows} frames, one a row", "found": f"{there} frames"}
    if policy == "drop" or stamps is None or there < 1:
        raise DataError("the video has other than the episode's frames", **counts)
    nearest = _nearest(stamps, there, rate)
    if nearest is None:
        raise DataError("the video has other than the episode's frames, and the rows' times do not fit it", **counts)
    return nearest + first, f"{there} frames for {rows} rows: mapped by time"


def _has_gaps(index: npt.NDArray[np.int64], frames: int) -> bool:
    """Whether rows were taken out of an episode whose video kept all frames."""
    if not len(index) or index[0] < 0 or not frames - 1 <= index[-1] + 1 <= frames:
        return False
    steps = np.diff(index)
    return bool((steps > 0).all() and (index[0] > 0 or (steps > 1).any()))


def _shortage(frames: int, segment: Segment | None, policy: Literal["nearest", "drop"]) -> str:
    """What is to be told of an episode of a file that holds fewer frames than its episodes have rows."""
    if segment is None or frames >= segment.total - 1 or segment.start is None:
        return ""
    counts = f"{frames} frames for {segment.total} rows of the episodes in it"
    if policy == "drop":
        raise DataError("the video lacks frames, and nothing tells where", found=counts)
    return f"the video lacks frames ({counts}), and nothing tells where: mapped by the metadata's start"


def in_order(starts: Sequence[float | None], lengths: Sequence[int], numbers: Sequence[int], rate: float) -> list[int]:
    """The order in which episodes follow each other in a file: by their starts, unless their numbers fit these better.

    A start that can't be true (below zero, or far from where the frames before it end) would otherwise move all others.

    Args:
        starts: s, by the metadata; None where they tell none.
        lengths: Rows of each.
        numbers: Episode number of each.
        rate: Frames per second.

    Returns:
        Places in the arguments.
    """
    by_number = sorted(range(len(starts)), key=lambda k: numbers[k])
    if any(start is None for start in starts):
        return by_number
    by_start = sorted(range(len(starts)), key=lambda k: (starts[k], numbers[k]))
    if by_start == by_number:
        return by_start
    return max(by_start, by_number, key=lambda order: sum(agreeing(order, starts, lengths, rate)))


def agreeing(order: Sequence[int], starts: Sequence[float | None], lengths: Sequence[int], rate: float) -> list[bool]:
    """For each place of an order, whether the metadata's start is where the frames before it end.

    Starts that are sums of many rounded durations drift; half a frame an episode is allowed.
    """
    found, before = [], 0
    for rank, place in enumerate(order):
        start = starts[place]
        found.append(start is None or abs(start * rate - before) <= max(1.6, 0.5 * rank))
        before += lengths[place]
    return found


def _extent(rows: int, frames: int, rate: float, segment: Segment) -> tuple[int, int]:
    """First frame of an episode in a shared file, and how many frames it has there.

    Counting is exact where the file holds what its episodes need, no more and no less. Otherwise (episodes were cut out
    of the metadata, or frames are missing) the metadata's start time, rounded to a whole frame, tells.
    """
    if segment.start is None and abs(segment.total - frames) > 1:
        raise DataError(
            "nothing tells where the episode is in the video: the metadata have no start, and the counts differ",
            expected=f"{segment.total} frames, one a row of the episodes in it",
            found=f"{frames} frames",
        )
    if segment.total == frames and not segment.counted:
        raise DataError(
            "the metadata's start is not where the frames of the episodes before it end",
            expected=f"{segment.before / rate:g} s (frame {segment.before})",
            found=f"{segment.start:g} s",
        )
    if segment.total == frames or segment.start is None:
        if segment.start is None and segment.before + rows == segment.total == frames + 1:
            return segment.before, rows - 1
        if segment.before + rows > frames:
            raise DataError(
                "the video ends before the episode",
                expected=f"frames {segment.before} to {segment.before + rows - 1}",
                found=f"{frames} frames",
            )
        return segment.before, rows
    first = round(segment.start * rate)
    if first < 0 or first >= frames:
        raise DataError(
            "the video ends before the episode",
            expected=f"frames {first} to {first + rows - 1} (it starts at {segment.start:g} s)",
            found=f"{frames} frames ({frames / rate:g} s)",
        )
    end = frames if segment.after is None else min(frames, max(first, round(segment.after * rate)))
    there = end - first
    if there > rows + 1 and (segment.stop is None or abs((segment.stop - segment.start) * rate - rows) <= 1.5):
        there = rows  # the rest belongs to an episode that the metadata no longer have
    if there == rows + 1 and segment.stop is not None and abs((segment.stop - segment.start) * rate - rows) <= 0.5:
        there = rows
    return first, there


def _nearest(stamps: npt.NDArray[np.float64], frames: int, rate: float) -> npt.NDArray[np.int64] | None:
    """The frame nearest in time to each row, if the rows' times fit the video."""
    if len(stamps) < 2 or not np.isfinite(stamps).all():
        return None
    steps = np.diff(stamps)
    step = float(np.median(steps))
    offset = float(stamps[0]) if 0 <= float(stamps[0]) <= 1.5 * step else 0.0
    times = stamps - offset
    span = frames / rate
    slack = max(2 / rate, 2 * step, 0.02 * span)
    if steps.min() <= 0 or step <= 0 or times[0] < 0 or times[-1] > span + slack or times[-1] < span - slack - step:
        return None
    return np.clip(np.rint(times * rate), 0, frames - 1).astype(np.int64)


def median_rate(stamps: Sequence[float] | npt.NDArray[np.float64]) -> float:
    """Rows per second by the median step of their time stamps; 0 where it can't be told."""
    steps = np.diff(np.asarray(stamps, dtype=np.float64))
    steps = steps[np.isfinite(steps) & (steps > 0)]
    return float(1 / np.median(steps)) if len(steps) else 0.0
