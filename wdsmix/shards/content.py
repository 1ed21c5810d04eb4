"""What one episode brings to a shard, checked before a byte of it is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.imaging import picture_size
from wdsmix.limits import MAX_EXTRAS_BYTES, MAX_TASK_BYTES, check_size
from wdsmix.shards.receipt import CameraCount
from wdsmix.stats import check_finite

__all__ = ["EpisodeBlock", "FrameTexts", "Picture", "PictureCount"]

_RESERVED = frozenset({"episode", "frame", "timestamp", "task"})
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Picture(NamedTuple):
    """Encoded bytes of one picture, and what the manifest counts about it."""

    data: bytes
    size: tuple[int, int] | None = None
    """(width, height); None: read from its header."""
    passthrough: bool = False
    """Whether these are the source's own bytes."""


class EpisodeBlock:
    """Rows of one episode."""

    __slots__ = ("crc32c", "episode", "length", "offset", "task", "timestamp", "vectors")

    def __init__(
        self,
        episode: int,
        timestamp: npt.NDArray[np.float64],
        task: npt.NDArray[np.uint32],
        vectors: dict[str, npt.NDArray[np.float32]],
    ) -> None:
        self.episode = episode
        self.timestamp = timestamp
        self.task = task
        self.vectors = vectors
        self.offset = np.zeros(len(timestamp), dtype=np.uint64)
        self.length = np.zeros(len(timestamp), dtype=np.uint32)
        self.crc32c = np.zeros(len(timestamp), dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.timestamp)

    @classmethod
    def checked(
        cls,
        episode: int,
        timestamps: npt.NDArray[np.float64],
        vectors: Mapping[str, npt.NDArray[np.float32]],
        widths: Mapping[str, int],
        tasks: Sequence[str],
        task_index: npt.NDArray[np.int32] | None,
    ) -> EpisodeBlock:
        """Copies the rows, so that nothing can change them while the shard is open.

        Raises:
            DataError: a count, a shape, a type or a value is wrong.
        """
        times = np.array(timestamps, dtype=np.float64)
        if times.ndim != 1 or not len(times):
            raise DataError("an episode needs one timestamp a frame", found=f"shape {list(times.shape)}")
        if not np.isfinite(times).all():
            raise DataError("a timestamp is not finite", where=f"frame {int(np.argmin(np.isfinite(times)))}")
        kept = {}
        for name, rows in vectors.items():
            if name not in widths:
                raise DataError(
                    "a vector that the set does not have", where=name, expected=f"some of {', '.join(widths)}"
                )
            if rows.dtype != np.float32 or rows.shape != (len(times), widths[name]):
                raise DataError(
                    "a vector of the wrong shape",
                    where=name,
                    expected=f"float32 {[len(times), widths[name]]}",
                    found=f"{rows.dtype} {list(rows.shape)}",
                )
            try:
                check_finite(rows)
            except DataError as error:
                error.where = f"{name}, {error.where}"
                raise
            kept[name] = np.array(rows, order="C", copy=True)
        if task_index is None:
            chosen = np.zeros(len(times), dtype=np.int64)
        else:
            chosen = np.asarray(task_index, dtype=np.int64)
        if not all(isinstance(task, str) for task in tasks):
            raise DataError("a task is not a string", found=repr(tasks))
        for task in tasks:
            check_size("a task", task, MAX_TASK_BYTES)
        if chosen.shape != times.shape or not tasks or chosen.min() < 0 or chosen.max() >= len(tasks):
            raise DataError(
                "task numbers outside of the tasks",
                expected=f"{len(times)} numbers below {len(tasks)}",
                found=f"{list(chosen.shape)} numbers from {chosen.min(initial=0)} to {chosen.max(initial=0)}",
            )
        return cls(episode, times, chosen.astype(np.uint32), kept)


