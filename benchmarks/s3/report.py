"""RESULTS-s3.md and results-s3.json."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import target_row, text_table
from benchmarks.s3.rounds import CONNECTION_RATE, FIRST_BYTE, STORE_RATE, STREAMING
from benchmarks.s3.transfers import JOBS
from benchmarks.targets import Target

__all__ = ["goals", "markdown", "write_report"]

Record = dict[str, Any]
_TITLES = {
    "push": "wdsmix push",
    "upload": "boto3 upload_file",
    "fetch": "wdsmix fetch",
    "download": "boto3 download_file",
    "stream": "one stream",
    "ranged4": "ranged requests, 4 at a time",
    "ranged8": "ranged requests, 8 at a time",
}
MEMORY_MIB = 200.0
"""What streaming may take beyond the loader's own; bytes that are fetched ahead wait on the disk."""


def _values(records: Sequence[Record], kind: str, field: str) -> list[float]:
    return [record[field] for record in records if record["kind"] == kind]


def _ratio(records: Sequence[Record], ours: str, theirs: str) -> float | None:
    """Median over the rounds of how many times faster ours is."""
    pairs = zip(_values(records, ours, "wall_s"), _values(records, theirs, "wall_s"), strict=False)
    found = [their / own for own, their in pairs]
    return median(found) if found else None


def _streamed(run: Record, name: str, field: str) -> list[float]:
    return [r[field] for r in run.get("streaming", ()) if r["name"] == name and "error" not in r]


def _fraction(run: Record, name: str) -> float | None:
    """Samples a second from the store over those from the disk: median over the rounds."""
    found = {
        place: {
            r["round"]: r["samples_per_s"]
            for r in run.get("streaming", ())
            if r["name"] == f"{place}-{name}" and "error" not in r
        }
        for place in ("s3", "local")
    }
    both = [found["s3"][turn] / found["local"][turn] for turn in found["s3"] if turn in found["local"]]
    return median(both) if both else None


def goals(run: Record) -> list[Target]:
    """The goals of a run; what was not measured has no value."""
    transfers, ranged = run.get("transfers", ()), run.get("ranged", ())
    found = [
        Target(goal=f"{ours}: speed, × boto3", bound=0.9, least=True, value=_ratio(transfers, ours, theirs))
        for ours, theirs in (("push", "upload"), ("fetch", "download"))
    ]
    limits = f"{CONNECTION_RATE / 1e6:.0f} MB/s and {FIRST_BYTE * 1000:.0f} ms a connection"
    found.append(
        Target(
            goal=f"{_TITLES['ranged8']} (as fetch and the loader read), {limits}: speed, × one stream",
            bound=3.0,
            least=True,
            value=_ratio(ranged, "ranged8", "stream"),
        )
    )
    for name in ("threads2", "workers2"):
        title = STREAMING[f"s3-{name}"].title
        found.append(
            Target(goal=f"{title}: samples a second, × local", bound=0.9, least=True, value=_fraction(run, name))
        )
        peaks = [_streamed(run, f"{place}-{name}", "peak_mib") for place in ("s3", "local")]
        found.append(
            Target(
                goal=f"{title}: peak anonymous + shared memory beyond that of local sets, MiB",
                bound=MEMORY_MIB,
                least=False,
                value=max(peaks[0]) - max(peaks[1]) if all(peaks) else None,
            )
        )
    return found


def _transfer_rows(records: Sequence[Record]) -> list[str]:
    rows = []
    for kind in dict.fromkeys(record["kind"] for record in records):
        walls, cpus = _values(records, kind, "wall_s"), _values(records, kind, "cpu_s")
        size = next(record["bytes"] for record in records if record["kind"] == kind)
        speeds = [size / wall / 1e6 for wall in walls]
        cells = (
            _TITLES[kind],
            f"{median(speeds):,.0f} ({min(speeds):,.0f}–{max(speeds):,.0f})",
            f"{median(cpus) / size * 1e9:.2f}",
            f"{median(_values(records, kind, 'peak_mib')):,.0f}",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _streaming_rows(run: Record) -> list[str]:
    rows = []
    for name, contender in STREAMING.items():
        rates = _streamed(run, name, "samples_per_s")
        if not rates:
            continue
        cells = (
            contender.title,
            f"{median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})",
            f"{median(_streamed(run, name, 'cpu')):.3f}",
            f"{median(_streamed(run, name, 'first_batch_s')):.2f}",
            f"{max(_streamed(run, name, 'peak_mib')):,.0f}",
            f"{median(_streamed(run, name, 'foreign_cores')):.2f}",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def markdown(run: Record) -> str:
    """The report."""
    plan = run["plan"]
    parts = [
        "# Benchmark results: object storage",
        f"Made by `make bench-s3`; not to be edited. {run['date']}, `{run['command']}`, on {run['machine']}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in run["versions"].items()) + ".",
        "Each measurement is a fresh process, in turns; medians (least–most). Servers run on the same cores.",
    ]
    if run.get("transfers"):
        parts += [
            f"## push and fetch\n\nServer: {run['server']}, plain HTTP. The same "
            f"{run['transfers'][0]['bytes'] / 1e6:,.0f} MB in large shards; {JOBS} requests at a time and parts "
            "of 16 MiB (up) and 8 MiB (down) on both sides. wdsmix also compares the sha256 of every file, sends MD5s, "
            "and publishes a version; boto3 does not.",
            text_table("transfer | MB/s | CPU-s per GB | peak MiB", _transfer_rows(run["transfers"])),
        ]
    if run.get("ranged"):
        parts += [
            f"## One file from a store that gives each connection {CONNECTION_RATE / 1e6:.0f} MB/s after "
            f"{FIRST_BYTE * 1000:.0f} ms",
            text_table("reading | MB/s | CPU-s per GB | peak MiB", _transfer_rows(run["ranged"])),
        ]
    if run.get("streaming"):
        parts += [
            "## Streaming\n\nThe mixture of `make bench` (two pictures of 256×256 a sample, three sources), from a "
            f"store that gives {STORE_RATE / 1e6:.0f} MB/s in all and from local files in the page cache. The node's "
            f"cache is empty at each start; windows of {plan['window_s']:g} s after {plan['warm_up_s']:g} s, in the "
            "first epoch. Contents of batches are checked.",
            text_table(
                "source | samples/s | CPU-s per 1,000 samples | first batch, s | peak MiB | foreign cores",
                _streaming_rows(run),
            ),
        ]
    failed = [f"{r['name']}: {r['error']}" for r in run.get("streaming", ()) if "error" in r]
    if failed:
        parts.append("Failed: " + "; ".join(dict.fromkeys(failed)) + ".")
    parts += ["## Goals", text_table("goal | bound | measured | ", [target_row(goal) for goal in goals(run)])]
    return "\n\n".join(parts) + "\n"


def write_report(run: Record, folder: Path) -> list[Target]:
    """Writes both files; returns the goals."""
    folder.mkdir(parents=True, exist_ok=True)
    found = goals(run)
    whole = {**run, "goals": [{**asdict(goal), "met": goal.met} for goal in found]}
    (folder / "results-s3.json").write_text(json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    (folder / "RESULTS-s3.md").write_text(markdown(run))
    return found
