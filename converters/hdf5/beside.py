"""Pictures that lie beside an HDF5 file: in videos, and in files that its rows name; nothing outside is read.

Which file is whose is told by the fixed layout of a dialect, or, for rows of names, by the data: those names are
checked before anything is opened. Every file that was looked for is kept in ``tree.beside``.
"""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.faults import Hdf5Error, library_errors
from wdsmix.converters.hdf5.images import survey
from wdsmix.converters.hdf5.layout import CameraPart
from wdsmix.converters.hdf5.safe import Tree
from wdsmix.converters.hdf5.strings import decode
from wdsmix.converters.loose import LoosePictures, inside, listing
from wdsmix.converters.slots import natural_key
from wdsmix.converters.video import VideoReader, probe

from wdsmix.episode import Image, ImageStream
from wdsmix.errors import DataError

__all__ = ["VideoFrames", "camera_rows", "named_pictures", "open_beside", "string_rows", "video_names"]

_LONGEST_NAME = 1024
_ROWS = 64
_LOOKED = (None, None)
"""Of a file that is no JSON file: see `wdsmix.converters.hdf5.sidecar.read_beside`."""


def video_names(tree: Tree, folder: str) -> list[str]:
    """The MP4 files in a folder, in natural order, relative to the open file's folder; empty where it is none.

    Args:
        tree: The open file.
        folder: Relative to the open file's folder.
    """
    place = tree.path.parent / folder
    tree.beside.setdefault(folder, _LOOKED)
    if not place.is_dir():
        return []
    found = [name for name in listing(place) if name.lower().endswith(".mp4") and not name.startswith(".")]
    return [f"{folder}/{name}" for name in sorted(found, key=natural_key)]


def camera_rows(tree: Tree, camera: CameraPart) -> int | None:
    """How many pictures a camera has, from metadata.

    Args:
        tree: The open file.
        camera: The camera.

    Returns:
        The count; None where a video's header does not tell.

    Raises:
        Hdf5Error: it is missing, refused, or in no known storage.
    """
    if camera.names is not None:
        return len(camera.names)
    if not camera.video:
        return survey(tree, camera.path).rows
    tree.beside.setdefault(camera.video, _LOOKED)
    path = tree.path.parent / camera.video
    with _faults(tree, camera.video):
        if not path.is_file():
            raise DataError("the video is a link that leads nowhere" if path.is_symlink() else "the video is missing")
        if not path.resolve().is_relative_to(_reach(tree, camera.video).resolve()):
            raise DataError("refused: a link that leads outside the dataset", hint="copy the files themselves (cp -rL)")
        return probe(path).frames or None


def _reach(tree: Tree, name: str) -> Path:
    """The folder that a file beside the open one must stay in: as many levels up as its layout has it."""
    up = sum(part == ".." for part in name.split("/"))
    folder = tree.path.parent
    above = folder.resolve().parents
    return above[min(up, len(above)) - 1] if up and above else folder


@contextmanager
def _faults(tree: Tree, name: str) -> Iterator[None]:
    """Turns a `DataError` of a file beside the open one into a fault of the episode that names the file."""
    try:
        yield
    except DataError as error:
        raise Hdf5Error(
            error.message,
            path=str(tree.path),
            where=name if error.where in (None, Path(name).name) else f"{name} {error.where}",
            check="safe" if error.message.startswith("refused") else "images",
            expected=error.expected,
            found=error.found,
            hint=error.hint,
        ) from error


