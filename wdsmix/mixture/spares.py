"""Spares: what stands in for a sample whose frames can't be read.

The nearest readable frame of the same block: a function of the position that failed alone, so that ranks, workers and
reruns agree, and counts do not move. A sample is readable when all its frames are, its goal too; each candidate draws
a goal of its own, the failed frame itself first. Each replacement is counted, and a limit stops the run.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.mixture.assemble import Assembler, Hand, Samples
from wdsmix.mixture.batch import BatchMemory, batch_fields
from wdsmix.mixture.order import SourceOrder

__all__ = ["Spares", "nearest_first"]

_log = logging.getLogger("wdsmix")

_GOAL_SHIFT = 2**44
"""Added to a sample's draw for each candidate, so that one damaged goal does not rule out all of them."""


def nearest_first(row: int, rows: range) -> Iterator[int]:
    """The other members of a range in order of distance from ``row``; of two at one distance the later first."""
    for distance in range(1, max(row - rows.start, rows.stop - 1 - row) + 1):
        for other in (row + distance, row - distance):
            if other in rows:
                yield other


class Spares:
    """Replaces samples, up to a limit.

    Args:
        orders: One a source; they know the blocks.
        limit: How many replacements in this process end the run.
    """

    def __init__(self, orders: Sequence[SourceOrder], limit: int) -> None:
        self._orders = orders
        self._limit = limit
        self.count = 0
        self._told: set[str] = set()  # a frame is drawn again and again; it is named once

    def replace(
        self,
        assembler: Assembler,
        samples: Samples,
        draw: npt.NDArray[np.int64],
        memory: BatchMemory,
        b: int,
        error: DataError,
        mend: Callable[[Assembler, Samples, BatchMemory, Hand, dict[int, BaseException]], None] | None = None,
    ) -> tuple[str, dict[str, object]]:
        """Fills sample ``b`` of a batch from the nearest readable frame; returns its task and extras.

        Args:
            assembler: Of the batch.
            samples: Of the batch.
            draw: int64 [B], which draw of its source each sample is.
            memory: The batch.
            b: Which sample.
            error: Why it can't be read.
            mend: Reads damaged frames once more from the store, where sets lie in one; see `ReadAhead.mend`.

        Raises:
            DataError: the limit is reached, or the block has no readable frame.
        """
        self.count += 1
        if self.count > self._limit:
            raise DataError(
                f"more than {self._limit} samples could not be read",
                path=error.path,
                where=error.where,
                found=error.message,
                hint="max_skipped sets the limit; `wdsmix validate SET --level full` lists all that is damaged",
            ) from error
        message = str(error)
        _log.log(logging.DEBUG if message in self._told else logging.WARNING, "replaced a sample: %s", message)
        self._told.add(message)
        source, row = int(samples.source[b]), int(samples.row[b])
        small = BatchMemory(batch_fields(assembler.layout, 1))
        block = self._orders[source].block(row)
        candidates = nearest_first(row, block)
        if samples.goal is not None:  # perhaps the goal alone is at fault
            candidates = itertools.chain([row], candidates)
        for number, other in enumerate(candidates, start=1):
            one = assembler.locate(
                np.array([source], dtype=np.int32),
                np.array([other], dtype=np.int64),
                draw[b : b + 1] + number * _GOAL_SHIFT,
            )
            try:
                (task,) = assembler.fill_vectors(one, small)
                extras = assembler.extras(one, 0)
            except DataError:
                continue
            failed: dict[int, BaseException] = {}
            assembler.fill_pictures(one, small, range(1), Hand(), failed)
            if failed and mend is not None:
                mend(assembler, one, small, Hand(), failed)
            if failed:
                if isinstance(failed[0], DataError):
                    continue
                raise failed[0]
            for name, array in memory.arrays.items():
                array[b] = small.arrays[name][0]
            return task, extras
        raise DataError(
            "no readable frame in the block",
            path=error.path,
            where=error.where,
            expected=f"one of {len(block)} frames",
            found=error.message,
        ) from error
