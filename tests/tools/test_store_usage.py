"""push, fetch, gc and validate of URLs as people misuse them: each mistake ends in one line and an exit code."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
from helpers.fault_proxy import FaultProxy
from helpers.s3_server import S3Server
from helpers.stored import files_of, heavy_set, start

from wdsmix.cli import main
from wdsmix.manifest import digest_of


def commands(toy: Path, url: str, out: Path) -> dict[str, list[str]]:
    return {
        "push": ["push", str(toy), url],
        "push --dry-run": ["push", str(toy), url, "--dry-run"],
        "fetch": ["fetch", url, str(out)],
        "gc": ["gc", url],
        "validate": ["validate", url],
    }


def version_of(folder: Path) -> str:
    return "v-" + digest_of((folder / "manifest.json").read_bytes())[:12]


def test_refused_credentials(
    toy: Path,
    server: S3Server,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"s3://{server.bucket()}/toy"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush-hush-hush")
    for name, words in commands(toy, url, tmp_path / "out").items():
        proxy.log.clear()
        assert main(words) == 4, name
        assert len(proxy.log) == 1, name
        said = capsys.readouterr()
        assert "the store refuses: SignatureDoesNotMatch (403)" in said.err
        assert "hush" not in said.err + said.out
        assert "Traceback" not in said.err
    assert not (tmp_path / "out").exists()
    assert not list(toy.glob(".push*"))


def test_no_credentials_and_no_server(
    toy: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "s3://some-bucket/toy"
    monkeypatch.setenv("WDSMIX_STORE_TRIES", "2")
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", "http://127.0.0.1:9")
    for words in commands(toy, url, tmp_path / "out").values():
        assert main(words) == 4
        assert "the endpoint can't be reached, 2 tries in a row" in capsys.readouterr().err
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", "127.0.0.1:9")
    for words in commands(toy, url, tmp_path / "out").values():
        assert main(words) == 2
        assert "WDSMIX_S3_ENDPOINT_URL: not an http(s) URL" in capsys.readouterr().err
    s3.use(monkeypatch)
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    for words in commands(toy, url, tmp_path / "out").values():
        assert main(words) == 4
        assert "no credentials found" in capsys.readouterr().err


def test_an_endpoint_with_a_path(
    toy: Path, s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", f"{s3.url}/some/path")
    for words in commands(toy, f"s3://{s3.bucket()}/toy", tmp_path / "out").values():
        assert main(words) in (2, 4)
        err = capsys.readouterr().err
        assert err.startswith("wdsmix: error: s3://")
        assert "Traceback" not in err


def test_what_is_not_there(toy: Path, s3: S3Server, bucket: str, tmp_path: Path) -> None:
    for words in commands(toy, "s3://there-is-no-such-bucket/toy", tmp_path / "out").values():
        assert main(words) == 2
    for name, words in commands(toy, f"s3://{bucket}/mistyped", tmp_path / "out").items():
        if "push" not in name:
            assert main(words) == 2, name
    assert main(["push", str(toy / "manifest.json"), f"s3://{bucket}/toy"]) == 2
    assert main(["push", str(tmp_path), f"s3://{bucket}/toy"]) == 1  # a folder, but no set
    assert s3.keys(bucket) == {}


def test_the_url_of_a_version_is_none_to_push_to(
    toy: Path, s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--quiet"]) == 0
    before = s3.keys(bucket)
    for words in (["push", str(toy)], ["gc"]):
        assert main([*words, f"s3://{bucket}/toy/{version_of(toy)}/"]) == 2
        assert f"expected that of the set, s3://{bucket}/toy)" in capsys.readouterr().err
    assert s3.keys(bucket) == before


@pytest.mark.parametrize(
    "prefix", ["", "/", "my sets/机器人/a+b&c=%20/", "//x///toy//", "über/ключ~!*'()", "v-1/latest.json"]
)
def test_odd_keys(toy: Path, s3: S3Server, bucket: str, prefix: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/{prefix}"
    assert main(["push", str(toy), url, "--quiet"]) == 0
    assert main(["push", str(toy), url, "--dry-run"]) == 0
    folder = "/".join(part for part in prefix.split("/") if part)
    below = f"{folder}/" if folder else ""
    assert set(s3.keys(bucket)) == {f"{below}latest.json"} | {
        f"{below}{version_of(toy)}/{name}" for name in (*files_of(toy), ".pushed.json")
    }
    assert main(["fetch", url + "/", str(tmp_path / "out"), "--quiet"]) == 0
    assert files_of(tmp_path / "out") == files_of(toy)
    assert main(["validate", url, "--level", "head", "--quiet"]) == 0
    assert main(["gc", url]) == 0


def test_linked_files_and_folders(toy: Path, s3: S3Server, bucket: str, tmp_path: Path) -> None:
    link, elsewhere = tmp_path / "link", tmp_path / "elsewhere.tar"
    link.symlink_to(toy)
    good = files_of(toy)
    (toy / "train-00000.tar").rename(elsewhere)
    (toy / "train-00000.tar").symlink_to(elsewhere)
    assert main(["push", str(link), f"s3://{bucket}/toy", "--quiet"]) == 0
    assert s3.get(bucket, f"toy/{version_of(toy)}/train-00000.tar") == good["train-00000.tar"]
    assert main(["fetch", f"s3://{bucket}/toy", str(tmp_path / "out"), "--quiet"]) == 0
    assert files_of(tmp_path / "out") == good
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "train-00000.tar").symlink_to(tmp_path / "nowhere")
    assert main(["fetch", f"s3://{bucket}/toy", str(tmp_path / "linked"), "--quiet"]) == 3
    assert not (tmp_path / "nowhere").exists()
    elsewhere.unlink()  # now the link dangles
    assert main(["push", str(toy), f"s3://{bucket}/other"]) == 1


def test_places_that_cannot_be_written(
    toy: Path,
    s3: S3Server,
    bucket: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"s3://{bucket}/toy"
    assert main(["push", str(toy), url, "--quiet"]) == 0
    for out in (toy / "manifest.json", toy / "manifest.json" / "below", Path("/proc/self/nowhere")):
        assert main(["fetch", url, str(out)]) == 2
        assert "Traceback" not in capsys.readouterr().err

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        assert main(["fetch", url, str(out), "--quiet"]) == 3
    assert "the disk is full; what is there is kept: make room, run it again" in capsys.readouterr().err
    assert not (out / "manifest.json").exists()
    assert main(["fetch", url, str(out), "--quiet"]) == 0
    assert files_of(out) == files_of(toy)


def test_a_set_that_cannot_be_written_beside(
    toy: Path, s3: S3Server, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != toy and access(path, mode))
    before = sorted(path.name for path in toy.iterdir())
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--quiet"]) == 0
    assert sorted(path.name for path in toy.iterdir()) == before
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("no folder")
    assert main(["push", str(toy), f"s3://{bucket}/toy", "--quiet"]) == 2


@pytest.mark.parametrize("command", ["push", "fetch"])
def test_ctrl_c(command: str, tmp_path: Path, server: S3Server, proxy: FaultProxy) -> None:
    folder, out = tmp_path / "heavy", tmp_path / "out"
    heavy_set(folder, [60_000_000])
    url = f"s3://{server.bucket()}/h"
    if command == "fetch":
        assert main(["push", str(folder), url, "--quiet"]) == 0
        proxy.log.clear()
    proxy.rate, proxy.first_byte = 4e6, 0.3
    words = ["push", folder, url] if command == "push" else ["fetch", url, out]
    process = start(*words, "--jobs", "2", environment=server.environment(proxy.url))
    deadline = time.monotonic() + 60
    while not any("00000.tar" in entry.path for entry in list(proxy.log)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "To go on" in err
    assert err.rstrip().endswith("wdsmix: interrupted")
    assert "Traceback" not in err
    proxy.rate = proxy.first_byte = 0.0
    assert main([*map(str, words), "--quiet"]) == 0
    assert main(["fetch", url, str(tmp_path / "check"), "--quiet"]) == 0
    assert files_of(tmp_path / "check") == files_of(folder)
