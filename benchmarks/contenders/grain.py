"""grain: MapDataset.mix over ArrayRecord files."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grain
from array_record.python.array_record_module import ArrayRecordWriter

from benchmarks.contenders.common import collate_arrays, documented, raw_samples
from benchmarks.settings import BATCH, Contender
from benchmarks.store import SOURCES, Store

__all__ = ["batches", "write"]


def write(store: Store, folder: Path) -> None:
    """One ArrayRecord file a source, a pickled dict a record."""
    for number, frames in enumerate(store.sources):
        writer = ArrayRecordWriter(str(folder / f"{frames.source.name}.array_record"), "group_size:1,uncompressed")
        for raw in raw_samples(frames, number):
            writer.write(pickle.dumps(raw, protocol=pickle.HIGHEST_PROTOCOL))
        writer.close()


def batches(contender: Contender, folder: Path) -> Iterable[dict[str, Any]]:
    """As documented: map a decode, batch; tuned: bytes up to the batch function."""
    parts = []
    for source in SOURCES:
        records = grain.sources.ArrayRecordDataSource(str(folder / f"{source.name}.array_record"))
        part = grain.MapDataset.source(records).seed(contender.seed).shuffle().repeat().map(pickle.loads)
        parts.append(part.map(documented) if contender.form == "docs" else part)
    mix = grain.MapDataset.mix(parts, weights=[source.weight for source in SOURCES])
    if contender.form == "docs":
        stream = mix.to_iter_dataset().batch(BATCH)
    else:
        # Read options count elements of the last stage, which are batches here.
        one = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)
        stream = mix.batch(BATCH, batch_fn=collate_arrays).to_iter_dataset(one)
    if contender.workers:
        stream = stream.mp_prefetch(grain.MultiprocessingOptions(num_workers=contender.workers))
    return stream
