"""Servers to measure against: a Ceph gateway where Debian's packages are installed, else moto; and `shelf`."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environments import REPOSITORY

__all__ = ["Server", "shelf", "whole_server"]

_CEPH = ("radosgw", "ceph-mon", "ceph-osd", "ceph-authtool", "radosgw-admin")
_SCRIPT = REPOSITORY / "tests" / "helpers" / "radosgw.sh"


@dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """A server that runs."""

    name: str
    url: str

    def environment(self) -> dict[str, str]:
        """What a process needs to reach it."""
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "WDSMIX_"))},
            "AWS_ACCESS_KEY_ID": "testkey",
            "AWS_SECRET_ACCESS_KEY": "testsecret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            "WDSMIX_S3_ENDPOINT_URL": self.url,
        }


@contextlib.contextmanager
def whole_server() -> Iterator[Server]:
    """A server that can do everything; it takes whatever key where it is moto."""
    if any(shutil.which(name) is None for name in _CEPH):
        with _moto() as server:
            yield server
    else:
        with _ceph() as server:
            yield server


@contextlib.contextmanager
def _ceph() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="rgw-") as text:
        folder, port = Path(text), _free_port(3)
        try:
            subprocess.run(["bash", _SCRIPT, folder, str(port)], check=True, capture_output=True, timeout=180)
            yield Server(name="Ceph radosgw", url=f"http://127.0.0.1:{port}")
        finally:
            for file in (folder / "run").glob("*.pid"):
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(file.read_text()), signal.SIGKILL)
            time.sleep(0.5)


@contextlib.contextmanager
def _moto() -> Iterator[Server]:
    port = _free_port(1)
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(300):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.1)
        yield Server(name="moto", url=f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def shelf(
    folder: Path, *, total: float = 0.0, connection: float = 0.0, first_byte: float = 0.0, log: Path | None = None
) -> Iterator[Server]:
    """The cheap server over a folder, to read (`benchmarks.s3.shelf`); every bucket name means the folder."""
    options = {"--total": total, "--connection": connection, "--first-byte": first_byte}
    words = [word for name, value in options.items() for word in (name, str(value))]
    if log is not None:
        words += ["--log", str(log)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.s3.shelf", str(folder), *words],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        port = int(process.stdout.readline()) if process.stdout else 0
        yield Server(name="shelf", url=f"http://127.0.0.1:{port}")
    finally:
        process.kill()
        process.communicate()


def _free_port(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(21_000 + os.getpid() % 5000, 40_000, count):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError("no free ports")
