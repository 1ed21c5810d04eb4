"""``http(s)://``, to read only."""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from wdsmix.errors import DataError, StorageError, WdsmixError
from wdsmix.store.base import (
    Body,
    MissingObjectError,
    NotSupportedError,
    ObjectInfo,
    PreconditionError,
    Store,
    TransientError,
)

__all__ = ["WebStore"]


class _WebBody(Body):
    def __init__(self, answer: Any, info: ObjectInfo, start: int, where: str) -> None:
        self.info, self.start = info, start
        self._answer, self._where = answer, where

    def read(self, amount: int) -> bytes:
        with _mapped(self._where):
            data: bytes = self._answer.read(amount)
        return data

    def readinto(self, buffer: memoryview) -> int:
        with _mapped(self._where):
            count: int = self._answer.readinto(buffer)
        return count

    def close(self) -> None:
        self._answer.close()


class WebStore(Store):
    """A folder of a web server. Proxies are those of the environment."""

    writable = False
    listable = False

    def body(self, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> _WebBody:
        """One GET; see `Store.body`."""
        headers = {}
        if start or stop is not None:
            headers["Range"] = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        if etag and not etag.startswith("W/"):
            headers["If-Match"] = etag
        answer = self._ask(key, "GET", headers)
        size, first = answer.headers.get("Content-Length", ""), 0
        if answer.status == 206:
            span, _, size = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            begin = span.partition("-")[0]
            first = int(begin) if begin.isdigit() else -1
        return _WebBody(answer, self._info(key, size, answer), first, self.where(key))

    def _head(self, key: str) -> ObjectInfo:
        with self._ask(key, "HEAD", {}) as answer:
            return self._info(key, answer.headers.get("Content-Length", ""), answer)

    def _ask(self, key: str, verb: str, headers: dict[str, str]) -> Any:
        scheme, _, rest = self.where(key).partition("://")
        request = urllib.request.Request(
            f"{scheme}://{quote(rest, safe='/:@%[]')}", headers={"User-Agent": "wdsmix", **headers}, method=verb
        )
        request.add_header("Accept-Encoding", "identity")
        with _mapped(self.where(key)):
            return urllib.request.urlopen(request, timeout=self.options.read_timeout)

    def _info(self, key: str, size: str, answer: Any) -> ObjectInfo:
        if not size.isdigit():
            raise NotSupportedError("the server does not tell the size", path=self.where(key))
        try:
            modified = parsedate_to_datetime(answer.headers.get("Last-Modified", "")).timestamp()
        except (ValueError, TypeError):
            modified = 0.0
        return ObjectInfo(key=key, size=int(size), etag=answer.headers.get("ETag", ""), modified=modified)


@contextmanager
def _mapped(where: str) -> Iterator[None]:
    """Turns what urllib raises into errors of wdsmix."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        raise _answer(error.code, where) from None
    except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
        reason = getattr(error, "reason", error)
        if isinstance(reason, ssl.SSLCertVerificationError):
            raise StorageError("the server's certificate can't be trusted", path=where) from error
        if isinstance(reason, socket.gaierror):
            raise TransientError("the host has no address", path=where) from error
        raise TransientError(f"connection failed ({type(reason).__name__})", path=where) from error


def _answer(status: int, where: str) -> WdsmixError:
    if status in (404, 410):
        return MissingObjectError("there is no such object", path=where)
    if status == 412:
        return PreconditionError("it is another version", path=where)
    if status == 416:
        return DataError("the object is shorter than it should be", path=where)
    if status in (408, 429) or status >= 500:
        return TransientError(f"the server answered {status}", path=where)
    hint = "http(s):// reads what is public; s3:// signs its requests" if status in (401, 403) else None
    return StorageError(f"the server answered {status}", path=where, hint=hint)
