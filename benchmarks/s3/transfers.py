"""One transfer, in a process of its own: ``python -m benchmarks.s3.transfers KIND SET BUCKET PREFIX DIR RESULT.json``.

KIND is ``push`` or ``fetch`` (wdsmix), ``upload`` or ``download`` (boto3's own transfer of the same files, with as many
requests at a time and parts as large), ``stream``, ``ranged4`` or ``ranged8`` (the largest file of the set, read and
thrown away over one connection or by so many ranged requests at a time).
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.s3.sets import files_of

__all__ = ["JOBS", "KINDS", "main"]

JOBS = 8
_UPLOAD_PART = 16 << 20
_DOWNLOAD_PART = 8 << 20


def _push(folder: Path, bucket: str, prefix: str, _: Path) -> Callable[[], object]:
    from wdsmix.store import open_store
    from wdsmix.store.push import PushOptions, push

    return lambda: push(folder, open_store(f"s3://{bucket}/{prefix}"), PushOptions(jobs=JOBS, part=_UPLOAD_PART))


def _fetch(_: Path, bucket: str, prefix: str, out: Path) -> Callable[[], object]:
    from wdsmix.store import open_store
    from wdsmix.store.fetch import FetchOptions, fetch

    return lambda: fetch(open_store(f"s3://{bucket}/{prefix}"), out, FetchOptions(jobs=JOBS))


def _boto3() -> Any:
    import boto3
    from botocore.config import Config

    endpoint = os.environ["WDSMIX_S3_ENDPOINT_URL"]
    return boto3.client("s3", endpoint_url=endpoint, config=Config(max_pool_connections=4 * JOBS))


def _upload(folder: Path, bucket: str, prefix: str, _: Path) -> Callable[[], object]:
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(max_concurrency=JOBS, multipart_chunksize=_UPLOAD_PART, multipart_threshold=_UPLOAD_PART)

    def run() -> None:
        client = _boto3()
        for path in files_of(folder):
            client.upload_file(str(path), bucket, f"{prefix}/{path.name}", Config=config)

    return run


def _download(folder: Path, bucket: str, prefix: str, out: Path) -> Callable[[], object]:
    from boto3.s3.transfer import TransferConfig

    config = TransferConfig(
        max_concurrency=JOBS, multipart_chunksize=_DOWNLOAD_PART, multipart_threshold=_DOWNLOAD_PART
    )

    def run() -> None:
        client = _boto3()
        for path in files_of(folder):
            client.download_file(bucket, f"{prefix}/{path.name}", str(out / path.name), Config=config)

    return run


def _read(depth: int) -> Callable[[Path, str, str, Path], Callable[[], object]]:
    def prepare(folder: Path, bucket: str, prefix: str, _: Path) -> Callable[[], object]:
        from wdsmix.store import ObjectReader, open_store

        largest = max(files_of(folder), key=lambda path: path.stat().st_size)

        def run() -> None:
            reader = ObjectReader(open_store(f"s3://{bucket}/{prefix}"), largest.name)
            parts = reader.ranged(part=_DOWNLOAD_PART, depth=depth) if depth > 1 else reader.stream()
            size = sum(len(part) for part in parts)
            if size != largest.stat().st_size:
                raise ValueError(f"{size} bytes of {largest.name}")

        return run

    return prepare


KINDS: dict[str, Callable[[Path, str, str, Path], Callable[[], object]]] = {
    "push": _push,
    "fetch": _fetch,
    "upload": _upload,
    "download": _download,
    "stream": _read(1),
    "ranged4": _read(4),
    "ranged8": _read(8),
}


def _peak_mib() -> float:
    """Of this process's resident memory since it began (ru_maxrss also counts the one that started it)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def main(arguments: list[str]) -> None:
    """Makes one transfer; imports are not counted."""
    kind, folder, bucket, prefix, out, result = arguments
    for name in ("boto3.session", "wdsmix.store.fetch", "wdsmix.store.push"):
        importlib.import_module(name)

    run = KINDS[kind](Path(folder), bucket, prefix, Path(out))
    before, begin = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    run()
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    Path(result).write_text(json.dumps({"wall_s": wall, "cpu_s": cpu, "peak_mib": _peak_mib()}))


if __name__ == "__main__":
    main(sys.argv[1:])
