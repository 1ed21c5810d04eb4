"""Chunks that inflate past what they declare.

HDF5 inflates a chunk as far as its bytes go, whatever its declared size, and looks at the size afterwards: a megabyte
can become a gigabyte. Deflate gives at most 1032 bytes for one, so that small chunks need no look; large ones are
inflated here first, in pieces, with nothing kept. Filters of plugins say in a chunk's first bytes how many it becomes.
"""

from __future__ import annotations

import math
import zlib

import h5py

__all__ = ["LARGE_CHUNK", "announced", "inflates_beyond", "odd_pipeline", "watched_chunks"]

LARGE_CHUNK = 512 << 10
"""Stored bytes of a deflated chunk from which it is looked at: what is smaller can become 540 MB at most."""

_PLUGIN_CHUNK = 4 << 10
"""The same of other filters; Zstandard makes 32,000 bytes of one."""
_DEFLATE, _FLETCHER = 1, 3
_KEEP_SIZE = frozenset({2, _FLETCHER, 5, 6})
"""Shuffle, checksum, n-bit and scale-offset: their results have the size that the dataset declares."""
_SZIP, _BLOSC, _LZ4, _BITSHUFFLE, _ZSTD = 4, 32001, 32004, 32008, 32015
_SIZES = {_SZIP: (0, 4, "little"), _BLOSC: (4, 8, "little"), _LZ4: (0, 8, "big"), _BITSHUFFLE: (0, 8, "big")}
"""Filter -> first byte, last byte and order of the number of bytes that it makes."""
_PIECE = 1 << 20
_SLACK = 1024
"""Bytes beyond the chunk's own that checksums of filters before may need."""


def _filters(dataset: h5py.Dataset) -> list[tuple[int, tuple[int, ...]]]:
    """Code and parameters of each filter, in the order of writing."""
    plist = dataset.id.get_create_plist()
    found = [plist.get_filter(index) for index in range(plist.get_nfilters())]
    return [(int(code), tuple(values)) for code, _, values, _ in found]


def odd_pipeline(dataset: h5py.Dataset) -> bool:
    """Whether what one filter compressed is compressed again, as no writer does: the ratios would multiply."""
    codes = [code for code, _ in _filters(dataset)]
    first = next((index for index, code in enumerate(codes) if code not in _KEEP_SIZE), len(codes))
    return any(code != _FLETCHER for code in codes[first + 1 :])


def watched_chunks(dataset: h5py.Dataset) -> list[tuple[int, ...]]:
    """Places of the chunks that are to be looked at before they are read; none where no filter calls for it."""
    codes = {code for code, _ in _filters(dataset)}
    if dataset.chunks is None or not codes & {_DEFLATE, _ZSTD, *_SIZES}:
        return []
    least = LARGE_CHUNK if _DEFLATE in codes else _PLUGIN_CHUNK
    found: list[tuple[int, ...]] = []

    def one(chunk: object) -> None:
        if chunk.size > least:  # type: ignore[attr-defined]
            found.append(tuple(int(at) for at in chunk.chunk_offset))  # type: ignore[attr-defined]

    dataset.id.chunk_iter(one)
    return found


def inflates_beyond(dataset: h5py.Dataset, place: tuple[int, ...]) -> bool:
    """Whether a chunk holds more than its declared size."""
    mask, raw = dataset.id.read_direct_chunk(place)
    allowed: int = math.prod(dataset.chunks) * dataset.dtype.itemsize + _SLACK
    for index, (code, values) in enumerate(_filters(dataset)):
        if mask & (1 << index) or code in _KEEP_SIZE:
            continue
        if code == _DEFLATE:
            return _inflated(raw, allowed) > allowed
        return announced(code, values, raw) > allowed
    return False


def _inflated(raw: bytes, allowed: int) -> int:
    """The bytes that a deflated stream becomes, counted until they are too many."""
    stream = zlib.decompressobj()
    data, total = raw, 0
    try:
        while data and total <= allowed and not stream.eof:
            total += len(stream.decompress(data, _PIECE))
            data = stream.unconsumed_tail
    except zlib.error:
        return 0  # damaged: HDF5 says so, at no more than it has inflated by then
    return total


def announced(code: int, values: tuple[int, ...], raw: bytes) -> int:
    """The bytes that a chunk says it becomes; 0 where it does not say.

    Args:
        code: Of the filter.
        values: Its parameters.
        raw: The stored chunk.
    """
    if code == _ZSTD:
        return _zstd_size(raw)
    if code == _BITSHUFFLE and (len(values) < 5 or values[4] == 0):
        return 0  # shuffled, not compressed
    if code not in _SIZES:
        return 0
    first, last, order = _SIZES[code]
    return int.from_bytes(raw[first:last], "big" if order == "big" else "little")


def _zstd_size(raw: bytes) -> int:
    """The content size in a Zstandard frame's header; 0 where there is none."""
    if len(raw) < 6 or raw[:4] != b"\x28\xb5\x2f\xfd":
        return 0
    flags = raw[4]
    single = flags >> 5 & 1
    width = (single, 2, 4, 8)[flags >> 6]
    at = 5 + (1 - single) + (0, 1, 2, 4)[flags & 3]
    return int.from_bytes(raw[at : at + width], "little") + (256 if width == 2 else 0)
