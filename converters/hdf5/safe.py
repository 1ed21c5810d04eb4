"""Walking an untrusted file: every link is looked at before it is followed, every size before it is read.

External links (also behind soft links), external raw storage, virtual datasets and references would let a file
read any path of this machine; they are refused. So are loops, over-deep paths and sizes beyond the budgets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.faults import Hdf5Error, library_errors
from wdsmix.converters.hdf5.inflate import inflates_beyond, odd_pipeline, watched_chunks
from wdsmix.converters.hdf5.preflight import open_file
from wdsmix.converters.slots import natural_key

from wdsmix.limits import MAX_VECTOR_WIDTH
from wdsmix.texts import printable

__all__ = ["Budget", "Tree", "join"]

_REMEMBERED = 256
_SMALL = 16 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Budget:
    """Limits that a well-meant file stays far below."""

    depth: int = 32
    """Path components, links followed included."""
    children: int = 1_000_000
    """Links in one group."""
    name_bytes: int = 255
    rows: int = 20_000_000
    """Rows of one dataset."""
    width: int = MAX_VECTOR_WIDTH
    """Dimensions of one vector."""
    vector_bytes: int = 1 << 30
    """Declared bytes of one vector dataset, which is read whole."""
    frame_bytes: int = 256 << 20
    """Bytes of one picture, encoded or raw."""
    chunk_bytes: int = 1 << 30
    """Bytes of one chunk behind a filter, which HDF5 inflates whole."""
    shared_bytes: int = 4 << 30
    """Bytes of rows of variable length that are read at once, if all of them were as large as the file."""
    pixels: int = 89_478_485
    """Pixels of one picture (Pillow's own limit)."""
    ratio: int = 1_200
    """Declared over stored bytes; gzip reaches 1030 on zeros."""
    ratio_from: int = 64 << 20
    """Declared bytes from which the ratio matters."""


class Tree:
    """A file opened for reading, walked safely. A context manager; never shared between processes.

    Raises:
        Hdf5Error: the file can't be opened.
    """

    def __init__(self, path: Path, budget: Budget | None = None) -> None:
        self.path = path
        self.beside: dict[str, object] = {}
        """Files beside this one that were looked for (see `wdsmix.converters.hdf5.sidecar`): name -> what they hold."""
        self.budget = budget or Budget()
        self.notes: dict[str, object] = {}
        """What a dialect has worked out about the whole file, to be used for each of its episodes."""
        self.file: h5py.File = open_file(path)
        self._bytes = path.stat().st_size
        self._root: h5py.Group = self.file["/"]
        self._seen: dict[tuple[str, ...], h5py.Group | h5py.Dataset | None] = {}
        self._large: dict[str, dict[tuple[int, ...], bool]] = {}
        """Dataset -> its large chunks, and whether each was looked at."""

    def __enter__(self) -> Tree:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file; harmless when repeated."""
        self._seen.clear()
        self.file.close()

    def get(self, name: str) -> h5py.Group | h5py.Dataset | None:
        """The object at an absolute path, or None where there is none.

        Raises:
            Hdf5Error: the way leads outside the file or in circles, or the object is of a refused kind.
        """
        with library_errors(self.path, name):
            return self._find(_parts(name), name, 0)

    def group(self, name: str) -> h5py.Group | None:
        """The group at a path, or None where there is none or something else."""
        found = self.get(name)
        return found if isinstance(found, h5py.Group) else None

    def dataset(self, name: str) -> h5py.Dataset | None:
        """The dataset at a path, or None where there is none or something else."""
        found = self.get(name)
        return found if isinstance(found, h5py.Dataset) else None

    def children(self, name: str) -> list[str]:
        """Names in the group at a path, in natural order; empty where there is no group.

        Raises:
            Hdf5Error: too many of them.
        """
        group = self.group(name)
        if group is None:
            return []
        with library_errors(self.path, name):
            count = len(group)
            if count > self.budget.children:
                raise self._refuse(name, "too many names in one group", f"at most {self.budget.children}", f"{count}")
            names = (
                name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else str(name) for name in group
            )
            return sorted(names, key=natural_key)

    def child_groups(self, name: str) -> list[str]:
        """Names of the groups in a group; links that lead nowhere or are refused count too, to be reported."""
        result = []
        for child in self.children(name):
            try:
                found = self.get(join(name, child))
            except Hdf5Error:
                result.append(child)
                continue
            if not isinstance(found, h5py.Dataset):
                result.append(child)
        return result

    def _find(self, parts: tuple[str, ...], name: str, followed: int) -> h5py.Group | h5py.Dataset | None:
        """Looks at the link of the last of ``parts`` and follows it; the way to its parent was looked at before."""
        if not parts:
            return self._root
        if parts in self._seen:
            return self._seen[parts]
        if followed > self.budget.depth or len(parts) > self.budget.depth:
            raise self._refuse(name, "too deep or a loop of links", f"at most {self.budget.depth} steps", None)
        parent = self._find(parts[:-1], name, followed)
        if not isinstance(parent, h5py.Group):
            return None
        found: h5py.Group | h5py.Dataset | None = None
        link = parent.get(parts[-1], getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise self._refuse(
                name, "an external link", "data inside the file", f"a link to {link.filename!r}:{link.path!r}"
            )
        if isinstance(link, h5py.SoftLink):
            target = str(link.path)
            base = () if target.startswith("/") else parts[:-1]
            found = self._find((*base, *_parts(target)), name, followed + 1)
        elif isinstance(link, h5py.HardLink):
            found = parent[parts[-1]]
            if isinstance(found, h5py.Dataset):
                self._check_kind(found, name)
            elif not isinstance(found, h5py.Group):
                found = None
        elif link is not None:
            raise self._refuse(name, "a user-defined link", "data inside the file", None)
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[parts] = found
        return found

    def _check_kind(self, dataset: h5py.Dataset, name: str) -> None:
        plist = dataset.id.get_create_plist()  # before the shape: asking a virtual dataset for it opens its sources
        layout = plist.get_layout()
        if plist.get_external_count() > 0:
            raise self._refuse(
                name, "external raw storage", "data inside the file", f"a link to {plist.get_external(0)[0]!r}"
            )
        if layout == h5py.h5d.VIRTUAL:
            raise self._refuse(name, "a virtual dataset", "data inside the file", "a view of other files")
        if layout not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
            raise self._refuse(name, "an unknown storage layout", "compact, contiguous or chunked", str(layout))
        if h5py.check_ref_dtype(dataset.dtype) is not None:
            raise self._refuse(name, "references", "data", None)
        for index in range(plist.get_nfilters()):
            code, _, _, label = plist.get_filter(index)
            if not h5py.h5z.filter_avail(code):
                raise Hdf5Error(
                    f"compressed with filter {code} ({label.decode('ascii', 'replace') or 'unnamed'}), not installed",
                    path=str(self.path),
                    where=name,
                    check="opens",
                    hint="pip install hdf5plugin",
                )

    def _refuse(self, where: str, what: str, expected: str | None, found: str | None) -> Hdf5Error:
        return Hdf5Error(
            f"refused: {what}", path=str(self.path), where=where, check="safe", expected=expected, found=found
        )

    def check_stored(self, name: str, dataset: h5py.Dataset) -> None:
        """Checks, before anything is read, that a dataset's bytes are there and not absurdly many.

        Raises:
            Hdf5Error: over budget, never written, or written in part.
        """
        with library_errors(self.path, name):
            shape, stored = dataset.shape, dataset.id.get_storage_size()
            if shape is None or 0 in shape:
                return
            declared = math.prod(shape) * dataset.dtype.itemsize
            if shape and shape[0] > self.budget.rows:
                raise self._refuse(name, "too many rows", f"at most {self.budget.rows}", str(shape[0]))
            if stored == 0:
                raise Hdf5Error(
                    "never written: the file holds fill values, not data",
                    path=str(self.path),
                    where=name,
                    hint="the recorder was killed before it wrote this dataset",
                )
            if declared > self.budget.ratio_from and declared > stored * self.budget.ratio:
                raise self._refuse(
                    name,
                    "far more declared than stored",
                    f"at most {self.budget.ratio}:1",
                    f"{declared}:{stored} bytes",
                )
            if dataset.chunks is not None:
                self.check_chunk(name, dataset)
                expected = math.prod(-(-size // chunk) for size, chunk in zip(shape, dataset.chunks, strict=True))
                written = dataset.id.get_num_chunks()
                if written < expected:
                    raise Hdf5Error(
                        "written only in part: the rest are fill values, not data",
                        path=str(self.path),
                        where=name,
                        expected=f"{expected} chunks",
                        found=str(written),
                    )

    def check_chunk(self, name: str, dataset: h5py.Dataset) -> None:
        """Checks that a chunk can be inflated in memory.

        Raises:
            Hdf5Error: over budget.
        """
        with library_errors(self.path, name):
            if dataset.chunks is None or not dataset.id.get_create_plist().get_nfilters():
                return
            size = math.prod(dataset.chunks) * dataset.dtype.itemsize
        if size > self.budget.chunk_bytes:
            raise self._refuse(name, "too large a chunk", f"at most {self.budget.chunk_bytes} bytes", f"{size}")
        if math.prod(dataset.shape) * dataset.dtype.itemsize <= _SMALL:
            self.check_inflated(name, dataset)  # cheap; what is larger is looked at as it is read

    def check_inflated(self, name: str, dataset: h5py.Dataset, start: int = 0, stop: int | None = None) -> None:
        """Checks that chunks about to be read hold no more than they declare.

        Args:
            name: Path of the dataset.
            dataset: It.
            start: First row to be read.
            stop: The row after the last; None: all.

        Raises:
            Hdf5Error: one inflates past its size, or is compressed twice.
        """
        if dataset.chunks is None:
            return
        with library_errors(self.path, name):
            if name not in self._large:
                if odd_pipeline(dataset):
                    raise self._refuse(name, "compressed twice", "one compression", None)
                self._large[name] = dict.fromkeys(watched_chunks(dataset), False)
            for place, looked in self._large[name].items():
                if looked or place[0] + dataset.chunks[0] <= start or (stop is not None and place[0] >= stop):
                    continue
                if inflates_beyond(dataset, place):
                    raise self._refuse(
                        name, "a chunk that inflates past its size", "as many bytes as declared", f"more, at {place}"
                    )
                self._large[name][place] = True

    def at_once(self, most: int) -> int:
        """How many rows of variable length may be read at once: they can share bytes, so that each may be all of them.

        Args:
            most: Rows that are wanted.
        """
        return max(1, min(most, self.budget.shared_bytes // max(1, self._bytes)))

    def read_vector(self, name: str, start: int = 0, stop: int | None = None) -> npt.NDArray[np.generic]:
        """Reads rows of a numeric dataset, after looking at its size.

        Args:
            name: Its path.
            start: First row.
            stop: The row after the last; None: all.

        Returns:
            The values in native byte order, of any numeric type and shape.

        Raises:
            Hdf5Error: absent, not numeric, over budget, or damaged.
        """
        dataset = self.dataset(name)
        if dataset is None:
            raise Hdf5Error("missing", path=str(self.path), where=name)
        shape = dataset.shape or ()
        declared = math.prod(shape) * dataset.dtype.itemsize if dataset.shape is not None else 0
        if shape and (start or stop is not None):
            first, last, _ = slice(start, stop).indices(shape[0])
            declared = max(0, last - first) * math.prod(shape[1:]) * dataset.dtype.itemsize
        if declared > self.budget.vector_bytes:
            raise self._refuse(
                name, "too large for a vector", f"at most {self.budget.vector_bytes} bytes", f"{declared}"
            )
        if dataset.dtype.kind not in "fiub":
            raise Hdf5Error("not numeric", path=str(self.path), where=name, found=str(dataset.dtype))
        self.check_stored(name, dataset)
        first, last, _ = slice(start, stop).indices(shape[0] if shape else 1)
        self.check_inflated(name, dataset, first, last)
        with library_errors(self.path, name):
            values: npt.NDArray[np.generic] = dataset[start:stop] if shape else dataset[()]
            return values

    def lines(self, limit: int = 40) -> list[str]:
        """The tree as text: one line a name, with shape and type; at most ``limit`` lines."""
        lines: list[str] = []
        seen: set[int] = set()

        def walk(name: str, depth: int) -> None:
            for child in self.children(name):
                shown = printable(child)
                if len(lines) >= limit:
                    return
                path, pad = join(name, child), "  " * depth
                try:
                    found = self.get(path)
                except Hdf5Error as fault:
                    lines.append(f"{pad}{shown}  ({fault.message})")
                    continue
                if isinstance(found, h5py.Dataset):
                    lines.append(f"{pad}{shown}  {found.shape} {found.dtype}")
                elif found is None:
                    lines.append(f"{pad}{shown}  (leads nowhere)")
                else:
                    lines.append(f"{pad}{shown}/")
                    address = h5py.h5o.get_info(found.id).addr
                    if address not in seen and depth < self.budget.depth - 2:
                        seen.add(address)
                        walk(path, depth + 1)

        seen.add(h5py.h5o.get_info(self.file["/"].id).addr)
        walk("/", 0)
        return [*lines[:limit], "..."] if len(lines) >= limit else lines


def _text(name: str | bytes) -> str:
    """A name as h5py gives it: bytes where it is not UTF-8."""
    return name.decode("utf-8", "surrogateescape") if isinstance(name, bytes) else name


def join(*parts: str) -> str:
    """An absolute path in a file."""
    return "/" + "/".join(piece for part in parts for piece in part.split("/") if piece)


def _parts(name: str) -> tuple[str, ...]:
    return tuple(part for part in name.split("/") if part not in ("", "."))
