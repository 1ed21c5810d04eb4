"""The demo is the main job: raw sources, sets, validation, a mixture streamed."""

from __future__ import annotations

import importlib.util
import json

from wdsmix.tools.demo import SETS

from wdsmix import ShardSet, cli


def test_demo_runs_end_to_end_and_again(tmp_path, capsys):
    out = tmp_path / "demo"
    assert cli.main(["demo", str(out), "--steps", "4"]) == 0
    first = {name: ShardSet(out / "sets" / name).digest for name in SETS}
    assert cli.main(["demo", str(out), "--steps", "1"]) == 0
    assert {name: ShardSet(out / "sets" / name).digest for name in first} == first
    manifest = json.loads((out / "sets/lift/manifest.json").read_text())
    assert manifest["splits"]["train"]["episodes"] == 6
    assert manifest["splits"]["val"]["episodes"] == 2
    assert "Done in" in capsys.readouterr().out
    kinds = {name: ShardSet(out / "sets" / name).manifest.kind.partition("/")[0] for name in SETS}
    assert set(kinds.values()) == {"hdf5", "lerobot", "unitree", "nav"}
    mixture = (out / "mixture.yaml").read_text()
    assert all(f"- name: {name}\n" in mixture for name in SETS)
    assert "action: waypoints" in mixture


def test_demo_without_pyav_says_what_it_leaves_out(tmp_path, capsys, monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "av" else real(name, *more))
    out = tmp_path / "demo"
    assert cli.main(["demo", str(out), "--steps", "1"]) == 0
    told = capsys.readouterr().out
    assert "PyAV is not installed" in told
    assert "wdsmix[lerobot]" in told
    assert not (out / "sets" / "pick").exists()
    assert (out / "sets" / "drive" / "manifest.json").is_file()


def test_demo_refuses_a_folder_that_is_not_its_own(tmp_path, capsys):
    (tmp_path / "precious").write_text("x")
    assert cli.main(["demo", str(tmp_path)]) == 3
    assert (tmp_path / "precious").read_text() == "x"
    assert "not empty" in capsys.readouterr().err


def test_demo_refuses_a_file(tmp_path):
    (tmp_path / "raw.txt").write_text("x")
    assert cli.main(["demo", str(tmp_path / "raw.txt")]) == 3
