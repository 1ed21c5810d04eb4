"""Sets that awscli copies down are whole, and sets that it copies up are read like those that were pushed."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers.batches import assert_same
from helpers.fault_proxy import FaultProxy
from helpers.s3_server import S3Server
from helpers.sets import toy_set
from helpers.stored import files_of, heavy_set

from wdsmix import MixtureDataset, ShardSet
from wdsmix.cli import main
from wdsmix.manifest import digest_of

pytestmark = pytest.mark.s3real


@pytest.fixture(scope="module")
def aws() -> str:
    """The program: what WDSMIX_AWS names, else the one that is found."""
    found = shutil.which(os.environ.get("WDSMIX_AWS") or "aws")
    if found is None:
        pytest.skip("no awscli: neither does WDSMIX_AWS name one nor is there an `aws`")
    done = subprocess.run([found, "--version"], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"awscli does not run: {done.stderr.strip()[-200:]}")
    return found


def copy(aws: str, server: S3Server, source: str | Path, target: str | Path) -> None:
    environment = {**os.environ, **server.environment(), "AWS_ENDPOINT_URL": server.url, "AWS_PAGER": ""}
    words = [aws, "s3", "cp", "--recursive", "--only-show-errors", str(source), str(target)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def version_of(folder: Path) -> str:
    return "v-" + digest_of((folder / "manifest.json").read_bytes())[:12]


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    """A set with small shards, and one whose shards go in parts (of 8 MiB at awscli, of 16 MiB at wdsmix)."""
    toy_set(tmp_path / "toy")
    heavy_set(tmp_path / "heavy", [20_000_000, 100_000])
    return tmp_path / "toy", tmp_path / "heavy"


def test_what_awscli_brings_down(
    aws: str, sets: tuple[Path, Path], server: S3Server, s3: S3Server, tmp_path: Path
) -> None:
    for folder in sets:
        url = f"s3://{server.bucket()}/sets/{folder.name}"
        assert main(["push", str(folder), url, "--quiet"]) == 0
        down = tmp_path / f"down-{folder.name}"
        copy(aws, server, f"{url}/{version_of(folder)}", down)
        assert files_of(down) == files_of(folder)
        assert main(["validate", str(down), "--level", "full" if folder.name == "toy" else "quick", "--quiet"]) == 0
        everything = tmp_path / f"all-{folder.name}"  # with latest.json and the versions' folders
        copy(aws, server, url, everything)
        assert main(["validate", f"file://{everything}", "--quiet"]) == 0
        assert main(["fetch", str(everything), str(tmp_path / f"again-{folder.name}"), "--quiet"]) == 0
        assert files_of(tmp_path / f"again-{folder.name}") == files_of(folder)


def test_what_awscli_copies_up(
    aws: str, sets: tuple[Path, Path], server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    bucket = server.bucket()
    for folder in sets:
        url = f"s3://{bucket}/copied/{folder.name}"
        copy(aws, server, folder, url)
        for level in ("head", "full") if folder.name == "toy" else ("head",):
            assert main(["validate", url, "--level", level, "--quiet"]) == 0
        assert main(["fetch", url, str(tmp_path / f"down-{folder.name}"), "--quiet"]) == 0
        assert files_of(tmp_path / f"down-{folder.name}") == files_of(folder)


def test_awscli_s_copy_as_a_version_is_not_sent_again(
    aws: str, sets: tuple[Path, Path], server: S3Server, proxy: FaultProxy
) -> None:
    for folder in sets:
        url = f"s3://{server.bucket()}/{folder.name}"
        copy(aws, server, folder, f"{url}/{version_of(folder)}")
        proxy.log.clear()
        assert main(["push", str(folder), url, "--quiet"]) == 0
        assert not [entry for entry in (*proxy.seen("PUT"), *proxy.seen("POST")) if ".tar" in entry.path]
        assert main(["validate", url, "--quiet"]) == 0


def test_a_copy_streams(
    aws: str,
    sets: tuple[Path, Path],
    server: S3Server,
    s3: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WDSMIX_CACHE_DIR", str(tmp_path / "cache"))
    url = f"s3://{server.bucket()}/copied"
    copy(aws, server, sets[0], url)
    with ShardSet(url) as there, ShardSet(sets[0]) as here:
        assert there.digest == here.digest
        assert [frame.key for frame in there] == [frame.key for frame in here]

    def batches(place: str) -> list[dict[str, object]]:
        config = {
            "seed": 1,
            "embodiments": {"panda": 0},
            "sources": [{"name": "a", "shards": place, "weight": 1.0}],
            "sample": {"cameras": ["cam0"], "pad_to": {"state": 4, "action": 4}},
        }
        return list(itertools.islice(MixtureDataset(config, batch_size=4), 5))

    for ours, theirs in zip(batches(url), batches(str(sets[0])), strict=True):
        assert_same(ours, theirs)
