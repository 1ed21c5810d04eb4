"""A small server of one object that says what a test wants: for what no real server does on demand."""

from __future__ import annotations

import contextlib
import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from wdsmix.store import ObjectReader, StoreOptions, open_store

DATA = bytes(range(256)) * 1000
ETAG = '"one"'
FAST = StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=5.0, tries=4)
SECRET = "hush/hush+hush"


@dataclass
class Request:
    """One request."""

    link: socket.socket
    number: int
    """Of its connection."""
    nth: int
    """On its connection, from 0."""
    target: str
    headers: dict[str, str]
    """By lower-case name."""

    def span(self, size: int) -> tuple[int, int]:
        first, _, last = self.headers.get("range", "").removeprefix("bytes=").partition("-")
        return int(first or 0), min(int(last) + 1, size) if last else size

    def good(self, data: bytes = DATA, *, etag: str = ETAG, more: str = "") -> bytes:
        """The answer that the store wants."""
        start, stop = self.span(len(data))
        head = f"Content-Length: {stop - start}\r\nETag: {etag}\r\n{more}"
        head += "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"
        if "range" not in self.headers:
            return f"HTTP/1.1 200 OK\r\n{head}\r\n".encode() + data
        return (
            f"HTTP/1.1 206 Partial\r\nContent-Range: bytes {start}-{stop - 1}/{len(data)}\r\n{head}\r\n".encode()
            + data[start:stop]
        )


def error(status: int, code: str = "", more: str = "") -> bytes:
    """An answer that is an error."""
    body = f"<Error><Code>{code}</Code></Error>" if code else ""
    return f"HTTP/1.1 {status} X\r\n{more}Content-Length: {len(body)}\r\n\r\n{body}".encode()


@dataclass
class TinyS3:
    """``with TinyS3(answer) as server``: each answer is what ``answer`` makes of the request.

    Empty bytes close the connection. What ``answer`` sends by itself over ``request.link`` goes first.
    """

    answer: Callable[[Request], bytes] = Request.good
    context: ssl.SSLContext | None = None
    family: socket.AddressFamily = socket.AF_INET
    log: list[Request] = field(default_factory=list)
    connections: int = 0
    links: list[socket.socket] = field(default_factory=list)

    @property
    def url(self) -> str:
        scheme = "http" if self.context is None else "https"
        host = "[::1]" if self.family == socket.AF_INET6 else "127.0.0.1"
        return f"{scheme}://{host}:{self.port}"

    def __enter__(self) -> TinyS3:
        host = "::1" if self.family == socket.AF_INET6 else "127.0.0.1"
        self._listener = socket.create_server((host, 0), family=self.family, backlog=128)
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """Closes all connections, those of TLS without a word."""
        while self.links:
            link = self.links.pop()
            with contextlib.suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                threading.Thread(target=self._serve, args=(link, self.connections), daemon=True).start()

    def _serve(self, link: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), link:
            if self.context is not None:
                link = self.context.wrap_socket(link, server_side=True)
            with link:
                self.links.append(link)
                for nth, (target, headers) in enumerate(_requests(link)):
                    request = Request(link, number, nth, target, headers)
                    self.log.append(request)
                    answer = self.answer(request)
                    if not answer:
                        link.shutdown(socket.SHUT_RDWR)
                        return
                    link.sendall(answer)
                    if b"\r\nConnection: close\r\n" in answer:
                        return


def _requests(link: socket.socket) -> Iterator[tuple[str, dict[str, str]]]:
    left = b""
    while True:
        while b"\r\n\r\n" not in left:
            data = link.recv(1 << 14)
            if not data:
                return
            left += data
        head, _, left = left.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        yield first.split(" ")[1], {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}


def reader(key: str = "x", options: StoreOptions = FAST) -> ObjectReader:
    return ObjectReader(open_store("s3://bucket/set", options), key)


def check(found: ObjectReader, times: int = 5, seed: int = 0) -> None:
    """Reads ranges here and there."""
    some = random.Random(seed)
    for _ in range(times):
        start = some.randrange(len(DATA))
        stop = start + some.randrange(1, 100_000)
        assert found.read(start, min(stop, len(DATA))) == DATA[start:stop]
