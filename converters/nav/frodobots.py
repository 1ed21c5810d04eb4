"""FrodoBots rides: a folder of CSV files, with the recordings of the front camera beside them.

The robot reports wheel speeds, no poses: state and action come from its odometry (two wheels a side, wheel radius
0.065 m, wheel base 0.306 m). Frame k of the recording belongs to row k of ``front_camera_timestamps``.
"""

from __future__ import annotations

import bisect
import csv
import hashlib
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from wdsmix.converters.loose import inside, listing, refuse_link
from wdsmix.converters.nav.layout import Opened, Scan
from wdsmix.converters.nav.motion import ACTION, STATE, check_poses, pose_vectors, steps
from wdsmix.converters.nav.options import NavOptions
from wdsmix.converters.slots import natural_key
from wdsmix.converters.video import VideoReader

from wdsmix.episode import Image, VectorSpec
from wdsmix.errors import DataError

__all__ = ["CAMERA", "LIBRARIES", "NAME", "POSES", "RATE", "SPECS", "find", "fingerprint", "odometry", "read", "scan"]

Float64Array = npt.NDArray[np.float64]

NAME = "frodobots"
RATE = 20.0
SPECS = {
    "state": STATE,
    "action": ACTION,
    "command": VectorSpec(names=("linear", "angular"), units=("1", "1"), kinds=("absolute", "absolute")),
    "gps": VectorSpec(names=("east", "north"), units=("m", "m"), kinds=("absolute", "absolute")),
}
POSES = True
LIBRARIES = ("av",)
CAMERA = "front"

_RADIUS, _BASE = 0.065, 0.306
_MATCH_S = 0.1
_GAP_S = 1.0
_TOLERANCE = 2
_DEPTH = 3
_LEFT, _RIGHT = ("rpm_1", "rpm_3"), ("rpm_2", "rpm_4")
_EARTH_M = 6_371_000.0


def find(root: Path) -> list[str]:
    """Folders that hold control and camera-time CSV files."""
    found = []
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        folders[:] = [] if len(here.parts) >= _DEPTH else [name for name in folders if not name.startswith(".")]
        if _csv(names, "control") or (here.name.startswith("ride_") and _csv(names, "front_camera_timestamps")):
            found.append(here.as_posix())
            folders.clear()
    return sorted(found, key=natural_key)


def _csv(names: Sequence[str], kind: str) -> str | None:
    return next((n for n in sorted(names) if re.fullmatch(rf"{kind}(_data)?(_.*)?\.csv", n)), None)


def _table(folder: Path, kind: str) -> dict[str, Float64Array]:
    """Columns of numbers of a CSV file; what is no number is NaN.

    Raises:
        DataError: it is not there, or can't be read.
    """
    name = _csv(listing(folder), kind)
    if name is None:
        raise DataError(f"no {kind} CSV file")
    try:
        with (folder / name).open("rb") as raw:
            wide = raw.read(2) in (b"\xff\xfe", b"\xfe\xff")
        encoding = "utf-16" if wide else "utf-8-sig"
        with (folder / name).open(newline="", encoding=encoding, errors="replace") as file:
            rows = list(csv.reader(file))
    except (OSError, csv.Error) as error:
        raise DataError(f"can't be read: {error}", where=name) from error
    if len(rows) < 2:
        raise DataError("holds no rows", where=name)
    names = [text.strip() for text in rows[0]]
    columns = {key: np.array([_float(row, k) for row in rows[1:]], np.float64) for k, key in enumerate(names)}
    if "timestamp" not in columns:
        raise DataError("no column timestamp", where=name, found=", ".join(names[:8]))
    return columns


def _float(row: Sequence[str], k: int) -> float:
    try:
        return float(row[k])
    except (ValueError, IndexError):
        return math.nan


