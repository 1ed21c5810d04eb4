"""Calls in a process of their own, which a crafted file may crash without taking the run along."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from wdsmix.errors import DataError

__all__ = ["Isolated"]

_T = TypeVar("_T")


class Isolated:
    """One child process, started when first asked and again after it died. A context manager."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """Calls a function there.

        Raises:
            DataError: the process died of it.
        """
        if self._pool is None:
            self._pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
        try:
            return self._pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            self.close()
            raise DataError("reading it crashed the process: a damaged or hostile file") from error

    def close(self) -> None:
        """Ends the process."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def __enter__(self) -> Isolated:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
