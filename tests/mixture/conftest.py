from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from helpers.mixtures import make_set


def _halves(number: int, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Every third episode lacks the text embedding."""
    return {name: rows for name, rows in vectors.items() if name != "text_emb" or number % 3}


@pytest.fixture(scope="session")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets that differ in everything a mixture can bring together; pictures of one size."""
    folder = tmp_path_factory.mktemp("sets")
    make_set(
        folder / "lift",
        episodes=[9, 4, 1, 12, 6, 7],
        dims={"state": 7, "action": 5, "reward": 1, "done": 1, "text_emb": 6},
        cameras=["cam0", "cam1"],
        size=(20, 16),
        embodiment="panda",
        splits=["train", "train", "val", "train", "train", "val"],
        change=_halves,
        extras={"score": 3, "task_zh": "抓"},
    )
    make_set(
        folder / "chunks",
        episodes=[5, 8, 3],
        dims={"state": 14, "action": 14},
        cameras=["cam0"],
        size=(20, 16),
        embodiment="dual_arm",
        episodes_per_shard=1,
        numbers=[2, 3, 9],
        lacks_camera=lambda slot, episode, frame: episode == 3 and frame % 2 == 1,
        tasks=["fold"],
    )
    return folder


@pytest.fixture
def mixture(sets: Path) -> dict:
    return {
        "seed": 3,
        "embodiments": {"panda": 5, "dual_arm": 2},
        "sources": [
            {"name": "lift", "shards": str(sets / "lift"), "weight": 0.7},
            {"name": "chunks", "shards": str(sets / "chunks"), "weight": 0.3},
        ],
        "sample": {"cameras": ["cam0", "cam1"], "pad_to": {"state": 16, "action": 16}},
        "streams": 4,
        "window": 16,
        "block_bytes": 4000,
    }
