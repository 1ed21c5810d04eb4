"""The gc command: the latest stays, what is young stays, and nothing goes unasked."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from helpers.damage import edit_manifest
from helpers.fault_proxy import Fault, FaultProxy
from helpers.s3_server import S3Server
from helpers.sets import toy_set

from wdsmix.cli import main
from wdsmix.manifest import digest_of
from wdsmix.store.collect import StoredVersion, plan_removal


@pytest.fixture
def versions(tmp_path: Path) -> list[Path]:
    """Three versions of a set."""
    toy_set(tmp_path / "v0")
    for k in (1, 2):
        shutil.copytree(tmp_path / "v0", tmp_path / f"v{k}")
        edit_manifest(tmp_path / f"v{k}", lambda value, k=k: value.update(name=f"v{k}"))
    return [tmp_path / f"v{k}" for k in range(3)]


def name_of(folder: Path) -> str:
    return "v-" + digest_of((folder / "manifest.json").read_bytes())[:12]


def test_old_versions_go_when_asked(
    versions: list[Path], s3: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"s3://{bucket}/toy"
    for folder in versions:
        assert main(["push", str(folder), url, "--quiet"]) == 0
    names = [name_of(folder) for folder in versions]
    before = s3.keys(bucket)
    capsys.readouterr()
    assert main(["gc", url]) == 0
    assert "0 versions would go" in capsys.readouterr().out  # all are young
    assert main(["gc", url, "--older-than", "0", "--delete", "--keep-version", "v-ffff"]) == 2
    assert main(["gc", url, "--older-than", "0", "--keep-version", names[0]]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines if names[0] in line] == ["="]
    assert [line[0] for line in lines if names[1] in line] == ["-"]
    assert [line[0] for line in lines if names[2] in line] == ["="]
    assert "1 version would go" in lines[-1]
    assert s3.keys(bucket) == before
    assert main(["gc", url, "--older-than", "0", "--delete", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["removed_objects"] == 20
    assert {version["name"]: version["goes"] for version in value["versions"]} == dict(
        zip(names, [True, True, False], strict=True)
    )
    assert set(s3.keys(bucket)) == {key for key in before if names[2] in key or key.endswith("latest.json")}
    assert main(["validate", url, "--quiet"]) == 0


def test_the_manifest_goes_first(versions: list[Path], server: S3Server, proxy: FaultProxy) -> None:
    url = f"s3://{server.bucket()}/toy"
    for folder in versions[:2]:
        assert main(["push", str(folder), url, "--quiet"]) == 0
    proxy.faults = [Fault(kind="503", method="DELETE")]
    proxy.log.clear()
    assert main(["gc", url, "--older-than", "0", "--delete"]) == 0
    assert [entry.path.rpartition("/")[2] for entry in proxy.seen("DELETE")][:2] == ["manifest.json"] * 2


def test_a_folder(versions: list[Path], tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    for folder in versions:
        assert main(["push", str(folder), url, "--quiet"]) == 0
    assert main(["gc", url, "--older-than", "0", "--delete"]) == 0
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == sorted(["latest.json", name_of(versions[2])])


def version(name: str, modified: float, *, latest: bool = False) -> StoredVersion:
    return StoredVersion(name=name, objects=1, bytes=1, modified=modified, whole=True, latest=latest)


def test_what_may_go() -> None:
    found = [version("v-d", 40.0), version("v-c", 30.0, latest=True), version("v-b", 20.0), version("v-a", 10.0)]

    def going(**options: object) -> list[str]:
        return [v.name for v in plan_removal(found, now=lambda: 100.0, **options)]  # type: ignore[arg-type]

    assert going() == ["v-d", "v-b", "v-a"]
    assert going(keep=1) == ["v-b", "v-a"]
    assert going(older_than=75.0) == ["v-b", "v-a"]
    assert going(keep_names=["b", "v-a"]) == ["v-d"]
    assert plan_removal([version("v-a", 0.0)], now=lambda: 100.0) == []  # nothing is the latest: nothing goes
