"""Sets in a store, and processes that stream them."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from helpers.fault_proxy import Fault, FaultProxy

from wdsmix import MixtureDataset


def copy_up(client: Any, folder: Path, bucket: str, prefix: str) -> None:
    """Copies a folder into a bucket, as any tool would."""
    for path in sorted(folder.iterdir()):
        client.upload_file(str(path), bucket, f"{prefix}/{path.name}")


@dataclass
class Flaky(FaultProxy):
    """Every fiftieth GET fails, each time in another way."""

    every: int = 50
    count: int = 25

    def take(self, method: str, path: str) -> Fault | None:
        if method == "GET":
            with self._lock:
                self.count += 1
                turn, rest = divmod(self.count, self.every)
            if not rest:
                return Fault(kind=("503", "rst", "fin", "rst-request")[turn % 4], after=1000)
        return super().take(method, path)


def fetched_ratio(proxy: FaultProxy) -> float:
    """Bytes of all answers to GETs over distinct bytes of objects, as the proxy saw them."""
    sent = 0
    there: dict[str, set[int]] = {}
    for entry in proxy.log:
        if entry.method != "GET" or entry.status not in (200, 206):
            continue
        sent += entry.sent
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", entry.range)
        first = int(found[1]) if found else 0
        there.setdefault(entry.path, set()).update(range(first, first + entry.sent))
    return sent / sum(map(len, there.values()))


class WorkerEnvironment:
    """Sets variables in a DataLoader worker: a fork server may have started under others."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment = environment

    def __call__(self, worker: int) -> None:
        os.environ.update(self.environment)


def digest(batch: dict[str, Any]) -> str:
    """Of all that a batch holds."""
    sha = hashlib.sha256()
    for name, value in sorted(batch.items()):
        sha.update(name.encode())
        sha.update(value.contiguous().numpy().tobytes() if isinstance(value, torch.Tensor) else repr(value).encode())
    return sha.hexdigest()


def read_rank(job: tuple[dict[str, Any], int, int, int, int, dict[str, str]]) -> list[str]:
    """Digests of a rank's batches; for a process of its own."""
    config, batch_size, rank, world, steps, environment = job
    os.environ.update(environment)
    return [digest(batch) for batch in islice(MixtureDataset(config, batch_size, rank, world, num_threads=2), steps)]
