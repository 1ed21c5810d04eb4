"""From a peer's raw sample to a batch, in two ways.

A raw sample is a dict: cam0 and cam1 (JPEG bytes), state and action (float32 [D]), task, source, row.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg
import torch
from PIL import Image
from torch.utils.data import get_worker_info

from benchmarks.store import CAMERAS, PAD, SIZE, StoreFrames

__all__ = ["collate_arrays", "collate_tuned", "documented", "padded", "pillow", "raw_samples"]

Raw = dict[str, Any]


def raw_samples(frames: StoreFrames, number: int) -> Iterator[Raw]:
    """Every frame of a source, in order; for the writers.

    Args:
        frames: The source.
        number: Its number.
    """
    for row in range(len(frames)):
        yield {
            "cam0": frames.jpeg(row, 0).tobytes(),
            "cam1": frames.jpeg(row, 1).tobytes(),
            "state": frames.state[row],
            "action": frames.action[row],
            "task": frames.task(row),
            "source": number,
            "row": row,
        }


def pillow(data: bytes | memoryview) -> npt.NDArray[np.uint8]:
    """Decodes as most documentation does. uint8 [H, W, 3]."""
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def padded(vector: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
    """A vector at the common width, and which of its dimensions are real."""
    out, mask = np.zeros(PAD, np.float32), np.zeros(PAD, np.bool_)
    out[: len(vector)] = vector
    mask[: len(vector)] = True
    return out, mask


def documented(raw: Raw) -> Raw:
    """A sample ready for default_collate; pictures that are still bytes are decoded with Pillow."""
    pictures = [raw[name] for name in CAMERAS]
    pixels = [
        pillow(picture) if isinstance(picture, bytes | memoryview) else np.asarray(picture) for picture in pictures
    ]
    state, state_mask = padded(np.asarray(raw["state"], np.float32))
    action, action_mask = padded(np.asarray(raw["action"], np.float32))
    return {
        "images": np.stack(pixels),
        "state": state,
        "state_mask": state_mask,
        "action": action,
        "action_mask": action_mask,
        "task": raw["task"],
        "source": int(raw["source"]),
        "row": int(raw["row"]),
    }


def _images(count: int) -> torch.Tensor:
    """uint8 [count, cameras, H, W, 3]; in shared memory where a worker is to hand it over, as default_collate does."""
    shape = (count, len(CAMERAS), SIZE, SIZE, 3)
    if get_worker_info() is None:
        return torch.empty(shape, dtype=torch.uint8)
    storage = torch.UntypedStorage._new_shared(int(np.prod(shape)))
    return torch.empty(0, dtype=torch.uint8).set_(storage, 0, shape)


def _fill(raws: Sequence[Raw], images: npt.NDArray[np.uint8]) -> dict[str, Any]:
    count = len(raws)
    out: dict[str, Any] = {}
    for name in ("state", "action"):
        out[name] = np.zeros((count, PAD), np.float32)
        out[f"{name}_mask"] = np.zeros((count, PAD), np.bool_)
    for place, raw in enumerate(raws):
        for camera, name in enumerate(CAMERAS):
            simplejpeg.decode_jpeg(raw[name], buffer=images[place, camera])
        for name in ("state", "action"):
            width = len(raw[name])
            out[name][place, :width] = raw[name]
            out[f"{name}_mask"][place, :width] = True
    for name in ("source", "row"):
        out[name] = np.array([raw[name] for raw in raws], np.int64)
    return out


def collate_tuned(raws: Sequence[Raw]) -> dict[str, Any]:
    """A batch of tensors, decoded straight into the memory that crosses to the consumer."""
    images = _images(len(raws))
    out = {name: torch.from_numpy(array) for name, array in _fill(raws, images.numpy()).items()}
    return {"images": images, **out, "task": [raw["task"] for raw in raws]}


def collate_arrays(raws: Sequence[Raw]) -> dict[str, Any]:
    """A batch of arrays, for loaders that have nothing to do with torch."""
    images = np.empty((len(raws), len(CAMERAS), SIZE, SIZE, 3), np.uint8)
    return {"images": images, **_fill(raws, images), "task": np.array([raw["task"] for raw in raws])}
