"""The push command: what goes over the wire, kills, races, damage, refusals."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers.damage import edit_manifest, flip
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server
from helpers.sets import toy_set
from helpers.stored import files_of, heavy_set, start

from wdsmix.cli import main
from wdsmix.store import open_store
from wdsmix.store.push import PushOptions, push

PART = 5 << 20


def version_of(folder: Path) -> str:
    return "v-" + hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()[:12]


def stored(s3: S3Server, bucket: str, prefix: str) -> dict[str, bytes]:
    keys = s3.keys(bucket, prefix + "/")
    return {key[len(prefix) + 1 :]: s3.get(bucket, key) for key in keys}


def test_a_push_is_a_version_and_latest(
    toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(toy), f"s3://{bucket}/sets/toy"]) == 0
    out = capsys.readouterr()
    version = version_of(toy)
    found = stored(s3, bucket, f"sets/toy/{version}")
    receipt = json.loads(found.pop(".pushed.json"))["files"]
    assert found == files_of(toy)
    assert {name: entry["etag"].strip('"') for name, entry in receipt.items()} == {
        name: hashlib.md5(data).hexdigest() for name, data in found.items() if name != "manifest.json"
    }
    assert json.loads(s3.get(bucket, "sets/toy/latest.json"))["version"] == version
    assert set(s3.keys(bucket)) == {f"sets/toy/{version}/{name}" for name in [*found, ".pushed.json"]} | {
        "sets/toy/latest.json"
    }
    assert "8 files sent" in out.out
    assert "(100 %)" in out.err
    assert sorted(path.name for path in toy.iterdir() if path.name.startswith(".")) == []


def test_a_second_push_sends_nothing(toy: Path, server: S3Server, proxy: FaultProxy) -> None:
    url = f"s3://{server.bucket()}/toy"
    assert main(["push", str(toy), url, "--quiet"]) == 0
    puts = [entry.path for entry in proxy.seen("PUT")]
    assert [p.rpartition("/")[2].split("?")[0] for p in puts[-3:]] == [".pushed.json", "manifest.json", "latest.json"]
    proxy.log.clear()
    assert main(["push", str(toy), url, "--quiet"]) == 0
    assert not proxy.seen("PUT")
    assert not proxy.seen("POST")
    assert [entry.path.rpartition("/")[2] for entry in proxy.seen("GET") if "list-type" not in entry.path] == [
        "latest.json",
        "manifest.json",
        ".pushed.json",
    ]


def test_dry_run_shows_and_sends_nothing(
    toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    s3.client.upload_file(str(toy / "train-00000.tar"), bucket, f"toy/{version_of(toy)}/train-00000.tar")
    s3.client.put_object(Bucket=bucket, Key=f"toy/{version_of(toy)}/note.txt", Body=b"1")
    before = s3.keys(bucket)
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--dry-run"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert "= train-00000.tar" in out  # by its ETag: who sent it attached no checksum
    assert "+ train-00001.tar" in out
    assert "? note.txt" in out
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--dry-run", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["files"]["train-00000.tar"] == "same"
    assert s3.keys(bucket) == before


def test_other_bytes_are_refused_then_replaced(
    toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = f"toy/{version_of(toy)}/stats.json"
    s3.client.put_object(Bucket=bucket, Key=key, Body=b"x" * (toy / "stats.json").stat().st_size)
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--dry-run"]) == 3
    assert main(["push", str(toy), f"s3://{bucket}/toy"]) == 3
    assert "1 objects are there with other bytes" in capsys.readouterr().err
    assert set(s3.keys(bucket)) == {key}
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--overwrite"]) == 0
    assert s3.get(bucket, key) == (toy / "stats.json").read_bytes()


def test_a_damaged_set_is_not_published(
    toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(toy / "train-00001.tar", 3000)
    assert main(["push", str(toy), f"s3://{bucket}/toy"]) == 1
    assert "train-00001.tar: damaged: its checksum is not the manifest's" in capsys.readouterr().err
    assert not [key for key in s3.keys(bucket) if key.endswith((".json", "train-00001.tar")) and "stats" not in key]
    (toy / "train-00001.tar").unlink()
    assert main(["push", str(toy), f"s3://{bucket}/toy"]) == 1
    (toy / "manifest.json").unlink()
    assert main(["push", str(toy), f"s3://{bucket}/toy"]) == 1
    assert main(["push", str(toy / "nowhere"), f"s3://{bucket}/toy"]) == 2


def test_a_damaged_large_shard_is_not_published(tmp_path: Path, s3: S3Server, bucket: str) -> None:
    heavy_set(tmp_path / "heavy", [12_000_000])
    flip(tmp_path / "heavy" / "train-00000.tar", 11_000_000)
    assert main(["push", str(tmp_path / "heavy"), f"s3://{bucket}/h", "--part-size", "5", "--quiet"]) == 1
    assert not [key for key in s3.keys(bucket) if key.endswith(".tar")]
    assert not s3.client.list_multipart_uploads(Bucket=bucket).get("Uploads")


def test_a_published_version_that_was_touched(
    toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, prefix = f"s3://{bucket}/toy", f"toy/{version_of(toy)}"
    assert main(["push", str(toy), url, "--quiet"]) == 0
    good = (toy / "val-00000.tar").read_bytes()
    s3.client.delete_object(Bucket=bucket, Key=f"{prefix}/train-00000.tar")
    s3.client.put_object(Bucket=bucket, Key=f"{prefix}/val-00000.tar", Body=good[::-1])  # the size tells nothing
    capsys.readouterr()
    assert main(["push", str(toy), url, "--dry-run"]) == 3
    lines = capsys.readouterr().out.splitlines()
    assert {"+ train-00000.tar", "* val-00000.tar", "= val-00000.frames.arrow"} <= set(lines)
    assert main(["push", str(toy), url, "--quiet"]) == 3
    assert main(["push", str(toy), url, "--quiet", "--overwrite"]) == 0
    found = stored(s3, bucket, prefix)
    found.pop(".pushed.json")
    assert found == files_of(toy)
    s3.client.put_object(Bucket=bucket, Key=f"{prefix}/val-00000.tar", Body=good)  # copied anew: the same bytes
    assert main(["push", str(toy), url, "--dry-run"]) == 0


def test_a_journal_of_another_version(
    tmp_path: Path, server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WDSMIX_STORE_TRIES", "2")
    folder, url = tmp_path / "heavy", f"s3://{server.bucket()}/h"
    heavy_set(folder, [12_000_000])
    proxy.faults = [Fault(kind="503", method="PUT", path="partNumber=2", times=2)]
    assert main(["push", str(folder), url, "--part-size", "5", "--quiet"]) == 4
    edit_manifest(folder, lambda value: value.update(name="other"))
    assert main(["push", str(folder), url, "--part-size", "5", "--quiet"]) == 0
    assert main(["push", str(folder), url, "--abort-incomplete"]) == 0
    assert not server.client.list_multipart_uploads(Bucket=url.split("/")[2]).get("Uploads")
    assert not list(folder.glob(".push-*"))


def test_no_latest(toy: Path, s3: S3Server, bucket: str) -> None:
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--no-latest", "--quiet"]) == 0
    assert "toy/latest.json" not in s3.keys(bucket)
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--quiet"]) == 0
    assert "toy/latest.json" in s3.keys(bucket)


@pytest.mark.parametrize("fault", ["rst-request", "503"])
def test_uploads_are_tried_again(
    tmp_path: Path, server: S3Server, proxy: FaultProxy, fault: str, capsys: pytest.CaptureFixture[str]
) -> None:
    heavy_set(tmp_path / "heavy", [12_000_000])
    bucket = server.bucket()
    proxy.faults = [
        Fault(kind=fault, method="PUT", path="partNumber=2", times=3),
        Fault(kind=fault, method="POST", path="uploadId", times=1),
        Fault(kind=fault, method="PUT", path="manifest.json", times=1),
        Fault(kind=fault, method="PUT", path="latest.json", times=1),
    ]
    assert main(["push", str(tmp_path / "heavy"), f"s3://{bucket}/h", "--part-size", "5", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert sum(value["retries"].values()) == 6
    found = stored(server, bucket, f"h/{version_of(tmp_path / 'heavy')}")
    found.pop(".pushed.json")
    assert found == files_of(tmp_path / "heavy")


def test_a_stalled_upload_is_given_up_and_sent_again(
    tmp_path: Path,
    server: S3Server,
    proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("WDSMIX_STORE_TIMEOUT", "2")
    folder, bucket = tmp_path / "heavy", server.bucket()
    heavy_set(folder, [12_000_000])
    stall = Fault(kind="stall", method="PUT", path="partNumber=2", seconds=30.0)
    proxy.faults = [stall]
    assert main(["push", str(folder), f"s3://{bucket}/h", "--part-size", "5"]) == 0
    assert "retried 1 time: the server went silent" in capsys.readouterr().out
    assert not stall.over
    assert len(proxy.seen("PUT", "partNumber=2")) == 2
    found = stored(server, bucket, f"h/{version_of(folder)}")
    found.pop(".pushed.json")
    assert found == files_of(folder)


@pytest.mark.parametrize("name", ["manifest.json", "latest.json"])
def test_an_answer_lost_after_the_write_is_no_conflict(
    toy: Path, server: S3Server, proxy: FaultProxy, name: str
) -> None:
    proxy.faults = [Fault(kind="lost", method="PUT", path=name)]
    assert main(["push", str(toy), f"s3://{server.bucket()}/toy", "--quiet"]) == 0
    assert len(proxy.seen("PUT", name)) == 2


def test_killed_in_the_middle_of_a_shard(tmp_path: Path, server: S3Server, proxy: FaultProxy) -> None:
    folder = tmp_path / "heavy"
    heavy_set(folder, [200_000_000 if server.real else 50_000_000])
    bucket = server.bucket()
    parts = -(-(folder / "train-00000.tar").stat().st_size // PART)
    words = ["push", folder, f"s3://{bucket}/h", "--part-size", "5", "--jobs", "2"]
    proxy.first_byte = 0.1
    process = start(*words, environment=server.environment(proxy.url))
    deadline = time.monotonic() + 60
    while sum(entry.status == 200 for entry in proxy.seen("PUT", "partNumber")) < 5:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not [key for key in server.keys(bucket) if key.endswith((".tar", "manifest.json", "latest.json"))]
    time.sleep(0.3)
    arrived = len([entry for entry in proxy.seen("PUT", "partNumber") if entry.status == 200])
    proxy.log.clear()
    proxy.first_byte = 0.0
    result = start(*words, "--json", environment=server.environment(proxy.url))
    out, err = result.communicate(timeout=120)
    assert result.returncode == 0, err
    sent = len(proxy.seen("PUT", "partNumber"))
    assert sent <= parts - 5
    assert sent >= parts - arrived
    assert json.loads(out)["parts_kept"] == parts - sent
    found = stored(server, bucket, f"h/{version_of(folder)}")
    found.pop(".pushed.json")
    assert found == files_of(folder)
    assert not list(folder.glob(".push-*"))


def test_abort_incomplete_removes_ours_only(
    tmp_path: Path,
    server: S3Server,
    proxy: FaultProxy,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WDSMIX_STORE_TRIES", "3")
    folder = tmp_path / "heavy"
    heavy_set(folder, [12_000_000])
    bucket = server.bucket()
    theirs = server.client.create_multipart_upload(Bucket=bucket, Key=f"h/{version_of(folder)}/train-00000.tar")
    proxy.faults = [Fault(kind="503", method="PUT", path="partNumber=2", times=100)]
    assert main(["push", str(folder), f"s3://{bucket}/h", "--part-size", "5", "--quiet"]) == 4
    err = capsys.readouterr().err
    assert f"To go on: wdsmix push {folder} s3://{bucket}/h --part-size 5" in err
    assert main(["push", str(folder), f"s3://{bucket}/h", "--dry-run"]) == 0
    assert capsys.readouterr().out.count("an unfinished upload") == 2
    assert main(["push", str(folder), f"s3://{bucket}/h", "--abort-incomplete"]) == 0
    left = server.client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [entry["UploadId"] for entry in left] == [theirs["UploadId"]]


def test_two_pushes_race_for_latest(tmp_path: Path, s3: S3Server, bucket: str) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        toy_set(folder)
    edit_manifest(folders[1], lambda value: value.update(name="other"))
    planned = threading.Barrier(2)
    codes: list[int] = []

    def one(folder: Path) -> None:
        try:
            push(
                folder,
                open_store(f"s3://{bucket}/toy"),
                PushOptions(jobs=2),
                planned=lambda _: planned.wait(20) and None,
            )
            codes.append(0)
        except Exception as error:
            codes.append(getattr(error, "exit_code", -1))

    threads = [threading.Thread(target=one, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [0, 3]
    for folder in folders:
        found = stored(s3, bucket, f"toy/{version_of(folder)}")
        found.pop(".pushed.json")
        assert found == files_of(folder)
    assert json.loads(s3.get(bucket, "toy/latest.json"))["version"] in {version_of(folder) for folder in folders}
    for folder in folders:  # the loser publishes by pushing again
        assert main(["push", str(folder), f"s3://{bucket}/toy", "--quiet"]) == 0
        assert json.loads(s3.get(bucket, "toy/latest.json"))["version"] == version_of(folder)


def test_one_version_from_two_places_at_once(tmp_path: Path, s3: S3Server, bucket: str) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        heavy_set(folder, [7_000_000, 100_000])
    planned = threading.Barrier(2)
    errors: list[Exception] = []

    def one(folder: Path) -> None:
        try:
            options = PushOptions(jobs=2, part=PART)
            push(folder, open_store(f"s3://{bucket}/h"), options, planned=lambda _: planned.wait(20) and None)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = stored(s3, bucket, f"h/{version_of(folders[0])}")
    found.pop(".pushed.json")
    assert found == files_of(folders[0])
    assert main(["validate", f"s3://{bucket}/h", "--level", "head", "--quiet"]) == 0


def test_two_pushes_of_one_folder(toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    def again(_: object) -> None:
        assert main(["push", str(toy), f"s3://{bucket}/toy", "--quiet"]) == 3
        assert "another process is pushing this set to the same place" in capsys.readouterr().err

    push(toy, open_store(f"s3://{bucket}/toy"), PushOptions(jobs=2), planned=again)
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--quiet"]) == 0


def test_a_store_without_conditions_is_refused(
    toy: Path, server: S3Server, proxy: FaultProxy, capsys: pytest.CaptureFixture[str]
) -> None:
    proxy.faults = [Fault(kind="200", method="PUT", path=".wdsmix-probe", times=100)]
    url = f"s3://{server.bucket()}/toy"
    assert main(["push", str(toy), url, "--quiet"]) == 3
    assert "--no-conditional publishes all the same" in capsys.readouterr().err
    assert main(["push", str(toy), url, "--quiet", "--no-conditional"]) == 0


def test_a_wrong_secret_ends_at_once(
    toy: Path, server: S3Server, proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-of-anybody")
    assert main(["push", str(toy), f"s3://{server.bucket()}/toy"]) == 4
    assert len(proxy.log) == 1
    captured = capsys.readouterr()
    assert "SignatureDoesNotMatch (403)" in captured.err
    assert "not-the-secret-of-anybody" not in captured.err + captured.out


def test_wrong_usage(toy: Path, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
    for url in ("ftp://x/y", "s3://", "s3://user:hush@bucket/x", "https://host/x", f"s3://{bucket}/../x"):
        assert main(["push", str(toy), url]) == 2
    assert main(["push", str(toy), "s3://no-such-bucket-here/x"]) == 2
    assert main(["push", str(toy), str(toy / "inside")]) == 2
    for options in (["--jobs", "0"], ["--part-size", "4"], ["--bandwidth-limit", "fast"]):
        assert main(["push", str(toy), f"s3://{bucket}/x", *options]) == 2
    assert "hush" not in capsys.readouterr().err
