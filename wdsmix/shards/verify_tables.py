"""Checks of index.parquet and frames.arrow: each for itself, against each other, the manifest and the tar's size."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from wdsmix.errors import DataError
from wdsmix.manifest import INDEX_SCHEMA, FileEntry, Manifest
from wdsmix.shards.faults import Faults
from wdsmix.shards.frames import ARROW_ERRORS, FrameTable, read_frames
from wdsmix.shards.receipt import EpisodeRow
from wdsmix.shards.tario import BLOCK, END
from wdsmix.shards.verify_manifest import is_adopted

__all__ = ["check_frames", "check_index", "frame_place", "open_frames"]

INDEX = "index.parquet"


def frame_place(table: FrameTable, row: int) -> str:
    """How a fault names a frame: row, sample key and offset."""
    episode, frame = table.columns["episode"][row], table.columns["frame"][row]
    return f"row {row}, {episode:06d}_{frame:06d}, byte {table.columns['offset'][row]}"


def _many(faults: Faults, kind: str, file: str, message: str, places: Sequence[str], total: int) -> None:
    for place in places:
        faults.add(kind, file, message, where=place)
    faults.counts[kind] += total - len(places)


def _schema_difference(wanted: pa.Schema, found: pa.Schema) -> str:
    if wanted.names != found.names:
        return f"columns {', '.join(found.names)}"
    return "; ".join(
        f"{field.name} is {found.field(field.name).type}"
        for field in wanted
        if found.field(field.name).type != field.type
    )


def check_index(folder: Path, manifest: Manifest, faults: Faults) -> dict[str, list[EpisodeRow]] | None:
    """Reads and checks index.parquet; returns the rows of each shard, or None where it can't be read."""
    try:
        # Arrow's own schema note is not needed: the types are checked here
        table = pq.ParquetFile(folder / INDEX).read(use_threads=False)
        table.validate(full=True)
        difference = _schema_difference(INDEX_SCHEMA, table.schema)
        if difference:
            faults.add("index", INDEX, "not the contract's columns", found=difference)
            return None
        records = [EpisodeRow.model_validate(record) for record in table.to_pylist()]
    except ARROW_ERRORS as error:
        faults.add_error("index", INDEX, error)
        return None
    faults.saw("index", len(records))
    shards: dict[str, list[EpisodeRow]] = {shard: [] for shard in manifest.shards}
    position = -1
    order = {shard: k for k, shard in enumerate(manifest.shards)}
    for number, row in enumerate(records):
        if row.shard not in order:
            faults.add("index", INDEX, "no such shard in the manifest", where=f"row {number}", found=row.shard)
            continue
        if order[row.shard] < position:
            faults.add("index", INDEX, "shards are not in the manifest's order", where=f"row {number}", found=row.shard)
        position = max(position, order[row.shard])
        shards[row.shard].append(row)
    _check_totals(manifest, records, faults)
    for shard, rows in shards.items():
        _check_rows(shard, rows, manifest, faults)
    return shards


def _check_totals(manifest: Manifest, records: Sequence[EpisodeRow], faults: Faults) -> None:
    split_of = {row.shard: row.split for row in records}
    shards = {shard: split_of.get(shard, shard.rsplit("-", 1)[0]) for shard in manifest.shards}
    for split in sorted({*manifest.splits, *split_of.values()}):
        rows = [row for row in records if row.split == split]
        found = (len(rows), sum(row.frames for row in rows))
        counts = manifest.splits.get(split)
        wanted = (counts.episodes, counts.frames) if counts else None
        if found != wanted:
            faults.add(
                "index",
                INDEX,
                "episodes and frames differ from the manifest's",
                where=f"split {split}",
                expected=wanted,
                found=found,
            )
        if counts and not is_adopted(manifest) and counts.shards != (n := list(shards.values()).count(split)):
            faults.add(
                "index", INDEX, "shards differ from the manifest's", where=split, expected=counts.shards, found=n
            )
    seen: dict[int, int] = {}
    for number, row in enumerate(records):
        if row.episode in seen:
            faults.add(
                "index", INDEX, f"episode {row.episode} occurs twice", where=f"rows {seen[row.episode]} and {number}"
            )
        seen[row.episode] = number
    for drop in manifest.dropped:
        if drop.episode in seen:
            faults.add(
                "index", INDEX, f"episode {drop.episode} is dropped in the manifest", where=f"row {seen[drop.episode]}"
            )


