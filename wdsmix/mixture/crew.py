"""Crew: a few threads that work off calls in the order in which they were given.

Daemon threads, unlike those of `concurrent.futures`: one that is stuck in a dead file system must not keep the process
from ending. They end when the crew is gone, and at exit after the row at hand.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

__all__ = ["Crew"]

_PATIENCE = 1.0  # s at exit, for all threads together


@dataclass(kw_only=True, slots=True)
class _Shared:
    """What threads know of their crew: not the crew itself, so that it can go."""

    process: int
    calls: SimpleQueue[Callable[[], None] | None] = field(default_factory=SimpleQueue)
    threads: list[threading.Thread] = field(default_factory=list)
    stopped: bool = False


class Crew:
    """Threads that start with the first call.

    Args:
        size: How many.
        name: Prefix of their names.
    """

    def __init__(self, size: int, name: str) -> None:
        self.size = size
        self._name = name
        self._shared = _Shared(process=os.getpid())
        weakref.finalize(self, _dismiss, self._shared).atexit = False
        _crews.add(self)

    @property
    def stopped(self) -> bool:
        """Whether the process ends: calls should return soon."""
        return self._shared.stopped

    def submit(self, call: Callable[[], None]) -> None:
        """Has one of the threads make a call, which must not raise."""
        shared = self._shared
        shared.calls.put(call)
        if len(shared.threads) < self.size:
            name = f"{self._name}-{len(shared.threads)}"
            thread = threading.Thread(target=_serve, args=(shared.calls,), name=name, daemon=True)
            shared.threads.append(thread)
            thread.start()


def _serve(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # or the last call would keep its batch until the next one comes


def _dismiss(shared: _Shared) -> None:
    if os.getpid() != shared.process:  # a forked child, where the threads are not
        return
    shared.stopped = True
    for _ in shared.threads:
        shared.calls.put(None)


_crews: weakref.WeakSet[Crew] = weakref.WeakSet()


@atexit.register
def _end() -> None:
    """Lets the threads of this process end before the interpreter is taken down around them."""
    crews = [crew._shared for crew in _crews if crew._shared.process == os.getpid()]
    for shared in crews:
        _dismiss(shared)
    end = time.monotonic() + _PATIENCE
    for shared in crews:
        for thread in shared.threads:
            thread.join(max(0.0, end - time.monotonic()))
