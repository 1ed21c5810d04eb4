"""Versions of a set in a store.

::

    URL/
      latest.json            names one version; the only object that is ever replaced, and then conditionally
      v-<digest12>/          a complete set, never changed; named after the first digits of its manifest's sha256
        train-00000.tar ...
        .pushed.json         size and ETag of each file as it was when it was pushed
        manifest.json        written last: a version without it is not finished

A set that something else copied up (manifest.json straight below URL) can be read just so.
"""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass

from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.manifest import FORMAT_VERSION, Manifest, canonical_json, check_seal, digest_of, read_model
from wdsmix.store.base import MissingObjectError, NotSupportedError, PreconditionError, Store

__all__ = [
    "LATEST",
    "MANIFEST",
    "RECEIPT",
    "Latest",
    "Version",
    "is_version",
    "open_manifest",
    "put_new",
    "read_latest",
    "read_receipt",
    "require_above_versions",
    "require_conditions",
    "resolve",
    "version_name",
    "write_latest",
]

LATEST = "latest.json"
MANIFEST = "manifest.json"
RECEIPT = ".pushed.json"
_VERSION = re.compile(r"v-([0-9a-f]{12})")
_SMALL = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Latest:
    """What latest.json says."""

    version: str
    """Name of the version's folder."""
    digest: str
    """sha256 of its manifest."""
    etag: str
    """Of latest.json itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Version:
    """One version, opened."""

    store: Store
    """Its folder."""
    data: bytes
    """Its manifest, to the byte."""
    manifest: Manifest
    digest: str


def version_name(digest: str) -> str:
    """Folder of a version."""
    return f"v-{digest[:12]}"


def is_version(name: str) -> bool:
    """Whether a folder's name is that of a version."""
    return _VERSION.fullmatch(name) is not None


def require_above_versions(store: Store) -> None:
    """Checks that a URL is one below which versions lie, not that of a version.

    Raises:
        ConfigError: it is.
    """
    above, _, name = store.url.rpartition("/")
    if is_version(name):
        raise ConfigError("this is the URL of one version", path=store.url, expected=f"that of the set, {above}")


def read_latest(store: Store) -> Latest | None:
    """What latest.json says; None where there is none.

    Raises:
        DataError: it is damaged.
        StorageError: the store can't be reached or refuses.
    """
    try:
        data, info = store.read(LATEST, limit=_SMALL)
    except MissingObjectError:
        return None
    try:
        value = json.loads(data)
        version, digest = value["version"], value["digest"]
        good = is_version(version) and re.fullmatch(r"[0-9a-f]{64}", digest) and version == version_name(digest)
    except (ValueError, KeyError, TypeError, RecursionError):
        good = None
    if not good:
        raise DataError("does not name a version", path=store.where(LATEST), found=repr(data[:80]))
    return Latest(version=version, digest=digest, etag=info.etag)


def resolve(store: Store) -> Version:
    """Finds the set that a URL means: follows latest.json once, or takes the manifest that is there.

    Raises:
        ConfigError: there is neither.
        DataError: latest.json or the manifest is damaged, or not of the version that names it.
        StorageError: the store can't be reached or refuses.
    """
    named = _VERSION.fullmatch(store.url.rpartition("/")[2])
    latest = None if named else read_latest(store)
    found = store.child(latest.version) if latest else store
    try:
        data, _ = found.read(MANIFEST)
    except MissingObjectError as error:
        if latest is not None:
            raise DataError(
                f"{LATEST} names a version that has no manifest: it is gone, or a part of it",
                path=found.where(MANIFEST),
                hint="push the set again",
            ) from error
        raise ConfigError(
            "there is no shard set", path=store.url, expected=MANIFEST if named else f"{LATEST} or {MANIFEST}"
        ) from error
    digest = digest_of(data)
    wanted = latest.digest if latest else named[1] if named else ""
    if not digest.startswith(wanted):
        raise DataError("not the version it should be", path=found.where(MANIFEST), expected=wanted, found=digest)
    return open_manifest(found, data)


def open_manifest(store: Store, data: bytes) -> Version:
    """A version whose manifest was read.

    Raises:
        DataError: the manifest is damaged or of another format version.
    """
    path = store.where(MANIFEST)
    manifest = read_model(Manifest, data, path)
    if manifest.format_version != FORMAT_VERSION:
        raise DataError("unknown format version", path=path, expected=FORMAT_VERSION, found=manifest.format_version)
    check_seal(manifest, path)
    names = [entry.name for entry in manifest.files]
    if len(set(names)) != len(names):
        raise DataError("the manifest lists a name twice", path=path)
    return Version(store=store, data=data, manifest=manifest, digest=digest_of(data))


def read_receipt(store: Store) -> dict[str, str]:
    """ETag of each file of a version as it was when it was pushed; empty where nobody noted them."""
    try:
        value = json.loads(store.read(RECEIPT, limit=1 << 26)[0])["files"]
        return {str(name): str(facts["etag"]) for name, facts in value.items()}
    except (MissingObjectError, DataError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def put_new(store: Store, key: str, data: bytes, *, conditional: bool) -> None:
    """Writes an object that must not be there yet, unless with the same bytes.

    Raises:
        ConflictError: there is another one.
    """
    try:
        store.put(key, data, if_absent=conditional)
    except PreconditionError:
        found, _ = store.read(key)
        if found != data:
            raise ConflictError("another object is there already", path=store.where(key)) from None


def write_latest(store: Store, digest: str, seen: Latest | None, *, conditional: bool) -> None:
    """Makes a version the latest, if latest.json is still what was seen.

    Raises:
        ConflictError: someone else published meanwhile.
    """
    data = canonical_json({"format": "wdsmix", "version": version_name(digest), "digest": digest})
    try:
        if not conditional:
            store.put(LATEST, data)
        elif seen is None:
            store.put(LATEST, data, if_absent=True)
        else:
            store.put(LATEST, data, if_match=seen.etag)
    except PreconditionError as error:
        now = read_latest(store)
        if now is not None and now.digest == digest:
            return
        raise ConflictError(
            "someone else published a version meanwhile",
            path=store.where(LATEST),
            expected=seen.version if seen else "none",
            found=now.version if now else "none",
            hint=f"this version is whole under {version_name(digest)}; push again to make it the latest",
        ) from error


def require_conditions(store: Store) -> None:
    """Checks on a throw-away object that the store honours conditional writes.

    Raises:
        ConflictError: it does not: two who publish at once could not be told apart.
    """
    key = f".wdsmix-probe-{secrets.token_hex(8)}"
    refused = 0
    try:
        store.put(key, b"1", if_absent=True)
        for condition in ({"if_absent": True}, {"if_match": '"0"'}):
            try:
                store.put(key, b"2", **condition)
            except PreconditionError:
                refused += 1
    except NotSupportedError:
        refused = 0
    finally:
        store.delete(key)
    if refused < 2:
        raise ConflictError(
            "the store ignores conditional writes: two who push at once could overwrite each other's latest.json",
            path=store.url,
            hint="--no-conditional publishes all the same",
        )
