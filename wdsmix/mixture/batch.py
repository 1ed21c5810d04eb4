"""Batch memory: one flat block of bytes that holds every array of a batch.

One block and not an array a field, so that a batch can lie in any memory (fresh, or a shared slot that is used again)
and cross a process border as one thing. Pictures are NHWC in memory: what JPEG decoders write and GPUs read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.mixture.catalog import Layout

__all__ = ["BatchMemory", "Field", "batch_fields"]

_ALIGN = 64

_ASIDE = 16
"""Pictures lie so many bytes beside the alignment: libjpeg-turbo writes rows that are aligned to 32 bytes past the
caches (non-temporal stores), which costs 2 to 3 % of decoding into memory that is used again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Field:
    """One array of a batch."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    start: int
    """First byte in the block."""

    @property
    def nbytes(self) -> int:
        """Its size."""
        return math.prod(self.shape) * self.dtype.itemsize


def batch_fields(layout: Layout, size: int) -> dict[str, Field]:
    """Where each array of a batch lies.

    Args:
        layout: Shape of a sample.
        size: B.
    """
    steps, chunk, cameras = len(layout.offsets), layout.chunk, len(layout.cameras)
    shapes: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
        "images": (np.uint8, (size, steps, cameras, layout.height, layout.width, 3)),
        "image_mask": (np.bool_, (size, steps, cameras)),
    }
    for name, width in layout.dims.items():
        shapes[name] = (np.float32, (size, chunk if name == "action" else steps, width))
        shapes[f"{name}_mask"] = (np.bool_, (size, width))
    shapes["action_is_pad"] = (np.bool_, (size, chunk))
    shapes["observation_is_pad"] = (np.bool_, (size, steps))
    for name in layout.scalars:
        shapes[name] = (np.float32, (size, steps))
        shapes[f"{name}_mask"] = (np.bool_, (size,))
    if layout.goal is not None:
        shapes["goal_images"] = (np.uint8, (size, cameras, layout.height, layout.width, 3))
        shapes["goal_image_mask"] = (np.bool_, (size, cameras))
        shapes["goal_offset"] = (np.int64, (size,))
        shapes["goal_negative"] = (np.bool_, (size,))
    for name in layout.marks:
        shapes[name] = (np.bool_, (size,))
    for name in ("embodiment_id", "source_id", "episode", "frame"):
        shapes[name] = (np.int64, (size,))
    fields: dict[str, Field] = {}
    start = 0
    for name, (dtype, shape) in shapes.items():
        aside = _ASIDE if name in ("images", "goal_images") else 0
        field = fields[name] = Field(shape=shape, dtype=np.dtype(dtype), start=start + aside)
        start += -(-(aside + field.nbytes) // _ALIGN) * _ALIGN
    return fields


class BatchMemory:
    """The arrays of one batch over one block.

    Args:
        fields: Where each lies.
        flat: uint8 block to use; default: fresh memory.
    """

    def __init__(self, fields: Mapping[str, Field], flat: npt.NDArray[np.uint8] | None = None) -> None:
        size = self.size_of(fields)
        self.fields = fields
        self.flat = np.empty(size, dtype=np.uint8) if flat is None else flat[:size]
        self.arrays: dict[str, npt.NDArray[Any]] = {
            name: self.flat[field.start : field.start + field.nbytes].view(field.dtype).reshape(field.shape)
            for name, field in fields.items()
        }
        self.pictures = _rows(self.arrays["images"], 3)
        """[b][t][camera] -> uint8 [H, W, 3]: made once, for making a view costs more than finding it."""
        self.goal_pictures = _rows(self.arrays["goal_images"], 2) if "goal_images" in fields else []
        """[b][camera] -> uint8 [H, W, 3]."""

    @staticmethod
    def size_of(fields: Mapping[str, Field]) -> int:
        """Bytes of a block."""
        return max(-(-(field.start + field.nbytes) // _ALIGN) * _ALIGN for field in fields.values())


def _rows(array: npt.NDArray[Any], depth: int) -> list[Any]:
    """The views that indexing ``depth`` axes gives, as nested lists."""
    return [_rows(row, depth - 1) if depth > 1 else row for row in array]
