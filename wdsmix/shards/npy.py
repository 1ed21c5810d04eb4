"""Reading .npy bytes of unknown origin: nothing pickled, no memory taken on the word of a header."""

from __future__ import annotations

import io
import math
import tokenize
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError

__all__ = ["NpyHeader", "check_length", "read_header", "read_npy"]

_ERRORS = (
    ValueError,
    EOFError,
    TypeError,
    KeyError,
    SyntaxError,
    tokenize.TokenError,
    OverflowError,
    MemoryError,
    RecursionError,
)
"""All that numpy raises over damaged headers."""


class NpyHeader(NamedTuple):
    """What comes before the data."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    size: int
    """Bytes of the header."""


def read_header(data: bytes) -> NpyHeader:
    """Parses the header; ``data`` may end after it.

    Raises:
        DataError: not an .npy of version 1 or 2, or damaged.
    """
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in readers:
            raise DataError("not a readable .npy: unknown version", expected="1.0 or 2.0", found=version)
        shape, fortran, dtype = readers[version](stream)
    except _ERRORS as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise DataError(f"not a readable .npy: {words[0]}") from error
    return NpyHeader(shape, fortran, dtype, stream.tell())


def check_length(header: NpyHeader, size: int) -> None:
    """Compares what a header declares with the bytes that are there.

    Args:
        header: Of an array of plain values.
        size: Bytes of the whole file.

    Raises:
        DataError: they differ.
    """
    wanted = math.prod(header.shape) * header.dtype.itemsize
    if min(header.shape, default=0) < 0 or wanted != size - header.size:
        raise DataError(
            "the .npy is cut or has bytes too many",
            expected=f"{wanted} bytes",
            found=f"{size - header.size} bytes",
        )


def read_npy(data: bytes) -> npt.NDArray[Any]:
    """The array in the bytes of a whole .npy file; a read-only view of them.

    Raises:
        DataError: damaged, of another length than its header says, or pickled objects.
    """
    header = read_header(data)
    if header.dtype.hasobject:
        raise DataError("the .npy holds pickled objects, which are never loaded")
    check_length(header, len(data))
    if len(data) == header.size:
        return np.empty(header.shape, header.dtype)
    flat = np.frombuffer(data, header.dtype, offset=header.size)
    return flat.reshape(header.shape, order="F" if header.fortran else "C")
