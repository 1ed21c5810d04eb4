"""Runs measurements: rounds of all contenders in random order, anchors in between, each in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import REPOSITORY, environment
from benchmarks.measure import Job
from benchmarks.proc import memory_mib
from benchmarks.settings import CONTENDERS, Contender

__all__ = ["Plan", "in_environment", "run_one", "run_rounds"]

_SAMPLE_S = 0.5
_LIMIT_S = 150.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """How much to measure."""

    rounds: int = 5
    window_s: float = 5.0
    warm_up_s: float = 1.5
    anchor_every: int = 8
    """Contenders between two anchors."""
    seed: int = 0


def in_environment(work: Path, peer: str | None, *arguments: str) -> list[str]:
    """The command that runs a module of this package in a peer's environment."""
    return [str(environment(work, peer)), "-m", *arguments]


def run_one(work: Path, job: Job) -> dict[str, Any]:
    """One measurement, and the memory of its processes while it ran.

    Returns:
        What `benchmarks.measure` found, with ``memory`` as [seconds since the window began, MiB] pairs and
        ``peak_mib``; or ``error``.
    """
    folder = work / "run"
    folder.mkdir(exist_ok=True)
    paths = {name: folder / name for name in ("job.json", "result.json", "mark", "log.txt")}
    for path in paths.values():
        path.unlink(missing_ok=True)
    paths["job.json"].write_text(job.to_json())
    command = in_environment(
        work, job.contender.peer, "benchmarks.measure", str(paths["job.json"]), str(paths["result.json"])
    )
    memory: list[tuple[float, float]] = []
    with paths["log.txt"].open("w") as log:
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=_quiet()
        )
        begin = time.monotonic()
        limit = _LIMIT_S + (job.samples / 300)
        try:
            while process.poll() is None and time.monotonic() - begin < limit:
                memory.append((time.monotonic(), memory_mib(process.pid)))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_SAMPLE_S)
        finally:
            _end(process)
    try:
        result = json.loads(paths["result.json"].read_text())
    except (OSError, ValueError):
        result = {"error": f"no result: exit {process.returncode}, {_last_line(paths['log.txt'])}"}
    if "error" in result:
        kept = folder / f"failed-{job.contender.name}.txt"
        paths["log.txt"].replace(kept)
    start = float(paths["mark"].read_text()) if paths["mark"].exists() else begin
    result["memory"] = [(round(at - start, 2), round(mib, 1)) for at, mib in memory]
    result["peak_mib"] = max((mib for _, mib in memory), default=0.0)
    return result


def _quiet() -> dict[str, str]:
    return {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "PYTHONWARNINGS": "ignore"}


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a measurement: the workers of its own session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines()
    return lines[-1][:200] if lines else "no output"


def run_rounds(
    work: Path, root: Path, contenders: Sequence[Contender], plan: Plan, told: Callable[[str], None]
) -> list[dict[str, Any]]:
    """All rounds.

    Args:
        work: Folder of environments and scratch files.
        root: Folder of the data.
        contenders: Without the anchors.
        plan: How much.
        told: Gets a line a measurement.

    Returns:
        One record a measurement: ``contender``, ``round``, and what `run_one` gives.
    """
    records: list[dict[str, Any]] = []
    order = random.Random(plan.seed)
    small = any(contender.subsampling == "420" for contender in contenders)
    broken: set[str] = set()
    for turn in range(plan.rounds):
        queue = list(contenders)
        order.shuffle(queue)
        with_anchors: list[Contender] = []
        for place, contender in enumerate(queue):
            if place % plan.anchor_every == 0:
                with_anchors.append(CONTENDERS["decode"])
            with_anchors.append(contender)
        if small:
            with_anchors.append(CONTENDERS["decode-420"])
        for contender in with_anchors:
            if contender.name in broken:
                continue
            job = Job(
                contender=contender,
                root=str(root),
                warm_up_s=plan.warm_up_s,
                window_s=plan.window_s,
                marks=str(work / "run" / "mark"),
            )
            result = run_one(work, job)
            records.append({"contender": contender.name, "round": turn, **result})
            if "error" in result:
                broken.add(contender.name)
                told(f"round {turn + 1}: {contender.name}: {result['error']}")
            else:
                told(
                    f"round {turn + 1}: {contender.name}: {result['samples_per_s']:.0f} samples/s,"
                    f" {result['cpu']:.3f} CPU-s/1k, foreign {result['foreign_cores']:.2f}"
                )
    return records
