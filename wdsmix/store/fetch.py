"""Fetching a set: find the version, receive what is missing, check every byte, write the manifest last."""

from __future__ import annotations

import fnmatch
import json
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from braceexpand import braceexpand

from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.manifest import FileEntry, digest_of
from wdsmix.shards.files import file_entry, write_atomic
from wdsmix.store.base import Store
from wdsmix.store.download import PartFile, receive
from wdsmix.store.transfer import Meter, Throttle, exclusive, local_errors, run_all
from wdsmix.store.versions import MANIFEST, Version, resolve

__all__ = ["FetchOptions", "FetchPlan", "FetchResult", "choose", "fetch", "plan_fetch"]

STAMPS = ".fetched.json"
"""Files that were checked, as they were then: so that a second fetch reads nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchOptions:
    """How to fetch."""

    jobs: int = 8
    """Requests at a time."""
    rate: float = 0.0
    """Bytes per second at most; 0: no limit."""
    shards: tuple[str, ...] = ()
    """Only these: names, brace patterns or wildcards; empty: all."""
    splits: tuple[str, ...] = ()
    """Only the shards of these; empty: all."""
    recheck: bool = False
    """Hash what is there, instead of trusting what an earlier fetch noted."""

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= 64:
            raise ConfigError("bad value", where="--jobs", expected="1 to 64", found=self.jobs)


@dataclass(frozen=True, kw_only=True, slots=True)
class FetchPlan:
    """What a fetch would do."""

    source: Version
    files: dict[str, str]
    """File -> ``new``, ``partial``, ``same``, or ``differs`` (damaged: it is fetched again)."""
    bytes: int
    """Bytes to receive."""
    shards: tuple[str, ...]
    """The shards wanted, in the manifest's order."""


@dataclass(kw_only=True, slots=True)
class FetchResult:
    """What a fetch did."""

    digest: str
    bytes_received: int = 0
    files_received: int = 0
    files_same: int = 0
    whole: bool = True
    """Whether all shards of the set are there, not only some."""
    bad: list[str] = field(default_factory=list)
    """Files that are damaged in the store: errors, as text."""
    retries: dict[str, int] = field(default_factory=dict)


def choose(version: Version, shards: Sequence[str], splits: Sequence[str]) -> tuple[str, ...]:
    """Shards that names, patterns and splits select.

    Raises:
        ConfigError: one selects nothing.
    """
    names = version.manifest.shards
    unknown = [split for split in splits if split not in version.manifest.splits]
    if unknown:
        raise ConfigError(
            "the set has no such split", where="--split", expected=", ".join(version.manifest.splits), found=unknown[0]
        )
    chosen = set(names)
    if splits:  # shards lie split by split in the manifest
        chosen, first = set(), 0
        for split, counts in _split_order(version):
            if split in splits:
                chosen |= set(names[first : first + counts])
            first += counts
    if shards:
        wanted: set[str] = set()
        for text in shards:
            for pattern in braceexpand(text):
                plain = pattern.removesuffix(".tar")
                found = [name for name in names if fnmatch.fnmatchcase(name, plain)]
                if not found:
                    raise ConfigError(
                        f"the set has no shard {pattern}", where="--shards", expected=f"of {names[0]} ... {names[-1]}"
                    )
                wanted.update(found)
        chosen &= wanted
        if not chosen:
            raise ConfigError("no shard is in all that was asked for", where="--shards, --split")
    return tuple(name for name in names if name in chosen)


def _split_order(version: Version) -> list[tuple[str, int]]:
    """Splits and their numbers of shards, in the order in which the manifest lists their shards."""
    names = version.manifest.shards
    place = {
        split: next((k for k, name in enumerate(names) if name.startswith(f"{split}-")), -1)
        for split in version.manifest.splits
    }
    if min(place.values(), default=0) < 0 or sum(c.shards for c in version.manifest.splits.values()) != len(names):
        raise ConfigError("the set's shards can't be told apart by split", where="--split", hint="use --shards")
    order = sorted(version.manifest.splits, key=lambda split: place[split])
    return [(split, version.manifest.splits[split].shards) for split in order]


