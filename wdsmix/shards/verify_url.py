"""Whether a set in a store is whole: `verify_url` asks what `wdsmix.shards.verify` asks of a folder, and more.

``head`` compares what the store says of each object with what was pushed: no byte of a shard is read.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import FileEntry, Manifest, digest_of
from wdsmix.shards.faults import CHECKS, LEVELS, Faults, Level
from wdsmix.shards.files import PARTIAL
from wdsmix.shards.verify import Report, Tick, check_contents, verify
from wdsmix.shards.verify_manifest import MANIFEST, SIDE_FILES, check_manifest, load_manifest
from wdsmix.shards.verify_remote import staged
from wdsmix.store import MissingObjectError, ObjectInfo, Store, open_store
from wdsmix.store.local import LocalStore
from wdsmix.store.transfer import run_all
from wdsmix.store.versions import LATEST, is_version, read_latest, read_receipt

__all__ = ["verify_url"]

_REQUESTS = 8


def verify_url(
    url: str,
    *,
    level: Level = "quick",
    jobs: int = 1,
    limit: int = 20,
    digest: str = "",
    progress: Callable[[int], Tick] | None = None,
) -> Report:
    """Checks a set in a store; arguments as `wdsmix.shards.verify.verify` has them.

    Raises:
        ConfigError: there is no set, or no such level.
        ConflictError: an object was replaced while it was read.
        StorageError: the store can't be reached or refuses.
    """
    if level not in LEVELS:
        raise ConfigError("unknown level", where="--level", expected=" | ".join(LEVELS), found=level)
    faults = Faults(limit)
    store, expected = _locate(open_store(url), faults)
    if isinstance(store, LocalStore) and store.folder.is_dir():
        return verify(store.folder, level=level, jobs=jobs, limit=limit, digest=digest or expected, progress=progress)
    with tempfile.TemporaryDirectory(prefix="wdsmix-") as text:
        folder = Path(text)
        data = _read_manifest(store, folder)
        manifest = load_manifest(folder, faults, digest or expected)
        asked = {"manifest", *(["digest"] if digest or expected else [])}
        if manifest is None:
            return Report(path=url, level=level, name="", digest="", faults=faults, asked=frozenset(asked))
        sizes = _check_objects(store, manifest, faults)
        check_manifest(manifest, faults)
        levels = LEVELS[: LEVELS.index(level) + 1]
        asked |= {check.kind for check in CHECKS if check.level in levels and check.kind != "digest"}
        if level != "list":
            _check_heads(store, manifest, sizes, faults)
        if level in ("quick", "full"):
            with staged(store, [name for name in SIDE_FILES if name in sizes]) as small:
                check_contents(
                    small, manifest, set(sizes), level == "full", max(jobs, 1), faults, progress, remote=(store, sizes)
                )
    return Report(
        path=url,
        level=level,
        name=manifest.name,
        digest=digest_of(data),
        faults=faults,
        asked=frozenset(asked),
        names=tuple(entry.name for entry in manifest.files),
    )


def _locate(store: Store, faults: Faults) -> tuple[Store, str]:
    """The version that a URL means, and the digest that it must have (or its first digits)."""
    name = store.url.rpartition("/")[2]
    if is_version(name):
        return store, name.removeprefix("v-")
    try:
        latest = read_latest(store)
    except DataError as error:
        faults.add_error("manifest", LATEST, error)
        return store, ""
    return (store, "") if latest is None else (store.child(latest.version), latest.digest)


def _read_manifest(store: Store, folder: Path) -> bytes:
    try:
        data, _ = store.read(MANIFEST)
    except MissingObjectError as error:
        named = is_version(store.url.rpartition("/")[2])  # by latest.json or by the caller
        if not named and not (store.listable and next(iter(store.list()), None) is not None):
            raise ConfigError("there is no shard set", path=store.url, expected=f"{LATEST} or {MANIFEST}") from error
        return b""
    (folder / MANIFEST).write_bytes(data)
    return data


def _check_objects(store: Store, manifest: Manifest, faults: Faults) -> dict[str, int]:
    """Compares names and sizes; returns the sizes of those that are there."""
    wanted = {entry.name: entry.bytes for entry in manifest.files}
    there: dict[str, int] = {}
    if store.listable:
        for info in store.list():
            faults.saw("extra")
            if info.key in wanted:
                there[info.key] = info.size
            elif info.key.endswith(PARTIAL):
                faults.add("leftover", info.key, "left over from work that did not finish")
            elif info.key != MANIFEST and not info.key.startswith("."):
                faults.add("extra", info.key, "not a file of the set")
        faults.saw("leftover", faults.counts["leftover"])
    else:
        heads = run_all([_head(store, entry) for entry in manifest.files], _REQUESTS, store.retries)
        there = {info.key: info.size for info in heads if info is not None}
    for name, size in wanted.items():
        faults.saw("missing")
        if name not in there:
            faults.add("missing", name, "the object is missing", expected=f"{size} bytes")
            continue
        faults.saw("size")
        if there[name] != size:
            faults.add("size", name, "wrong size", expected=f"{size} bytes", found=f"{there[name]} bytes")
    return there


def _head(store: Store, entry: FileEntry) -> Callable[[], ObjectInfo | None]:
    def task() -> ObjectInfo | None:
        try:
            return store.head(entry.name)
        except MissingObjectError:
            return None

    return task


def _check_heads(store: Store, manifest: Manifest, sizes: dict[str, int], faults: Faults) -> None:
    """Compares what the store says of each object with what the push noted and with the manifest."""
    from wdsmix.store.upload import SHA256

    receipt = read_receipt(store)
    entries = [entry for entry in manifest.files if entry.name in sizes]
    heads = run_all([_head(store, entry) for entry in entries], _REQUESTS, store.retries)
    for entry, info in zip(entries, heads, strict=True):
        if info is None:
            faults.add("missing", entry.name, "the object has gone")
            continue
        pairs: list[tuple[str, object, object]] = [
            ("ETag", receipt.get(entry.name) or None, info.plain_etag or None),
            ("sha256", entry.sha256, info.metadata.get(SHA256)),
            ("crc32c", f"{entry.crc32c:08x}", None if info.crc32c is None else f"{info.crc32c:08x}"),
        ]
        known = [(what, a, b) for what, a, b in pairs if a is not None and b is not None]
        faults.saw("store", bool(known))
        for what, expected, found in known:
            if expected != found:
                faults.add("store", entry.name, f"{what} differs", expected=expected, found=found)
