"""GETs that go around boto3: what they ask, of whom, over how many connections, and what they do with odd answers."""

from __future__ import annotations

import gc
import os
import random
import socket
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.fault_proxy import FaultProxy
from helpers.s3_server import S3Server
from helpers.tiny_s3 import DATA, FAST, Request, TinyS3, check, error, reader

from wdsmix.errors import ConfigError, ConflictError, DataError, StorageError, WdsmixError
from wdsmix.store import (
    MissingObjectError,
    NotSupportedError,
    ObjectReader,
    StoreOptions,
    TransientError,
    open_store,
    s3_direct,
)
from wdsmix.store.s3 import S3Store

pytestmark = pytest.mark.usefixtures("bare")


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyS3]:
    with TinyS3() as server:
        monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", server.url)
        yield server


def ready(server: TinyS3) -> ObjectReader:
    """A reader that has a line."""
    found = reader()
    check(found, 3)
    server.log.clear()
    return found


def once(*answers: bytes | Callable[[Request], bytes]) -> Callable[[Request], bytes]:
    """Says these things first, then what it should."""
    left = list(answers)

    def answer(request: Request) -> bytes:
        if not left:
            return request.good()
        found = left.pop(0)
        return found if isinstance(found, bytes) else found(request)

    return answer


def chunked(request: Request) -> bytes:
    start, stop = request.span(len(DATA))
    status = "206 P" if "range" in request.headers else "200 OK"
    more = f"Content-Range: bytes {start}-{stop - 1}/{len(DATA)}\r\n" if "range" in request.headers else ""
    head = f'HTTP/1.1 {status}\r\n{more}ETag: "one"\r\nTransfer-Encoding: chunked\r\n\r\n{stop - start:x}\r\n'
    return head.encode() + DATA[start:stop] + b"\r\n0\r\n\r\n"


def test_ranges_go_over_one_connection(tiny: TinyS3, asked: list[bytes]) -> None:
    found = reader()
    check(found, 30)
    assert tiny.connections <= 2  # boto3's, and ours
    assert len(asked) == 28  # all but the first, and the one whose connection was taken over
    assert found.store.retries.count == 0


def test_whole_objects_do_too(tiny: TinyS3, asked: list[bytes]) -> None:
    store = open_store("s3://bucket/set", FAST)
    for _ in range(20):
        assert store.read("x")[0] == DATA
    assert tiny.connections <= 2
    assert len(asked) == 18


def test_what_boto3_sends_is_what_a_line_sends(tiny: TinyS3, asked: list[bytes]) -> None:
    """Of the same object and range: everything but the connection."""
    found = reader("a b/ü%+#?&=;:@!~'()*,$x")
    found.read(5, 6)
    for _ in range(2):
        found.read(5, 6)
    assert len(asked) == 1
    whole = [(request.target, {**request.headers, "if-match": ""}) for request in tiny.log]
    assert whole[0] == whole[1] == whole[2]


def test_a_refused_signature_is_made_anew(tiny: TinyS3, asked: list[bytes]) -> None:
    found = ready(tiny)
    found.read(0, 1)
    refused = tiny.log[-1].headers["authorization"]
    tiny.answer = lambda request: (
        error(403, "RequestTimeTooSkewed") if request.headers["authorization"] == refused else request.good()
    )
    time.sleep(1.1)  # signatures tell seconds
    tiny.log.clear()
    check(found, 4)
    assert [request.headers["authorization"] == refused for request in tiny.log] == [True] + [False] * 4
    assert found.store.retries.count == 0


@pytest.mark.parametrize(
    "answer",
    [
        error(403, "SignatureDoesNotMatch"),
        error(400, "ExpiredToken"),
        error(401),
        error(301, "PermanentRedirect", "x-amz-bucket-region: eu-west-1\r\n"),
        error(307, "TemporaryRedirect", "Location: http://127.0.0.1:9/\r\n"),
        b"HTTP/1.1 403 X\r\nTransfer-Encoding: chunked\r\n\r\n1a\r\n<Code>AccessDenied</Code>\r\n0\r\n\r\n",
        b"HTTP/1.1 403 X\r\nConnection: close\r\n\r\n<Code>AccessDenied</Code>",
    ],
)
def test_boto3_is_asked_where_a_line_is_refused(tiny: TinyS3, asked: list[bytes], answer: bytes) -> None:
    found = ready(tiny)
    tiny.answer = once(answer)
    check(found, 5)
    assert len(tiny.log) == 6
    assert found.store.retries.count == 0
    assert len(asked) >= 4


