"""webdataset: a mixture as the source of a DataPipeline, and a set's tars as a plain WebDataset.

``python examples/webdataset_pipeline.py demo-out/mixture.yaml demo-out/sets/lift``
"""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import webdataset
from torch.utils.data import DataLoader

from wdsmix import MixtureDataset, ShardSet


def halve(batch: dict[str, Any]) -> dict[str, Any]:
    """A stage over whole batches; runs in the workers. What is replaced travels as it is, the rest stays shared."""
    batch["images"] = batch["images"][..., ::2, ::2].contiguous()
    return batch


def main() -> None:
    """Shows a few batches and samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mixture", type=Path)
    parser.add_argument("set", type=Path)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()

    pipeline = webdataset.DataPipeline(MixtureDataset(args.mixture, 8), webdataset.map(halve))
    for batch in islice(DataLoader(pipeline, batch_size=None, num_workers=args.workers), args.steps):
        sys.stdout.write(f"step {batch['step']}: images {tuple(batch['images'].shape)}, {batch['task'][0]!r}\n")

    stock = ShardSet(args.set).webdataset("train", shardshuffle=100).shuffle(100).decode("torchrgb8")
    for sample in islice(stock, args.steps):
        members = sorted(name for name in sample if not name.startswith("__"))
        sys.stdout.write(f"{sample['__key__']}: {', '.join(members)}\n")


if __name__ == "__main__":
    main()
