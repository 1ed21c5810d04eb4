"""The interface of a store. Backends say how one request is made; what is common to all requests is here."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

from wdsmix.errors import ConflictError, DataError, StorageError
from wdsmix.store.retry import Retries, StoreOptions, TransientError

__all__ = [
    "Body",
    "MissingObjectError",
    "NotSupportedError",
    "ObjectInfo",
    "PreconditionError",
    "Store",
    "TransientError",
    "md5",
]

_StoreT = TypeVar("_StoreT", bound="Store")


class MissingObjectError(StorageError):
    """There is no such object (or upload)."""


class NotSupportedError(StorageError):
    """The store can't do this."""


class PreconditionError(ConflictError):
    """The object is not the one that the request was made for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectInfo:
    """What a store says of an object."""

    key: str
    size: int
    """Bytes."""
    etag: str = ""
    """Names this version of the object, as the store spells it; empty where it says none. Where the store also counts
    versions, the count follows after ``#``."""
    modified: float = 0.0
    """Seconds since 1970; 0 where unknown."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """What whoever wrote it attached, with lower-case names; only `Store.head` tells."""
    crc32c: int | None = None
    """Of the whole object, where the store keeps it."""

    @property
    def plain_etag(self) -> str:
        """The ETag alone."""
        return self.etag.partition("#")[0]


class Body(Protocol):
    """The answer to one GET."""

    info: ObjectInfo
    """Size and version of the whole object."""
    start: int
    """Offset of the first byte that comes."""

    def read(self, amount: int) -> bytes:
        """At most ``amount`` bytes, at least one; empty at the end.

        Raises:
            TransientError: the connection broke.
        """
        ...

    def readinto(self, buffer: memoryview) -> int:
        """Puts as many bytes into ``buffer`` (uint8, writable) as come at once; 0 at the end. Raises as `read` does."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Lets go of the connection."""
        ...


class Store(ABC):
    """A URL prefix; keys are relative to it. Safe to share by threads, to fork and to pickle.

    Args:
        url: Where; holds no secret.
        options: How patient to be.
        retries: Counter to share with other stores; None for an own one.
    """

    writable = True
    """Whether it can be written to."""
    listable = True
    """Whether it can tell its keys."""
    multipart = False
    """Whether it has the multipart requests of `wdsmix.store.s3`."""

    def __init__(self, url: str, options: StoreOptions | None = None, retries: Retries | None = None) -> None:
        self.url = url.rstrip("/") or "/"
        self.options = options or StoreOptions.from_environment()
        self.retries = retries or Retries(self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["url"], state["options"])

    @property
    def identity(self) -> str:
        """Names the place across processes and runs: endpoint and URL."""
        return self.url

    def child(self: _StoreT, name: str) -> _StoreT:
        """The store of a longer prefix, with the same retries."""
        return type(self)(f"{self.url}/{name}", self.options, self.retries)

    def where(self, key: str) -> str:
        """The URL of a key, for errors."""
        return f"{self.url}/{key}"

    def head(self, key: str) -> ObjectInfo:
        """Size, version and metadata of an object.

        Raises:
            MissingObjectError: there is none.
            StorageError: the store can't be reached or refuses.
        """
        return self.retries.call(lambda: self._head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with ``prefix``, in order of their keys.

        Raises:
            NotSupportedError: the store can't list.
            StorageError: the store can't be reached or refuses.
        """
        page: str | None = ""
        while page is not None:
            found, page = self._list_after(prefix, page)
            yield from found

    def _list_after(self, prefix: str, page: str) -> tuple[Sequence[ObjectInfo], str | None]:
        return self.retries.call(lambda: self._page(prefix, page))

    def read(self, key: str, *, limit: int = 1 << 30) -> tuple[bytes, ObjectInfo]:
        """A whole small object.

        Raises:
            DataError: it is larger than ``limit`` bytes.
            MissingObjectError: there is none.
            StorageError: the store can't be reached or refuses.
        """
        from wdsmix.store.reader import ObjectReader

        reader = ObjectReader(self, key)
        parts = []
        size = 0
        for part in reader.stream():
            size += len(part)
            if size > limit:
                raise DataError("too large", path=self.where(key), expected=f"up to {limit} bytes")
            parts.append(part)
        return b"".join(parts), reader.info

    def put(
        self,
        key: str,
        data: bytes,
        *,
        if_match: str | None = None,
        if_absent: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> str:
        """Writes an object in one request.

        Args:
            key: Its key.
            data: Its bytes.
            if_match: Replace only the version with this ETag.
            if_absent: Write only where there is none.
            metadata: Names and values to attach, as far as the store keeps them.

        Returns:
            Its ETag.

        Raises:
            PreconditionError: a condition does not hold.
            NotSupportedError: the store can't write, or not under a condition.
            StorageError: the store can't be reached or refuses.
        """
        conditional = if_absent or if_match is not None
        tries = 0

        def request() -> str:
            nonlocal tries
            tries += 1
            return self._put(key, data, if_match, if_absent, metadata or {})

        try:
            return self.retries.call(request)
        except PreconditionError:
            if not conditional or tries == 1:
                raise
            found, info = self.read(key)  # a try that seemed to fail may have written it
            if found != data:
                raise
            return info.etag

    def put_file(self, key: str, path: Path, *, metadata: Mapping[str, str] | None = None) -> str:
        """Writes an object from a file, whatever its size; returns its ETag."""
        return self.put(key, path.read_bytes(), metadata=metadata)

    def delete(self, key: str) -> None:
        """Removes an object; none there is fine.

        Raises:
            StorageError: the store can't be reached or refuses.
        """
        self.retries.call(lambda: self._delete(key))

    @abstractmethod
    def body(self, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> Body:
        """One GET, without retries (`wdsmix.store.ObjectReader` has them).

        Args:
            key: Its key.
            start: First byte.
            stop: Byte after the last; None: to the end.
            etag: Only if it is still this version.

        Raises:
            MissingObjectError: there is no such object.
            PreconditionError: it is another version.
            TransientError: try again.
        """

    @abstractmethod
    def _head(self, key: str) -> ObjectInfo:
        """One request for `head`."""

    def _page(self, prefix: str, page: str) -> tuple[Sequence[ObjectInfo], str | None]:
        """One request for `list`: some objects, and what to ask for the next ones (None: there are no more)."""
        raise NotSupportedError("can't be listed", path=self.where(prefix))

    def _put(self, key: str, data: bytes, if_match: str | None, if_absent: bool, metadata: Mapping[str, str]) -> str:
        """One request for `put`."""
        raise NotSupportedError("can't be written to", path=self.where(key))

    def _delete(self, key: str) -> None:
        """One request for `delete`."""
        raise NotSupportedError("can't be written to", path=self.where(key))


def md5(data: bytes | bytearray | memoryview) -> bytes:
    """What S3 checks parts by; no secret depends on it."""
    return hashlib.md5(data, usedforsecurity=False).digest()
