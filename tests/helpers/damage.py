"""Damaging shard sets: blindly, or by someone who knows the format and leaves all checksums right."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

import wdsmix.shards.verify as verify_module
from wdsmix.manifest import Manifest, Stats, canonical_json
from wdsmix.shards.faults import Fault
from wdsmix.shards.frames import write_frames
from wdsmix.shards.tario import END, padding, ustar_header
from wdsmix.shards.verify import Report, verify

Members = list[tuple[str, bytes]]


def flip(path: Path, byte: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1 << bit
    path.write_bytes(bytes(data))


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(seal(value))


def seal(value: dict[str, Any]) -> bytes:
    """A manifest with the checksum that it should have, as whoever knows the format can make it."""
    try:
        value = Manifest.model_validate(value).model_dump(mode="json")
    except ValidationError:
        return canonical_json(value)
    blank = canonical_json({**value, "checksum": ""})
    return canonical_json({**value, "checksum": hashlib.sha256(blank).hexdigest()})


def stats_json(value: dict[str, Any]) -> bytes:
    return canonical_json(Stats.model_validate(value))


def rehash(folder: Path) -> None:
    """Makes the manifest list the files as they are now."""

    def change(value: dict[str, Any]) -> None:
        for entry in value["files"]:
            data = (folder / entry["name"]).read_bytes()
            entry["bytes"] = len(data)
            entry["sha256"] = hashlib.sha256(data).hexdigest()
            entry["crc32c"] = google_crc32c.value(data)

    edit_manifest(folder, change)


def edit_index(folder: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    """Changes the rows of the index; checksums stay right."""
    table = pq.read_table(folder / "index.parquet")
    rows = table.to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), folder / "index.parquet")
    rehash(folder)


def read_table(folder: Path, shard: str) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any], list[str]]:
    """Columns, vectors, presence and tasks of a frame table, as writable copies."""
    with pa.OSFile(str(folder / f"{shard}.frames.arrow")) as file:
        table = pa.ipc.open_file(file).read_all().combine_chunks()
    columns, vectors, present = {}, {}, {}
    for name in table.column_names:
        array = table.column(name).combine_chunks()
        if not name.startswith("vector:"):
            columns[name] = array.to_numpy().copy()
        else:
            width = array.type.list_size
            rows = [[0.0] * width if row is None else row for row in array.to_pylist()]
            vectors[name[7:]] = np.array(rows, np.float32).reshape(-1, width)
            present[name[7:]] = array.is_valid().to_numpy(zero_copy_only=False)
    return columns, vectors, present, json.loads(table.schema.metadata[b"tasks"])


def edit_table(folder: Path, shard: str, change: Callable[..., None]) -> None:
    """Changes a frame table (``change(columns, vectors, present)``); checksums stay right."""
    columns, vectors, present, tasks = read_table(folder, shard)
    change(columns, vectors, present)
    write_frames(folder / f"{shard}.frames.arrow", columns, vectors, present, tasks)
    rehash(folder)


def edit_tar(
    folder: Path,
    shard: str,
    change: Callable[[Members], Members | None],
    vectors: Callable[..., None] = lambda vectors: None,
    header: Callable[[str, int], bytes] = ustar_header,
    end: bytes = END,
) -> None:
    """Changes the members of a tar (and its vectors in the frame table) and makes all checksums and offsets right."""
    path = folder / f"{shard}.tar"
    with tarfile.open(path) as tar:
        members = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
    members = change(members) or members
    columns, rows, present, tasks = read_table(folder, shard)
    counts = [sum(1 for _ in group) for group in _groups(members, len(columns["offset"]))]
    position, blob, at = 0, b"", 0
    for row, count in enumerate(counts):
        frame = b"".join(header(name, len(data)) + data + padding(len(data)) for name, data in members[at : at + count])
        columns["offset"][row], columns["length"][row] = position, len(frame)
        columns["crc32c"][row] = google_crc32c.value(frame)
        blob, position, at = blob + frame, position + len(frame), at + count
    path.write_bytes(blob + end)
    vectors(rows)
    write_frames(folder / f"{shard}.frames.arrow", columns, rows, present, tasks)

    def places(index: list[dict[str, Any]]) -> None:
        for row in index:
            if row["shard"] == shard:
                first, last = row["first_row"], row["first_row"] + row["frames"] - 1
                row["offset"] = int(columns["offset"][first])
                row["length"] = int(columns["offset"][last]) + int(columns["length"][last]) - row["offset"]

    edit_index(folder, places)


def _groups(members: Members, frames: int) -> list[Members]:
    """Members of each frame: a frame ends with its JSON."""
    groups: list[Members] = [[]]
    for name, data in members:
        groups[-1].append((name, data))
        if name.endswith(".json"):
            groups.append([])
    assert len(groups) == frames + 1
    return groups[:-1]


def full(folder: Path, **options: Any) -> Report:
    return verify(folder, level="full", **options)


def dying_worker(job: Any) -> Any:
    """Stands in for the check of a shard in a worker process; the second shard kills it."""
    if job.shard == "train-00001":
        os._exit(9)
    return verify_module._shard(job, verify_module._ticks.put)


def faults(report: Report, kind: str) -> list[Fault]:
    return [fault for fault in report.faults if fault.kind == kind]


def kinds(report: Report) -> set[str]:
    return {kind for kind, count in report.faults.counts.items() if count}
