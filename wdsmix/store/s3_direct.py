"""GETs that go around boto3, which costs a millisecond each and more: signed once, sent again for other ranges.

Range and If-Match are left out of what is signed: one signature serves all ranges of an object for some minutes.
boto3 makes and signs the first request of an object, and opens all connections; those of them that nothing stands
between are taken over as `Line` once their first answer is read. An answer that is neither bytes nor a plain error is
left to boto3, which knows redirects and expired credentials.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from wdsmix.store.base import TransientError
from wdsmix.store.line import Line, OddAnswerError
from wdsmix.store.s3_errors import answered

__all__ = ["DirectGets", "Stream"]

_LASTS = 240.0  # s for which a signature is used; stores take them for five minutes at least
_MOST = 1 << 14  # objects
_UNSIGNED = ("Range", "If-Match")
_PLAIN = (404, 408, 412, 416, 429)
_REASON = 1 << 16  # bytes of an error's text that are looked at


class Stream(Protocol):
    """A body that arrives."""

    def read(self, amount: int) -> bytes:
        """At most ``amount`` bytes; empty at the end."""
        ...

    def readinto(self, buffer: memoryview) -> int:
        """Bytes that were put into a buffer; 0 at the end."""
        ...

    def close(self) -> None:
        """Lets go of the connection."""
        ...


class _Signed(NamedTuple):
    since: float
    url: str
    headers: Any
    head: bytes
    """The same request as bytes, but for what is not signed and the line that ends it."""


class DirectGets:
    """The signed requests of one client, and connections for them. Thread-safe.

    Args:
        client: boto3's, for S3.
        timeout: s without a byte after which a connection is given up.
    """

    def __init__(self, client: Any, timeout: float) -> None:
        self._client = client
        self._timeout = timeout
        self._signed: dict[tuple[str, str], _Signed] = {}
        self._here = threading.local()
        self._idle: list[Line] = []
        self._odd = False
        """Whether the server's answers are not for a `Line`."""
        client.meta.events.register("before-sign.s3.GetObject", self._before_sign)
        client.meta.events.register("before-send.s3.GetObject", self._before_send)

    def _before_sign(self, request: Any, **_: Any) -> None:
        """Takes out what is not to be signed."""
        self._here.held = held = {name: request.headers[name] for name in _UNSIGNED if name in request.headers}
        for name in held:
            del request.headers[name]

    def _before_send(self, request: Any, **_: Any) -> None:
        """Keeps what was signed, and puts back what was taken out."""
        headers = request.headers.copy()
        self._here.last = _Signed(time.monotonic(), request.url, headers, _head(request.url, headers.items()))
        for name, value in getattr(self._here, "held", {}).items():
            request.headers[name] = value

    def first(self, bucket: str, key: str, **wanted: str) -> Any:
        """GetObject by boto3; returns its answer."""
        answer = self._client.get_object(Bucket=bucket, Key=key, **wanted)
        if len(self._signed) >= _MOST:
            self._signed.clear()
        self._signed[bucket, key] = self._here.last
        return answer

    def again(self, bucket: str, key: str, where: str, **wanted: str) -> tuple[Mapping[str, str], Stream] | None:
        """Headers and body of an answer, by a signature that is there; None: ask `first`.

        Args:
            bucket: Of the object.
            key: Of the object.
            where: Its URL, for errors.
            wanted: Range and IfMatch, as for boto3.

        Raises:
            WdsmixError: the answer is an error, or there is none.
        """
        signed = self._signed.get((bucket, key))
        if signed is None or time.monotonic() - signed.since > _LASTS:
            return None
        unsigned = {"If-Match" if name == "IfMatch" else name: value for name, value in wanted.items()}
        found = self._by_line(signed, unsigned, where) or self._by_session(signed, unsigned)
        if found.stream is not None:
            return found.headers, found.stream
        code = re.search(rb"<Code>(\w+)</Code>", found.content)
        if found.status in _PLAIN or found.status >= 500:
            error = {"Code": code[1].decode() if code else ""}
            raise answered({"ResponseMetadata": {"HTTPStatusCode": found.status}, "Error": error}, where, "GET")
        self._signed.pop((bucket, key), None)
        return None

    def _by_line(self, signed: _Signed, unsigned: Mapping[str, str], where: str) -> _Found | None:
        """Asks by a connection that is there; None where there is none that works."""
        fields = _fields(unsigned)
        if not fields or not signed.head:
            return None
        request = b"".join((signed.head, fields, b"\r\n"))
        while self._idle and not self._odd:
            try:
                line = self._idle.pop()
            except IndexError:  # another thread was faster
                break
            try:
                if not line.is_open():
                    line.close()
                    continue
                answer = line.ask(request)
                stream = _LineStream(line, self._idle.append, where)
                if answer.status in (200, 206):
                    return _Found(answer.status, answer.headers, stream)
                content = b"" if answer.length > _REASON else stream.read(answer.length)
                if line.left:
                    line.close()
                return _Found(answer.status, answer.headers, None, content)
            except OddAnswerError:
                line.close()
                self._odd = True
            except TimeoutError as error:
                line.close()
                raise TransientError("the server went silent", path=where, where="GET") from error
            except OSError:  # closed by the other side meanwhile
                line.close()
        return None

    def _by_session(self, signed: _Signed, unsigned: Mapping[str, str]) -> _Found:
        """Asks by boto3's connections, and takes over the one that answers."""
        from botocore.awsrequest import AWSPreparedRequest

        headers = signed.headers.copy()
        for name, value in unsigned.items():
            headers[name] = value
        response = self._client._endpoint.http_session.send(
            AWSPreparedRequest("GET", signed.url, headers, None, True)  # True: the body is left unread
        )
        status = response.status_code
        if status not in (200, 206):
            return _Found(status, {}, None, response.content)
        found = {name: response.headers[name] for name in response.headers}
        return _Found(status, _lower(found), _SessionStream(response.raw, self._take_over))

    def _take_over(self, raw: Any) -> Callable[[], None] | None:
        """Takes the connection of an answer away from boto3.

        Returns:
            What to call once the answer is read; None where the connection can't be had.
        """
        connection: Any = getattr(raw, "connection", None)
        link = getattr(connection, "sock", None)
        if self._odd or link is None or getattr(connection, "proxy", None) is not None:
            return None  # what goes by a proxy is spelled otherwise
        connection.sock = None  # it opens another one when it needs one

        def keep() -> None:
            self._idle.append(Line(link, self._timeout))

        return keep


