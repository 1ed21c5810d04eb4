"""A cheap server that shows a folder as an S3 bucket, to read: as much as clients need, at a rate that is asked for.

Bytes go out by sendfile, so that what is measured is the client: ``python -m benchmarks.s3.shelf FOLDER [options]``
prints its port and serves until its standard input closes. Signatures are not looked at. ``--log FILE`` gets a line
every quarter of a second: time.monotonic(), bytes sent so far, CPU-seconds of the server so far.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote

__all__ = ["Limits", "main"]

_SLICE = 1 << 18
_EVERY = 0.25  # s
_MISSING = b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>"


@dataclass(kw_only=True)
class Limits:
    """How fast answers come."""

    total: float = 0.0
    """Bytes per second of all connections together; 0: no limit."""
    connection: float = 0.0
    """Bytes per second of each."""
    first_byte: float = 0.0
    """Seconds before each answer."""
    sent: int = 0
    """Bytes so far."""
    _free: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, amount: int, began: float, sent: int) -> None:
        """Holds one connection up until ``amount`` more bytes may go, ``sent`` having gone since ``began``."""
        until = began + (sent + amount) / self.connection if self.connection else 0.0
        if self.total:
            with self._lock:
                self._free = max(self._free, time.monotonic() - 0.02) + amount / self.total
                until = max(until, self._free)
        pause = until - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        self.sent += amount


def _read_head(link: socket.socket, left: bytes) -> tuple[list[str], bytes] | None:
    """Lines of a request's head, and what came after it; None at the end of the connection."""
    while b"\r\n\r\n" not in left:
        data = link.recv(1 << 14)
        if not data:
            return None
        left += data
    head, _, rest = left.partition(b"\r\n\r\n")
    return head.decode("latin-1").split("\r\n"), rest


def _answer(link: socket.socket, lines: list[str], folder: Path, limits: Limits) -> None:
    method, target, _ = lines[0].split(" ", 2)
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
    time.sleep(limits.first_byte)
    path = folder / "/".join(unquote(target.partition("?")[0]).split("/")[2:])
    if method not in ("GET", "HEAD") or not path.is_file():
        body = b"" if method == "HEAD" else _MISSING
        link.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        return
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        start, stop, status = 0, found.st_size, "200 OK"
        more = ""
        if "range" in fields:
            first, _, last = fields["range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), min(stop, int(last) + 1) if last else stop
            status, more = "206 Partial Content", f"Content-Range: bytes {start}-{stop - 1}/{found.st_size}\r\n"
        etag = hashlib.md5(f"{path}{found.st_mtime_ns}".encode(), usedforsecurity=False).hexdigest()
        head = (
            f'HTTP/1.1 {status}\r\nContent-Length: {stop - start}\r\n{more}ETag: "{etag}"\r\n'
            "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n\r\n"
        )
        link.sendall(head.encode())
        if method == "GET":
            began, sent = time.monotonic(), 0
            while start + sent < stop:
                amount = min(_SLICE, stop - start - sent)
                limits.wait(amount, began, sent)
                sent += os.sendfile(link.fileno(), file.fileno(), start + sent, amount)


def _serve(link: socket.socket, folder: Path, limits: Limits) -> None:
    left = b""
    try:
        with link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (found := _read_head(link, left)) is not None:
                lines, left = found
                _answer(link, lines, folder, limits)
    except OSError:
        return  # the client has gone


def _keep_log(path: Path, limits: Limits) -> None:
    with path.open("w") as file:
        while True:
            file.write(f"{time.monotonic():.3f} {limits.sent} {time.process_time():.3f}\n")
            file.flush()
            time.sleep(_EVERY)


def main(arguments: list[str] | None = None) -> None:
    """Serves."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.s3.shelf")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--total", type=float, default=0.0)
    parser.add_argument("--connection", type=float, default=0.0)
    parser.add_argument("--first-byte", type=float, default=0.0)
    parser.add_argument("--log", type=Path)
    args = parser.parse_args(arguments)
    limits = Limits(total=args.total, connection=args.connection, first_byte=args.first_byte)
    if args.log:
        threading.Thread(target=_keep_log, args=(args.log, limits), daemon=True).start()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()

        def accept() -> None:
            while True:
                link, _ = listener.accept()
                threading.Thread(target=_serve, args=(link, args.folder, limits), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()
        os._exit(0)


if __name__ == "__main__":
    main()
