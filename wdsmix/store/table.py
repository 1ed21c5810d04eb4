"""The table of a cached set: what is there of each tar, in a file that all processes of the node map; and its locks."""

from __future__ import annotations

import ctypes
import functools
import itertools
import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.store.locks import FileLocks

__all__ = ["CHUNK", "DONE", "REGION", "THERE", "Table", "punch"]

CHUNK = 16
"""Bits of an offset within a chunk, which is there or not."""
REGION = 18
"""Bits of an offset within a region, which is given up at once."""
THERE, DONE = 1, 2
"""Of a chunk: there; there, and not needed again for long. 0 is not there."""

_ETAG = 128  # bytes of a record
_USE, _FILES, _CHUNKS = 1 << 40, 2 << 40, 4 << 40  # where the locks of each kind begin
_SPREAD, _GROUP = 4, 6
"""Files among which the locks of regions are spread, as the kernel goes through all locks of a file for each; and bits
of a region's number within neighbours whose locks are in one file."""


class Table:
    """What is there of each tar; a mapped file, all zeros at first.

    Args:
        path: The file.
        sizes: Bytes of each tar.
    """

    def __init__(self, path: Path, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        chunks = [-(-size >> CHUNK) for size in sizes]
        regions = [-(-size >> REGION) for size in sizes]
        self.first_chunk = [0, *itertools.accumulate(chunks)]
        self.first_region = [0, *itertools.accumulate(regions)]
        used = len(sizes) * _ETAG
        have = used + 4 * self.first_region[-1]
        length = max(have + self.first_chunk[-1], 1)
        self.locks = FileLocks(path)
        self._region_locks = [FileLocks(path.with_name(f"{path.name}-{k}")) for k in range(_SPREAD)]
        if os.fstat(self.locks.handle).st_size < length:
            os.ftruncate(self.locks.handle, length)
        self._map = mmap.mmap(self.locks.handle, length)
        self.etags = memoryview(self._map)[:used]
        self.used: npt.NDArray[np.uint32] = np.frombuffer(self._map, np.uint32, self.first_region[-1], used)
        """uint32 [regions]: s since 1970 of the last use."""
        self.have: npt.NDArray[np.uint8] = np.frombuffer(self._map, np.uint8, self.first_chunk[-1], have)
        """uint8 [chunks]: 0, or THERE, or DONE."""

    def etag(self, k: int) -> str:
        """The ETag that tar ``k`` was first seen with; empty before that."""
        return bytes(self.etags[k * _ETAG : (k + 1) * _ETAG]).rstrip(b"\0").decode(errors="replace")

    def set_etag(self, k: int, etag: str) -> None:
        """Notes it, if it fits."""
        data = etag.encode()
        if len(data) <= _ETAG:
            self.etags[k * _ETAG : (k + 1) * _ETAG] = data.ljust(_ETAG, b"\0")

    def regions_of(self, k: int, first: int, stop: int) -> range:
        """The regions, over all tars, in which chunks ``first`` to ``stop`` of tar ``k`` lie."""
        shift, start = REGION - CHUNK, self.first_region[k]
        return range(start + (first >> shift), start + (stop - 1 >> shift) + 1)

    def region_chunks(self, region: int) -> tuple[int, int, int]:
        """Tar of a region, and its first chunk and the one after its last, both over all tars."""
        k = int(np.searchsorted(self.first_region, region, side="right")) - 1
        first = region - self.first_region[k] << REGION - CHUNK
        count = self.first_chunk[k + 1] - self.first_chunk[k]
        last = min(first + (1 << REGION - CHUNK), count)
        return k, self.first_chunk[k] + first, self.first_chunk[k] + last

    def tar_end(self, region: int) -> int:
        """The region behind the last one of the tar of a region."""
        return self.first_region[int(np.searchsorted(self.first_region, region, side="right"))]

    def lock_use(self) -> bool:
        """Whether this process could say that it uses the set: not while it is being removed."""
        return self.locks.take(_USE, shared=True)

    def lock_removal(self) -> bool:
        """Whether nobody uses the set, and nobody will until the lock is dropped or the file is gone."""
        return self.locks.take(_USE)

    def lock_regions(self, first: int, stop: int, *, shared: bool) -> bool:
        """Keeps regions, or takes them to give them up; False where not all can be had.

        Those before stay locked then: only the caller knows which of them other threads of the process lock, too.
        """
        return all(locks.take(begin, count, shared=shared) for locks, begin, count in self._groups(first, stop))

    def drop_regions(self, first: int, stop: int) -> None:
        """Ends either."""
        for locks, begin, count in self._groups(first, stop):
            locks.drop(begin, count)

    def _groups(self, first: int, stop: int) -> Iterator[tuple[FileLocks, int, int]]:
        for group in range(first >> _GROUP, (stop - 1 >> _GROUP) + 1):
            begin, end = max(first, group << _GROUP), min(stop, group + 1 << _GROUP)
            yield self._region_locks[group % _SPREAD], begin, end - begin

    def close(self) -> None:
        """Closes the files, which ends all locks."""
        for locks in (self.locks, *self._region_locks):
            locks.close()

    def lock_chunks(self, first: int, stop: int) -> bool:
        """Takes chunks to fetch them."""
        return self.locks.take(_CHUNKS + first, stop - first)

    def drop_chunks(self, first: int, stop: int) -> None:
        """Ends that."""
        self.locks.drop(_CHUNKS + first, stop - first)

    def lock_file(self, number: int) -> bool:
        """Takes a whole file to fetch it."""
        return self.locks.take(_FILES + number)

    def drop_file(self, number: int) -> None:
        """Ends that."""
        self.locks.drop(_FILES + number)


@functools.cache
def _fallocate() -> Any:
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)
    function.restype = ctypes.c_int
    return function


def punch(handle: int, start: int, count: int) -> None:
    """Gives bytes of a file back to the disk: FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE."""
    if _fallocate()(handle, 3, start, count):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
