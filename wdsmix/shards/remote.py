"""A shard set that lies in a store: which version a URL means, and its files by way of this node's cache."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from braceexpand import braceexpand

from wdsmix.errors import ConfigError, ConflictError, WdsmixError
from wdsmix.manifest import Manifest
from wdsmix.store.cache import open_cache
from wdsmix.store.local import LocalStore
from wdsmix.store.opening import UrlPath, open_store
from wdsmix.store.versions import is_version, open_manifest, resolve, version_name

if TYPE_CHECKING:
    from wdsmix.store.base import Store
    from wdsmix.store.cached import Counts
    from wdsmix.store.cached_tar import CachedTar

__all__ = ["CacheOptions", "RemoteSet", "locate", "open_remote"]

CacheOptions = tuple[str | Path | None, int | None]
"""Folder and limit."""


class RemoteSet:
    """One version of a set in a store.

    Attributes:
        path: Its URL.
        manifest: What it is.
        digest: Its version.
        folder: Where its small files are on this node's disk.
    """

    def __init__(self, store: Store, data: bytes, manifest: Manifest, digest: str, cache: CacheOptions) -> None:
        self.path = UrlPath(store.url)
        self.manifest, self.digest = manifest, digest
        self._cached = open_cache(*cache).open(store, digest, data, manifest)
        self.folder = self._cached.folder

    def file(self, name: str) -> Path:
        """A small file of the set, fetched when it is first asked for.

        Raises:
            DataError: damaged.
            StorageError: the store can't be reached or refuses.
        """
        return self._cached.file(name)

    @property
    def counts(self) -> Counts:
        """What this process did with the sets of its cache."""
        return self._cached.counts

    def tar(self, k: int) -> CachedTar:
        """A tar, of which ranges are fetched when they are asked for."""
        return self._cached.tar(k)

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """Errors name the URL, not the copy in the cache."""
        try:
            yield
        except WdsmixError as error:
            folder = str(self.folder)
            if error.path is not None and error.path.startswith(folder):
                error.path = f"{self.path}{error.path[len(folder) :]}"
            raise


def open_remote(url: str, digest: str | None, cache: CacheOptions) -> RemoteSet | Path:
    """Opens a set by URL; a folder for one on this machine's disk.

    Args:
        url: Of the set or of a version of it.
        digest: The version that it must be; None: whichever latest.json names, or is there.
        cache: Folder and limit of the cache.

    Raises:
        ConfigError: there is no set.
        ConflictError: there is only another version.
        DataError: the manifest is damaged.
        StorageError: the store can't be reached or refuses.
    """
    store = open_store(url)
    if digest is not None and not isinstance(store, LocalStore):
        named = store if is_version(store.url.rpartition("/")[2]) else store.child(version_name(digest))
        for place in (named, store):
            data = open_cache(*cache).manifest(place, digest)
            if data is not None:
                version = open_manifest(place, data)
                return RemoteSet(place, data, version.manifest, digest, cache)
        store = _version_of(store, named, digest)
    version = resolve(store)
    if digest is not None and version.digest != digest:
        raise ConflictError(
            "the set has changed since it was opened",
            path=url,
            expected=f"digest {digest[:12]}",
            found=version.digest[:12],
        )
    if isinstance(version.store, LocalStore):
        return version.store.folder
    return RemoteSet(version.store, version.data, version.manifest, version.digest, cache)


def _version_of(store: Store, named: Store, digest: str) -> Store:
    """Where the version of a digest lies: pushed ones have a folder, copied ones lie where the URL says."""
    if named is store:
        return store
    try:
        found = resolve(named)
    except ConfigError:
        return store
    return found.store if found.digest == digest else store


def locate(text: str) -> tuple[str, list[str] | None]:
    """Folder or URL of a set, and the shards that a pattern names (None: all).

    Raises:
        ConfigError: not a pattern of one set's tars.
    """
    if "{" not in text and not text.endswith(".tar"):
        return text, None
    try:
        tars = list(braceexpand(text))
    except ValueError as error:
        raise ConfigError("unbalanced braces", where=text) from error
    wrong = [tar for tar in tars if not tar.endswith(".tar")]
    if wrong:
        raise ConfigError(
            "a pattern names tars", where=text, expected="names that end in .tar", found=wrong[0].rpartition("/")[2]
        )
    folders = sorted({tar.rpartition("/")[0] or "." for tar in tars})
    if len(folders) > 1:
        raise ConfigError("a pattern stays within one set", where=text, found=f"{folders[0]} and {folders[1]}")
    return folders[0], [tar.rpartition("/")[2].removesuffix(".tar") for tar in tars]
