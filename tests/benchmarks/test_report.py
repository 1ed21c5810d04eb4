"""From made-up measurements to the table, the goals and the report."""

import json
import mmap
import os

import pytest

from benchmarks import proc
from benchmarks.__main__ import main
from benchmarks.report import evaluate, write_report
from benchmarks.results import memory_growth, rows
from benchmarks.settings import CONTENDERS, chosen


def record(contender, turn, cpu, rate, **others):
    return {
        "contender": contender,
        "round": turn,
        "cpu": cpu,
        "samples_per_s": rate,
        "system": 0.01,
        "faults": 1000.0,
        "first_batch_s": 0.2,
        "peak_mib": 500.0,
        "foreign_cores": 0.0,
        "share_gap": 0.0,
        "memory": [[0.0, 1.0]],
        **others,
    }


@pytest.fixture
def run():
    records = []
    for turn, drift in enumerate((1.0, 2.0, 1.0)):
        records += [
            record("decode", turn, 0.7 * drift, 1400),
            record("wdsmix-threads2", turn, 0.77 * drift, 2500),
            record("wdsmix-workers2", turn, 0.84 * drift, 2400, system=0.06),
            record("wdsmix-temporal-threads2", turn, 1.4 * drift, 1250),
            record("webdataset-docs", turn, 3.08 * drift, 700),
            record("webdataset-tuned", turn, 1.6 * drift, 1100, foreign_cores=0.5 * turn),
        ]
    records.append({"contender": "hf-docs", "round": 0, "error": "ValueError: no", "memory": []})
    return {
        "command": "python -m benchmarks",
        "date": "2026-01-01",
        "machine": "2 cores",
        "versions": {"Python": "3.11"},
        "data": {"frames": 10, "mean_bytes": 28_600.0, "p5_bytes": 15_000.0, "p95_bytes": 39_000.0},
        "plan": {"rounds": 3, "window_s": 5.0, "warm_up_s": 1.5},
        "records": records,
        "missing": {"hf-docs": "ValueError: no"},
        "soak": {"memory": [[float(at), 500.0 + (30.0 if at == 40 else 0.0)] for at in range(60)]},
    }


def test_costs_are_ratios_within_a_round(run):
    table = {row.name: row for row in rows(run["records"])}
    assert table["wdsmix-threads2"].cost == pytest.approx(1.1)
    assert table["wdsmix-temporal-threads2"].cost == pytest.approx(1.0)
    assert table["decode"].cost == 1
    assert table["webdataset-tuned"].quiet == 1
    assert table["webdataset-tuned"].windows == 3
    assert table["webdataset-docs"].cpu == pytest.approx(3.08)
    assert table["webdataset-docs"].cpu_most == pytest.approx(6.16)
    assert "hf-docs" not in table


def test_goals(run):
    _, goals = evaluate(run)
    found = {goal.goal: goal for goal in goals}
    assert found["wdsmix-workers2: CPU time, × decoding alone"].value == pytest.approx(1.2)
    assert found["wdsmix-workers2: CPU time, × decoding alone"].met is False
    assert found["wdsmix-temporal-threads2: CPU time, × decoding alone"].met is True
    assert found["wdsmix-temporal-workers2: CPU time, × decoding alone"].met is None
    assert found["wdsmix-workers2: samples per CPU-second, × webdataset-docs"].met is True
    assert found["wdsmix-workers2: samples per CPU-second, × webdataset-tuned"].met is False
    assert found["wdsmix-workers2: samples per second, × webdataset-tuned"].met is True
    assert found["wdsmix-workers2: CPU-s in the kernel per 1,000 samples"].met is False
    assert found["wdsmix-threads2: page faults per 1,000 samples"].met is True
    assert found["wdsmix-workers2: memory over ten epochs, × that after warm-up"].met is False
    assert found["wdsmix-workers2: samples per second, × grain-tuned"].met is None


def test_the_report_and_making_it_anew(run, tmp_path):
    write_report(run, tmp_path)
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| wdsmix, 2 threads | 0.770 (0.770–1.540) | 0.010 | 1.10 | 2,500 |" in text
    assert "hf-docs: ValueError: no" in text
    assert "| **not met** |" in text
    kept = json.loads((tmp_path / "results.json").read_text())
    assert "memory" not in kept["records"][0]
    (tmp_path / "RESULTS.md").unlink()
    assert main(["--report", str(tmp_path / "results.json")]) == 0
    assert (tmp_path / "RESULTS.md").read_text() == text
    assert main(["--report", str(tmp_path / "results.json"), "--assert"]) == 1


def test_growth_needs_a_long_series():
    assert memory_growth([(0.0, 5.0)]) is None
    assert memory_growth([(float(at), 100.0) for at in range(-5, 100)]) == 1


def test_choosing():
    names = [contender.name for contender in chosen(["wdsmix-temporal", "hf"], [2])]
    assert names == ["wdsmix-temporal-threads2", "wdsmix-temporal-workers2", "hf-docs", "hf-tuned"]
    assert len(chosen([], [2])) == 20
    assert len(chosen(["grain"], [0, 1, 2])) == 6
    with pytest.raises(ValueError, match="no contender 'dali'"):
        chosen(["dali"], [2])
    assert all(name == contender.name for name, contender in CONTENDERS.items())


def test_the_kernel_is_asked_about_the_right_processes():
    before = proc.usage(os.getpid())
    block = mmap.mmap(-1, 20_000_000)
    block.write(b"x" * len(block))
    sum(range(2_000_000))
    used = proc.usage(os.getpid()) - before
    assert 0 <= used.cpu < 5
    assert used.faults > 100
    assert os.getpid() in proc.tree(os.getppid())
    assert proc.memory_mib(os.getpid()) > len(block) / 2**20
    assert proc.busy_seconds() > 0
