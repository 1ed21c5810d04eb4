"""``gs://`` and ``az://`` by obstore.

obstore runs its requests on threads that a forked process does not have: there, a request would hang for ever and no
time-out would apply. So a process that was forked after obstore had been used is refused at once.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

from wdsmix.errors import ConfigError, DataError, StorageError, WdsmixError
from wdsmix.store.base import (
    Body,
    MissingObjectError,
    NotSupportedError,
    ObjectInfo,
    PreconditionError,
    Store,
    TransientError,
)
from wdsmix.store.retry import StoreOptions

__all__ = ["ObstoreStore", "guard"]

_PART = 16 << 20
_user = 0
"""Process that made the first request; children inherit the number."""


def guard(url: str) -> None:
    """Notes that this process uses obstore.

    Raises:
        ConfigError: it was forked from one that did.
    """
    global _user
    if _user not in (0, os.getpid()):
        raise ConfigError(
            "this store can't be used in a forked process whose parent has used it: it would hang for ever",
            path=url,
            hint='give the DataLoader multiprocessing_context="forkserver" or "spawn", or open the set in a process '
            "of its own before forking",
        )
    _user = os.getpid()


class _ObstoreBody(Body):
    def __init__(self, result: Any, info: ObjectInfo, start: int, where: str) -> None:
        self.info, self.start = info, start
        self._chunks = iter(result.stream(min_chunk_size=1 << 20))
        self._rest = memoryview(b"")
        self._where = where

    def read(self, amount: int) -> bytes:
        if not self._rest:
            with _mapped(self._where):
                self._rest = memoryview(bytes(next(self._chunks, b"")))
        data, self._rest = bytes(self._rest[:amount]), self._rest[amount:]
        return data

    def close(self) -> None:
        self._chunks, self._rest = iter(()), memoryview(b"")


class ObstoreStore(Store):
    """A bucket or container and a prefix."""

    def __init__(self, url: str, options: StoreOptions | None = None, retries: Any = None) -> None:
        super().__init__(url, options, retries)
        if importlib.util.find_spec("obstore") is None:
            extra = "gcs" if url.startswith("gs") else "azure"
            raise ConfigError(f"{url[:2]}:// needs obstore", hint=f"pip install 'wdsmix[{extra}]'")
        self._made: tuple[int, Any] | None = None

    @property
    def _store(self) -> Any:
        guard(self.url)
        if self._made is None or self._made[0] != os.getpid():
            self._made = os.getpid(), self._connect()
        return self._made[1]

    def _connect(self) -> Any:
        from obstore.store import from_url

        with _mapped(self.url):
            return from_url(
                self.url,
                # Its own retries count from the first request and would end healthy slow streams.
                retry_config={"max_retries": 0, "retry_timeout": timedelta(hours=12)},
                client_options={
                    "timeout": timedelta(hours=12),
                    "connect_timeout": timedelta(seconds=self.options.connect_timeout),
                    "read_timeout": timedelta(seconds=self.options.read_timeout),
                    "allow_http": True,
                },
            )

    def body(self, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> _ObstoreBody:
        """One GET; see `Store.body`."""
        import obstore

        wanted: dict[str, Any] = {}
        if stop is not None:
            wanted["range"] = (start, stop)
        elif start:
            wanted["range"] = {"offset": start}
        if etag:
            wanted["if_match"] = etag.partition("#")[0]
        with _mapped(self.where(key)):
            result = obstore.get(self._store, key, options=cast("Any", wanted))
            return _ObstoreBody(result, _info(key, result.meta), int(result.range[0]), self.where(key))

    def _head(self, key: str) -> ObjectInfo:
        import obstore

        with _mapped(self.where(key)):
            answer = obstore.get(self._store, key, options=cast("Any", {"head": True}))
            metadata = {str(name).lower(): value for name, value in answer.attributes.items()}
            return _info(key, answer.meta, metadata)

    def _page(self, prefix: str, page: str) -> tuple[Sequence[ObjectInfo], str | None]:
        import obstore

        folder = prefix.rpartition("/")[0]  # its prefixes are whole folders
        with _mapped(self.where(prefix)):
            found = [_info(meta["path"], meta) for part in obstore.list(self._store, folder or None) for meta in part]
        return sorted((info for info in found if info.key.startswith(prefix)), key=lambda info: info.key), None

    def _put(self, key: str, data: bytes, if_match: str | None, if_absent: bool, metadata: Mapping[str, str]) -> str:
        import obstore

        mode: Any = "create" if if_absent else "overwrite"
        if if_match is not None:  # Google's store goes by the count of versions, the others by the ETag
            etag, _, version = if_match.partition("#")
            mode = {"e_tag": etag, "version": version} if version else {"e_tag": etag}
        with _mapped(self.where(key)):
            answer = obstore.put(
                self._store, key, data, mode=mode, use_multipart=False, attributes=cast("Any", dict(metadata) or None)
            )
        return _etag(answer)

    def put_file(self, key: str, path: Path, *, metadata: Mapping[str, str] | None = None) -> str:
        """Sends a file; large ones in parts."""
        import obstore

        part = max(_PART, path.stat().st_size // 9_000)

        def request() -> str:
            with _mapped(self.where(key)):
                return _etag(
                    obstore.put(
                        self._store, key, path, chunk_size=part, attributes=cast("Any", dict(metadata or {}) or None)
                    )
                )

        return self.retries.call(request)

    def _delete(self, key: str) -> None:
        import obstore

        try:
            with _mapped(self.where(key)):
                obstore.delete(self._store, key)
        except MissingObjectError:
            return


def _info(key: str, meta: Any, metadata: Mapping[str, str] | None = None) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=int(meta["size"]),
        etag=_etag(meta),
        modified=meta["last_modified"].timestamp(),
        metadata=metadata or {},
    )


def _etag(facts: Any) -> str:
    etag, version = facts.get("e_tag") or "", facts.get("version")
    return f"{etag}#{version}" if version else etag


@contextmanager
def _mapped(where: str) -> Iterator[None]:
    """Turns what obstore raises into errors of wdsmix. Its messages may hold signed URLs, so they are not passed on."""
    try:
        yield
    except WdsmixError:
        raise
    except Exception as error:
        raise _translate(error, where) from None


def _translate(error: Exception, where: str) -> WdsmixError:
    kind = type(error).__name__
    if kind in ("NotFoundError", "FileNotFoundError"):
        return MissingObjectError("there is no such object", path=where)
    if kind in ("AlreadyExistsError", "PreconditionError"):
        return PreconditionError("the object is there already, or is another version", path=where)
    if kind in ("PermissionDeniedError", "UnauthenticatedError", "PermissionError"):
        return StorageError(
            f"the store refuses ({kind})",
            path=where,
            hint="credentials come from the environment (GOOGLE_..., AZURE_STORAGE_...)",
        )
    if kind in ("NotImplementedError", "NotSupportedError"):
        return NotSupportedError("the store does not support this", path=where)
    text = str(error).lower()
    if "range not satisfiable" in text:  # never by the number alone: ports and names hold such digits
        return DataError("the object is shorter than it should be", path=where)
    if kind in ("InvalidPathError", "UnknownConfigurationKeyError", "ValueError", "TypeError"):
        return ConfigError(f"the store can't be opened ({kind})", path=where)
    return TransientError(f"the request failed ({kind})", path=where)
