"""Small shard sets for tests, made straight with ShardWriter and finish_set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from wdsmix.manifest import Manifest
from wdsmix.shards.finish import finish_set
from wdsmix.shards.writer import ShardReceipt, ShardWriter

VECTORS = {"state": 3, "action": 2, "reward": 1, "text_emb": 4}
CAMERAS = {"cam0": "cam0.jpg", "cam1": "cam1.jpg"}


def header(vectors: dict[str, int] = VECTORS, cameras: dict[str, str] = CAMERAS, **more: Any) -> dict[str, Any]:
    """Manifest fields that receipts don't tell."""
    fields: dict[str, Any] = {
        "name": "toy",
        "kind": "test/toy",
        "embodiment": "panda",
        "hz": 10.0,
        "source_fps": 10.0,
        "cameras": {
            slot: {"key": f"view_{slot}", "member": member, "kind": "rgb", "encoding": "jpeg"}
            for slot, member in cameras.items()
        },
        "vectors": {name: {"width": width} for name, width in vectors.items()},
        "converter": "test",
        "converter_version": "1",
        "arguments": {},
        "libraries": {},
        "source_fingerprint": "0",
        "plan_digest": "0",
    }
    return {**fields, **more}


def picture(seed: int, width: int = 16, height: int = 12) -> bytes:
    """A JPEG of smooth colours that depends on ``seed``."""
    y, x = np.mgrid[0:height, 0:width]
    pixels = np.stack([x * 9 + seed * 31, y * 11 + seed * 17, (x + y) * 5 + seed * 7], axis=-1) % 256
    return simplejpeg.encode_jpeg(np.ascontiguousarray(pixels.astype(np.uint8)), quality=95)


def toy_episode(
    number: int, length: int, /, *, cameras: tuple[str, ...] = ("cam0", "cam1"), **more: Any
) -> dict[str, Any]:
    """Arguments of `ShardWriter.write_episode`; a pure function of ``number`` and ``length``."""
    rng = np.random.default_rng(number)
    pictures = [{slot: picture(100 * number + 7 * t + k) for k, slot in enumerate(cameras)} for t in range(length)]
    fields: dict[str, Any] = {
        "episode": number,
        "frames": iter(pictures),
        "vectors": {
            "state": rng.normal(size=(length, 3)).astype(np.float32),
            "action": rng.normal(size=(length, 2)).astype(np.float32),
            "reward": np.eye(1, length, length - 1, dtype=np.float32).reshape(length, 1),
        },
        "timestamps": np.arange(length) / 10.0,
        "tasks": [f"task {number % 2}"],
        "extras": {"score": float(number), "task_zh": "任务", "note": ""},
        "source_file": f"file{number // 3}.hdf5",
        "source_episode": f"demo_{number % 3}",
        "duration": length / 10.0,
    }
    return {**fields, **more}


def write_shard(folder: Path, name: str, split: str, episodes: list[dict[str, Any]], **more: Any) -> ShardReceipt:
    """One shard of toy episodes."""
    with ShardWriter(
        folder, name, vectors=more.get("vectors", VECTORS), cameras=more.get("cameras", CAMERAS), split=split
    ) as writer:
        for fields in episodes:
            writer.write_episode(**fields)
        return writer.close()


def toy_set(folder: Path) -> Manifest:
    """Two train shards and one of validation; five episodes of 4, 3, 5, 2 and 6 frames, number 3 dropped."""
    folder.mkdir(parents=True, exist_ok=True)
    receipts = [
        write_shard(folder, "train-00000", "train", [toy_episode(0, 4), toy_episode(1, 3)]),
        write_shard(folder, "train-00001", "train", [toy_episode(2, 5), toy_episode(4, 2, cameras=("cam0",))]),
        write_shard(folder, "val-00000", "val", [toy_episode(5, 6)]),
    ]
    return finish_set(folder, receipts, header())
