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
        self._counts = list(counts)
        self._slot = sum(counts)
        for weight, count in zip(self._weights, self._counts, strict=True):
            if not -TOTAL < count * TOTAL - self._slot * weight < TOTAL:
                raise ValueError(f"counts {list(counts)} stray from the shares {list(weights)}")
        self._ready: list[tuple[int, int]] = []  # (deadline slot, source) of draws that may happen now
        self._waiting: list[tuple[int, int]] = []  # (release slot, source) of draws that may not
        for source in range(len(weights)):
            heapq.heappush(self._waiting, (self._counts[source] * TOTAL // self._weights[source], source))

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
