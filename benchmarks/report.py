"""RESULTS.md, results.json and results.png."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.plot import draw
from benchmarks.results import QUIET, Row, memory_growth, rows
from benchmarks.targets import Target, targets

__all__ = ["evaluate", "markdown", "target_row", "text_table", "write_report"]

_HEAD = (
    "contender | CPU-s per 1,000 samples (least–most) | of it kernel | × decode alone | samples/s median | best"
    " | page faults per 1,000 | first batch, s | peak MiB | share off by"
)


def evaluate(run: dict[str, Any]) -> tuple[list[Row], list[Target]]:
    """The table and the goals of a run.

    Args:
        run: With ``records`` and, where measured, ``soak``.
    """
    table = rows(run["records"])
    soak = run.get("soak") or {}
    return table, targets(table, memory_growth(soak["memory"]) if "memory" in soak else None)


def _row(row: Row) -> str:
    cells = (
        row.contender.title,
        f"{row.cpu:.3f} ({row.cpu_least:.3f}–{row.cpu_most:.3f})",
        f"{row.system:.3f}",
        f"{row.cost:.2f}",
        f"{row.rate:,.0f}{'' if row.quiet else ' ⁺'}",
        f"{row.rate_best:,.0f}",
        f"{row.faults:,.0f}",
        f"{row.first_batch_s:.2f}",
        f"{row.peak_mib:,.0f}",
        f"{row.share_gap:.1%}",
    )
    return "| " + " | ".join(cells) + " |"


def target_row(target: Target) -> str:
    """A goal as a line of a table."""
    bound = f"{'>' if target.strict else '≥' if target.least else '≤'} {target.bound:,g}"
    value = (
        "not measured"
        if target.value is None
        else f"{target.value:,.3g}"
        if target.value < 100
        else f"{target.value:,.0f}"
    )
    met = {None: "–", True: "met", False: "**not met**"}[target.met]
    return f"| {target.goal} | {bound} | {value} | {met} |"


def text_table(head: str, lines: Sequence[str]) -> str:
    """A table of a head (columns parted by ``|``) and finished lines."""
    columns = head.count("|") + 1
    return "\n".join([f"| {head} |", "|" + "---|" * columns, *lines])


def markdown(run: dict[str, Any], *, plot: str | None) -> str:
    """The report.

    Args:
        run: ``command``, ``date``, ``machine``, ``versions``, ``data``, ``plan``, ``records``, ``soak``, ``missing``.
        plot: Name of the picture beside it, if there is one.
    """
    table, goals = evaluate(run)
    plan, data = run["plan"], run["data"]
    windows = sum(row.windows for row in table)
    quiet = sum(row.quiet for row in table)
    parts = [
        "# Benchmark results",
        f"Made by `make bench`; not to be edited. {run['date']}, `{run['command']}`, on {run['machine']}.",
        "Versions: " + ", ".join(f"{name} {version}" for name, version in run["versions"].items()) + ".",
        f"Data: {data['frames']:,} frames of two 256×256 pictures in three sources, made from photographs; "
        f"JPEG q92 4:4:4, {data['mean_bytes'] / 1000:.1f} kB on average "
        f"(5–95 %: {data['p5_bytes'] / 1000:.0f}–{data['p95_bytes'] / 1000:.0f}). "
        "The same bytes in each contender's own format, on a local disk, in the page cache. "
        "A batch is 64 samples drawn 50 : 30 : 20, shuffled; state and action padded to 32, masks, task texts.",
        f"Protocol: {plan['rounds']} rounds, contenders in random order in each, a fresh process a measurement, "
        f"windows of {plan['window_s']:g} s after {plan['warm_up_s']:g} s of warm-up; medians. CPU time, page faults "
        "and memory are of the whole process tree. *Decode alone* is simplejpeg into a ring of rows, one thread, over "
        "the pictures the mixture draws, in the same round; × decode alone is CPU time over that of the same number of "
        "pictures. Each run's shapes, types, masks, shares and the pixels of some rows are checked, also of batches "
        "held while others were made. "
        f"{quiet} of {windows} windows had less than {QUIET:g} cores of foreign load; samples/s are medians of those "
        "(⁺: there was none, of all).",
        text_table(_HEAD, [_row(row) for row in table]),
    ]
    if run.get("missing"):
        parts.append("Not measured: " + "; ".join(f"{name}: {why}" for name, why in run["missing"].items()) + ".")
    if plot:
        parts.append(f"![CPU time a thousand samples, over that of decoding alone]({plot})")
    parts += ["## Goals", text_table("goal | bound | measured | ", [target_row(target) for target in goals])]
    return "\n\n".join(parts) + "\n"


def write_report(run: dict[str, Any], folder: Path) -> list[Target]:
    """Writes the three files.

    Args:
        run: As for `markdown`.
        folder: Where.

    Returns:
        The goals.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table, goals = evaluate(run)
    kept = [{name: value for name, value in record.items() if name != "memory"} for record in run["records"]]
    summary = {"table": [asdict(row) for row in table], "goals": [{**asdict(goal), "met": goal.met} for goal in goals]}
    text = json.dumps({**run, **summary, "records": kept}, indent=1, sort_keys=True, ensure_ascii=False)
    (folder / "results.json").write_text(text + "\n")
    drawn = draw(table, folder / "results.png")
    (folder / "RESULTS.md").write_text(markdown(run, plot="results.png" if drawn else None))
    return goals
