"""Needs: which blocks the frames of a batch lie in, and which of those are there.

Blocks are numbered over all sources of a mixture, so that one look tells whether a batch lacks anything; and they are
found for several batches at once, for what arithmetic costs here is the calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsmix.mixture.blocks import Blocks

if TYPE_CHECKING:
    from wdsmix.mixture.assemble import Samples

__all__ = ["BlockTable", "Needs"]

Int64Array = npt.NDArray[np.int64]


class Needs(NamedTuple):
    """What samples need of a mixture's blocks."""

    blocks: Int64Array
    """int64 [B, T], [B, T + 1] where they have goals: number of the block of each frame."""
    streams: Int64Array
    """int64 [B]: which stream of its source each sample is drawn from."""

    def part(self, here: slice) -> Needs:
        """That of some of the samples."""
        return Needs(self.blocks[here], self.streams[here])


class BlockTable:
    """The blocks of a mixture.

    Args:
        frames: Frames of each source.
        blocks: Place of a source that lies in a store -> its blocks. Each other source is one block, always there.
        streams: L.

    Attributes:
        ready: bool [N + 1]: whether a block is there; the last one never is, and stands for what lies in no block that
            could be asked for.
        first: int64 [S]: number of each source's first block.
    """

    def __init__(self, frames: Sequence[int], blocks: Mapping[int, Blocks], streams: int) -> None:
        total = sum(frames)
        self._frames = np.array(frames, dtype=np.int64)
        self._streams = streams
        ends = np.cumsum(self._frames)
        self._rows = ends - self._frames
        """int64 [S]: frames of the sources before."""
        firsts = [blocks[place].first if place in blocks else np.zeros(1, dtype=np.int64) for place in range(len(ends))]
        counts = np.array([len(first) for first in firsts], dtype=np.int64)
        self.first = np.cumsum(counts) - counts
        self._starts = np.concatenate(
            [*(rows + first for rows, first in zip(self._rows, firsts, strict=True)), [total]]
        )
        """int64 [N + 1]: first row of each block, over all sources."""
        stored = np.array([place in blocks for place in range(len(ends))], dtype=bool)
        self.ready = np.append(np.repeat(~stored, counts), False)
        self._far = np.where(stored, total, self._rows)
        """int64 [S]: the row that stands for a goal in another episode."""
        self._last = self.first + counts

    def ready_of(self, place: int) -> npt.NDArray[np.bool_]:
        """The part of ``ready`` for one source: a view."""
        return self.ready[self.first[place] : self._last[place]]

    def of(self, samples: Samples, draw: Int64Array) -> Needs:
        """What samples need.

        Args:
            samples: The samples.
            draw: int64 [B]: which draw of its source each is.
        """
        episode = self._rows[samples.source] + samples.row - samples.frame
        rows = episode[:, None] + samples.observed
        goal = samples.goal
        if goal is not None:
            own = goal.episode == samples.episode
            aim = np.where(own, episode + goal.frame, self._far[samples.source])
            rows = np.concatenate([rows, aim[:, None]], axis=1)
        blocks = np.searchsorted(self._starts, rows, side="right") - 1
        return Needs(blocks, draw % self._frames[samples.source] % self._streams)
