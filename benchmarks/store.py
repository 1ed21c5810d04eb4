"""The neutral store: the frames every contender's data are made of, and against which every batch is checked.

::

    <store>/<source>.bin   JPEG bytes, end to end
    <store>/<source>.npz   where each picture lies, and everything else of a frame
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["SOURCES", "CAMERAS", "SIZE", "PAD", "Source", "Store", "StoreFrames", "write_source"]

SIZE = 256
PAD = 32
CAMERAS = ("cam0", "cam1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """One of the three sources."""

    name: str
    width: int
    """Of state and action."""
    weight: float
    tasks: tuple[str, ...]


SOURCES = (
    Source(name="arm", width=7, weight=0.5, tasks=("pick up the red cup", "close the drawer", "wipe the table")),
    Source(name="dual", width=14, weight=0.3, tasks=("fold the towel", "hand over the screwdriver")),
    Source(name="humanoid", width=26, weight=0.2, tasks=("carry the box to the shelf", "open the door", "wave")),
)


def write_source(folder: Path, name: str, episodes: Iterable[dict[str, object]]) -> int:
    """Writes one source.

    Args:
        folder: Of the store.
        name: Of the source.
        episodes: In order: ``jpegs`` [T][cameras] bytes, ``state`` and ``action`` float32 [T, D], ``task`` its number.

    Returns:
        Frames written.
    """
    places, lengths, states, actions, tasks = [], [], [], [], []
    end = 0
    with (folder / f"{name}.bin").open("wb") as file:
        for episode in episodes:
            for pair in episode["jpegs"]:  # type: ignore[attr-defined]
                for data in pair:
                    file.write(data)
                    places.append((end, len(data)))
                    end += len(data)
            lengths.append(len(episode["state"]))  # type: ignore[arg-type]
            states.append(episode["state"])
            actions.append(episode["action"])
            tasks.append(episode["task"])
    np.savez(
        folder / f"{name}.npz",
        place=np.asarray(places, np.int64).reshape(-1, len(CAMERAS), 2),
        length=np.asarray(lengths, np.int64),
        state=np.concatenate(states),
        action=np.concatenate(actions),
        task=np.asarray(tasks, np.int64),
    )
    return sum(lengths)


class StoreFrames:
    """The frames of one source.

    Args:
        folder: Of the store.
        source: Which.
    """

    def __init__(self, folder: Path, source: Source) -> None:
        self.source = source
        self._path = Path(folder) / f"{source.name}.bin"
        with np.load(Path(folder) / f"{source.name}.npz") as arrays:
            self.place: npt.NDArray[np.int64] = arrays["place"]
            self.lengths: npt.NDArray[np.int64] = arrays["length"]
            self.state: npt.NDArray[np.float32] = arrays["state"]
            self.action: npt.NDArray[np.float32] = arrays["action"]
            self._task = arrays["task"]
        self.first = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        """int64 [episodes]: row of each episode's first frame."""
        self.episode = np.repeat(np.arange(len(self.lengths)), self.lengths)
        """int64 [frames]."""
        self.frame = np.arange(len(self.episode)) - self.first[self.episode]
        """int64 [frames]: in its episode."""

    @cached_property
    def bytes(self) -> npt.NDArray[np.uint8]:
        """Every picture, memory-mapped."""
        return np.memmap(self._path, np.uint8, mode="r").view(np.ndarray)

    def __len__(self) -> int:
        return len(self.episode)

    def jpeg(self, row: int, camera: int) -> npt.NDArray[np.uint8]:
        """One picture's bytes; a view."""
        start, length = self.place[row, camera]
        return self.bytes[start : start + length]

    def task(self, row: int) -> str:
        """Of a frame."""
        return self.source.tasks[self._task[self.episode[row]]]


class Store:
    """All sources.

    Args:
        folder: Of the store.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        self.sources = [StoreFrames(self.folder, source) for source in SOURCES]

    def draw(self, samples: int, seed: int) -> npt.NDArray[np.int64]:
        """Samples in the mixture's shares, frames without repetition within a source where they suffice.

        Returns:
            int64 [samples, 2]: source, row.
        """
        rng = np.random.default_rng(seed)
        chosen = rng.choice(len(self.sources), samples, p=[source.weight for source in SOURCES])
        rows = np.empty(samples, np.int64)
        for number, frames in enumerate(self.sources):
            mine = np.flatnonzero(chosen == number)
            rows[mine] = np.resize(rng.permutation(len(frames)), len(mine))
        return np.stack([chosen, rows], axis=1)

    def facts(self) -> dict[str, object]:
        """What the report says of the data."""
        sizes = np.concatenate([frames.place[:, :, 1].ravel() for frames in self.sources])
        return {
            "frames": sum(len(frames) for frames in self.sources),
            "episodes": sum(len(frames.lengths) for frames in self.sources),
            "mean_bytes": float(sizes.mean()),
            "p5_bytes": float(np.percentile(sizes, 5)),
            "p95_bytes": float(np.percentile(sizes, 95)),
        }


def save_facts(path: Path, facts: dict[str, object]) -> None:
    """Writes a small JSON file, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    partial.replace(path)