def test_a_refusal_by_boto3_too(tiny: TinyS3) -> None:
    found = ready(tiny)
    tiny.answer = lambda _: error(403, "AccessDenied")
    with pytest.raises(StorageError, match="the store refuses") as caught:
        found.read(0, 1)
    assert len(tiny.log) == 2
    no_secret(caught.value)


BUSY = b"2c\r\n<Error><Code>SlowDown</Code><X>y</X></Error>\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (error(503, "SlowDown"), "SlowDown (503)"),
        (error(500, "InternalError"), "InternalError (500)"),
        (error(429), "429"),
        (error(408), "408"),
        (b"HTTP/1.1 503 Slow Down\r\nTransfer-Encoding: chunked\r\n\r\n" + BUSY, "SlowDown (503)"),
        (b"HTTP/1.1 502 Bad Gateway\r\nConnection: close\r\n\r\n<html>", "502"),
        (b"HTTP/1.1 503 X\r\nContent-Length: 100000\r\n\r\n" + b"x" * 100_000, "503"),
        (
            b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n30d40\r\n" + b"x" * 200_000 + b"\r\n0\r\n\r\n",
            "503",
        ),
    ],
)
@pytest.mark.parametrize("by", ["line", "session"])
def test_errors_that_pass(tiny: TinyS3, asked: list[bytes], answer: bytes, said: str, by: str) -> None:
    found = ready(tiny)
    if by == "session":
        tiny.hang_up()
        time.sleep(0.05)
    del asked[:]
    tiny.answer = once(answer)
    check(found, 1)
    assert found.store.retries.counts == {f"the store answered {said}": 1}
    assert len(tiny.log) == 2
    check(found, 8)
    assert len(asked) >= 7  # lines are in use as before
    assert found.store.retries.count == 1


@pytest.mark.parametrize("by", ["line", "session"])
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (error(404, "NoSuchKey"), MissingObjectError),
        (
            b"HTTP/1.1 404 X\r\nTransfer-Encoding: chunked\r\n\r\n16\r\n<Code>NoSuchKey</Code>\r\n0\r\n\r\n",
            MissingObjectError,
        ),
        (error(404, "NoSuchBucket"), ConfigError),
        (error(412, "PreconditionFailed"), ConflictError),
        (error(416, "InvalidRange"), DataError),
        (error(501, "NotImplemented"), NotSupportedError),
    ],
)
def test_errors_that_stay(tiny: TinyS3, answer: bytes, kind: type[WdsmixError], by: str) -> None:
    found = ready(tiny)
    if by == "session":
        tiny.hang_up()
        time.sleep(0.05)
    tiny.answer = lambda _: answer
    with pytest.raises(kind) as caught:
        found.read(0, 1)
    assert len(tiny.log) == 1
    no_secret(caught.value)
    tiny.answer = Request.good
    check(found)


