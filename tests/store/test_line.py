"""A `Line` against servers that say all sorts of things, byte by byte."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wdsmix.store.line import IdleLines, Line, OddAnswerError

PLAIN = b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nETag: x\r\n\r\n"
ASKED = b"GET / HTTP/1.1\r\n\r\n"


@contextmanager
def pair(timeout: float = 5.0, *, tcp: bool = False) -> Iterator[tuple[Line, socket.socket]]:
    """A line, and the server's end of it."""
    if tcp:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs, _ = listener.accept()
    else:
        ours, theirs = socket.socketpair()
    line = Line(ours, timeout)
    try:
        with theirs:
            yield line, theirs
    finally:
        line.close()


def received(line: Line, size: int = 1 << 16) -> bytes:
    """All of a body."""
    parts = []
    buffer = bytearray(size)
    while count := line.readinto(memoryview(buffer)):
        parts.append(bytes(buffer[:count]))
    return b"".join(parts)


def answered(line: Line) -> bytes:
    """The body of an answer."""
    line.ask(ASKED)
    return received(line)


def meanwhile(what: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=what, daemon=True)
    thread.start()
    return thread


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.lists(st.integers(0, 400), max_size=4),
    body=st.binary(max_size=200),
    buffer=st.integers(1, 300),
)
def test_an_answer_split_anywhere(cuts: list[int], body: bytes, buffer: int) -> None:
    whole = PLAIN % len(body) + body
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]

    def send() -> None:
        for a, b in itertools.pairwise(places):
            theirs.sendall(whole[a:b])
            time.sleep(0.0005)

    with pair() as (line, theirs):
        for _ in range(2):  # the second answer over the same line
            thread = meanwhile(send)
            answer = line.ask(ASKED)
            assert (answer.status, answer.headers["etag"], answer.length) == (206, "x", len(body))
            assert received(line, buffer) == body
            assert line.left == 0
            thread.join()
            assert line.lasts
            assert line.is_open()
            assert theirs.recv(100) == ASKED


def test_a_body_fills_the_buffer_at_once() -> None:
    body = os.urandom(3_000_000)

    def send() -> None:
        theirs.sendall(PLAIN % len(body))
        for at in range(0, len(body), 100_000):
            theirs.sendall(body[at : at + 100_000])

    with pair(tcp=True) as (line, theirs):
        meanwhile(send)
        line.ask(ASKED)
        got = memoryview(bytearray(1 << 21))
        assert line.readinto(got) == 1 << 21
        assert line.readinto(got[: 1 << 21]) == len(body) - (1 << 21)
        assert line.readinto(got) == 0


@pytest.mark.parametrize(
    ("head", "lasts"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n", True),
        (b"HTTP/1.1 200 OK\r\nCONTENT-LENGTH:1\r\nConnection: Keep-Alive\r\n", True),
        (b"HTTP/1.1 200\r\nContent-Length: 01\r\n", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nConnection: Close\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nconnection: x, close\r\n", False),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 1\r\nX: \xe9\r\n", True),
    ],
)
def test_heads_that_will_do(head: bytes, lasts: bool) -> None:
    with pair() as (line, theirs):
        theirs.sendall(head + b"\r\n1")
        assert line.ask(ASKED).length == 1
        assert received(line) == b"1"
        assert line.is_open() is lasts


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n",
        b"HTTP/2 200 OK\r\nContent-Length: 1\r\n",
        b"http/1.1 200 OK\r\nContent-Length: 1\r\n",
        b"SSH-2.0-OpenSSH_9.2",
        b"\0",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 204 No Content\r\n",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 20 OK\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 two OK\r\nContent-Length: 1\r\n",
        "HTTP/1.1 ²00 OK\r\nContent-Length: 1\r\n".encode("latin-1"),
        b"HTTP/1.1\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: +1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1_0\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\ncontent-length: 2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 19 + b"\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length : 1\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nwithout colon\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\r\n folded\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\nY: b\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: a\rY: b\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n: b\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nX: " + b"x" * (1 << 15) + b"\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n",  # and a byte of a body
    ],
)
def test_heads_that_will_not_do(head: bytes) -> None:
    with pair() as (line, theirs):
        meanwhile(lambda: theirs.sendall(head + b"\r\n1"))
        began = time.monotonic()
        with pytest.raises(OddAnswerError):
            line.ask(ASKED)
        assert time.monotonic() - began < 2.0  # at once, not when nothing comes any more


