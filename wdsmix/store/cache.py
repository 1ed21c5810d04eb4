"""The disk cache of a node: sets that lie in stores, as far as they were read, within a limit.

One folder for all processes of the node; each set in it, by endpoint, URL and version, has a folder of its own
(`wdsmix.store.cached`). Room is made when it is needed: first whole sets that no process uses, the one that was used
longest ago first; then regions, those first whose next use is farthest. What a process is reading is never given up.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from wdsmix.errors import ConfigError, WdsmixError
from wdsmix.manifest import Manifest, read_model
from wdsmix.store.base import Store
from wdsmix.store.cached import CachedSet, Counts, place_file
from wdsmix.store.local import LocalStore
from wdsmix.store.locks import FileLocks

__all__ = ["CACHE_DIR", "Cache", "open_cache", "usable"]

CACHE_DIR = "WDSMIX_CACHE_DIR"
"""Variable that names the folder where the configuration names none."""

_log = logging.getLogger("wdsmix")
_MANIFEST, _TABLE, _LOCK, _TRASH = "manifest.json", "table", "lock", ".trash-"
_STALE = 3600.0  # s after which a file that was being written has no writer any more
_STEP = 64 << 20  # bytes fetched between two looks at the disk, where no limit is set


class Cache:
    """A cache folder as one process sees it. Thread-safe; made by `open_cache`.

    Args:
        folder: Its folder, on a disk of this machine; made where it is missing.
        limit: Bytes on the disk; None: half of what is free or taken by the cache.
    """

    def __init__(self, folder: Path, limit: int | None) -> None:
        self.folder, self.limit = folder, limit
        self.counts = Counts()
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._locks = FileLocks(folder / _LOCK)
        except OSError as error:
            raise ConfigError(
                f"the cache can't be made: {error.strerror}",
                path=folder,
                hint=f"cache_dir or {CACHE_DIR} names a folder that can be written to",
            ) from error
        self._sets: dict[Path, CachedSet] = {}
        self._warned = False
        self.after_fork()

    def after_fork(self) -> None:
        """A forked child shares the folder, but no lock."""
        self._lock, self._trimming = threading.RLock(), threading.Lock()
        self._since = 0
        self.counts = Counts()
        for found in self._sets.values():
            found.counts = self.counts
            found.after_fork()

    def place(self, store: Store, digest: str) -> Path:
        """Folder of a version of a set."""
        return self.folder / hashlib.sha256(f"{store.identity}\n{digest}".encode()).hexdigest()[:32]

    def manifest(self, store: Store, digest: str) -> bytes | None:
        """The manifest of a version that is in the cache."""
        try:
            return (self.place(store, digest) / _MANIFEST).read_bytes()
        except OSError:
            return None

    def open(self, store: Store, digest: str, data: bytes, manifest: Manifest) -> CachedSet:
        """A set, for use by this process until it ends.

        Args:
            store: Where the version lies.
            digest: Its digest.
            data: Its manifest, to the byte.
            manifest: The same, read.
        """
        folder = self.place(store, digest)
        while True:
            with self._lock:
                found = self._sets.get(folder)
                if found is None or not found.table.locks.is_current():
                    found = self._make(folder, store, data, manifest)
                if found is not None:
                    found.store = store
                    # Alone: what was seen of the objects before is history.
                    if not found.used and found.table.lock_removal():
                        found.table.etags[:] = bytes(len(found.table.etags))
                    found.used = True
                    if found.table.lock_use() and found.table.locks.is_current():
                        os.utime(folder / _TABLE)
                        self._sets[folder] = found
                        return found
            time.sleep(0.002)  # another process is removing it just now

    def _make(self, folder: Path, store: Store, data: bytes, manifest: Manifest) -> CachedSet | None:
        try:
            folder.mkdir(exist_ok=True, mode=0o700)
            if not (folder / _MANIFEST).exists():
                place_file(folder / _MANIFEST, data)
            files = {entry.name: entry for entry in manifest.files}
            return CachedSet(folder, store, manifest.shards, files, self._fetched, self.counts)
        except FileNotFoundError:
            return None

    # --- the limit ----------------------------------------------------------------------------------------------------

    def _fetched(self, amount: int) -> None:
        self._since += amount
        step = _STEP if self.limit is None else min(max(self.limit >> 8, 1 << 16), 4 * _STEP)
        if self._since >= step:
            self._since = 0
            self.trim()

    def usage(self) -> int:
        """Bytes that the cache takes on the disk."""
        total = 0
        for folder, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):
                    total += Path(folder, name).stat().st_blocks * 512
        return total

    def room(self) -> int:
        """Bytes that the cache may take on the disk, as it is now."""
        return self._room(self.usage())

    def _room(self, usage: int) -> int:
        return (shutil.disk_usage(self.folder).free + usage) // 2 if self.limit is None else self.limit

    def trim(self) -> None:
        """Makes room if the cache has come near its limit, unless another process or thread is at it."""
        if not self._trimming.acquire(blocking=False):
            return
        try:
            if self._locks.take(0):
                try:
                    self._trim()
                finally:
                    self._locks.drop(0)
        finally:
            self._trimming.release()

    def _trim(self) -> None:
        usage = self.usage()
        limit = self._room(usage)
        if usage <= limit - (limit >> 4):
            return
        goal = limit - (limit >> 3)
        self._sweep()
        sets: list[CachedSet] = []
        for folder in sorted(self._folders(), key=_last_use):
            if usage <= goal:
                return
            found = self._sets.get(folder) or self._other(folder)
            if found is None:
                continue
            freed = self._remove(found)
            usage -= freed
            if not freed:
                sets.append(found)
        for found, first, stop in _in_order(sets):
            if usage <= goal:
                return
            usage -= found.give_up(first, stop)
        self._since = -(limit >> 5)  # not soon again: looking for room costs time, too
        if usage > limit and not self._warned:
            self._warned = True
            _log.warning(
                "the cache takes %.4g MB of the %.4g MB that cache_limit allows: what is being read does not fit",
                usage / 1e6,
                limit / 1e6,
            )

    def _folders(self) -> list[Path]:
        return [entry for entry in self.folder.iterdir() if entry.is_dir() and not entry.name.startswith(".")]

    def _other(self, folder: Path) -> CachedSet | None:
        """A set that this process does not use."""
        try:
            path = folder / _MANIFEST
            manifest = read_model(Manifest, path.read_bytes(), path)
            files = {entry.name: entry for entry in manifest.files}
            with self._lock:
                # Looked up again: a second table of one set, once it is gone, would take the locks of the first along.
                if folder not in self._sets:
                    store = LocalStore(str(folder))
                    self._sets[folder] = CachedSet(folder, store, manifest.shards, files, self._fetched, self.counts)
                return self._sets[folder]
        except (OSError, WdsmixError, KeyError):
            return None

    def _remove(self, found: CachedSet) -> int:
        """Removes a set that no process uses; returns its bytes, 0 where it stays."""
        folder = found.folder
        with self._lock:
            if found.used or not found.table.lock_removal():
                return 0
            trash = self.folder / f"{_TRASH}{folder.name}"
            size = sum(entry.stat().st_blocks * 512 for entry in folder.iterdir())
            with contextlib.suppress(OSError):
                folder.replace(trash)
            del self._sets[folder]
            found.table.close()
        shutil.rmtree(trash, ignore_errors=True)
        return size

    def _sweep(self) -> None:
        """Removes what killed processes left behind."""
        for entry in self.folder.glob(f"{_TRASH}*"):
            shutil.rmtree(entry, ignore_errors=True)
        before = time.time() - _STALE
        for entry in self.folder.glob("*/.*"):
            with contextlib.suppress(OSError):
                if entry.stat().st_mtime < before:
                    entry.unlink()


def _in_order(sets: Sequence[CachedSet]) -> Iterator[tuple[CachedSet, int, int]]:
    """The regions of all sets, what goes first first; neighbours that go together as (first, stop)."""
    if not sets:
        return
    parts = [found.candidates() for found in sets]
    ranks, regions = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    owner = np.repeat(np.arange(len(sets)), [len(part[0]) for part in parts])
    order = np.argsort(ranks, kind="stable")
    ranks, regions, owner = ranks[order], regions[order], owner[order]
    apart = (np.diff(ranks) != 0) | (np.diff(regions) != 1) | (np.diff(owner) != 0)
    edges = np.concatenate([[0], np.flatnonzero(apart) + 1, [len(order)]])
    for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        if b > a:
            yield sets[owner[a]], int(regions[a]), int(regions[b - 1]) + 1


def usable(room: int) -> int:
    """Of the bytes that a cache may take, as many as what is needed at once may fill: room is made in steps."""
    return room - room // 5


def _last_use(folder: Path) -> float:
    with contextlib.suppress(OSError):
        return (folder / _TABLE).stat().st_mtime
    return 0.0


_caches: dict[Path, Cache] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()
    for cache in _caches.values():
        cache.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def open_cache(folder: str | Path | None = None, limit: int | None = None) -> Cache:
    """The cache of a folder: one object a process.

    Args:
        folder: None: what WDSMIX_CACHE_DIR names, else a folder of this user below /var/tmp.
        limit: Bytes on the disk; None: as it was opened before, else half of what is free or taken by the cache.

    Raises:
        ConfigError: it can't be made, or belongs to another user.
    """
    chosen = folder or os.environ.get(CACHE_DIR)
    path = Path(chosen).expanduser() if chosen else Path("/var/tmp") / f"wdsmix-{os.getuid()}"
    path = path.resolve()  # by whatever name, one folder is one object: locks are the process's, not the object's
    with _lock:
        found = _caches.get(path)
        if found is None:
            found = _caches[path] = Cache(path, limit)
        elif limit is not None:
            found.limit = limit
    if not chosen and path.stat().st_uid != os.getuid():
        raise ConfigError("the cache belongs to another user", path=path, hint=f"{CACHE_DIR} names another folder")
    return found
