"""What every store does alike: folders, S3 by boto3, S3 by obstore (as Google and Azure go)."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from helpers.s3_server import S3Server
from helpers.store_fixtures import S3_BY_OBSTORE
from torch.utils.data import DataLoader

from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.store import MissingObjectError, ObjectReader, PreconditionError, Store, open_store
from wdsmix.store.local import LocalStore
from wdsmix.store.obstores import ObstoreStore
from wdsmix.store.versions import require_conditions

KINDS = ["folder", "boto3", "obstore"]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, tmp_path: Path, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    if request.param == "folder":
        return open_store(tmp_path / "store")
    url = f"s3://{s3.bucket()}/some/place"
    if request.param == "boto3":
        return open_store(url + "/")
    if "rados" in request.node.callspec.params.values():
        pytest.skip("Ceph takes If-Match without quotes only; obstore quotes, and s3:// does not go by it")
    return obstore_of(url, s3, monkeypatch)


def obstore_of(
    url: str, server: S3Server, monkeypatch: pytest.MonkeyPatch, endpoint: str | None = None
) -> ObstoreStore:
    pytest.importorskip("obstore")
    for name, value in {**S3_BY_OBSTORE, "AWS_ENDPOINT_URL": endpoint or server.url}.items():
        monkeypatch.setenv(name, value)
    return ObstoreStore(url)


def test_write_read_list_remove(store: Store) -> None:
    assert list(store.list()) == []
    etag = store.put("a/one", b"hello", metadata={"wdsmixsha256": "00"})
    store.put("a/two", b"")
    store.put("b", bytes(100_000))
    assert store.read("a/one")[0] == b"hello"
    assert store.read("a/two")[0] == b""
    info = store.head("a/one")
    assert (info.key, info.size, info.etag) == ("a/one", 5, etag)
    assert info.modified > 1e9
    assert isinstance(store, LocalStore) or info.metadata["wdsmixsha256"] == "00"
    assert [(found.key, found.size) for found in store.list()] == [("a/one", 5), ("a/two", 0), ("b", 100_000)]
    assert [found.key for found in store.list("a/")] == ["a/one", "a/two"]
    assert [found.key for found in store.list("a/o")] == ["a/one"]
    assert [found.key for found in store.child("a").list()] == ["one", "two"]
    assert store.child("a").read("one")[0] == b"hello"
    store.delete("a/one")
    store.delete("a/one")
    for ask in (store.head, store.read):
        with pytest.raises(MissingObjectError, match="there is no such"):
            ask("a/one")
    with pytest.raises(DataError, match="too large"):
        store.read("b", limit=99_999)


def test_conditions(store: Store) -> None:
    etag = store.put("x", b"1", if_absent=True)
    with pytest.raises(PreconditionError):
        store.put("x", b"2", if_absent=True)
    assert store.read("x")[0] == b"1"
    assert store.head("x").etag == etag
    newer = store.put("x", b"2", if_match=etag)
    with pytest.raises(PreconditionError) as caught:
        store.put("x", b"3", if_match=etag)
    assert caught.value.exit_code == 3
    assert store.read("x")[0] == b"2"
    store.put("x", b"4", if_match=newer)
    assert store.read("x")[0] == b"4"
    require_conditions(store)
    assert [info.key for info in store.list()] == ["x"]


def test_a_reader_stays_on_its_version(store: Store) -> None:
    data = bytes(range(256)) * 4000
    store.put("x", data)
    reader = ObjectReader(store, "x", size=len(data))
    assert reader.read(3, 9) == data[3:9]
    assert b"".join(bytes(part) for part in reader.ranged(100, 900_000, part=100_000)) == data[100:900_000]
    store.put("x", data[::-1])
    with pytest.raises(ConflictError, match="replaced while it was read"):
        reader.read(3, 9)


def test_files(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(300_000))
    store.put_file("x", path)
    assert store.read("x")[0] == bytes(300_000)


def test_pickles_hold_no_secret(store: Store, s3: S3Server) -> None:
    store.put("x", b"1")
    data = pickle.dumps(store)
    assert s3.secret_key.encode() not in data
    assert s3.secret_key not in repr(store) + store.identity + str(vars(store))
    assert pickle.loads(data).read("x")[0] == b"1"


def test_a_store_keeps_to_its_folder(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for key in ("../x", "a/../../x", "/etc/passwd", "a//b", ""):
        with pytest.raises(DataError, match="not a key"):
            store.put(key, b"1")


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_dataloader_workers(method: str, moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.store_dataset import StoreDataset

    moto.use(monkeypatch)
    url = f"s3://{moto.bucket()}/x"
    stores: list[Store] = [open_store(url), obstore_of(url, moto, monkeypatch)]
    stores[0].put("key", b"hello")
    assert [store.read("key")[0] for store in stores] == [b"hello"] * 2  # so that the parent has used both
    environment = {**moto.environment(), **S3_BY_OBSTORE, "AWS_ENDPOINT_URL": moto.url}
    loader = DataLoader(
        StoreDataset(stores, "key", environment),
        batch_size=None,
        num_workers=2,
        multiprocessing_context=method,
        timeout=60,
    )
    first, second = list(loader)
    assert first == b"hello"
    if method == "fork":  # obstore would hang there
        assert second.startswith("ConfigError: ")
        assert "forkserver" in second
    else:
        assert second == b"hello"


def test_obstore_resumes_and_gives_up(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers.fault_proxy import Fault, FaultProxy

    monkeypatch.setenv("WDSMIX_STORE_TRIES", "3")
    moto.use(monkeypatch)
    name = moto.bucket()
    data = bytes(range(256)) * 20_000
    moto.client.put_object(Bucket=name, Key="x/key", Body=data)
    with FaultProxy(moto.url) as proxy:
        store = obstore_of(f"s3://{name}/x", moto, monkeypatch, proxy.url)
        proxy.faults = [Fault(kind="fin", after=2_000_000), Fault(kind="503")]
        assert store.read("key")[0] == data
        assert store.retries.count in (1, 2)
        proxy.faults = [Fault(kind="503", times=100)]
        with pytest.raises(Exception, match="3 tries in a row") as caught:
            store.read("key")
        assert getattr(caught.value, "exit_code", 0) == 4
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush")
        proxy.faults, proxy.log = [], []
        with pytest.raises(Exception, match="the store refuses") as caught:
            ObstoreStore(f"s3://{name}/x").read("key")
        assert "hush-hush" not in str(caught.value)
        assert len(proxy.log) == 1


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("ftp://host/x", "unknown kind of URL"),
        ("s3://", "names no bucket"),
        ("s3:///x", "names no bucket"),
        ("s3://key:hush@bucket/x", "user, password"),
        ("https://host/x?token=hush", "query"),
        ("https://host:hush/x", "not a URL"),
        ("s3://bucket/a/../b", r"\. or \.\."),
        ("file://host/x", "names no host"),
        ("s3:bucket/x", "neither a path nor a URL"),
        ("s3:/bucket/x", "neither a path nor a URL"),
    ],
)
def test_urls_that_are_none(url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


def test_urls() -> None:
    assert open_store("s3://bucket//a//b/").url == "s3://bucket/a/b"
    assert open_store("file:///tmp/a%20b/").url == "/tmp/a b"
    assert open_store("https://host:8080/sets/").url == "https://host:8080/sets"
    assert open_store("sets/lift").url == str(Path("sets/lift").absolute())
    assert open_store("gs://bucket/x").url == "gs://bucket/x"  # no request, no client yet