@pytest.mark.parametrize(("status", "told"), [(200, 200), (206, 206), (204, 204), (100, 100)])
def test_an_odd_answer_tells_its_status(status: int, told: int) -> None:
    with pair() as (line, theirs):
        theirs.sendall(b"HTTP/1.1 %d X\r\nTransfer-Encoding: chunked\r\n\r\n" % status)
        with pytest.raises(OddAnswerError) as caught:
            line.ask(ASKED)
    assert caught.value.status == told


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nConte"])
@pytest.mark.parametrize("reset", [False, True])
def test_closed_before_the_head_is_there(said: bytes, reset: bool) -> None:
    with pair(tcp=True) as (line, theirs):
        theirs.sendall(said)
        if reset:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        with pytest.raises(OSError):
            line.ask(ASKED)


@pytest.mark.parametrize("said", [PLAIN % 10, PLAIN % 10 + b"12345"])
def test_closed_before_the_body_is_there(said: bytes) -> None:
    with pair() as (line, theirs):
        theirs.sendall(said)
        theirs.shutdown(socket.SHUT_WR)
        line.ask(ASKED)
        assert received(line) == said[len(PLAIN % 10) :]
        assert line.left == 10 - len(said[len(PLAIN % 10) :])
        assert not line.is_open()


def test_a_reset_in_the_body_keeps_what_came() -> None:
    with pair(tcp=True) as (line, theirs):
        theirs.sendall(PLAIN % 10)
        line.ask(ASKED)
        theirs.sendall(b"12345")
        buffer = memoryview(bytearray(3))
        assert line.readinto(buffer) == 3
        theirs.recv(100)
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        theirs.close()
        with pytest.raises(ConnectionResetError):
            received(line, 3)


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nConte", PLAIN % 10])
def test_silence(said: bytes) -> None:
    with pair(0.1, tcp=True) as (line, theirs):
        theirs.sendall(said)
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            answered(line)
        assert 0.05 < time.monotonic() - began < 2.0


@pytest.mark.parametrize("tcp", [False, True])
def test_silence_within_the_body_gives_what_came(tcp: bool) -> None:
    with pair(0.1, tcp=tcp) as (line, theirs):
        theirs.sendall(PLAIN % 10 + b"12")
        line.ask(ASKED)
        theirs.sendall(b"345")
        buffer = memoryview(bytearray(10))
        assert line.readinto(buffer) == 5
        assert bytes(buffer[:5]) == b"12345"
        with pytest.raises(TimeoutError):
            line.readinto(buffer)


def test_a_tiny_timeout_is_not_for_ever() -> None:
    with pair(1e-9) as (line, _), pytest.raises(TimeoutError):
        line.ask(ASKED)


