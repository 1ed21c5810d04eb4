"""``python -m benchmarks.s3``: push and fetch beside boto3, ranged reads, streaming beside local sets. See --help."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from dataclasses import asdict, replace
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.data import FULL, QUICK
from benchmarks.environments import REPOSITORY
from benchmarks.machine import machine, versions, warm_cache
from benchmarks.rounds import Plan
from benchmarks.s3.report import write_report
from benchmarks.s3.rounds import STREAMING, ranged_rounds, streaming_rounds, transfer_rounds
from benchmarks.s3.sets import bytes_of, make_sets

__all__ = ["main"]

_PARTS = ("transfers", "ranged", "streaming")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.s3",
        description="Measures push, fetch and streaming from object storage. Wants an otherwise idle machine.",
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round: does it all run?")
    parser.add_argument(
        "--only", default="", help=f"parts, such as transfers,ranged ({', '.join(_PARTS)}; default: all)"
    )
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--window", type=float, help="seconds a measurement of streaming (default: 10)")
    parser.add_argument("--assert", dest="strict", action="store_true", help="exit 1 if a measured goal is not met")
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".bench", help="data and scratch (.bench)")
    parser.add_argument("--output", type=Path, help="folder of the report (default: benchmarks/, else WORK/results)")
    parser.add_argument("--report", type=Path, metavar="RESULTS.json", help="only write the report of a past run anew")
    return parser


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """Does what the arguments say; returns the exit code."""
    args = _parser().parse_args(arguments)
    if args.report:
        goals = write_report(json.loads(args.report.read_text()), args.output or args.report.parent)
        return int(args.strict and any(goal.met is False for goal in goals))
    only = [part for part in args.only.split(",") if part] or list(_PARTS)
    if unknown := set(only) - set(_PARTS):
        raise SystemExit(f"no part {', '.join(sorted(unknown))}; there are {', '.join(_PARTS)}")
    scale = QUICK if args.quick else FULL
    plan = Plan(rounds=1, window_s=1.0, warm_up_s=0.5) if args.quick else Plan(window_s=10.0, warm_up_s=12.0)
    changes = {"rounds": args.rounds, "window_s": args.window}
    plan = replace(plan, **{name: value for name, value in changes.items() if value is not None})
    work = args.work.absolute()
    root = work / scale.name
    root.mkdir(parents=True, exist_ok=True)
    _tell("sets")
    sets, first = make_sets(root, scale)
    warm_cache([sets, first])
    run: dict[str, Any] = {
        "command": shlex.join(["python", "-m", "benchmarks.s3", *(sys.argv[1:] if arguments is None else arguments)]),
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "machine": machine(),
        "plan": {**asdict(plan), "cores": os.cpu_count()},
        "versions": {**versions(work, []), "boto3": version("boto3")},
    }
    if "transfers" in only:
        run["server"], run["transfers"] = transfer_rounds(work, first, bytes_of(first), plan.rounds, _tell)
    if "ranged" in only:
        run["ranged"] = ranged_rounds(work, first, plan.rounds, _tell)
    if "streaming" in only:
        run["streaming"] = streaming_rounds(work, root, sets, plan, list(STREAMING), _tell)
    whole = not args.quick and set(only) == set(_PARTS)
    output = args.output or (REPOSITORY / "benchmarks" if whole else work / "results")
    goals = write_report(run, output)
    for goal in goals:
        if goal.met is False:
            _tell(f"not met: {goal.goal}: {goal.value:.3g}, bound {goal.bound:g}")
    _tell(f"report in {output}")
    failed = any("error" in record for record in run.get("streaming", ()))
    return int(failed or (args.strict and any(goal.met is False for goal in goals)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
