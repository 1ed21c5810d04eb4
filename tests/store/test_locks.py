"""Locks by way of ctypes are those of fcntl.lockf, in both directions and on every byte."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from wdsmix.errors import ConfigError
from wdsmix.store import locks
from wdsmix.store.locks import FileLocks

PLACES = [0, 7, (1 << 31) - 2, (1 << 32) + 5, (1 << 62) + 1]
OTHER = """
import fcntl, os, sys
handle = os.open(sys.argv[1], os.O_RDWR)
for line in sys.stdin:
    how, first, count = (int(word) for word in line.split())
    try:
        fcntl.lockf(handle, how, count, first)
        print(0, flush=True)
    except OSError as error:
        print(error.errno, flush=True)
"""


class Other:
    """Another process, which locks by fcntl.lockf."""

    def __init__(self, path: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def take(self, first: int, count: int = 1, *, shared: bool = False) -> bool:
        code = self._do((fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, first, count)
        assert code in (0, errno.EAGAIN, errno.EACCES)
        return not code

    def drop(self, first: int, count: int = 1) -> None:
        assert self._do(fcntl.LOCK_UN, first, count) == 0

    def _do(self, how: int, first: int, count: int) -> int:
        self.process.stdin.write(f"{how} {first} {count}\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())


@pytest.fixture(params=["by ctypes", "by fcntl"])
def mine(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FileLocks:
    if request.param == "by fcntl":
        monkeypatch.setattr(locks, "_set", locks._portable_set)
    elif locks._set is locks._portable_set:
        pytest.skip("struct flock is not known here")
    return FileLocks(tmp_path / "file")


@pytest.fixture
def other(mine: FileLocks) -> Iterator[Other]:
    found = Other(mine.path)
    yield found
    found.process.kill()
    found.process.communicate()


def test_on_linux_of_64_bits_the_quick_way_is_used() -> None:
    quick = sys.platform == "linux" and sys.maxsize > 1 << 32
    assert (locks._set is not locks._portable_set) is quick


@pytest.mark.parametrize("first", PLACES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_either_sees_the_other(mine: FileLocks, other: Other, first: int, shared: bool, wanted: bool) -> None:
    free = shared and wanted
    assert mine.take(first, 3, shared=shared)
    assert [other.take(first + k, shared=wanted) for k in (-1, 0, 2, 3) if first + k >= 0] == [
        *([True] if first else []),
        free,
        free,
        True,
    ]
    other.drop(max(first - 1, 0), 9)
    mine.drop(first + 1)  # the middle one
    assert [other.take(first + k) for k in range(3)] == [False, True, False]
    mine.drop(first, 3)
    assert other.take(first, 3, shared=shared)
    assert mine.take(first + 2, shared=wanted) is free
    assert mine.take(first + 3)
    assert other.process.poll() is None
    other.process.kill()  # leaves nothing behind
    other.process.wait()
    assert mine.take(first, 3)


def test_a_lock_becomes_shared_and_back(mine: FileLocks, other: Other) -> None:
    assert mine.take(0)
    assert mine.take(0, shared=True)
    assert other.take(0, shared=True)
    assert not mine.take(0)
    other.drop(0)
    assert mine.take(0)
    assert not other.take(0, shared=True)


def test_it_never_waits(mine: FileLocks, other: Other) -> None:
    assert other.take(0)
    began = time.monotonic()
    assert not mine.take(0)
    assert time.monotonic() - began < 1.0


def test_the_kernel_reads_the_struct_as_we_do(mine: FileLocks, other: Other) -> None:
    assert mine.take((1 << 40) + 3, 5)
    script = (
        "import fcntl, os, struct, sys\n"
        "asked = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 0, 0, 0)\n"
        "print(*struct.unpack('hhqqi4x', fcntl.fcntl(os.open(sys.argv[1], os.O_RDWR), fcntl.F_GETLK, asked)))\n"
    )
    found = subprocess.run([sys.executable, "-c", script, mine.path], capture_output=True, text=True, check=True)
    assert [int(word) for word in found.stdout.split()] == [fcntl.F_WRLCK, os.SEEK_SET, (1 << 40) + 3, 5, os.getpid()]
    assert ctypes.sizeof(locks._Flock) == struct.calcsize("hhqqi4x") == 32
    assert locks._Flock.l_start.offset == 8


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EINVAL])
def test_a_file_system_without_locks(mine: FileLocks, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    _fail(monkeypatch, [code])
    with pytest.raises(ConfigError, match="has no locks"):
        mine.take(0)


def test_a_signal_on_a_network_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = FileLocks(tmp_path / "file")
    left = [errno.EINTR, errno.EINTR]
    _fail(monkeypatch, left)
    assert mine.take(0)
    assert left == []


def _fail(monkeypatch: pytest.MonkeyPatch, codes: list[int]) -> None:
    """Lets the next calls fail so."""
    real: Any = getattr(locks, "_fcntl", None)

    def call(*arguments: Any) -> int:
        if codes:
            ctypes.set_errno(codes.pop(0))
            return -1
        return real(*arguments)

    def lockf(*arguments: Any) -> None:
        raise OSError(codes.pop(0), "no")

    monkeypatch.setattr(locks, "_fcntl", call, raising=False)
    monkeypatch.setattr(fcntl, "lockf", lockf)


def test_errors_of_the_system_are_not_mistaken(mine: FileLocks) -> None:
    handle, mine.handle = mine.handle, 1 << 20
    with pytest.raises(ConfigError, match="Bad file descriptor"):
        mine.take(0)
    mine.handle = handle
    assert mine.take(0)


def test_threads_at_once(mine: FileLocks, other: Other) -> None:
    """errno is each thread's own."""
    assert other.take(0)
    found: list[bool] = []

    def run(place: int) -> None:
        for _ in range(500):
            found.append(mine.take(0))
            found.append(not mine.take(place))
            mine.drop(place)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not any(found)
    assert len(found) == 8000