def string_rows(tree: Tree, path: str) -> list[str] | None:
    """The rows of a dataset as texts, such as names of files; None where it holds something else.

    Raises:
        Hdf5Error: too many rows, or never written.
    """
    dataset = tree.dataset(path)
    if dataset is None or dataset.ndim != 1 or not dataset.shape[0]:
        return None
    strings = dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype) is not None
    if not strings and not (dataset.dtype.kind == "S" and dataset.dtype.itemsize <= _LONGEST_NAME):
        return None
    tree.check_stored(path, dataset)
    tree.check_inflated(path, dataset)
    texts: list[str] = []
    count = 1
    while len(texts) < dataset.shape[0]:
        with library_errors(tree.path, path):
            values = dataset[len(texts) : len(texts) + count]
        texts += [_row_text(value) for value in values.tolist()]
        count = min(tree.at_once(_ROWS), count * 8) if len(texts[-1]) <= _LONGEST_NAME else 1
    return None if dataset.dtype.kind == "S" and texts[0].startswith(("\xff\xd8", "\x89PNG")) else texts


def _row_text(value: object) -> str:
    return decode(value.rstrip(b"\0"))[0] if isinstance(value, bytes) else str(value)


def named_pictures(tree: Tree, path: str, names: Sequence[str]) -> list[str]:
    """Checks that rows of names lead to files in the open file's folder.

    Returns:
        The names, as they are to be opened.

    Raises:
        Hdf5Error: one is absolute, leads outside, or is of no file; tells the row.
    """
    folder = tree.path.parent
    known: set[str] = set()
    for row, name in enumerate(names):
        with _faults(tree, f"{path} row {row}"):
            if not name or len(name) > _LONGEST_NAME:
                raise DataError("no name of a picture", found=ascii(name[:60]))
            size = _size(inside(folder, name, known))
            if size is None:
                raise DataError("the picture that the row names is missing", found=ascii(name))
            if size > tree.budget.frame_bytes:
                raise DataError(
                    "refused: a picture is too large", expected=f"at most {tree.budget.frame_bytes} bytes", found=size
                )
    found = [name.replace("\\", "/") for name in names]
    tree.beside.update(dict.fromkeys(found, _LOOKED))
    return found


def _size(path: Path) -> int | None:
    """Bytes of a regular file; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def open_beside(
    tree: Tree, camera: CameraPart, rows: npt.NDArray[np.int64], *, exact: bool
) -> tuple[ImageStream, Callable[[], None] | None, str]:
    """Opens a camera whose pictures lie beside the file.

    Args:
        tree: The open file.
        camera: The camera.
        rows: int64 [T], frame -> picture.
        exact: Whether the episode has as many frames as there should be pictures.

    Returns:
        The pictures, what closes them (None: nothing to close), and what is to be told of the mapping (or empty).

    Raises:
        Hdf5Error: a video can't be opened, or has other than the episode's frames.
    """
    if camera.names is not None:
        picked = [camera.names[row] for row in rows.tolist()]
        return LoosePictures(folder=tree.path.parent, names=picked), None, ""
    with _faults(tree, camera.video):
        reader = VideoReader(tree.path.parent / camera.video)
        try:
            last = int(rows[-1])
            if last > reader.frames or (exact and reader.frames > last + 2):
                raise DataError(
                    "the video has other than the episode's frames",
                    expected=f"{last + 1} frames, one a row",
                    found=f"{reader.frames} frames",
                )
        except BaseException:
            reader.close()
            raise
    note = ""
    if last == reader.frames:
        note = "the video has one frame less than the episode has rows: its last frame stands for two"
        rows = np.minimum(rows, reader.frames - 1)
    return VideoFrames(reader=reader, name=camera.video, numbers=rows), reader.close, note


@dataclass(frozen=True, kw_only=True)
class VideoFrames:
    """The pictures of one camera of one episode, in a video of its own (a `wdsmix.episode.SizedStream`)."""

    reader: VideoReader
    name: str
    numbers: npt.NDArray[np.int64]
    """Frame of the episode -> frame of the video, ascending."""
    size: int = 0

    def at_size(self, size: int) -> VideoFrames:
        """The same, scaled while the colours are converted."""
        return replace(self, size=size)

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields uint8 [H, W, 3].

        Raises:
            DataError: a frame can't be decoded.
        """
        try:
            yield from self.reader.read(self.numbers[rows], size=self.size)
        except DataError as error:
            error.path = self.name
            raise
