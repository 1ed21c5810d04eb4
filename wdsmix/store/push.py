"""Pushing a set: plan, send what is missing, check, publish the version, then make it the latest."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.manifest import FileEntry, canonical_json
from wdsmix.shards.files import PARTIAL
from wdsmix.store.base import MissingObjectError, ObjectInfo, Store
from wdsmix.store.local import LocalStore
from wdsmix.store.s3 import S3Store
from wdsmix.store.transfer import Meter, Throttle, exclusive, local_errors, run_all
from wdsmix.store.upload import PART, Journal, Uploader, holds
from wdsmix.store.versions import (
    MANIFEST,
    RECEIPT,
    Latest,
    Version,
    open_manifest,
    put_new,
    read_latest,
    read_receipt,
    require_above_versions,
    require_conditions,
    version_name,
    write_latest,
)

__all__ = ["PushOptions", "PushPlan", "PushResult", "abort_incomplete", "plan_push", "push"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PushOptions:
    """How to push."""

    jobs: int = 8
    """Requests at a time; memory is at most ``jobs + 2`` parts."""
    part: int = PART
    """Bytes of a part, 5 MiB or more."""
    rate: float = 0.0
    """Bytes per second at most; 0: no limit."""
    overwrite: bool = False
    """Replace objects of an unfinished version that differ."""
    latest: bool = True
    """Make the version the latest."""
    conditional: bool = True
    """Insist on a store that honours conditional writes."""

    def __post_init__(self) -> None:
        if not 1 <= self.jobs <= 64:
            raise ConfigError("bad value", where="--jobs", expected="1 to 64", found=self.jobs)
        if self.part < 5 << 20:
            raise ConfigError("bad value", where="--part-size", expected="5 MiB or more", found=self.part)


@dataclass(frozen=True, kw_only=True, slots=True)
class PushPlan:
    """What a push would do."""

    local: Version
    """The set on disk."""
    target: Store
    """Folder of the version."""
    files: dict[str, str]
    """File -> ``new``, ``same`` or ``differs``; ``extra`` for objects that are no files of the set."""
    published: bool
    """Whether the version is whole there already."""
    latest: Latest | None
    """What latest.json says now."""
    incomplete: tuple[tuple[str, str], ...] = ()
    """Unfinished uploads below the version: key and id."""

    @property
    def bytes(self) -> int:
        """Bytes to send."""
        return sum(entry.bytes for entry in self.missing)

    @property
    def missing(self) -> list[FileEntry]:
        """Files to send."""
        return [entry for entry in self.local.manifest.files if self.files[entry.name] in ("new", "differs")]


@dataclass(kw_only=True, slots=True)
class PushResult:
    """What a push did."""

    version: str
    digest: str
    bytes_sent: int = 0
    parts_sent: int = 0
    parts_kept: int = 0
    """Parts that an interrupted push had sent."""
    files_sent: int = 0
    files_same: int = 0
    latest: bool = False
    """Whether latest.json now names the version."""
    retries: dict[str, int] = field(default_factory=dict)


def plan_push(folder: Path, store: Store, *, jobs: int = 8, uploads: bool = False) -> PushPlan:
    """Compares a set on disk with what is there: one listing, and one HEAD an object of an unfinished version.

    Args:
        folder: The set.
        store: URL above its versions.
        jobs: Requests at a time.
        uploads: Also list unfinished uploads.

    Raises:
        DataError: the set is not whole, or what is there is damaged.
        ConfigError: there is no set, or the store can't be written to.
        StorageError: the store can't be reached or refuses.
    """
    if not store.writable:
        raise ConfigError("can't be written to", path=store.url, expected="s3://, gs://, az:// or a folder")
    require_above_versions(store)
    if not folder.is_dir():
        raise ConfigError("no such folder", path=folder)
    if isinstance(store, LocalStore) and store.folder.resolve().is_relative_to(folder.resolve()):
        raise ConfigError("a set can't be pushed into itself", path=store.url)
    local = _open_local(folder)
    latest = read_latest(store)
    target = store.child(version_name(local.digest))
    there = {info.key: info for info in target.list() if not info.key.endswith(PARTIAL)}
    published = MANIFEST in there
    if published and target.read(MANIFEST)[0] != local.data:
        raise ConflictError("another manifest is there", path=target.where(MANIFEST), expected=local.digest)
    noted = read_receipt(target) if published else {}
    files = dict.fromkeys(sorted(set(there) - {MANIFEST, RECEIPT}), "extra")

    def compare(entry: FileEntry) -> Callable[[], tuple[str, str]]:
        def task() -> tuple[str, str]:
            info = there.get(entry.name)
            if info is None:
                return entry.name, "new"
            pushed = info.size == entry.bytes and info.plain_etag and noted.get(entry.name) == info.plain_etag
            return entry.name, "same" if pushed or holds(target, info, folder / entry.name, entry) else "differs"

        return task

    files.update(run_all([compare(entry) for entry in local.manifest.files], jobs, store.retries))
    return PushPlan(
        local=local,
        target=target,
        files=dict(sorted(files.items())),
        published=published,
        latest=latest,
        incomplete=tuple(target.uploads()) if uploads and isinstance(target, S3Store) else (),
    )


def _open_local(folder: Path) -> Version:
    store = LocalStore(str(folder.absolute()))
    try:
        local = open_manifest(store, store.read(MANIFEST)[0])
    except MissingObjectError as error:
        raise DataError("not a finished shard set: no manifest.json", path=folder) from error
    for entry in local.manifest.files:
        path = folder / entry.name
        size = path.stat().st_size if path.is_file() else None
        if size != entry.bytes:
            raise DataError(
                "a file of the set is missing or has the wrong size",
                path=path,
                expected=f"{entry.bytes} bytes",
                found="none" if size is None else f"{size} bytes",
                hint="`wdsmix validate` tells more",
            )
    return local


def push(
    folder: Path,
    store: Store,
    options: PushOptions,
    *,
    progress: Callable[[int, int], None] | None = None,
    planned: Callable[[PushPlan], None] | None = None,
) -> PushResult:
    """Brings a set to a store.

    Args:
        folder: The set.
        store: URL above its versions.
        options: How.
        progress: Told of bytes done and retries so far.
        planned: Told the plan before anything is sent.

    Raises:
        ConflictError: objects differ, someone else published meanwhile, or the store ignores conditions.
        DataError: the set is damaged or did not arrive as it was sent.
        StorageError: the store can't be reached or refuses.
    """
    with local_errors(folder), _journal(folder, store) as journal:
        plan = plan_push(folder, store, jobs=options.jobs)
        if planned:
            planned(plan)
        differs = [name for name, kind in plan.files.items() if kind == "differs"]
        if differs and not options.overwrite:
            raise ConflictError(
                f"{len(differs)} objects are there with other bytes",
                path=plan.target.where(differs[0]),
                hint="versions never change; --overwrite replaces them if that push was broken",
            )
        outdated = options.latest and (plan.latest is None or plan.latest.digest != plan.local.digest)
        if options.conditional and (outdated or not plan.published):
            require_conditions(store)
        for name, kind in plan.files.items():
            if kind == "same":
                journal.end(f"{version_name(plan.local.digest)}/{name}")  # killed after its last request
        result = PushResult(version=version_name(plan.local.digest), digest=plan.local.digest)
        _send(folder, plan, options, journal, result, progress)
        if outdated:
            write_latest(store, plan.local.digest, plan.latest, conditional=options.conditional)
        result.latest = options.latest or (plan.latest is not None and plan.latest.digest == plan.local.digest)
        result.retries = store.retries.counts
    return result


def _send(
    folder: Path,
    plan: PushPlan,
    options: PushOptions,
    journal: Journal,
    result: PushResult,
    progress: Callable[[int, int], None] | None,
) -> None:
    """Sends what is missing, then the version's receipt and manifest."""
    target, manifest = plan.target, plan.local.manifest
    meter = Meter(progress, target.retries)
    uploader = Uploader(
        target, journal, jobs=options.jobs, part=options.part, throttle=Throttle(options.rate), meter=meter
    )

    def one(entry: FileEntry) -> Callable[[], ObjectInfo]:
        return lambda: uploader.send(folder / entry.name, entry)

    try:
        sent = run_all([one(entry) for entry in plan.missing], options.jobs, target.retries)
    finally:
        uploader.close()
        result.bytes_sent, result.parts_sent, result.parts_kept = meter.bytes, uploader.parts_sent, uploader.parts_kept
    result.files_sent = len(sent)
    result.files_same = len(manifest.files) - len(sent)
    if plan.published and not sent:
        return
    infos = {info.key: info for info in target.list()} if result.files_same else {}
    infos.update({info.key: info for info in sent})
    for entry in manifest.files:
        if entry.name not in infos or infos[entry.name].size != entry.bytes:
            raise DataError("an object has gone while the set was pushed", path=target.where(entry.name))
    receipt: dict[str, Any] = {
        entry.name: {"bytes": entry.bytes, "etag": infos[entry.name].plain_etag} for entry in manifest.files
    }
    target.put(RECEIPT, canonical_json({"files": receipt}))
    put_new(target, MANIFEST, plan.local.data, conditional=options.conditional)


def abort_incomplete(folder: Path, store: Store) -> list[str]:
    """Throws away the unfinished uploads that pushes of this folder to this place began; returns their files."""
    with _journal(folder, store) as journal:
        gone = sorted(journal.uploads) if isinstance(store, S3Store) else []
        for key in gone:
            if isinstance(store, S3Store):
                store.abort_upload(key, str(journal.uploads[key].get("upload_id", "")))
            journal.end(key)
        return gone


@contextmanager
def _journal(folder: Path, store: Store) -> Iterator[Journal]:
    """The journal of a folder's pushes to one place; beside the set, or in the cache where that can't be written."""
    if not folder.is_dir():
        raise ConfigError("no such folder", path=folder)
    name = hashlib.sha256(store.identity.encode()).hexdigest()[:16]
    home = folder
    if not os.access(folder, os.W_OK):
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "wdsmix" / "push"
        home.mkdir(parents=True, exist_ok=True)
        name += hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    with exclusive(home / f".push-{name}.lock", "is pushing this set to the same place"):
        yield Journal(home / f".push-{name}.json")
