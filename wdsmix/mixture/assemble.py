"""Assembler: from a rank's samples of a step to the arrays of its batch.

Three parts, so that a loader can run them where and when it likes: `Assembler.locate` (arithmetic on the indexes, no
shard touched), `Assembler.fill_vectors` (once a batch, vectorised) and `Assembler.fill_pictures` (a few samples at a
time) and `Assembler.extras` (sample by sample), from any thread: samples write to different rows.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.mixture.batch import BatchMemory
from wdsmix.mixture.catalog import Catalog, Layout, OpenSource
from wdsmix.mixture.decode import decode_frame, find_pictures, frame_bytes, reason
from wdsmix.mixture.goals import choose_goals
from wdsmix.mixture.needs import Needs
from wdsmix.mixture.waypoints import Waypoints
from wdsmix.mixture.windows import clamped_window
from wdsmix.shards.reader import ShardFile

__all__ = ["Assembler", "GoalFrames", "Hand", "Samples"]

Int64Array = npt.NDArray[np.int64]
Pixels = npt.NDArray[np.uint8]


@dataclass(slots=True)
class Hand:
    """What a thread is at."""

    stage: str = ""
    row: int = -1
    """Sample of the batch; -1: all of them."""


class _Spot(NamedTuple):
    """Which frame."""

    source: int
    shard: int
    row: int
    """In its shard."""
    episode: int
    frame: int


class _Frame(NamedTuple):
    """A frame whose pictures are found."""

    data: Pixels
    crc32c: int
    pictures: list[tuple[Pixels, Pixels, bool]]
    """Encoded bytes, row of the batch, whether they have its size."""
    spot: _Spot
    start: int
    """First byte in the tar."""


class _Part(NamedTuple):
    """A source's samples in one shard: places ``low`` to ``high`` among that source's."""

    shard: ShardFile
    low: int
    high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class GoalFrames:
    """Where the goals of a batch lie; all int64 [B] but ``negative``."""

    episode: Int64Array
    frame: Int64Array
    shard: Int64Array
    shard_row: Int64Array
    offset: Int64Array
    negative: npt.NDArray[np.bool_]

    def part(self, here: slice) -> GoalFrames:
        """Those of some of the samples."""
        return GoalFrames(**{name: getattr(self, name)[here] for name in self.__slots__})


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Where the frames of a batch lie."""

    source: Int64Array
    """int64 [B]."""
    row: Int64Array
    """int64 [B]: frame row in the source."""
    episode: Int64Array
    """int64 [B]: episode number in its set."""
    frame: Int64Array
    """int64 [B]: frame in its episode."""
    length: Int64Array
    """int64 [B]: frames of that episode."""
    shard: Int64Array
    """int64 [B]: shard in its set."""
    first_row: Int64Array
    """int64 [B]: shard row of the episode's first frame."""
    observed: Int64Array
    """int64 [B, T]: frames at the observation offsets, clamped."""
    observed_pad: npt.NDArray[np.bool_]
    """bool [B, T]: outside the episode."""
    acted: Int64Array
    """int64 [B, K]: frames of the action chunk, clamped."""
    acted_pad: npt.NDArray[np.bool_]
    """bool [B, K]: outside the episode."""
    goal: GoalFrames | None = None
    """Where goals are asked for."""
    needs: Needs | None = None
    """Where sets lie in stores."""
    files: dict[tuple[int, int], ShardFile] = field(default_factory=dict)
    """(source, shard) -> the shards that were opened for this batch; filled as it goes, from any thread."""

    def __len__(self) -> int:
        return len(self.source)

    def split(self, size: int) -> list[Samples]:
        """Parts of ``size`` samples each."""
        return [self._part(slice(first, first + size)) for first in range(0, len(self), size)]

    def _part(self, here: slice) -> Samples:
        return Samples(
            source=self.source[here],
            row=self.row[here],
            episode=self.episode[here],
            frame=self.frame[here],
            length=self.length[here],
            shard=self.shard[here],
            first_row=self.first_row[here],
            observed=self.observed[here],
            observed_pad=self.observed_pad[here],
            acted=self.acted[here],
            acted_pad=self.acted_pad[here],
            goal=None if self.goal is None else self.goal.part(here),
            needs=None if self.needs is None else self.needs.part(here),
        )


