"""The family that would read a source is named where another one was asked."""

from __future__ import annotations

import os

import pytest
from helpers.hdf5_fixtures import write_platform
from helpers.nav_fixtures import write_gnm
from helpers.unitree_fixtures import write_raw
from wdsmix.converters import families
from wdsmix.converters.families import likely_family

from wdsmix import cli

NAMES = ("hdf5", "lerobot", "nav", "unitree", "parquet-shards")


@pytest.fixture
def sources(tmp_path):
    (tmp_path / "hdf5").mkdir()
    write_platform(tmp_path / "hdf5" / "chunk_001.hdf5", episodes=[1])
    write_gnm(tmp_path / "nav" / "t_0")
    write_raw(tmp_path / "unitree" / "episode_0001", 3)
    for name in ("lerobot/meta/info.json", "lerobot/data/chunk-000/episode_000000.parquet"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / "parquet-shards" / "shards").mkdir(parents=True)
    (tmp_path / "parquet-shards" / "shards" / "shard-00000.parquet").write_bytes(b"PAR1")
    return tmp_path


def test_each_is_told_by_its_names(sources):
    assert {name: likely_family(sources / name)[0] for name in NAMES} == {name: name for name in NAMES}
    assert likely_family(sources / "hdf5" / "chunk_001.hdf5") == ("hdf5", "chunk_001.hdf5")
    (sources / "empty").mkdir()
    assert likely_family(sources / "empty") is None


@pytest.mark.parametrize("command", ["convert", "check"])
@pytest.mark.parametrize(("asked", "given"), [(a, g) for a in NAMES for g in NAMES if a != g])
def test_the_right_family_is_named(sources, command, asked, given, capsys, tmp_path):
    if (asked, given) == ("unitree", "lerobot"):  # it reads them
        return
    out = [str(tmp_path / "out")] if command == "convert" else []
    assert cli.main([command, asked, str(sources / given), *out, "--workers", "1", "--quiet"]) == 1
    said = capsys.readouterr().err
    assert f"the family {given} reads such a source (" in said or f"`wdsmix convert {given}`" in said


def test_a_fault_of_the_right_family_gets_no_hint(sources, capsys, tmp_path):
    (sources / "hdf5" / "chunk_001.hdf5").write_bytes(b"no HDF5")
    assert cli.main(["convert", "hdf5", str(sources / "hdf5"), str(tmp_path / "out"), "--workers", "1"]) == 1
    assert "reads such a source" not in capsys.readouterr().err


def test_no_more_names_are_looked_at_than_allowed(tmp_path, monkeypatch):
    for k in range(30):
        (tmp_path / f"d{k:02d}").mkdir()
        for n in range(10):
            (tmp_path / f"d{k:02d}" / f"{n}.txt").touch()
    seen = []
    real = os.scandir

    class Watched:
        def __init__(self, path):
            self.inner = real(path)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.inner.close()

        def __iter__(self):
            return self

        def __next__(self):
            entry = next(self.inner)
            seen.append(entry.path)
            return entry

    monkeypatch.setattr(families.os, "scandir", Watched)
    monkeypatch.setattr(families, "_NAMES", 60)
    monkeypatch.setattr(families, "_NAMES_A_FOLDER", 40)
    assert likely_family(tmp_path) is None
    assert len(seen) == 60
    deep = tmp_path / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "x.hdf5").touch()
    monkeypatch.setattr(families, "_NAMES", 4000)
    assert likely_family(tmp_path) is None
    (deep.parent / "x.hdf5").touch()
    assert likely_family(tmp_path) == ("hdf5", "a/b/c/x.hdf5")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert likely_family(tmp_path) == ("hdf5", "a/b/c/x.hdf5")
