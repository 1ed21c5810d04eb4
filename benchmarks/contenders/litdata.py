"""litdata: CombinedStreamingDataset over optimised chunks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from litdata import CombinedStreamingDataset, StreamingDataLoader, StreamingDataset, optimize

from benchmarks.contenders.common import collate_tuned, documented, raw_samples
from benchmarks.settings import BATCH, Contender
from benchmarks.store import SOURCES, Store

__all__ = ["batches", "write"]

_REPEATS = 8


def _samples(number: int, store: Path) -> Iterator[dict[str, Any]]:
    yield from raw_samples(Store(store).sources[number], number)


def write(store: Store, folder: Path) -> None:
    """Chunks of 64 MB a source, in ``folder/<source>``."""
    for number, frames in enumerate(store.sources):
        inside = folder / frames.source.name
        optimize(
            fn=partial(_samples, store=store.folder),
            inputs=[number],
            output_dir=str(inside),
            chunk_bytes="64MB",
            num_workers=1,
        )
        _repeat(inside)


def _repeat(folder: Path) -> None:
    """Makes the source longer by hard links, for the combined dataset stops when the first source ends."""
    index = json.loads((folder / "index.json").read_text())
    once = list(index["chunks"])
    for turn in range(1, _REPEATS):
        for chunk in once:
            name = f"again{turn}-{chunk['filename']}"
            (folder / name).hardlink_to(folder / chunk["filename"])
            index["chunks"].append({**chunk, "filename": name})
    (folder / "index.json").write_text(json.dumps(index))


class _Documented(StreamingDataset):
    def __getitem__(self, index: Any) -> dict[str, Any]:
        return documented(super().__getitem__(index))


def batches(contender: Contender, folder: Path) -> Iterable[dict[str, Any]]:
    """As documented: decode in __getitem__, default_collate; tuned: bytes up to the collate function."""
    kind = _Documented if contender.form == "docs" else StreamingDataset
    parts = [kind(str(folder / source.name), shuffle=True, seed=contender.seed) for source in SOURCES]
    mix = CombinedStreamingDataset(
        parts, seed=contender.seed, weights=[source.weight for source in SOURCES], iterate_over_all=False
    )
    collate = {} if contender.form == "docs" else {"collate_fn": collate_tuned}
    return StreamingDataLoader(mix, batch_size=BATCH, num_workers=contender.workers, **collate)
