"""The tars of one set as far as this node has them: sparse files, a shared table of what is there, and locks.

A folder of the cache, shared by all processes of the node that read this version of this set::

    manifest.json, index.parquet, train-00000.frames.arrow ...   whole files: written beside, checked, renamed
    train-00000.sparse ...    as long as the tar; bytes that were not fetched are holes
    table                     mapped by all: ETag of each tar, last use of each region, a byte for each chunk there is
    table-0 ...               locks of regions

A *chunk* (64 KiB) is there or not; it is marked after its bytes are written, and otherwise while it is not needed for
long. A *region* (256 KiB) is what is given up at once. Locks: a process *uses* the set, *fetches* chunks, or a whole
file; it keeps regions from being given up while it fetches (shared), or gives them up (exclusive). They end with
their process, so that a killed one leaves neither a stale lock nor a chunk that is only marked; whoever needs the
chunk fetches it. Whoever reads takes no lock, but writes the time: what was read or fetched a moment ago stays. Were
a reader held up for longer than that, the checksum of its frame would tell.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsmix.errors import ConflictError, DataError, StorageError
from wdsmix.manifest import FileEntry
from wdsmix.shards.files import write_at
from wdsmix.store.base import Store
from wdsmix.store.cached_tar import CachedTar
from wdsmix.store.reader import ObjectReader
from wdsmix.store.table import CHUNK, DONE, REGION, THERE, Table, punch

__all__ = ["CachedSet", "Counts", "place_file"]

REQUEST = 8 << 20
"""Most bytes of one request."""

_TICK = 0.004  # s between two looks at what another process fetches
_PATIENCE = 60.0  # s without any progress after which a chunk is fetched though another process seems to do so
_PROMISED = 10.0  # s for which a reader waits for chunks that a thread of this process has said it will fetch
_GENERATION = 4.0  # s: so often a region that is read is said to be
_KEPT = 12.0  # s for which it is not given up then, unless it is not needed for long
_MOMENT = 2.0  # s for which it is not given up even then


class Counts:
    """What a process did with the sets of its cache; sums of many threads, good enough for a report."""

    def __init__(self) -> None:
        self.fetched = 0
        """Bytes that came from stores."""
        self.asked = 0
        """Reads of frames."""
        self.waited = 0
        """Of these, how many had to wait for the store."""

    def take(self) -> Counts:
        """The counts since the last call."""
        taken = Counts()
        for name in vars(taken):
            value = getattr(self, name)
            setattr(taken, name, value)
            setattr(self, name, getattr(self, name) - value)
        return taken


class CachedSet:
    """One version of one set in this node's cache, as one process sees it. Thread-safe; made by `Cache.open`.

    Args:
        folder: Its folder in the cache.
        store: Where the version lies.
        shards: Names of its shards.
        files: What the manifest says of its files, by name.
        fetched: Told the bytes of each request that is done.
        counts: Counted in.
    """

    def __init__(
        self,
        folder: Path,
        store: Store,
        shards: Sequence[str],
        files: Mapping[str, FileEntry],
        fetched: Callable[[int], None],
        counts: Counts,
    ) -> None:
        self.folder, self.store, self.shards, self.files = folder, store, list(shards), dict(files)
        self.counts = counts
        self._fetched = fetched
        self._numbers = {name: number for number, name in enumerate(sorted(self.files))}
        self.table = Table(folder / "table", [self.files[f"{name}.tar"].bytes for name in self.shards])
        self.used = False
        """Whether this process uses it."""
        self.keeps = bytearray(len(self.table.used))
        self._promised = bytearray(len(self.table.have))
        self._tars: weakref.WeakValueDictionary[int, CachedTar] = weakref.WeakValueDictionary()
        self.generation = 1
        self.after_fork()

    def after_fork(self) -> None:
        """A forked child holds no locks and fetches nothing."""
        if self.used:
            self.table.lock_use()
        self.keeps[:] = bytes(len(self.keeps))
        self._promised[:] = bytes(len(self._promised))
        self.until = time.monotonic() + _GENERATION
        """When what was said to be read is said again."""
        self._busy: dict[int, int] = {}
        self._claimed: set[int] = set()
        self._files: set[str] = set()
        self._readers: dict[int, ObjectReader] = {}
        self._lock = threading.Lock()
        self._progress = threading.Condition()

    # --- whole files --------------------------------------------------------------------------------------------------

    def file(self, name: str) -> Path:
        """A small file of the set, whole and checked; fetched once by one of the processes.

        Raises:
            DataError: it is not what the manifest says, after a second try too.
            StorageError: the store can't be reached or refuses.
        """
        path = self.folder / name
        entry = self.files.get(name)
        if entry is None:
            raise DataError("the manifest does not list the file", path=self.store.where(name))
        while not path.exists():
            with self._lock:
                mine = name not in self._files and self.table.lock_file(self._numbers[name])
                if mine:
                    self._files.add(name)
            if not mine:
                self._wait()
                continue
            try:
                if not path.exists():
                    self._receive_file(path, entry)
            finally:
                with self._lock:
                    self._files.discard(name)
                    self.table.drop_file(self._numbers[name])
                self._tell()
        return path

    def _receive_file(self, path: Path, entry: FileEntry) -> None:
        for last in (False, True):
            data = ObjectReader(self.store, entry.name, size=entry.bytes).read()
            self._count(len(data))
            found = google_crc32c.value(data)
            if found == entry.crc32c:
                break
            if last:
                raise DataError(
                    "damaged: its checksum is not the manifest's",
                    path=self.store.where(entry.name),
                    expected=f"crc32c {entry.crc32c:08x}",
                    found=f"{found:08x}, twice",
                )
        try:
            place_file(path, data)
        except OSError as error:
            raise _unwritable(error, self.folder) from error

    # --- tars ---------------------------------------------------------------------------------------------------------

    def tar(self, k: int) -> CachedTar:
        """The tar of shard ``k``: its bytes as a map, to be asked for before they are read."""
        with self._lock:
            found = self._tars.get(k)
            if found is None:
                found = self._tars[k] = CachedTar(self, k)
            return found

    def keep(self, region: int) -> None:
        """Says that a region is being read: for some seconds nobody gives it up."""
        generation = self.generation
        self.table.used[region] = int(time.time())  # before whoever asks looks for its chunks
        self.keeps[region] = generation

    def renew_generation(self) -> None:
        """Lets all regions be said anew to be read, when they are read again."""
        with self._lock:
            if time.monotonic() >= self.until:
                self.until = time.monotonic() + _GENERATION
                generation = self.generation % 255 + 1
                if generation == 1:
                    self.keeps[:] = bytes(len(self.keeps))
                self.generation = generation

    def obtain(self, k: int, first: int, stop: int) -> None:
        """Waits until chunks ``first`` to ``stop`` (of tar ``k``) are there, fetching what nobody else fetches.

        Raises:
            ConflictError: the tar was replaced.
            StorageError: the store can't be reached or refuses.
        """
        base = self.table.first_chunk[k]
        last_seen = -1
        since = began = time.monotonic()
        while True:
            runs = self._absent(base + first, base + stop)
            if not runs:
                return
            if 1 in self._promised[base + first : base + stop] and time.monotonic() - began < _PROMISED:
                self._wait()
                continue
            force = time.monotonic() - since > _PATIENCE
            fetched = [self._fetch(k, a - base, b - base, force=force) for a, b in runs]
            if not any(fetched):
                there = int(np.count_nonzero(self.table.have[base : self.table.first_chunk[k + 1]]))
                if there != last_seen:
                    last_seen, since = there, time.monotonic()
                self._wait()

    def promise(self, k: int, start: int, stop: int) -> None:
        """Says that a thread of this process will soon prefetch bytes ``start`` to ``stop``: readers wait for it."""
        first, last = self._chunks(k, start, stop)
        self._promised[first:last] = b"\1" * (last - first)

    def prefetch(self, k: int, start: int, stop: int) -> bool:
        """Fetches what nobody else fetches of bytes ``start`` to ``stop``; whether all is there afterwards.

        Ends what was promised, whatever comes of it.
        """
        base = self.table.first_chunk[k]
        first, last = self._chunks(k, start, stop)
        have = self.table.have[first:last]
        try:
            if DONE in have.tobytes():  # needed again
                self._mark(k, first, last, DONE, THERE)
            for a, b in self._absent(first, last):
                self._fetch(k, a - base, b - base)
        finally:
            self.withdraw(k, start, stop)
        return 0 not in have.tobytes()

    def withdraw(self, k: int, start: int, stop: int) -> None:
        """Takes a promise back."""
        first, last = self._chunks(k, start, stop)
        self._promised[first:last] = bytes(last - first)

    def _chunks(self, k: int, start: int, stop: int) -> tuple[int, int]:
        base = self.table.first_chunk[k]
        return base + (start >> CHUNK), base + (stop - 1 >> CHUNK) + 1

    def _absent(self, first: int, stop: int) -> list[tuple[int, int]]:
        """Runs of chunks that are not there, none longer than a request may be."""
        there, most = self.table.have[first:stop].astype(bool).tobytes(), REQUEST >> CHUNK
        runs: list[tuple[int, int]] = []
        begin = there.find(0)
        while begin >= 0:
            end = there.find(1, begin)
            end = len(there) if end < 0 else end
            runs += [(first + a, first + min(a + most, end)) for a in range(begin, end, most)]
            begin = there.find(0, end)
        return runs

    def _fetch(self, k: int, first: int, stop: int, *, force: bool = False) -> bool:
        """Fetches chunks of tar ``k``; False where somebody else is at one of them."""
        base = self.table.first_chunk[k]
        a, b = base + first, base + stop
        regions = self.table.regions_of(k, first, stop)
        with self._lock:
            taken = not self._claimed.isdisjoint(range(a, b))
            if not force and (taken or not self.table.lock_chunks(a, b)):
                return False
            self._claimed.update(range(a, b))
            for region in regions:
                self._busy[region] = self._busy.get(region, 0) + 1
        try:
            while not self._hold(regions):
                self._wait()  # for one that is giving them up
            self.table.used[regions.start : regions.stop] = int(time.time())
            for x, y in self._absent(a, b):  # another process may have just done it
                self._receive(k, x - base, y - base)
            self.table.used[regions.start : regions.stop] = int(time.time())  # it may have taken long
        finally:
            with self._lock:
                self._claimed.difference_update(range(a, b))
                self.table.drop_chunks(a, b)
                for region in regions:
                    self._busy[region] -= 1
                    if not self._busy[region]:
                        del self._busy[region]
                self._let_go(regions)
            self._tell()
        return True

    def _hold(self, regions: range) -> bool:
        """Locks regions against being given up; False where not all can be had yet."""
        with self._lock:
            return self.table.lock_regions(regions.start, regions.stop, shared=True)

    def _let_go(self, regions: range) -> None:
        """Ends that for those in which no thread of this process is fetching. To be called under the lock."""
        first = regions.start
        for region in (*(region for region in regions if region in self._busy), regions.stop):
            if region > first:
                self.table.drop_regions(first, region)
            first = region + 1

    def _receive(self, k: int, first: int, stop: int) -> None:
        """One request, written to the sparse file chunk by chunk."""
        base, size = self.table.first_chunk[k], self.table.sizes[k]
        at, end, done = first << CHUNK, min(stop << CHUNK, size), first
        reader = self._reader(k)
        began = at
        try:
            with self._open(k) as handle:
                for data in reader.pieces(at, end):
                    if done == first:
                        self._check_etag(k, reader)
                    write_at(handle, data, at)
                    at += len(data)
                    whole = stop if at == end else at >> CHUNK
                    if whole > done:
                        self.table.have[base + done : base + whole] = THERE
                        done = whole
        except OSError as error:
            raise _unwritable(error, self.folder) from error
        finally:
            self._count(at - began)

    def renew(self, k: int, start: int, stop: int, crc32c: int) -> bool:
        """Reads bytes once more from the store, past the cache; whether they have the checksum now.

        Raises:
            ConflictError: the tar was replaced.
            StorageError: the store can't be reached or refuses.
        """
        reader = self._reader(k)
        data = reader.read(start, stop)
        self._count(len(data))
        self._check_etag(k, reader)
        if google_crc32c.value(data) != crc32c:
            return False
        for region in range(start >> REGION, (stop - 1 >> REGION) + 1):
            self.keep(self.table.first_region[k] + region)
        with self._open(k) as handle:
            write_at(handle, data, start)
        return True

    def _reader(self, k: int) -> ObjectReader:
        with self._lock:
            found = self._readers.get(k)
            if found is None:
                name = f"{self.shards[k]}.tar"
                found = self._readers[k] = ObjectReader(
                    self.store, name, size=self.files[name].bytes, etag=self.table.etag(k)
                )
            return found

    def _check_etag(self, k: int, reader: ObjectReader) -> None:
        """All processes read one version of the object: the one that was seen first."""
        etag = reader.info.etag
        if not etag or self.table.etag(k) == etag:
            return
        name = f"{self.shards[k]}.tar"
        number = self._numbers[name]
        while not self.table.lock_file(number):
            time.sleep(_TICK)
        try:
            known = self.table.etag(k)
            if not known:
                self.table.set_etag(k, etag)
        finally:
            self.table.drop_file(number)
        if known and known.partition("#")[0] != etag.partition("#")[0]:
            raise ConflictError(
                "the object was replaced while it was read: two versions are never mixed",
                path=self.store.where(name),
                expected=f"ETag {known}",
                found=etag,
            )

    @contextlib.contextmanager
    def _open(self, k: int) -> Iterator[int]:
        handle = os.open(self.sparse(k), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if os.fstat(handle).st_size < self.table.sizes[k]:
                os.ftruncate(handle, self.table.sizes[k])
            yield handle
        finally:
            os.close(handle)

    def sparse(self, k: int) -> Path:
        """The file that holds what is there of tar ``k``."""
        return self.folder / f"{self.shards[k]}.sparse"

    def map(self, k: int) -> npt.NDArray[np.uint8]:
        """That file, mapped; no handle stays open. What is written to it later shows."""
        with self._open(k):
            pass
        with pa.memory_map(str(self.sparse(k))) as mapped:
            return np.frombuffer(mapped.read_buffer(self.table.sizes[k]), np.uint8)

    # --- giving up ----------------------------------------------------------------------------------------------------

    def finished(self, k: int, start: int, stop: int) -> None:
        """Says that bytes are not needed again for long: regions with nothing else go first when room is needed."""
        self._mark(k, *self._chunks(k, start, stop), THERE, DONE)

    def _mark(self, k: int, first: int, last: int, before: int, after: int) -> None:
        """Marks those chunks of tar ``k`` anew that are marked as ``before``, unless they are being given up."""
        base = self.table.first_chunk[k]
        regions = self.table.regions_of(k, first - base, last - base)
        with self._lock:
            if self.table.lock_regions(regions.start, regions.stop, shared=True):
                have = self.table.have[first:last]
                have[have == before] = after
            self._let_go(regions)

    def candidates(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Regions that hold something: ranks, of which the lowest goes first, and numbers; both int64 [N]."""
        if not len(self.table.used):
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        have = self.table.have
        held, needed = (np.logical_or.reduceat(kind, self._edges) for kind in (have != 0, have == THERE))
        used = self.table.used.astype(np.int64)
        found = np.flatnonzero(held & (used <= time.time() - np.where(needed, _KEPT, _MOMENT)))
        # What is done for long goes before all else, the latest first: its next use is the farthest. Then the eldest.
        return np.where(needed, used, -used)[found], found

    @functools.cached_property
    def _edges(self) -> npt.NDArray[np.int64]:
        return np.array([self.table.region_chunks(r)[1] for r in range(len(self.table.used))], dtype=np.int64)

    def give_up(self, first: int, stop: int) -> int:
        """Removes regions ``first`` to ``stop`` from the disk, but for those that are being fetched or read.

        Returns:
            Bytes removed.
        """
        removed = 0
        with self._lock:
            while first < stop:
                end, last = first, min(stop, self.table.tar_end(first))
                while end < last and end not in self._busy:
                    end += 1
                if end > first:
                    removed += self._take(first, end)
                first = max(end, first + 1)
        return removed

    def _take(self, first: int, stop: int) -> int:
        removed = None
        try:
            if self.table.lock_regions(first, stop, shared=False):
                removed = self._remove(first, stop)
        finally:
            self.table.drop_regions(first, stop)
        if removed is None and stop - first > 1:  # not all of them can go
            return sum(self._take(region, region + 1) for region in range(first, stop))
        return removed or 0

    def _remove(self, first: int, stop: int) -> int | None:
        k, a, _ = self.table.region_chunks(first)
        _, _, b = self.table.region_chunks(stop - 1)
        before = self.table.have[a:b].copy()
        self.table.have[a:b] = 0
        if self._is_read(first, stop, before):  # looked at last: whoever has come meanwhile finds nothing there
            self.table.have[a:b] = before
            return None
        with self._open(k) as handle:
            punch(handle, a - self.table.first_chunk[k] << CHUNK, b - a << CHUNK)
        return int(np.count_nonzero(before)) << CHUNK

    def _is_read(self, first: int, stop: int, have: npt.NDArray[np.uint8]) -> bool:
        used, now = self.table.used[first:stop], time.time()
        if (used > now - _MOMENT).any():
            return True
        late = np.flatnonzero(used > now - _KEPT).tolist()
        size = 1 << REGION - CHUNK
        return any(THERE in have[number * size : (number + 1) * size].tobytes() for number in late)

    # --- waiting ------------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        with self._progress:
            self._progress.wait(_TICK)

    def _tell(self) -> None:
        with self._progress:
            self._progress.notify_all()

    def _count(self, amount: int) -> None:
        self.counts.fetched += amount
        self._fetched(amount)


def _unwritable(error: OSError, folder: Path) -> StorageError:
    return StorageError(
        f"the cache can't be written: {error.strerror}",
        path=folder,
        hint="cache_limit sets how much of the disk it may take, cache_dir where it lies",
    )


def place_file(path: Path, data: bytes) -> None:
    """Writes a file of the cache beside and renames it."""
    partial = path.with_name(f".{path.name}.{secrets.token_hex(6)}")
    try:
        partial.write_bytes(data)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
