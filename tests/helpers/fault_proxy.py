"""An HTTP proxy on loopback that breaks what passes through it, and keeps a log of every request."""

from __future__ import annotations

import contextlib
import functools
import http.client
import os
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_HOP = {
    "connection",
    "keep-alive",
    "transfer-encoding",
    "te",
    "trailer",
    "upgrade",
    "proxy-connection",
    "date",
    "server",
}


@dataclass(kw_only=True)
class Fault:
    """One way to break answers.

    kind: ``fin`` or ``rst`` (cut after ``after`` bytes of body), ``503`` and ``200`` (said without asking the server),
    ``stall`` (silent for ``seconds`` after ``after`` bytes of an answer, or before that to a PUT, then closed; ``over``
    tells whether that time has passed), ``flip`` (one bit of byte ``after``),
    ``rst-request`` (reset before the server sees it), ``lost`` (reset after the server has done it).
    """

    kind: str
    times: int = 1
    after: int = 0
    seconds: float = 0.0
    method: str = "GET"
    path: str = ""
    then: Callable[[], Any] | None = None
    over: bool = False

    def fits(self, method: str, path: str) -> bool:
        return self.times > 0 and method == self.method and self.path in path

    def happen(self) -> None:
        """Does what follows: before a connection is cut, or after the answer."""
        then, self.then = self.then, None
        if then:
            then()


@dataclass(kw_only=True)
class Seen:
    """One request."""

    method: str
    path: str
    range: str
    status: int = 0
    sent: int = 0
    fault: str = ""


@dataclass
class FaultProxy:
    """``with FaultProxy(url) as proxy``: requests to ``proxy.url`` reach the upstream, unless a fault is due."""

    upstream: str
    faults: list[Fault] = field(default_factory=list)
    log: list[Seen] = field(default_factory=list)
    first_byte: float = 0.0
    """Delay of every answer, s."""
    rate: float = 0.0
    """Bytes per second and connection; 0: no limit."""

    def __enter__(self) -> FaultProxy:
        self._lock = threading.Lock()
        proxy = self

        class Handler(_Handler):
            owner = proxy

        _watch_forks()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def take(self, method: str, path: str) -> Fault | None:
        with self._lock:
            for fault in self.faults:
                if fault.fits(method, path):
                    fault.times -= 1
                    return fault
        return None

    def seen(self, method: str, part: str = "") -> list[Seen]:
        """Requests of a method whose path holds ``part``."""
        return [entry for entry in list(self.log) if entry.method == method and part in entry.path]


@functools.cache
def _watch_forks() -> None:
    """A forked child must not hold the server's connections: what is cut here would stay open there, in silence."""
    os.register_at_fork(after_in_child=_let_go)


def _let_go() -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    for path in list(Path("/proc/self/fd").iterdir()):
        handle = int(path.name)
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(handle).st_mode):
                continue
            with socket.socket(fileno=os.dup(handle)) as link:
                family = link.family
            if family == socket.AF_INET:
                os.dup2(nothing, handle)  # the number stays taken: whoever closes it closes nothing of others
    os.close(nothing)


class _Server(ThreadingHTTPServer):
    request_queue_size = 128  # five, the default, would stall a few workers that connect at once


class _Handler(BaseHTTPRequestHandler):
    owner: FaultProxy
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, TimeoutError):
            self.close_connection = True

    def _serve(self) -> None:
        seen = Seen(method=self.command, path=self.path, range=self.headers.get("Range", ""))
        self.owner.log.append(seen)
        fault = self.owner.take(self.command, self.path)
        seen.fault = fault.kind if fault else ""
        try:
            if fault and fault.kind == "rst-request":
                self._cut(reset=True)
                return
            if self.headers.get("Expect", "").lower() == "100-continue":
                pass  # BaseHTTPRequestHandler has answered it
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if fault and fault.kind in ("503", "200"):
                seen.status = int(fault.kind)
                text = b"<Error><Code>SlowDown</Code><Message>busy</Message></Error>" if seen.status == 503 else b""
                self.send_response(seen.status)
                self.send_header("ETag", '"0"')
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text if self.command != "HEAD" else b"")
                return
            self._forward(seen, fault, body)
        finally:
            if fault:
                fault.happen()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _serve

    def _forward(self, seen: Seen, fault: Fault | None, body: bytes) -> None:
        where = urlsplit(self.owner.upstream)
        link = http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)
        link.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP | {"expect"}:
                link.putheader(name, value)
        link.endheaders(body or None)
        answer = link.getresponse()
        time.sleep(self.owner.first_byte)
        seen.status = answer.status
        if fault and (fault.kind == "lost" or (fault.kind == "stall" and self.command in ("PUT", "POST"))):
            answer.read()
            time.sleep(fault.seconds)
            fault.over = True
            self._cut(reset=True)
            return
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP | {"content-length"}:
                self.send_header(name, value)
        length = answer.getheader("Content-Length")
        data = b"" if self.command == "HEAD" else answer.read() if length is None else None
        self.send_header("Content-Length", str(len(data)) if data is not None and length is None else str(length or 0))
        self.end_headers()
        while self.command != "HEAD":
            chunk = answer.read(1 << 16) if data is None else data
            if data is not None:
                data = b""
            if not chunk:
                break
            if fault and fault.kind in ("fin", "rst", "stall") and seen.sent + len(chunk) > fault.after:
                self.wfile.write(chunk[: fault.after - seen.sent])
                seen.sent = fault.after
                self.wfile.flush()
                fault.happen()
                if fault.kind == "stall":
                    time.sleep(fault.seconds)
                    fault.over = True
                self._cut(reset=fault.kind == "rst")
                break
            if fault and fault.kind == "flip" and seen.sent <= fault.after < seen.sent + len(chunk):
                spoiled = bytearray(chunk)
                spoiled[fault.after - seen.sent] ^= 1
                chunk = bytes(spoiled)
            self.wfile.write(chunk)
            seen.sent += len(chunk)
            if self.owner.rate:
                time.sleep(len(chunk) / self.owner.rate)
        link.close()

    def _cut(self, *, reset: bool) -> None:
        self.wfile.flush()
        self.close_connection = True
        if reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        else:
            self.connection.shutdown(socket.SHUT_RDWR)
