"""Assembler: from a rank's samples of a step to the arrays of its batch.

Three parts, so that a loader can run them where and when it likes: `Assembler.locate` (arithmetic on the indexes, no
shard touched), `Assembler.fill_vectors` (once a batch, vectorised) and `Assembler.fill_pictures` (sample by sample,
from any thread: samples write to different rows).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.mixture.batch import BatchMemory
from wdsmix.mixture.catalog import Catalog
from wdsmix.mixture.decode import check_frame, decode_frame
from wdsmix.mixture.windows import clamped_window
from wdsmix.shards.reader import ShardFile

__all__ = ["Assembler", "Samples"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """Where the frames of a batch lie."""

    source: Int64Array
    """int64 [B]."""
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

    def locate(self, source: npt.NDArray[np.int32], row: Int64Array) -> Samples:
        """Finds the frames of samples given as (source, row) pairs."""
        size = len(source)
        parts = {name: np.empty(size, dtype=np.int64) for name in ("episode", "frame", "length", "shard", "first_row")}
        for place in np.unique(source).tolist():
            (mine,) = np.nonzero(source == place)
            opened = self._sources[place]
            at = np.searchsorted(opened.ends, row[mine], side="right")
            parts["episode"][mine] = opened.number[at]
            parts["frame"][mine] = row[mine] - (opened.ends[at] - opened.frames[at])
            parts["length"][mine] = opened.frames[at]
            parts["shard"][mine] = opened.shard[at]
            parts["first_row"][mine] = opened.first_row[at]
        observed, observed_pad = clamped_window(parts["frame"], parts["length"], self._offsets)
        acted, acted_pad = clamped_window(parts["frame"], parts["length"], self._chunk)
        return Samples(
            source=source.astype(np.int64),
            observed=observed,
            observed_pad=observed_pad,
            acted=acted,
            acted_pad=acted_pad,
            **parts,
        )

    def fill_vectors(self, samples: Samples, memory: BatchMemory) -> list[str]:
        """Fills all arrays but the pictures; returns the task of each sample."""
        arrays = memory.arrays
        arrays["action_is_pad"][...] = samples.acted_pad
        arrays["observation_is_pad"][...] = samples.observed_pad
        arrays["embodiment_id"][...] = self._embodiments[samples.source]
        arrays["source_id"][...] = samples.source
        arrays["episode"][...] = samples.episode
        arrays["frame"][...] = samples.frame
        names = (*self._layout.dims, *self._layout.scalars)
        present = {name: np.zeros(len(samples), dtype=np.bool_) for name in names}
        for name in names:
            arrays[name][...] = 0
        tasks = [""] * len(samples)
        for where, shard in self._by_shard(samples):
            first = samples.first_row[where, None]
            observed, acted = first + samples.observed[where], first + samples.acted[where]
            for name in names:
                if name in shard.vectors:
                    rows = acted if name == "action" else observed
                    _gather(shard, name, rows, where, arrays[name], present[name])
            codes = shard.task[first[:, 0] + samples.frame[where]]
            for b, code in zip(where.tolist(), codes.tolist(), strict=True):
                tasks[b] = shard.tasks[code]
        for name, normalizer in self._normalizers.items():
            normalizer.apply(arrays[name], samples.source, present[name], arrays[f"{name}_mask"])
        for name in self._layout.scalars:
            arrays[f"{name}_mask"][...] = present[name]
        return tasks

    def fill_pictures(self, samples: Samples, memory: BatchMemory, b: int) -> None:
        """Fills the pictures of sample ``b``.

        Raises:
            DataError: a frame is damaged or does not decode; names source, set, shard, offset and key.
        """
        images, mask = memory.arrays["images"][b], memory.arrays["image_mask"][b]
        place = int(samples.source[b])
        slots = self._slots[place]
        if not slots:
            images[...] = 0
            mask[...] = False
            return
        shard = self._sources[place].set.shard(int(samples.shard[b]))
        last = -1
        for t, frame in enumerate(samples.observed[b].tolist()):
            if frame == last:  # clamped to the same frame as the one before
                images[t], mask[t] = images[t - 1], mask[t - 1]
                continue
            last = frame
            row = int(samples.first_row[b]) + frame
            start, length, crc32c = int(shard.offset[row]), int(shard.length[row]), int(shard.crc32c[row])
            try:
                check_frame(shard.tar, start, length, crc32c)
                decode_frame(shard.tar, start, length, slots, images[t], mask[t], may_resize=self._layout.resizes)
            except DataError as error:
                raise self._fault(error, samples, b, frame, start) from error

    def extras(self, samples: Samples) -> dict[str, list[object]]:
        """The asked facts of each sample's own frame, from its json member; None where it has none."""
        out: dict[str, list[object]] = {name: [None] * len(samples) for name in self._layout.extras}
        if not out:
            return out
        for b in range(len(samples)):
            opened = self._sources[int(samples.source[b])].set
            row = int(samples.first_row[b] + samples.frame[b])
            members = opened.shard(int(samples.shard[b])).members(row)
            if "json" not in members:
                continue
            try:
                facts = json.loads(bytes(members["json"]))
            except ValueError as error:
                fault = DataError("the json member is not JSON", found=str(error))
                raise self._fault(fault, samples, b, int(samples.frame[b]), 0) from error
            for name, values in out.items():
                values[b] = facts.get(name) if isinstance(facts, dict) else None
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

    def _fault(self, error: DataError, samples: Samples, b: int, frame: int, start: int) -> DataError:
        opened = self._sources[int(samples.source[b])]
        shard = opened.set.manifest.shards[int(samples.shard[b])]
        place = f"source {opened.name!r}, set {opened.set.manifest.name!r}, byte {start}"
        key = f"key {int(samples.episode[b]):06d}_{frame:06d}"
        return DataError(
            error.message,
            path=opened.set.path / f"{shard}.tar",
            where=", ".join(part for part in (place, key, error.where) if part),
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        )


def _gather(
    shard: ShardFile,
    name: str,
    rows: Int64Array,
    where: Int64Array,
    out: npt.NDArray[np.float32],
    present: npt.NDArray[np.bool_],
) -> None:
    """Copies rows [n, T] of a shard's vector to places of the batch."""
    values = shard.vectors[name][rows]
    if out.ndim == 2:  # reward, done
        out[where] = values[..., 0]
    else:
        out[where, :, : values.shape[-1]] = values
    present[where] = shard.present[name][rows].all(axis=1)
