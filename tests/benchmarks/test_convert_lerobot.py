"""The benchmark of conversion runs, on little."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("av", reason="needs the extra lerobot")


def test_one_codec(capsys):
    from benchmarks import convert_lerobot

    assert convert_lerobot.main(["--codec", "h264", "--frames", "24", "--size", "64", "--rounds", "1"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["frames"] == 24
    assert 0 < found["ratio"] < 2
    assert found["whole"] > 0
