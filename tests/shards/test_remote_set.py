"""ShardSet by URL: the set that it is on a disk; and stock tars in a store, as webdataset reads them."""

from __future__ import annotations

import http.server
import pickle
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.damage import flip
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server
from helpers.sets import toy_set
from helpers.store_fixtures import S3_BY_OBSTORE
from helpers.stored import heavy_set
from helpers.streaming import copy_up
from torch.utils.data import DataLoader

from wdsmix import ShardSet
from wdsmix.cli import main
from wdsmix.errors import ConfigError, ConflictError, DataError, StorageError
from wdsmix.shards.stock import stream_webdataset
from wdsmix.store.obstores import ObstoreStore


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WDSMIX_CACHE_DIR", str(tmp_path / "cache"))
    toy_set(tmp_path / "toy")
    return tmp_path / "toy"


def same(one: ShardSet, other: ShardSet) -> None:
    assert len(one) == len(other)
    assert one.stats == other.stats
    for found, wanted in zip(one, other, strict=True):
        assert found.key == wanted.key
        assert found.extras == wanted.extras
        assert found.images.keys() == wanted.images.keys()
        assert all(np.array_equal(found.images[slot], wanted.images[slot]) for slot in found.images)
        assert all(np.array_equal(found.vectors[name], wanted.vectors[name]) for name in found.vectors)
    for found, wanted in zip(one.episodes("train"), other.episodes("train"), strict=True):
        assert found.episode == wanted.episode
        assert np.array_equal(found.images["cam0"], wanted.images["cam0"])


def test_a_set_by_url_is_the_set(toy: Path, url: str, proxy: FaultProxy) -> None:
    local, opened = ShardSet(toy), ShardSet(url)
    assert [entry.path.rpartition("/")[2] for entry in proxy.log] == ["latest.json", "manifest.json", "index.parquet"]
    assert str(opened.path) == f"{url}/v-{local.digest[:12]}"
    assert opened.digest == local.digest
    same(opened, local)
    names = [entry.path.rpartition("/")[2] for entry in proxy.seen("GET", ".arrow")]
    assert sorted(names) == ["train-00000.frames.arrow", "train-00001.frames.arrow", "val-00000.frames.arrow"]
    assert opened.episode(2).episode == 2
    assert opened.episode("file1.hdf5/demo_1").source_episode == "demo_1"
    with pytest.raises(ConfigError, match="no such episode") as caught:
        opened.episode("nobody")
    assert caught.value.path == str(opened.path)
    proxy.log.clear()
    same(ShardSet(f"{url}/v-{local.digest[:12]}"), local)
    assert [entry.path.rpartition("/")[2] for entry in proxy.log] == ["manifest.json"]  # the rest is on the disk
    some = ShardSet(f"{url}/train-{{00000..00001}}.tar")
    assert len(some) == 14
    assert len(ShardSet(url, shards=["val-00000"])) == 6


def test_copies_stay_on_the_version(toy: Path, url: str, tmp_path: Path, proxy: FaultProxy) -> None:
    opened = ShardSet(url)
    frozen = pickle.dumps(opened)
    heavy_set(tmp_path / "other", [1000])
    assert main(["push", str(tmp_path / "other"), url, "--quiet"]) == 0
    proxy.log.clear()
    copy = pickle.loads(frozen)
    same(copy, ShardSet(toy))
    assert not [entry for entry in proxy.log if entry.path.endswith(("latest.json", "manifest.json"))]
    assert ShardSet(url).manifest.name == "heavy0"
    assert len(ShardSet(url, digest=opened.digest)) == len(opened)
    with pytest.raises(ConflictError, match="has changed"):
        ShardSet(url, digest="0" * 64)


def test_a_set_that_was_copied_up(toy: Path, server: S3Server, proxy: FaultProxy) -> None:
    bucket = server.bucket()
    copy_up(server.client, toy, bucket, "deep/er")
    opened = ShardSet(f"s3://{bucket}/deep/er/")
    same(opened, ShardSet(toy))
    same(pickle.loads(pickle.dumps(opened)), opened)
    with pytest.raises(ConfigError, match="no shard set"):
        ShardSet(f"s3://{bucket}/deep")


def test_damage_is_named(toy: Path, server: S3Server, proxy: FaultProxy) -> None:
    bucket = server.bucket()
    flip(toy / "train-00000.tar", 700)
    flip(toy / "train-00001.frames.arrow", 900)
    flip(toy / "stats.json", 10)
    copy_up(server.client, toy, bucket, "bad")
    opened = ShardSet(f"s3://{bucket}/bad")
    with pytest.raises(DataError, match="checksum") as caught:
        opened.frame(0)
    assert caught.value.path == f"s3://{bucket}/bad/train-00000.tar"
    assert "offset 0, sample 000000_000000" in caught.value.where
    assert len(proxy.seen("GET", "train-00000.tar")) == 2
    with pytest.raises(DataError, match=r"train-00001.frames.arrow: damaged.*twice"):
        opened.frame(8)
    with pytest.raises(DataError, match=r"s3://.*stats.json: damaged"):
        _ = opened.stats
    server.client.put_object(Bucket=bucket, Key="bad/index.parquet", Body=b"short")
    with pytest.raises(DataError, match="not as long"):
        ShardSet(f"s3://{bucket}/bad", cache_dir=toy.parent / "other")