class Assembler:
    """Fills batches from the sets of a catalog. Read-only and safe to share between threads.

    Args:
        catalog: The opened mixture.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._sources = catalog.sources
        layout = self._layout = catalog.layout
        self._offsets = np.asarray(layout.offsets, dtype=np.int64)
        self._chunk = np.arange(layout.chunk, dtype=np.int64)
        self._normalizers = catalog.normalizers()
        self._embodiments = np.asarray([source.embodiment_id for source in self._sources], dtype=np.int64)
        size = (layout.width, layout.height)
        self._slots = [
            {
                source.members[slot].encode(): (place, size in source.sizes[slot])
                for place, slot in enumerate(layout.cameras)
                if slot in source.members
            }
            for source in self._sources
        ]

    @property
    def layout(self) -> Layout:
        """Shape of a sample."""
        return self._layout

    def locate(self, source: npt.NDArray[np.int32], row: Int64Array, draw: Int64Array) -> Samples:
        """Finds the frames of samples given as (source, row, draw) triples."""
        size = len(source)
        parts = {name: np.empty(size, dtype=np.int64) for name in ("episode", "frame", "length", "shard", "first_row")}
        goal = _no_goals(size) if self._layout.goal is not None else None
        for place in np.flatnonzero(np.bincount(source, minlength=1)).tolist():
            (mine,) = np.nonzero(source == place)
            opened = self._sources[place]
            at = np.searchsorted(opened.ends, row[mine], side="right")
            parts["episode"][mine] = opened.number[at]
            parts["frame"][mine] = row[mine] - (opened.ends[at] - opened.frames[at])
            parts["length"][mine] = opened.frames[at]
            parts["shard"][mine] = opened.shard[at]
            parts["first_row"][mine] = opened.first_row[at]
            if goal is not None:
                self._locate_goals(goal, opened, mine, row[mine], draw[mine])
        observed, observed_pad = clamped_window(parts["frame"], parts["length"], self._offsets)
        acted, acted_pad = clamped_window(parts["frame"], parts["length"], self._chunk)
        return Samples(
            source=source.astype(np.int64),
            row=row,
            observed=observed,
            observed_pad=observed_pad,
            acted=acted,
            acted_pad=acted_pad,
            goal=goal,
            needs=None,
            files={},
            **parts,
        )

    def _locate_goals(
        self, goal: GoalFrames, opened: OpenSource, mine: Int64Array, row: Int64Array, draw: Int64Array
    ) -> None:
        asked = self._layout.goal
        if asked is None:
            return
        chosen = choose_goals(
            seed=self._catalog.config.seed,
            name=opened.name,
            draw=draw,
            row=row,
            ends=opened.ends,
            lowest=asked.min_offset,
            highest=asked.max_offset,
            negative_fraction=asked.negative_goal_fraction,
            zero_is_negative=asked.zero_is_negative,
        )
        at = np.searchsorted(opened.ends, chosen.row, side="right")
        frame = chosen.row - (opened.ends[at] - opened.frames[at])
        goal.episode[mine], goal.frame[mine] = opened.number[at], frame
        goal.shard[mine], goal.shard_row[mine] = opened.shard[at], opened.first_row[at] + frame
        goal.offset[mine], goal.negative[mine] = chosen.offset, chosen.negative

    def fill_vectors(self, samples: Samples, memory: BatchMemory) -> list[str]:
        """Fills all arrays but the pictures; returns the task of each sample."""
        arrays = memory.arrays
        arrays["action_is_pad"][...] = samples.acted_pad
        arrays["observation_is_pad"][...] = samples.observed_pad
        arrays["embodiment_id"][...] = self._embodiments[samples.source]
        arrays["source_id"][...] = samples.source
        arrays["episode"][...] = samples.episode
        arrays["frame"][...] = samples.frame
        if samples.goal is not None:
            arrays["goal_offset"][...] = samples.goal.offset
            arrays["goal_negative"][...] = samples.goal.negative
        names = (*self._layout.dims, *self._layout.scalars)
        present = {name: np.zeros(len(samples), dtype=np.bool_) for name in names}
        for name in names:
            arrays[name].fill(0)
        tasks = [""] * len(samples)
        for source, where, parts in self._by_shard(samples):
            first = samples.first_row[where]
            rows = first[:, None] + samples.observed[where]
            for name in names:
                if name == "action" and source.waypoints is not None:
                    _fill_waypoints(parts, source.waypoints, samples, where, arrays, present[name])
                elif name in source.widths:
                    at = first[:, None] + samples.acted[where] if name == "action" else rows
                    _gather(parts, name, at, where, arrays[name], present[name])
            _name_tasks(parts, first + samples.frame[where], where.tolist(), tasks)
        for name, normalizer in self._normalizers.items():
            normalizer.apply(arrays[name], samples.source, present[name], arrays[f"{name}_mask"])
        for name in self._layout.scalars:
            arrays[f"{name}_mask"][...] = present[name]
        return tasks

    def fill_pictures(
        self, samples: Samples, memory: BatchMemory, rows: range, hand: Hand, failed: dict[int, BaseException]
    ) -> int:
        """Fills the pictures of a few samples.

        All frames are found first and decoded then: between two pictures the processor's caches hold little of the
        interpreter, so that what runs there should be short.

        Args:
            samples: Of a batch.
            memory: The batch.
            rows: Which of its samples.
            hand: Told what is being done.
            failed: Sample -> why it can't be read, filled: a `DataError` names source, set, shard, offset and key.

        Returns:
            Bytes of the frames.
        """
        hand.stage = "reading and decoding pictures"
        nbytes = 0
        found: list[tuple[int, list[_Frame], list[tuple[Pixels, Pixels]]]] = []
        here = slice(rows.start, rows.stop)
        places = (samples.source[here], samples.shard[here], samples.first_row[here], samples.episode[here])
        lists = (array.tolist() for array in (*places, samples.observed[here]))
        for b, source, shard, first_row, episode, observed in zip(rows, *lists, strict=True):
            hand.row = b
            try:
                spots = [_Spot(source, shard, first_row + frame, episode, frame) for frame in observed]
                frames, copies = self._find_frames(samples, memory, b, spots)
            except Exception as error:  # handed on
                failed[b] = error
                continue
            found.append((b, frames, copies))
        for b, frames, copies in found:
            hand.row = b
            try:
                for frame in frames:
                    nbytes += len(frame.data)
                    self._decode(frame)
                for target, origin in copies:
                    target[...] = origin
            except Exception as error:  # handed on
                failed[b] = error
        return nbytes

    def _decode(self, frame: _Frame) -> None:
        try:
            decode_frame(frame.data, frame.crc32c, frame.pictures, may_resize=self._layout.resizes)
        except DataError as error:
            raise self._fault(error, frame.spot, frame.start) from error

    def _find_frames(
        self, samples: Samples, memory: BatchMemory, b: int, spots: list[_Spot]
    ) -> tuple[list[_Frame], list[tuple[Pixels, Pixels]]]:
        """The frames that sample ``b`` is decoded from, and what is copied afterwards: (target, origin)."""
        frames: list[_Frame] = []
        copies: list[tuple[Pixels, Pixels]] = []
        targets, mask = memory.pictures[b], memory.arrays["image_mask"][b]
        last = -1
        for t, spot in enumerate(spots):
            if spot.row == last:  # clamped to the same frame as the one before
                copies.extend(zip(targets[t], targets[t - 1], strict=True))
                mask[t] = mask[t - 1]
                continue
            last = spot.row
            frames += self._find_frame(samples.files, spot, targets[t], mask[t])
        goal = samples.goal
        if goal is not None:
            spot = _Spot(
                spots[0].source, int(goal.shard[b]), int(goal.shard_row[b]), int(goal.episode[b]), int(goal.frame[b])
            )
            mask = memory.arrays["goal_image_mask"][b]
            frames += self._find_frame(samples.files, spot, memory.goal_pictures[b], mask)
        return frames, copies

    def _shard(self, files: dict[tuple[int, int], ShardFile], source: int, shard: int) -> ShardFile:
        found = files.get((source, shard))
        if found is None:
            found = files[source, shard] = self._sources[source].set.shard(shard)
        return found

    def _find_frame(
        self,
        files: dict[tuple[int, int], ShardFile],
        spot: _Spot,
        targets: list[Pixels],
        mask: npt.NDArray[np.bool_],
    ) -> list[_Frame]:
        """Finds the pictures of one frame; fills its mask [cams], and zeros for the cameras that it lacks."""
        slots = self._slots[spot.source]
        if not slots:
            for target in targets:
                target.fill(0)
            mask.fill(False)
            return []
        opened = self._shard(files, spot.source, spot.shard)
        row = spot.row
        start, length, crc32c = opened.offset.item(row), opened.length.item(row), opened.crc32c.item(row)
        opened.pages.touch(start, start + length)
        try:
            data = frame_bytes(opened.tar, start, length)
        except DataError as error:
            raise self._fault(error, spot, start) from error
        try:
            found = find_pictures(data, slots)
        except DataError as error:
            raise self._fault(reason(data, crc32c, error), spot, start) from error
        if len(found) == len(targets):
            mask.fill(True)
        else:
            there = {camera for camera, _, _ in found}
            for camera, target in enumerate(targets):
                mask[camera] = camera in there
                if camera not in there:
                    target.fill(0)
        pictures = [(encoded, targets[camera], right_size) for camera, right_size, encoded in found]
        return [_Frame(data, crc32c, pictures, spot, start)]

    def describe(self, samples: Samples, b: int) -> str:
        """Where sample ``b`` lies, in words."""
        opened = self._sources[int(samples.source[b])]
        shard = opened.set.manifest.shards[int(samples.shard[b])]
        return f"source {opened.name!r}, {opened.set.path / shard}.tar, episode {int(samples.episode[b])}"

    def extras(self, samples: Samples, b: int) -> dict[str, object]:
        """The asked facts of sample ``b``, from its own frame's json member; None where that lacks one.

        Raises:
            DataError: the frame is damaged.
        """
        out: dict[str, object] = dict.fromkeys(self._layout.extras)
        if not out:
            return out
        place, number = int(samples.source[b]), int(samples.shard[b])
        shard = self._sources[place].set.shard(number)
        row = int(samples.first_row[b] + samples.frame[b])
        try:
            members = shard.members(row)
            facts = json.loads(members["json"].tobytes()) if "json" in members else {}
        except (DataError, ValueError, RecursionError) as error:
            fault = error if isinstance(error, DataError) else DataError("the json member is not JSON", found=error)
            spot = _Spot(place, number, row, int(samples.episode[b]), int(samples.frame[b]))
            raise self._fault(fault, spot, int(shard.offset[row])) from error
        if isinstance(facts, dict):
            out.update((name, facts[name]) for name in out if name in facts)
        return out

    def _by_shard(self, samples: Samples) -> Iterator[tuple[OpenSource, Int64Array, list[_Part]]]:
        """For each source: places in the batch (int64 [n]), those in one shard side by side, and the shards."""
        key = samples.source << 32 | samples.shard
        order = np.argsort(key, kind="stable")
        key = key[order]
        edges = [0, *(np.flatnonzero(key[1:] != key[:-1]) + 1).tolist(), len(key)]
        runs = [(int(key[low]), low, high) for low, high in itertools.pairwise(edges)]
        for number, group in itertools.groupby(runs, key=lambda run: run[0] >> 32):
            mine, source = list(group), self._sources[number]
            first = mine[0][1]
            parts = [
                _Part(self._shard(samples.files, number, run & 0xFFFFFFFF), low - first, high - first)
                for run, low, high in mine
            ]
            yield source, order[first : mine[-1][2]], parts

    def _fault(self, error: DataError, spot: _Spot, start: int) -> DataError:
        opened = self._sources[spot.source]
        parts = (
            f"source {opened.name!r}, set {opened.set.manifest.name!r}, byte {start}",
            f"key {spot.episode:06d}_{spot.frame:06d}",
            error.where,
        )
        return DataError(
            error.message,
            path=opened.set.path / f"{opened.set.manifest.shards[spot.shard]}.tar",
            where=", ".join(part for part in parts if part),
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        )


def _no_goals(size: int) -> GoalFrames:
    names = ("episode", "frame", "shard", "shard_row", "offset")
    return GoalFrames(
        negative=np.zeros(size, dtype=np.bool_), **{name: np.zeros(size, dtype=np.int64) for name in names}
    )


def _fill_waypoints(
    parts: list[_Part],
    way: Waypoints,
    samples: Samples,
    where: Int64Array,
    arrays: dict[str, npt.NDArray[Any]],
    present: npt.NDArray[np.bool_],
) -> None:
    """Makes the waypoints of one source's samples, and marks those behind the end of their episode."""
    first, frame, length = samples.first_row[where], samples.frame[where], samples.length[where]
    arrays["action_is_pad"][where] = way.padding(frame, length)
    for shard, low, high in parts:
        here = slice(low, high)
        made = way.of(shard.vectors["action"], first[here], frame[here], length[here])
        arrays["action"][where[here], :, : way.width] = made
        present[where[here]] = shard.present["action"][first[here] + frame[here]]


