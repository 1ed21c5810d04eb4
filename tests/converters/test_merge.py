"""Joining parts: links, copies, damage, and parts that do not belong together."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest
from helpers.fake_source import FakeSource, many
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.merge import merge
from wdsmix.converters.run import convert, run
from wdsmix.converters.workfolder import Locks

from wdsmix.errors import ConflictError, DataError

SOURCE = FakeSource(many(6, e2="bad"))


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """A folder with the set ``whole`` and its parts ``1`` and ``2``."""
    folder = tmp_path_factory.mktemp("made")
    convert(SOURCE, folder / "whole", ConvertOptions(frames_per_shard=30))
    for k in (0, 1):
        run(SOURCE, folder / str(k + 1), ConvertOptions(frames_per_shard=30, part=(k, 2)))
    return folder


@pytest.fixture
def parts(made, tmp_path) -> list[Path]:
    """Copies of the two parts."""
    return [Path(shutil.copytree(made / name, tmp_path / name)) for name in ("1", "2")]


def test_shards_are_linked_and_parts_stay(made, parts, tmp_path):
    before = [hashes(part) for part in parts]
    manifest = merge(tmp_path / "set", parts)
    assert hashes(tmp_path / "set") == hashes(made / "whole")
    assert [drop.episode for drop in manifest.dropped] == [2]
    assert [hashes(part) for part in parts] == before
    assert (tmp_path / "set" / "train-00000.tar").stat().st_nlink == 2


def no_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)


def test_other_file_systems_are_copied_and_checked(made, parts, tmp_path, monkeypatch):
    no_links(monkeypatch)
    merge(tmp_path / "set", parts)
    assert hashes(tmp_path / "set") == hashes(made / "whole")
    assert (tmp_path / "set" / "train-00000.tar").stat().st_nlink == 1
    tar = next(parts[1].glob("*.tar"))
    data = bytearray(tar.read_bytes())
    data[700] ^= 1
    tar.write_bytes(data)
    with pytest.raises(DataError, match=f"{tar.name}.*damaged"):
        merge(tmp_path / "again", parts)
    assert not (tmp_path / "again" / "manifest.json").exists()
    shutil.copy(made / "2" / tar.name, tar)
    merge(tmp_path / "again", parts)
    assert hashes(tmp_path / "again") == hashes(made / "whole")


def test_one_part_may_be_the_target(made, parts):
    merge(parts[0], [parts[1]])
    assert hashes(parts[0]) == hashes(made / "whole")


def test_a_part_may_be_named_twice_but_not_differ(made, parts, tmp_path):
    merge(tmp_path / "set", [*parts, *parts])
    assert hashes(tmp_path / "set") == hashes(made / "whole")
    twin = Path(shutil.copytree(parts[0], tmp_path / "twin"))
    receipt = next((twin / ".work").glob("*.receipt.json"))
    fields = json.loads(receipt.read_text())
    fields["files"][0]["sha256"] = "0" * 64
    receipt.write_text(json.dumps(fields))
    with pytest.raises(ConflictError, match="different bytes"):
        merge(tmp_path / "other", [*parts, twin])


def test_cut_files_count_as_missing(parts, tmp_path):
    tar = next(parts[0].glob("*.tar"))
    tar.write_bytes(tar.read_bytes()[:-512])
    with pytest.raises(DataError, match=f"missing: {tar.stem}"):
        merge(tmp_path / "set", parts)


def test_what_is_no_part(made, parts, tmp_path):
    with pytest.raises(DataError, match="not a part"):
        merge(tmp_path / "set", [tmp_path / "nowhere"])
    with pytest.raises(DataError, match="not a part"):
        merge(tmp_path / "set", [made / "whole"])
    with pytest.raises(DataError, match="no part"):
        merge(tmp_path / "set")
    assert not (tmp_path / "set").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    with pytest.raises(ConflictError, match="not empty"):
        merge(tmp_path / "full", parts)


def test_parts_of_other_conversions_are_refused(made, parts, tmp_path):
    for k, (source, options, named) in enumerate(
        [
            (
                SOURCE,
                ConvertOptions(frames_per_shard=30, quality=50, part=(1, 2)),
                "--quality: ",
            ),
            (FakeSource(many(6)), ConvertOptions(frames_per_shard=30, part=(1, 2)), "source_fingerprint"),
        ]
    ):
        run(source, tmp_path / f"other{k}", options)
        with pytest.raises(ConflictError, match=named):
            merge(tmp_path / f"set{k}", [parts[0], tmp_path / f"other{k}"])
    convert(FakeSource(many(3)), tmp_path / "finished")
    with pytest.raises(ConflictError, match="finished set with another plan"):
        merge(tmp_path / "finished", parts)


def test_a_merge_waits_for_no_run(parts, tmp_path):
    with Locks(tmp_path / "set"), pytest.raises(ConflictError, match="at work"):
        merge(tmp_path / "set", parts)
