"""Second look at a foreign tar: its frame table and its receipt. The tar itself is only read."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.imaging import picture_size, sniff
from wdsmix.shards.adopt_scan import TEXTS, EpisodeRule, Span, mapped_tar, read_json, timestamp
from wdsmix.shards.files import PARTIAL, file_entry, fsync_file
from wdsmix.shards.frames import write_frames
from wdsmix.shards.npy import read_npy
from wdsmix.shards.receipt import CameraCount, EpisodeRow, ShardReceipt
from wdsmix.shards.samples import Sample, iter_samples
from wdsmix.shards.writer import member_order
from wdsmix.stats import FieldAccumulator

__all__ = ["Adopted", "ShardWork", "adopt_shard"]

_TASK_FIELDS = ("task", "language", "instruction", "language_instruction")
_EXACT = 2**24  # whole numbers up to here are float32 numbers


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardWork:
    """What a worker needs to adopt one tar."""

    folder: Path
    shard: str
    split: str
    rule: EpisodeRule
    spans: Sequence[Span]
    numbers: Sequence[int]
    """Episode number of each span."""
    cameras: Mapping[str, str]
    """Slot -> suffix."""
    vectors: Mapping[str, tuple[str, int]]
    """Name -> suffix and width."""
    hz: float


@dataclass(slots=True)
class Adopted:
    """What came of one tar. Its frame table is complete, under its partial name."""

    receipt: ShardReceipt
    looks: dict[str, tuple[str, str, str]]
    """Slot -> encoding, camera kind, and where that was seen first."""
    rounded: set[str] = field(default_factory=set)
    """Vectors of whole numbers too large for float32."""


def adopt_shard(work: ShardWork) -> Adopted:
    """Writes the frame table of one tar.

    Raises:
        DataError: a member is not what its suffix says, or a value is not finite; names tar, offset and key.
    """
    path = work.folder / f"{work.shard}.tar"
    rows = _Rows(work, path)
    with mapped_tar(path) as mapped:
        for sample in iter_samples(mapped, path=path):
            rows.add(sample, mapped)
    if rows.count != rows.total:
        raise DataError("the tar changed while it was read", path=path, expected=rows.total, found=rows.count)
    return rows.finish()


class _Rows:
    """The frame table of one tar, as it grows."""

    def __init__(self, work: ShardWork, path: Path) -> None:
        self.work, self.path = work, path
        self.total = sum(span.frames for span in work.spans)
        self.count = 0
        self.columns: dict[str, npt.NDArray[Any]] = {
            "offset": np.zeros(self.total, np.uint64),
            "length": np.zeros(self.total, np.uint32),
            "crc32c": np.zeros(self.total, np.uint32),
            "episode": np.repeat(np.array(work.numbers, np.uint32), [span.frames for span in work.spans]),
            "frame": np.concatenate(
                [np.empty(0, np.uint32), *(np.arange(s.frames, dtype=np.uint32) for s in work.spans)]
            ),
            "timestamp": np.zeros(self.total, np.float64),
            "task": np.zeros(self.total, np.uint32),
        }
        self.timed = np.repeat([span.timed == span.frames for span in work.spans], [s.frames for s in work.spans])
        names = member_order(work.vectors)
        self.vectors = {name: np.zeros((self.total, work.vectors[name][1]), np.float32) for name in names}
        self.present = {name: np.zeros(self.total, np.bool_) for name in names}
        self.tasks: dict[str, int] = {}
        self.frames = dict.fromkeys(work.cameras, 0)
        self.sizes: dict[str, set[tuple[int, int]]] = {slot: set() for slot in work.cameras}
        self.looks: dict[str, tuple[str, str, str]] = {}
        self.rounded: set[str] = set()

    def add(self, sample: Sample, mapped: mmap.mmap) -> None:
        """Takes one sample."""
        row = self.count
        if row >= self.total:
            self.count += 1
            return
        length = sample.end - sample.start
        if length >= 2**32:
            raise DataError("a sample is too large", path=self.path, where=sample.place, found=f"{length} bytes")
        columns = self.columns
        columns["offset"][row], columns["length"][row] = sample.start, length
        columns["crc32c"][row] = google_crc32c.value(mapped[sample.start : sample.end])
        fields = read_json(mapped, sample, self.path)
        columns["timestamp"][row] = self._time(row, sample, fields)
        columns["task"][row] = self.tasks.setdefault(self._task(sample, fields, mapped), len(self.tasks))
        for name, (suffix, width) in self.work.vectors.items():
            if (member := sample.members.get(suffix)) is not None:
                data = mapped[member.data : member.data + member.size]
                self.vectors[name][row] = self._vector(name, width, data, f"{sample.place}, {suffix}")
                self.present[name][row] = True
        for slot, suffix in self.work.cameras.items():
            if (member := sample.members.get(suffix)) is not None:
                data = mapped[member.data : member.data + member.size]
                self._picture(slot, data, f"{sample.place}, {suffix}")
        self.count += 1

    def _time(self, row: int, sample: Sample, fields: Mapping[str, Any] | None) -> float:
        time = timestamp(fields) if self.timed[row] else None
        if time is not None:
            return time
        _, frame = self.work.rule.of(sample, fields, self.path)
        return (int(self.columns["frame"][row]) if frame is None else frame) / self.work.hz

    def _task(self, sample: Sample, fields: Mapping[str, Any] | None, mapped: mmap.mmap) -> str:
        for key in _TASK_FIELDS:
            if fields and isinstance(fields.get(key), str) and fields[key]:
                return str(fields[key])
        for suffix in TEXTS:
            if (member := sample.members.get(suffix)) is not None:
                try:
                    return mapped[member.data : member.data + member.size].decode().strip()
                except UnicodeDecodeError as error:
                    raise DataError("not UTF-8 text", path=self.path, where=f"{sample.place}, {suffix}") from error
        return ""

    def _vector(self, name: str, width: int, data: bytes, where: str) -> npt.NDArray[np.float32]:
        try:
            array = read_npy(data)
        except DataError as error:
            raise DataError(
                error.message, path=self.path, where=where, expected=error.expected, found=error.found
            ) from error
        if array.dtype.kind not in "fiub" or array.ndim > 1:
            raise DataError(
                "not a vector of numbers", path=self.path, where=where, found=f"{array.dtype} {array.shape}"
            )
        array = array.reshape(-1)
        if len(array) != width:
            raise DataError("vector of another width", path=self.path, where=where, expected=width, found=len(array))
        with np.errstate(over="ignore"):
            made = array.astype(np.float32)
        if not np.isfinite(made).all():
            bad = int(np.argmin(np.isfinite(made)))
            raise DataError(
                "the vector holds NaN, infinity or a number too large for float32",
                path=self.path,
                where=f"{where}, dimension {bad}",
                found=array[bad],
            )
        if array.dtype.kind in "iu" and array.itemsize > 2 and (np.abs(array.astype(np.float64)) > _EXACT).any():
            self.rounded.add(name)
        return made

    def _picture(self, slot: str, data: bytes, where: str) -> None:
        encoding = sniff(data)
        if encoding is None:
            raise DataError("not a JPEG, PNG or WebP", path=self.path, where=where, found=repr(data[:8]))
        deep = encoding == "png" and len(data) > 25 and data[24] == 16 and data[25] == 0
        look = (encoding, "depth" if deep else "rgb", f"{self.path.name}, {where}")
        first = self.looks.setdefault(slot, look)
        if first[:2] != look[:2]:
            raise DataError(
                f"another kind of picture than at {first[2]}",
                path=self.path,
                where=where,
                expected=" ".join(first[:2]),
                found=" ".join(look[:2]),
            )
        try:
            self.sizes[slot].add(picture_size(data))
        except DataError as error:
            raise DataError(error.message, path=self.path, where=where, found=error.found) from error
        self.frames[slot] += 1

    def finish(self) -> Adopted:
        """Writes the table under its partial name."""
        work = self.work
        final = work.folder / f"{work.shard}.frames.arrow"
        partial = final.with_name(final.name + PARTIAL)
        write_frames(partial, self.columns, self.vectors, self.present, list(self.tasks))
        fsync_file(partial)
        stats = {name: FieldAccumulator(rows.shape[1]) for name, rows in self.vectors.items()}
        episodes, names = [], list(self.tasks)
        for span, number in zip(work.spans, work.numbers, strict=True):
            part = slice(span.first_row, span.first_row + span.frames)
            episodes.append(self._episode(span, number, part, names))
            for name, whole in stats.items():
                rows = self.vectors[name][part][self.present[name][part]]
                if len(rows) and work.split == "train":
                    whole.merge(FieldAccumulator.of(rows))
        receipt = ShardReceipt(
            shard=work.shard,
            split=work.split,
            files=[file_entry(partial, final.name), file_entry(self.path)],
            episodes=episodes,
            cameras={
                slot: CameraCount(frames=n, sizes=sorted(self.sizes[slot]), passthrough=n)
                for slot, n in self.frames.items()
            },
            vectors={name: int(present.sum()) for name, present in self.present.items()},
            stats={name: part.to_json() for name, part in stats.items() if part.count},
        )
        return Adopted(receipt, self.looks, self.rounded)

    def _episode(self, span: Span, number: int, part: slice, names: Sequence[str]) -> EpisodeRow:
        columns, work = self.columns, self.work
        offset = int(columns["offset"][part.start])
        end = int(columns["offset"][part.stop - 1]) + int(columns["length"][part.stop - 1])
        times = columns["timestamp"][part]
        return EpisodeRow(
            episode=number,
            shard=work.shard,
            first_row=span.first_row,
            frames=span.frames,
            offset=offset,
            length=end - offset,
            split=work.split,
            tasks=[names[task] for task in dict.fromkeys(columns["task"][part].tolist())],
            source_file=self.path.name,
            source_episode=span.id,
            duration=max(0.0, float(times.max() - times.min())) + 1 / work.hz,
            extras="{}",
        )