def odometry(
    stamps: Float64Array, left_rpm: Float64Array, right_rpm: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """Integrates wheel speeds, each taken to hold until the next row.

    Args:
        stamps: float64 [C] seconds, ascending.
        left_rpm: float64 [C] turns a minute of the left wheels.
        right_rpm: float64 [C].

    Returns:
        float64 [C, 2] positions in m, and float64 [C] headings in rad, from 0.
    """
    left, right = (rpm * (2 * np.pi / 60 * _RADIUS) for rpm in (left_rpm, right_rpm))
    dt = np.diff(stamps)
    turn = ((right - left) / _BASE)[:-1] * dt
    yaw = np.concatenate([[0.0], np.cumsum(turn)])
    middle = yaw[:-1] + turn / 2
    way = ((left + right) / 2)[:-1] * dt
    moves = np.stack([way * np.cos(middle), way * np.sin(middle)], axis=1)
    return np.concatenate([np.zeros((1, 2)), np.cumsum(moves, axis=0)]), yaw


@dataclass(kw_only=True, slots=True)
class _Ride:
    """What the CSV files of a ride tell."""

    rows: npt.NDArray[np.int64]
    """int64 [T]: frames of the recording that have a pose."""
    stamps: Float64Array
    positions: Float64Array
    yaws: Float64Array
    command: Float64Array
    gps: Float64Array | None
    frames: int
    """Rows of the camera's time stamps."""
    notes: list[str]


def _ride(folder: Path, options: NavOptions) -> _Ride:
    """Matches camera frames to the controls.

    Raises:
        DataError: a file is missing, or nothing matches.
    """
    control, camera = _table(folder, "control"), _table(folder, "front_camera_timestamps")
    wanted = ("linear", "angular", *_LEFT, *_RIGHT)
    if missing := [name for name in wanted if name not in control]:
        raise DataError("columns are missing from the controls", expected=", ".join(wanted), found=", ".join(missing))
    values = np.stack([control["timestamp"], *(control[name] for name in wanted)], axis=1)
    values = values[np.isfinite(values).all(axis=1)]
    values = values[np.argsort(values[:, 0], kind="stable")]
    values = values[np.concatenate([[True], np.diff(values[:, 0]) > 0])] if len(values) else values
    notes = []
    if len(values) < len(control["timestamp"]):
        notes.append("controls without numbers or with a repeated time are left out")
    first, last = _longest(values[:, 0]) if len(values) else (0, 0)
    if last - first < 2:
        raise DataError("no controls", found=f"{len(values)} rows that can be used")
    if last - first < len(values):
        notes.append(f"controls pause for more than {_GAP_S:g} s; the longest part without a pause is taken")
    values = values[first:last]
    stamps = values[:, 0]
    left, right = values[:, 3:5].mean(axis=1), values[:, 5:7].mean(axis=1)
    if np.ptp(right - left) > 0 and np.ptp(values[:, 2]) > 0 and np.corrcoef(right - left, values[:, 2])[0, 1] < -0.2:
        notes.append("wheels turn against the commanded direction: which side rpm_1 is on is an assumption")
    positions, yaws = odometry(stamps, left, right)
    check_poses(positions, yaws)
    times = camera["timestamp"]
    near = _nearest(stamps, times)
    good = np.isfinite(times) & (np.abs(stamps[near] - np.nan_to_num(times)) <= _MATCH_S)
    good &= np.concatenate([[True], times[1:] != times[:-1]])
    rows = np.flatnonzero(good)
    if len(rows):
        forward = _rising(times[rows].tolist())
        if len(forward) < len(rows):
            notes.append("times of the camera run backwards; frames out of order are left out")
        rows = rows[forward]
        first, last = _longest(times[rows])
        if last - first < len(rows):
            notes.append(f"pictures pause for more than {_GAP_S:g} s; the longest part without a pause is taken")
        rows = rows[first:last]
    rows = rows[:: options.stride]
    if len(rows) < 2:
        raise DataError("too few frames have a control within 0.1 s", expected="2 or more", found=len(rows))
    at = times[rows]
    return _Ride(
        rows=rows,
        stamps=at,
        positions=np.stack([np.interp(at, stamps, positions[:, axis]) for axis in range(2)], axis=1),
        yaws=np.interp(at, stamps, yaws),
        command=values[near[rows], 1:3],
        gps=_gps(folder, at),
        frames=len(times),
        notes=notes,
    )


def _longest(stamps: Float64Array) -> tuple[int, int]:
    cuts = [0, *(np.flatnonzero(np.diff(stamps) > _GAP_S) + 1).tolist(), len(stamps)]
    return max(pairwise(cuts), key=lambda part: part[1] - part[0])


def _rising(values: Sequence[float]) -> list[int]:
    """Places of a longest strictly increasing part of a sequence, the rest being out of order."""
    ends: list[float] = []  # ends[n] is the least last value of a rising part of n + 1
    places: list[int] = []
    before: list[int] = []
    for k, value in enumerate(values):
        at = bisect.bisect_left(ends, value)
        before.append(places[at - 1] if at else -1)
        ends[at : at + 1], places[at : at + 1] = [value], [k]
    found = []
    k = places[-1] if places else -1
    while k >= 0:
        found.append(k)
        k = before[k]
    return found[::-1]


def _nearest(stamps: Float64Array, times: Float64Array) -> npt.NDArray[np.int64]:
    times = np.nan_to_num(times)
    after = np.clip(np.searchsorted(stamps, times), 1, len(stamps) - 1)
    result: npt.NDArray[np.int64] = after - (times - stamps[after - 1] < stamps[after] - times)
    return result


def _gps(folder: Path, at: Float64Array) -> Float64Array | None:
    """float64 [T, 2]: metres east and north of the first fix, where the ride has two or more."""
    try:
        table = _table(folder, "gps")
    except DataError:
        return None
    if not {"latitude", "longitude"} <= set(table):
        return None
    values = np.stack([table["timestamp"], table["latitude"], table["longitude"]], axis=1)
    values = values[np.isfinite(values).all(axis=1) & (np.abs(values[:, 1]) <= 90)]
    values = values[np.argsort(values[:, 0], kind="stable")]
    if len(values) < 2:
        return None
    north = np.radians(values[:, 1] - values[0, 1]) * _EARTH_M
    east = np.radians(values[:, 2] - values[0, 2]) * _EARTH_M * math.cos(math.radians(values[0, 1]))
    return np.stack([np.interp(at, values[:, 0], axis) for axis in (east, north)], axis=1)


def scan(root: Path, file: str, options: NavOptions) -> list[Scan]:
    """Reads the CSV files of one ride, and counts the frames of its recording."""
    folder = root / file
    made = Scan(id=folder.resolve().name, file=file, cameras=(CAMERA,))
    try:
        for name in listing(folder):
            refuse_link(root, folder / name)
        ride = _ride(folder, options)
        held = _Segments.of(folder).total
        if abs(held - ride.frames) > (0 if options.strict else _TOLERANCE):
            raise DataError(
                "the recording has other than the frames of its time stamps", expected=ride.frames, found=held
            )
        made.frames = int((ride.rows < held).sum())
        made.steps = steps(ride.positions[: made.frames])
        made.rate = float(1 / np.median(np.diff(ride.stamps)))
        made.left_out = max(0, ride.frames - made.frames * options.stride)
        made.vectors = {"state": 3, "action": 3, "command": 2, **({"gps": 2} if ride.gps is not None else {})}
        made.notes = ride.notes
    except DataError as error:
        made.fault = str(
            DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint)
        )
    except OSError as error:
        made.fault = f"can't be read: {error.strerror}"
    return [made]


