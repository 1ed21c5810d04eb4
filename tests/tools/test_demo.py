"""The demo is the main job: raw sources, sets, validation, a mixture streamed."""

from __future__ import annotations

import json

from wdsmix import ShardSet, cli


def test_demo_runs_end_to_end_and_again(tmp_path, capsys):
    out = tmp_path / "demo"
    assert cli.main(["demo", str(out), "--steps", "4"]) == 0
    first = {name: ShardSet(out / "sets" / name).digest for name in ("lift", "chunks", "aloha")}
    assert cli.main(["demo", str(out), "--steps", "1"]) == 0
    assert {name: ShardSet(out / "sets" / name).digest for name in first} == first
    manifest = json.loads((out / "sets/lift/manifest.json").read_text())
    assert manifest["splits"]["train"]["episodes"] == 6
    assert manifest["splits"]["val"]["episodes"] == 2
    assert "Done in" in capsys.readouterr().out


def test_demo_refuses_a_folder_that_is_not_its_own(tmp_path, capsys):
    (tmp_path / "precious").write_text("x")
    assert cli.main(["demo", str(tmp_path)]) == 3
    assert (tmp_path / "precious").read_text() == "x"
    assert "not empty" in capsys.readouterr().err


def test_demo_refuses_a_file(tmp_path):
    (tmp_path / "raw.txt").write_text("x")
    assert cli.main(["demo", str(tmp_path / "raw.txt")]) == 3
