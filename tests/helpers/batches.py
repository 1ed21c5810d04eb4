"""A batch built the slow way: map-style reads of whole frames, one offset at a time, numpy by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from wdsmix.shards.reader import ShardSet


def set_row(shard_set: ShardSet, episode: int, frame: int) -> int:
    """Row of a frame in its whole set."""
    first = 0
    for number, frames in zip(shard_set.index.episode.tolist(), shard_set.index.frames.tolist(), strict=True):
        if number == episode:
            assert 0 <= frame < frames
            return first + frame
        first += frames
    raise AssertionError(f"no episode {episode}")


def episode_length(shard_set: ShardSet, episode: int) -> int:
    return int(shard_set.index.frames[shard_set.index.episode.tolist().index(episode)])


def naive_sample(
    shard_set: ShardSet,
    episode: int,
    frame: int,
    *,
    offsets: Sequence[int],
    chunk: int,
    cameras: Sequence[str],
    pad_to: Mapping[str, int],
    size: tuple[int, int],
) -> dict[str, Any]:
    """One sample, not normalised: what a map-style dataset with clipped indices gives."""
    length = episode_length(shard_set, episode)

    def read(at: int) -> Any:
        return shard_set.frame(set_row(shard_set, episode, min(max(at, 0), length - 1)))

    own = read(frame)
    seen = [read(frame + offset) for offset in offsets]
    acted = [read(frame + k) for k in range(chunk)]
    width, height = size
    images = np.zeros((len(offsets), len(cameras), height, width, 3), np.uint8)
    mask = np.zeros((len(offsets), len(cameras)), bool)
    for t, one in enumerate(seen):
        for c, slot in enumerate(cameras):
            if slot in one.images:
                images[t, c] = one.images[slot]
                mask[t, c] = True
    out: dict[str, Any] = {
        "images": images.transpose(0, 1, 4, 2, 3),
        "image_mask": mask,
        "observation_is_pad": np.array([not 0 <= frame + offset < length for offset in offsets]),
        "action_is_pad": np.array([not 0 <= frame + k < length for k in range(chunk)]),
        "task": own.task,
        "episode": own.episode,
        "frame": own.frame,
    }
    for name, wide in pad_to.items():
        frames = acted if name == "action" else seen
        rows = np.zeros((len(frames), wide), np.float32)
        real = np.zeros(wide, bool)
        for t, one in enumerate(frames):
            if name in one.vectors:
                rows[t, : len(one.vectors[name])] = one.vectors[name]
                real[: len(one.vectors[name])] = True
        out[name], out[f"{name}_mask"] = rows, real
    return out


def assert_same(left: Mapping[str, Any], right: Mapping[str, Any], *, but: Sequence[str] = ()) -> None:
    """Two batches are equal in every field, to the bit."""
    assert left.keys() == right.keys()
    for name, value in left.items():
        if name in but:
            continue
        if isinstance(value, torch.Tensor):
            assert value.dtype == right[name].dtype, name
            assert torch.equal(value, right[name]), name
        else:
            assert value == right[name], name


def joined(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Rank-major concatenation of one step's batches."""
    out: dict[str, Any] = {}
    for name, value in parts[0].items():
        if isinstance(value, torch.Tensor):
            out[name] = torch.cat([part[name] for part in parts])
        elif isinstance(value, list):
            out[name] = [item for part in parts for item in part[name]]
        elif name == "extras":
            out[name] = {key: [item for part in parts for item in part[name][key]] for key in value}
        else:
            assert all(part[name] == value for part in parts), name
            out[name] = value
    return out
