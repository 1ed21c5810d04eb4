"""Which source each sample comes from: exact shares at every prefix.

A source with weight w (an integer over W = 2**32) should have n*w/W of the first n samples. Its draw c (from 0) may
happen in the slots ``floor(c*W/w) <= n < ceil((c+1)*W/w)``: not before it would pass its upper quota, not after it
would miss its lower one. In each slot the draw that falls due first is taken among those allowed (ties: the lower
index). For unit jobs with integer windows and total demand one, earliest-deadline-first meets every deadline, so that
after any number of samples no source is a whole sample away from its share (Balinski and Young's quota method; Pfair
scheduling on one processor). All arithmetic is in exact integers.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError

__all__ = ["TOTAL", "Quota", "integer_weights"]

TOTAL = 2**32

_CELLS_A_SAMPLE, _MOST_CELLS = 8, 2**20
"""Cells of the table behind a leap, per sample that it saves (both cost about the same), and at most."""


def integer_weights(weights: Sequence[float]) -> list[int]:
    """Weights as integers over `TOTAL`: largest remainders, at least 1 each, summing to `TOTAL`.

    Raises:
        ConfigError: no weights, or one that is not a positive finite number or too small beside the others.
    """
    for index, weight in enumerate(weights):
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError("bad weight", where=f"weight {index}", expected="a finite number above 0", found=weight)
    if not weights:
        raise ConfigError("a mixture needs at least one source")
    # Floats are dyadic rationals, so that the shares are exact integers here, without rounding.
    ratios = [float(weight).as_integer_ratio() for weight in weights]
    scale = math.lcm(*(denominator for _, denominator in ratios))
    exact = [numerator * (scale // denominator) for numerator, denominator in ratios]
    whole = sum(exact)
    floors = [value * TOTAL // whole for value in exact]
    remainders = [value * TOTAL % whole for value in exact]
    for index in sorted(range(len(exact)), key=lambda i: (-remainders[i], i))[: TOTAL - sum(floors)]:
        floors[index] += 1
    for index, value in enumerate(floors):
        if value < 1:
            raise ConfigError(
                "weight too small beside the others",
                where=f"weight {index}",
                expected="at least 2**-32 of the sum",
                found=weights[index],
            )
    return floors


class Quota:
    """The endless sequence of source numbers for one set of weights, from any position.

    Args:
        weights: Integers that sum to `TOTAL`.
        counts: Draws made so far by each source since the weights began to hold; their sum is the position.

    Raises:
        ValueError: counts that the sequence never has.
    """

    def __init__(self, weights: Sequence[int], counts: Sequence[int]) -> None:
        if sum(weights) != TOTAL or len(counts) != len(weights):
            raise ValueError(f"{len(weights)} weights sum to {sum(weights)}, with {len(counts)} counts")
        self._weights = list(weights)
        slot = sum(counts)
        for weight, count in zip(weights, counts, strict=True):
            if not -TOTAL < count * TOTAL - slot * weight < TOTAL:
                raise ValueError(f"counts {list(counts)} stray from the shares {list(weights)}")
        self._own: bool | None = None if slot else True  # whether the counts are of this sequence, as far as known
        self._stand_at(counts)

    def _stand_at(self, counts: Sequence[int]) -> None:
        self._counts = list(counts)
        self._slot = sum(counts)
        self._ready: list[tuple[int, int]] = []  # (deadline slot, source) of draws that may happen now
        self._waiting = [  # (release slot, source) of draws that may not
            (count * TOTAL // weight, source)
            for source, (weight, count) in enumerate(zip(self._weights, counts, strict=True))
        ]
        heapq.heapify(self._waiting)

    @property
    def counts(self) -> list[int]:
        """Draws of each source so far."""
        return list(self._counts)

    def take(self, size: int) -> npt.NDArray[np.int32]:
        """int32 [size]: the sources of the next samples."""
        weights, counts, ready, waiting = self._weights, self._counts, self._ready, self._waiting
        push, pop = heapq.heappush, heapq.heappop
        out = [0] * size
        slot = self._slot
        for index in range(size):
            while waiting and waiting[0][0] <= slot:
                source = pop(waiting)[1]
                push(ready, (-(-(counts[source] + 1) * TOTAL // weights[source]), source))
            source = pop(ready)[1]
            out[index] = source
            count = counts[source] = counts[source] + 1
            push(waiting, (count * TOTAL // weights[source], source))
            slot += 1
        self._slot = slot
        return np.array(out, dtype=np.int32)

    def skip(self, size: int) -> None:
        """Passes over the next samples, at once where that costs less than one by one."""
        if self._own is None:
            self._own = self._counts_at(self._slot, most=_MOST_CELLS) == self._counts
        counts = self._counts_at(self._slot + size, most=_CELLS_A_SAMPLE * size) if self._own else None
        if counts is None:
            self.take(size)
        else:
            self._stand_at(counts)

    def _counts_at(self, slot: int, *, most: int) -> list[int] | None:
        """Draws of each source before a slot, counted from the first; None where it takes more cells than ``most``.

        By then a source has made the ``floor(n*w/W)`` draws that were due, and perhaps one more: its *early* one. As a
        draw that falls due later never delays another, of the first i early ones in order of deadlines so many are
        made as free slots were left by all that falls due no later: the least, over all k, of those released after
        slot n - k and not due later, less the k slots there were. For k beyond the oldest early draw's release that is
        no less than how many early draws there are, which bounds it, too.
        """
        floors = [slot * weight // TOTAL for weight in self._weights]
        early = sorted(
            (-(-(count + 1) * TOTAL // weight), source)
            for source, (weight, count) in enumerate(zip(self._weights, floors, strict=True))
            if slot * weight % TOTAL
        )
        made = slot - sum(floors)
        if not early:
            return floors
        order = [source for _, source in early]
        reach = max(slot - floors[source] * TOTAL // self._weights[source] for source in order[1:])
        if reach * len(self._weights) > min(most, _MOST_CELLS):
            return None
        # Releases before slot n - k, beyond the floors: 1 where the early draw is among them.
        back = np.arange(reach + 1, dtype=np.int64)
        weights = np.array(self._weights, dtype=np.int64)[:, None]
        parts = np.array([slot * weight % TOTAL for weight in self._weights], dtype=np.int64)[:, None]
        released = -((back * weights - parts) // TOTAL)
        others = back + np.minimum(released, 0).sum(axis=0)
        upto = others + np.cumsum(released[order] == 1, axis=0)
        done = np.minimum(upto.min(axis=1), made)
        for source, before, after in zip(order, [0, *done[:-1].tolist()], done.tolist(), strict=True):
            floors[source] += after - before
        return floors
