"""A shard set as the stock webdataset library reads it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from wdsmix.errors import ConfigError

if TYPE_CHECKING:
    import webdataset

    from wdsmix.shards.reader import ShardSet

__all__ = ["open_webdataset", "tar_paths"]


def tar_paths(shard_set: ShardSet, split: str | None = None) -> list[str]:
    """Absolute paths of the tars of a split that have frames, in the order of the set.

    Raises:
        ConfigError: the set has no such split.
    """
    index = shard_set.index
    if split is not None and split not in index.splits:
        raise ConfigError(
            f"the set has no split {split!r}",
            path=shard_set.path,
            expected=f"one of {', '.join(index.splits)}",
            found=split,
        )
    chosen = np.ones(len(index.split), bool) if split is None else index.split == index.splits.index(split)
    names = shard_set.manifest.shards
    folder = shard_set.path.absolute()
    return [str(folder / f"{names[k]}.tar") for k in np.unique(index.shard[chosen & (index.frames > 0)]).tolist()]


def open_webdataset(shard_set: ShardSet, split: str | None, options: dict[str, Any]) -> webdataset.WebDataset:
    """A `webdataset.WebDataset` over the tars of a split.

    Raises:
        ConfigError: the set has no such split, or lies where webdataset would take its path for a pattern.
    """
    import webdataset as wds

    paths = tar_paths(shard_set, split)
    if any(mark in path for path in paths for mark in ("{", "::")):
        raise ConfigError(
            "webdataset takes this path for a pattern", path=shard_set.path, hint="use a folder without { and :: in it"
        )
    return wds.WebDataset(paths, **{"shardshuffle": False, **options})
