"""Hugging Face datasets: streaming, interleaved parquet."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, Features, Image, List, Value, interleave_datasets, load_dataset
from torch.utils.data import DataLoader

from benchmarks.contenders.common import collate_tuned, documented, raw_samples
from benchmarks.settings import BATCH, Contender
from benchmarks.store import CAMERAS, PAD, SOURCES, Store

__all__ = ["batches", "write"]

_ROWS_A_FILE = 500


def _features() -> Features:
    return Features(
        {
            "cam0": Image(),
            "cam1": Image(),
            # The sources' widths differ, and interleaving wants equal features: lists of any length.
            "state": List(Value("float32")),
            "action": List(Value("float32")),
            "task": Value("string"),
            "source": Value("int64"),
            "row": Value("int64"),
        }
    )


def write(store: Store, folder: Path) -> None:
    """Parquet files of 500 rows in ``folder/<source>``, pictures as Image features."""
    for number, frames in enumerate(store.sources):
        inside = folder / frames.source.name
        inside.mkdir()
        rows = raw_samples(frames, number)
        for part in itertools.count():
            some = [
                {**raw, **{camera: {"bytes": raw[camera], "path": None} for camera in CAMERAS}}
                for raw in itertools.islice(rows, _ROWS_A_FILE)
            ]
            if not some:
                break
            Dataset.from_list(some, features=_features()).to_parquet(inside / f"part-{part:05d}.parquet")


def _collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return collate_tuned(
        [
            {
                **row,
                **{camera: row[camera]["bytes"] for camera in CAMERAS},
                **{name: np.asarray(row[name], np.float32)[:PAD] for name in ("state", "action")},
            }
            for row in rows
        ]
    )


def batches(contender: Contender, folder: Path) -> Iterable[dict[str, Any]]:
    """As documented: Image features (Pillow), map; tuned: Image(decode=False) and a collate function."""
    parts = []
    for source in SOURCES:
        part = load_dataset(
            "parquet",
            data_files=sorted(str(path) for path in (folder / source.name).glob("*.parquet")),
            split="train",
            streaming=True,
            features=_features(),
        )
        if contender.form == "tuned":
            for camera in CAMERAS:
                part = part.cast_column(camera, Image(decode=False))
        parts.append(part.repeat(None).shuffle(seed=contender.seed, buffer_size=1000))
    mix = interleave_datasets(
        parts,
        probabilities=[source.weight for source in SOURCES],
        seed=contender.seed,
        stopping_strategy="all_exhausted",
    )
    if contender.form == "docs":
        return DataLoader(
            mix.map(documented, remove_columns=list(CAMERAS)), batch_size=BATCH, num_workers=contender.workers
        )
    return DataLoader(mix, batch_size=BATCH, num_workers=contender.workers, collate_fn=_collate)
