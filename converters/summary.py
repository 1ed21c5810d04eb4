"""What a conversion made and left out, as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wdsmix.manifest import Dropped, Manifest
from wdsmix.texts import counted, printable

if TYPE_CHECKING:
    from wdsmix.converters.run import Outcome

__all__ = ["exit_code", "show", "show_set", "too_many_dropped", "unreadable_files"]

_NAMES_SHOWN = 3
_REASONS_SHOWN = 12


def exit_code(dropped: Sequence[Dropped]) -> int:
    """1 if a whole file was unreadable, else 0: single bad episodes are the policy's to judge."""
    return int(any(drop.kind == "file" for drop in dropped))


def unreadable_files(dropped: Sequence[Dropped]) -> str:
    """What to say where whole files were unreadable; empty where none was."""
    files = [drop for drop in dropped if drop.kind == "file"]
    if not files:
        return ""
    first = f"{files[0].source_file}: {files[0].reason}"
    return f"{counted(len(files), 'unreadable file')} left out" + (
        f", the first: {first}" if files[1:] else f": {first}"
    )


def too_many_dropped(dropped: Sequence[Dropped], kept: int, most: float) -> str:
    """What to say where more of the episodes than a share were bad; empty where not.

    Args:
        dropped: What was left out; what a filter left out was asked for and does not count.
        kept: Episodes of the set.
        most: The share, 0 to 1, of all that were wanted.
    """
    bad = [drop for drop in dropped if drop.kind != "filter"]
    if not bad or len(bad) <= most * (len(bad) + kept):
        return ""
    reasons: dict[str, int] = {}
    for drop in bad:
        reasons[drop.reason] = reasons.get(drop.reason, 0) + 1
    reason, count = max(reasons.items(), key=lambda item: item[1])
    return (
        f"{len(bad):,} of {len(bad) + kept:,} episodes were left out, more than --max-dropped {most:g} allows; "
        f"{counted(count, 'time')}: {reason}"
    )


def show(outcome: Outcome, *, console: Console | None = None) -> None:
    """Shows what a run did, the set or part it made, what was left out, and warnings."""
    console = Console() if console is None else console
    if outcome.manifest is None:
        _show_part(outcome, console)
    else:
        show_set(outcome.folder, outcome.manifest, console=console)
    if outcome.already_complete:
        console.print("The set was already complete; nothing was written.")
    else:
        rate = outcome.frames / max(outcome.seconds, 1e-9)
        console.print(f"{counted(outcome.frames, 'frame')} written in {outcome.seconds:.1f} s ({rate:,.0f} frames/s).")
    if outcome.manifest is None:
        console.print("When all parts are done, join them with `wdsmix merge`.")


def show_set(folder: Path, manifest: Manifest, *, console: Console | None = None) -> None:
    """Shows a finished set."""
    console = Console() if console is None else console
    table = _table(f"{manifest.name}: {folder}")
    size = sum(entry.bytes for entry in manifest.files)
    _row(table, "source", f"{manifest.kind}, {manifest.source_fps:g} frames/s, embodiment {manifest.embodiment}")
    _row(table, "stored", f"{manifest.hz:g} frames/s, {_bytes(size)} in {counted(len(manifest.files) + 1, 'file')}")
    for split, counts in manifest.splits.items():
        shards = counted(counts.shards, "shard")
        _row(table, split, f"{counted(counts.episodes, 'episode')}, {counted(counts.frames, 'frame')}, {shards}")
    for slot, camera in sorted(manifest.cameras.items()):
        sizes = ", ".join(f"{width}x{height}" for width, height in camera.sizes[:3])
        sizes += ", ..." if len(camera.sizes) > 3 else ""
        share = 100 * camera.passthrough / camera.frames if camera.frames else 0.0
        _row(
            table,
            slot,
            f"{camera.key}: {camera.frames:,} {camera.encoding} of {sizes or 'no size'}, {share:.0f} % passed through",
        )
    for name, vector in manifest.vectors.items():
        _row(table, name, f"{counted(vector.width, 'dimension')}, {counted(vector.frames, 'frame')}")
    report = manifest.details.get("report")
    for label, text in report.items() if isinstance(report, dict) else ():  # what the family measured
        _row(table, str(label), str(text))
    asked = manifest.arguments.get("max_episodes")
    if isinstance(asked, int) and manifest.counts.episodes < asked:
        _row(
            table,
            "asked for",
            f"{counted(asked, 'episode')} (--max-episodes), got {manifest.counts.episodes:,}: the source has no more "
            "good ones, or some proved bad only while they were read, which are not replaced",
        )
    _print(console, table)
    _show_dropped(manifest.dropped, console)
    _show_warnings(manifest.warnings, console)


def _show_part(outcome: Outcome, console: Console) -> None:
    plan = outcome.plan
    rows = [row for receipt in outcome.receipts for row in receipt.episodes]
    table = _table(f"part of {plan.name}: {outcome.folder}")
    _row(table, "shards", f"{len(outcome.receipts):,} of {len(plan.shards):,}")
    _row(table, "stored", f"{counted(len(rows), 'episode')}, {counted(sum(row.frames for row in rows), 'frame')}")
    size = sum(entry.bytes for receipt in outcome.receipts for entry in receipt.files)
    _row(table, "bytes", _bytes(size))
    _print(console, table)
    _show_dropped(outcome.dropped, console)
    _show_warnings(plan.warnings, console)


def _show_dropped(dropped: Sequence[Dropped], console: Console) -> None:
    if not dropped:
        return
    groups: dict[tuple[str, str], list[Dropped]] = {}  # reasons that differ in numbers alone are one
    for drop in dropped:
        groups.setdefault((drop.kind, re.sub(r"\d+", "0", drop.reason)), []).append(drop)
    table = Table(title=f"left out: {len(dropped):,}", title_justify="left", show_edge=False, pad_edge=False)
    for column in ("count", "what", "reason", "which"):
        table.add_column(column, justify="right" if column == "count" else "left", overflow="fold")
    ranked = sorted(groups.items(), key=lambda item: (item[0][0] != "file", -len(item[1])))
    for (kind, _), drops in ranked[:_REASONS_SHOWN]:
        reason = drops[0].reason + (" (and alike)" if any(drop.reason != drops[0].reason for drop in drops) else "")
        names = ["/".join(part for part in (drop.source_file, drop.source_episode) if part) for drop in drops]
        shown = ", ".join(names[:_NAMES_SHOWN]) + (", ..." if len(names) > _NAMES_SHOWN else "")
        what = {"file": "unreadable file", "episode": "bad episode", "filter": "filtered"}[kind]
        _row(table, f"{len(drops):,}", what, reason, shown)
    _print(console, table)
    if len(ranked) > _REASONS_SHOWN:
        console.print(f"... and {len(ranked) - _REASONS_SHOWN} more reasons; all are in manifest.json")


def _show_warnings(warnings: Sequence[str], console: Console) -> None:
    for warning in warnings:
        console.print(f"[yellow]warning:[/yellow] {escape(printable(warning))}", highlight=False, soft_wrap=True)


def _table(title: str) -> Table:
    table = Table(
        title=escape(printable(title)), title_justify="left", show_header=False, show_edge=False, pad_edge=False
    )
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    return table


def _row(table: Table, *cells: str) -> None:
    table.add_row(*(escape(printable(cell)) for cell in cells))


def _print(console: Console, table: Table) -> None:
    console.print(table)
    console.print()


def _bytes(count: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
