"""Removing old versions of a set from a store; nothing else ever removes one."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.store.base import ObjectInfo, Store
from wdsmix.store.versions import LATEST, MANIFEST, is_version, read_latest, require_above_versions

__all__ = ["StoredVersion", "list_versions", "plan_removal", "remove_version"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredVersion:
    """One version as the store lists it."""

    name: str
    objects: int
    bytes: int
    modified: float
    """When its newest object was written; seconds since 1970."""
    whole: bool
    """Whether its manifest is there."""
    latest: bool
    """Whether latest.json names it."""


def list_versions(store: Store) -> list[StoredVersion]:
    """All versions below a URL, the newest first.

    Raises:
        ConfigError: it can't be listed, is one version, or there are none.
        StorageError: the store can't be reached or refuses.
    """
    if not store.listable:
        raise ConfigError("can't be listed", path=store.url, expected="s3://, gs://, az:// or a folder")
    require_above_versions(store)
    latest = read_latest(store)
    found: dict[str, list[ObjectInfo]] = {}
    for info in store.list("v-"):
        name, slash, _ = info.key.partition("/")
        if slash and is_version(name):
            found.setdefault(name, []).append(info)
    if latest is None and not found:
        raise ConfigError("there are no versions of a set", path=store.url, expected=f"{LATEST} or v-<digest12>/")
    versions = [
        StoredVersion(
            name=name,
            objects=len(infos),
            bytes=sum(info.size for info in infos),
            modified=max(info.modified for info in infos),
            whole=any(info.key == f"{name}/{MANIFEST}" for info in infos),
            latest=latest is not None and latest.version == name,
        )
        for name, infos in found.items()
    ]
    return sorted(versions, key=lambda version: (-version.modified, version.name))


def plan_removal(
    versions: Sequence[StoredVersion],
    *,
    keep: int = 0,
    keep_names: Sequence[str] = (),
    older_than: float = 0.0,
    now: Callable[[], float] = time.time,
) -> list[StoredVersion]:
    """Which versions may go: never the latest, and none if nothing is the latest.

    Args:
        versions: As `list_versions` gives them.
        keep: So many of the newest others stay.
        keep_names: These stay; names or first digits of digests.
        older_than: s since their last object was written; younger ones stay (they may be under way).
        now: Seconds since 1970.

    Raises:
        ConfigError: a name to keep is not there.
    """
    kept: set[str] = set()
    for wanted in keep_names:
        found = [version.name for version in versions if version.name.removeprefix("v-").startswith(_digits(wanted))]
        if not found:
            raise ConfigError("there is no such version", where="--keep-version", found=wanted)
        kept.update(found)
    if not any(version.latest for version in versions):
        return []
    others = [version for version in versions if not version.latest]
    limit = now() - older_than
    return [version for version in others[keep:] if version.modified <= limit and version.name not in kept]


def _digits(name: str) -> str:
    return name.lower().removeprefix("v-")[:12]


def remove_version(store: Store, version: StoredVersion) -> int:
    """Removes a version, its manifest first, so that it never looks whole again; returns the number of objects.

    Raises:
        ConflictError: it has become the latest meanwhile.
    """
    latest = read_latest(store)
    if latest is None or latest.version == version.name:
        raise ConflictError("the version has become the latest meanwhile", path=store.where(version.name))
    store.delete(f"{version.name}/{MANIFEST}")
    keys = [info.key for info in store.list(f"{version.name}/")]
    for key in keys:
        store.delete(key)
    return len(keys) + version.whole
