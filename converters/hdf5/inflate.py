"""Chunks that inflate past what they declare.

HDF5 inflates a chunk as far as its bytes go, whatever its declared size, and looks at the size afterwards: a megabyte
can become a gigabyte. Deflate gives at most 1032 bytes for one, so that small chunks need no look; large ones are
inflated here first, in pieces, with nothing kept.
"""

from __future__ import annotations

import math
import zlib

import h5py

__all__ = ["LARGE_CHUNK", "inflates_beyond", "large_chunks", "odd_pipeline"]

LARGE_CHUNK = 512 << 10
"""Stored bytes of a chunk from which it is looked at: what is smaller can become 540 MB at most."""

_DEFLATE, _SHUFFLE, _FLETCHER = 1, 2, 3
_PIECE = 1 << 20


def _filters(dataset: h5py.Dataset) -> list[int]:
    plist = dataset.id.get_create_plist()
    return [int(plist.get_filter(index)[0]) for index in range(plist.get_nfilters())]


def odd_pipeline(dataset: h5py.Dataset) -> bool:
    """Whether what deflate made is compressed again, as no writer does: the ratios would multiply."""
    codes = _filters(dataset)
    return _DEFLATE in codes and any(code != _FLETCHER for code in codes[codes.index(_DEFLATE) + 1 :])


def large_chunks(dataset: h5py.Dataset) -> list[tuple[int, ...]]:
    """Places of the chunks that are to be looked at before they are read; none where nothing is deflated."""
    if dataset.chunks is None or _DEFLATE not in _filters(dataset):
        return []
    found: list[tuple[int, ...]] = []

    def one(chunk: object) -> None:
        if chunk.size > LARGE_CHUNK:  # type: ignore[attr-defined]
            found.append(tuple(int(at) for at in chunk.chunk_offset))  # type: ignore[attr-defined]

    dataset.id.chunk_iter(one)
    return found


def inflates_beyond(dataset: h5py.Dataset, place: tuple[int, ...]) -> bool:
    """Whether a chunk holds more than its declared size."""
    mask, raw = dataset.id.read_direct_chunk(place)
    codes = _filters(dataset)
    at = codes.index(_DEFLATE)
    if mask & (1 << at):
        return False
    allowed: int = math.prod(dataset.chunks) * dataset.dtype.itemsize + 1024  # checksums of filters before
    stream = zlib.decompressobj()
    data, total = raw, 0
    try:
        while data and total <= allowed and not stream.eof:
            total += len(stream.decompress(data, _PIECE))
            data = stream.unconsumed_tail
    except zlib.error:
        return False  # damaged: HDF5 says so, at no more than it has inflated by then
    return total > allowed
