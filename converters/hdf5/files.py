"""Finding the files of a source, without following links out of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wdsmix.converters.slots import natural_key

from wdsmix.errors import DataError
from wdsmix.texts import encodable, printable

__all__ = ["SUFFIXES", "Found", "confined", "find_files", "fingerprint"]

SUFFIXES = (".hdf5", ".h5", ".hdf", ".he5")
_SAMPLE = 64 << 10
_PICTURES = (".jpg", ".jpeg", ".png", ".webp")


@dataclass(kw_only=True, slots=True)
class Found:
    """The files of a source."""

    root: Path
    files: list[str]
    """Names below the root, in natural order."""
    faults: dict[str, str] = field(default_factory=dict)
    """Name -> why it is refused."""
    warnings: list[str] = field(default_factory=list)


def confined(root: Path, file: str) -> Path:
    """The path of a file of the source.

    Raises:
        DataError: it lies, or its link leads, outside the source's folder.
    """
    path, base = root / file, root.resolve()
    if not path.resolve().is_relative_to(base):
        raise DataError(
            "refused: leads outside the source", path=file, expected=f"a file below {base}", found=str(path.resolve())
        )
    return path


def find_files(source: Path) -> Found:
    """Lists the HDF5 files of a folder and its subfolders, or takes the one file.

    Raises:
        DataError: there is no such path, or no HDF5 file below it.
    """
    if source.is_file():
        real = source.resolve()
        if encodable(real.name) != real.name:
            raise DataError("its name is not UTF-8", path=source, hint="rename it")
        return Found(root=real.parent, files=[real.name])
    if not source.is_dir():
        raise DataError("no such file or folder", path=source)
    found = Found(root=source, files=[])
    seen: dict[tuple[int, int], str] = {}
    hidden = 0
    for folder, folders, names in os.walk(source, followlinks=False):
        here = Path(folder)
        for name in sorted(folders, key=natural_key):
            if (here / name).is_symlink():
                link = (here / name).relative_to(source).as_posix()
                found.warnings.append(f"{printable(link)}: a link to a folder; not followed")
        folders[:] = [name for name in folders if not name.startswith(".") and not (here / name).is_symlink()]
        for name in names:
            path = here / name
            if path.suffix.lower() not in SUFFIXES:
                continue
            if name.startswith("."):
                hidden += 1
                continue
            file = path.relative_to(source).as_posix()
            if encodable(file) != file:
                file = _unused(encodable(file), found.files)
                found.files.append(file)
                found.faults[file] = "refused: its name is not UTF-8; rename it"
                continue
            if not path.is_file():
                found.files.append(file)
                found.faults[file] = "a link that leads nowhere" if path.is_symlink() else "not a regular file"
                continue
            try:
                confined(source, file)
            except DataError as error:
                found.files.append(file)
                found.faults[file] = f"{error.message} (a link to {error.found})"
                continue
            found.files.append(file)
    found.files.sort(key=natural_key)
    for file in [name for name in found.files if name not in found.faults]:
        path = source / file
        if path.exists():
            status = path.stat()
            first = seen.setdefault((status.st_dev, status.st_ino), file)
            if first != file:
                found.files.remove(file)
                found.warnings.append(f"{printable(file)}: the same file as {printable(first)}; taken once")
    if hidden:
        found.warnings.append(f"{hidden} hidden files are left out")
    if not found.files:
        raise DataError("no HDF5 files", path=source, expected="files that end in " + ", ".join(SUFFIXES))
    return found


def _unused(name: str, taken: list[str]) -> str:
    """The name, told apart from names that are really spelled so."""
    while name in taken:
        name += "?"
    return name


def fingerprint(found: Found, beside: Sequence[str] = ()) -> str:
    """sha256 over names, sizes, and, of all but pictures, the first, middle and last 64 KiB of each file.

    Args:
        found: The files.
        beside: Names, relative to the root, of further files that may be there.
    """
    total, further = hashlib.sha256(), set(beside)
    for file in [*found.files, *beside]:
        total.update(file.encode("utf-8", "surrogateescape") + b"\0")
        if file in found.faults:
            continue
        if file in further and not (found.root / file).is_file():
            total.update(b"absent")
            continue
        if file in further and file.lower().endswith(_PICTURES):
            total.update(str((found.root / file).stat().st_size).encode())
            continue
        try:
            with (found.root / file).open("rb") as stream:
                size = os.fstat(stream.fileno()).st_size
                total.update(str(size).encode() + b"\0")
                for offset in (0, size // 2, max(0, size - _SAMPLE)):
                    stream.seek(offset)
                    total.update(stream.read(_SAMPLE))
        except OSError as error:
            total.update(f"unreadable {error.errno}".encode())
    return total.hexdigest()
