"""The sets that are pushed, fetched and streamed: the benchmark's sources, several times over, in large shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.data import Scale

__all__ = ["SUBFOLDER", "bytes_of", "files_of", "make_sets"]

SUBFOLDER = "s3"
_TIMES = 3


def make_sets(root: Path, scale: Scale) -> Path:
    """Makes one set a source, unless they are there; returns their folder."""
    from benchmarks.contenders.wdsmix import write_set  # transfers, which only list files, shall not load torch
    from benchmarks.data import make_stores
    from benchmarks.store import Store

    folder = root / SUBFOLDER
    if (folder / ".complete").is_file():
        return folder
    make_stores(root, scale)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for frames in Store(root / "store-444").sources:
        write_set(frames, folder / frames.source.name, episodes_a_shard=len(frames.lengths), times=_TIMES)
    (folder / ".complete").touch()
    return folder


def files_of(folder: Path) -> list[Path]:
    """The files of a set."""
    return sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))


def bytes_of(folder: Path) -> int:
    """Of all files of a set."""
    return sum(path.stat().st_size for path in files_of(folder))
