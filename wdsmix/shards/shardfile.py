"""ShardFile: one shard of a set, mapped into memory; its frame table is checked before the tar is read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.manifest import FileEntry
from wdsmix.shards.frames import map_file, read_frames
from wdsmix.shards.pages import Pages
from wdsmix.shards.tario import END, iter_members, split_name

if TYPE_CHECKING:
    from wdsmix.store.cached_tar import CachedTar

__all__ = ["EpisodeRows", "ShardFile"]

UInt8Array = npt.NDArray[np.uint8]


class EpisodeRows(NamedTuple):
    """What the index says of a shard's episodes; arrays of one element each."""

    first_row: npt.NDArray[np.int64]
    frames: npt.NDArray[np.int64]
    offset: npt.NDArray[np.int64]
    length: npt.NDArray[np.int64]


class ShardFile:
    """One shard, N frames. All arrays are views of mapped files and can't be written to.

    Of a shard that lies in a store, ``tar`` holds what was fetched: whoever reads it calls ``pages.touch`` before.

    Attributes:
        name: Such as ``train-00000``.
        path: Its tar, or the tar's URL.
        tar: uint8 [bytes of the tar].
        remote: The tar in this node's cache, if it lies in a store; else None.
        offset: uint64 [N], first byte of the frame in the tar.
        length: uint32 [N], bytes of the frame, headers and padding included.
        crc32c: uint32 [N], over exactly those bytes.
        episode: uint32 [N], episode number.
        frame: uint32 [N], number of the frame within its episode.
        timestamp: float64 [N], s.
        task: uint32 [N], into ``tasks``.
        tasks: Task strings of this shard.
        vectors: Name -> float32 [N, D]; zeros where absent.
        present: Name -> bool [N].
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        files: Mapping[str, FileEntry],
        vectors: Mapping[str, int],
        episodes: EpisodeRows | None = None,
        *,
        verify: bool = True,
        remote: CachedTar | None = None,
    ) -> None:
        """Maps a shard.

        Args:
            folder: Folder of the set, or of its small files.
            name: Name of the shard.
            files: What the manifest says of the files of the set, by name.
            vectors: Name -> width.
            episodes: What the index says of it; None: not compared.
            verify: Whether to check the crc32c of the frame table, which reads it once.
            remote: The tar, if it lies in a store.

        Raises:
            DataError: a file is missing or damaged, or the three of manifest, index and frame table disagree.
        """
        self.name = name
        self.remote = remote
        self.path: PurePath = Path(folder) / f"{name}.tar" if remote is None else remote.path
        table_path = Path(folder) / f"{name}.frames.arrow"
        for path in (Path(folder) / f"{name}.tar", table_path):
            if path.name not in files:
                raise DataError("the manifest does not list the file", path=path)
        self.tar: UInt8Array
        if remote is None:
            self.tar = np.frombuffer(map_file(Path(folder) / f"{name}.tar", files[f"{name}.tar"]), np.uint8)
        else:
            self.tar = remote.data
        table = read_frames(table_path, files[table_path.name], vectors, verify=verify)
        self.offset: npt.NDArray[np.uint64] = table.columns["offset"]
        self.length: npt.NDArray[np.uint32] = table.columns["length"]
        self.crc32c: npt.NDArray[np.uint32] = table.columns["crc32c"]
        self.episode: npt.NDArray[np.uint32] = table.columns["episode"]
        self.frame: npt.NDArray[np.uint32] = table.columns["frame"]
        self.timestamp: npt.NDArray[np.float64] = table.columns["timestamp"]
        self.task: npt.NDArray[np.uint32] = table.columns["task"]
        self.tasks = table.tasks
        self.vectors = table.vectors
        self.present = table.present
        self.complete = frozenset(name for name, there in self.present.items() if there.all())
        """Vectors that every frame has."""
        self.pages: Pages | CachedTar = remote or Pages(self.tar)
        self._check_places(table_path)
        if episodes is not None:
            self._check_episodes(table_path, episodes)

    def __len__(self) -> int:
        return len(self.offset)

    def _check_places(self, path: Path) -> None:
        """No frame may lie outside of the tar, whatever the table says."""
        room = np.uint64(max(len(self.tar) - len(END), 0))
        beyond = (self.offset > room) | (self.length > room - np.minimum(self.offset, room))
        if beyond.any():
            row = int(np.argmax(beyond))
            raise DataError(
                "a frame lies outside of the tar",
                path=path,
                where=f"row {row}",
                expected=f"within {int(room)} bytes",
                found=f"{self.length[row]} bytes at {self.offset[row]}",
            )

    def _check_episodes(self, path: Path, rows: EpisodeRows) -> None:
        total = int(rows.frames.sum())
        if total != len(self) or not np.array_equal(rows.first_row, np.cumsum(rows.frames) - rows.frames):
            raise DataError("the index and the frame table differ in rows", path=path, expected=total, found=len(self))
        if not total:
            return
        if int(rows.frames.min()) < 1:
            raise DataError("the index has an episode without frames", path=path)
        last = rows.first_row + rows.frames - 1
        start = self.offset[rows.first_row].astype(np.int64)
        stop = self.offset[last].astype(np.int64) + self.length[last].astype(np.int64)
        wrong = (start != rows.offset) | (stop - start != rows.length)
        if wrong.any():
            k = int(np.argmax(wrong))
            raise DataError(
                "the index and the frame table differ in where an episode lies",
                path=path,
                where=f"row {int(rows.first_row[k])}",
                expected=f"{int(rows.length[k])} bytes at {int(rows.offset[k])}",
                found=f"{int(stop[k] - start[k])} bytes at {int(start[k])}",
            )

    def key(self, row: int) -> str:
        """Sample key of a frame, as this project's writer names it."""
        return f"{int(self.episode[row]):06d}_{int(self.frame[row]):06d}"

    def raw(self, row: int, *, verify: bool = True) -> UInt8Array:
        """Bytes of a frame in the tar.

        Args:
            row: 0 to N - 1.
            verify: Whether to check its crc32c.

        Returns:
            uint8, a view; of a shard in a store, a copy.

        Raises:
            DataError: the bytes are not those that were written.
        """
        start = int(self.offset[row])
        stop = start + int(self.length[row])
        if self.remote is not None:
            self.remote.touch(start, stop)
        data = self.tar[start:stop] if self.remote is None else self.tar[start:stop].copy()
        if verify:
            found = google_crc32c.value(data)
            if found != int(self.crc32c[row]) and self.renew(row):
                return self.raw(row, verify=verify)
            if found != int(self.crc32c[row]):
                raise DataError(
                    "damaged frame: its checksum is wrong",
                    path=self.path,
                    where=self._place(row),
                    expected=f"crc32c {int(self.crc32c[row]):08x}",
                    found=f"{found:08x}",
                    hint="the shard was changed or damaged after it was written: fetch or convert it again",
                )
        return data

    def renew(self, row: int) -> bool:
        """Reads a damaged frame once more from the store, past the cache; whether it is whole now. Not on a disk."""
        start, length = int(self.offset[row]), int(self.length[row])
        return self.remote is not None and self.remote.renew(start, start + length, int(self.crc32c[row]))

    def prepare(self, first: int, stop: int) -> None:
        """Says that rows ``first`` to ``stop`` will be read: what of them lies in a store is fetched in one go."""
        if self.remote is not None and stop > first:
            self.remote.touch(int(self.offset[first]), int(self.offset[stop - 1]) + int(self.length[stop - 1]))

    def sample(self, row: int, verify: bool = True) -> tuple[str, dict[str, UInt8Array]]:
        """Sample key and files of a frame, as the tar has them (an adopted tar has its own keys).

        Args:
            row: 0 to N - 1.
            verify: Whether to check the frame's crc32c first.

        Returns:
            The key, and suffix (such as ``cam0.jpg``) -> uint8 view of the file's bytes, in the order of the tar.

        Raises:
            DataError: damaged, or not the members of one sample.
        """
        data = self.raw(row, verify=verify)
        found: dict[str, UInt8Array] = {}
        sample: str | None = None
        try:
            for member in iter_members(data, checksums=not verify):
                key, suffix = split_name(member.name)
                if sample is None:
                    sample = key
                if key != sample or suffix in found:
                    raise DataError("not the members of one sample", expected=sample, found=member.name)
                found[suffix] = data[member.data : member.data + member.size]
        except DataError as error:
            error.path = str(self.path)
            error.where = f"{self._place(row)}, {error.where}" if error.where else self._place(row)
            raise
        return sample or self.key(row), found

    def members(self, row: int, verify: bool = True) -> dict[str, UInt8Array]:
        """Files of a frame: suffix -> uint8 view of its bytes; see `sample`.

        Raises:
            DataError: damaged, or not the members of one sample.
        """
        return self.sample(row, verify)[1]

    def _place(self, row: int) -> str:
        return f"offset {int(self.offset[row])}, sample {self.key(row)}"
