"""Normalisation: each dimension scaled by the statistics of its source or group of sources.

============  ==========================================  ====================
mode          value                                       clipped to (default)
============  ==========================================  ====================
``none``      x                                           not clipped
``mean_std``  (x - mean) / std                            [-10, 10]
``min_max``   2 (x - min) / (max - min) - 1               [-1, 1]
``q01_q99``   2 (x - q01) / (q99 - q01) - 1               [-1, 1]
============  ==========================================  ====================

A dimension *without spread* (std, or the range, at most 1e-6 of max(1, |centre|)) carries nothing: it maps to 0 and its
mask is False, so that no run ever multiplies by 1/1e-8. Where q01 and q99 lie closer than 1 % of their magnitude, which
stored quantiles (0.1 % relative error) can't resolve, as for a gripper that hardly ever closes, ``q01_q99`` takes the
minimum and maximum of that dimension instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.manifest import FieldStats
from wdsmix.mixture.config import Normalization

__all__ = ["NO_SPREAD", "Normalizer", "Scale", "scale_of"]

NO_SPREAD = 1e-6
_QUANTILE_RESOLUTION = 1e-2

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How one source's vector of width d is scaled: ``clip((x - centre) * factor)``."""

    centre: Float64Array
    """float64 [d]."""
    factor: Float64Array
    """float64 [d]; 0 where the dimension has no spread."""
    live: npt.NDArray[np.bool_]
    """bool [d]: whether the dimension has spread."""
    bound: float
    """Clip."""
    ranged: npt.NDArray[np.bool_]
    """bool [d]: where ``q01_q99`` took minimum and maximum."""

    @classmethod
    def identity(cls, width: int) -> Scale:
        """Leaves a vector of this width as it is."""
        return cls(
            centre=np.zeros(width),
            factor=np.ones(width),
            live=np.ones(width, dtype=np.bool_),
            bound=np.inf,
            ranged=np.zeros(width, dtype=np.bool_),
        )


def scale_of(stats: FieldStats, how: Normalization) -> Scale:
    """The scale that a mode makes of statistics."""
    low, high = np.asarray(stats.min, dtype=np.float64), np.asarray(stats.max, dtype=np.float64)
    ranged = np.zeros(len(low), dtype=np.bool_)
    if how.mode == "none":
        return Scale.identity(len(low))
    if how.mode == "mean_std":
        centre, spread = np.asarray(stats.mean, dtype=np.float64), np.asarray(stats.std, dtype=np.float64)
        reach = spread
    else:
        if how.mode == "q01_q99":
            q01, q99 = np.asarray(stats.q01, dtype=np.float64), np.asarray(stats.q99, dtype=np.float64)
            coarse = q99 - q01 <= _QUANTILE_RESOLUTION * np.maximum(np.abs(q01), np.abs(q99))
            ranged = coarse & (high > low)
            low, high = np.where(coarse, low, q01), np.where(coarse, high, q99)
        centre, spread = (low + high) / 2, high - low
        reach = spread / 2
    live = spread > NO_SPREAD * np.maximum(1.0, np.abs(centre))
    factor = np.divide(1.0, reach, out=np.zeros_like(reach), where=live)
    return Scale(centre=centre, factor=factor, live=live, bound=how.bound, ranged=ranged & live)


class Normalizer:
    """Scales and pads one vector of a batch, whatever sources its samples come from.

    Args:
        scales: One a source; None where the source lacks the vector.
        width: Padded width D.
    """

    def __init__(self, scales: Sequence[Scale | None], width: int) -> None:
        shape = (len(scales), width)
        self._centre, self._factor = np.zeros(shape), np.zeros(shape)
        self._bound = np.full((len(scales), 1), np.inf)
        self.mask: npt.NDArray[np.bool_] = np.zeros(shape, dtype=np.bool_)
        """bool [S, D]: dimensions that are real and have spread."""
        for source, scale in enumerate(scales):
            if scale is not None:
                d = len(scale.centre)
                self._centre[source, :d], self._factor[source, :d] = scale.centre, scale.factor
                self._bound[source] = scale.bound
                self.mask[source, :d] = scale.live
        self._plain = (
            not np.any(self._centre) and bool(np.all(self._factor[self.mask] == 1)) and np.isinf(self._bound).all()
        )

    def apply(
        self,
        values: npt.NDArray[np.float32],
        source: npt.NDArray[np.int64],
        present: npt.NDArray[np.bool_],
        mask_out: npt.NDArray[np.bool_],
    ) -> None:
        """Scales a batch in place; what is padded, absent or without spread becomes exactly 0.

        Args:
            values: float32 [B, T, D], raw, zero beyond each source's width.
            source: int64 [B].
            present: bool [B]: whether the sample has the vector at all.
            mask_out: bool [B, D], filled: the dimensions that count.
        """
        np.logical_and(self.mask[source], present[:, None], out=mask_out)
        keep = mask_out[:, None, :]
        if not self._plain:
            bound = self._bound[source][:, :, None]
            scaled = (values - self._centre[source][:, None, :]) * self._factor[source][:, None, :]
            np.copyto(values, np.clip(scaled, -bound, bound), casting="same_kind")
        np.copyto(values, np.float32(0), where=~keep)
