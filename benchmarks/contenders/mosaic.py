"""mosaicml-streaming: streams with proportions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from streaming import MDSWriter, Stream, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from benchmarks.contenders.common import collate_tuned, documented, raw_samples
from benchmarks.settings import BATCH, Contender
from benchmarks.store import SOURCES, Store

__all__ = ["batches", "write"]

_EPOCH = 60_000
_COLUMNS = {
    "cam0": "bytes",
    "cam1": "bytes",
    "state": "ndarray:float32",
    "action": "ndarray:float32",
    "task": "str",
    "source": "int",
    "row": "int",
}


def write(store: Store, folder: Path) -> None:
    """One MDS folder a source; pictures as bytes, for the ``jpeg`` column would encode them anew."""
    for number, frames in enumerate(store.sources):
        with MDSWriter(out=str(folder / frames.source.name), columns=_COLUMNS) as writer:
            for raw in raw_samples(frames, number):
                writer.write(raw)


class _Documented(StreamingDataset):
    def __getitem__(self, at: int) -> dict[str, Any]:
        return documented(super().__getitem__(at))


def batches(contender: Contender, folder: Path) -> Iterable[dict[str, Any]]:
    """As documented: decode in __getitem__, default_collate; tuned: bytes up to the collate function."""
    clean_stale_shared_memory()  # what an earlier measurement left
    kind = _Documented if contender.form == "docs" else StreamingDataset
    dataset = kind(
        streams=[Stream(local=str(folder / source.name), proportion=source.weight) for source in SOURCES],
        epoch_size=_EPOCH,
        shuffle=True,
        shuffle_seed=contender.seed,
        batch_size=BATCH,
    )
    collate = {} if contender.form == "docs" else {"collate_fn": collate_tuned}
    return DataLoader(dataset, batch_size=BATCH, num_workers=contender.workers, **collate)
