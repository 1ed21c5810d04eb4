"""Crew: the threads that fill the rows of a batch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Crew"]


class Crew:
    """Runs a task for each of many rows on a few threads, the calling one among them.

    Args:
        threads: How many work at a time; 1 starts no thread.
    """

    def __init__(self, threads: int) -> None:
        self._helpers = threads - 1
        self._pool: ThreadPoolExecutor | None = None

    def run(self, task: Callable[[int], None], rows: int) -> None:
        """Calls ``task(0)`` ... ``task(rows - 1)`` and waits for all of them.

        Raises:
            Exception: what the first row (in order) that failed raised, however threads were scheduled.
        """
        if self._helpers < 1:
            for row in range(rows):
                task(row)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._helpers, thread_name_prefix="wdsmix-decode")
        numbers = itertools.count()  # next() on it is atomic
        failed: list[tuple[int, BaseException]] = []

        def work() -> None:
            while not failed:
                row = next(numbers)
                if row >= rows:
                    return
                try:
                    task(row)
                except BaseException as error:  # handed on below, from the calling thread
                    failed.append((row, error))

        futures = [self._pool.submit(work) for _ in range(self._helpers)]
        work()
        for future in futures:
            future.result()
        if failed:
            raise min(failed, key=lambda pair: pair[0])[1]

    def close(self) -> None:
        """Ends the threads."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
