"""The order of evaluation: one exact pass over a split, every frame once over all ranks.

The frames of all sources stand in a row, source by source, in index order. A global batch takes the next ones; rank r
of R gets the r-th of R equal slices, so that all ranks have the same number of batches. The last batch is filled up
with its own last frame, marked as not valid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError

__all__ = ["EvaluationOrder", "EvaluationStep"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationStep:
    """One global batch of an evaluation, rank-major."""

    step: int
    source: npt.NDArray[np.int32]
    """int32 [G]."""
    row: npt.NDArray[np.int64]
    """int64 [G]: frame row in its source."""
    valid: npt.NDArray[np.bool_]
    """bool [G]: False for what only fills the last batch."""


class EvaluationOrder:
    """Frames of several sources, once each.

    Args:
        sizes: Frames of each source.

    Raises:
        ConfigError: no frames at all.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._ends = np.cumsum(np.asarray(sizes, dtype=np.int64))
        self.size = int(self._ends[-1]) if len(sizes) else 0
        if self.size == 0:
            raise ConfigError("no frames to evaluate", where="sources")

    def steps(self, size: int) -> int:
        """How many global batches of ``size`` samples a pass has."""
        return -(-self.size // size)

    def step(self, number: int, size: int) -> EvaluationStep:
        """The ``number``-th global batch of ``size`` samples.

        Raises:
            IndexError: the pass has no such batch.
        """
        if not 0 <= number < self.steps(size):
            raise IndexError(f"step {number} of {self.steps(size)}")
        places = np.arange(number * size, (number + 1) * size, dtype=np.int64)
        valid = places < self.size
        places = np.minimum(places, self.size - 1)
        source = np.searchsorted(self._ends, places, side="right")
        starts = np.concatenate([[0], self._ends[:-1]])
        return EvaluationStep(step=number, source=source.astype(np.int32), row=places - starts[source], valid=valid)
