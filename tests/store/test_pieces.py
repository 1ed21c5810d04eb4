"""Reading into memory that is used again: the same bytes, whatever breaks and whoever asks."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server
from helpers.tiny_s3 import TinyS3, error

from wdsmix.errors import WdsmixError
from wdsmix.store import ObjectReader, StoreOptions, open_store

DATA = bytes(range(251)) * 10_000
FAST = StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=1.0, tries=4)


@pytest.fixture(params=["file", "s3", "http"])
def found(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectReader]:
    """A reader of the same bytes in each kind of store."""
    if request.param == "file":
        (tmp_path / "x").write_bytes(DATA)
        yield ObjectReader(open_store(str(tmp_path), FAST), "x")
    elif request.param == "http":
        with TinyS3(lambda asked: error(416) if asked.span(len(DATA))[0] >= len(DATA) else asked.good(DATA)) as web:
            yield ObjectReader(open_store(f"{web.url}/set", FAST), "x")
    else:
        server: S3Server = request.getfixturevalue("moto")
        request.getfixturevalue("moto_proxy")
        name = server.bucket()
        server.client.put_object(Bucket=name, Key="set/x", Body=DATA)
        yield ObjectReader(open_store(f"s3://{name}/set", FAST), "x")


@pytest.fixture
def moto_proxy(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    with FaultProxy(moto.url) as proxy:
        moto.use(monkeypatch, proxy.url)
        yield proxy


def test_pieces_and_buffers(found: ObjectReader) -> None:
    for start, stop in [(0, None), (0, len(DATA)), (5, 5), (7, 8), (1000, 2_000_000), (len(DATA) - 1, None)]:
        assert b"".join(bytes(piece) for piece in found.pieces(start, stop)) == DATA[start:stop]
    buffer = bytearray(1_500_000)
    found.readinto(memoryview(buffer), 99)
    assert buffer == DATA[99 : 99 + len(buffer)]
    found.readinto(memoryview(buffer)[:0], 99)
    with pytest.raises(WdsmixError):  # there is no more
        found.readinto(memoryview(buffer), len(DATA) - 10)


@pytest.mark.parametrize("kind", ["fin", "rst", "stall"])
def test_a_connection_that_breaks(moto: S3Server, moto_proxy: FaultProxy, kind: str) -> None:
    name = moto.bucket()
    moto.client.put_object(Bucket=name, Key="set/x", Body=DATA)
    reader = ObjectReader(open_store(f"s3://{name}/set", FAST), "x")
    for _ in range(3):
        reader.read(0, 1)  # so that there is a line
    moto_proxy.faults = [Fault(kind=kind, after=700_001, seconds=3.0)]
    assert b"".join(bytes(piece) for piece in reader.pieces(1)) == DATA[1:]
    buffer = bytearray(len(DATA) - 3)
    moto_proxy.faults = [Fault(kind=kind, after=700_001, seconds=3.0), Fault(kind="503", times=2)]
    reader.readinto(memoryview(buffer), 3)
    assert buffer == DATA[3:]
    assert 4 <= reader.store.retries.count <= 5


def test_each_thread_has_its_memory(tmp_path: Path) -> None:
    """Also where one thread begins and another one goes on."""
    for k in range(6):
        (tmp_path / f"x{k}").write_bytes(bytes([k]) * 3_000_000)
    store = open_store(str(tmp_path), FAST)
    begun = [ObjectReader(store, f"x{k}").pieces() for k in range(6)]
    barrier = threading.Barrier(6, timeout=10)

    def work(k: int) -> set[int]:
        seen: set[int] = set()
        for piece in begun[k]:
            barrier.wait()  # all have read, and none has looked yet
            seen |= set(bytes(piece))
            barrier.wait()
        return seen

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, range(6))) == [{k} for k in range(6)]
