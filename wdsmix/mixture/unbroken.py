"""An iterator whose failure is not mistaken for its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

__all__ = ["Unbroken"]


class Unbroken(Iterator[dict[str, Any]]):
    """An iterator that, having failed, fails again: whoever goes on after an error must not take it for the end.

    Args:
        batches: A generator, which would just end.
        error: It failed before it began.
    """

    def __init__(self, batches: Iterator[dict[str, Any]], error: Exception | None = None) -> None:
        self._batches = batches
        self._error = error

    def __next__(self) -> dict[str, Any]:
        if self._error is not None:
            raise self._error
        try:
            return next(self._batches)
        except StopIteration:
            raise
        except Exception as error:
            self._error = error
            raise