class FrameTexts:
    """The JSON members of one episode: what its frames share is encoded once."""

    def __init__(self, extras: Mapping[str, object], frame_extras: Mapping[str, Sequence[object]], frames: int) -> None:
        taken = _RESERVED.intersection(extras) | _RESERVED.intersection(frame_extras)
        if taken:
            raise DataError("a fact can't have the name of a field of every frame", found=", ".join(sorted(taken)))
        if odd := [name for name in (*extras, *frame_extras) if not isinstance(name, str)]:
            raise DataError("a fact's name is not a text", found=repr(odd[0]))
        for name, values in frame_extras.items():
            if len(values) != frames:
                raise DataError("not one value a frame", where=name, expected=frames, found=len(values))
        base = {name: value for name, value in extras.items() if not _empty(value)}
        self._columns = dict(frame_extras)
        self.episode = self._text(dict(extras), "the episode")
        check_size("the facts of the episode", self.episode, MAX_EXTRAS_BYTES)
        self._pieces = self._layout(base)
        self._tasks: dict[str, str] = {}

    def _layout(self, base: Mapping[str, object]) -> list[tuple[str, str]]:
        """What every frame's text is made of: texts that are alike in all, and after each a field that is not."""
        pieces: list[tuple[str, str]] = []
        alike = "{"
        for name in sorted({*base, *self._columns, *_RESERVED}):
            alike += f"{_encode(name)}:"
            if name in self._columns or name in _RESERVED:
                pieces.append((alike, name))
                alike = ","
            else:
                alike += f"{self._text(base[name], 'the episode')},"
        return [*pieces, (alike[:-1] + "}", "")]

    def of(self, episode: int, frame: int, timestamp: float, task: str) -> bytes:
        """The JSON member of one frame.

        Raises:
            DataError: a fact is not JSON.
        """
        if (quoted := self._tasks.get(task)) is None:
            quoted = self._tasks[task] = _encode(task)
        usual = {"episode": str(episode), "frame": str(frame), "timestamp": _value(timestamp), "task": quoted}
        parts: list[str] = []
        try:
            for alike, name in self._pieces:
                parts.append(alike)
                if name:
                    parts.append(usual[name] if name in usual else _value(self._columns[name][frame]))
            data = "".join(parts).encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"a fact is not JSON: {error}", where=f"frame {frame}") from error
        if len(data) > 2 * MAX_EXTRAS_BYTES:
            check_size("the JSON of a frame", data.decode(), 2 * MAX_EXTRAS_BYTES, where=f"frame {frame}")
        return data

    @staticmethod
    def _text(fields: object, where: str) -> str:
        try:
            text = _encode(fields)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"a fact is not JSON: {error}", where=where) from error
        return text


def _value(value: object) -> str:
    """What ``_encode`` gives, sooner for what most values are."""
    if value is None:
        return "null"
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    if type(value) is float and math.isfinite(value):
        return repr(value)
    return _encode(value)


class PictureCount:
    """What one camera slot has had."""

    __slots__ = ("frames", "passthrough", "sizes")

    def __init__(self) -> None:
        self.frames = 0
        self.passthrough = 0
        self.sizes: set[tuple[int, int]] = set()

    def see(self, picture: bytes | Picture, slot: str, frame: int) -> None:
        """Counts one picture.

        Raises:
            DataError: it is empty, or nothing that a picture starts with.
        """
        picture = picture if isinstance(picture, Picture) else Picture(picture)
        if not picture.data:
            raise DataError("an empty picture", where=f"{slot}, frame {frame}")
        try:
            size = picture.size or picture_size(picture.data)
        except DataError as error:
            error.where = f"{slot}, frame {frame}"
            raise
        self.frames += 1
        self.passthrough += picture.passthrough
        self.sizes.add(size)

    def add(self, other: PictureCount) -> None:
        """Adds what another counted."""
        self.frames += other.frames
        self.passthrough += other.passthrough
        self.sizes |= other.sizes

    def model(self) -> CameraCount:
        """The counts, for the receipt."""
        return CameraCount(frames=self.frames, sizes=sorted(self.sizes), passthrough=self.passthrough)


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and not value)
