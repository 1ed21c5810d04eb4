"""What push and fetch share: a limit on the rate, counting by many threads, locks on folders."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.store.retry import Retries

__all__ = ["Meter", "Throttle", "exclusive", "local_errors", "parse_rate", "run_all", "run_on"]

T = TypeVar("T")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9}


def parse_rate(text: str) -> float:
    """Bytes per second of a text such as ``50M`` (decimal units; 0 or empty: no limit).

    Raises:
        ConfigError: not such a text.
    """
    plain = text.strip().lower().removesuffix("/s").removesuffix("b")
    number, unit = (plain[:-1], plain[-1]) if plain[-1:] in ("k", "m", "g") else (plain, "")
    try:
        rate = float(number or 0) * _UNITS[unit]
    except ValueError:
        rate = -1.0
    if not 0 <= rate < float("inf"):
        raise ConfigError(
            "not a rate", where="--bandwidth-limit", expected="such as 50M (bytes per second)", found=text
        )
    return rate


@contextmanager
def local_errors(path: Path) -> Iterator[None]:
    """Turns what the system says of local files into errors of wdsmix.

    Raises:
        ConflictError: the disk is full.
        ConfigError: a file can't be read or written.
    """
    try:
        yield
    except OSError as error:
        place, said = error.filename or path, error.strerror or type(error).__name__
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ConflictError(
                "the disk is full", path=place, hint="what is there is kept: make room, run it again"
            ) from error
        raise ConfigError(f"can't be read or written: {said}", path=place) from error


class Throttle:
    """Keeps the sum of what all threads take below a rate.

    Args:
        rate: Bytes per second; 0: no limit.
        clock: Monotonic seconds.
        sleep: Waits.
    """

    def __init__(
        self,
        rate: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._rate, self._clock, self._sleep = rate, clock, sleep
        self._lock = threading.Lock()
        self._free = clock()

    def take(self, amount: int) -> None:
        """Waits until ``amount`` more bytes may pass."""
        if not self._rate:
            return
        with self._lock:
            now = self._clock()
            start = max(self._free, now)
            self._free = start + amount / self._rate
        if start > now:
            self._sleep(start - now)


class Meter:
    """Counts bytes of many threads and tells one listener.

    Args:
        tell: Told the bytes and the retries so far; never by two threads at once.
        retries: Whose retries.
    """

    def __init__(self, tell: Callable[[int, int], None] | None, retries: Retries) -> None:
        self._tell, self._retries = tell, retries
        self._lock = threading.Lock()
        self.bytes = 0
        """Bytes that went over the wire."""

    def moved(self, amount: int) -> None:
        """Bytes went over the wire."""
        with self._lock:
            self.bytes += amount
            if self._tell:
                self._tell(amount, self._retries.count)

    def kept(self, amount: int) -> None:
        """Bytes need not be moved (or, if negative, must be moved again)."""
        with self._lock:
            if self._tell:
                self._tell(amount, self._retries.count)


def run_on(pool: Executor, work: Iterable[Callable[[], T]]) -> list[T]:
    """Runs functions on threads that others use too, and raises the first failure once none of them runs any more."""
    futures = [pool.submit(task) for task in work]
    try:
        return _results(futures)
    except BaseException:
        for future in futures:
            future.cancel()
        wait(futures)
        raise


def run_all(work: Iterable[Callable[[], T]], jobs: int, retries: Retries | None = None) -> list[T]:
    """Runs functions on threads and raises the first failure.

    Args:
        work: The functions.
        jobs: Threads.
        retries: Stopped on a failure or Ctrl-C, so that the other functions give up; None: they end by themselves.
    """
    pool = ThreadPoolExecutor(max(jobs, 1), thread_name_prefix="wdsmix-transfer")
    futures = [pool.submit(task) for task in work]
    try:
        return _results(futures)
    except BaseException:
        if retries is not None:
            retries.stop()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _results(futures: Sequence[Future[T]]) -> list[T]:
    """Of all, or the failure that came first."""
    done, _ = wait(futures, return_when=FIRST_EXCEPTION)
    for future in futures:
        if future in done and not future.cancelled() and (error := future.exception()) is not None:
            raise error
    return [future.result() for future in futures]


@contextmanager
def exclusive(path: Path, what: str) -> Iterator[None]:
    """Holds a lock file while inside; the system lets go of it when the process ends, however it ends.

    Raises:
        ConflictError: another process holds it.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise ConflictError(f"another process {what}", path=path) from None
        except OSError:  # a file system without locks gives no such protection
            break
        if path.exists() and path.stat().st_ino == os.fstat(handle).st_ino:
            break
        os.close(handle)  # its holder removed it just now
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)
