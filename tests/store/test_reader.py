"""Reading through a network that breaks: every row of the fault table, and what went over the wire."""

from __future__ import annotations

import hashlib
import os
import random

import pytest
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server

from wdsmix.errors import ConflictError, DataError, StorageError
from wdsmix.store import ObjectReader, StoreOptions, open_store

SIZE = 6_000_000
FAST = StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=1.0)


@pytest.fixture
def data() -> bytes:
    return random.Random(7).randbytes(SIZE)


@pytest.fixture
def reader(server: S3Server, proxy: FaultProxy, data: bytes) -> ObjectReader:
    name = server.bucket()
    server.client.put_object(Bucket=name, Key="set/shard.tar", Body=data)
    return ObjectReader(open_store(f"s3://{name}/set", FAST), "shard.tar", size=SIZE)


def fetched(reader: ObjectReader) -> str:
    return hashlib.sha256(b"".join(reader.stream())).hexdigest()


@pytest.mark.parametrize("kind", ["fin", "rst"])
@pytest.mark.parametrize("times", [1, 5])
def test_a_cut_resumes_at_the_byte(reader: ObjectReader, proxy: FaultProxy, data: bytes, kind: str, times: int) -> None:
    proxy.faults = [Fault(kind=kind, after=1_000_000, times=times)]
    assert fetched(reader) == hashlib.sha256(data).hexdigest()
    gets = proxy.seen("GET")
    assert len(gets) == times + 1
    assert gets[0].range == ""
    starts = [int(get.range.removeprefix("bytes=").split("-")[0]) for get in gets[1:]]
    assert starts == sorted(starts)
    if kind == "fin":  # a reset may take what the system had not handed over yet
        assert starts == [1_000_000 * (k + 1) for k in range(times)]
        assert sum(get.sent for get in gets) == SIZE
    assert reader.store.retries.count == times


def test_five_times_503(reader: ObjectReader, proxy: FaultProxy, data: bytes) -> None:
    proxy.faults = [Fault(kind="503", times=5)]
    assert fetched(reader) == hashlib.sha256(data).hexdigest()
    assert len(proxy.seen("GET")) == 6
    assert reader.store.retries.counts == {"the store answered SlowDown (503)": 5}


def test_tries_without_progress_end(reader: ObjectReader, proxy: FaultProxy) -> None:
    proxy.faults = [Fault(kind="503", times=1000)]
    with pytest.raises(StorageError, match=r"SlowDown \(503\), 8 tries in a row") as caught:
        fetched(reader)
    assert caught.value.exit_code == 4
    assert len(proxy.seen("GET")) == 8


def test_progress_starts_the_count_anew(reader: ObjectReader, proxy: FaultProxy, data: bytes) -> None:
    proxy.faults = [Fault(kind="fin", after=200_000, times=20)]
    assert fetched(reader) == hashlib.sha256(data).hexdigest()
    assert len(proxy.seen("GET")) == 21


def test_a_stall_of_half_a_minute_ends_after_the_timeout(reader: ObjectReader, proxy: FaultProxy, data: bytes) -> None:
    stall = Fault(kind="stall", after=1_000_000, seconds=30.0)
    proxy.faults = [stall]
    assert fetched(reader) == hashlib.sha256(data).hexdigest()
    assert not stall.over  # it was not waited for
    first, second = proxy.seen("GET")
    assert first.sent == 1_000_000
    assert second.range == f"bytes={3 << 18}-{SIZE - 1}"  # whole chunks count
    assert reader.store.retries.counts == {"the server went silent": 1}


@pytest.mark.parametrize("mode", ["stream", "ranged"])
def test_an_object_swapped_in_between(
    reader: ObjectReader, proxy: FaultProxy, server: S3Server, data: bytes, mode: str
) -> None:
    bucket = reader.store.url.split("/")[2]

    def swap() -> None:
        server.client.put_object(Bucket=bucket, Key="set/shard.tar", Body=data[::-1])

    proxy.faults = [Fault(kind="fin", after=1_000_000, then=swap)]
    parts = reader.stream() if mode == "stream" else reader.ranged(part=2_000_000, depth=2)
    with pytest.raises(ConflictError, match="replaced while it was read"):
        b"".join(bytes(part) for part in parts)


def test_ranged_gives_the_same_bytes(reader: ObjectReader, proxy: FaultProxy, data: bytes) -> None:
    proxy.faults = [Fault(kind="fin", after=300_000, times=2), Fault(kind="503", times=2)]
    assert b"".join(bytes(part) for part in reader.ranged(part=1_000_000, depth=3)) == data
    assert b"".join(bytes(part) for part in reader.ranged(777, 2_222_222, part=500_000)) == data[777:2_222_222]
    assert b"".join(bytes(part) for part in reader.ranged(5, 5)) == b""


def test_parts_of_an_object(reader: ObjectReader, data: bytes) -> None:
    assert reader.read(10, 20) == data[10:20]
    assert reader.read(SIZE - 3) == data[-3:]
    assert reader.read(5, 5) == b""
    buffer = bytearray(1000)
    reader.readinto(memoryview(buffer), 4000)
    assert bytes(buffer) == data[4000:5000]


def test_the_length_must_be_the_manifests(reader: ObjectReader) -> None:
    with pytest.raises(DataError, match="not as long as it should be"):
        ObjectReader(reader.store, reader.key, size=SIZE + 1).read()
    with pytest.raises(DataError, match="shorter than it should be"):
        ObjectReader(reader.store, reader.key).read(SIZE + 5, SIZE + 10)


def test_leaving_a_stream_lets_go_of_the_connection(reader: ObjectReader, data: bytes) -> None:
    for _ in range(70):  # more than the pool holds
        stream = reader.stream()
        assert next(stream)[:10] == data[:10]
        stream.close()


def test_a_forked_child_reads(reader: ObjectReader, data: bytes) -> None:
    assert reader.read(0, 10) == data[:10]
    child = os.fork()
    if child == 0:
        os._exit(0 if reader.read(10, 20) == data[10:20] else 1)
    assert os.waitpid(child, 0)[1] == 0
