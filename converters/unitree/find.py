"""Finding raw episodes: folders that hold a data.json, at any depth up to three."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from wdsmix.converters.slots import natural_key

from wdsmix.errors import DataError

__all__ = ["PICTURE_FOLDERS", "Place", "find_places", "fingerprint", "has_places"]

_DEPTH = 3
_OWN = frozenset({"colors", "depths", "audios", "tactiles"})
PICTURE_FOLDERS = ("colors", "depths")
"""Where the recorder puts pictures."""

_FAILED = ("FAILED", "failed")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where an episode lies."""

    folder: str
    """Below the root; ``.`` for the root itself."""
    file: str
    """Name of its JSON file; empty where a folder of pictures has none."""
    failed: bool = False
    """Whether the recorder marked it as a failure."""


def _json(names: list[str]) -> str | None:
    if "data.json" in names:
        return "data.json"
    other = [name for name in names if name.endswith("data.json")]
    return other[0] if len(other) == 1 else None


def find_places(root: Path) -> list[Place]:
    """All episodes, in natural order, also those that lack their JSON file; empty if all do."""
    found = []
    without = []
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        file = _json(sorted(names))
        if file is not None:
            found.append(
                Place(folder=here.as_posix(), file=file, failed=any((Path(folder) / m).exists() for m in _FAILED))
            )
            folders.clear()
        elif "colors" in folders:
            without.append(Place(folder=here.as_posix(), file=""))
            folders.clear()
        elif len(here.parts) >= _DEPTH:
            folders.clear()
        else:
            folders[:] = [name for name in folders if name not in _OWN and not name.startswith(".")]
    return sorted([*found, *without] if found else [], key=lambda place: natural_key(place.folder))


def has_places(root: Path) -> bool:
    """Whether there is an episode; raises where one is near, but not here.

    Raises:
        DataError: the folder is inside an episode, or its episodes lie deeper.
    """
    if find_places(root):
        return True
    if root.resolve().name in _OWN and (root.resolve().parent / "data.json").is_file():
        raise DataError("a folder of an episode, not the episode", path=root, hint="give the folder above it")
    for folder, folders, names in os.walk(root):
        if "data.json" in names:
            raise DataError(
                "its episodes lie too deep",
                path=root,
                expected=f"data.json at most {_DEPTH} folders down",
                found=Path(folder).relative_to(root).as_posix(),
                hint="give a folder nearer to them",
            )
        if len(Path(folder).relative_to(root).parts) > 2 * _DEPTH:
            folders.clear()
    return False


def fingerprint(root: Path, places: list[Place]) -> str:
    """sha256 over all data.json files, and names and sizes of the pictures."""
    total = hashlib.sha256()
    for place in places:
        folder = root / place.folder
        total.update(f"{place.folder}\0{place.failed}\0".encode("utf-8", "surrogateescape"))
        try:
            if place.file and (folder / place.file).is_file():  # no pipe
                with (folder / place.file).open("rb") as stream:
                    while block := stream.read(1 << 20):
                        total.update(block)
        except OSError as error:
            total.update(f"unreadable {error.errno}".encode())
        for inner in PICTURE_FOLDERS:
            if (folder / inner).is_dir():
                for entry in sorted(os.scandir(folder / inner), key=lambda item: item.name):
                    if entry.is_file():
                        line = f"{inner}/{entry.name}\0{entry.stat().st_size}\0"
                        total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()
