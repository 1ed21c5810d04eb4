"""Small training runs for tests: a mixture of two robots, and ways to run and compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from helpers.mixtures import make_set

from wdsmix.mixture.config import MixtureConfig
from wdsmix.training.config import checked
from wdsmix.training.distributed import Group
from wdsmix.training.trainer import Trainer

ALONE = Group(rank=0, world=1, device=torch.device("cpu"))
SMALL: dict[str, Any] = {
    "policy": "bc",
    "batch_size": 4,
    "lr": 1e-3,
    "eval_every": 0,
    "checkpoint_every": 0,
    "log_every": 1,
    "threads": 1,
    "options": {"width": 16, "dropout": 0.1},
    "augment": {},
}


def write_sets(folder: Path) -> Path:
    """Two sets with a held-out split each; returns the mixture.yaml beside them."""
    make_set(
        folder / "arm",
        episodes=[9, 6, 12, 7],
        dims={"state": 4, "action": 3},
        splits=["train", "train", "train", "val"],
        size=(16, 16),
        embodiment="arm",
        tasks=["reach"],
    )
    make_set(
        folder / "hand",
        episodes=[8, 10, 5],
        dims={"state": 6, "action": 5},
        splits=["train", "train", "val"],
        size=(16, 16),
        embodiment="hand",
        tasks=["grasp"],
    )
    path = folder / "mixture.yaml"
    path.write_text(
        """
embodiments: {arm: 0, hand: 1}
sources:
  - {name: arm, shards: arm, weight: 0.6}
  - {name: hand, shards: hand, weight: 0.4}
sample:
  cameras: [cam0]
  action_chunk: 3
  pad_to: {state: 8, action: 8}
  normalize: {state: mean_std, action: q01_q99}
window: 16
block_bytes: 4000
"""
    )
    return path


def trainer(mixture: MixtureConfig, out: Path, group: Group = ALONE, start: Any = None, **changes: Any) -> Trainer:
    """A trainer with the small keys and some of one's own."""
    return Trainer(checked({**SMALL, **changes}), mixture, out, group, start, quiet=True)


def rows(batch: dict[str, Any]) -> list[tuple[int, int, int]]:
    """(source, episode, frame) of each sample."""
    return list(zip(*(batch[key].tolist() for key in ("source_id", "episode", "frame")), strict=True))


def differences(a: Any, b: Any, place: str = "") -> list[str]:
    """Where two checkpoints differ in a bit."""
    if type(a) is not type(b):
        return [f"{place}: {type(a)} and {type(b)}"]
    if isinstance(a, torch.Tensor):
        same = a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a.numpy(), b.numpy(), equal_nan=True)
        return [] if same else [place]
    if isinstance(a, dict):
        if list(a) != list(b):
            return [f"{place}: {list(a)} and {list(b)}"]
        return [found for key in a for found in differences(a[key], b[key], f"{place}.{key}")]
    if isinstance(a, list | tuple):
        if len(a) != len(b):
            return [place]
        return [found for k in range(len(a)) for found in differences(a[k], b[k], f"{place}[{k}]")]
    return [] if a == b else [f"{place}: {a} and {b}"]
