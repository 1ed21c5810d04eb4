"""``python -m benchmarks.train``: does each reference policy learn the demo's held-out episodes, and how soon?

Writes RESULTS-train.md, results-train.json and results-train.png. The sets are those of ``wdsmix demo``; each policy is
trained by ``wdsmix train`` in a process of its own, on the CPU. The measure is the held-out mse over that of the mean
action (`wdsmix.training.evaluation`): for every source, dimension and place in the chunk the mean over the held-out
frames themselves, so that no constant does better. The goal is under half, for behaviour cloning within two minutes of
the command's start on two cores.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks.environments import REPOSITORY
from benchmarks.machine import machine

__all__ = ["main", "markdown"]

RESULTS = "results-train"
GOAL = 0.5
BC_SECONDS = 120.0
COMMON = ["--image-size", "64", "--batch-size", "32", "--eval-split", "val,test", "--device", "cpu"]
POLICIES: dict[str, dict[str, Any]] = {
    "bc": {"flags": ["--steps", "300", "--lr", "1e-3", "--eval-every", "50"], "sample": {}},
    # It acts in as many passes as there are actions, so that evaluations cost more than the steps between them.
    "transformer": {"flags": ["--steps", "400", "--lr", "5e-4", "--eval-every", "100"], "sample": {"history": 2}},
    "vla": {"flags": ["--steps", "400", "--lr", "5e-4", "--eval-every", "50"], "sample": {}},
    "offline-rl": {
        # Only lift stores rewards; the others say by rule that their last frame is the goal.
        "flags": ["--steps", "400", "--lr", "1e-3", "--eval-every", "50", "--set", "options.rewards=demonstration"],
        "sample": {"history": None, "observation_offsets": [0, 1], "reward": True, "done": True},
    },
}
"""Policy -> flags of its run, and what its samples have beside the demo's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Trains, draws, tells.

    Returns:
        1 if a goal is not met, else 0.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="policies, such as bc,vla (default: all)")
    parser.add_argument(
        "--work", type=Path, default=REPOSITORY / ".bench" / "train", help="demo and runs (.bench/train)"
    )
    parser.add_argument(
        "--output", type=Path, help="folder of the results; other policies' are kept (benchmarks/, with --only WORK)"
    )
    parser.add_argument("--draw", action="store_true", help="only write table and picture of past results anew")
    args = parser.parse_args(arguments)
    output: Path = args.output or (args.work if args.only else REPOSITORY / "benchmarks")
    if args.draw:
        _written(json.loads((output / f"{RESULTS}.json").read_text()), output)
        return 0
    chosen = [name for name in args.only.split(",") if name] or list(POLICIES)
    args.work.mkdir(parents=True, exist_ok=True)
    demo = args.work / "demo"
    if not (demo / "mixture.yaml").is_file():
        _wdsmix("demo", str(demo), "--steps", "1")
    trained = {name: _trained(name, demo, args.work) for name in chosen}
    before = output / f"{RESULTS}.json"
    kept = json.loads(before.read_text())["policies"] if args.only and before.is_file() else {}
    runs = kept | trained
    report = {"machine": machine(), "goal": GOAL, "policies": {name: runs[name] for name in POLICIES if name in runs}}
    output.mkdir(parents=True, exist_ok=True)
    before.write_text(json.dumps(report, indent=1) + "\n")
    _written(report, output)
    for name, run in report["policies"].items():
        sys.stdout.write(f"{name}: {run['curve'][-1]['ratio']:.3f}; {_verdict(name, run)}\n")
    sys.stdout.write(f"{output}\n")
    return 0 if all(_verdict(name, run) == "met" for name, run in report["policies"].items()) else 1


def _trained(policy: str, demo: Path, work: Path) -> dict[str, Any]:
    """Trains a policy; returns seconds, the curve, and the last evaluation."""
    mixture = yaml.safe_load((demo / "mixture.yaml").read_text())
    for source in mixture["sources"]:
        source["shards"] = str((demo / source["shards"]).absolute())
    sample = {**mixture["sample"], **POLICIES[policy]["sample"]}
    mixture["sample"] = {key: value for key, value in sample.items() if value is not None}
    path, out = work / f"{policy}.yaml", work / policy
    path.write_text(yaml.safe_dump(mixture, sort_keys=False))
    shutil.rmtree(out, ignore_errors=True)
    flags = ["--policy", policy, *POLICIES[policy]["flags"], *COMMON, "--out", str(out)]
    started, used = time.monotonic(), _cpu()
    _wdsmix("train", str(path), *flags)
    seconds, cpu = time.monotonic() - started, _cpu() - used
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    curve = [row for row in rows if row["kind"] == "evaluation"]
    return {
        "command": f"wdsmix train mixture.yaml {' '.join(flags[:-2])}",
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu, 1),
        "curve": [
            {"step": row["step"], **{key: row[key] for key in ("mse", "l1", "mean_mse", "ratio")}} for row in curve
        ],
        "sources": {
            name: {key: source[key] for key in ("split", "frames", "mse", "l1", "mean_mse", "ratio")}
            for name, source in curve[-1]["sources"].items()
        },
    }


