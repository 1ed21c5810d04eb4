"""Pictures that lie as files in a folder: checked by their ends, compared, streamed."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt

from wdsmix.episode import Image
from wdsmix.errors import DataError
from wdsmix.imaging import sniff

__all__ = ["LoosePictures", "ends_of", "inside", "listing", "picture_fault", "refuse_link", "repeats"]

_JPEG_TAIL = 4096
_SAMPLE = 64 << 10
_PNG_END = b"IEND\xaeB`\x82"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoosePictures:
    """The pictures of one camera, one file a frame (an `wdsmix.episode.ImageStream`)."""

    folder: Path
    names: Sequence[str]
    """Names below the folder, by native frame number."""

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields the files' bytes.

        Raises:
            DataError: one is missing or no picture.
        """
        for row in rows.tolist():
            name = self.names[row]
            try:
                data = (self.folder / name).read_bytes()
            except FileNotFoundError as error:
                raise DataError("no such picture", path=name) from error
            if sniff(data) is None:
                raise DataError("not a JPEG, PNG or WebP picture", path=name, found=f"starts {data[:8].hex(' ')}")
            yield data


def listing(folder: Path) -> list[str]:
    """Names in a folder, sorted."""
    return sorted(entry.name for entry in os.scandir(folder))


def inside(folder: Path, name: str, known: set[str] | None = None) -> Path:
    """The path of a file that data of a stranger name, which must lie in the folder.

    Args:
        folder: Where it must lie.
        name: As the data spell it.
        known: Subfolders found good; looked up and added to, so that each is resolved once.

    Raises:
        DataError: it is absolute, or it or a link on the way leads outside.
    """
    spelled = PurePosixPath(name.replace("\\", "/"))
    text = str(spelled)
    if not text.isprintable() or spelled.is_absolute() or ".." in spelled.parts or text[1:2] == ":":
        raise DataError(
            "refused: a path that leaves the folder of its episode", where=ascii(name), expected="a plain relative path"
        )
    path, above = folder / spelled, str(spelled.parent)
    if known is not None and above in known and not path.is_symlink():
        return path
    if not os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep):
        raise DataError(
            "refused: a link that leads outside the folder of its episode",
            where=text,
            hint="copy the files themselves (cp -rL)",
        )
    if known is not None and not path.is_symlink():
        known.add(above)
    return path


def refuse_link(root: Path, path: Path) -> None:
    """Refuses a file that is a link out of its source, or a pipe or device, which reading may never end.

    Raises:
        DataError: it is.
    """
    try:
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            if not os.path.realpath(path).startswith(os.path.realpath(root) + os.sep):
                raise DataError(
                    "refused: a link that leads outside the source",
                    where=path.name,
                    hint="copy the files themselves (cp -rL)",
                )
            mode = path.stat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError("refused: a pipe or a device, no file", where=path.name)


def ends_of(root: Path, file: str) -> bytes:
    """Name, size, and both ends of a file: what tells that it changed."""
    path = root / file
    try:
        if not path.is_file():
            return f"{file}\0no file".encode("utf-8", "surrogateescape")
        with path.open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            head = stream.read(_SAMPLE)
            stream.seek(max(0, size - _SAMPLE))
            return f"{file}\0{size}\0".encode("utf-8", "surrogateescape") + head + stream.read(_SAMPLE)
    except OSError as error:
        return f"{file}\0unreadable {error.errno}".encode("utf-8", "surrogateescape")


def picture_fault(path: Path) -> str:
    """Why a file can't be a whole picture, by its first and last bytes; empty where it can."""
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
            return "a pipe or a device, no file"
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(12)
            file.seek(max(0, size - _JPEG_TAIL))
            tail = file.read(_JPEG_TAIL)
    except FileNotFoundError:
        return "the file is missing"
    except OSError as error:
        return f"the file can't be read: {error.strerror}"
    if not size:
        return "the file is empty"
    if head.startswith(b"version http"):
        return "a Git LFS pointer, not a picture (fetch it with `git lfs pull`)"
    kind = sniff(head)
    if kind is None:
        return f"not a JPEG, PNG or WebP picture: it starts {head[:8].hex(' ')}"
    whole = {"jpeg": b"\xff\xd9" in tail, "png": _PNG_END in tail, "webp": True}[kind]
    return "" if whole else f"a {kind.upper()} that is cut off: no end marker"


def repeats(paths: Sequence[Path]) -> npt.NDArray[np.bool_]:
    """Whether a picture has the very bytes of the one before it, as bool [T]."""
    found = np.zeros(len(paths), np.bool_)
    sizes = [path.stat().st_size if path.exists() else -1 for path in paths]
    last: tuple[int, bytes] = (-1, b"")
    for k in range(1, len(paths)):
        if sizes[k] != sizes[k - 1] or sizes[k] < 0:
            continue
        before = last[1] if last[0] == k - 1 else paths[k - 1].read_bytes()
        own = paths[k].read_bytes()
        found[k] = own == before
        last = (k, own)
    return found