def test_signatures_are_old_after_some_minutes(
    tiny: TinyS3, asked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ready(tiny)
    del asked[:]
    now = time.monotonic()
    monkeypatch.setattr(s3_direct, "time", SimpleNamespace(monotonic=lambda: now + 241.0))
    found.read(0, 9)
    assert asked == []
    found.read(0, 9)
    assert len(asked) == 1


def test_so_many_objects_are_remembered(tiny: TinyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_direct, "_MOST", 3)
    store = open_store("s3://bucket/set", FAST)
    assert isinstance(store, S3Store)
    for round_ in range(2):
        for k in range(10):
            assert ObjectReader(store, f"k{k}").read(round_, 9) == DATA[round_:9]
            assert len(store._clients().direct._signed) <= 3


@pytest.mark.parametrize("more", ["X: a\r\n folded\r\n", ": nameless\r\n", "Connection: keep-alive\r\nno colon\r\n"])
def test_a_server_that_is_not_for_lines(tiny: TinyS3, asked: list[bytes], more: str) -> None:
    tiny.answer = lambda request: request.good(more=more)
    found = reader()
    check(found, 20)
    assert len(asked) <= 3
    assert found.store.retries.count == 0
    assert tiny.connections <= 5


def test_an_odd_answer_now_and_then_is_nothing(tiny: TinyS3, asked: list[bytes]) -> None:
    def some(request: Request) -> bytes:
        return b"HTTP/1.1 200 OK\r\n\r\n" if request.nth % 4 == 3 else request.good()

    tiny.answer = some
    found = reader()
    check(found, 60)
    assert len(asked) > 30
    assert found.store.retries.count == 0


def test_a_server_of_chunks(tiny: TinyS3, asked: list[bytes]) -> None:
    found = ready(tiny)
    tiny.answer = chunked
    del asked[:]
    check(found, 20)
    assert len(asked) <= 3
    assert found.store.retries.count == 0


@pytest.mark.parametrize("more", ["Connection: close\r\n", "Keep-Alive: timeout=5\r\n"])
def test_http_1_0(tiny: TinyS3, asked: list[bytes], more: str) -> None:
    tiny.answer = lambda request: request.good(more=more).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    found = reader()
    check(found, 20)
    assert len(asked) <= 3
    assert found.store.retries.count == 0


def test_connections_that_end_with_each_answer(tiny: TinyS3, asked: list[bytes]) -> None:
    found = ready(tiny)
    tiny.answer = lambda request: request.good(more="Connection: close\r\n")
    check(found, 10)
    assert found.store.retries.count == 0


@pytest.mark.parametrize("when", ["before", "after it was asked", "within the head"])
def test_a_stale_line_costs_nothing(tiny: TinyS3, when: str) -> None:
    found = ready(tiny)
    for _ in range(5):
        if when == "before":
            tiny.hang_up()
            time.sleep(0.02)
        else:

            def cut(request: Request) -> bytes:
                request.link.sendall(b"HTTP/1.1 206 P" if when == "within the head" else b"")
                return b""

            tiny.answer = once(cut)
        check(found, 2)
    assert found.store.retries.count == 0


def read_together(tiny: TinyS3, found: ObjectReader, threads: int) -> None:
    """So many reads of which none is answered before all are asked: each has a connection of its own."""
    barrier = threading.Barrier(threads, timeout=10)

    def together(request: Request) -> bytes:
        barrier.wait()
        return request.good()

    tiny.answer = together
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda _: found.read(0, 9), range(threads)))


def test_connections_that_the_network_forgot(tiny: TinyS3, asked: list[bytes]) -> None:
    """Many lines that are silent for ever cost one timeout, not one each."""
    found = reader(options=StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=0.3, tries=4))
    found.read(0, 1)
    for _ in range(2):
        read_together(tiny, found, 6)
    old = tiny.connections

    def forgotten(request: Request) -> bytes:
        if request.number <= old:
            time.sleep(1.0)
        return request.good()

    tiny.answer = forgotten
    check(found, 4)
    assert found.store.retries.count <= 2  # one of ours, one of boto3's


def test_more_than_was_asked_for_is_not_the_next_answer(tiny: TinyS3) -> None:
    evil = b'HTTP/1.1 206 P\r\nContent-Length: 9\r\nETag: "one"\r\nContent-Range: bytes 0-8/256000\r\n\r\nevil evil'
    found = ready(tiny)
    tiny.answer = lambda request: request.good() + evil
    for _ in range(10):
        assert found.read(0, 9) == DATA[:9]
        assert found.read(9, 99_000) == DATA[9:99_000]
    assert found.store.retries.count == 0


@pytest.mark.parametrize("length", ["Content-Range: bytes */5\r\nContent-Length: 1\r\n", "Content-Range: x\r\n", ""])
def test_an_answer_that_tells_no_size(tiny: TinyS3, length: str) -> None:
    body = b"1" if "Content-Length" in length else b"1\r\nx\r\n0\r\n\r\n"
    head = length + ("" if "Content-Length" in length else "Transfer-Encoding: chunked\r\n")
    tiny.answer = lambda _: b"HTTP/1.1 206 P\r\n" + head.encode() + b"\r\n" + body
    with pytest.raises(TransientError, match="does not tell the object's size"):
        reader().read(0, 1)


