"""Which native frames are kept at a wanted rate, and what becomes of the vectors between them.

*Stride* keeps every s-th row, s = max(1, round(fps / hz)); the true rate is fps / s. *Nearest* keeps, for each target
time k / hz, the row nearest to it (row r lies at r / fps; of two equally near ones the later), no row twice; the true
rate is min(hz, fps). Either way row 0 is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from wdsmix.episode import Float32Array, VectorSpec
from wdsmix.errors import ConfigError

__all__ = ["check_kinds", "kept_frames", "kept_rows", "thin_vector", "true_rate"]

_LONGEST_STRIDE = 2**31 - 1


def _stride(fps: float, hz: float) -> int:
    return 1 if hz == 0 else max(1, round(min(fps / hz, _LONGEST_STRIDE)))


def true_rate(fps: float, hz: float, mode: Literal["stride", "nearest"]) -> float:
    """Frames per second of what `kept_rows` keeps; ``hz`` 0 keeps all."""
    if mode == "nearest":
        return fps if hz == 0 else min(hz, fps)
    return fps / _stride(fps, hz)


def kept_rows(frames: int, fps: float, hz: float, mode: Literal["stride", "nearest"]) -> npt.NDArray[np.int64]:
    """int64 [N], strictly increasing: the rows of ``frames`` native ones that are kept."""
    if mode == "stride" or hz == 0 or hz >= fps:
        step = _stride(fps, hz) if mode == "stride" else 1
        return np.arange(0, frames, step, dtype=np.int64)
    targets = np.arange(int(frames * hz / fps) + 2, dtype=np.float64)
    rows = np.floor(targets * (fps / hz) + 0.5)  # steps of more than one before the floor: no row comes twice
    return rows[rows < frames].astype(np.int64)


def kept_frames(frames: int, fps: float, hz: float, mode: Literal["stride", "nearest"]) -> int:
    """How many rows `kept_rows` keeps."""
    return len(kept_rows(frames, fps, hz, mode))


def check_kinds(vectors: Mapping[str, VectorSpec], fps: float, hz: float, mode: Literal["stride", "nearest"]) -> None:
    """Refuses a rate that would leave frames out between rotation deltas, which can't be summed.

    Raises:
        ConfigError: names the vector and its dimensions.
    """
    if true_rate(fps, hz, mode) == fps:
        return
    for name, spec in vectors.items():
        bad = [k for k, kind in enumerate(spec.kinds) if kind == "delta_rotation"]
        if bad:
            shown = [spec.names[k] if spec.names else str(k) for k in bad]
            raise ConfigError(
                f"{name} holds rotation deltas ({', '.join(shown)}), which can neither be skipped nor summed",
                where="--hz",
                found=f"{hz:g} of {fps:g} frames per second",
                hint="keep the native rate with --hz 0",
            )


def thin_vector(
    name: str, values: Float32Array, kinds: Sequence[str], rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.float32]:
    """Brings a vector to the kept rows.

    Args:
        name: Its name; ``reward`` is summed and ``done`` is the maximum from each kept row up to the next.
        values: float32 [T, D].
        kinds: One kind a dimension, or empty; ``delta`` dimensions are summed likewise, all others sampled.
        rows: int64 [N] from `kept_rows`.

    Returns:
        float32 [N, D]; sums are taken in float64.
    """
    if len(rows) == len(values):
        return values
    kept: npt.NDArray[np.float32] = values[rows]
    if name == "done":
        maxima: npt.NDArray[Any] = np.maximum.reduceat(values, rows, axis=0)
        return maxima
    summed = [k for k in range(values.shape[1]) if name == "reward" or (kinds and kinds[k] == "delta")]
    if summed:
        kept[:, summed] = np.add.reduceat(values[:, summed].astype(np.float64), rows, axis=0)
    return kept
