"""Shard sets for tests of the mixture: deterministic, natural-looking pictures, smooth vectors, any shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import simplejpeg

from wdsmix.manifest import Manifest
from wdsmix.shards.finish import finish_set
from wdsmix.shards.writer import ShardWriter


def picture(size: tuple[int, int], *numbers: int) -> np.ndarray:
    """uint8 [H, W, 3]: a soft gradient with a few blobs; another one for other numbers."""
    width, height = size
    rng = np.random.default_rng([abs(number) for number in numbers])
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    y, x = y / height, x / width
    out = np.empty((height, width, 3))
    for channel in range(3):
        a, b, c = *rng.uniform(-90, 90, 2), rng.uniform(60, 190)
        out[:, :, channel] = a * x + b * y + c
    for _ in range(4):
        cx, cy, r = rng.uniform(0, 1), rng.uniform(0, 1), rng.uniform(0.05, 0.3)
        blob = np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * r * r))[:, :, None]
        out += blob * rng.uniform(-120, 120, 3)
    return np.clip(out, 0, 255).astype(np.uint8)


def vector(name: str, episode: int, frames: int, width: int) -> np.ndarray:
    """float32 [frames, width]: a smooth walk with an offset of its own per dimension."""
    rng = np.random.default_rng([sum(name.encode()), episode, width])
    steps = rng.normal(0, 0.1, (frames, width)).cumsum(axis=0)
    return (steps + np.arange(width) * 0.5 - 0.7).astype(np.float32)


def make_set(
    folder: Path,
    *,
    episodes: Sequence[int] = (5, 3, 7),
    dims: Mapping[str, int] | None = None,
    cameras: Sequence[str] = ("cam0",),
    size: tuple[int, int] | Mapping[str, tuple[int, int]] = (24, 24),
    name: str | None = None,
    embodiment: str = "arm",
    splits: Sequence[str] | None = None,
    episodes_per_shard: int = 2,
    numbers: Sequence[int] | None = None,
    change: Callable[[int, dict[str, np.ndarray]], dict[str, np.ndarray]] | None = None,
    lacks_camera: Callable[[str, int, int], bool] = lambda slot, episode, frame: False,
    extras: Mapping[str, object] | None = None,
    tasks: Sequence[str] = ("reach", "grasp"),
    encode: Callable[[np.ndarray], bytes] | None = None,
    member: str = "jpg",
    distinct_pictures: int = 0,
) -> Manifest:
    """Writes a set.

    Args:
        folder: Its folder; made.
        episodes: Frames of each episode.
        dims: Vector -> width; default: state 4, action 3.
        cameras: Slots.
        size: (width, height) of all pictures, or by slot.
        name: Default: the folder's.
        embodiment: Robot.
        splits: Split of each episode; default: all train.
        episodes_per_shard: How many go into one shard.
        numbers: Episode numbers; default: 0, 1, ...
        change: Given an episode number and its vectors, returns those to write.
        lacks_camera: Whether the picture of (slot, episode number, frame) is missing.
        extras: Facts of every episode.
        tasks: Spread evenly over an episode's frames.
        encode: From pixels to a picture's bytes; default: JPEG, quality 92, 4:4:4.
        member: Ending of the pictures' members.
        distinct_pictures: Encode only that many and repeat them (for large sets); 0: all differ.
    """
    folder.mkdir(parents=True)
    dims = {"state": 4, "action": 3} if dims is None else dict(dims)
    splits = ["train"] * len(episodes) if splits is None else list(splits)
    numbers = list(range(len(episodes))) if numbers is None else list(numbers)
    members = {slot: f"{slot}.{member}" for slot in cameras}
    cache: dict[tuple[int, ...], bytes] = {}

    def encoded(slot: str, episode: int, frame: int) -> bytes:
        key = (list(cameras).index(slot), episode, frame)
        if distinct_pictures:
            key = (key[0], 0, (episode * 37 + frame) % distinct_pictures)
        if key not in cache:
            pixels = picture(size[slot] if isinstance(size, Mapping) else size, *key)
            cache[key] = (
                encode(pixels) if encode else simplejpeg.encode_jpeg(pixels, quality=92, colorsubsampling="444")
            )
        return cache[key]

    receipts = []
    for split in dict.fromkeys(splits):
        mine = [i for i, other in enumerate(splits) if other == split]
        for part, start in enumerate(range(0, len(mine), episodes_per_shard)):
            with ShardWriter(folder, f"{split}-{part:05d}", vectors=dims, cameras=members, split=split) as writer:
                for i in mine[start : start + episodes_per_shard]:
                    number, frames = numbers[i], episodes[i]
                    vectors = {name: vector(name, number, frames, width) for name, width in dims.items()}
                    writer.write_episode(
                        episode=number,
                        frames=[
                            {s: encoded(s, number, t) for s in cameras if not lacks_camera(s, number, t)}
                            for t in range(frames)
                        ],
                        vectors=change(number, vectors) if change else vectors,
                        timestamps=np.arange(frames) / 10,
                        tasks=list(tasks),
                        task_index=(np.arange(frames) * len(tasks) // frames).astype(np.int32),
                        extras=dict(extras or {}),
                        source_file="made.hdf5",
                        source_episode=f"demo_{number}",
                        duration=frames / 10,
                    )
                receipts.append(writer.close())
    header = {
        "name": name or folder.name,
        "kind": "test/made",
        "embodiment": embodiment,
        "hz": 10.0,
        "source_fps": 10.0,
        "cameras": {s: {"key": s, "member": m, "kind": "rgb", "encoding": "jpeg"} for s, m in members.items()},
        "vectors": {name: {"width": width} for name, width in dims.items()},
        "converter": "tests",
        "converter_version": "0",
        "arguments": {},
        "libraries": {},
        "source_fingerprint": "0",
        "plan_digest": "0",
    }
    return finish_set(folder, receipts, header)
