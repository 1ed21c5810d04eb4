from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np

from wdsmix.mixture.assemble import _gather, _Part


def test_a_vector_that_only_some_frames_have_counts_only_where_the_whole_window_has_it() -> None:
    """Sets adopted from foreign tars may lack a vector frame by frame."""
    rows = np.arange(12, dtype=np.float32).reshape(6, 2)
    there = np.array([1, 1, 0, 1, 1, 1], bool)

    def shard(first: int) -> SimpleNamespace:
        return SimpleNamespace(vectors={"v": rows + first}, present={"v": there}, complete=frozenset())

    out, present = np.zeros((6, 2, 3), np.float32), np.zeros(6, bool)
    windows = np.array([[0, 1], [1, 2], [3, 4], [1, 2], [5, 5]])
    parts = [_Part(shard(0), 0, 3), _Part(shard(100), 3, 5)]
    _gather(parts, "v", windows, np.array([2, 0, 3, 5, 4]), out, present)
    assert present.tolist() == [False, False, True, True, True, False]
    assert out[2].tolist() == [[0, 1, 0], [2, 3, 0]]
    assert out[3].tolist() == [[6, 7, 0], [8, 9, 0]]
    assert out[4].tolist() == [[110, 111, 0], [110, 111, 0]]
    assert not out[1].any()


def test_all_but_the_loader_work_without_torch() -> None:
    code = (
        "import sys, wdsmix.mixture.assemble, wdsmix.mixture.plan, wdsmix.mixture.draft, wdsmix.mixture.place\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
