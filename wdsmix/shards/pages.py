"""Mapping the pages of a tar a stretch at a time.

Shuffled frames touch a mapped tar all over, and each first touch of 16 pages costs a page fault, several microseconds
in a virtual machine. One call for a stretch of a mebibyte, which the order will use within the same window anyway,
costs less than the faults of two frames. It reads from a cold disk in one go too, with the interpreter's lock released.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

__all__ = ["Pages"]

_STRETCH = 20  # bits
_POPULATE_READ = 22  # MADV_POPULATE_READ, Linux 5.14


@functools.cache
def _madvise() -> Callable[..., int] | None:
    """Libc's madvise; None where there is none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    function.restype = ctypes.c_int
    return function


class Pages:
    """Which stretches of a mapped file are in this process's page table. Only ever a help: failures are no errors.

    Args:
        data: uint8, the whole file as mapped, from its first byte.
    """

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self._size = len(data)
        self._address = data.ctypes.data
        self._data = data  # keeps the map
        self._there = bytearray((self._size >> _STRETCH) + 1)
        self._usable = self._size > 0 and self._address % mmap.PAGESIZE == 0

    def touch(self, start: int, stop: int) -> None:
        """Maps the stretches that bytes ``start`` to ``stop`` lie in, each once. Safe from any thread."""
        for stretch in range(start >> _STRETCH, (stop - 1 >> _STRETCH) + 1):
            if self._usable and not self._there[stretch]:
                self._there[stretch] = 1
                self._populate(stretch << _STRETCH)

    def _populate(self, first: int) -> None:
        madvise = _madvise()
        if madvise is not None:
            madvise(self._address + first, min(1 << _STRETCH, self._size - first), _POPULATE_READ)