@pytest.mark.parametrize("unsigned", ["", "1"])
def test_public_buckets(tiny: TinyS3, asked: list[bytes], monkeypatch: pytest.MonkeyPatch, unsigned: str) -> None:
    monkeypatch.setenv("WDSMIX_S3_UNSIGNED", unsigned)
    check(reader(), 9)
    assert len(asked) == 7
    assert all(("authorization" in request.headers) is (not unsigned) for request in tiny.log)
    assert all("range" not in request.headers.get("authorization", "").lower() for request in tiny.log)


def test_an_endpoint_with_a_path(tiny: TinyS3, asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", f"{tiny.url}/gate/way")
    check(reader(), 5)
    assert len(asked) == 3
    assert {request.target for request in tiny.log} == {"/gate/way/bucket/set/x"}


def test_ipv6(asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        server = TinyS3(family=socket.AF_INET6).__enter__()
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", server.url)
        check(reader(), 5)
        assert len(asked) == 3
        assert {request.headers["host"] for request in server.log} == {f"[::1]:{server.port}"}


def test_each_host_has_its_own_lines(
    tiny: TinyS3, asked: list[bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text("[default]\ns3 =\n  addressing_style = virtual\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", f"http://S3.test:{tiny.port}")
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *more: real("127.0.0.1" if host.endswith(".test") else host, *more)
    )
    readers = [ObjectReader(open_store(f"s3://{name}-bucket/set", FAST), "x") for name in ("one", "two")]
    for k in range(8):
        for found in readers:
            check(found, 1, k)
    hosts = defaultdict(set)
    for request in tiny.log:
        hosts[request.number].add(request.headers["host"])
        assert request.target == "/set/x"
    assert sorted({name for names in hosts.values() for name in names}) == [
        f"one-bucket.s3.test:{tiny.port}",
        f"two-bucket.s3.test:{tiny.port}",
    ]
    assert all(len(names) == 1 for names in hosts.values())
    assert len(asked) == 12


NAMES = ["a b", "ü/ñ/日本", "100%", "a+b", "a#b", "a?b=c&d", "a%20b", "//a//", "a;b:c@d,e", "'(a)*!$~", 'a\\b|c"d<e>']


@pytest.mark.parametrize("name", NAMES)
def test_names_of_objects(server: S3Server, proxy: FaultProxy, asked: list[bytes], name: str) -> None:
    bucket = server.bucket()
    server.client.put_object(Bucket=bucket, Key=f"set/{name}", Body=DATA)
    found = ObjectReader(open_store(f"s3://{bucket}/set", FAST), name)
    check(found, 5)
    assert len(asked) == 3  # none was refused
    assert found.store.retries.count == 0


def test_an_endpoint_in_capitals(
    server: S3Server, proxy: FaultProxy, asked: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = server.bucket()
    server.client.put_object(Bucket=bucket, Key="set/x", Body=DATA)
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", proxy.url.replace("127.0.0.1", "LocalHost"))
    check(ObjectReader(open_store(f"s3://{bucket}/set", FAST), "x"), 5)
    assert len(asked) == 3


def test_many_threads(tiny: TinyS3, asked: list[bytes]) -> None:
    found = reader()
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda seed: check(found, 200, seed), range(32)))
    assert found.store.retries.count == 0
    assert tiny.connections <= 32 + 32  # one for each thread, and what boto3 keeps
    assert len(asked) > 32 * 190


def test_idle_lines_are_no_more_than_the_options_say(tiny: TinyS3) -> None:
    found = reader(options=StoreOptions(connections=3))
    found.read(0, 1)
    before = handles()
    read_together(tiny, found, 12)
    time.sleep(0.1)
    assert handles() <= before + 2 * 3  # both ends are of this process


def test_forked_children_have_connections_of_their_own(tiny: TinyS3) -> None:
    found = reader()
    check(found, 5)
    with ThreadPoolExecutor(4) as pool:  # so that there are lines
        list(pool.map(lambda seed: check(found, 5, seed), range(4)))
    open_one = found.stream()
    assert next(open_one) == DATA[: 1 << 18]
    children = []
    for k in (1, 2, 3):
        child = os.fork()
        if not child:
            code = 1
            try:
                for start in range(k, 100_000, 1000):
                    assert found.read(start, start + 3000) == DATA[start : start + 3000]
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    for start in range(0, 100_000, 1000):
        assert found.read(start, start + 3000) == DATA[start : start + 3000]
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    users = defaultdict(set)
    for request in tiny.log:
        start, stop = request.span(len(DATA))
        if stop - start == 3000:
            users[request.number].add(start % 1000)
    assert all(len(used) == 1 for used in users.values())
    assert {k for used in users.values() for k in used} == {0, 1, 2, 3}


def handles() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def no_secret(value: BaseException) -> None:
    """Nothing of an error, or of what it came from, tells how requests were signed."""
    seen: BaseException | None = value
    while seen is not None:
        text = f"{seen!s} {seen!r} {seen.args!r} {''.join(traceback.format_exception(seen))}"
        assert "Signature=" not in text
        assert "hush" not in text
        seen = seen.__cause__ or seen.__context__


def test_no_signature_in_a_repr(tiny: TinyS3) -> None:
    store = open_store("s3://bucket/set", FAST)
    assert isinstance(store, S3Store)
    check(ObjectReader(store, "x"))
    direct = store._clients().direct
    for thing in (direct, direct._signed, vars(direct), direct._here.last, store, vars(store)):
        assert "Signature=" not in repr(thing)
        assert "hush" not in repr(thing)


def truncated(request: Request) -> bytes:
    request.link.sendall(request.good()[:-1])
    return b""


def half_a_head(request: Request) -> bytes:
    request.link.sendall(request.good()[:20])
    return b""


FAILURES: list[Any] = [
    lambda _: error(503, "SlowDown"),
    lambda _: error(404, "NoSuchKey"),
    lambda _: error(403, "AccessDenied"),
    lambda _: b"HTTP/1.1 503 X\r\nContent-Length: 70000\r\n\r\n" + b"x" * 70_000,
    lambda _: b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n" + BUSY,
    lambda _: b"HTTP/1.1 206 P\r\nContent-Length: 3\r\n\r\n123",
    lambda _: b"HTTP/1.1 206 P\r\nContent-Length: 3\r\nContent-Range: none\r\n\r\n123",
    lambda _: b"HTTP/1.1 206 P\r\nContent-Length: 3\r\nContent-Range: bytes 5-7/256000\r\n\r\n123",
    lambda request: request.good(etag='"two"'),
    lambda request: request.good(DATA[:-1]),
    lambda _: b"",
    half_a_head,
    truncated,
]


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_failing_requests_leave_nothing_open(tiny: TinyS3) -> None:
    options = StoreOptions(tries=1, pause=0.0)
    found = reader(options=options)
    check(found)
    before = handles()
    failed = 0
    for k in range(1000):
        tiny.answer = FAILURES[k % len(FAILURES)]
        try:
            found.read(k, k + 9)
        except WdsmixError as error:
            failed += 1
            if k < 50:
                no_secret(error)
        if k % 7 == 0:  # new lines
            tiny.answer = Request.good
            check(found, 1)
    assert failed > 900
    time.sleep(0.1)
    assert handles() <= before + 6  # boto3's and ours, both ends


def test_whatever_the_server_does_the_bytes_are_right(tiny: TinyS3, asked: list[bytes]) -> None:
    some = random.Random(3)
    odd = [
        *(FAILURES[k] for k in (0, 3, 4, 6, 10, 11, 12)),
        chunked,
        lambda request: request.good() + b"HTTP/1.1 206 P\r\nContent-Length: 4\r\n\r\nevil",
        lambda request: request.good(more="Connection: close\r\n"),
        lambda request: request.good(more=": nameless\r\n"),
        lambda _: error(403, "ExpiredToken"),
        lambda request: time.sleep(0.4) or request.good(),
        slowly,
    ]
    tiny.answer = lambda request: some.choice(odd)(request) if some.random() < 0.3 else request.good()
    found = reader(options=StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=0.2, tries=30))

    refused: list[str] = []

    def work(seed: int) -> None:
        left = 30
        while left:
            try:
                check(found, 1, 100 * seed + left)
                left -= 1
            except StorageError as error:  # boto3 was asked, and refused too
                refused.append(str(error))

    with ThreadPoolExecutor(12) as pool:
        list(pool.map(work, range(12)))
    assert all("the store refuses" in said for said in refused)
    assert len(asked) > 100
    assert found.store.retries.count > 20
    assert tiny.connections < 600


def slowly(request: Request) -> bytes:
    answer = request.good()
    for at in range(0, 200, 7):
        request.link.sendall(answer[at : min(at + 7, 200)])
    return answer[200:]
