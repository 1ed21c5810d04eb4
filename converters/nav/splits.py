"""The published split of a navigation dataset: ``{train,test}/traj_names.txt``. Read, never recomputed."""

from __future__ import annotations

import os
from pathlib import Path

from wdsmix.errors import ConfigError

__all__ = ["NAMES_FILE", "find_splits", "read_splits"]

NAMES_FILE = "traj_names.txt"


def find_splits(folder: Path) -> dict[str, Path]:
    """Split -> its list of names, directly below a folder (or the only subfolder that has such lists)."""
    found: dict[str, Path] = {}
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        if entry.is_dir() and (Path(entry.path) / NAMES_FILE).is_file():
            found[entry.name] = Path(entry.path) / NAMES_FILE
    return found


def read_splits(folder: Path, dataset: str) -> dict[str, str]:
    """Name of a trajectory -> its split.

    Args:
        folder: Holds ``train/traj_names.txt`` and the like, itself or in the subfolder of the dataset.
        dataset: Name of that subfolder.

    Raises:
        ConfigError: no such lists, or a trajectory is in two of them.
    """
    lists: dict[str, Path] = {}
    for candidate in (folder, folder / dataset):
        if candidate.is_dir() and not lists:
            lists = find_splits(candidate)
    if not lists:
        raise ConfigError(
            "no lists of names", path=folder, where="--splits", expected=f"train/{NAMES_FILE}, test/{NAMES_FILE}"
        )
    splits: dict[str, str] = {}
    for split, path in lists.items():
        for line in path.read_text("utf-8", "replace").splitlines():
            name = line.strip().rstrip("/").rsplit("/", 1)[-1]
            if not name:
                continue
            if splits.setdefault(name, split) != split:
                raise ConfigError(
                    "a trajectory is in two splits", path=path, where=name, found=f"{splits[name]} and {split}"
                )
    return splits
