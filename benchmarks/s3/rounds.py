"""Takes the measurements: each in a process of its own, in turns, against a server that is started for them."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.environments import REPOSITORY
from benchmarks.machine import warm_cache
from benchmarks.measure import Job
from benchmarks.proc import busy_seconds, usage
from benchmarks.rounds import Plan, run_one
from benchmarks.s3.servers import Server, shelf, whole_server
from benchmarks.s3.sets import files_of
from benchmarks.settings import Contender

__all__ = ["BUCKET", "KINDS", "STORE_RATE", "STREAMING", "ranged_rounds", "streaming_rounds", "transfer_rounds"]

BUCKET = "bench"
STORE_RATE = 200e6
"""Bytes per second that the store gives to streaming."""
LOCAL_WARM_UP = 3.0
"""s: what lies on the disk needs no more."""
_STEP = 0.5  # s, of the rate from the start on
CONNECTION_RATE, FIRST_BYTE = 60e6, 0.03
"""Bytes per second, and seconds before each answer, of a connection of a limited store."""

KINDS = ("threads1", "workers1", "threads2", "workers2")
"""What decodes. The first two leave a core of two for the store, which is a process of this machine, and for I/O."""
STREAMING = {
    f"{place}-{name}": Contender(
        name=f"wdsmix-{place}-{name}",
        title=f"{words}, {title}",
        module="wdsmix_s3",
        **options,  # type: ignore[arg-type]
    )
    for name, title, options in (
        ("threads1", "1 thread", {"threads": 1}),
        ("workers1", "DataLoader, 1 worker", {"workers": 1}),
        ("threads2", "2 threads", {"threads": 2}),
        ("workers2", "DataLoader, 2 workers", {"workers": 2}),
    )
    for place, words in (("local", "local sets"), ("s3", f"from a store that gives {STORE_RATE / 1e6:.0f} MB/s"))
}
Tell = Callable[[str], None]


def _transfer(server: Server, kind: str, folder: Path, prefix: str, scratch: Path) -> dict[str, Any]:
    """One transfer; files received go to a RAM disk where there is one with room."""
    out = Path(tempfile.mkdtemp(prefix="bench-", dir=scratch))
    result = out / "result.json"
    files = out / "files"
    files.mkdir()
    own, busy = usage(os.getpid()).cpu, busy_seconds()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.s3.transfers", kind, folder, BUCKET, prefix, files, result],
            cwd=REPOSITORY,
            env=server.environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(f"{kind}: {done.stderr[-2000:]}")
        found: dict[str, Any] = json.loads(result.read_text())
    finally:
        shutil.rmtree(out)
    busy, own = busy_seconds() - busy, usage(os.getpid()).cpu - own
    return {"kind": kind, **found, "busy_cores": busy / max(found["wall_s"], 1e-9), "own_s": own}


def _scratch(work: Path, size: int) -> Path:
    ram = Path("/dev/shm")
    if ram.is_dir() and os.access(ram, os.W_OK) and shutil.disk_usage(ram).free > 2 * size:
        return ram
    return work


def transfer_rounds(work: Path, folder: Path, size: int, rounds: int, tell: Tell) -> tuple[str, list[dict[str, Any]]]:
    """push and boto3's uploads, fetch and boto3's downloads, in turns.

    Args:
        work: Scratch.
        folder: Of the set.
        size: Its bytes.
        rounds: How often.
        tell: Gets a line a measurement.

    Returns:
        Name of the server, and one record a transfer.
    """
    records: list[dict[str, Any]] = []
    scratch = _scratch(work, size)
    with whole_server() as server:
        _bucket(server)
        for turn in range(rounds):
            for kind, prefix in _turns(turn):
                record = _transfer(server, kind, folder, f"{prefix}-{turn}", scratch)
                records.append({"round": turn, "bytes": size, **record})
                tell(f"round {turn + 1}: {kind}: {size / record['wall_s'] / 1e6:.0f} MB/s")
            _empty(server)
    return server.name, records


def _turns(turn: int) -> list[tuple[str, str]]:
    """Each side goes first in every other round; the very first transfer meets a cold server and counts for neither."""
    up = [("push", "push"), ("upload", "upload")]
    down = [("fetch", "push"), ("download", "upload")]
    return (up + down) if turn % 2 else (up[::-1] + down[::-1])


def _bucket(server: Server) -> None:
    _client(server).create_bucket(Bucket=BUCKET)


def _empty(server: Server) -> None:
    client = _client(server)
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
        for item in page.get("Contents", ()):
            client.delete_object(Bucket=BUCKET, Key=item["Key"])


def _client(server: Server) -> Any:
    import boto3

    found = server.environment()
    return boto3.session.Session().client(
        "s3",
        endpoint_url=server.url,
        region_name=found["AWS_DEFAULT_REGION"],
        aws_access_key_id=found["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=found["AWS_SECRET_ACCESS_KEY"],
    )


def ranged_rounds(work: Path, folder: Path, rounds: int, tell: Tell) -> list[dict[str, Any]]:
    """One file over one connection and by ranged requests, from a store that limits every connection.

    Args:
        work: Scratch.
        folder: Of the set.
        rounds: How often.
        tell: Gets a line a measurement.
    """
    records = []
    size = max(path.stat().st_size for path in files_of(folder))
    with shelf(folder.parent, connection=CONNECTION_RATE, first_byte=FIRST_BYTE) as server:
        for turn in range(rounds):
            for kind in ("stream", "ranged4", "ranged8"):
                record = _transfer(server, kind, folder, folder.name, work)
                records.append({"round": turn, "bytes": size, **record})
                tell(f"round {turn + 1}: {kind}: {size / record['wall_s'] / 1e6:.0f} MB/s")
    return records


def streaming_rounds(
    work: Path, root: Path, sets: Path, plan: Plan, names: Sequence[str], tell: Tell
) -> list[dict[str, Any]]:
    """Batches of local sets and of the same sets in a store; the cache is empty at each start.

    Args:
        work: Scratch.
        root: Of the data.
        sets: Folder of the sets.
        plan: How much to measure.
        names: Of `STREAMING`.
        tell: Gets a line a measurement.
    """
    records = []
    order = random.Random(plan.seed)
    cache, log = work / "s3-cache", work / "run" / "shelf.log"
    log.parent.mkdir(exist_ok=True)
    with shelf(sets, total=STORE_RATE, log=log) as server:
        for turn in range(plan.rounds):
            queue = list(names)
            order.shuffle(queue)
            for name in queue:
                shutil.rmtree(cache, ignore_errors=True)
                warm_cache([sets])  # the cache's files may have pushed them out of memory
                local = name.startswith("local")
                place = str(sets) if local else f"s3://{BUCKET}"
                with _environment(server, BENCH_PLACE=place, WDSMIX_CACHE_DIR=str(cache)):
                    record = run_one(
                        work,
                        Job(
                            contender=STREAMING[name],
                            root=str(root),
                            warm_up_s=min(plan.warm_up_s, LOCAL_WARM_UP) if local else plan.warm_up_s,
                            window_s=plan.window_s,
                            marks=str(work / "run" / "mark"),
                            timeline_s=0.0 if local else _STEP,
                        ),
                    )
                record.pop("memory", None)
                if "error" not in record:
                    record |= _served(log, float((work / "run" / "mark").read_text()), record["wall_s"])
                records.append({"name": name, "round": turn, **record})
                said = record.get("error") or (
                    f"{record['samples_per_s']:.0f} samples/s, {record['cpu']:.3f} CPU-s/1k, "
                    f"{record['peak_mib']:.0f} MiB, foreign {record['foreign_cores']:.2f}, from the store "
                    f"{record['store_mb_s']:.0f} MB/s at {record['store_cores']:.2f} cores"
                )
                tell(f"round {turn + 1}: {name}: {said}")
    shutil.rmtree(cache, ignore_errors=True)
    return records


def _served(log: Path, start: float, wall: float) -> dict[str, float]:
    """What the server did in a window: MB/s, and how many cores it took."""
    rows = np.loadtxt(log, ndmin=2)
    sent, used = (np.diff(np.interp([start, start + wall], rows[:, 0], rows[:, k])).item() / wall for k in (1, 2))
    return {"store_mb_s": sent / 1e6, "store_cores": used}


@contextmanager
def _environment(server: Server, **more: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update({**server.environment(), **more})
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
