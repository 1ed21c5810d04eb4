"""webdataset: RandomMix of resampled, shuffled shards."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import webdataset as wds

from benchmarks.contenders.common import collate_tuned, documented, raw_samples
from benchmarks.settings import BATCH, Contender
from benchmarks.store import CAMERAS, SOURCES, Store

__all__ = ["batches", "write", "write_tars"]

SAMPLES_A_TAR = 500


def write_tars(store: Store, folder: Path) -> None:
    """Tars of 500 samples in ``folder/<source>``, as TarWriter writes them."""
    for number, frames in enumerate(store.sources):
        inside = folder / frames.source.name
        inside.mkdir()
        tar = None
        for raw in raw_samples(frames, number):
            shard, place = divmod(raw["row"], SAMPLES_A_TAR)
            if place == 0:
                if tar is not None:
                    tar.close()
                tar = wds.TarWriter(str(inside / f"{frames.source.name}-{shard:05d}.tar"))
            tar.write(
                {
                    "__key__": f"{frames.source.name}-{raw['row']:06d}",
                    **{f"{camera}.jpg": raw[camera] for camera in CAMERAS},
                    "state.npy": raw["state"],
                    "action.npy": raw["action"],
                    "json": {name: raw[name] for name in ("task", "source", "row")},
                }
            )
        tar.close()


write = write_tars


def raw_of(sample: dict[str, Any]) -> dict[str, Any]:
    """From members that are still bytes."""
    facts = json.loads(sample["json"])
    return {
        **{camera: sample[f"{camera}.jpg"] for camera in CAMERAS},
        **{name: np.load(io.BytesIO(sample[f"{name}.npy"])) for name in ("state", "action")},
        **facts,
    }


def _decoded(sample: dict[str, Any]) -> dict[str, Any]:
    return documented(
        {
            **{camera: sample[f"{camera}.jpg"] for camera in CAMERAS},
            **{name: sample[f"{name}.npy"] for name in ("state", "action")},
            **sample["json"],
        }
    )


def batches(contender: Contender, folder: Path) -> Iterable[dict[str, Any]]:
    """As documented: decode("rgb8") (Pillow) and default_collate; tuned: bytes up to the collate function."""
    parts = []
    for source in SOURCES:
        tars = sorted(str(path) for path in (folder / source.name).glob("*.tar"))
        part = wds.WebDataset(tars, resampled=True, seed=contender.seed).shuffle(1000)
        parts.append(part.decode("rgb8").map(_decoded) if contender.form == "docs" else part.map(raw_of))
    mix = wds.RandomMix(parts, [source.weight for source in SOURCES])
    collate = {} if contender.form == "docs" else {"collate_fn": collate_tuned}
    return wds.WebLoader(mix, batch_size=BATCH, num_workers=contender.workers, **collate)
