"""The training benchmark's page and picture, from made-up runs."""

from __future__ import annotations

import json

from benchmarks import train


def run(ratio: float, seconds: float) -> dict:
    row = {"mse": ratio, "l1": 0.1, "mean_mse": 1.0, "ratio": ratio}
    return {
        "command": "wdsmix train mixture.yaml --policy x",
        "seconds": seconds,
        "cpu_seconds": 2 * seconds,
        "curve": [{"step": 50, **row, "ratio": 2.0}, {"step": 100, **row}],
        "sources": {name: {"split": "val", "frames": 3, **row} for name in ("lift", "drive")},
    }


def test_page_and_picture_say_which_goals_are_met(tmp_path):
    runs = {"bc": run(0.2, 119.0), "transformer": run(0.49, 300.0), "vla": run(0.5, 9.0)}
    report = {"machine": "a machine", "goal": 0.5, "policies": runs}
    (tmp_path / "results-train.json").write_text(json.dumps(report))
    assert train.main(["--draw", "--output", str(tmp_path)]) == 0
    page = (tmp_path / "RESULTS-train.md").read_text()
    assert "| bc | 100 | 119 | 238 | 0.2000 | 1.0000 | 0.200 | met |" in page
    assert "| vla | 100 | 9 | 18 | 0.5000 | 1.0000 | 0.500 | not met |" in page
    assert "| transformer | 0.490 | 0.490 |" in page
    assert page.count("wdsmix train mixture.yaml") == 1
    late = train.markdown({**report, "policies": {"bc": run(0.2, 121.0)}}, plot=None)
    assert "met, but not within 120 s" in late
    assert "![" not in late
