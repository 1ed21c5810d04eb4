"""RESULTS-s3.md and results-s3.json."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.contenders.wdsmix_s3 import OPTIONS
from benchmarks.report import target_row, text_table
from benchmarks.s3.rounds import CONNECTION_RATE, FIRST_BYTE, KINDS, STORE_RATE, STREAMING
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
_PICTURE = "results-s3.png"
MEMORY_MIB = 200.0
"""What streaming may take beyond the loader's own; bytes that are fetched ahead wait on the disk."""


def _values(records: Sequence[Record], kind: str, field: str) -> list[float]:
    return [record[field] for record in records if record["kind"] == kind]


def _ratio(records: Sequence[Record], ours: str, theirs: str) -> float | None:
    """Median over the rounds of how many times faster ours is."""
    pairs = zip(_values(records, ours, "wall_s"), _values(records, theirs, "wall_s"), strict=False)
    found = [their / own for own, their in pairs]
    return median(found) if found else None


def _streamed(run: Record, name: str, field: str) -> list[Any]:
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


def _until_full_speed(run: Record, name: str) -> float | None:
    """s from the start until a second passed at 0.9 of the speed of local sets; median over the rounds."""
    local = _streamed(run, f"local-{name}", "samples_per_s")
    found = []
    for timeline in _streamed(run, f"s3-{name}", "timeline") if local else ():
        times, rates = np.array(timeline).T
        rates = np.convolve(rates, [0.5, 0.5], "valid")  # two steps: a second
        fast = np.flatnonzero(rates >= 0.9 * median(local))
        found.append(float(times[fast[0]]) if len(fast) else float("inf"))
    return median(found) if found else None


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
    for name in KINDS:
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
            f"{median(_streamed(run, name, 'store_mb_s')):,.0f}",
            f"{median(_streamed(run, name, 'store_cores')):.2f}",
            f"{median(_streamed(run, name, 'foreign_cores')):.2f}",
        )
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def _start(run: Record) -> list[str]:
    """What a start costs."""
    found = {name: _until_full_speed(run, name) for name in KINDS}
    said = [f"{STREAMING[f's3-{name}'].title} {at:.1f} s" for name, at in found.items() if at is not None]
    if not said:
        return []
    return [
        "From the start until a whole second passes at nine tenths of the local speed: "
        + ", ".join(said)
        + ". Until then the store's rate decides: a window of draws touches most of its blocks at once."
        + (f"\n\n![rates from the start on]({_PICTURE})" if run.get("picture") else "")
    ]


def _draw(run: Record, path: Path) -> bool:
    """Samples a second from the start on; False where matplotlib is not there."""
    shown = [r for r in run.get("streaming", ()) if r.get("timeline")]
    if not shown or importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(12, 4), layout="tight")
    for name, colour in zip(KINDS, ("tab:green", "tab:red", "tab:blue", "tab:orange"), strict=True):
        mine = [np.array(r["timeline"][:-1]) for r in shown if r["name"] == f"s3-{name}"]
        for k, timeline in enumerate(mine):
            axes.plot(*timeline.T, color=colour, alpha=0.6, label=STREAMING[f"s3-{name}"].title if not k else None)
        local = _streamed(run, f"local-{name}", "samples_per_s")
        if local:
            axes.axhline(median(local), color=colour, linestyle="--", label=STREAMING[f"local-{name}"].title)
    axes.set(xlabel="s since the start, with an empty cache", ylabel="samples per second", ylim=(0, None))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), fontsize=8)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


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
            "of 16 MiB (up) and 8 MiB (down) on both sides. wdsmix also compares every file with its checksum, sends "
            "MD5s, and publishes a version; boto3 does not.",
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
            f"cache is empty at each start and may take {OPTIONS['cache_limit']}, the order's window is "
            f"{OPTIONS['window']:,} frames a source; measured for {plan['window_s']:g} s in the first epoch, "
            f"{plan['warm_up_s']:g} s after the start: by then the cache is full, and as many bytes come and go as are "
            "used. Contents of batches are checked. The store is a process of this machine: "
            "beside one decoding thread it has a core; where every core decodes, it takes its share of them, as do the "
            "network and the cache.",
            text_table(
                "source | samples/s | CPU-s per 1,000 samples | first batch, s | peak MiB | MB/s from the store | "
                "cores of the store | foreign cores",
                _streaming_rows(run),
            ),
            *_start(run),
        ]
    failed = [f"{r['name']}: {r['error']}" for r in run.get("streaming", ()) if "error" in r]
    if failed:
        parts.append("Failed: " + "; ".join(dict.fromkeys(failed)) + ".")
    parts += ["## Goals", text_table("goal | bound | measured | ", [target_row(goal) for goal in goals(run)])]
    return "\n\n".join(parts) + "\n"


def write_report(run: Record, folder: Path) -> list[Target]:
    """Writes both files; returns the goals."""
    folder.mkdir(parents=True, exist_ok=True)
    run = {**run, "picture": _draw(run, folder / _PICTURE)}
    found = goals(run)
    whole = {**run, "goals": [{**asdict(goal), "met": goal.met} for goal in found]}
    (folder / "results-s3.json").write_text(json.dumps(whole, indent=1, sort_keys=True, ensure_ascii=False) + "\n")
    (folder / "RESULTS-s3.md").write_text(markdown(run))
    return found
