"""Calls in a process of their own, which a crafted file may crash, or keep busy, without taking the run along."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor, TimeoutError
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from wdsmix.errors import DataError

__all__ = ["Isolated"]

_T = TypeVar("_T")


class Isolated:
    """One child process, started when first asked and again after it died. A context manager.

    Args:
        patience: Seconds that a call may take; None: any number.
    """

    def __init__(self, patience: float | None = None) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._patience = patience
        self._pid = 0

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Calls a function there.

        Raises:
            DataError: the process died of it, or it took too long.
        """
        future: Future[_T] | None = None
        try:
            if self._pool is None:
                self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
                self._pid = self._pool.submit(os.getpid).result()
            future = self._pool.submit(function, *arguments)
            return future.result(self._patience)
        except BrokenProcessPool as error:
            self.close()
            raise DataError("reading it crashed the process: a damaged or hostile file") from error
        except TimeoutError as error:
            if future is None or future.done():  # the function's own
                raise
            os.kill(self._pid, signal.SIGKILL)
            self.close()
            raise DataError(
                f"reading it took longer than {self._patience:g} s and was given up: a damaged or hostile file, or a "
                "slow disk"
            ) from error

    def close(self) -> None:
        """Ends the process."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
