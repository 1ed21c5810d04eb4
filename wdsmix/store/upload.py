"""Sending one file: parts with a journal, so that a killed push goes on where it was, and a check of what arrived."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from wdsmix.errors import DataError
from wdsmix.manifest import FileEntry
from wdsmix.shards.files import file_entry, write_atomic
from wdsmix.store.base import MissingObjectError, ObjectInfo, Store, md5
from wdsmix.store.local import LocalStore
from wdsmix.store.s3 import S3Store
from wdsmix.store.transfer import Meter, Throttle

__all__ = ["PART", "SHA256", "Journal", "Uploader", "etag_of", "holds", "part_size"]

PART = 16 << 20
"""Bytes of a part, unless a file would need too many."""
SHA256 = "wdsmixsha256"
"""Name under which an object carries the sha256 of its bytes; one that every store can spell."""
_MOST_PARTS = 10_000
_LIKELY = tuple(n << 20 for n in (16, 8, 5, 15, 32, 64, 100))


def part_size(size: int, part: int = PART) -> int:
    """Bytes of each part of a file of ``size`` bytes: ``part``, or more where there would be too many."""
    least = -(-size // _MOST_PARTS)
    return max(part, -(-least // (1 << 20)) << 20)


def etag_of(digests: Sequence[bytes]) -> str:
    """ETag that S3 gives an object of these parts (their MD5s); of one part alone if it was sent as a whole."""
    return f"{md5(b''.join(digests)).hex()}-{len(digests)}"


def holds(store: Store, info: ObjectInfo, path: Path, entry: FileEntry) -> bool:
    """Whether an object is the file, as far as the store can tell without reading it."""
    if info.size != entry.bytes:
        return False
    if isinstance(store, LocalStore):
        return file_entry(store.folder / info.key, entry.name) == entry
    info = store.head(info.key)
    if SHA256 in info.metadata:
        return info.metadata[SHA256] == entry.sha256
    if info.crc32c is not None:
        return info.crc32c == entry.crc32c
    etag, _, count = info.etag.strip('"').partition("-")
    if not count:
        return len(etag) == 32 and _file_md5(path) == etag
    sizes = [size for size in _LIKELY if count.isdigit() and -(-entry.bytes // size) == int(count)]
    return any(etag_of([md5(part) for part in _parts(path, size)]) == f"{etag}-{count}" for size in sizes)


def _parts(path: Path, size: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while data := file.read(size):
            yield data


def _file_md5(path: Path) -> str:
    found = hashlib.md5(usedforsecurity=False)
    for data in _parts(path, 1 << 20):
        found.update(data)
    return found.hexdigest()


class Journal:
    """Uploads that were begun, by key: written before the first part goes out, so that none is ever forgotten.

    Args:
        path: Where it is kept; None: nowhere.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self.uploads: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            try:
                value = json.loads(path.read_bytes())["uploads"]
                self.uploads = {str(name): dict(facts) for name, facts in value.items()}
            except (ValueError, KeyError, TypeError, AttributeError):
                self.uploads = {}

    def begin(self, name: str, facts: dict[str, Any]) -> None:
        """Notes an upload."""
        with self._lock:
            self.uploads[name] = facts
            self._write()

    def end(self, name: str) -> None:
        """Forgets an upload that is finished or gone."""
        with self._lock:
            if self.uploads.pop(name, None) is not None:
                self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        if self.uploads:
            write_atomic(self._path, json.dumps({"uploads": self.uploads}, sort_keys=True).encode())
        else:
            self._path.unlink(missing_ok=True)