class _Segments:
    """The pieces of a recording, one after the other (an `wdsmix.episode.ImageStream`); one is open at a time."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self._paths = [inside(folder, name) for name in names]
        counts = []
        for path in self._paths:
            with VideoReader(path) as reader:
                counts.append(reader.frames)
        self._counts = counts

    @classmethod
    def of(cls, folder: Path) -> _Segments:
        """The front camera's pieces, by its playlist.

        Raises:
            DataError: there is none, or a piece can't be read.
        """
        place = folder / "recordings" if (folder / "recordings").is_dir() else folder
        names = sorted(listing(place), key=natural_key)
        lists = [n for n in names if n.endswith(".m3u8") and "audio" not in n]
        front = [n for n in lists if "1000" in n or "front" in n] or lists
        if len(front) > 1:
            video = [n for n in front if "video" in n]
            front = video or front
        if len(front) > 1:
            raise DataError("several recordings may be the front camera's", found=", ".join(front[:4]))
        if front:
            text = (place / front[0]).read_text("utf-8", "replace")
            pieces = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
        else:
            pieces = [n for n in names if n.endswith((".ts", ".mp4"))]
        if not pieces:
            raise DataError("no recording of the front camera", expected="recordings/*.m3u8 and its .ts files")
        return cls(place, pieces)

    @property
    def total(self) -> int:
        """Frames."""
        return sum(self._counts)

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields the frames of these numbers, as RGB pixels."""
        start = 0
        for path, count in zip(self._paths, self._counts, strict=True):
            mine = rows[(rows >= start) & (rows < start + count)] - start
            if len(mine):
                with VideoReader(path) as reader:
                    yield from reader.read(mine)
            start += count


def read(root: Path, file: str, locator: Mapping[str, str | int], options: NavOptions) -> Opened:
    """Opens one ride."""
    folder = root / file
    ride = _ride(folder, options)
    video = _Segments.of(folder)
    count = int((ride.rows < video.total).sum())
    vectors = pose_vectors(ride.positions[:count], ride.yaws[:count])
    vectors["command"] = np.ascontiguousarray(ride.command[:count], np.float32)
    if ride.gps is not None:
        vectors["gps"] = np.ascontiguousarray(ride.gps[:count], np.float32)
    return Opened(
        vectors=vectors,
        images={CAMERA: video},
        rows=ride.rows[:count],
        timestamps=ride.stamps[:count] - ride.stamps[0],
        task=options.instruction,
    )


def fingerprint(root: Path, file: str) -> bytes:
    """Names and sizes of all files, and the CSV files' content."""
    total = hashlib.sha256()
    for folder, folders, names in os.walk(root / file):
        folders.sort()
        for name in sorted(names):
            path = Path(folder, name)
            total.update(f"{path.relative_to(root)}\0{path.lstat().st_size}\0".encode("utf-8", "surrogateescape"))
            if name.endswith((".csv", ".m3u8")) and path.is_file():
                total.update(path.read_bytes())
    return total.digest()
