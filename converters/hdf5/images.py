"""Pictures: every way a camera is stored in HDF5, read lazily, in bounded blocks.

==========  =============================  =====================================================
storage     dataset                        a picture is
==========  =============================  =====================================================
``vlen``    (T,) of variable-length bytes  one element
``bytes``   (T,) ``S<L>`` or ``V<L>``,     one row: encoded and padded with zeros, or raw pixels
            or (T, L) of 8-bit integers
``raw``     (T, H, W, 1|3|4), (T, 3, H,    one row; floating-point pixels are 0 to 1 or 0 to 255
            W), (T, H, W)
``group``   a group of one dataset each    one dataset, in natural order of the names
==========  =============================  =====================================================

A camera may mix encoded and raw rows: a row whose bytes are as many as the other pictures' pixels is raw.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import h5py
import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.faults import Hdf5Error, library_errors
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sizes import raw_size, strip_padding

from wdsmix.episode import Image
from wdsmix.errors import DataError
from wdsmix.imaging import picture_size, sniff

__all__ = ["Hdf5Images", "Storage", "survey"]

_BLOCK_BYTES = 32 << 20
_CHUNK_ROW_BYTES = 64 << 20
_SPOOL_BYTES = 8 << 30
_VLEN_ROWS = 64
_LONGEST_SIDE = 65_500
"""Pixels; what JPEG libraries write."""
_SCALE_ROWS = 16
_SLACK = 2.0
"""Levels of 0 to 255 by which floating-point pixels may pass the ends of their scale (resampling does that)."""
_BRIGHT = 8
"""Brightest level below which an episode of 0 to 255 is not told from one of another scale."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """How one camera of one episode is stored, from metadata alone."""

    kind: str
    """``vlen``, ``bytes``, ``raw`` or ``group``."""
    rows: int
    axis: int = -1
    """Of ``raw``: the channel axis within a picture (0 or 2; -1: no such axis, grey)."""


def survey(tree: Tree, path: str) -> Storage:
    """Finds out how a camera is stored.

    Raises:
        Hdf5Error: it is absent, unwritten, over budget, or in no known storage.
    """
    found = tree.get(path)
    if found is None:
        raise Hdf5Error("missing", path=str(tree.path), where=path)
    if isinstance(found, h5py.Group):
        names = tree.children(path)
        if not names:
            raise Hdf5Error("an empty group where pictures should be", path=str(tree.path), where=path)
        return Storage(kind="group", rows=len(names))
    with library_errors(tree.path, path):
        shape, dtype = found.shape, found.dtype
    if not shape:
        raise _unknown(tree, path, shape, dtype)
    _check_frame(tree, path, found)
    storage = _storage(tree, path, shape, dtype)
    if storage.kind == "raw" and max(shape[1:]) > _LONGEST_SIDE:
        raise Hdf5Error(
            "refused: a picture is too large",
            path=str(tree.path),
            where=path,
            check="safe",
            expected=f"sides of at most {_LONGEST_SIDE} pixels",
            found=str(shape),
        )
    tree.check_stored(path, found)
    return storage


def _storage(tree: Tree, path: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Storage:
    """The storage that shape and type tell."""
    if dtype.kind == "O":
        inner = h5py.check_vlen_dtype(dtype)
        if inner is not None and len(shape) == 1 and np.dtype(inner).itemsize == 1 and np.dtype(inner).kind in "iu":
            return Storage(kind="vlen", rows=shape[0])
        if h5py.check_string_dtype(dtype) is not None:
            raise Hdf5Error(
                "variable-length strings end at the first zero byte, so that the pictures are lost",
                path=str(tree.path),
                where=path,
                check="images",
            )
        raise _unknown(tree, path, shape, dtype)
    if len(shape) == 1 and dtype.kind in "SV" and dtype.names is None and dtype.subdtype is None:
        return Storage(kind="bytes", rows=shape[0])
    if len(shape) == 2 and dtype.kind in "iu" and dtype.itemsize == 1:
        return Storage(kind="bytes", rows=shape[0])
    if dtype.kind == "f" or (dtype.kind in "iu" and dtype.itemsize == 1):
        if len(shape) == 4 and shape[3] in (1, 3, 4):
            return Storage(kind="raw", rows=shape[0], axis=2)
        if len(shape) == 4 and shape[1] in (1, 3, 4):
            return Storage(kind="raw", rows=shape[0], axis=0)
        if len(shape) == 3:
            return Storage(kind="raw", rows=shape[0], axis=-1)
    raise _unknown(tree, path, shape, dtype)


def _check_frame(tree: Tree, path: str, dataset: h5py.Dataset) -> None:
    frame = dataset.dtype.itemsize * math.prod(dataset.shape[1:])
    if frame > tree.budget.frame_bytes:
        raise Hdf5Error(
            "refused: a picture is too large",
            path=str(tree.path),
            where=path,
            check="safe",
            expected=f"at most {tree.budget.frame_bytes} bytes",
            found=str(frame),
        )
    if dataset.shape[0] and not frame:
        raise Hdf5Error(
            "pictures without pixels", path=str(tree.path), where=path, check="images", found=str(dataset.shape)
        )


def _unknown(tree: Tree, path: str, shape: object, dtype: object) -> Hdf5Error:
    return Hdf5Error(
        "no known storage of pictures",
        path=str(tree.path),
        where=path,
        check="images",
        expected="variable-length bytes, S, V, or 2-D to 4-D 8-bit values",
        found=f"{shape} {dtype}",
    )


class Hdf5Images:
    """The pictures of one camera of one episode (an `wdsmix.episode.ImageStream`).

    Args:
        tree: The open file; must outlive the stream.
        path: The camera's dataset or group.
        row_map: int64 [T], frame -> stored row; None: the same.
        size: (width, height) of raw pictures, where the source tells.
    """

    def __init__(
        self,
        tree: Tree,
        path: str,
        *,
        row_map: npt.NDArray[np.int64] | None = None,
        size: tuple[int, int] | None = None,
    ) -> None:
        self._tree = tree
        self._path = path
        self._map = row_map
        self._given = size
        self._size: tuple[int, int] | None = None
        self._scale: float | None = None
        self.storage = survey(tree, path)

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields the pictures of the given frames.

        Args:
            rows: int64, strictly increasing frame numbers.

        Yields:
            Encoded bytes, cut after their end, or uint8 [H, W, 3].

        Raises:
            Hdf5Error: a picture is absent, damaged, or of another size than the others.
        """
        stored = rows if self._map is None else self._map[rows]
        if len(stored) and not 0 <= stored[0] <= stored[-1] < self.storage.rows:
            raise self._bad(int(stored[-1]), "no such picture", f"0 to {self.storage.rows - 1}")
        reader = {"vlen": self._vlen, "bytes": self._rows, "raw": self._rows, "group": self._group}
        yield from reader[self.storage.kind](stored)

    def _dataset(self) -> h5py.Dataset:
        dataset = self._tree.dataset(self._path)
        if dataset is None:
            raise Hdf5Error("missing", path=str(self._tree.path), where=self._path)
        return dataset

    def _blocks(
        self, rows: npt.NDArray[np.int64], dataset: h5py.Dataset
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]]:
        """Reads rows in blocks cut at multiples of the chunk length, so that each chunk is inflated once.

        A row of chunks too large for memory goes through a temporary file.
        """
        row_bytes = max(1, dataset.dtype.itemsize * math.prod(dataset.shape[1:]))
        fitting = step = max(1, _BLOCK_BYTES // row_bytes)
        if dataset.chunks is not None:
            chunk = dataset.chunks[0]
            if chunk <= step:
                step -= step % chunk
            elif chunk * row_bytes <= _SPOOL_BYTES:
                step = chunk
        cuts = np.flatnonzero(np.diff(rows // step)) + 1
        for block in np.split(rows, cuts) if len(rows) else ():
            low, high = int(block[0]), int(block[-1]) + 1
            self._tree.check_inflated(self._path, dataset, low, high)
            if (high - low) * row_bytes <= _CHUNK_ROW_BYTES:
                with library_errors(self._tree.path, self._path):
                    values = _select(dataset, block)
                yield block, values
                continue
            with tempfile.TemporaryFile() as file:
                file.truncate((high - low) * row_bytes)
                spool = np.memmap(file, dtype=dataset.dtype, mode="r+", shape=(high - low, *dataset.shape[1:]))
                with library_errors(self._tree.path, self._path):
                    dataset.read_direct(spool, np.s_[low:high])
                for at in range(0, len(block), fitting):
                    part = block[at : at + fitting]
                    yield part, np.array(spool[part - low])

    def _rows(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        dataset = self._dataset()
        for block, values in self._blocks(rows, dataset):
            if self.storage.kind == "raw":
                yield from self._pixels(block, values, dataset)
                continue
            flat = np.ascontiguousarray(values).view(np.uint8).reshape(len(block), -1)
            for row, data in zip(block.tolist(), flat, strict=True):
                yield self._picture(row, data)

    def _vlen(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        dataset, count, at, largest = self._dataset(), 1, 0, 0
        most = self._tree.at_once(_VLEN_ROWS)
        while at < len(rows):
            block = rows[at : at + count]
            self._tree.check_inflated(self._path, dataset, int(block[0]), int(block[-1]) + 1)
            with library_errors(self._tree.path, self._path):
                values = _select(dataset, block)
            at += len(block)
            for row, data in zip(block.tolist(), values, strict=True):
                if data.nbytes > self._tree.budget.frame_bytes:
                    raise self._bad(row, "refused: a picture is too large", f"at most {self._tree.budget.frame_bytes}")
                largest = max(largest, data.nbytes)
                yield self._picture(row, np.ascontiguousarray(data).view(np.uint8))
            count = int(min(most, count * 8, max(1, _BLOCK_BYTES // (2 * largest + 1))))

    def _group(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        names = self._tree.children(self._path)
        for row in rows.tolist():
            path = join(self._path, names[row])
            dataset = self._tree.dataset(path)
            if dataset is None:
                raise self._bad(row, "not a dataset", "one picture")
            self._tree.check_stored(path, dataset)
            self._tree.check_inflated(path, dataset)
            if math.prod(dataset.shape or ()) * dataset.dtype.itemsize > self._tree.budget.frame_bytes:
                raise self._bad(row, "refused: a picture is too large", f"at most {self._tree.budget.frame_bytes}")
            with library_errors(self._tree.path, path):
                value = dataset[()]
            if isinstance(value, np.ndarray) and value.ndim == 3 and value.dtype == np.uint8:
                yield _to_rgb(value, 2 if value.shape[2] in (1, 3, 4) else 0)
                continue
            if isinstance(value, (bytes, np.bytes_)):
                value = np.frombuffer(bytes(value), np.uint8)
            elif isinstance(value, np.void):
                value = np.frombuffer(value.tobytes(), np.uint8)
            if not isinstance(value, np.ndarray) or value.dtype.kind == "O" or value.ndim != 1:
                raise self._bad(row, "no known storage of a picture", "bytes", f"{dataset.shape} {dataset.dtype}")
            yield self._picture(row, np.ascontiguousarray(value).view(np.uint8))

    def _pixels(
        self, rows: npt.NDArray[np.int64], values: npt.NDArray[np.generic], dataset: h5py.Dataset
    ) -> Iterator[npt.NDArray[np.uint8]]:
        if values.dtype.kind != "f":
            for frame in values.view(np.uint8):
                yield _to_rgb(frame, self.storage.axis)
            return
        if self._scale is None:
            self._scale = self._float_scale(dataset)
        for row, frame in zip(rows.tolist(), values, strict=True):
            low, high = self._range(row, frame)
            fits = low * self._scale >= -_SLACK and high * self._scale <= 255 + _SLACK
            if fits and self._scale == 1 and low < high and high * 255 <= 255 + _SLACK:
                fits = bool((frame == np.round(frame)).all())  # fractions up to 1: of the other scale, not dark
            if not fits:
                span = "0 to 1" if self._scale == 255 else "0 to 255"
                raise self._bad(
                    row,
                    "values outside of the scale of the episode's pictures",
                    f"{span}, as in the pictures looked at first",
                    f"{low:g} to {high:g}",
                    "pictures of one episode must have one scale",
                )
            scaled = np.clip(frame.astype(np.float32) * np.float32(self._scale) + np.float32(0.5), 0, 255)
            yield _to_rgb(scaled.astype(np.uint8), self.storage.axis)

    def _range(self, row: int, frame: npt.NDArray[np.generic]) -> tuple[float, float]:
        """Least and greatest value of a floating-point picture."""
        low, high = float(np.min(frame)), float(np.max(frame))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise self._bad(row, "not finite", "finite pixels", "NaN or infinity")
        return low, high

    def _float_scale(self, dataset: h5py.Dataset) -> float:
        """255 for values in 0 to 1, 1 for those in 0 to 255, by up to 16 pictures spread over the whole episode.

        Raises:
            Hdf5Error: they are signed, or fit neither scale; never is a value clipped but by a rounding error.
        """
        picks = np.unique(np.linspace(0, self.storage.rows - 1, min(_SCALE_ROWS, self.storage.rows)).astype(np.int64))
        ranges = [
            self._range(row, frame)
            for block, values in self._blocks(picks, dataset)
            for row, frame in zip(block.tolist(), values, strict=True)
        ]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        if low * 255 >= -_SLACK and high * 255 <= 255 + _SLACK:
            return 255.0
        if low >= -_SLACK and _BRIGHT <= high <= 255 + _SLACK:
            return 1.0
        row = int(picks[min(range(len(ranges)), key=lambda k: ranges[k][0])])
        if low * 255 >= -_SLACK:
            row = int(picks[max(range(len(ranges)), key=lambda k: ranges[k][1])])
        raise self._bad(
            row,
            "floating-point pictures of no known scale",
            f"values from 0 to 1, or from 0 to 255 with some of {_BRIGHT} or more",
            f"{low:g} to {high:g} in {len(ranges)} pictures",
            "signed pictures are not converted: store (x + 1) / 2" if low * 255 < -_SLACK else None,
        )

    def _picture(self, row: int, data: npt.NDArray[np.uint8]) -> Image:
        """One encoded or raw row, its padding removed."""
        kind = sniff(data[:16].tobytes())
        if kind is not None:
            encoded = strip_padding(data.tobytes(), kind)
            try:
                size = picture_size(encoded)
            except DataError as error:
                found = f"{len(encoded)} bytes: {error.message}"
                raise self._bad(row, "a damaged picture", f"a whole {kind.upper()}", found) from error
            self._same_size(row, size)
            return encoded
        if not data.any():
            raise self._bad(row, "no picture: never written", "an encoded picture", f"{data.size} zero bytes")
        raw = self._size or self._given or self._find_size(row) or raw_size(data.size)
        if raw is None or data.size < raw[0] * raw[1] * 3 or data[raw[0] * raw[1] * 3 :].any():
            expected = "JPEG, PNG or WebP" + (f", or {raw[0]}x{raw[1]}x3 raw bytes" if raw else "")
            found = f"{data.size} bytes that start {data[:4].tobytes()!r}"
            hint = None if raw else "if they are raw pixels, give their size: --raw-size WIDTHxHEIGHT"
            raise self._bad(row, "not a picture", expected, found, hint)
        self._same_size(row, raw)
        return data[: raw[0] * raw[1] * 3].reshape(raw[1], raw[0], 3)

    def _same_size(self, row: int, size: tuple[int, int]) -> None:
        if max(size) > _LONGEST_SIDE:
            raise self._bad(row, "refused: a picture is too large", f"sides of at most {_LONGEST_SIDE}", f"{size}")
        if size[0] * size[1] > self._tree.budget.pixels:
            raise self._bad(row, "refused: too many pixels", f"at most {self._tree.budget.pixels}", f"{size}")
        if self._size is None:
            self._size = size
        elif self._size != size:
            was, now = f"{self._size[0]}x{self._size[1]}", f"{size[0]}x{size[1]}"
            raise self._bad(row, "the picture size changes within the episode", was, now)

    def _find_size(self, row: int) -> tuple[int, int] | None:
        """Size of the first encoded picture among some rows, for a raw row that comes before any."""
        if self.storage.kind == "group":
            return None
        dataset = self._dataset()
        picks = np.unique(np.linspace(0, self.storage.rows - 1, min(16, self.storage.rows)).astype(np.int64))
        for pick in picks.tolist():
            self._tree.check_inflated(self._path, dataset, pick, pick + 1)
            with library_errors(self._tree.path, self._path):
                value = dataset[pick : pick + 1]
            first = value[0] if value.dtype.kind == "O" else value
            data = np.ascontiguousarray(first).view(np.uint8).reshape(-1).tobytes()
            if sniff(data[:16]) is not None:
                return picture_size(data)
        return None

    def _bad(
        self, row: int, message: str, expected: str, found: str | None = None, hint: str | None = None
    ) -> Hdf5Error:
        return Hdf5Error(
            message,
            path=str(self._tree.path),
            where=f"{self._path} row {row}",
            check="images",
            expected=expected,
            found=found,
            hint=hint,
        )


def _select(dataset: h5py.Dataset, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.generic]:
    """Reads the given ascending rows (repeats allowed) with one request."""
    low, high = int(rows[0]), int(rows[-1]) + 1
    steps = np.diff(rows)
    step = int(steps[0]) if len(steps) else 1
    if step >= 1 and (steps == step).all():
        values: npt.NDArray[np.generic] = dataset[low:high:step]
        return values
    picked: npt.NDArray[np.generic] = dataset[low:high][rows - low]
    return picked


def _to_rgb(frame: npt.NDArray[np.generic], axis: int) -> npt.NDArray[np.uint8]:
    """Turns uint8 [H, W], [H, W, C] or [C, H, W] into contiguous uint8 [H, W, 3]."""
    pixels = frame.view(np.uint8)
    if axis == -1:
        pixels = pixels[:, :, None]
    elif axis == 0:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.shape[2] == 1:
        pixels = np.repeat(pixels, 3, axis=2)
    return np.ascontiguousarray(pixels[:, :, :3])
