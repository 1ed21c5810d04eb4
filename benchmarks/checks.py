"""Whether a contender's batches are what they ought to be: shapes, types, masks, shares, and pixels of some rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import simplejpeg

from benchmarks.settings import BATCH, Contender
from benchmarks.store import CAMERAS, PAD, SIZE, SOURCES, Store

__all__ = ["check_batch", "check_shares"]

_SHARE_SLACK = 0.06


class WrongBatchError(AssertionError):
    """A contender gave something else than was asked for."""


def _need(holds: object, what: str) -> None:
    if not holds:
        raise WrongBatchError(what)


def _array(batch: Mapping[str, Any], name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    found = np.asarray(batch[name])
    _need(found.dtype == dtype and found.shape == shape, f"{name}: {found.dtype} {found.shape}, not {dtype} {shape}")
    return found


def check_batch(batch: Mapping[str, Any], contender: Contender, store: Store, pictures: int = 4) -> None:
    """Compares a batch with the store, read in the plainest way.

    Args:
        batch: As `benchmarks.contenders` says; wdsmix's also has a time axis.
        contender: What was asked for.
        store: What the contender's data were made from.
        pictures: Samples of the batch whose pixels are compared.

    Raises:
        WrongBatchError: says what differs.
    """
    own = contender.module.startswith("wdsmix")
    times, chunk = contender.history, contender.chunk
    axis = (times,) if own else ()
    images = _array(batch, "images", np.uint8, (BATCH, *axis, len(CAMERAS), SIZE, SIZE, 3))
    images = images.reshape(BATCH, times, len(CAMERAS), SIZE, SIZE, 3)
    source, row = (np.asarray(batch[name]).astype(np.int64) for name in ("source", "row"))
    _need(source.shape == row.shape == (BATCH,), f"source {source.shape}, row {row.shape}")
    if contender.module != "decode":
        _check_vectors(batch, contender, store, source, row, axis, (chunk,) if own else ())
    exact = contender.form != "docs"
    for place in range(0, BATCH, BATCH // pictures):
        frames = store.sources[source[place]]
        for time in range(times):
            at = max(int(row[place]) - (times - 1 - time), int(frames.first[frames.episode[row[place]]]))
            for camera in range(len(CAMERAS)):
                want = simplejpeg.decode_jpeg(frames.jpeg(at, camera))
                gap = np.abs(images[place, time, camera].astype(np.int16) - want)
                _need(gap.max() == 0 if exact else gap.mean() < 1, f"sample {place}, camera {camera}: other pixels")


def _check_vectors(
    batch: Mapping[str, Any],
    contender: Contender,
    store: Store,
    source: npt.NDArray[np.int64],
    row: npt.NDArray[np.int64],
    axis: tuple[int, ...],
    chunk: tuple[int, ...],
) -> None:
    state = _array(batch, "state", np.float32, (BATCH, *axis, PAD)).reshape(BATCH, -1, PAD)
    action = _array(batch, "action", np.float32, (BATCH, *chunk, PAD)).reshape(BATCH, -1, PAD)
    masks = [_array(batch, f"{name}_mask", np.bool_, (BATCH, PAD)) for name in ("state", "action")]
    ahead = np.arange(action.shape[1])
    back = np.arange(1 - state.shape[1], 1)
    for place in range(BATCH):
        frames = store.sources[source[place]]
        at, width = int(row[place]), frames.source.width
        first = int(frames.first[frames.episode[at]])
        last = first + int(frames.lengths[frames.episode[at]]) - 1
        for mask in masks:
            _need(mask[place, :width].all() and not mask[place, width:].any(), f"sample {place}: wrong mask")
        for found, want in (
            (state, frames.state[np.clip(at + back, first, last)]),
            (action, frames.action[np.clip(at + ahead, first, last)]),
        ):
            same = np.array_equal(found[place, :, :width], want) and not found[place, :, width:].any()
            _need(same, f"sample {place}: other state or action")
        _need(str(batch["task"][place]) == frames.task(at), f"sample {place}: other task")
        if chunk:
            pad = np.asarray(batch["action_is_pad"])[place]
            _need(np.array_equal(pad, at + ahead > last), f"sample {place}: wrong action_is_pad")


def check_shares(counts: npt.NDArray[np.int64], contender: Contender) -> float:
    """Compares how often each source was drawn with its weight.

    Args:
        counts: int64 [sources].
        contender: Whose.

    Returns:
        The largest difference, as a fraction of all samples.

    Raises:
        WrongBatchError: beyond chance; for wdsmix, a whole sample or more.
    """
    weights = np.array([source.weight for source in SOURCES])
    gaps = np.abs(counts - weights * counts.sum())
    if contender.module.startswith("wdsmix"):
        _need(gaps.max() < 1, f"sources drawn {counts.tolist()} times")
    worst = float(gaps.max() / counts.sum())
    _need(worst < _SHARE_SLACK, f"sources drawn {counts.tolist()} times, worst by {worst:.3f}")
    return worst