def test_a_refused_secret_is_said_at_once(url: str, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(StorageError, match="refuses"):
        ShardSet(url)
    assert len(proxy.log) == 1


def test_commands_take_urls(
    toy: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["inspect", url]) == 0
    assert "20 frames" in capsys.readouterr().out
    assert main(["mix", "init", url, str(toy), "--out", "m.yaml"]) == 0
    assert f'"{url}"' in (tmp_path / "m.yaml").read_text()
    assert main(["mix", "plan", "m.yaml"]) == 0
    assert "fetched more than once" not in "".join(capsys.readouterr())
    Path("small.yaml").write_text(Path("m.yaml").read_text() + "cache_limit: 1kB\n")
    assert main(["mix", "plan", "small.yaml"]) == 0
    assert "of sets in stores: frames will be fetched more than once" in capsys.readouterr().out
    assert main(["mix", "run", "m.yaml", "--steps", "4", "--batch-size", "4", "--json"]) == 0


@pytest.mark.parametrize("connections", [1, 3])
def test_stock_tars_are_streamed_through_our_store(
    toy: Path, server: S3Server, proxy: FaultProxy, tmp_path: Path, connections: int
) -> None:
    heavy_set(tmp_path / "heavy", [400_000] * 4)
    bucket = server.bucket()
    copy_up(server.client, tmp_path / "heavy", bucket, "h")
    expected = [(sample["__key__"], sample["cam0.jpg"]) for sample in ShardSet(tmp_path / "heavy").webdataset()]
    proxy.faults += [
        Fault(kind="fin", after=100_000, times=2, path=".tar"),
        Fault(kind="rst", after=50_000, path=".tar"),
    ]
    stream = stream_webdataset(f"s3://{bucket}/h/train-{{00000..00003}}.tar", connections=connections)
    assert [(sample["__key__"], sample["cam0.jpg"]) for sample in stream] == expected
    assert sum(entry.fault != "" for entry in proxy.log) == 3
    assert [(s["__key__"], s["cam0.jpg"]) for s in ShardSet(f"s3://{bucket}/h").webdataset("train")] == expected
    loader = DataLoader(pickle.loads(pickle.dumps(stream)), batch_size=None, num_workers=2)
    assert sorted((sample["__key__"], sample["cam0.jpg"]) for sample in loader) == sorted(expected)
    with pytest.raises(StorageError):
        list(stream_webdataset([f"s3://{bucket}/h/nothing.tar"]))
    with pytest.raises(ConfigError, match="cache"):
        stream_webdataset(f"s3://{bucket}/h/train-00000.tar", cache_dir=str(tmp_path))
    with pytest.raises(ConfigError, match="connection"):
        stream_webdataset(f"s3://{bucket}/h/train-00000.tar", connections=0)
    paths = [str(path) for path in sorted((tmp_path / "heavy").glob("*.tar"))]
    assert [(sample["__key__"], sample["cam0.jpg"]) for sample in stream_webdataset(paths)] == expected


class _Ranges(http.server.BaseHTTPRequestHandler):
    """A folder, with ranges and ETags, as object stores serve public buckets."""

    folder = Path()
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.folder / self.path.lstrip("/")
        data = path.read_bytes() if path.is_file() else None
        span = self.headers.get("Range", "")
        self.send_response(404 if data is None else 206 if span else 200)
        part = data or b""
        if data is not None:
            start, _, stop = span.removeprefix("bytes=").partition("-")
            part = data[int(start or 0) : int(stop) + 1 if stop else None]
            self.send_header("ETag", f'"{len(data)}"')
            if span:
                self.send_header("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        self.wfile.write(part)


def test_a_set_behind_a_web_server(toy: Path) -> None:
    handler = type("Handler", (_Ranges,), {"folder": toy.parent})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/toy"
        same(ShardSet(url), ShardSet(toy))
        assert len(ShardSet(f"{url}/train-{{00000..00001}}.tar")) == 14
        with pytest.raises(ConfigError, match="no shard set"):
            ShardSet(f"{url}/below")
        server.shutdown()


def test_a_set_by_obstore(toy: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """As from Google and Azure; a forked child of a process that has used it is refused, not hung."""
    pytest.importorskip("obstore")
    moto.use(monkeypatch)
    for name, value in {**S3_BY_OBSTORE, "AWS_ENDPOINT_URL": moto.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("wdsmix.shards.remote.open_store", ObstoreStore)
    bucket = moto.bucket()
    copy_up(moto.client, toy, bucket, "toy")
    opened = ShardSet(f"s3://{bucket}/toy")
    same(opened, ShardSet(toy))
    again = ShardSet(f"s3://{bucket}/toy", cache_dir=toy.parent / "other")
    loader = DataLoader(again.episodes("train"), batch_size=None, num_workers=1)
    with pytest.raises(ConfigError, match="forked process"):
        next(iter(loader))
