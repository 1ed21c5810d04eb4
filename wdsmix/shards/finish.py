"""Finishing a set: episode index, statistics and, last of all, the manifest, from the receipts of its shards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from wdsmix.errors import ConflictError, DataError
from wdsmix.manifest import (
    CameraEntry,
    Counts,
    Dropped,
    Manifest,
    Stats,
    VectorEntry,
    canonical_json,
    sealed,
)
from wdsmix.shards.files import file_entry, write_atomic
from wdsmix.shards.index import index_bytes
from wdsmix.shards.receipt import ShardReceipt
from wdsmix.stats import FieldAccumulator

__all__ = ["finish_set", "pooled_stats", "shard_order"]


def shard_order(shard: str, split: str) -> tuple[int, str, list[tuple[int, int, str]]]:
    """Sort key of shards in a manifest: train first, then val, then other splits by name; numbers as numbers."""
    parts = [(1, int(part), part) if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", shard) if part]
    return {"train": 0, "val": 1}.get(split, 2), split, parts


def finish_set(folder: Path, receipts: Sequence[ShardReceipt], header: Mapping[str, Any]) -> Manifest:
    """Writes index.parquet, stats.json and manifest.json, each whole or not at all, the manifest last.

    Args:
        folder: Folder of the set; the shards are in it.
        receipts: One a shard, in any order.
        header: The fields of `Manifest` that receipts don't tell. ``cameras``: slot -> ``key``, ``member``, ``kind``,
            ``encoding``; ``vectors``: name -> ``width`` and, where known, ``names``, ``units``, ``kinds``, ``member``;
            ``dropped``: what was dropped before any shard was written.

    Raises:
        ConflictError: receipts name a shard or an episode twice.
        DataError: a shard's file is missing or not as long as its receipt says.
    """
    folder = Path(folder)
    receipts = sorted(receipts, key=lambda receipt: shard_order(receipt.shard, receipt.split))
    _check(folder, receipts)
    rows = [row for receipt in receipts for row in receipt.episodes]
    write_atomic(folder / "index.parquet", index_bytes(rows))
    write_atomic(folder / "stats.json", canonical_json(pooled_stats(receipts, list(header["vectors"]))))
    files = [entry for receipt in receipts for entry in receipt.files]
    files += [file_entry(folder / "index.parquet"), file_entry(folder / "stats.json")]
    fields = dict(header)
    fields.update(
        cameras=_cameras(header["cameras"], receipts),
        vectors=_vectors(header["vectors"], receipts),
        counts=_counts(receipts),
        splits={
            split: _counts([receipt for receipt in receipts if receipt.split == split])
            for split in dict.fromkeys(receipt.split for receipt in receipts)
        },
        shards=[receipt.shard for receipt in receipts],
        files=sorted(files, key=lambda entry: entry.name),
        dropped=_dropped([*header.get("dropped", ()), *(d for receipt in receipts for d in receipt.dropped)]),
    )
    try:
        manifest = sealed(Manifest.model_validate(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(f"the manifest would not be valid: {first['msg']}", path=folder, where=where) from error
    write_atomic(folder / "manifest.json", canonical_json(manifest))
    return manifest


def _check(folder: Path, receipts: Sequence[ShardReceipt]) -> None:
    shards: set[str] = set()
    episodes: dict[int, str] = {}
    for receipt in receipts:
        if receipt.shard in shards:
            raise ConflictError("two receipts name the same shard", path=folder, found=receipt.shard)
        shards.add(receipt.shard)
        for row in receipt.episodes:
            if row.episode in episodes:
                raise ConflictError(
                    f"episode {row.episode} is in two shards",
                    path=folder,
                    found=f"{episodes[row.episode]} and {receipt.shard}",
                )
            episodes[row.episode] = receipt.shard
        for entry in receipt.files:
            path = folder / entry.name
            size = path.stat().st_size if path.is_file() else None
            if size != entry.bytes:
                raise DataError(
                    "a finished shard's file is missing or was changed",
                    path=path,
                    expected=f"{entry.bytes} bytes",
                    found="no file" if size is None else f"{size} bytes",
                )


def pooled_stats(receipts: Sequence[ShardReceipt], names: Sequence[str]) -> Stats:
    """Statistics of vectors over the train shards."""
    fields = {}
    for name in names:
        total: FieldAccumulator | None = None
        for receipt in receipts:
            if receipt.split == "train" and name in receipt.stats:
                part = FieldAccumulator.from_json(receipt.stats[name])
                if total is None:
                    total = part
                else:
                    total.merge(part)
        if total is not None and total.count:
            fields[name] = total.finish()
    return Stats(split="train", fields=fields)


def _cameras(header: Mapping[str, Mapping[str, Any]], receipts: Sequence[ShardReceipt]) -> dict[str, CameraEntry]:
    made = {}
    for slot, fields in header.items():
        counts = [receipt.cameras[slot] for receipt in receipts if slot in receipt.cameras]
        made[slot] = CameraEntry(
            **{
                **_plain(fields),
                "sizes": sorted({size for count in counts for size in count.sizes}),
                "frames": sum(count.frames for count in counts),
                "passthrough": sum(count.passthrough for count in counts),
            }
        )
    return made


def _vectors(header: Mapping[str, Mapping[str, Any]], receipts: Sequence[ShardReceipt]) -> dict[str, VectorEntry]:
    return {
        name: VectorEntry(
            **{
                "member": f"{name}.npy",
                **_plain(fields),
                "frames": sum(receipt.vectors.get(name, 0) for receipt in receipts),
            }
        )
        for name, fields in header.items()
    }


def _plain(fields: Any) -> dict[str, Any]:
    return dict(fields.model_dump()) if hasattr(fields, "model_dump") else dict(fields)


def _counts(receipts: Sequence[ShardReceipt]) -> Counts:
    return Counts(
        episodes=sum(len(receipt.episodes) for receipt in receipts),
        frames=sum(row.frames for receipt in receipts for row in receipt.episodes),
        shards=len(receipts),
    )


def _dropped(entries: Sequence[Any]) -> list[Dropped]:
    models = [entry if isinstance(entry, Dropped) else Dropped.model_validate(entry) for entry in entries]
    return sorted(models, key=lambda drop: (drop.episode, drop.source_file, drop.source_episode))