def _check_rows(shard: str, rows: Sequence[EpisodeRow], manifest: Manifest, faults: Faults) -> None:
    """One shard's rows: contiguous, in order, of one split."""
    first_row = end = 0
    last = -1
    adopted = is_adopted(manifest)
    for row in rows:
        where = f"{shard}, episode {row.episode}"

        def fault(message: str, expected: object = None, found: object = None, *, where: str = where) -> None:
            faults.add("index", INDEX, message, where=where, expected=expected, found=found)

        if row.first_row != first_row:
            fault("first_row does not follow the episode before", first_row, row.first_row)
        if row.frames < 1 or row.length < row.frames * BLOCK:
            fault("impossible frames or length", found=f"{row.frames} frames, {row.length} bytes")
        if row.offset < end if adopted else row.offset != end:
            fault("offset does not follow the episode before", end, row.offset)
        if row.episode <= last and not adopted:
            fault("episodes are not in ascending order", f"over {last}", row.episode)
        if row.split != rows[0].split or not (adopted or shard.startswith(f"{row.split}-")):
            fault("not the split of its shard", rows[0].split, row.split)
        if not row.tasks:
            fault("no task")
        if not (math.isfinite(row.duration) and row.duration >= 0):
            fault("not a duration", found=row.duration)
        if not isinstance(_json_or_none(row.extras), dict):
            fault("extras are not a JSON object", found=row.extras)
        first_row, end, last = row.first_row + row.frames, row.offset + row.length, row.episode


def _json_or_none(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def open_frames(folder: Path, entry: FileEntry, manifest: Manifest, faults: Faults) -> FrameTable | None:
    """Parses frames.arrow; None where that can't be done, which is then a fault."""
    widths = {name: vector.width for name, vector in manifest.vectors.items()}
    try:
        return read_frames(folder / entry.name, entry, widths, verify=False)
    except DataError as error:
        faults.add_error("frames", entry.name, error)
        return None


def check_frames(
    shard: str,
    table: FrameTable,
    rows: Sequence[EpisodeRow] | None,
    tar_bytes: int | None,
    adopted: bool,
    faults: Faults,
) -> None:
    """Checks a shard's frame table against the index (None: unreadable) and the size of its tar (None: missing)."""
    file = f"{shard}.frames.arrow"
    columns, count = table.columns, len(table)
    faults.saw("frames", count)

    def fault(bad: npt.NDArray[np.bool_], message: str, kind: str = "frames") -> None:
        found = np.flatnonzero(bad)
        if len(found):
            places = [frame_place(table, int(row)) for row in found[: faults.limit]]
            _many(faults, kind, file, message, places, len(found))

    start = columns["offset"].astype(np.int64)
    stop = start + columns["length"].astype(np.int64)
    before = np.concatenate([[0], stop[:-1]]) if count else start
    fault(start < before if adopted else start != before, "offset does not follow the frame before")
    end = int(stop[-1]) if count else 0
    if tar_bytes is not None and (end + len(END) > tar_bytes if adopted else end + len(END) != tar_bytes):
        faults.add(
            "frames",
            file,
            "the last frame and the size of the tar differ",
            where=frame_place(table, count - 1) if count else "",
            expected=f"{end + len(END)} bytes",
            found=f"{tar_bytes} bytes",
        )
    fault(~np.isfinite(columns["timestamp"]), "timestamp is not finite")
    for name, values in table.vectors.items():
        faults.saw("vector", values.size)
        present = table.present[name]
        fault(present & ~np.isfinite(values).all(axis=1), f"{name} holds NaN or infinity", "vector")
        fault(~present & (values != 0).any(axis=1), f"{name} is absent, but not zero", "vector")
    if rows is None:
        return
    if (total := sum(row.frames for row in rows)) != count:
        faults.add("frames", file, "number of rows differs from the index", expected=total, found=count)
    for row in rows:
        _check_episode(file, table, row, faults)


def _check_episode(file: str, table: FrameTable, row: EpisodeRow, faults: Faults) -> None:
    """One episode's rows of the frame table against its row of the index."""
    first, stop = row.first_row, min(row.first_row + row.frames, len(table))
    if stop - first < 1:
        faults.add(
            "index", INDEX, "rows outside of frames.arrow", where=f"{file[:-13]}, episode {row.episode}", found=first
        )
        return
    part = {name: column[first:stop] for name, column in table.columns.items()}
    checks: list[tuple[str, object, object]] = [
        ("offset", row.offset, int(part["offset"][0])),
        ("length", row.length, int(part["offset"][-1]) + int(part["length"][-1]) - row.offset),
    ]
    for wrong in np.flatnonzero(part["episode"] != row.episode)[:1]:
        checks.append((f"episode of row {first + wrong}", row.episode, int(part["episode"][wrong])))
    for wrong in np.flatnonzero(part["frame"] != np.arange(stop - first))[:1]:
        checks.append((f"frame of row {first + wrong}", int(wrong), int(part["frame"][wrong])))
    used = {table.tasks[task] for task in np.unique(part["task"]) if task < len(table.tasks)}
    checks.append(("tasks", True, used <= set(row.tasks)))
    for what, wanted, found in checks:
        if wanted != found:
            faults.add(
                "index",
                INDEX,
                f"{what} differs from {file}",
                where=f"{file[:-13]}, episode {row.episode}, row {first}",
                expected=wanted,
                found=found,
            )
