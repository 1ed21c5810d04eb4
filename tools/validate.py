"""``wdsmix validate``: whether a shard set is whole."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from wdsmix.texts import counted

if TYPE_CHECKING:
    from rich.console import Console

    from wdsmix.shards.verify import Report

__all__ = ["HELP", "configure", "run"]

HELP = """Check a shard set on disk or in a store.

  list    names and sizes of the files against manifest.json
  head    and, in a store, what it says of each object against what was pushed; no shard is read
  quick   and the small files: checksums, index, frame tables, statistics, all cross references (default)
  full    and every byte: sha256, crc32c of every frame, tar headers, members, vectors, JSON; every picture decoded;
          counts and statistics recomputed

Of a folder to which `wdsmix fetch` brought some of the shards, those alone are checked, and the report says so.
All faults are reported, each with file, place, what was expected and what was found.
A manifest can't vouch for itself: --digest compares it with the version you noted (`wdsmix inspect` shows it).
Of a set in a store, full streams every shard; nothing is kept on disk. URL may be that of the set (its latest version
is checked) or of one version.
Exit codes: 0 whole, 1 faults, 2 no such set or bad usage, 3 changed while it was read, 4 authentication or network.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("set", metavar="SET", help="folder or URL of the shard set")
    parser.add_argument(
        "--level", choices=["list", "head", "quick", "full"], default="quick", help="how deep to look (quick)"
    )
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="processes, one shard each (0: the CPUs)")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="faults to show of each kind (20)")
    parser.add_argument("--digest", default="", metavar="HEX", help="version the set must have, or its first digits")
    parser.add_argument(
        "--paths", action="store_true", help="one line a file: = fine, - missing, + foreign, . never fetched, * faults"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress, and no table if all is well")


def run(args: argparse.Namespace) -> int:
    """Checks, shows, and returns 0 or 1."""
    import json
    import os
    import sys
    from contextlib import ExitStack

    from wdsmix.tools.console import plain, result_console

    from wdsmix.errors import ConfigError
    from wdsmix.progress import Progress
    from wdsmix.shards.verify import verify

    for option, least in (("jobs", 0), ("limit", 1)):
        if getattr(args, option) < least:
            raise ConfigError(
                "bad value", where=f"--{option}", expected=f"{least} or more", found=getattr(args, option)
            )
    jobs = args.jobs or min(len(os.sched_getaffinity(0)), 16)
    with ExitStack() as stack:

        def progress(frames: int) -> Progress:
            return stack.enter_context(Progress(frames, "frames", "validate", quiet=args.json or args.quiet))

        report = verify(
            _place(args.set),
            level=args.level,
            jobs=jobs,
            limit=args.limit,
            digest=args.digest,
            progress=lambda frames: progress(frames).advance,
        )
    if args.json:
        sys.stdout.write(json.dumps(report.to_json(), indent=1, ensure_ascii=False) + "\n")
    else:
        if args.paths:
            for name, symbol in report.paths.items():
                result_console().print(f"{symbol} {plain(name)}")
        if not (args.quiet and report.ok):
            _show(report, result_console())
    return 0 if report.ok else 1


def _place(text: str) -> str:
    """What was named; as a URL if it is a folder with versions, which another tool copied from a store as they were."""
    from pathlib import Path

    from wdsmix.store.opening import is_url
    from wdsmix.store.versions import LATEST, MANIFEST

    folder = Path(text)
    versions = not is_url(text) and (folder / LATEST).is_file() and not (folder / MANIFEST).exists()
    return folder.absolute().as_uri() if versions else text


def _show(report: Report, console: Console) -> None:
    from rich.table import Table
    from wdsmix.tools.console import plain

    from wdsmix.shards.faults import CHECKS

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (("", "left"), ("check", "left"), ("looked at", "right"), ("faults", "right")):
        table.add_column(title, justify="right" if justify == "right" else "left")
    faults = report.faults
    for check in CHECKS:
        if check.kind == "store" and check.kind not in report.asked:
            continue  # a question to stores only
        bad = faults.counts[check.kind]
        seen = faults.examined[check.kind]
        if check.kind not in report.asked and not bad:
            table.add_row("·", plain(check.title), "", "", style="dim")
            continue
        symbol = "[red]✗[/]" if bad else "[green]✓[/]"
        table.add_row(
            symbol,
            plain(check.title),
            f"{seen:,} {check.unit if seen != 1 else check.unit[:-1]}" if seen else "",
            f"[red]{bad:,}[/]" if bad else "0",
        )
    console.print(table)
    for check in CHECKS:
        kept = faults.kept.get(check.kind, [])
        for fault in kept:
            console.print(f"[red]✗[/] {check.kind}: {plain(str(fault))}")
        if (more := faults.counts[check.kind] - len(kept)) > 0:
            console.print(f"[red]✗[/] {check.kind}: and {more:,} more (--limit shows more)")
    if report.left_out:
        console.print(
            f"· {counted(len(report.left_out), 'shard was', 'shards were')} never fetched to this folder: nothing was "
            "asked of them, nor of sums over all shards"
        )
    name = plain(report.name or report.path)
    version = f" {report.digest[:12]}" if report.digest else ""
    if report.ok:
        console.print(f"[green]✓[/] {name}{version}: no faults at level {report.level}")
    else:
        console.print(f"[red]✗[/] {name}{version}: {counted(faults.total, 'fault')} at level {report.level}")
