"""wdsmix over the sets that `benchmarks.s3` makes, in the folder or below the URL that ``BENCH_PLACE`` names."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.contenders.wdsmix import loader, mixture
from benchmarks.contenders.wdsmix import view as plain_view
from benchmarks.settings import Contender
from benchmarks.store import Store

__all__ = ["OPTIONS", "batches", "view"]

OPTIONS = {"window": 2048, "cache_limit": "2GB"}
"""Of local sets and those in the store alike: so the cache turns over within the measurement, as it does in a long job
on sets that the disk does not hold. A cache that only grows measures how the machine gives memory to the page cache."""


def batches(contender: Contender, _: Path) -> Iterable[dict[str, Any]]:
    """The batches as a user gets them."""
    return loader(contender, {**mixture(contender, os.environ["BENCH_PLACE"]), **OPTIONS})


def view(batch: dict[str, Any], store: Store) -> dict[str, Any]:
    """As for local sets; these hold every episode several times."""
    counts = [len(frames.lengths) for frames in store.sources]
    episode = batch["episode"].clone()
    for number, count in enumerate(counts):
        mine = batch["source_id"] == number
        episode[mine] %= count
    return plain_view({**batch, "episode": episode}, store)
