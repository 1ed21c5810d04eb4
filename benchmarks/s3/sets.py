"""The sets that are pushed, fetched and streamed: the benchmark's sources, several times over, in large shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.data import Scale

__all__ = ["bytes_of", "files_of", "make_sets"]

_TIMES = {"s3-streaming": 12, "s3-transfer": 2}
"""Folder -> how often each source's episodes. Streaming begins with a window of each source: it is measured within the
first epoch. One gigabyte goes up in each round of transfers."""


def make_sets(root: Path, scale: Scale) -> tuple[Path, Path]:
    """Makes the sets, unless they are there.

    Returns:
        Folder of a set a source for streaming, and one set to push and fetch.
    """
    from benchmarks.contenders.wdsmix import write_set  # transfers, which only list files, shall not load torch
    from benchmarks.data import make_stores
    from benchmarks.store import SOURCES, Store

    make_stores(root, scale)
    for name, times in _TIMES.items():
        folder = root / name
        done = folder / f".complete-{times}"
        if done.is_file():
            continue
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for frames in Store(root / "store-444").sources[: 1 if name == "s3-transfer" else None]:
            write_set(frames, folder / frames.source.name, episodes_a_shard=len(frames.lengths), times=times)
        done.touch()
    return root / "s3-streaming", root / "s3-transfer" / SOURCES[0].name


def files_of(folder: Path) -> list[Path]:
    """The files of a set."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def bytes_of(folder: Path) -> int:
    """Of all files of a set."""
    return sum(path.stat().st_size for path in files_of(folder))