class _Room:
    """Memory for parts: so many buffers at most, used again, for fresh ones cost more than hashing does.

    Args:
        places: How many.
    """

    def __init__(self, places: int) -> None:
        self._places, self._most = threading.BoundedSemaphore(places), places
        self._lock = threading.Lock()
        self._free: list[bytearray] = []
        self._lent = 0

    def take(self, size: int) -> bytearray:
        """A buffer of ``size`` bytes; waits for a place."""
        self._places.acquire()
        with self._lock:
            self._lent += 1
            for k, found in enumerate(self._free):
                if len(found) == size:
                    return self._free.pop(k)
            while self._free and self._lent + len(self._free) > self._most:
                self._free.pop()
        return bytearray(size)

    def give(self, data: bytearray) -> None:
        """Takes a buffer back."""
        with self._lock:
            self._free.append(data)
        self.leave()

    def leave(self) -> None:
        """Takes back the place of a buffer that is lost."""
        with self._lock:
            self._lent -= 1
        self._places.release()

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place alone, for memory of the caller's."""
        self._places.acquire()
        with self._lock:
            self._lent += 1
            while self._free and self._lent + len(self._free) > self._most:
                self._free.pop()
        try:
            yield
        finally:
            self.leave()


class Uploader:
    """Sends files to one store, parts in parallel.

    Args:
        store: Where to.
        journal: Of uploads.
        jobs: Parts under way at a time; memory is a few parts more.
        part: Bytes of a part.
        throttle: Limit on the rate.
        meter: Told of every part.
    """

    def __init__(
        self, store: Store, journal: Journal, *, jobs: int, part: int, throttle: Throttle, meter: Meter
    ) -> None:
        self.store, self.journal, self.part = store, journal, part
        self.throttle, self.meter = throttle, meter
        self.parts_sent = self.parts_kept = 0
        self._lock = threading.Lock()
        self._room = _Room(jobs + 2)
        self._pool = ThreadPoolExecutor(jobs, thread_name_prefix="wdsmix-part")

    def close(self) -> None:
        """Ends its threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def send(self, path: Path, entry: FileEntry) -> ObjectInfo:
        """Sends a file and checks what arrived.

        Raises:
            DataError: the file is not what the manifest says, or did not arrive so.
            StorageError: the store can't be reached or refuses.
        """
        store = self.store
        if isinstance(store, S3Store) and entry.bytes > part_size(entry.bytes, self.part):
            wanted = self._multipart(store, path, entry)
        else:
            wanted = self._whole(path, entry)
        info = store.head(entry.name)
        if info.size != entry.bytes or (wanted and info.etag.strip('"') != wanted):
            raise DataError(
                "what arrived is not what was sent",
                path=store.where(entry.name),
                expected=f"{entry.bytes} bytes, ETag {wanted or 'any'}",
                found=f"{info.size} bytes, ETag {info.etag}",
            )
        return info

    def _whole(self, path: Path, entry: FileEntry) -> str:
        """Sends a file as one object; returns the ETag it must have, empty where the store gives no MD5."""
        store, metadata = self.store, {SHA256: entry.sha256}
        self.throttle.take(entry.bytes)
        if isinstance(store, S3Store):
            with self._room.place():
                data = path.read_bytes()
                _check(hashlib.sha256(data).hexdigest(), entry, path)
                etag = store.put(entry.name, data, metadata=metadata).strip('"')
                wanted = md5(data).hex()
            wanted = wanted if etag == wanted else ""
        else:
            _check(file_entry(path).sha256, entry, path)
            store.put_file(entry.name, path, metadata=metadata)
            if isinstance(store, LocalStore):
                _check(file_entry(store.folder / entry.name).sha256, entry, store.where(entry.name))
            wanted = ""
        with self._lock:
            self.parts_sent += 1
        self.meter.moved(entry.bytes)
        return wanted

    def _multipart(self, store: S3Store, path: Path, entry: FileEntry) -> str:
        """Sends a file in parts; returns the ETag it must have, empty where the store gives no MD5s."""
        before = path.stat()
        size = part_size(entry.bytes, self.part)
        place = self._place(entry.name)
        facts = {"size": entry.bytes, "mtime_ns": before.st_mtime_ns, "sha256": entry.sha256, "part_size": size}
        upload, there = self._begin(store, entry, facts)
        crc32c, digests, etags = 0, [], dict[int, str]()
        pending: deque[tuple[int, Future[str]]] = deque()
        number = 0
        try:
            for data in self._read(path, entry.bytes, size):
                number += 1
                try:
                    store.retries.check()
                    # Not sha256, which fetch and validate compare: beside an MD5 that halves the speed of a fast store.
                    crc32c = google_crc32c.extend(crc32c, np.frombuffer(data, np.uint8))
                    digest = md5(data)
                except BaseException:
                    self._room.give(data)
                    raise
                digests.append(digest)
                found = there.get(number)
                if found is not None and found[0] == len(data) and found[1].strip('"') == digest.hex():
                    etags[number] = found[1]
                    self._room.give(data)
                    with self._lock:
                        self.parts_kept += 1
                    self.meter.kept(len(data))
                    continue
                pending.append((number, self._pool.submit(self._part(store, entry.name, upload, number, data, digest))))
                while pending and pending[0][1].done():
                    first, future = pending.popleft()
                    etags[first] = future.result()
            while pending:
                first, future = pending.popleft()
                etags[first] = future.result()
        except BaseException:
            for _, future in pending:
                if future.cancel():
                    self._room.leave()
            raise
        if path.stat().st_mtime_ns != before.st_mtime_ns or crc32c != entry.crc32c:
            store.abort_upload(entry.name, upload)
            self.journal.end(place)
            if crc32c != entry.crc32c:
                raise _damaged(path, f"crc32c {entry.crc32c:08x}", f"{crc32c:08x}")
            raise DataError("the file was changed while it was sent", path=path)
        ordered = [etags[number] for number in range(1, len(digests) + 1)]
        store.complete_upload(entry.name, upload, ordered)
        self.journal.end(place)
        plain = all(etag.strip('"') == digest.hex() for etag, digest in zip(ordered, digests, strict=True))
        return etag_of(digests) if plain else ""

    def _begin(self, store: S3Store, entry: FileEntry, facts: dict[str, Any]) -> tuple[str, dict[int, tuple[int, str]]]:
        """An upload to go on with, and the parts that it has."""
        place = self._place(entry.name)
        known = self.journal.uploads.get(place)
        if known is not None:
            upload = str(known.get("upload_id", ""))
            try:
                if {**known, "upload_id": upload} == {**facts, "upload_id": upload}:
                    return upload, store.list_parts(entry.name, upload)
                store.abort_upload(entry.name, upload)
            except MissingObjectError:
                pass
            self.journal.end(place)
        upload = store.create_upload(entry.name, {SHA256: entry.sha256})
        self.journal.begin(place, {**facts, "upload_id": upload})
        return upload, {}

    def _place(self, name: str) -> str:
        """What the journal calls a file: its key below the URL that was pushed to."""
        return f"{self.store.url.rpartition('/')[2]}/{name}"

    def _read(self, path: Path, total: int, size: int) -> Iterator[bytearray]:
        """Parts of a file; each holds a place in memory until it is sent or kept."""
        with path.open("rb", buffering=0) as file:
            for start in range(0, total, size):
                data = self._room.take(min(size, total - start))
                view, place = memoryview(data), 0
                while place < len(data) and (amount := file.readinto(view[place:])):
                    place += amount
                view.release()
                if place < len(data):  # it was cut meanwhile: what is missing shows in the checksum
                    self._room.give(data)
                    return
                yield data

    def _part(
        self, store: S3Store, name: str, upload: str, number: int, data: bytearray, digest: bytes
    ) -> Callable[[], str]:
        def send() -> str:
            try:
                store.retries.check()
                self.throttle.take(len(data))
                store.retries.check()
                etag = store.upload_part(name, upload, number, data, digest)
                amount = len(data)
            finally:
                self._room.give(data)
            with self._lock:
                self.parts_sent += 1
            self.meter.moved(amount)
            return etag

        return send


def _check(found: str, entry: FileEntry, path: Path | str) -> None:
    if found != entry.sha256:
        raise _damaged(path, f"sha256 {entry.sha256}", found)


def _damaged(path: Path | str, expected: str, found: str) -> DataError:
    return DataError(
        "damaged: its checksum is not the manifest's",
        path=path,
        expected=expected,
        found=found,
        hint="nothing of it was published; convert the set again, or fetch it",
    )
