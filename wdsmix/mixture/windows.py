"""Windows: which frames of its own episode a sample looks at.

An *offset* is relative to the sample's own frame. Frames outside the episode are *clamped* to its first or last one
and marked as padding, so that a window never shows another episode. Same as a map-style dataset that clips each index.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["clamped_window"]

Int64Array = npt.NDArray[np.int64]


def clamped_window(
    frame: Int64Array, length: Int64Array, offsets: Int64Array
) -> tuple[Int64Array, npt.NDArray[np.bool_]]:
    """Frame numbers at offsets from each sample's frame, clamped to its episode.

    Args:
        frame: int64 [B], 0-based frame of each sample in its episode.
        length: int64 [B], frames of that episode; above ``frame``.
        offsets: int64 [T].

    Returns:
        int64 [B, T] frame numbers within 0 ... length-1, and bool [B, T]: whether the offset lies outside the episode.
    """
    wanted = frame[:, None] + offsets[None, :]
    inside = np.clip(wanted, 0, length[:, None] - 1)
    return inside, inside != wanted
