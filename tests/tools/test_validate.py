"""The validate command: exit codes, table, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.damage import edit_index, flip

from wdsmix.cli import main


@pytest.mark.parametrize(("level", "asked"), [("list", 5), ("quick", 11), ("full", 16)])
def test_a_whole_set(toy: Path, capsys: pytest.CaptureFixture[str], level: str, asked: int) -> None:
    assert main(["validate", str(toy), "--level", level]) == 0
    out = capsys.readouterr().out
    assert out.count("✓") == asked + 1
    assert out.count("·") == 17 - asked
    assert f"no faults at level {level}" in out
    assert "✗" not in out


def test_faults(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(toy / "train-00000.tar", 0)
    assert main(["validate", str(toy)]) == 0
    assert main(["validate", str(toy), "--level", "full", "--jobs", "1"]) == 1
    captured = capsys.readouterr()
    assert "✗ header: train-00000.tar: byte 0, row 0: damaged tar header" in captured.out
    assert "✗ crc: train-00000.tar: row 0, 000000_000000, byte 0: crc32c differs (expected " in captured.out
    assert " faults at level full" in captured.out.splitlines()[-1]
    assert "20/20 frames" in captured.err


def test_faults_beyond_the_limit_are_counted(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(rows: list[dict]) -> None:
        for row in rows:
            row["duration"] = -1.0

    edit_index(toy, change)
    assert main(["validate", str(toy), "--limit", "2"]) == 1
    out = capsys.readouterr().out
    assert out.count("✗ index: index.parquet") == 2
    assert "✗ index: and 3 more (--limit shows more)" in out


def test_json(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (toy / "stats.json").write_bytes(b"{}")
    assert main(["validate", str(toy), "--json"]) == 1
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert captured.err == ""
    assert (value["ok"], value["level"], value["name"]) == (False, "quick", "toy")
    found = {check["kind"]: check for check in value["checks"]}
    assert found["size"]["faults"] == 1
    assert found["checksum"]["faults"] == 2
    assert not found["picture"]["asked"]
    assert {detail["file"] for detail in value["details"]} == {"stats.json"}
    assert set(value["details"][0]) == {"kind", "file", "where", "message", "expected", "found"}


def test_digest(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["validate", str(toy), "--json"])
    digest = json.loads(capsys.readouterr().out)["digest"]
    assert main(["validate", str(toy), "--digest", digest[:12].upper()]) == 0
    assert main(["validate", str(toy), "--digest", "0" * 12]) == 1
    assert "another version of the set (expected 000000000000, found" in capsys.readouterr().out


def test_quiet(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(toy), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("options", [["--jobs", "-1"], ["--limit", "0"], ["--level", "deep"]])
def test_wrong_usage(toy: Path, options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(toy), *options]) == 2
    assert main(["validate", str(toy / "nowhere")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_a_folder_that_is_no_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["validate", str(tmp_path)]) == 1
    assert "✗ manifest: manifest.json: there is none: not a shard set, or not finished" in capsys.readouterr().out
    (tmp_path / "manifest.json").write_text('{"[red]": 1}')
    assert main(["validate", str(tmp_path)]) == 1


@pytest.fixture
def part(toy: Path, tmp_path: Path) -> Path:
    """A folder to which only the first train shard was fetched."""
    assert main(["fetch", toy.as_uri(), str(tmp_path / "part"), "--shards", "train-00000", "--quiet"]) == 0
    return tmp_path / "part"


@pytest.mark.parametrize("level", ["list", "quick", "full"])
def test_what_was_never_fetched_is_no_fault(part: Path, level: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["validate", str(part), "--level", level, "--paths", "--jobs", "1"]) == 0
    captured = capsys.readouterr()
    assert "2 shards were never fetched to this folder" in captured.out
    assert f"no faults at level {level}" in captured.out
    assert "✗" not in captured.out
    lines = captured.out.splitlines()
    assert [line for line in lines if line.startswith(". ")] == [
        ". train-00001.frames.arrow",
        ". train-00001.tar",
        ". val-00000.frames.arrow",
        ". val-00000.tar",
    ]
    if level != "list":
        assert "7/7 frames" in captured.err  # of the shard that is there
    assert main(["validate", str(part), "--level", level, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["not_fetched"] == ["train-00001", "val-00000"]


def test_faults_of_what_was_fetched_stay_faults(part: Path, toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(part / "train-00000.tar", 0)
    assert main(["validate", str(part), "--level", "full"]) == 1
    assert "✗ header: train-00000.tar" in capsys.readouterr().out
    (part / "train-00000.tar").unlink()  # it had been there
    (part / "train-00000.frames.arrow").unlink()
    (part / "val-00000.tar").write_bytes((toy / "val-00000.tar").read_bytes())  # so its table is missing
    assert main(["validate", str(part), "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["not_fetched"] == ["train-00001"]
    missing = {detail["file"] for detail in value["details"] if detail["kind"] == "missing"}
    assert missing == {"train-00000.tar", "train-00000.frames.arrow", "val-00000.frames.arrow"}


@pytest.mark.parametrize("notes", [None, b"", b"{}", b'{"files": []}', b"[" * 100_000])
def test_without_a_fetch_s_notes_all_shards_must_be_there(part: Path, notes: bytes | None, capsys) -> None:
    (part / ".fetched.json").unlink()
    if notes is not None:
        (part / ".fetched.json").write_bytes(notes)
    assert main(["validate", str(part), "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    assert value["not_fetched"] == []
    assert len([detail for detail in value["details"] if detail["kind"] == "missing"]) == 4
