"""The validate command on sets in stores: the same faults as on disk, and nothing kept."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.damage import edit_index, edit_manifest, flip
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server
from helpers.stored import files_of

from wdsmix.cli import main
from wdsmix.manifest import digest_of
from wdsmix.shards.verify import verify
from wdsmix.shards.verify_remote import StreamedTar

LEVELS = ["list", "head", "quick", "full"]


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """A plain web server over the test's folder."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def upload(server: S3Server, folder: Path) -> str:
    """A set as another tool copies it up."""
    bucket = server.bucket()
    for name, data in files_of(folder).items():
        server.client.put_object(Bucket=bucket, Key=f"copy/{name}", Body=data)
    return f"s3://{bucket}/copy"


@pytest.mark.parametrize("level", LEVELS)
def test_a_whole_set(
    url: str, level: str, proxy: FaultProxy, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(scratch))
        assert main(["validate", url, "--level", level, "--jobs", "1"]) == 0
    assert not list(scratch.iterdir())
    assert "✗" not in capsys.readouterr().out
    read = {entry.path.rpartition("/")[2] for entry in proxy.seen("GET") if "list-type" not in entry.path}
    tars = {name for name in read if name.endswith(".tar")}
    side = {name for name in read if name.endswith((".arrow", ".parquet"))}
    assert len(tars) == (3 if level == "full" else 0)
    assert len(side) == (4 if level in ("quick", "full") else 0)
    assert len(proxy.seen("HEAD")) >= (0 if level == "list" else 8)
    if level == "full":
        assert len([entry for entry in proxy.seen("GET") if entry.path.endswith(".tar")]) == 3


def damage(folder: Path, kind: str) -> None:
    if kind == "payload":
        flip(folder / "train-00000.tar", 3000)
    elif kind == "header":
        flip(folder / "train-00001.tar", 0)
    elif kind == "end":
        flip(folder / "val-00000.tar", -5)
    elif kind == "grown":
        (folder / "val-00000.tar").write_bytes((folder / "val-00000.tar").read_bytes() + bytes(512))
    elif kind == "arrow":
        flip(folder / "train-00000.frames.arrow", 2000)
    elif kind == "no-arrow":
        (folder / "train-00000.frames.arrow").unlink()
    elif kind == "missing":
        (folder / "train-00000.tar").unlink()
    elif kind == "extra":
        (folder / "notes.txt").write_bytes(b"1")
    elif kind == "index":
        edit_index(folder, lambda rows: rows[0].update(duration=-1.0))
    elif kind == "stats":
        (folder / "stats.json").write_bytes(b"{}")
    elif kind == "manifest":
        flip(folder / "manifest.json", 30)


@pytest.mark.parametrize(
    "kind",
    "payload header end grown arrow no-arrow missing extra index stats manifest".split(),  # noqa: SIM905
)
def test_the_same_faults_as_on_disk(toy: Path, kind: str, server: S3Server, s3: S3Server) -> None:
    damage(toy, kind)
    url = upload(server, toy)
    for level in ("list", "quick", "full"):
        here = verify(toy, level=level)
        there = verify(url, level=level)
        assert there.digest == here.digest
        assert there.faults.counts == here.faults.counts, level
        assert there.faults.examined.keys() - {"store"} == here.faults.examined.keys(), level
        words = [(fault.kind, fault.file, fault.where) for fault in here.faults]
        assert [(fault.kind, fault.file, fault.where) for fault in there.faults] == words
    assert not there.ok


