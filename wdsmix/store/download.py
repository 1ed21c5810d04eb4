"""Receiving one file: ranges into a ``.part`` file, with a journal of those that are done."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable
from concurrent.futures import Executor
from pathlib import Path

from wdsmix.errors import ConflictError, DataError
from wdsmix.manifest import FileEntry
from wdsmix.shards.files import fsync_file, publish, write_at
from wdsmix.store.base import Store
from wdsmix.store.reader import ObjectReader
from wdsmix.store.transfer import Meter, Throttle, run_on

__all__ = ["PART_SUFFIX", "RANGE", "PartFile", "receive"]

RANGE = 8 << 20
"""Bytes of a range."""
_BLOCK = 1 << 20
PART_SUFFIX = ".part"
"""Suffix of a file that is being received; its journal has ``.json`` more."""


class PartFile:
    """A file that arrives in ranges. What is done survives a kill; a power cut shows in the sha256.

    Args:
        path: The file's final name.
        entry: What it will be.
        size: Bytes of a range.
    """

    def __init__(self, path: Path, entry: FileEntry, size: int = RANGE) -> None:
        self.path, self.entry, self.size = path, entry, size
        self.part = path.with_name(path.name + PART_SUFFIX)
        self.journal = path.with_name(path.name + PART_SUFFIX + ".json")
        self.etag = ""
        self.done: set[int] = set()
        self._lock = threading.Lock()
        self._load()

    @property
    def ranges(self) -> int:
        """Number of ranges."""
        return -(-self.entry.bytes // self.size)

    def bounds(self, number: int) -> tuple[int, int]:
        """First byte of a range, and the byte after its last."""
        return number * self.size, min((number + 1) * self.size, self.entry.bytes)

    @property
    def kept(self) -> int:
        """Bytes that are there already."""
        return sum(stop - start for start, stop in map(self.bounds, self.done))

    def _load(self) -> None:
        """Takes up what an earlier try left, if it was after the same bytes."""
        try:
            head, *lines = self.journal.read_text().split("\n")
            facts = json.loads(head)
            if {**facts, "etag": ""} != self._facts("") or self.part.stat().st_size != self.entry.bytes:
                return
            self.etag = str(facts["etag"])
            self.done = {int(line) for line in lines[:-1]}
            if not all(0 <= number < self.ranges for number in self.done):
                self.etag, self.done = "", set()
            elif lines[-1]:  # cut off while it was written
                self.journal.write_text("\n".join([head, *lines[:-1], ""]))
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            self.etag, self.done = "", set()

    def _facts(self, etag: str) -> dict[str, object]:
        return {"bytes": self.entry.bytes, "sha256": self.entry.sha256, "range": self.size, "etag": etag}

    def begin(self, etag: str) -> None:
        """Makes room, and starts anew if the object is another one than before."""
        if self.etag == etag and self.done:
            return
        self.etag, self.done = etag, set()
        self.journal.unlink(missing_ok=True)
        with self.part.open("wb") as file:
            file.truncate(self.entry.bytes)
        self.journal.write_text(json.dumps(self._facts(etag)) + "\n")

    def finished(self, number: int) -> None:
        """Notes a range whose bytes are written."""
        with self._lock, self.journal.open("a") as file:
            file.write(f"{number}\n")
            self.done.add(number)

    def discard(self) -> None:
        """Throws away what is there."""
        self.journal.unlink(missing_ok=True)
        self.part.unlink(missing_ok=True)
        self.etag, self.done = "", set()

    def publish(self) -> None:
        """Gives the whole and checked file its name."""
        fsync_file(self.part)
        publish(self.part, self.path)
        self.journal.unlink(missing_ok=True)


class _Digest:
    """sha256 of a file that is arriving: of as much from its start as is there, so that little is left at the end."""

    def __init__(self, part: PartFile) -> None:
        self._part, self._next = part, 0
        self._sha, self._lock = hashlib.sha256(), threading.Lock()

    def advance(self, handle: int) -> None:
        """Hashes what is there, unless another thread is at it.

        Args:
            handle: The part file, open to read.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._go_on(handle)
        finally:
            self._lock.release()

    def finish(self) -> str:
        """Hashes the rest; all ranges must be there."""
        with self._lock, self._part.part.open("rb", buffering=0) as file:
            self._go_on(file.fileno())
        return self._sha.hexdigest()

    def _go_on(self, handle: int) -> None:
        while self._next in self._part.done:
            place, stop = self._part.bounds(self._next)
            while place < stop and (data := os.pread(handle, min(_BLOCK, stop - place), place)):
                self._sha.update(data)
                place += len(data)
            self._next += 1


def receive(
    store: Store,
    path: Path,
    entry: FileEntry,
    *,
    pool: Executor,
    throttle: Throttle,
    meter: Meter,
) -> None:
    """Receives a file of a set, checks its sha256, and gives it its name; damaged bytes are fetched once more.

    Args:
        store: The version's.
        path: The file's final name.
        entry: What it will be.
        pool: Threads for its ranges, shared with other files; the caller's own is none of them.
        throttle: Limit on the rate.
        meter: Told of bytes.

    Raises:
        DataError: it is not what the manifest says, also when fetched anew.
        StorageError: the store can't be reached or refuses.
    """
    part = PartFile(path, entry)
    for last in (False, True):
        try:
            digest = _ranges(store, part, pool, throttle, meter)
        except ConflictError:
            if last:
                raise
            meter.kept(-part.kept)
            part.discard()  # what an earlier try left is of another version of the object
            continue
        found = digest.finish()
        if found == entry.sha256:
            part.publish()
            return
        part.discard()
        if not last:
            store.retries.note("damaged bytes, fetched again")
            meter.kept(-entry.bytes)
    raise DataError(
        "damaged in the store: fetched twice, and its checksum is not the manifest's",
        path=store.where(entry.name),
        expected=f"sha256 {entry.sha256}",
        found=found,
    )


def _ranges(store: Store, part: PartFile, pool: Executor, throttle: Throttle, meter: Meter) -> _Digest:
    digest = _Digest(part)
    reader = ObjectReader(store, part.entry.name, size=part.entry.bytes, etag=part.etag if part.done else "")
    if not part.done:
        part.begin("" if part.ranges == 1 else reader.info.etag)  # one answer can't be of two versions
    else:
        meter.kept(part.kept)
    missing = [number for number in range(part.ranges) if number not in part.done]
    if not missing:
        return digest
    handle = os.open(part.part, os.O_RDWR)

    def fetch(number: int) -> Callable[[], None]:
        def task() -> None:
            store.retries.check()
            place, stop = part.bounds(number)
            with contextlib.closing(reader.pieces(place, stop)) as pieces:
                for data in pieces:
                    store.retries.check()
                    throttle.take(len(data))
                    write_at(handle, data, place)
                    place += len(data)
                    meter.moved(len(data))
            part.finished(number)
            digest.advance(handle)

        return task

    try:
        run_on(pool, [fetch(number) for number in missing])
    finally:
        os.close(handle)
    return digest
