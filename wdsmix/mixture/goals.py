"""Goal frames: which later frame of the same episode, or which frame of another one, a sample is to reach.

The choice is a hash of the source and of the draw, so that it is the same on any number of ranks and workers, and
another in each epoch. Distances are uniform over what the episode has left, up to a limit; a stated fraction of
samples gets a frame of another episode of the source instead, which can't be reached (a *negative*).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.mixture.hashing import hash64, key_of

__all__ = ["Goals", "choose_goals"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Goals:
    """One goal a sample."""

    row: Int64Array
    """int64 [N]: the goal's frame row in the source."""
    offset: Int64Array
    """int64 [N]: frames from the sample to its goal; -1 for a negative."""
    negative: npt.NDArray[np.bool_]
    """bool [N]."""


def choose_goals(
    *,
    seed: int,
    name: str,
    draw: Int64Array,
    row: Int64Array,
    ends: Int64Array,
    lowest: int,
    highest: int,
    negative_fraction: float,
    zero_is_negative: bool = False,
) -> Goals:
    """Chooses the goals of some samples of one source.

    Args:
        seed: Of the mixture.
        name: Of the source.
        draw: int64 [N], which draw of the source each sample is.
        row: int64 [N], its frame row.
        ends: int64 [E], cumulative frames of the source's episodes.
        lowest: Nearest goal, in frames from 0; less where the episode ends before.
        highest: Farthest goal; at least ``lowest``.
        negative_fraction: Share of goals from other episodes, 0 to 1. None where the source has one episode only.
        zero_is_negative: Whether a sample whose distance comes out as 0 gets a negative too.
    """
    episode = np.searchsorted(ends, row, side="right")
    first = np.concatenate([[0], ends[:-1]])[episode]
    left = ends[episode] - 1 - row
    top = np.minimum(left, highest)
    bottom = np.minimum(left, lowest)
    offset = bottom + _below(hash64(key_of(seed, name, "goal offset"), draw), top - bottom + 1)
    size = int(ends[-1])
    others = size - (ends[episode] - first)
    threshold = np.uint64(min(round(negative_fraction * 2**63), 2**63))
    drawn = hash64(key_of(seed, name, "goal sign"), draw) >> np.uint64(1)
    negative = ((drawn < threshold) | (zero_is_negative & (offset == 0))) & (others > 0)
    # Rows of other episodes: those before this one, then those behind it.
    other = _below(hash64(key_of(seed, name, "goal row"), draw), np.maximum(others, 1))
    other = np.where(other < first, other, other + (ends[episode] - first))
    return Goals(row=np.where(negative, other, row + offset), offset=np.where(negative, -1, offset), negative=negative)


def _below(hashes: npt.NDArray[np.uint64], limits: Int64Array) -> Int64Array:
    """Hashes brought to range(limit) each; limits below 2**32, so that the bias is below 2**-32."""
    high = (hashes >> np.uint64(32)).astype(np.uint64)
    return ((high * limits.astype(np.uint64)) >> np.uint64(32)).astype(np.int64)
