"""One measurement, in a process of its own: ``python -m benchmarks.measure JOB.json RESULT.json``."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.checks import check_batch, check_shares
from benchmarks.proc import busy_seconds, usage
from benchmarks.settings import BATCH, Contender
from benchmarks.store import SOURCES, Store

__all__ = ["Job", "main"]

_HELD = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What to measure and for how long."""

    contender: Contender
    root: str
    warm_up_s: float = 1.5
    warm_up_batches: int = 6
    window_s: float = 5.0
    samples: int = 0
    """The window goes on for so many samples, however long that takes; 0: for window_s."""
    marks: str = ""
    """File that gets a line when the window begins."""
    timeline_s: float = 0.0
    """Steps in which the rate before the window is told; 0: not at all."""

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """The inverse of `to_json`."""
        fields = json.loads(text)
        return cls(**{**fields, "contender": Contender(**fields["contender"])})


def measure(job: Job) -> dict[str, Any]:
    """Runs a contender: first batch, warm-up, window, checks.

    Returns:
        Samples a second, CPU-seconds and page faults a thousand samples, and so on.
    """
    contender, root = job.contender, Path(job.root)
    module = importlib.import_module(f"benchmarks.contenders.{contender.module}")
    view: Callable[[Any, Store], Any] = getattr(module, "view", lambda batch, store: batch)
    store = Store(contender.store(root))
    counts = np.zeros(len(SOURCES), np.int64)

    def take(stream: Iterator[Any]) -> Any:
        batch = next(stream)
        held = batch["source_id"] if contender.module.startswith("wdsmix") else _field(batch, "source")
        counts[:] += np.bincount(np.asarray(held), minlength=len(SOURCES))
        return batch

    begin = time.perf_counter()
    stream = iter(module.batches(contender, contender.data(root)))
    batch = take(stream)
    first = time.perf_counter() - begin
    check_batch(view(batch, store), contender, store)
    begin, taken = time.perf_counter(), 0
    arrivals = [begin]
    while taken < job.warm_up_batches or arrivals[-1] - begin < job.warm_up_s:
        batch = take(stream)
        taken += 1
        arrivals.append(time.perf_counter())
    result = _window(job, lambda: take(stream))
    # Batches held while others are made must stay as they were.
    held = []
    for _ in range(1 if contender.module == "decode" else _HELD):
        held.append(take(stream))
    for batch in held:
        check_batch(view(batch, store), contender, store, pictures=2)
    result["share_gap"] = check_shares(counts, contender) if contender.module != "decode" else 0.0
    if job.timeline_s:
        result["timeline"] = _timeline(np.array(arrivals) - begin + first, job.timeline_s)
    return {**result, "first_batch_s": first}


def _timeline(arrivals: npt.NDArray[np.float64], step: float) -> list[tuple[float, float]]:
    """(s since the start, samples a second until the next one) pairs."""
    edges = np.arange(0, arrivals[-1] + step, step)
    counts, _ = np.histogram(arrivals, edges)
    return [(round(float(at), 3), float(count * BATCH / step)) for at, count in zip(edges, counts, strict=False)]


def _window(job: Job, take: Callable[[], Any]) -> dict[str, Any]:
    own, driver = os.getpid(), os.getppid()
    if job.marks:
        Path(job.marks).write_text(f"{time.monotonic()}\n")
    used, others, busy = usage(own), usage(driver).cpu, busy_seconds()
    begin, taken = time.perf_counter(), 0
    while True:
        take()
        taken += BATCH
        wall = time.perf_counter() - begin
        if taken >= job.samples and (job.samples or wall >= job.window_s):
            break
    used, others, busy = usage(own) - used, usage(driver).cpu - others, busy_seconds() - busy
    thousands = taken / 1000
    return {
        "samples": taken,
        "wall_s": wall,
        "samples_per_s": taken / wall,
        "cpu": used.cpu / thousands,
        "user": used.user / thousands,
        "system": used.system / thousands,
        "faults": used.faults / thousands,
        "foreign_cores": max(0.0, busy - others) / wall,
    }


def _field(batch: Any, name: str) -> Any:
    return batch[name] if isinstance(batch, dict) else getattr(batch, name)


def main(arguments: list[str]) -> None:
    """Reads the job, writes the result: numbers, or what went wrong. Ends hard, for some loaders' threads don't end."""
    job = Job.from_json(Path(arguments[0]).read_text())
    try:
        result = measure(job)
    except BaseException as error:
        import traceback

        traceback.print_exc()
        result = {"error": f"{type(error).__name__}: {error}"[:300]}
    Path(arguments[1]).write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
