"""The .npy reader gives what numpy gives, and refuses what would cost memory or run code."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wdsmix.errors import DataError
from wdsmix.shards.npy import read_header, read_npy


def _saved(array: np.ndarray, **options: object) -> bytes:
    out = io.BytesIO()
    np.save(out, array, **options)  # type: ignore[arg-type]
    return out.getvalue()


_DTYPES = st.sampled_from(["<f4", ">f8", "<f2", "<i8", "|u1", "|b1", "<U3"])


@given(_DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0))), st.booleans())
def test_reads_what_numpy_wrote(array: np.ndarray, fortran: bool) -> None:
    data = _saved(np.asfortranarray(array) if fortran else array)
    theirs, ours = np.load(io.BytesIO(data)), read_npy(data)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    assert ours.tobytes() == theirs.tobytes()
    assert read_header(data).shape == theirs.shape


def test_objects_are_not_loaded() -> None:
    data = _saved(np.array([pytest.fail], dtype=object))
    with pytest.raises(DataError, match="never loaded"):
        read_npy(data)
    assert read_header(data).dtype.hasobject


def test_a_header_that_asks_for_memory() -> None:
    huge = _saved(np.zeros(3, "<f4"))
    huge = huge.replace(b"(3,), }            ", b"(999999999999,), } ")
    assert read_header(huge).shape == (999999999999,)
    with pytest.raises(DataError, match="cut"):
        read_npy(huge)


@given(st.binary(max_size=200))
def test_nonsense_is_refused(tail: bytes) -> None:
    for data in (tail, b"\x93NUMPY\x01\x00v\x00" + tail, b"\x93NUMPY\x02\x00\x10\x00\x00\x00" + tail):
        with pytest.raises(DataError):
            read_npy(data)


@given(st.integers(0, 139), st.integers(0, 7))
def test_flipped_bits_raise_nothing_else(byte: int, bit: int) -> None:
    data = bytearray(_saved(np.arange(3, dtype="<f4")))
    data[byte] ^= 1 << bit
    try:
        read_npy(bytes(data))
    except DataError:
        return