def test_more_than_was_announced() -> None:
    with pair() as (line, theirs):
        theirs.sendall(PLAIN % 3 + b"123HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        with pytest.raises(OddAnswerError):
            line.ask(ASKED)
    with pair() as (line, theirs):
        theirs.sendall(PLAIN % 3)
        line.ask(ASKED)
        theirs.sendall(b"123HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        assert received(line) == b"123"
        assert not line.is_open()  # so it is not asked again


@pytest.mark.parametrize(
    ("head", "body", "found", "lasts"),
    [
        (b"Content-Length: 6\r\n", b"<Code>", b"<Code>", True),
        (b"Content-Length: 0\r\n", b"", b"", True),
        (b"Content-Length: 6\r\nConnection: close\r\n", b"<Code>", b"<Code>", False),
        (b"Content-Length: 9000\r\n", b"<Code>", b"", False),
        (b"Transfer-Encoding: chunked\r\n", b"6\r\n<Code>\r\n0\r\n\r\n", b"6\r\n<Code>\r\n0\r\n\r\n", False),
        (b"", b"<Code>", b"<Code>", False),
    ],
)
def test_the_reason_of_an_error(head: bytes, body: bytes, found: bytes, lasts: bool) -> None:
    with pair() as (line, theirs):

        def send() -> None:
            theirs.sendall(b"HTTP/1.1 503 X\r\n" + head + b"\r\n" + body[:2])
            time.sleep(0.05)
            theirs.sendall(body[2:])
            if not head:
                theirs.shutdown(socket.SHUT_WR)

        thread = meanwhile(send)
        assert line.ask(ASKED).status == 503
        began = time.monotonic()
        assert line.reason(8000) == found
        assert time.monotonic() - began < 2.0
        assert line.lasts is lasts
        thread.join()


def test_a_reason_that_never_ends() -> None:
    with pair(tcp=True) as (line, theirs):

        def send() -> None:
            try:
                theirs.sendall(b"HTTP/1.1 503 X\r\n\r\n" + b"x" * 10_000_000)
            except OSError:
                return

        thread = meanwhile(send)
        line.ask(ASKED)
        assert len(line.reason(8000)) < 100_000
        line.close()
        thread.join()


def test_a_reason_that_breaks_off() -> None:
    with pair() as (line, theirs):
        theirs.sendall(b"HTTP/1.1 503 X\r\nContent-Length: 100\r\n\r\n<Code>")
        theirs.shutdown(socket.SHUT_WR)
        line.ask(ASKED)
        assert line.reason(8000)[:6] == b"<Code>"
        assert not line.lasts


def test_idle_lines() -> None:
    idle = IdleLines(2)
    ends = [socket.socketpair() for _ in range(4)]
    lines = [Line(ours, 1.0) for ours, _ in ends]
    idle.keep("a", lines[0])
    idle.keep("a", lines[1])
    idle.keep("a", lines[2])  # one too many
    idle.keep("b", lines[3])
    assert ends[2][1].recv(1) == b""
    ends[1][1].close()  # the server closes one that waits
    assert idle.take("c") is None
    assert idle.take("b") is lines[3]
    assert idle.take("b") is None
    assert idle.take("a") is lines[0]
    assert idle.take("a") is None
    idle.keep("a", lines[0])
    idle.close("a")
    assert ends[0][1].recv(1) == b""
    assert idle.take("a") is None
    lines[3].close()
    for _, theirs in ends:
        theirs.close()


def test_threads_never_get_the_same_line() -> None:
    idle = IdleLines(8)
    ends = [socket.socketpair() for _ in range(8)]
    for ours, _ in ends:
        idle.keep("a", Line(ours, 1.0))
    held: set[int] = set()
    clashes = []

    def use() -> None:
        for _ in range(2000):
            line = idle.take("a")
            if line is not None:
                clashes.extend([line] if id(line) in held else [])
                held.add(id(line))
                held.discard(id(line))
                idle.keep("a", line)

    threads = [meanwhile(use) for _ in range(6)]
    for thread in threads:
        thread.join()
    assert clashes == []
    idle.close("a")
    for _, theirs in ends:
        assert theirs.recv(1) == b""  # none got lost
        theirs.close()


def test_nothing_stays_open() -> None:
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for said in (b"HTTP/1.0 200 OK\r\n\r\n", b"", PLAIN % 9) * 100:
        with pair() as (line, theirs):
            theirs.sendall(said)
            theirs.close()
            with contextlib.suppress(OddAnswerError, OSError):
                answered(line)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
