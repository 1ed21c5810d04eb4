"""Statistics that merge: moments, extremes and quantiles of float32 vectors, one set of numbers a dimension.

A *bin* of the histogram is a run of neighbouring float32 values: sign, exponent and the first nine bits of the mantissa
agree, so it is the bit pattern shifted right by 14, negated for negative values. Bins ascend with the values, a bin's
middle is within 0.098 % of everything in it (below 1.2e-38, where float32 itself gets coarse, within 2e-41), and bin 0
holds zero. No logarithm and no random number is involved: the same rows give the same histogram on every machine, in
every order and grouping.

Moments are Chan's: count, mean and sum of squared deviations in float64, merged pairwise; the mean carries what it
rounds off, so that a small spread around a large offset survives any number of merges. Merging in another grouping
changes them by rounding only (about 1e-15), so whoever wants equal bytes merges in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.manifest import FieldStats, Histogram

__all__ = ["FieldAccumulator", "bin_middle", "bin_of", "merge_stats", "quantile"]

_SHIFT = 14
_SPAN = 1 << 18  # twice the number of bins of one sign; a packed key is dimension * _SPAN + bin + _SPAN // 2
_PENDING = 1 << 16

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]


def bin_of(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int32]:
    """Bin of each value.

    Args:
        values: float32, finite.
    """
    bits = values.view(np.int32)
    magnitude = (bits & 0x7FFFFFFF) >> _SHIFT
    return np.where(bits < 0, -magnitude, magnitude)


def bin_middle(bins: npt.ArrayLike) -> Float64Array:
    """The value that stands for each bin: its middle; 0 for bin 0."""
    bins = np.asarray(bins, dtype=np.int32)
    magnitude = np.abs(bins)
    bits = (magnitude << _SHIFT) | (1 << (_SHIFT - 1))
    middle = bits.astype(np.int32).view(np.float32).astype(np.float64)
    return np.where(magnitude == 0, 0.0, np.sign(bins) * middle)


def quantile(histogram: Histogram, q: float, low: float, high: float) -> float:
    """Estimates a quantile by numpy's "linear" definition, between the two neighbouring order statistics.

    Args:
        histogram: Bins and counts of one dimension.
        q: 0 to 1.
        low: Smallest value seen; estimates are clamped to it.
        high: Largest value seen.
    """
    edges = np.cumsum(np.asarray(histogram.counts, dtype=np.int64))
    place = q * (int(edges[-1]) - 1)
    below = int(place)
    ranks = [below, min(below + 1, int(edges[-1]) - 1)]
    chosen = np.asarray(histogram.bins)[np.searchsorted(edges, ranks, side="right")]
    first, second = np.clip(bin_middle(chosen), low, high).tolist()
    return float(first + (place - below) * (second - first))


class FieldAccumulator:
    """Running statistics of one vector.

    Attributes:
        count: Rows seen.
        width: Dimensions.
        mean: float64 [width].
        rest: float64 [width], what ``mean`` rounds off.
        squares: float64 [width], sum of squared deviations from the mean.
        min: float64 [width].
        max: float64 [width].
    """

    __slots__ = ("_counts", "_keys", "_pending", "count", "max", "mean", "min", "rest", "squares", "width")

    def __init__(self, width: int) -> None:
        self.width = width
        self.count = 0
        self.mean: Float64Array = np.zeros(width)
        self.rest: Float64Array = np.zeros(width)
        self.squares: Float64Array = np.zeros(width)
        self.min: Float64Array = np.full(width, np.inf)
        self.max: Float64Array = np.full(width, -np.inf)
        self._keys: Int64Array = np.empty(0, np.int64)
        self._counts: Int64Array = np.empty(0, np.int64)
        self._pending: list[tuple[Int64Array, Int64Array]] = []

    @classmethod
    def of(cls, array: npt.NDArray[np.float32]) -> FieldAccumulator:
        """Statistics of a block of rows.

        Args:
            array: float32 [N, D].

        Raises:
            DataError: a value is not finite.
            ValueError: not a float32 matrix.
        """
        if array.dtype != np.float32 or array.ndim != 2:
            raise ValueError(f"needs float32 [N, D], not {array.dtype} {list(array.shape)}")
        array = np.ascontiguousarray(array)
        check_finite(array)
        made = cls(array.shape[1])
        if array.size == 0:
            made.count = len(array)
            return made
        rows = array.astype(np.float64)
        first = rows[0].copy()
        made.count = len(rows)
        # From the first row on: constant dimensions come out exact, large offsets cancel before they round.
        rows -= first
        middle = np.add.reduce(rows, axis=0) / len(rows)
        rows -= middle
        over = np.add.reduce(rows, axis=0)
        made.squares = np.maximum(np.add.reduce(rows * rows, axis=0) - over * over / len(rows), 0.0)
        made.mean, made.rest = _two_sum(first, middle + over / len(rows))
        made.min = array.min(axis=0).astype(np.float64)
        made.max = array.max(axis=0).astype(np.float64)
        keys = bin_of(array).astype(np.int64) + (np.arange(made.width, dtype=np.int64) * _SPAN + _SPAN // 2)
        made._keys, made._counts = np.unique(keys, return_counts=True)
        return made

    def merge(self, other: FieldAccumulator) -> None:
        """Adds the rows of ``other``; their order matters only to the last digit of the moments.

        Raises:
            DataError: the widths differ.
        """
        if other.width != self.width:
            raise DataError("vectors of different width can't share statistics", expected=self.width, found=other.width)
        if not other.count:
            return
        total = self.count + other.count
        step = (other.mean - self.mean) + (other.rest - self.rest)
        self.squares = self.squares + other.squares + step * step * (self.count * other.count / total)
        if self.count:
            self.mean, self.rest = _two_sum(self.mean, self.rest + step * (other.count / total))
        else:
            self.mean, self.rest = other.mean, other.rest
        self.count = total
        self.min = np.minimum(self.min, other.min)
        self.max = np.maximum(self.max, other.max)
        keys, counts = other._bins()
        self._pending.append((keys, counts))
        if sum(len(part) for part, _ in self._pending) > max(_PENDING, len(self._keys)):
            self._bins()

    def _bins(self) -> tuple[Int64Array, Int64Array]:
        if self._pending:
            parts = [(self._keys, self._counts), *self._pending]
            keys, place = np.unique(np.concatenate([part for part, _ in parts]), return_inverse=True)
            counts = np.zeros(len(keys), np.int64)
            np.add.at(counts, place.reshape(-1), np.concatenate([part for _, part in parts]))
            self._keys, self._counts, self._pending = keys, counts, []
        return self._keys, self._counts

    def histograms(self) -> list[Histogram]:
        """One sparse histogram a dimension."""
        keys, counts = self._bins()
        cuts = np.searchsorted(keys, np.arange(self.width + 1, dtype=np.int64) * _SPAN)
        bins = keys % _SPAN - _SPAN // 2
        return [Histogram(bins=bins[a:b].tolist(), counts=counts[a:b].tolist()) for a, b in pairwise(cuts)]

    def finish(self) -> FieldStats:
        """The statistics, in the form that stats.json keeps.

        Raises:
            DataError: no rows were added.
        """
        if not self.count:
            raise DataError("no rows to take statistics of")
        histograms = self.histograms()
        low, high = self.min.tolist(), self.max.tolist()
        return FieldStats(
            count=self.count,
            mean=self.mean.tolist(),
            std=np.sqrt(self.squares / self.count).tolist(),
            min=low,
            max=high,
            q01=[quantile(h, 0.01, a, b) for h, a, b in zip(histograms, low, high, strict=True)],
            q99=[quantile(h, 0.99, a, b) for h, a, b in zip(histograms, low, high, strict=True)],
            histogram=histograms,
        )

    def to_json(self) -> dict[str, Any]:
        """JSON types only; `from_json` gives the same accumulator back, to the bit."""
        empty = self.count == 0
        return {
            "count": self.count,
            "width": self.width,
            "mean": self.mean.tolist(),
            "rest": self.rest.tolist(),
            "squares": self.squares.tolist(),
            "min": [] if empty else self.min.tolist(),
            "max": [] if empty else self.max.tolist(),
            "histogram": [{"bins": h.bins, "counts": h.counts} for h in self.histograms()],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FieldAccumulator:
        """Reads what `to_json` gave.

        Raises:
            DataError: it is not that.
        """
        try:
            made = cls(int(value["width"]))
            made.count = int(value["count"])
            if made.count:
                for name in ("mean", "rest", "squares", "min", "max"):
                    setattr(made, name, np.array(value[name], dtype=np.float64).reshape(made.width))
            made._load([Histogram.model_validate(h) for h in value["histogram"]])
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(f"not saved statistics: {error}") from error
        return made

    @classmethod
    def from_stats(cls, stats: FieldStats) -> FieldAccumulator:
        """Reads finished statistics, to merge them further.

        Raises:
            DataError: its lists differ in length, or counts in sum.
        """
        made = cls(len(stats.mean))
        made.count = stats.count
        try:
            made.mean = np.array(stats.mean, dtype=np.float64).reshape(made.width)
            made.squares = np.square(np.array(stats.std, dtype=np.float64).reshape(made.width)) * stats.count
            made.min = np.array(stats.min, dtype=np.float64).reshape(made.width)
            made.max = np.array(stats.max, dtype=np.float64).reshape(made.width)
            made._load(stats.histogram)
        except ValueError as error:
            raise DataError(f"not valid statistics: {error}") from error
        return made

    def _load(self, histograms: Sequence[Histogram]) -> None:
        if len(histograms) != self.width:
            raise ValueError(f"{len(histograms)} histograms for {self.width} dimensions")
        keys = [np.array(h.bins, dtype=np.int64) + (d * _SPAN + _SPAN // 2) for d, h in enumerate(histograms)]
        counts = [np.array(h.counts, dtype=np.int64) for h in histograms]
        for h, number in zip(histograms, counts, strict=True):
            bad = h.bins and (min(h.bins) <= -_SPAN // 2 or max(h.bins) >= _SPAN // 2 or min(h.counts) < 1)
            if bad or len(h.bins) != len(h.counts) or number.sum() != self.count:
                raise ValueError("a histogram's counts don't add up")
        self._keys = np.concatenate(keys) if keys else self._keys
        self._counts = np.concatenate(counts) if counts else self._counts
        if len(self._keys) > 1 and not bool((np.diff(self._keys) > 0).all()):
            raise ValueError("a histogram's bins don't ascend")


def _two_sum(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The rounded sum, and exactly what rounding took away (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def check_finite(array: npt.NDArray[np.float32]) -> None:
    """Refuses NaN and infinities.

    Args:
        array: float32 [N, D].

    Raises:
        DataError: names the first row and dimension at fault.
    """
    if not bool(np.isfinite(array).all()):
        row, dimension = (int(n) for n in np.argwhere(~np.isfinite(array))[0])
        raise DataError("a value is not finite", where=f"row {row}, dimension {dimension}", found=array[row, dimension])


def merge_stats(parts: Sequence[FieldStats]) -> FieldStats:
    """Statistics over the rows of several sets.

    Args:
        parts: At least one; all of the same width.

    Raises:
        DataError: widths differ, or there is nothing to merge.
    """
    if not parts:
        raise DataError("no statistics to merge")
    made = FieldAccumulator.from_stats(parts[0])
    for part in parts[1:]:
        made.merge(FieldAccumulator.from_stats(part))
    return made.finish()
