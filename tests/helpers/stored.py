"""Sets with large shards for tests of stores, and the commands as processes."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path

from helpers.sets import header, picture, toy_episode, write_shard

from wdsmix.manifest import Manifest
from wdsmix.shards.finish import finish_set


def heavy_set(folder: Path, sizes: list[int], seed: int = 0) -> Manifest:
    """A set whose shards hold two frames each with a picture, and so many bytes after its end."""
    folder.mkdir(parents=True)
    receipts = []
    for k, size in enumerate(sizes):
        fields = toy_episode(k, 2, cameras=("cam0",))
        blobs = [random.Random(seed * 1000 + 2 * k + t).randbytes(size // 2) for t in range(2)]
        fields["frames"] = iter([{"cam0": picture(k) + blob} for blob in blobs])
        receipts.append(write_shard(folder, f"train-{k:05d}", "train", [fields]))
    return finish_set(folder, receipts, header(name=f"heavy{seed}"))


def command(*words: object, environment: dict[str, str] | None = None) -> list[str]:
    """The words that run a command in a process of its own."""
    return [sys.executable, "-m", "wdsmix.cli", *map(str, words)]


def start(*words: object, environment: dict[str, str]) -> subprocess.Popen[str]:
    """Starts a command."""
    return subprocess.Popen(
        command(*words),
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def files_of(folder: Path) -> dict[str, bytes]:
    """Name -> bytes of the files of a set's folder; hidden ones left out."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if not path.name.startswith(".")}