def test_head_finds_a_replaced_object(
    toy: Path, url: str, server: S3Server, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    version = "v-" + digest_of((toy / "manifest.json").read_bytes())[:12]
    data = (toy / "train-00001.tar").read_bytes()
    server.client.put_object(Bucket=url.split("/")[2], Key=f"toy/{version}/train-00001.tar", Body=data[::-1])
    assert main(["validate", url, "--level", "list"]) == 0
    proxy.log.clear()
    assert main(["validate", url, "--level", "head"]) == 1
    assert "✗ store: train-00001.tar: ETag differs" in capsys.readouterr().out
    assert not [entry for entry in proxy.seen("GET") if ".tar" in entry.path]


def test_paths(toy: Path, s3: S3Server, capsys: pytest.CaptureFixture[str]) -> None:
    damage(toy, "extra")
    damage(toy, "missing")
    damage(toy, "header")
    for place in (str(toy), upload(s3, toy)):
        assert main(["validate", place, "--level", "full", "--paths", "--limit", "1"]) == 1
        lines = capsys.readouterr().out.splitlines()
        symbols = {line[2:]: line[0] for line in lines[:10]}
        assert (symbols["notes.txt"], symbols["train-00000.tar"], symbols["train-00001.tar"]) == ("+", "-", "*")
        assert symbols["val-00000.tar"] == symbols["index.parquet"] == "="


def test_a_broken_network_is_no_fault(url: str, proxy: FaultProxy) -> None:
    proxy.faults = [Fault(kind="fin", path=".tar", after=9000, times=3), Fault(kind="503", path=".arrow", times=2)]
    assert main(["validate", url, "--level", "full", "--quiet", "--jobs", "1"]) == 0


def test_workers(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("wdsmix.shards.verify._INLINE_BYTES", 0)
        assert main(["validate", url, "--level", "full", "--quiet", "--jobs", "2"]) == 0


def test_exit_codes(toy: Path, url: str, proxy: FaultProxy, server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["validate", f"{url}/nothing"]) == 2
    assert main(["validate", "s3://no-such-bucket-here/x"]) == 2
    assert main(["validate", "ftp://host/x"]) == 2
    bucket = url.split("/")[2]
    version = "v-" + digest_of((toy / "manifest.json").read_bytes())[:12]
    assert main(["validate", f"{url}/{version}", "--digest", version[2:]]) == 0
    assert main(["validate", url, "--digest", "0123"]) == 1

    def swap() -> None:
        server.client.put_object(Bucket=bucket, Key=f"toy/{version}/train-00000.tar", Body=b"other")

    proxy.faults = [Fault(kind="fin", path="train-00000.tar", after=100, then=swap)]
    assert main(["validate", url, "--level", "full", "--quiet", "--jobs", "1"]) == 3
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    proxy.log.clear()
    assert main(["validate", url]) == 4
    assert len(proxy.log) == 1
    monkeypatch.setenv("WDSMIX_STORE_TRIES", "2")
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    assert main(["validate", url]) == 4


def test_a_half_pushed_version(toy: Path, server: S3Server, s3: S3Server, bucket: str) -> None:
    version = "v-" + digest_of((toy / "manifest.json").read_bytes())[:12]
    s3.client.put_object(Bucket=bucket, Key=f"toy/{version}/stats.json", Body=b"{}")
    assert main(["validate", f"s3://{bucket}/toy/{version}"]) == 1
    s3.client.put_object(Bucket=bucket, Key=f"toy/{version}/manifest.json", Body=b"{}")
    assert main(["validate", f"s3://{bucket}/toy/{version}"]) == 1


@pytest.mark.parametrize("level", LEVELS)
def test_over_http(toy: Path, web: str, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", f"{web}/toy", "--level", level, "--json"]) == 0
    (toy / "val-00000.tar").unlink()
    assert main(["validate", f"{web}/toy", "--level", level, "--json"]) == 1
    out = capsys.readouterr().out
    value = json.loads(out[out.rindex("\n{\n") :])
    assert "missing" in {detail["kind"] for detail in value["details"]}


def test_a_folder_by_url(toy: Path, tmp_path: Path) -> None:
    assert main(["push", str(toy), f"file://{tmp_path}/store", "--quiet"]) == 0
    assert main(["validate", f"file://{tmp_path}/store", "--level", "full", "--quiet"]) == 0
    assert main(["validate", f"{tmp_path}/store", "--level", "full", "--quiet"]) == 0
    shutil.rmtree(next((tmp_path / "store").glob("v-*")))
    assert main(["validate", f"file://{tmp_path}/store"]) == 1


def test_another_version_under_the_name(toy: Path, server: S3Server, s3: S3Server, bucket: str) -> None:
    version = "v-" + digest_of((toy / "manifest.json").read_bytes())[:12]
    edit_manifest(toy, lambda value: value.update(name="other"))
    for name, data in files_of(toy).items():
        s3.client.put_object(Bucket=bucket, Key=f"toy/{version}/{name}", Body=data)
    report = verify(f"s3://{bucket}/toy/{version}")
    assert report.faults.counts == {"digest": 1}


def test_streamed_slices() -> None:
    data = bytes(range(256)) * 40
    tar = StreamedTar(iter([data[k : k + 700] for k in range(0, len(data), 700)]), len(data))
    assert tar[0:10] == data[:10]
    assert tar[5:2000] == data[5:2000]
    assert tar[4:10] == b""  # gone by
    assert tar[6000:6000] == b""
    assert tar[9000:] == data[9000 : 9000 + 2048][: len(data) - 9000]
    assert len(tar) == len(data)
    import hashlib

    assert tar.finish("x").sha256 == hashlib.sha256(data).hexdigest()
