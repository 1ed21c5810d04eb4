"""Summary of a shard set: counts, sizes, dimensions, tasks and lengths, as plain JSON types."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from wdsmix.manifest import FieldStats, Manifest, VectorEntry
from wdsmix.shards.reader import ShardSet
from wdsmix.shards.writer import member_order

__all__ = ["summarize"]

_SAMPLED = 256
_BINS = 10


def summarize(opened: ShardSet) -> dict[str, Any]:
    """Gathers what `wdsmix inspect` shows.

    Reads manifest, index, statistics and the frame tables; of the tars only the headers of up to 256 frames.

    Args:
        opened: The set.

    Raises:
        DataError: the set is damaged.
    """
    manifest = opened.manifest
    tar_bytes = sum(entry.bytes for entry in manifest.files if entry.name.endswith(".tar"))
    return {
        "path": str(opened.path),
        "digest": opened.digest,
        **{
            field: getattr(manifest, field)
            for field in ("name", "kind", "embodiment", "licence", "hz", "source_fps", "format_version")
        },
        "converter": f"{manifest.converter} {manifest.converter_version}",
        "counts": manifest.counts.model_dump(),
        "splits": {split: counts.model_dump() for split, counts in manifest.splits.items()},
        "bytes": {"total": sum(entry.bytes for entry in manifest.files), "tars": tar_bytes},
        "bytes_per_frame": tar_bytes / max(manifest.counts.frames, 1),
        "shards": _shards(opened),
        "cameras": _cameras(opened),
        "vectors": {
            name: _vector(manifest.vectors[name], opened.stats.fields.get(name))
            for name in member_order(manifest.vectors)
        },
        "tasks": _tasks(opened),
        "episodes": _episodes(opened),
        "dropped": _dropped(manifest),
        "warnings": manifest.warnings,
        "details": manifest.details,
        "arguments": manifest.arguments,
        "libraries": manifest.libraries,
    }


def _shards(opened: ShardSet) -> dict[str, Any]:
    index = opened.index
    frames = np.bincount(index.shard, weights=index.frames, minlength=len(opened.manifest.shards))
    if not len(frames):
        return {"count": 0, "frames_min": 0, "frames_mean": 0.0, "frames_max": 0}
    return {
        "count": len(frames),
        "frames_min": int(frames.min()),
        "frames_mean": float(frames.mean()),
        "frames_max": int(frames.max()),
    }


def _cameras(opened: ShardSet) -> dict[str, Any]:
    """The manifest's cameras, and the mean size of a picture over frames spread evenly over the set."""
    sizes: dict[str, list[int]] = {camera.member: [] for camera in opened.manifest.cameras.values()}
    count = min(len(opened), _SAMPLED) if sizes else 0
    for i in np.linspace(0, len(opened) - 1, count).astype(int).tolist():
        _, shard, row = opened.locate(i)
        for suffix, data in opened.shard(shard).members(row, verify=False).items():
            if suffix in sizes:
                sizes[suffix].append(len(data))
    made = {}
    for slot, camera in opened.manifest.cameras.items():
        found = sizes[camera.member]
        made[slot] = {
            **camera.model_dump(mode="json"),
            "share": camera.frames / max(len(opened), 1),
            "mean_bytes": float(np.mean(found)) if found else None,
            "sampled": len(found),
        }
    return made


def _vector(entry: VectorEntry, stats: FieldStats | None) -> dict[str, Any]:
    dims = []
    for d in range(entry.width):
        dim: dict[str, Any] = {"dim": d}
        for field, key in (("names", "name"), ("units", "unit"), ("kinds", "kind")):
            values = getattr(entry, field)
            dim[key] = values[d] if d < len(values) else ""
        if stats is not None:
            dim.update({key: getattr(stats, key)[d] for key in ("mean", "std", "min", "q01", "q99", "max")})
            dim["constant"] = stats.min[d] == stats.max[d]
        dims.append(dim)
    return {
        "width": entry.width,
        "member": entry.member,
        "frames": entry.frames,
        "train_frames": stats.count if stats else 0,
        "dims": dims,
    }


def _tasks(opened: ShardSet) -> list[dict[str, Any]]:
    """Tasks by frames, most first."""
    frames: Counter[str] = Counter()
    for k in sorted(set(opened.index.shard.tolist())):
        shard = opened.shard(k)
        counts = np.bincount(shard.task, minlength=len(shard.tasks)).tolist()
        for task, count in zip(shard.tasks, counts, strict=True):
            frames[task] += count
    episodes: Counter[str] = Counter()
    for i in range(len(opened.index)):
        episodes.update(set(opened.index.tasks(i)))
    order = sorted(frames, key=lambda task: (-frames[task], task))
    return [{"task": task, "frames": frames[task], "episodes": episodes[task]} for task in order]


def _episodes(opened: ShardSet) -> dict[str, Any]:
    lengths = opened.index.frames
    if not len(lengths):
        return {"count": 0, "histogram": []}
    low, high = int(lengths.min()), int(lengths.max())
    step = max(1, -(-(high - low + 1) // _BINS))
    counts = np.bincount((lengths - low) // step)
    return {
        "count": len(lengths),
        "frames_min": low,
        "frames_median": float(np.median(lengths)),
        "frames_mean": float(lengths.mean()),
        "frames_max": high,
        "seconds": float(lengths.sum() / opened.manifest.hz),
        "histogram": [
            {"from": low + k * step, "to": min(low + (k + 1) * step - 1, high), "episodes": count}
            for k, count in enumerate(counts.tolist())
        ],
    }


def _dropped(manifest: Manifest) -> list[dict[str, Any]]:
    """Dropped episodes and files by reason, most first, with one example."""
    counts = Counter((drop.kind, drop.reason) for drop in manifest.dropped)
    example = {(drop.kind, drop.reason): drop for drop in reversed(manifest.dropped)}
    return [
        {
            "kind": kind,
            "reason": reason,
            "count": count,
            "example": f"{example[kind, reason].source_file} {example[kind, reason].source_episode}".strip(),
        }
        for (kind, reason), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
