"""Streams of pictures: from videos, and from cells of the data files."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image as PilImage
from wdsmix.converters.lerobot.cameras import CameraRole, DepthCode
from wdsmix.converters.lerobot.index import Place
from wdsmix.converters.lerobot.rows import ParquetRows, RowsPool
from wdsmix.converters.lerobot.tree import Tree

from wdsmix.episode import Image
from wdsmix.errors import DataError
from wdsmix.imaging import MAX_PIXELS, encode_depth, sniff

if TYPE_CHECKING:
    from wdsmix.converters.lerobot.videos import Videos

__all__ = ["CellPictures", "VideoPictures", "depth_table"]

_CELLS = 16
_CODES = 4096


@dataclass(frozen=True, kw_only=True)
class VideoPictures:
    """The pictures of one camera of one episode, in a video (a `wdsmix.episode.SizedStream`)."""

    videos: Videos
    key: str
    file: str
    numbers: npt.NDArray[np.int64]
    """Row -> frame of the file, ascending."""
    depth: DepthCode | None = None
    size: int = 0

    def at_size(self, size: int) -> VideoPictures:
        """The same, scaled while the colours are converted."""
        return self if self.depth is not None else replace(self, size=size)

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields uint8 [H, W, 3], or 16-bit PNG bytes for depth.

        Raises:
            DataError: a frame can't be decoded.
        """
        with self.videos.borrowed(self.key, self.file) as reader:
            if self.depth is None:
                yield from reader.read(self.numbers[rows], size=self.size)
                return
            table = depth_table(self.depth)
            for codes in reader.read(self.numbers[rows], form="grey16"):
                if codes.max(initial=0) >= _CODES:
                    raise DataError(
                        "not a depth code", path=self.file, expected=f"below {_CODES}", found=int(codes.max())
                    )
                yield encode_depth(table[codes])


def depth_table(code: DepthCode) -> npt.NDArray[np.uint16]:
    """uint16 [4096]: 12-bit code -> millimetres."""
    steps = np.arange(_CODES, dtype=np.float64) / (_CODES - 1)
    if code.log:
        low, high = np.log(code.near + code.shift), np.log(code.far + code.shift)
        metres = np.exp(steps * (high - low) + low) - code.shift
    else:
        metres = code.near + steps * (code.far - code.near)
    millimetres: npt.NDArray[np.uint16] = np.clip(np.rint(metres * 1000), 0, 65535).astype(np.uint16)
    return millimetres


@dataclass(frozen=True, kw_only=True)
class CellPictures:
    """The pictures of one camera of one episode, in a column (an `wdsmix.episode.ImageStream`)."""

    tree: Tree
    pool: RowsPool
    role: CameraRole
    place: Place
    episode: int
    order: npt.NDArray[np.int64] | None = None
    """Frame -> row in the file, where rows are not in order of their frames."""

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields encoded bytes.

        Raises:
            DataError: a cell is empty or holds no picture; names the row.
        """
        reader = self.pool.reader(self.role.key, self.tree, self.place.file, [self.role.key], batch=_CELLS)
        wanted = rows if self.order is None else self.order[rows]
        if len(wanted) and (np.diff(wanted) < 0).any():
            for row in wanted.tolist():
                yield self._picture(*next(self._cells(reader, np.array([row]))))
            return
        for row, cell in self._cells(reader, wanted):
            yield self._picture(row, cell)

    def _cells(self, reader: ParquetRows, wanted: npt.NDArray[np.int64]) -> Iterator[tuple[int, object]]:
        if not len(wanted):
            return
        at, first = 0, self.place.start
        start, stop = first + int(wanted[0]), first + int(wanted[-1]) + 1
        row = start
        for batch in reader.read(start, stop):
            column = batch.column(batch.schema.names.index(self.role.key))
            while at < len(wanted) and first + int(wanted[at]) < row + batch.num_rows:
                yield int(wanted[at]), column[first + int(wanted[at]) - row].as_py()
                at += 1
            row += batch.num_rows

    def _bad(self, row: int, message: str, found: object = None) -> DataError:
        return DataError(message, path=self.place.file, where=f"{self.role.key} row {row}", found=found)

    def _picture(self, row: int, cell: object) -> Image:
        path = None
        if isinstance(cell, dict):
            path, cell = cell.get("path"), cell.get("bytes")
        if cell is None and path:
            cell = self._file(row, str(path))
        if not isinstance(cell, bytes) or not cell:
            raise self._bad(row, "no picture in the cell", type(cell).__name__)
        if self.role.camera.kind == "depth":
            return self._depth(row, cell)
        if sniff(cell) is None:
            raise self._bad(row, "not a JPEG, PNG or WebP picture", f"{len(cell)} bytes starting {cell[:8].hex(' ')}")
        return cell

    def _file(self, row: int, path: str) -> bytes:
        """The bytes of a picture that the cell only names: below the dataset, nowhere else."""
        name = PurePosixPath(path.replace("\\", "/"))
        root = self.tree.path
        if name.is_absolute() and root is not None and name.is_relative_to(root.resolve().as_posix()):
            name = name.relative_to(root.resolve().as_posix())
        candidates = [
            name,
            PurePosixPath("images", self.role.key, f"episode_{self.episode:06d}", name.name),
            PurePosixPath("images", self.role.key, f"episode-{self.episode:06d}", name.name),
            PurePosixPath("images", name),
        ]
        names = self.tree.names()
        for candidate in candidates:
            if not candidate.is_absolute() and str(candidate) in names:
                return self.tree.open_path(str(candidate)).read_bytes()
        raise self._bad(row, "the picture's file is not in the dataset", path)

    def _depth(self, row: int, data: bytes) -> bytes:
        """16-bit PNG in millimetres, of PNG or TIFF cells."""
        try:
            with PilImage.open(io.BytesIO(data), formats=("PNG", "TIFF")) as picture:
                if picture.width * picture.height > MAX_PIXELS:
                    raise self._bad(row, "picture too large", f"{picture.width}x{picture.height}")
                values = np.asarray(picture)
        except (OSError, ValueError, SyntaxError, PilImage.DecompressionBombError) as error:
            raise self._bad(row, f"depth picture does not decode: {error}") from error
        if values.ndim != 2 or values.dtype == np.uint8:
            raise self._bad(row, "not a depth picture", f"{values.dtype} {list(values.shape)}")
        if values.dtype.kind == "f":
            scale = 1000.0 if self.role.metres else 1.0
            values = np.rint(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=65.535, neginf=0.0) * scale)
        return encode_depth(np.clip(values, 0, 65535).astype(np.uint16))
