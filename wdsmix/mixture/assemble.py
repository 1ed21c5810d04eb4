"""Assembler: from a rank's samples of a step to the arrays of its batch.

Three parts, so that a loader can run them where and when it likes: `Assembler.locate` (arithmetic on the indexes, no
shard touched), `Assembler.fill_vectors` (once a batch, vectorised) and `Assembler.fill_pictures` and
`Assembler.extras` (sample by sample, from any thread: samples write to different rows).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.mixture.batch import BatchMemory
from wdsmix.mixture.catalog import Catalog, Layout, OpenSource
from wdsmix.mixture.decode import check_frame, decode_frame
from wdsmix.mixture.goals import choose_goals
from wdsmix.mixture.waypoints import Waypoints
from wdsmix.mixture.windows import clamped_window
from wdsmix.shards.reader import ShardFile

__all__ = ["Assembler", "GoalFrames", "Samples"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class GoalFrames:
    """Where the goals of a batch lie; all int64 [B] but ``negative``."""

    episode: Int64Array
    frame: Int64Array
    shard: Int64Array
    shard_row: Int64Array
    offset: Int64Array
    negative: npt.NDArray[np.bool_]


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
    files: dict[tuple[int, int], ShardFile] = field(default_factory=dict)
    """(source, shard) -> the shards that were opened for this batch; filled as it goes, from any thread."""

    def __len__(self) -> int:
        return len(self.source)


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
                source.members[slot]: (place, size in source.sizes[slot])
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
        for place in np.unique(source).tolist():
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

    def fill_vectors(self, samples: Samples, memory: BatchMemory) -> tuple[list[str], int]:
        """Fills all arrays but the pictures; returns the task of each sample, and the bytes of their frames."""
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
            arrays[name][...] = 0
        tasks = [""] * len(samples)
        nbytes = 0
        for where, shard in self._by_shard(samples):
            first = samples.first_row[where, None]
            observed, acted = first + samples.observed[where], first + samples.acted[where]
            way = self._sources[int(samples.source[where[0]])].waypoints
            for name in names:
                if name == "action" and way is not None:
                    _fill_waypoints(shard, way, samples, where, arrays, present[name])
                elif name in shard.vectors:
                    rows = acted if name == "action" else observed
                    _gather(shard, name, rows, where, arrays[name], present[name])
            nbytes += int(shard.length.take(observed).sum(dtype=np.int64))
            if len(shard.tasks) == 1:
                for b in where.tolist():
                    tasks[b] = shard.tasks[0]
                continue
            codes = shard.task[first[:, 0] + samples.frame[where]]
            for b, code in zip(where.tolist(), codes.tolist(), strict=True):
                tasks[b] = shard.tasks[code]
        for name, normalizer in self._normalizers.items():
            normalizer.apply(arrays[name], samples.source, present[name], arrays[f"{name}_mask"])
        for name in self._layout.scalars:
            arrays[f"{name}_mask"][...] = present[name]
        return tasks, nbytes

    def fill_pictures(self, samples: Samples, memory: BatchMemory, b: int) -> None:
        """Fills the pictures of sample ``b``.

        Raises:
            DataError: a frame is damaged or does not decode; names source, set, shard, offset and key.
        """
        images, mask = memory.arrays["images"][b], memory.arrays["image_mask"][b]
        place, shard, first_row = int(samples.source[b]), int(samples.shard[b]), int(samples.first_row[b])
        episode = int(samples.episode[b])
        last = -1
        for t, frame in enumerate(samples.observed[b].tolist()):
            if frame == last:  # clamped to the same frame as the one before
                images[t], mask[t] = images[t - 1], mask[t - 1]
                continue
            last = frame
            self._fill_frame(samples.files, place, shard, first_row + frame, (episode, frame), images[t], mask[t])
        goal = samples.goal
        if goal is not None:
            images, mask = memory.arrays["goal_images"][b], memory.arrays["goal_image_mask"][b]
            key = (int(goal.episode[b]), int(goal.frame[b]))
            self._fill_frame(samples.files, place, int(goal.shard[b]), int(goal.shard_row[b]), key, images, mask)

    def _fill_frame(
        self,
        files: dict[tuple[int, int], ShardFile],
        place: int,
        shard: int,
        row: int,
        key: tuple[int, int],
        images: npt.NDArray[np.uint8],
        mask: npt.NDArray[np.bool_],
    ) -> None:
        """Checks and decodes one frame into [cams, H, W, 3] and [cams]."""
        slots = self._slots[place]
        if not slots:
            images[...] = 0
            mask[...] = False
            return
        opened = files.get((place, shard))
        if opened is None:
            opened = files[place, shard] = self._sources[place].set.shard(shard)
        start, length = int(opened.offset[row]), int(opened.length[row])
        opened.pages.touch(start, start + length)
        try:
            frame = check_frame(opened.tar, start, length, int(opened.crc32c[row]))
            decode_frame(frame, slots, images, mask, may_resize=self._layout.resizes)
        except DataError as error:
            raise self._fault(error, place, shard, key, start) from error

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
            key = (int(samples.episode[b]), int(samples.frame[b]))
            raise self._fault(fault, place, number, key, int(shard.offset[row])) from error
        if isinstance(facts, dict):
            out.update((name, facts[name]) for name in out if name in facts)
        return out

    def _by_shard(self, samples: Samples) -> Iterator[tuple[Int64Array, ShardFile]]:
        """Places in the batch (int64 [n]) and shard, for each shard that the batch touches."""
        key = samples.source << 32 | samples.shard
        order = np.argsort(key, kind="stable")
        edges = np.flatnonzero(np.diff(key[order])) + 1
        for where in np.split(order, edges):
            if len(where):
                first = where[0]
                yield where, self._sources[int(samples.source[first])].set.shard(int(samples.shard[first]))

    def _fault(self, error: DataError, place: int, shard: int, key: tuple[int, int], start: int) -> DataError:
        opened = self._sources[place]
        parts = (
            f"source {opened.name!r}, set {opened.set.manifest.name!r}, byte {start}",
            f"key {key[0]:06d}_{key[1]:06d}",
            error.where,
        )
        return DataError(
            error.message,
            path=opened.set.path / f"{opened.set.manifest.shards[shard]}.tar",
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
    shard: ShardFile,
    way: Waypoints,
    samples: Samples,
    where: Int64Array,
    arrays: dict[str, npt.NDArray[Any]],
    present: npt.NDArray[np.bool_],
) -> None:
    """Makes the waypoints of one source's samples, and marks those behind the end of their episode."""
    first, frame, length = samples.first_row[where], samples.frame[where], samples.length[where]
    made = way.of(shard.vectors["action"], first, frame, length)
    arrays["action"][where, :, : way.width] = made
    arrays["action_is_pad"][where] = way.padding(frame, length)
    present[where] = shard.present["action"][first + frame]


def _gather(
    shard: ShardFile,
    name: str,
    rows: Int64Array,
    where: Int64Array,
    out: npt.NDArray[np.float32],
    present: npt.NDArray[np.bool_],
) -> None:
    """Copies rows [n, T] of a shard's vector to places of the batch."""
    values = shard.vectors[name].take(rows, axis=0)
    if out.ndim == 2:  # reward, done
        out[where] = values[..., 0]
    else:
        out[where, :, : values.shape[-1]] = values
    present[where] = name in shard.complete or shard.present[name][rows].all(axis=1)
