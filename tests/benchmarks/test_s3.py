"""The benchmark of object storage: its cheap server against our reader, and its report from made-up measurements."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.s3.__main__ import main
from benchmarks.s3.report import write_report
from benchmarks.s3.servers import shelf
from wdsmix.store import MissingObjectError, ObjectReader, open_store


def test_the_shelf_serves_ranges(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(range(256)) * 5000
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "x.tar").write_bytes(data)
    with shelf(tmp_path, total=1e9, connection=1e9) as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        store = open_store("s3://bench/a b")
        reader = ObjectReader(store, "x.tar", size=len(data))
        assert reader.read() == data
        assert reader.read(1000, 700_000) == data[1000:700_000]
        assert b"".join(bytes(part) for part in reader.ranged(part=100_000)) == data
        assert store.head("x.tar").size == len(data)
        with pytest.raises(MissingObjectError):
            store.read("y.tar")


def transfer(kind: str, turn: int, wall: float) -> dict[str, object]:
    return {"kind": kind, "round": turn, "bytes": 10**9, "wall_s": wall, "cpu_s": 2.5, "peak_mib": 100.0}


def streamed(name: str, turn: int, rate: float, peak: float) -> dict[str, object]:
    return {
        "name": name,
        "round": turn,
        "samples_per_s": rate,
        "cpu": 0.8,
        "first_batch_s": 0.2,
        "peak_mib": peak,
        "foreign_cores": 0.0,
        "store_mb_s": 130.0 if name.startswith("s3") else 0.0,
        "store_cores": 0.1 if name.startswith("s3") else 0.0,
        "timeline": [[0.0, 100.0], [0.5, 1900.0], [1.0, 1800.0], [1.5, 1900.0]] if name.startswith("s3") else [],
    }


def test_the_report(tmp_path: Path) -> None:
    run = {
        "date": "2026-01-01",
        "command": "python -m benchmarks.s3",
        "machine": "2 cores",
        "versions": {"wdsmix": "0.1"},
        "plan": {"window_s": 4.0, "warm_up_s": 30.0, "cores": 2},
        "server": "Ceph radosgw",
        "transfers": [
            transfer(kind, turn, wall * (turn + 1))
            for turn in range(3)
            for kind, wall in (("push", 5.0), ("upload", 4.0), ("fetch", 2.0), ("download", 2.5))
        ],
        "ranged": [transfer(kind, 0, wall) for kind, wall in (("stream", 16.0), ("ranged4", 6.0), ("ranged8", 4.0))],
        "streaming": [
            streamed("local-threads2", 0, 2000.0, 300.0),
            streamed("s3-threads2", 0, 1900.0, 350.0),
            {"name": "s3-workers2", "round": 0, "error": "WrongBatchError: no"},
        ],
    }
    goals = {goal.goal: (goal.value, goal.met) for goal in write_report(run, tmp_path)}
    assert [goals[f"{name}: speed, × boto3"] for name in ("push", "fetch")] == [(0.8, False), (1.25, True)]
    assert next(found for goal, found in goals.items() if goal.startswith("ranged")) == (4.0, True)
    assert [found for goal, found in goals.items() if "2 threads: samples" in goal] == [(0.95, True)]
    assert [found for goal, found in goals.items() if "2 threads: peak" in goal] == [(50.0, True)]
    assert [found for goal, found in goals.items() if "worker" in goal] == [(None, None)] * 4
    text = (tmp_path / "RESULTS-s3.md").read_text()
    assert "| wdsmix push | 100 (67–200) | 2.50 | 100 |" in text
    assert "local speed: from a store that gives 200 MB/s, 2 threads 0.5 s." in text
    assert "Failed: s3-workers2: WrongBatchError: no." in text
    assert json.loads((tmp_path / "results-s3.json").read_text())["goals"][0]["met"] is False
    assert main(["--report", str(tmp_path / "results-s3.json"), "--output", str(tmp_path), "--assert"]) == 1