class _Found(NamedTuple):
    status: int
    headers: Mapping[str, str]
    """By lower-case name."""
    stream: Stream | None
    """None for an error."""
    content: bytes = b""
    """Of an error."""


class _LineStream:
    """A body that comes over a `Line`, which is given back at its end."""

    def __init__(self, line: Line, give_back: Callable[[Line], None], where: str) -> None:
        self._line: Line | None = line
        self._give_back, self._where = give_back, where

    def readinto(self, buffer: memoryview) -> int:
        line = self._line
        if line is None:
            return 0
        try:
            count = line.readinto(buffer)
        except OSError as error:
            self.close()
            said = "the server went silent" if isinstance(error, TimeoutError) else "the connection broke"
            raise TransientError(said, path=self._where, where="GET") from error
        if not line.left:
            self._line = None
            if line.lasts:
                self._give_back(line)
            else:
                line.close()
        return count

    def read(self, amount: int) -> bytes:
        buffer = bytearray(amount)
        count = self.readinto(memoryview(buffer))
        return bytes(buffer if count == amount else buffer[:count])

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


class _SessionStream:
    """A body that comes by way of urllib3."""

    def __init__(self, raw: Any, take_over: Callable[[Any], Callable[[], None] | None]) -> None:
        self._raw = raw
        self._keep = take_over(raw)

    def read(self, amount: int) -> bytes:
        data: bytes = self._raw.read(amount)
        if self._keep is not None and self._raw.length_remaining == 0:
            self._keep()
            self._keep = None
        return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()
        self._keep = None


def _head(url: str, headers: Iterable[tuple[str, str | bytes]]) -> bytes:
    """A request as bytes, without its end; empty where it has something that can't be sent so."""
    parts = urlsplit(url)
    port = parts.port
    plain = port is None or port == {"http": 80, "https": 443}.get(parts.scheme)
    host = parts.netloc if not plain or port is None else parts.netloc.rpartition(":")[0]
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {"Host": host, "Accept-Encoding": "identity"}
    fields.update({name: value.decode("latin-1") if isinstance(value, bytes) else value for name, value in headers})
    lines = _fields(fields)
    if not lines or not target.isascii() or not target.isprintable() or " " in target:
        return b""
    return f"GET {target} HTTP/1.1\r\n".encode() + lines


def _fields(headers: Mapping[str, str]) -> bytes:
    """Lines of a head; nothing where a value can't be a header's."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if not all(line.isascii() and line.isprintable() for line in lines):
        return b""
    return "".join(f"{line}\r\n" for line in lines).encode()


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
