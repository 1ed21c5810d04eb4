"""Stores behind plain web servers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from helpers.fault_proxy import Fault, FaultProxy

from wdsmix.errors import ConflictError, StorageError
from wdsmix.store import MissingObjectError, NotSupportedError, ObjectReader, StoreOptions, open_store

DATA = bytes(range(256)) * 8000
FAST = StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=2.0, tries=4)


class Server(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    ranges = True
    etag = '"one"'

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path != "/sets/a%20b/x.tar":
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if self.headers.get("If-Match") not in (None, type(self).etag):
            self.send_response(412)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        span = self.headers.get("Range", "") if type(self).ranges else ""
        start, _, stop = span.removeprefix("bytes=").partition("-")
        data = DATA[int(start or 0) : int(stop) + 1 if stop else None]
        self.send_response(206 if span else 200)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{int(start) + len(data) - 1}/{len(DATA)}")
        self.send_header("ETag", type(self).etag)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET


@pytest.fixture
def web() -> Iterator[tuple[FaultProxy, type[Server]]]:
    class Own(Server):
        pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Own) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        with FaultProxy(f"http://127.0.0.1:{server.server_port}") as proxy:
            yield proxy, Own
        server.shutdown()


def test_read(web: tuple[FaultProxy, type[Server]]) -> None:
    proxy, _ = web
    store = open_store(f"{proxy.url}/sets/a b", FAST)
    assert store.head("x.tar").size == len(DATA)
    reader = ObjectReader(store, "x.tar")
    proxy.faults = [Fault(kind="fin", after=500_000, times=2), Fault(kind="503")]
    assert b"".join(reader.stream()) == DATA
    assert store.retries.count == 3
    assert reader.read(10, 20) == DATA[10:20]
    with pytest.raises(MissingObjectError):
        store.head("y.tar")
    for call in (lambda: store.put("a", b""), lambda: store.delete("a"), lambda: list(store.list())):
        with pytest.raises(NotSupportedError):
            call()


def test_another_version(web: tuple[FaultProxy, type[Server]]) -> None:
    proxy, server = web
    reader = ObjectReader(open_store(f"{proxy.url}/sets/a b", FAST), "x.tar")
    assert reader.read(0, 5) == DATA[:5]
    server.etag = '"two"'
    with pytest.raises(ConflictError, match="replaced while it was read"):
        reader.read(5, 10)


def test_a_server_without_ranges(web: tuple[FaultProxy, type[Server]]) -> None:
    proxy, server = web
    server.ranges = False
    reader = ObjectReader(open_store(f"{proxy.url}/sets/a b", FAST), "x.tar")
    assert b"".join(reader.stream()) == DATA
    with pytest.raises(StorageError, match="does not serve ranges"):
        reader.read(5, 10)


def test_a_host_that_is_not_there() -> None:
    store = open_store("http://127.0.0.1:9/x", FAST)
    with pytest.raises(StorageError, match="4 tries in a row") as caught:
        store.head("a")
    assert caught.value.exit_code == 4