class _Stamps:
    """What is known of the files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / STAMPS
        self.files: dict[str, Any] = {}
        try:
            value = json.loads(self._path.read_bytes())["files"]
            self.files = value if isinstance(value, dict) else {}
        except (OSError, ValueError, KeyError, TypeError):
            self.files = {}

    def fits(self, path: Path, entry: FileEntry) -> bool:
        """Whether the file is as it was when its sha256 was checked."""
        return path.is_file() and self.files.get(path.name) == _stamp(path, entry.sha256)

    def note(self, path: Path, entry: FileEntry) -> None:
        """Notes a file that was just checked."""
        self.files[path.name] = _stamp(path, entry.sha256)

    def write(self) -> None:
        write_atomic(self._path, (json.dumps({"files": self.files}, sort_keys=True, indent=1) + "\n").encode())


def _stamp(path: Path, sha256: str) -> dict[str, Any]:
    found = path.stat()
    return {"bytes": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino, "sha256": sha256}


def plan_fetch(store: Store, folder: Path, options: FetchOptions) -> FetchPlan:
    """Compares a version with a folder. Files that no earlier fetch noted are hashed.

    Raises:
        ConfigError: there is no set, or no such shard or split.
        ConflictError: the folder holds something else.
        DataError: the set's manifest is damaged.
        StorageError: the store can't be reached or refuses.
    """
    return _plan(resolve(store), folder, options, _Stamps(folder))


def _plan(source: Version, folder: Path, options: FetchOptions, stamps: _Stamps) -> FetchPlan:
    shards = choose(source, options.shards, options.splits)
    if folder.exists() and not folder.is_dir():
        raise ConfigError("not a folder", path=folder)
    manifest = folder / MANIFEST
    known = manifest.is_file()
    if known and manifest.read_bytes() != source.data:
        raise ConflictError(
            "the folder holds another set, or another version of it",
            path=folder,
            expected=source.digest[:12],
            found=digest_of(manifest.read_bytes())[:12],
            hint="fetch to another folder",
        )
    if (folder / ".work").exists():
        raise ConflictError("a conversion is under way in the folder", path=folder, hint="fetch to another folder")
    files: dict[str, str] = {}
    left = 0
    wanted = {"index.parquet", "stats.json"} | {
        f"{shard}{end}" for shard in shards for end in (".tar", ".frames.arrow")
    }
    for entry in source.manifest.files:
        if entry.name not in wanted:
            continue
        path = folder / entry.name
        if path.is_symlink() or path.is_dir():
            raise ConflictError("something that is no file has the name of one of the set's", path=path)
        if not options.recheck and stamps.fits(path, entry):
            files[entry.name] = "same"
        elif path.is_file() and path.stat().st_size == entry.bytes and file_entry(path).sha256 == entry.sha256:
            stamps.note(path, entry)
            files[entry.name] = "same"
        elif path.is_file():
            if not known and entry.name not in stamps.files:
                raise ConflictError("another file of that name is there", path=path, hint="fetch to another folder")
            files[entry.name] = "differs"
            left += entry.bytes
        else:
            part = PartFile(path, entry)
            files[entry.name] = "partial" if part.done else "new"
            left += entry.bytes - part.kept
    return FetchPlan(source=source, files=files, bytes=left, shards=shards)


def fetch(
    store: Store,
    folder: Path,
    options: FetchOptions,
    *,
    progress: Callable[[int, int], None] | None = None,
    planned: Callable[[FetchPlan], None] | None = None,
) -> FetchResult:
    """Brings a set to a folder.

    Args:
        store: URL of the set, or of one version.
        folder: Where to; made if it is not there.
        options: How.
        progress: Told of bytes done and retries so far.
        planned: Told the plan before anything is received.

    Raises:
        ConfigError: there is no set, no such shard or split, or the folder can't be written to.
        ConflictError: the folder holds something else, is in use, or has too little room.
        DataError: the set's manifest is damaged.
        StorageError: the store can't be reached or refuses.
    """
    source = resolve(store)
    choose(source, options.shards, options.splits)  # before a folder is made
    if folder.exists() and not folder.is_dir():
        raise ConfigError("not a folder", path=folder)
    with local_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        return _fetch(source, folder, options, progress, planned)


def _fetch(
    source: Version,
    folder: Path,
    options: FetchOptions,
    progress: Callable[[int, int], None] | None,
    planned: Callable[[FetchPlan], None] | None,
) -> FetchResult:
    with exclusive(folder / ".fetch.lock", "is fetching to this folder"):
        stamps = _Stamps(folder)
        plan = _plan(source, folder, options, stamps)
        if planned:
            planned(plan)
        free = shutil.disk_usage(folder).free
        if plan.bytes > free:
            raise ConflictError(
                "too little room on the disk", path=folder, expected=f"{plan.bytes:,} bytes", found=f"{free:,}"
            )
        result = FetchResult(digest=source.digest, whole=len(plan.shards) == len(source.manifest.shards))
        _receive(source, folder, plan, options, stamps, result, progress)
        if not result.bad:
            if not (folder / MANIFEST).is_file():
                write_atomic(folder / MANIFEST, source.data)
            stamps.write()
        result.retries = source.store.retries.counts
    return result


def _receive(
    source: Version,
    folder: Path,
    plan: FetchPlan,
    options: FetchOptions,
    stamps: _Stamps,
    result: FetchResult,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Receives what is missing: ranges of all files on the same threads, in the files' order."""
    meter, throttle = Meter(progress, source.store.retries), Throttle(options.rate)
    work = [entry for entry in source.manifest.files if plan.files.get(entry.name, "same") != "same"]
    result.files_same = len(plan.files) - len(work)
    pool = ThreadPoolExecutor(options.jobs, thread_name_prefix="wdsmix-range")

    def one(entry: FileEntry) -> Callable[[], str]:
        def task() -> str:
            path = folder / entry.name
            try:
                receive(source.store, path, entry, pool=pool, throttle=throttle, meter=meter)
            except DataError as error:
                return str(error)
            stamps.note(path, entry)
            return ""

        return task

    try:
        said = run_all([one(entry) for entry in work], options.jobs, source.store.retries)
        result.bad = [text for text in said if text]
        result.files_received = len(said) - len(result.bad)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        result.bytes_received = meter.bytes
        if work:
            stamps.write()
