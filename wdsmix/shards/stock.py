"""Tars as the stock webdataset library reads them: of a shard set, or any others, on disks and in stores.

Tars in stores come by way of `wdsmix.store`: a few ranged requests at a time, resumed where they break, of one version,
and checked for their length. Nothing is cached.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wdsmix.errors import ConfigError
from wdsmix.store.opening import SCHEMES, is_url, open_store
from wdsmix.store.reader import ObjectReader

if TYPE_CHECKING:
    import webdataset

    from wdsmix.shards.reader import ShardSet

__all__ = ["open_webdataset", "stream_webdataset", "tar_paths"]

_BUFFER = 1 << 18


def tar_paths(shard_set: ShardSet, split: str | None = None) -> list[str]:
    """Absolute paths or URLs of the tars of a split that have frames, in the order of the set.

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
    folder = shard_set.path.absolute() if isinstance(shard_set.path, Path) else shard_set.path
    return [str(folder / f"{names[k]}.tar") for k in np.unique(index.shard[chosen & (index.frames > 0)]).tolist()]


def open_webdataset(shard_set: ShardSet, split: str | None, options: dict[str, Any]) -> webdataset.WebDataset:
    """A `webdataset.WebDataset` over the tars of a split.

    Raises:
        ConfigError: the set has no such split, or lies where webdataset would take its path for a pattern.
    """
    paths = tar_paths(shard_set, split)
    if any(mark in path for path in paths for mark in ("{", "::")):
        raise ConfigError(
            "webdataset takes this path for a pattern", path=shard_set.path, hint="use a folder without { and :: in it"
        )
    return stream_webdataset(paths, **options)


def stream_webdataset(tars: str | Sequence[str], *, connections: int = 4, **options: Any) -> webdataset.WebDataset:
    """A `webdataset.WebDataset` over any tars, read one after another: no index, manifest or statistics are needed.

    What can be promised of it is what webdataset promises: whole tars are dealt to ranks (``nodesplitter``) and
    workers, so that shares hold for tars and not for samples, ranks may have unequal numbers of batches, and the order
    depends on how many ranks and workers there are; no state, no checksums. ``wdsmix index`` makes a shard set of such
    tars, which a mixture reads exactly.

    Args:
        tars: Paths or URLs (``s3://``, ``gs://``, ``az://``, ``http(s)://``), or a brace pattern.
        connections: Requests at a time for a tar in a store, of 8 MiB each, of which one more is held in memory. With 1
            a tar comes over one connection, at what a store gives each: enough for many workers.
        options: For `webdataset.WebDataset`; ``shardshuffle`` is False where it is not given. Its ``cache_dir`` is for
            paths alone.

    Raises:
        ConfigError: ``cache_dir`` together with URLs, or no connection.
    """
    import webdataset as wds
    from webdataset.cache import StreamingOpen

    if connections < 1:
        raise ConfigError("a tar needs a connection", where="connections", expected="1 or more", found=connections)
    dataset = wds.WebDataset(tars, **{"shardshuffle": False, **options})
    opener = _Opener(options.get("handler", wds.reraise_exception), connections)
    stages = [opener if isinstance(stage, StreamingOpen) else stage for stage in dataset.pipeline]
    remote = any(_is_ours(tar) for tar in ([tars] if isinstance(tars, str) else tars))
    if remote and not any(stage is opener for stage in stages):
        raise ConfigError("webdataset's own cache can't hold what lies in a store", where="cache_dir")
    dataset.pipeline = stages
    return dataset


class _Opener:
    """The stage of a pipeline that opens tars; pickles."""

    def __init__(self, handler: Callable[[Exception], bool], connections: int) -> None:
        self._handler, self._connections = handler, connections

    def __call__(self, tars: Iterable[Any]) -> Iterator[dict[str, Any]]:
        for item in tars:
            url = item["url"] if isinstance(item, dict) else item
            try:
                stream = _open(url, self._connections)
            except Exception as error:
                if not self._handler(error):
                    return
                continue
            yield {"url": url, "stream": stream, "local_path": None if _is_ours(url) else url}


def _is_ours(url: str) -> bool:
    return is_url(url) and url.partition("://")[0] in SCHEMES and not url.startswith("file:")


def _open(url: str, connections: int) -> Any:
    if not _is_ours(url):  # paths, pipes and what else webdataset knows
        from webdataset import gopen

        return gopen(url)
    folder, _, name = url.rpartition("/")
    return io.BufferedReader(_ObjectFile(ObjectReader(open_store(folder), name), connections), _BUFFER)


class _ObjectFile(io.RawIOBase):
    """An object as a file to be read once from beginning to end."""

    def __init__(self, reader: ObjectReader, connections: int) -> None:
        self._parts = reader.stream() if connections == 1 else reader.ranged(depth=connections)
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        """It can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fills a part of a buffer; 0 at the end."""
        if not self._rest:
            self._rest = memoryview(next(self._parts, b""))
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        """Lets go of the connection."""
        self._parts.close()
        super().close()
