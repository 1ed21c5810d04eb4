"""Ctrl-C and child processes: it reaches the whole group, and the parent decides."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

__all__ = ["leave_stops_to_parent", "stops_blocked"]

_STOPS = {signal.SIGINT, signal.SIGTERM}


@contextmanager
def stops_blocked() -> Iterator[None]:
    """Keeps Ctrl-C from a child that can't handle it yet; the child inherits the mask and lifts it itself."""
    resource_tracker.ensure_running()  # starting it resets the mask
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_stops_to_parent() -> None:
    """In a child started under `stops_blocked`: ignores Ctrl-C, ends at SIGTERM."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