def _wdsmix(*words: str) -> None:
    done = subprocess.run([sys.executable, "-m", "wdsmix.cli", *words], stdout=subprocess.DEVNULL, check=False)
    if done.returncode:
        raise SystemExit(f"wdsmix {words[0]} ended with exit code {done.returncode}")


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _verdict(name: str, run: dict[str, Any]) -> str:
    if run["curve"][-1]["ratio"] >= GOAL:
        return "not met"
    return "met" if name != "bc" or run["seconds"] <= BC_SECONDS else f"met, but not within {BC_SECONDS:.0f} s"


def _written(report: dict[str, Any], output: Path) -> None:
    """The table, and the picture where matplotlib is installed."""
    drawn = _draw(report, output / f"{RESULTS}.png")
    (output / "RESULTS-train.md").write_text(markdown(report, plot=f"{RESULTS}.png" if drawn else None))


def markdown(report: dict[str, Any], *, plot: str | None) -> str:
    """The report as a page; ``plot``: its picture."""
    runs = report["policies"]
    lines = [
        "# Training results",
        "",
        f"Made by `make bench-train`; not to be edited. On {report['machine']}.",
        "",
        "Each reference policy on the sets of `wdsmix demo`, pictures of 64×64, by `wdsmix train` on the CPU. "
        "*Of the mean action*: held-out mse over that of predicting, for each source, dimension and place in the "
        "chunk, the mean over the held-out frames themselves, so that no constant does better. "
        f"Goal: under {report['goal']:g}, for bc within {BC_SECONDS:.0f} s of the command's start on two cores. "
        "Seconds are of the whole command, evaluations and all.",
        "",
        "| policy | steps | seconds | CPU-s | held-out mse | mean action's | of the mean action | goal |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, run in runs.items():
        last = run["curve"][-1]
        lines.append(
            f"| {name} | {last['step']} | {run['seconds']:.0f} | {run['cpu_seconds']:.0f} | {last['mse']:.4f} | "
            f"{last['mean_mse']:.4f} | {last['ratio']:.3f} | {_verdict(name, run)} |"
        )
    sources = list(next(iter(runs.values()))["sources"])
    lines += [
        "",
        "By source, of the mean action:",
        "",
        f"| policy | {' | '.join(sources)} |",
        "|---" * (len(sources) + 1) + "|",
    ]
    for name, run in runs.items():
        ratios = " | ".join(f"{run['sources'][source]['ratio']:.3f}" for source in sources)
        lines.append(f"| {name} | {ratios} |")
    if plot:
        lines += ["", f"![Held-out error over the steps, and at the end by source]({plot})"]
    lines += ["", "Commands:", "", "```", *dict.fromkeys(run["command"] for run in runs.values()), "```"]
    return "\n".join(lines) + "\n"


def _draw(report: dict[str, Any], path: Path) -> bool:
    """Curves of the held-out error over the steps, and its end by source."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout="tight")
    runs = report["policies"]
    for name, run in runs.items():
        steps = [row["step"] for row in run["curve"]]
        left.plot(
            steps,
            [row["ratio"] for row in run["curve"]],
            marker="o",
            markersize=3,
            label=f"{name}, {run['seconds']:.0f} s",
        )
    left.set_yscale("log")
    left.set_xlabel("steps of 32 samples")
    left.set_ylabel("held-out mse / mse of the mean action")
    left.legend(fontsize=8)
    sources = list(next(iter(runs.values()))["sources"])
    width = 0.8 / len(runs)
    for number, (name, run) in enumerate(runs.items()):
        places = [k + (number - (len(runs) - 1) / 2) * width for k in range(len(sources))]
        right.bar(places, [run["sources"][source]["ratio"] for source in sources], width, label=name)
    right.set_xticks(range(len(sources)), sources)
    right.set_ylabel("at the end, by source")
    for axes in (left, right):
        axes.axhline(1, color="black", linewidth=1)
        axes.axhline(GOAL, color="black", linewidth=1, linestyle="--")
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
    return True


if __name__ == "__main__":
    sys.exit(main())
