"""The fetch command: what goes over the wire, kills, damage in the store and on disk, subsets, refusals."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.damage import edit_manifest, flip
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server
from helpers.stored import files_of, heavy_set, start

from wdsmix import ShardSet
from wdsmix.cli import main
from wdsmix.errors import DataError

RANGE = 8 << 20


def gets(proxy: FaultProxy) -> list[str]:
    return [entry.path.rpartition("/")[2] for entry in proxy.seen("GET") if "list-type" not in entry.path]


def version_of(url: str, server: S3Server) -> str:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return json.loads(server.get(bucket, f"{prefix}/latest.json"))["version"]


def test_fetch_then_nothing_more(
    toy: Path, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["fetch", url, str(out)]) == 0
    assert files_of(out) == files_of(toy)
    assert "8 files received" in capsys.readouterr().out
    assert sorted(gets(proxy)) == sorted(["latest.json", *files_of(toy)])  # each once
    assert sorted(path.name for path in out.iterdir() if path.name.startswith(".")) == [".fetched.json"]
    proxy.log.clear()
    assert main(["fetch", url, str(out), "--quiet"]) == 0
    assert gets(proxy) == ["latest.json", "manifest.json"]
    assert main(["validate", str(out), "--level", "full", "--quiet"]) == 0


def test_a_version_and_a_plain_copy(toy: Path, url: str, server: S3Server, tmp_path: Path) -> None:
    assert main(["fetch", f"{url}/{version_of(url, server)}", str(tmp_path / "a"), "--quiet"]) == 0
    bucket = server.bucket()
    for path in toy.iterdir():
        server.client.upload_file(str(path), bucket, f"copied/{path.name}")
    assert main(["fetch", f"s3://{bucket}/copied", str(tmp_path / "b"), "--quiet"]) == 0
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b") == files_of(toy)


def test_what_another_tool_brings_down_is_a_set(url: str, server: S3Server, tmp_path: Path) -> None:
    bucket, version = url.split("/")[2], version_of(url, server)
    out = tmp_path / "out"
    out.mkdir()
    for key in server.keys(bucket, f"toy/{version}/"):
        (out / key.rpartition("/")[2]).write_bytes(server.get(bucket, key))
    assert main(["validate", str(out), "--level", "full", "--quiet"]) == 0


def test_over_http(toy: Path, tmp_path: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        threading.Thread(target=web.serve_forever, args=(0.05,), daemon=True).start()
        assert main(["push", str(toy), str(tmp_path / "store"), "--quiet"]) == 0
        url = f"http://127.0.0.1:{web.server_port}"
        assert main(["fetch", f"{url}/store", str(tmp_path / "a"), "--quiet"]) == 0
        assert main(["fetch", f"{url}/toy", str(tmp_path / "b"), "--quiet"]) == 0
        web.shutdown()
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b") == files_of(toy)


def test_dry_run(url: str, tmp_path: Path, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fetch", url, str(tmp_path / "out"), "--dry-run"]) == 0
    assert "+ train-00000.tar" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
    assert main(["fetch", url, str(tmp_path / "out"), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"]["train-00000.tar"] == "new"
    assert set(gets(proxy)) == {"latest.json", "manifest.json"}


def test_a_flipped_byte_is_fetched_again(
    toy: Path, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.faults = [Fault(kind="flip", path="train-00001.tar", after=5000)]
    assert main(["fetch", url, str(tmp_path / "out")]) == 0
    assert "retried 1 time: damaged bytes, fetched again" in capsys.readouterr().out
    assert files_of(tmp_path / "out") == files_of(toy)
    assert gets(proxy).count("train-00001.tar") == 2


def test_a_byte_that_is_flipped_every_time(
    toy: Path, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.faults = [Fault(kind="flip", path="train-00001.tar", after=5000, times=100)]
    assert main(["fetch", url, str(tmp_path / "out")]) == 1
    out = capsys.readouterr().out
    assert "train-00001.tar: damaged in the store: fetched twice" in out
    assert gets(proxy).count("train-00001.tar") == 2
    assert set(files_of(tmp_path / "out")) == set(files_of(toy)) - {"manifest.json", "train-00001.tar"}
    proxy.faults = []
    assert main(["fetch", url, str(tmp_path / "out"), "--quiet"]) == 0
    assert files_of(tmp_path / "out") == files_of(toy)


def test_a_stall_is_given_up_and_resumed(
    tmp_path: Path,
    server: S3Server,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = tmp_path / "heavy", tmp_path / "out"
    heavy_set(source, [3_000_000])
    url = f"s3://{server.bucket()}/h"
    assert main(["push", str(source), url, "--quiet"]) == 0
    monkeypatch.setenv("WDSMIX_STORE_TIMEOUT", "1")
    stall = Fault(kind="stall", path="00000.tar", after=2_000_000, seconds=30.0)
    proxy.faults, proxy.log = [stall], []
    assert main(["fetch", url, str(out), "--jobs", "1"]) == 0
    assert "retried 1 time: the server went silent" in capsys.readouterr().out
    assert not stall.over
    first, second = proxy.seen("GET", "00000.tar")
    assert first.sent == 2_000_000
    assert 1_500_000 < int(second.range.removeprefix("bytes=").split("-")[0]) <= 2_000_000
    assert files_of(out) == files_of(source)


def test_damage_in_the_store_is_named_and_the_rest_kept(
    toy: Path, url: str, server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = url.split("/")[2]
    key = f"toy/{version_of(url, server)}/train-00001.tar"
    good = (toy / "train-00001.tar").read_bytes()
    server.client.put_object(Bucket=bucket, Key=key, Body=good[:5000] + b"?" + good[5001:])
    out = tmp_path / "out"
    assert main(["fetch", url, str(out)]) == 1
    assert f"s3://{bucket}/{key}: damaged in the store" in capsys.readouterr().out
    found = files_of(out)
    assert "manifest.json" not in found
    assert set(found) == set(files_of(toy)) - {"manifest.json", "train-00001.tar"}
    server.client.put_object(Bucket=bucket, Key=key, Body=good[:-1])
    assert main(["fetch", url, str(out)]) == 1
    assert "not as long as it should be" in capsys.readouterr().out
    server.client.put_object(Bucket=bucket, Key=key, Body=good)
    assert main(["fetch", url, str(out)]) == 0
    assert "1 file received" in capsys.readouterr().out
    assert files_of(out) == files_of(toy)


def test_recheck_repairs(toy: Path, url: str, proxy: FaultProxy, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["fetch", url, str(out), "--quiet"]) == 0
    stamp = (out / "val-00000.tar").stat()
    flip(out / "val-00000.tar", 700)
    os.utime(out / "val-00000.tar", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))  # rot leaves no trace
    proxy.log.clear()
    assert main(["fetch", url, str(out), "--quiet"]) == 0
    assert main(["fetch", url, str(out), "--quiet", "--recheck"]) == 0
    assert gets(proxy).count("val-00000.tar") == 1
    assert files_of(out) == files_of(toy)


def test_killed_at_any_point(tmp_path: Path, server: S3Server, proxy: FaultProxy) -> None:
    source, out = tmp_path / "heavy", tmp_path / "out"
    heavy_set(source, [60_000_000, 30_000])
    url = f"s3://{server.bucket()}/h"
    assert main(["push", str(source), url, "--quiet"]) == 0
    proxy.log.clear()
    proxy.rate = 20e6
    done: set[int] = set()
    for kill_after in (2, 5):
        process = start("fetch", url, out, "--jobs", "2", environment=server.environment(proxy.url))
        deadline = time.monotonic() + 60
        journal = out / "train-00000.tar.part.json"
        while not journal.exists() or len(journal.read_text().splitlines()) < 1 + kill_after:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        now = {int(line) for line in journal.read_text().split("\n")[1:-1]}
        assert done < now
        done = now
        assert not (out / "manifest.json").exists()
        assert not (out / "train-00000.tar").exists()
        time.sleep(0.5)
        proxy.log.clear()
    proxy.rate = 0.0
    assert main(["fetch", url, str(out), "--quiet"]) == 0
    assert files_of(out) == files_of(source)
    starts = {
        int(entry.range.removeprefix("bytes=").split("-")[0]) // RANGE for entry in proxy.seen("GET", "00000.tar")
    }
    assert starts == set(range(-(-(source / "train-00000.tar").stat().st_size // RANGE))) - done


def test_a_swapped_object_starts_anew(tmp_path: Path, server: S3Server, proxy: FaultProxy) -> None:
    source, out = tmp_path / "heavy", tmp_path / "out"
    heavy_set(source, [20_000_000])
    url = f"s3://{server.bucket()}/h"
    assert main(["push", str(source), url, "--quiet"]) == 0
    key = f"h/{version_of(url, server)}/train-00000.tar"
    good = (source / "train-00000.tar").read_bytes()

    def swap(data: bytes) -> None:
        server.client.put_object(Bucket=url.split("/")[2], Key=key, Body=data)

    proxy.faults = [Fault(kind="fin", path="00000.tar", after=1_000_000, then=lambda: swap(good[::-1]))]
    assert main(["fetch", url, str(out), "--quiet", "--jobs", "1"]) == 1
    assert not (out / "train-00000.tar").exists()
    swap(good[::-1])
    proxy.faults = [Fault(kind="fin", path="00000.tar", after=1_000_000, then=lambda: swap(good))]
    assert main(["fetch", url, str(out), "--quiet", "--jobs", "1"]) == 0
    assert files_of(out) == files_of(source)


def test_subsets(toy: Path, url: str, proxy: FaultProxy, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert main(["fetch", url, str(out), "--split", "val"]) == 0
    assert "not the whole set" in capsys.readouterr().out
    assert {name for name in files_of(out) if name.endswith(".tar")} == {"val-00000.tar"}
    with ShardSet(out / "val-00000.tar") as some, ShardSet(toy, shards=["val-00000"]) as whole:
        assert [f.key for f in some] == [f.key for f in whole]
        assert some.digest == whole.digest
    assert main(["fetch", url, str(out), "--shards", "train-{00000..00001}.tar", "--split", "train", "--quiet"]) == 0
    assert files_of(out) == files_of(toy)
    for options in (["--split", "test"], ["--shards", "train-7"], ["--split", "val", "--shards", "train-*"]):
        assert main(["fetch", url, str(tmp_path / "other"), *options]) == 2


def test_a_folder_with_something_else_is_refused(
    toy: Path, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(toy, tmp_path / "other")
    edit_manifest(tmp_path / "other", lambda value: value.update(name="other"))
    assert main(["fetch", url, str(tmp_path / "other")]) == 3
    assert "another set, or another version" in capsys.readouterr().err
    (tmp_path / "third").mkdir()
    (tmp_path / "third" / "train-00000.tar").write_bytes(b"mine")
    assert main(["fetch", url, str(tmp_path / "third")]) == 3
    assert (tmp_path / "third" / "train-00000.tar").read_bytes() == b"mine"
    (tmp_path / "third" / "train-00000.tar").write_bytes((toy / "train-00000.tar").read_bytes())
    assert main(["fetch", url, str(tmp_path / "third")]) == 0
    assert "7 files received" in capsys.readouterr().out


def test_no_set_no_bucket_no_manifest(url: str, server: S3Server, tmp_path: Path, proxy: FaultProxy) -> None:
    out = str(tmp_path / "out")
    assert main(["fetch", "s3://no-such-bucket-here/x", out]) == 2
    assert main(["fetch", f"{url}/nothing", out]) == 2
    assert main(["fetch", str(tmp_path / "nowhere"), out]) == 2
    bucket = url.split("/")[2]
    server.client.put_object(Bucket=bucket, Key="toy/latest.json", Body=b'{"version": "../x", "digest": ""}')
    assert main(["fetch", url, out]) == 1
    assert not Path(out).exists()


def test_too_little_room(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: FaultProxy) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    assert main(["fetch", url, str(tmp_path / "out")]) == 3
    assert set(gets(proxy)) == {"latest.json", "manifest.json"}


def test_a_reader_stays_on_its_version(
    toy: Path, url: str, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    second = tmp_path / "second"
    shutil.copytree(toy, second)
    edit_manifest(second, lambda value: value.update(name="second"))

    def publish() -> None:
        assert main(["push", str(second), url, "--quiet"]) == 0

    proxy.faults = [Fault(kind="fin", path="manifest.json", after=10, then=publish)]
    assert main(["fetch", url, str(tmp_path / "out"), "--quiet"]) == 0
    assert files_of(tmp_path / "out") == files_of(toy)
    assert main(["fetch", url, str(tmp_path / "new"), "--quiet"]) == 0
    assert files_of(tmp_path / "new") == files_of(second)


def test_what_the_manifest_lists_and_the_store_lacks_is_damage(
    url: str, server: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    place = f"{prefix}/{version_of(url, server)}"
    shard = ShardSet(url).manifest.shards[0]
    server.client.delete_object(Bucket=bucket, Key=f"{place}/{shard}.frames.arrow")
    server.client.delete_object(Bucket=bucket, Key=f"{place}/{shard}.tar")
    assert main(["fetch", url, str(tmp_path / "out"), "--quiet"]) == 1
    said = "".join(capsys.readouterr())
    assert said.count("the manifest lists the object, but it is not there") == 2
    assert not (tmp_path / "out" / "manifest.json").exists()
    with pytest.raises(DataError, match="the manifest lists the object"):
        ShardSet(url).frame(0)


def test_a_wrong_selection_makes_no_folder(url: str, tmp_path: Path) -> None:
    for options in (["--split", "nope"], ["--shards", "train-00099"]):
        assert main(["fetch", url, str(tmp_path / "out"), *options, "--quiet"]) == 2
        assert not (tmp_path / "out").exists()
