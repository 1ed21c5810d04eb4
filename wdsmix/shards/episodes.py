"""Whole episodes: all frames of every camera, all vectors, as sequence models want them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError, DataError
from wdsmix.imaging import decode_depth, decode_rgb

if TYPE_CHECKING:
    from wdsmix.shards.reader import ShardSet
    from wdsmix.shards.shardfile import ShardFile

__all__ = ["EpisodeData", "EpisodeDataset", "decode_picture", "decoding", "read_episode"]


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeData:
    """One episode of T frames, decoded."""

    episode: int
    """Its number."""
    split: str
    source_file: str
    source_episode: str
    images: Mapping[str, npt.NDArray[Any]]
    """Slot -> uint8 [T, H, W, 3], RGB (depth: uint16 [T, H, W], mm); slots without any picture have no entry."""
    image_mask: Mapping[str, npt.NDArray[np.bool_]]
    """Slot -> bool [T]: whether the frame has the picture; where not, its pixels are zeros."""
    vectors: Mapping[str, npt.NDArray[np.float32]]
    """Name -> float32 [T, D]; a vector that the episode lacks has no entry."""
    timestamps: npt.NDArray[np.float64]
    """float64 [T], s."""
    task: list[str]
    """One a frame."""
    extras: Mapping[str, Any]
    """Facts of the whole episode."""

    def __len__(self) -> int:
        return len(self.timestamps)

    @property
    def state(self) -> npt.NDArray[np.float32] | None:
        """float32 [T, Ds]."""
        return self.vectors.get("state")

    @property
    def action(self) -> npt.NDArray[np.float32] | None:
        """float32 [T, Da]."""
        return self.vectors.get("action")

    @property
    def task_zh(self) -> str | None:
        """The task in Chinese, where the source has it."""
        return self.extras.get("task_zh")

    @property
    def score(self) -> float | None:
        """How well the episode was judged, where the source tells."""
        return self.extras.get("score")


class EpisodeDataset:
    """Map-style dataset of whole episodes (``len``, ``[i]``); pickles, so that loader workers can have it."""

    def __init__(self, shards: ShardSet, split: str | None = None) -> None:
        self._set = shards
        self.split = split
        index = shards.index
        if split is None:
            self.rows: npt.NDArray[np.int64] = np.arange(len(index))
        elif split in index.splits:
            self.rows = np.flatnonzero(index.split == index.splits.index(split))
        else:
            raise ConfigError(
                "the set has no such split",
                path=shards.path,
                expected=" or ".join(index.splits) or "none",
                found=split,
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> EpisodeData:
        return read_episode(self._set, int(self.rows[i]))

    def __iter__(self) -> Iterator[EpisodeData]:
        return (self[i] for i in range(len(self)))


def decode_picture(data: npt.NDArray[np.uint8], kind: str) -> npt.NDArray[Any]:
    """Decodes one stored picture: uint8 [H, W, 3], or uint16 [H, W] for ``depth``."""
    return decode_depth(data) if kind == "depth" else decode_rgb(data)


@contextmanager
def decoding(shard: ShardFile, row: int, slot: str) -> Iterator[None]:
    """Names the picture in what its decoder raises."""
    try:
        yield
    except DataError as error:
        error.path = str(shard.path)
        error.where = f"offset {int(shard.offset[row])}, sample {shard.key(row)}, {slot}"
        raise


def read_episode(shards: ShardSet, i: int) -> EpisodeData:
    """Reads the i-th episode of the index.

    Raises:
        DataError: damaged, or its pictures of one camera differ in size.
    """
    index, manifest = shards.index, shards.manifest
    shard = shards.shard(int(index.shard[i]))
    first, frames = int(index.first_row[i]), int(index.frames[i])
    rows = slice(first, first + frames)
    images: dict[str, npt.NDArray[Any]] = {}
    masks: dict[str, npt.NDArray[np.bool_]] = {}
    shard.prepare(first, first + frames)
    for t in range(frames):
        members = shard.members(first + t)
        for slot, camera in manifest.cameras.items():
            data = members.get(camera.member)
            if data is None:
                continue
            with decoding(shard, first + t, slot):
                _place(images, masks, slot, t, frames, decode_picture(data, camera.kind))
    source_file, source_episode = index.source(i)
    return EpisodeData(
        episode=int(index.episode[i]),
        split=index.splits[int(index.split[i])],
        source_file=source_file,
        source_episode=source_episode,
        images=images,
        image_mask=masks,
        vectors={name: part[rows] for name, part in shard.vectors.items() if shard.present[name][rows].any()},
        timestamps=shard.timestamp[rows],
        task=[shard.tasks[number] for number in shard.task[rows].tolist()],
        extras=index.extras(i),
    )


def _place(
    images: dict[str, npt.NDArray[Any]],
    masks: dict[str, npt.NDArray[np.bool_]],
    slot: str,
    t: int,
    frames: int,
    pixels: npt.NDArray[Any],
) -> None:
    if slot not in images:
        images[slot] = np.zeros((frames, *pixels.shape), pixels.dtype)
        masks[slot] = np.zeros(frames, np.bool_)
    if images[slot].shape[1:] != pixels.shape:
        raise DataError(
            "pictures of one camera differ in size within the episode",
            expected=list(images[slot].shape[1:]),
            found=list(pixels.shape),
        )
    images[slot][t] = pixels
    masks[slot][t] = True
