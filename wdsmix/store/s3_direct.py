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
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from wdsmix.store.base import TransientError
from wdsmix.store.line import IdleLines, Line, OddAnswerError
from wdsmix.store.s3_errors import answered

__all__ = ["DirectGets", "Stream"]

_LASTS = 240.0  # s for which a signature is used; stores take them for five minutes at least
_MOST = 1 << 14  # objects
_UNSIGNED = ("Range", "If-Match")
_PLAIN = (404, 408, 412, 416, 429)
_REASON = 1 << 16  # bytes of an error's text that are looked at
_ODD = 3  # answers in a row that are not for a `Line`, after which none is asked any more


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
    """The same request as bytes, but for what is not signed and the line that ends it; empty where it can't be."""
    place: str
    """The server: scheme, host and port."""

    def __repr__(self) -> str:  # nobody shall read a signature somewhere
        return f"_Signed({self.place})"


class DirectGets:
    """The signed requests of one client, and connections for them. Thread-safe.

    Args:
        client: boto3's, for S3.
        timeout: s without a byte after which a connection is given up.
        connections: How many are kept though nobody uses them.
    """

    def __init__(self, client: Any, timeout: float, connections: int) -> None:
        self._client = client
        self._timeout = timeout
        self._signed: dict[tuple[str, str], _Signed] = {}
        self._here = threading.local()
        self._idle = IdleLines(connections)
        self._odd = 0
        """Answers in a row that were not for a `Line`."""
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
        parts = urlsplit(request.url)
        place = f"{parts.scheme}://{parts.netloc}"
        self._here.last = _Signed(time.monotonic(), request.url, headers, _head(request.url, headers.items()), place)
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
        fields = _fields(unsigned) if signed.head and self._odd < _ODD else None
        request = None if fields is None else b"".join((signed.head, fields, b"\r\n"))
        found = None if request is None else self._by_line(signed.place, request, where)
        if found is None:
            found = self._by_session(signed, unsigned, take_over=request is not None)
        if found.stream is not None:
            return found.headers, found.stream
        code = re.search(rb"<Code>(\w+)</Code>", found.content)
        if found.status in _PLAIN or found.status >= 500:
            error = {"Code": code[1].decode() if code else ""}
            raise answered({"ResponseMetadata": {"HTTPStatusCode": found.status}, "Error": error}, where, "GET")
        self._signed.pop((bucket, key), None)
        return None

    def _by_line(self, place: str, request: bytes, where: str) -> _Found | None:
        """Asks by a connection that is there; None where there is none that works."""
        line = self._idle.take(place)
        if line is None:
            return None
        try:
            answer = line.ask(request)
            if answer.status not in (200, 206):
                found = _Found(answer.status, answer.headers, None, line.reason(_REASON))
                self._idle.keep(place, line)
                return found
        except OddAnswerError as error:
            line.close()
            if error.status < 300:  # errors of what stands in between say little of the server
                self._odd += 1
                if self._odd >= _ODD:
                    self._idle.close(place)
            return None
        except TimeoutError as error:
            line.close()
            self._idle.close(place)  # the network may have forgotten them all
            raise TransientError("the server went silent", path=where, where="GET") from error
        except OSError:  # closed by the other side meanwhile
            line.close()
            return None
        except BaseException:
            line.close()
            raise
        self._odd = 0
        return _Found(answer.status, answer.headers, _LineStream(line, self._idle, place, where))

    def _by_session(self, signed: _Signed, unsigned: Mapping[str, str], *, take_over: bool) -> _Found:
        """Asks by boto3's connections, and takes over the one that answers."""
        from botocore.awsrequest import AWSPreparedRequest

        headers = signed.headers.copy()
        for name, value in unsigned.items():
            headers[name] = value
        response = self._client._endpoint.http_session.send(
            AWSPreparedRequest("GET", signed.url, headers, None, True)  # True: the body is left unread
        )
        status, raw = response.status_code, response.raw
        if status not in (200, 206):
            content = raw.read(_REASON + 1)
            if len(content) > _REASON:
                raw.close()
            return _Found(status, {}, None, content)
        found = {name.lower(): response.headers[name] for name in response.headers}
        link = _taken_over(raw) if take_over else None
        if link is None:
            return _Found(status, found, _SessionStream(raw))
        return _Found(status, found, _TakenStream(raw, link, self._timeout, self._idle, signed.place))


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

    def __init__(self, line: Line, idle: IdleLines, place: str, where: str) -> None:
        self._line: Line | None = line
        self._idle, self._place, self._where = idle, place, where

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
            self._idle.keep(self._place, line)
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

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def read(self, amount: int) -> bytes:
        data: bytes = self._raw.read(amount)
        return data

    def readinto(self, buffer: memoryview) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._raw.close()


class _TakenStream(_SessionStream):
    """The same, over a connection that is ours from then on."""

    def __init__(self, raw: Any, link: Any, timeout: float, idle: IdleLines, place: str) -> None:
        super().__init__(raw)
        self._link = link
        self._timeout, self._idle, self._place = timeout, idle, place

    def read(self, amount: int) -> bytes:
        data = super().read(amount)
        if self._link is not None and self._raw.length_remaining == 0:
            link, self._link = self._link, None
            try:
                line = Line(link, self._timeout)
            except OSError:
                link.close()
            else:
                self._idle.keep(self._place, line)
        return data

    def close(self) -> None:
        super().close()
        if self._link is not None:
            self._link.close()
            self._link = None


def _taken_over(raw: Any) -> Any:
    """Takes the connection of an answer away from boto3; returns its socket, or None where it can't be had."""
    connection = getattr(raw, "connection", None)
    link = getattr(connection, "sock", None)
    if link is None or connection is None or getattr(connection, "proxy", None) is not None:
        return None  # what goes by a proxy is spelled otherwise
    if not raw.length_remaining:  # nothing comes, or nobody knows when it ends
        return None
    connection.sock = None  # it opens another one when it needs one
    return link


def _head(url: str, headers: Iterable[tuple[str, str | bytes]]) -> bytes:
    """A request as bytes, without its end; empty where it has something that can't be sent so."""
    parts = urlsplit(url)
    host = parts.hostname or ""  # as it is signed
    if ":" in host:
        host = f"[{host}]"
    if parts.port not in (None, {"http": 80, "https": 443}.get(parts.scheme)):
        host = f"{host}:{parts.port}"
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {"Host": host, "Accept-Encoding": "identity"}
    fields.update({name: value.decode("latin-1") if isinstance(value, bytes) else value for name, value in headers})
    lines = _fields(fields)
    if not lines or not target.isascii() or not target.isprintable() or " " in target:
        return b""
    return f"GET {target} HTTP/1.1\r\n".encode() + lines


def _fields(headers: Mapping[str, str]) -> bytes | None:
    """Lines of a head; None where a value can't be a header's."""
    lines = [f"{name}: {value}" for name, value in headers.items()]
    if not all(line.isascii() and line.isprintable() for line in lines):
        return None
    return "".join(f"{line}\r\n" for line in lines).encode()
