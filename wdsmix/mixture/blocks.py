"""Blocks: runs of neighbouring frames of about a given number of bytes, derived from the episode index alone.

A block is what I/O reads at once and what an epoch permutes. A long episode is cut into equal pieces; short
neighbouring episodes of one shard are coalesced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["BLOCK_RULE", "Blocks", "blocks_of"]

BLOCK_RULE = 1
"""Number of the rule below; part of a loader's state, so that a changed rule is refused and not followed."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Blocks:
    """Blocks of one source in storage order."""

    first: Int64Array
    """int64 [N]: first frame row (over all frames of the source's episodes, in index order)."""
    count: Int64Array
    """int64 [N]: frames; all above 0, and their sum is the number of frames."""


def blocks_of(
    *, frames: Int64Array, lengths: Int64Array, offsets: Int64Array, shards: npt.NDArray[np.int32], block_bytes: int
) -> Blocks:
    """Cuts episodes (int64 [E] each: frames, bytes, tar offset; int32 [E] shard) into blocks."""
    pieces = np.clip((lengths + block_bytes // 2) // block_bytes, 1, np.maximum(frames, 1))
    rows = np.cumsum(frames) - frames
    episode = np.repeat(np.arange(len(frames)), pieces)
    piece = np.arange(len(episode)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    first = rows[episode] + piece * frames[episode] // pieces[episode]
    joined = np.zeros(len(episode), dtype=bool)
    if len(frames) > 1:
        bins = offsets // block_bytes
        same = (
            (pieces[1:] == 1)
            & (pieces[:-1] == 1)
            & (shards[1:] == shards[:-1])
            & (bins[1:] == bins[:-1])
            & (offsets[1:] == offsets[:-1] + lengths[:-1])
        )
        joined[1:] = (piece[1:] == 0) & np.concatenate([[False], same])[episode[1:]]
    first = first[~joined]
    count = np.diff(np.append(first, int(frames.sum())))
    return Blocks(first=first[count > 0], count=count[count > 0])
