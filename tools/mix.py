"""`wdsmix mix`: drafts a mixture, says what it will do, streams it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsmix.errors import ConfigError, ConflictError, WdsmixError
from wdsmix.texts import counted

if TYPE_CHECKING:
    from wdsmix.mixture.plan import SourcePlan

__all__ = ["HELP", "configure", "run"]

HELP = """Weighted mixtures: draft a mixture.yaml, say what it will do, stream it.

  wdsmix mix init sets/lift sets/chunks       draft mixture.yaml from shard sets
  wdsmix mix plan mixture.yaml                shares, epochs, dims, padding, picture sizes, live bytes
  wdsmix mix run mixture.yaml --steps 200     stream batches: samples/s, realised shares
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the three actions."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    init = actions.add_parser("init", help=(h := "draft a mixture.yaml for some shard sets"), description=h)
    init.add_argument("sets", nargs="+", metavar="SET", help="folders or URLs of shard sets")
    init.add_argument("--out", default="mixture.yaml", metavar="FILE", help="file to write; - for stdout (%(default)s)")
    init.add_argument("--weights", choices=("frames", "equal"), default="frames", help="shares (%(default)s)")
    init.add_argument("--force", action="store_true", help="replace the file if it is there")

    plan = actions.add_parser("plan", help=(h := "say what a mixture will do; reads no shard"), description=h)
    plan.add_argument("mixture", metavar="MIXTURE.YAML")
    plan.add_argument("--samples", type=_positive, metavar="N", help="samples to count epochs for (1000000)")
    plan.add_argument("--steps", type=_positive, metavar="N", help="or: steps of batch size x world size")
    plan.add_argument("--batch-size", type=_positive, default=64, metavar="B", help="samples a rank (%(default)s)")
    plan.add_argument("--world-size", type=_positive, default=1, metavar="R", help="ranks (%(default)s)")
    plan.add_argument("--json", action="store_true", help="print JSON")

    stream = actions.add_parser("run", help=(h := "stream batches and measure"), description=h)
    stream.add_argument("mixture", metavar="MIXTURE.YAML")
    stream.add_argument("--steps", type=_positive, default=100, metavar="N", help="batches (%(default)s)")
    stream.add_argument("--batch-size", type=_positive, default=64, metavar="B", help="samples a rank (%(default)s)")
    stream.add_argument("--world-size", type=_positive, metavar="R", help="ranks (WORLD_SIZE, else 1)")
    stream.add_argument("--rank", type=int, metavar="R", help="whose batches to stream (RANK, else 0)")
    stream.add_argument("--threads", type=_positive, metavar="N", help="threads that decode (the cores)")
    stream.add_argument("--workers", type=int, default=0, metavar="N", help="DataLoader worker processes (%(default)s)")
    stream.add_argument("--json", action="store_true", help="print JSON")


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, found {text!r}")
    return value


def run(args: argparse.Namespace) -> int:
    """Runs the chosen action."""
    return {"init": _init, "plan": _plan, "run": _run}[args.action](args)


def _init(args: argparse.Namespace) -> int:
    from wdsmix.mixture.draft import draft_mixture

    out = None if args.out == "-" else Path(args.out)
    text = draft_mixture(args.sets, folder=Path.cwd() if out is None else out.parent, weights=args.weights)
    if out is not None and out.exists() and not args.force:
        raise ConflictError("the file is there already", path=out, hint="name another with --out, or say --force")
    if out is None:
        sys.stdout.write(text)
        return 0
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    sys.stdout.write(f"wrote {out}; next: wdsmix mix plan {out}\n")
    return 0


def _plan(args: argparse.Namespace) -> int:
    from dataclasses import asdict

    from wdsmix.mixture.catalog import open_catalog
    from wdsmix.mixture.config import load_mixture
    from wdsmix.mixture.plan import plan_sources, plan_summary

    if args.samples and args.steps:
        raise ConfigError("--samples and --steps exclude each other", where="--samples", expected="one of them")
    catalog = open_catalog(load_mixture(args.mixture))
    samples = args.samples or (args.steps * args.batch_size * args.world_size if args.steps else 1_000_000)
    plans = plan_sources(catalog, samples)
    summary = plan_summary(catalog, samples)
    if args.json:
        _write_json({**summary, "sources": [asdict(plan) for plan in plans]})
        return 0
    _show_plan(plans, summary)
    return 0


