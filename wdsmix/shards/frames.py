"""frames.arrow: one row per frame of a shard, written to be memory-mapped and read without trusting it.

The file is Arrow IPC, one record batch, uncompressed, columns as `wdsmix.manifest.frames_schema` says. Rows are in the
order of the tar.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsmix.errors import DataError
from wdsmix.manifest import FORMAT_VERSION, FRAME_COLUMNS, FileEntry, frames_schema

__all__ = ["ARROW_ERRORS", "FrameTable", "check_crc", "map_file", "read_frames", "write_frames"]

ARROW_ERRORS = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    MemoryError,
    OverflowError,
    RecursionError,
)
"""All that pyarrow, numpy and json raise over damaged input."""

_TYPES: dict[str, npt.DTypeLike] = {
    "offset": np.uint64,
    "length": np.uint32,
    "crc32c": np.uint32,
    "episode": np.uint32,
    "frame": np.uint32,
    "timestamp": np.float64,
    "task": np.uint32,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class FrameTable:
    """A shard's frame table; arrays of N rows, views of the mapped file that can't be written to."""

    columns: Mapping[str, npt.NDArray[Any]]
    """``offset length crc32c episode frame timestamp task``."""
    vectors: Mapping[str, npt.NDArray[np.float32]]
    """Name -> float32 [N, D]; zeros where absent."""
    present: Mapping[str, npt.NDArray[np.bool_]]
    """Name -> bool [N]."""
    tasks: list[str]

    def __len__(self) -> int:
        return len(self.columns["offset"])


def write_frames(
    path: Path,
    columns: Mapping[str, npt.NDArray[Any]],
    vectors: Mapping[str, npt.NDArray[np.float32]],
    present: Mapping[str, npt.NDArray[np.bool_]],
    tasks: Sequence[str],
) -> None:
    """Writes a frame table; the caller syncs and renames.

    Args:
        path: Where to write.
        columns: The seven columns of `FrameTable`, N rows each.
        vectors: Name -> float32 [N, D], zeros where absent.
        present: Name -> bool [N].
        tasks: The task table.
    """
    widths = {name: array.shape[1] for name, array in vectors.items()}
    schema = frames_schema(widths, list(tasks))
    arrays: list[pa.Array] = []
    for field in FRAME_COLUMNS:
        data = np.ascontiguousarray(columns[field.name], dtype=_TYPES[field.name])
        arrays.append(pa.Array.from_buffers(field.type, len(data), [None, pa.py_buffer(data)], 0))
    for name, array in vectors.items():
        flat = np.ascontiguousarray(array, dtype=np.float32).reshape(-1)
        child = pa.Array.from_buffers(pa.float32(), len(flat), [None, pa.py_buffer(flat)], 0)
        missing = len(array) - int(np.count_nonzero(present[name]))
        bitmap = pa.py_buffer(np.packbits(present[name], bitorder="little")) if missing else None
        kind = schema.field(f"vector:{name}").type
        arrays.append(pa.Array.from_buffers(kind, len(array), [bitmap], missing, children=[child]))
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    options = pa.ipc.IpcWriteOptions(
        metadata_version=pa.ipc.MetadataVersion.V5, use_legacy_format=False, compression=None, use_threads=False
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema, options=options) as writer:
        writer.write_batch(batch)


def map_file(path: Path, entry: FileEntry) -> pa.Buffer:
    """Maps a file of a set. The map lasts as long as something refers to the buffer; no file stays open.

    Raises:
        DataError: the file is missing, unreadable, or not as long as the manifest says.
    """
    try:
        size = path.stat().st_size
        if size != entry.bytes:
            raise DataError(
                "the file is not as long as the manifest says",
                path=path,
                expected=f"{entry.bytes} bytes",
                found=f"{size} bytes",
                hint="it is damaged or half copied: fetch or convert it again",
            )
        if not size:
            return pa.py_buffer(b"")
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer(size)
    except FileNotFoundError as error:
        raise DataError("a file of the set is missing", path=path, hint="the manifest lists it") from error
    except OSError as error:
        raise DataError(f"can't be read: {error}", path=path) from error


def check_crc(path: Path, data: pa.Buffer, entry: FileEntry) -> None:
    """Checks a mapped file against the manifest.

    Raises:
        DataError: it was changed or damaged since.
    """
    found = google_crc32c.value(np.frombuffer(data, np.uint8)) if data.size else 0
    if found != entry.crc32c:
        raise DataError(
            "damaged: its checksum is not the manifest's",
            path=path,
            expected=f"crc32c {entry.crc32c:08x}",
            found=f"{found:08x}",
            hint="fetch or convert it again",
        )


def read_frames(path: Path, entry: FileEntry, vectors: Mapping[str, int], *, verify: bool = True) -> FrameTable:
    """Maps a frame table, without copies.

    Args:
        path: The file.
        entry: What the manifest says of it.
        vectors: Name -> width, as the manifest has them.
        verify: Whether to check its crc32c first, which reads it once.

    Raises:
        DataError: missing, damaged, or not what the manifest promises.
    """
    data = map_file(path, entry)
    if verify:
        check_crc(path, data, entry)
    try:
        return _parse(path, data, vectors)
    except ARROW_ERRORS as error:
        raise DataError(f"not a readable frame table: {error}", path=path) from error


def _parse(path: Path, data: pa.Buffer, vectors: Mapping[str, int]) -> FrameTable:
    reader = pa.ipc.open_file(pa.BufferReader(data))
    found = reader.schema
    tasks = _tasks(path, found.metadata or {})
    wanted = frames_schema(dict(vectors), tasks)
    if sorted(wanted.names) == sorted(found.names):  # the order of the vectors is free
        wanted = pa.schema([wanted.field(name) for name in found.names])
    if not found.equals(wanted, check_metadata=False):
        raise DataError(
            "not the columns that the manifest promises", path=path, expected=_brief(wanted), found=_brief(found)
        )
    if reader.num_record_batches != 1:
        raise DataError("wrong number of record batches", path=path, expected=1, found=reader.num_record_batches)
    batch = reader.get_batch(0)
    batch.validate(full=True)
    columns: dict[str, npt.NDArray[Any]] = {}
    for field in FRAME_COLUMNS:
        array = batch.column(field.name)
        if array.null_count:
            raise DataError("a column holds nulls", path=path, where=field.name)
        columns[field.name] = array.to_numpy(zero_copy_only=True)
    rows: dict[str, npt.NDArray[np.float32]] = {}
    present: dict[str, npt.NDArray[np.bool_]] = {}
    for name, width in vectors.items():
        array = batch.column(f"vector:{name}")
        values = array.values
        if values.null_count or len(values) != len(array) * width:
            raise DataError("a vector has missing values", path=path, where=name)
        rows[name] = values.to_numpy(zero_copy_only=True).reshape(len(array), width)
        present[name] = array.is_valid().to_numpy(zero_copy_only=False)
    table = FrameTable(columns=columns, vectors=rows, present=present, tasks=tasks)
    if len(table) and int(columns["task"].max()) >= len(tasks):
        raise DataError(
            "a row names a task beyond the task table",
            path=path,
            expected=f"below {len(tasks)}",
            found=int(columns["task"].max()),
        )
    return table


def _tasks(path: Path, metadata: Mapping[bytes, bytes]) -> list[str]:
    version = metadata.get(b"wdsmix", b"none").decode(errors="replace")
    if version != str(FORMAT_VERSION):
        raise DataError("unknown format version", path=path, expected=FORMAT_VERSION, found=version)
    tasks = json.loads(metadata.get(b"tasks", b"null"))
    if not isinstance(tasks, list) or not all(isinstance(task, str) for task in tasks):
        raise DataError("no task table", path=path, where="schema metadata")
    return tasks


def _brief(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
