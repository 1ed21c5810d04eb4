"""Makes the data: photographic episodes, once, in a store for 4:4:4 and one for 4:2:0; then each contender's format."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import numpy.typing as npt
import simplejpeg

from benchmarks.photos import sequence
from benchmarks.store import SIZE, SOURCES, Store, save_facts, write_source

__all__ = ["FULL", "QUICK", "SUBSAMPLINGS", "Scale", "make_format", "make_stores"]

QUALITY = 92
SUBSAMPLINGS = ("444", "420")
DATA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Scale:
    """How much data."""

    name: str
    episodes: int
    """Of each source."""
    shortest: int
    longest: int
    """Frames of an episode."""


FULL = Scale(name="full", episodes=40, shortest=90, longest=110)
QUICK = Scale(name="quick", episodes=6, shortest=90, longest=110)


def _walk(rng: np.random.Generator, frames: int, width: int) -> npt.NDArray[np.float32]:
    steps = rng.normal(0, 0.02, (frames, width))
    return np.cumsum(steps, axis=0).astype(np.float32)


def _episode(source: int, episode: int, scale: Scale) -> dict[str, dict[str, object]]:
    """One episode, encoded both ways: subsampling -> what `write_source` takes."""
    rng = np.random.default_rng((2026, source, episode))
    frames = int(rng.integers(scale.shortest, scale.longest + 1))
    width = SOURCES[source].width
    state = _walk(rng, frames, width)
    action = np.concatenate([state[1:], state[-1:]])
    views = (sequence((source, episode, camera), frames, SIZE, reach=1 + 0.4 * camera) for camera in range(2))
    jpegs: dict[str, list[tuple[bytes, ...]]] = {name: [] for name in SUBSAMPLINGS}
    for pair in zip(*views, strict=True):
        for name in SUBSAMPLINGS:
            jpegs[name].append(
                tuple(
                    simplejpeg.encode_jpeg(np.ascontiguousarray(view), QUALITY, colorsubsampling=name, fastdct=False)
                    for view in pair
                )
            )
    task = int(rng.integers(len(SOURCES[source].tasks)))
    return {name: {"jpegs": jpegs[name], "state": state, "action": action, "task": task} for name in SUBSAMPLINGS}


def make_stores(root: Path, scale: Scale, processes: int | None = None) -> None:
    """Makes ``root/store-444`` and ``root/store-420``, unless they are there.

    Args:
        root: Where.
        scale: How much.
        processes: That render; default: the cores this process may use.
    """
    if all((root / f"store-{name}" / "facts.json").is_file() for name in SUBSAMPLINGS):
        return
    folders = {name: root / f"store-{name}" for name in SUBSAMPLINGS}
    for folder in folders.values():
        folder.mkdir(parents=True, exist_ok=True)
    workers = processes or len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for number, source in enumerate(SOURCES):
            jobs = [pool.submit(_episode, number, episode, scale) for episode in range(scale.episodes)]
            episodes = [job.result() for job in jobs]
            for name, folder in folders.items():
                write_source(folder, source.name, _of(episodes, name))
    for folder in folders.values():
        save_facts(folder / "facts.json", {**Store(folder).facts(), "scale": scale.name, "version": DATA_VERSION})


def _of(episodes: list[dict[str, dict[str, object]]], name: str) -> Iterator[dict[str, object]]:
    for episode in episodes:
        yield episode[name]


def make_format(root: Path, contender: str, subsampling: str) -> None:
    """Writes the store in a contender's format, unless it is there; runs in that contender's environment.

    wdsmix's is always written anew, by the code of the day.

    Args:
        root: Where the stores are.
        contender: Module in benchmarks/contenders.
        subsampling: Which store.
    """
    folder = root / f"{contender}-{subsampling}"
    if (folder / ".complete").is_file() and contender != "wdsmix":
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    module = importlib.import_module(f"benchmarks.contenders.{contender}")
    module.write(Store(root / f"store-{subsampling}"), folder)
    (folder / ".complete").touch()


if __name__ == "__main__":
    make_format(Path(sys.argv[1]), sys.argv[2], sys.argv[3])