def _gather(
    parts: list[_Part],
    name: str,
    rows: Int64Array,
    where: Int64Array,
    out: npt.NDArray[np.float32],
    present: npt.NDArray[np.bool_],
) -> None:
    """Copies rows [n, T] of a vector of one source's shards to places of the batch."""
    width = parts[0].shard.vectors[name].shape[-1]
    values = np.empty((*rows.shape, width), dtype=np.float32)
    complete = True
    for shard, low, high in parts:
        shard.vectors[name].take(rows[low:high], axis=0, out=values[low:high], mode="clip")
        complete = complete and name in shard.complete
    if out.ndim == 2:  # reward, done
        out[where] = values[..., 0]
    else:
        out[where, :, :width] = values
    present[where] = True
    if not complete:
        for shard, low, high in parts:
            present[where[low:high]] = shard.present[name][rows[low:high]].all(axis=1)


def _name_tasks(parts: list[_Part], rows: Int64Array, where: list[int], tasks: list[str]) -> None:
    """Writes the task of each sample of one source to its place in the batch."""
    for shard, low, high in parts:
        if len(shard.tasks) == 1:
            task = shard.tasks[0]
            for b in where[low:high]:
                tasks[b] = task
        else:
            for b, code in zip(where[low:high], shard.task[rows[low:high]].tolist(), strict=True):
                tasks[b] = shard.tasks[code]
