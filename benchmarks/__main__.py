"""``python -m benchmarks``: environments, data, measurements, report. See --help."""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.data import FULL, QUICK, make_stores
from benchmarks.environments import PEERS, REPOSITORY, prepare
from benchmarks.machine import machine, versions, warm_cache
from benchmarks.measure import Job
from benchmarks.report import write_report
from benchmarks.rounds import Plan, in_environment, run_one, run_rounds
from benchmarks.settings import CONTENDERS, Contender, chosen
from benchmarks.store import Store

__all__ = ["main"]

_EPOCHS = 10


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measures wdsmix beside its peers and beside JPEG decoding alone. Wants an otherwise idle machine.",
    )
    parser.add_argument("--quick", action="store_true", help="little data, one round, short windows: does it all run?")
    parser.add_argument(
        "--only", default="", help="contenders or their first parts, such as wdsmix,webdataset (default: all)"
    )
    parser.add_argument("--peer-workers", default="2", help="worker counts at which peers run (default: 2)")
    parser.add_argument("--rounds", type=int, help="default: 5")
    parser.add_argument("--window", type=float, help="seconds a measurement (default: 5)")
    parser.add_argument("--no-soak", action="store_true", help="leave out the ten epochs that watch memory")
    parser.add_argument("--assert", dest="strict", action="store_true", help="exit 1 if a measured goal is not met")
    parser.add_argument("--work", type=Path, default=REPOSITORY / ".bench", help="environments and data (.bench)")
    parser.add_argument(
        "--output", type=Path, help="folder of the report (default: benchmarks/ of a full run, else WORK/results)"
    )
    parser.add_argument("--report", type=Path, metavar="RESULTS.json", help="only write the report of a past run anew")
    return parser


def _tell(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _prepare(work: Path, root: Path, contenders: Sequence[Contender]) -> dict[str, str]:
    """Environments and formats.

    Returns:
        Contender modules that can't be measured, and why.
    """
    missing: dict[str, str] = {}
    for peer in dict.fromkeys(contender.peer for contender in contenders if contender.peer):
        _tell(f"environment of {peer}")
        reason = prepare(work, PEERS[peer])
        if reason:
            missing[peer] = reason
    for module, peer, subsampling in dict.fromkeys((c.module, c.peer, c.subsampling) for c in contenders):
        if module in missing:
            continue
        _tell(f"data for {module}, {subsampling}")
        log = root / f"{module}-{subsampling}.log"
        with log.open("w") as output:
            done = subprocess.run(
                in_environment(work, peer, "benchmarks.data", str(root), module, subsampling),
                cwd=REPOSITORY,
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            missing[module] = f"no data: {log.read_text(errors='replace').strip().splitlines()[-1][:200]}"
    return missing


def _plan(args: argparse.Namespace) -> Plan:
    plan = Plan(rounds=1, window_s=1.0, warm_up_s=0.5) if args.quick else Plan()
    changes = {"rounds": args.rounds, "window_s": args.window}
    return replace(plan, **{name: value for name, value in changes.items() if value is not None})


def _soak(work: Path, root: Path) -> dict[str, Any]:
    frames = Store(root / "store-444").facts()["frames"]
    job = Job(
        contender=CONTENDERS["wdsmix-workers2"],
        root=str(root),
        samples=_EPOCHS * int(frames),  # type: ignore[call-overload]
        marks=str(work / "run" / "mark"),
    )
    return run_one(work, job)


def main(arguments: list[str] | None = None) -> int:
    """Does what the arguments say.

    Returns:
        Exit code.
    """
    args = _parser().parse_args(arguments)
    if args.report:
        goals = write_report(json.loads(args.report.read_text()), args.output or args.report.parent)
        return int(args.strict and any(goal.met is False for goal in goals))
    scale = QUICK if args.quick else FULL
    work = args.work.absolute()
    root = work / scale.name
    root.mkdir(parents=True, exist_ok=True)
    only = [part for part in args.only.split(",") if part]
    contenders = chosen(only, [int(count) for count in args.peer_workers.split(",")])
    _tell("photographs to episodes")
    make_stores(root, scale)
    missing = _prepare(work, root, contenders)
    contenders = [contender for contender in contenders if contender.module not in missing]
    for name, why in missing.items():
        _tell(f"without {name}: {why}")
    warm_cache([root])
    plan = _plan(args)
    minutes = plan.rounds * len(contenders) * 1.2 * (plan.window_s + plan.warm_up_s + 5) / 60
    _tell(f"{plan.rounds} rounds of {len(contenders)} contenders and the anchors, about {minutes:.0f} minutes")
    command = shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    run: dict[str, Any] = {
        "command": command,
        "date": f"{datetime.now(timezone.utc):%Y-%m-%d}",
        "machine": machine(),
        "versions": versions(work, dict.fromkeys(c.peer for c in contenders if c.peer)),
        "data": Store(root / "store-444").facts(),
        "plan": asdict(plan),
    }
    run["records"] = run_rounds(work, root, contenders, plan, _tell)
    for record in run["records"]:
        if "error" in record:
            record["error"] = record["error"].replace(f"{REPOSITORY}/", "").split("\n")[0]
    failed = {record["contender"]: record["error"] for record in run["records"] if "error" in record}
    run["missing"] = {**missing, **failed}
    if not args.no_soak and any(contender.name == "wdsmix-workers2" for contender in contenders):
        _tell(f"{_EPOCHS} epochs")
        run["soak"] = _soak(work, root)
    whole = not (args.quick or only)
    output = args.output or (REPOSITORY / "benchmarks" if whole else work / "results")
    goals = write_report(run, output)
    for goal in goals:
        if goal.met is False:
            _tell(f"not met: {goal.goal}: {goal.value:.3g}, bound {goal.bound:g}")
    _tell(f"report in {output}")
    own_failure = any(name.startswith("wdsmix") for name in run["missing"])
    return int(own_failure or (args.strict and any(goal.met is False for goal in goals)))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
