"""The limit: JPEG decoding alone, one thread, into a ring of rows that are used again and again.

The pictures are those a mixture draws, in its shares and shuffled, from a memory map.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from benchmarks.settings import BATCH, Contender
from benchmarks.store import CAMERAS, SIZE, Store

__all__ = ["batches", "write"]


def write(store: Store, folder: Path) -> None:
    """Nothing: it reads the store."""


def batches(contender: Contender, folder: Path) -> Iterator[dict[str, Any]]:
    """Yields batches that hold pixels only; each overwrites the one before."""
    store = Store(folder.parent / f"store-{contender.subsampling}")
    drawn = store.draw(BATCH * 256, contender.seed)
    ring = np.empty((BATCH, len(CAMERAS), SIZE, SIZE, 3), np.uint8)
    pictures = [[store.sources[source].jpeg(row, camera) for camera in range(len(CAMERAS))] for source, row in drawn]
    rows = [list(row) for row in ring]
    decode = simplejpeg.decode_jpeg
    while True:
        for first in range(0, len(pictures), BATCH):
            for row, pair in zip(rows, pictures[first : first + BATCH], strict=True):
                for out, data in zip(row, pair, strict=True):
                    decode(data, buffer=out)
            part = drawn[first : first + BATCH]
            yield {"images": ring, "source": part[:, 0], "row": part[:, 1]}
