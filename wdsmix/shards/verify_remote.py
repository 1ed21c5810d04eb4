"""Checking a shard that lies in a store: its frame table is staged for the moment, its tar streams by, in flat memory.

Nothing is kept. Tars that were not written by us, or whose frame table is unreadable, can't be checked in one pass:
these are held in memory, one for each process.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import google_crc32c

from wdsmix.manifest import FileEntry, Manifest
from wdsmix.shards.faults import Faults
from wdsmix.shards.frames import FrameTable
from wdsmix.shards.tario import END
from wdsmix.shards.verify_manifest import is_adopted
from wdsmix.shards.verify_shard import ShardTotals, check_bytes, compare_checksums
from wdsmix.store import ObjectReader, Store

__all__ = ["StreamedTar", "check_remote_tar", "staged"]


@contextlib.contextmanager
def staged(store: Store, names: Sequence[str]) -> Iterator[Path]:
    """A folder with some small files of a set, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="wdsmix-") as folder:
        for name in names:
            with (Path(folder) / name).open("wb") as file:
                for data in ObjectReader(store, name).stream():
                    file.write(data)
        yield Path(folder)


class StreamedTar:
    """The bytes of a tar, sliced in ascending order only; hashed as they go by.

    Args:
        stream: The bytes.
        size: How many there are.
    """

    def __init__(self, stream: Iterator[bytes], size: int) -> None:
        self._stream, self._size = stream, size
        self._window, self._start = bytearray(), 0
        self._sha, self._crc = hashlib.sha256(), 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        """Bytes of a slice; none where they have gone by. Without a stop: enough to tell the end marker."""
        start = int(part.start or 0)
        stop = min(self._size, start + 2 * len(END) if part.stop is None else int(part.stop))
        if start < self._start:
            return b""
        while self._start + len(self._window) < stop:
            self._take(start)
        self._drop(start)
        return bytes(self._window[: max(stop - start, 0)])

    def _take(self, keep: int) -> None:
        data = next(self._stream)
        self._sha.update(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._window += data
        self._drop(min(keep, self._start + len(self._window)))

    def _drop(self, before: int) -> None:
        gone = min(before - self._start, len(self._window))
        if gone > 0:
            del self._window[:gone]
            self._start += gone

    def finish(self, name: str) -> FileEntry:
        """Lets the rest go by and says what the whole was."""
        while self._start + len(self._window) < self._size:
            self._take(self._size)
        return FileEntry(name=name, bytes=self._size, sha256=self._sha.hexdigest(), crc32c=self._crc)


def check_remote_tar(
    store: Store,
    entry: FileEntry,
    manifest: Manifest,
    table: FrameTable | None,
    faults: Faults,
    tick: Callable[[int], None],
) -> ShardTotals:
    """Checks a tar as `wdsmix.shards.verify_shard` does, over one stream.

    Args:
        store: The version's.
        entry: What the manifest says of the tar.
        manifest: The set's.
        table: The shard's frame table; None where it is unreadable.
        faults: Collects what is wrong.
        tick: Told how many frames were done, now and then.

    Raises:
        StorageError: the store can't be reached or refuses.
        ConflictError: the object was replaced while it was read.
    """
    totals = ShardTotals()
    reader = ObjectReader(store, entry.name)
    size = reader.info.size
    with contextlib.closing(reader.stream()) as stream:
        tar = StreamedTar(stream, size)
        if size == 0:
            faults.add("header", entry.name, "the tar is empty", expected="at least the end marker", found="0 bytes")
        elif table is not None and not is_adopted(manifest):
            check_bytes(entry.name, tar, manifest, table, faults, totals, tick)
        else:
            with mmap.mmap(-1, size) as held:
                for place in range(0, size, 1 << 20):
                    held[place : min(place + (1 << 20), size)] = tar[place : min(place + (1 << 20), size)]
                check_bytes(entry.name, held, manifest, table, faults, totals, tick)
        faults.saw("checksum")
        compare_checksums(entry, tar.finish(entry.name), faults)
    return totals