def _show_plan(plans: Sequence[SourcePlan], summary: dict[str, Any]) -> None:
    console = _console()
    console.print(
        _table(
            f"Mixture over {counted(summary['samples'], 'sample')}",
            ["source", "share", "episodes", "frames", "Hz", "epochs", "live bytes"],
            [
                [
                    plan.name,
                    f"{100 * plan.share:.2f} %",
                    f"{plan.episodes:,}",
                    f"{plan.frames:,}",
                    f"{plan.hz:g}",
                    f"{plan.epochs:,.2f}",
                    _bytes(plan.live_bytes),
                ]
                for plan in plans
            ],
            left=1,
        )
    )
    console.print(
        _table(
            "Sets",
            ["source", "set and version", "split", "embodiment", "id"],
            [[plan.name, plan.set, plan.split, plan.embodiment or "-", str(plan.embodiment_id)] for plan in plans],
            left=4,
        )
    )
    dims = summary["dims"]
    cameras = summary["cameras"]
    rows = []
    for plan in plans:
        cells = [plan.name]
        for name in dims:
            own = plan.dims.get(name)
            cells.append("none, masked" if own is None else f"{own} → {dims[name]}\n{plan.normalize[name]}")
        cells += [", ".join(plan.pictures[slot]) or "none, masked" for slot in cameras]
        rows.append(cells)
    console.print(_table("A sample", ["source", *dims, *cameras], rows, left=1 + len(dims) + len(cameras)))
    height, width = summary["picture"]
    pictures = f"pictures {width}x{height} (resize: {summary['resize']})" if cameras else "no pictures"
    chunk = summary["action_chunk"]
    console.print(
        f"{pictures}; observations at {summary['observation_offsets']}; "
        f"actions at 0 ... {chunk - 1}{''.join(f'; {name}' for name in summary['reward_done'])}\n"
        f"streams {summary['streams']}, window {summary['window']:,} frames a source, blocks of about "
        f"{_bytes(summary['block_bytes'])}, seed {summary['seed']}; live: about "
        f"{_bytes(sum(plan.live_bytes for plan in plans))} of encoded frames (two windows a source)",
        soft_wrap=True,
    )
    room, needed = summary["cache_room"], sum(plan.live_bytes for plan in plans if plan.remote)
    if room is not None and needed > room:
        console.print(
            f"the cache has room for {_bytes(room)} of the {_bytes(needed)} that are live of sets in stores: frames "
            "will be fetched more than once; a higher cache_limit or a smaller window helps",
            soft_wrap=True,
        )
    if len({plan.hz for plan in plans}) > 1 and (chunk > 1 or len(summary["observation_offsets"]) > 1):
        spans = ", ".join(f"{plan.name} {chunk / plan.hz:.3g} s" for plan in plans)
        console.print(f"the sources differ in rate: {chunk} actions span {spans}", soft_wrap=True)
    for plan in plans:
        for name, numbers in plan.masked.items():
            console.print(f"{plan.name}: {name} dimensions {numbers} have no spread: always 0, masked", soft_wrap=True)
        for name, numbers in plan.ranged.items():
            console.print(
                f"{plan.name}: {name} dimensions {numbers}: q01 and q99 (nearly) coincide; minimum and maximum used",
                soft_wrap=True,
            )


def _run(args: argparse.Namespace) -> int:
    import resource

    from torch.utils.data import DataLoader

    from wdsmix.mixture.loader import MixtureDataset
    from wdsmix.progress import Progress

    if args.workers < 0:
        raise ConfigError("bad value", where="--workers", expected="0 or more", found=args.workers)
    rank = 0 if args.rank is None and args.world_size is not None else args.rank
    dataset = MixtureDataset(
        args.mixture, args.batch_size, rank=rank, world_size=args.world_size, num_threads=args.threads
    )
    batches = iter(DataLoader(dataset, batch_size=None, num_workers=args.workers) if args.workers else dataset)

    def cpu() -> float:
        parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(part.ru_utime + part.ru_stime for part in parts)

    started, used = time.perf_counter(), cpu()
    first = 0.0
    cursor: dict[str, Any] = {}
    with Progress(args.steps * args.batch_size, "samples", "mix run", quiet=args.json) as progress:
        for number in range(args.steps):
            batch = _next(batches)
            cursor = batch["cursor"]
            first = first or time.perf_counter() - started
            progress.advance(args.batch_size, step=number + 1)
    wall = time.perf_counter() - started
    del batches  # ends the workers, so that their time counts
    samples = args.steps * args.batch_size
    counts = cursor["order"]["counts"]
    total = sum(counts.values())
    weights = {source.name: source.config.weight for source in dataset.catalog.sources}
    replaced = dataset.metrics()["replaced"]
    report = {
        "replaced": replaced,
        "steps": args.steps,
        "samples": samples,
        "global_samples": total,
        "seconds": wall,
        "samples_per_second": samples / wall,
        "cpu_seconds_per_1000_samples": 1000 * (cpu() - used) / samples,
        "first_batch_seconds": first,
        "sources": [
            {
                "name": source.name,
                "asked": weights[source.name] / sum(weights.values()),
                "realised": counts[source.name] / total,
                "samples": counts[source.name],
                "frames": int(source.frames.sum()),
                "epochs": counts[source.name] / int(source.frames.sum()),
            }
            for source in dataset.catalog.sources
        ],
    }
    if args.json:
        _write_json(report)
        return 0
    _show_run(report)
    return 0


def _next(batches: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The next batch; of an error in a worker the message, without the worker's traceback."""
    try:
        return next(batches)
    except WdsmixError as error:
        if "Original Traceback" not in error.message:
            raise
        last = error.message.rstrip().rsplit("\n", 1)[-1]
        raise type(error)(last.split(": ", 1)[-1]) from error


def _show_run(report: dict[str, Any]) -> None:
    console = _console()
    console.print(
        _table(
            f"{counted(report['global_samples'], 'sample')} over all ranks",
            ["source", "asked", "realised", "samples", "frames", "epochs"],
            [
                [
                    source["name"],
                    f"{100 * source['asked']:.3f} %",
                    f"{100 * source['realised']:.3f} %",
                    f"{source['samples']:,}",
                    f"{source['frames']:,}",
                    f"{source['epochs']:,.3f}",
                ]
                for source in report["sources"]
            ],
            left=1,
        )
    )
    console.print(
        f"{counted(report['samples'], 'sample')} in {report['seconds']:.2f} s: "
        f"{report['samples_per_second']:,.0f} samples/s, "
        f"{report['cpu_seconds_per_1000_samples']:.3f} CPU-s per 1,000 samples, "
        f"first batch after {report['first_batch_seconds']:.2f} s",
        soft_wrap=True,
    )
    if report["replaced"]:
        console.print(f"[yellow]{counted(report['replaced'], 'sample')} could not be read: others stand in[/yellow]")


def _console() -> Any:
    """Standard output; wide enough for any table where it is no terminal."""
    from rich.console import Console

    width = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
    return Console(file=sys.stdout, highlight=False, width=width)


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> Any:
    """A table whose first ``left`` columns hold text and the others numbers."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < left else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _write_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")
