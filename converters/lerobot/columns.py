"""Columns of a table as vectors and as plain values, whatever way a writer stored them."""

from __future__ import annotations

import base64
import datetime
import math

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wdsmix.errors import DataError

__all__ = ["bad_cells", "column_width", "flat_numbers", "integers", "is_numeric", "is_picture", "is_scalar", "plain"]

_NUMBERS = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_decimal)
_LISTS = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _LISTS)


def _bare(kind: pa.DataType) -> pa.DataType:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def is_scalar(kind: pa.DataType) -> bool:
    """Whether cells are single numbers."""
    return any(test(_bare(kind)) for test in _NUMBERS)


def is_numeric(kind: pa.DataType) -> bool:
    """Whether cells are numbers, or lists of them to any depth."""
    kind = _bare(kind)
    while _is_list(kind):
        kind = _bare(kind.value_type)
    return is_scalar(kind)


def is_picture(kind: pa.DataType) -> bool:
    """Whether cells can hold pictures: binary, or a struct with ``bytes`` or ``path``."""
    kind = _bare(kind)
    if pa.types.is_struct(kind):
        return any(kind.field(k).name in ("bytes", "path") for k in range(kind.num_fields))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def column_width(column: pa.ChunkedArray | pa.Array) -> int:
    """Numbers in the first cell that is not null; 0 where there is none."""
    for cell in column:
        if cell.is_valid:
            return len(_flat(cell.as_py()))
    return 0


def _flat(value: object) -> list[object]:
    if isinstance(value, (list, tuple)):
        return [number for item in value for number in _flat(item)]
    return [value]


def flat_numbers(column: pa.ChunkedArray | pa.Array, width: int, *, key: str) -> npt.NDArray[np.float32]:
    """float32 [T, width]; a cell that is null or of another length comes out as NaN, and so does a null in one.

    Raises:
        DataError: the column holds no numbers.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    rows = len(array)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if not is_numeric(array.type):
        raise DataError("not numbers", where=key, found=str(array.type))
    good = np.ones(rows, bool)
    offsets: npt.NDArray[np.int64] = np.arange(rows + 1, dtype=np.int64)
    while _is_list(array.type):
        good &= _valid_ranges(array, offsets)
        offsets, array = _descend(array, offsets)
    values = pc.cast(array, pa.float64(), safe=False) if not pa.types.is_boolean(array.type) else array.cast(pa.uint8())
    numbers = np.asarray(values.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    lengths = np.diff(offsets)
    good &= lengths == width
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = numbers.astype(np.float32)
    if good.all() and rows and len(narrow) == offsets[-1] - offsets[0]:
        return np.ascontiguousarray(narrow.reshape(rows, width))
    out = np.full((rows, width), np.nan, np.float32)
    picked = np.flatnonzero(good)
    if len(picked):
        out[picked] = narrow[offsets[picked][:, None] + np.arange(width)]
    return out


def _valid_ranges(array: pa.Array, offsets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """For each range, whether all its cells are valid."""
    if not array.null_count:
        return np.ones(len(offsets) - 1, bool)
    invalid = np.concatenate([[0], np.cumsum(~np.asarray(array.is_valid()))])
    result: npt.NDArray[np.bool_] = invalid[offsets[1:]] == invalid[offsets[:-1]]
    return result


def _descend(array: pa.Array, offsets: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], pa.Array]:
    """One level of lists down: where each range's cells lie among the children."""
    if pa.types.is_fixed_size_list(array.type):
        size = array.type.list_size
        children = array.values.slice(array.offset * size, len(array) * size)
        return offsets * size, _stored(children)
    inner = np.asarray(array.offsets, dtype=np.int64)
    children = array.values.slice(int(inner[0]), int(inner[-1] - inner[0]))
    return (inner - inner[0])[offsets], _stored(children)


def _stored(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array


def bad_cells(values: npt.NDArray[np.float32]) -> npt.NDArray[np.bool_]:
    """Rows, as bool [T], that hold a value that is not finite."""
    finite: npt.NDArray[np.bool_] = np.isfinite(values)
    return np.asarray(~finite.all(axis=1))


def integers(column: pa.ChunkedArray, *, key: str) -> npt.NDArray[np.int64]:
    """int64 [T] of a column of integers, which may have become floats or lists of one.

    Raises:
        DataError: one is missing or not whole.
    """
    if _is_list(_bare(column.type)):
        numbers = flat_numbers(column, 1, key=key)[:, 0].astype(np.float64)
    else:
        numbers = np.asarray(pc.cast(column, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    whole = np.isfinite(numbers) & (numbers == np.floor(numbers))
    if not whole.all():
        row = int(np.flatnonzero(~whole)[0])
        raise DataError("not an integer", where=f"{key} row {row}", found=str(numbers[row]))
    return numbers.astype(np.int64)


def plain(value: object) -> object:
    """A cell as JSON types: no NaN, no bytes, no dates."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, datetime.timedelta):
        return value.total_seconds()
    return value if value is None or isinstance(value, (str, int, bool)) else str(value)
