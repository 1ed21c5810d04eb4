"""S3 in particular: long listings, uploads in parts, what is never said, where the endpoint comes from."""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server

from wdsmix.errors import ConfigError, StorageError
from wdsmix.store import MissingObjectError, open_store
from wdsmix.store.s3 import S3Store
from wdsmix.store.upload import etag_of


def s3_store(url: str) -> S3Store:
    store = open_store(url)
    assert isinstance(store, S3Store)
    return store


def test_a_long_listing(server: S3Server, proxy: FaultProxy) -> None:
    name = server.bucket()
    keys = sorted(f"set/k{n:05d}{'-' * (n % 3)}" for n in range(2500))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: server.client.put_object(Bucket=name, Key=key, Body=b"1"), keys))
    proxy.faults = [Fault(kind="503", path="list-type", times=2), Fault(kind="fin", path="list-type", after=5000)]
    found = [info.key for info in open_store(f"s3://{name}/set").list()]
    assert found == [key.removeprefix("set/") for key in keys]
    assert len(proxy.seen("GET")) == 3 + 3  # pages and failed tries


def test_parts(server: S3Server, s3: S3Server, bucket: str) -> None:
    store = s3_store(f"s3://{bucket}/x")
    parts = [bytes([k]) * (5 << 20) for k in range(2)] + [b"end"]
    digests = [hashlib.md5(part).digest() for part in parts]
    upload = store.create_upload("big", {"wdsmixsha256": "ab"})
    assert store.list_parts("big", upload) == {}
    etags = [store.upload_part("big", upload, k, part, digests[k - 1]) for k, part in enumerate(parts, 1)]
    assert {k: (size, etag.strip('"')) for k, (size, etag) in store.list_parts("big", upload).items()} == {
        k: (len(part), digests[k - 1].hex()) for k, part in enumerate(parts, 1)
    }
    assert list(store.uploads()) == [("big", upload)]
    store.complete_upload("big", upload, etags)
    info = store.head("big")
    assert info.etag.strip('"') == etag_of(digests)
    assert (info.size, info.metadata["wdsmixsha256"]) == (sum(map(len, parts)), "ab")
    with pytest.raises(MissingObjectError):
        store.list_parts("big", upload + "x")
    other = store.create_upload("big", {})
    store.abort_upload("big", other)
    store.abort_upload("big", other)
    assert list(store.uploads()) == []


def test_a_lost_answer_to_the_last_request(server: S3Server, proxy: FaultProxy) -> None:
    store = s3_store(f"s3://{server.bucket()}/x")
    upload = store.create_upload("big", {})
    etag = store.upload_part("big", upload, 1, b"1", hashlib.md5(b"1").digest())
    proxy.faults = [Fault(kind="lost", method="POST", path="uploadId")]
    store.complete_upload("big", upload, [etag])
    assert store.read("big")[0] == b"1"


@pytest.mark.parametrize("call", ["head", "read", "list", "put"])
def test_a_wrong_secret(
    call: str, server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = open_store(f"s3://{server.bucket()}/x")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush/hush+hush")
    calls = {
        "head": lambda: store.head("a"),
        "read": lambda: store.read("a"),
        "list": lambda: list(store.list()),
        "put": lambda: store.put("a", b"1"),
    }
    with caplog.at_level(logging.INFO), pytest.raises(StorageError, match="the store refuses") as caught:
        calls[call]()
    assert caught.value.exit_code == 4
    assert len(proxy.log) == 1
    assert store.retries.count == 0
    assert "hush" not in caplog.text + str(caught.value) + repr(caught.value) + repr(caught.value.__cause__)


def test_no_credentials(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    moto.use(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(StorageError, match="no credentials found"):
        open_store("s3://bucket/x").head("a")
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StorageError, match="profile does not exist"):
        open_store("s3://bucket/x").head("a")


def test_the_endpoint(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    moto.use(monkeypatch)
    name = moto.bucket()
    moto.client.put_object(Bucket=name, Key="x/a", Body=b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # ours comes first
    assert open_store(f"s3://{name}/x").read("a")[0] == b"1"
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", moto.url)
    monkeypatch.delenv("WDSMIX_S3_ENDPOINT_URL")
    assert open_store(f"s3://{name}/x").read("a")[0] == b"1"
    for wrong in ("host:80", "http://user:hush@host"):
        monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", wrong)
        with pytest.raises(ConfigError, match="WDSMIX_S3_ENDPOINT_URL") as caught:
            open_store(f"s3://{name}/x").read("a")
        assert "hush" not in str(caught.value)


def test_one_client_a_process(s3: S3Server, bucket: str) -> None:
    first, second = s3_store(f"s3://{bucket}/x"), s3_store(f"s3://{bucket}/y")
    assert first._client is second._client
