"""Positions of a stream of batches: as saved, as batches arrive from workers, and as one worker sees it.

A saved state wraps the order's own state::

    {"wdsmix_mixture": 1, "order": {...}}                                  any process, any number of workers
    {"wdsmix_mixture": 1, "order": {...}, "worker": {id, of, index}}       one DataLoader worker's (StatefulDataLoader)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wdsmix.errors import ConfigError
from wdsmix.mixture.pipeline import Note as BatchNote
from wdsmix.mixture.slots import Note, tell

__all__ = [
    "STATE_VERSION",
    "Announced",
    "Arrivals",
    "Origin",
    "Sent",
    "Stands",
    "WorkerPosition",
    "announced",
    "order_state",
    "wrap",
]

STATE_VERSION = 1


def wrap(order: Mapping[str, Any]) -> dict[str, Any]:
    """A state of the order as a state of a dataset."""
    return {"wdsmix_mixture": STATE_VERSION, "order": dict(order)}


def order_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The order's part of a dataset's state.

    Raises:
        ConfigError: not a state of a MixtureDataset, or one of another version.
    """
    found = state.get("wdsmix_mixture") if isinstance(state, Mapping) else None
    if found != STATE_VERSION or not isinstance(state.get("order"), Mapping):
        raise ConfigError(
            "not a state of a MixtureDataset", expected=f"version {STATE_VERSION}", found=found or type(state).__name__
        )
    order: Mapping[str, Any] = state["order"]
    return order


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerPosition:
    """Where one worker of several stands: at the first of the steps that it is to build next."""

    id: int
    of: int
    """How many workers there are."""
    index: int
    """Number of that step within the iteration; at most how many steps the iteration has."""
    order: Mapping[str, Any]
    """State of the order before that step."""

    @property
    def step(self) -> int:
        """Number of that step over the whole run."""
        return int(self.order["steps"])

    def state(self) -> dict[str, Any]:
        """As JSON types."""
        return {**wrap(self.order), "worker": {"id": self.id, "of": self.of, "index": self.index}}

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> WorkerPosition | None:
        """The worker's part of a state; None where it has none.

        Raises:
            ConfigError: it is not what a worker saved.
        """
        worker = state.get("worker") if isinstance(state, Mapping) else None
        if worker is None:
            return None
        values = {key: worker.get(key) if isinstance(worker, Mapping) else None for key in ("id", "of", "index")}
        numbers = {key: value for key, value in values.items() if isinstance(value, int) and value >= 0}
        if len(numbers) != len(values):
            raise ConfigError("not a state of a DataLoader worker", where="worker", found=worker)
        return cls(**numbers, order=order_state(state))

    def check(self, worker: int, workers: int) -> None:
        """Checks that the worker that goes on is the one that saved.

        Raises:
            ConfigError: it is another one, or one of another number.
        """
        if (self.id, self.of) != (worker, workers):
            raise ConfigError(
                "a DataLoader worker's state goes with its worker",
                where="num_workers",
                expected=f"worker {self.id} of {self.of}",
                found=f"worker {worker} of {workers}" if workers else "no worker",
                hint='for another number of workers save state_dict(cursor=batch["cursor"])',
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Origin:
    """Which worker, in which of its iterations, a batch or a position comes from."""

    worker: int
    of: int
    base: int
    """Number of the iteration's first step, over all workers."""
    end: int | None
    """Number of the step behind its last one; None: endless."""
    era: int
    """How often the dataset had been moved when the worker got it."""
    round: int
    """How many iterations the worker has begun."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sent:
    """A worker tells: here is a batch."""

    origin: Origin
    note: BatchNote


@dataclass(frozen=True, kw_only=True, slots=True)
class Stands:
    """A worker tells: this is my next step."""

    origin: Origin
    step: int
    order: Mapping[str, Any]
    """State of the order before it."""


class Announced(int):
    """A number in a worker's state that, on its way to the parent process, tells the dataset there where it stands.

    StatefulDataLoader moves workers without a word to the dataset in the parent process, but it fetches the state of
    each worker before their first batch. The parent receives a plain int.
    """

    note: Note

    def __eq__(self, other: object) -> bool:
        return False  # StatefulDataLoader leaves out what it takes for known

    def __hash__(self) -> int:
        return hash(int(self))

    def __copy__(self) -> Announced:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Announced:
        return self

    def __reduce__(self) -> tuple[Callable[..., int], tuple[Any, ...]]:
        return _receive, (int(self), self.note)


def announced(state: dict[str, Any], note: Note) -> dict[str, Any]:
    """A worker's state that tells its dataset in the parent process."""
    number = Announced(STATE_VERSION)
    number.note = note
    return {**state, "wdsmix_mixture": number}


def _receive(number: int, note: Note) -> int:
    tell(note)
    return number


class Arrivals:
    """Follows batches that workers send: the state after the last one before which none is missing.

    Thread-safe, for a DataLoader that pins memory receives in a thread of its own. Keeps the states of as many batches
    as the fastest worker is ahead of the slowest.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._base = -1
        self._next: dict[int, int] = {}
        self._before: dict[int, Mapping[str, Any]] = {}
        self.order: Mapping[str, Any] | None = None
        """State of the order after that batch; None before the first."""

    def __len__(self) -> int:
        return len(self._before)

    def stands(self, origin: Origin, step: int, order: Mapping[str, Any]) -> None:
        """A worker says where it stands.

        Args:
            origin: Which worker.
            step: Number of its next step.
            order: State of the order before that step.
        """
        self._settle(origin, step, step, order)

    def arrived(self, origin: Origin, step: int, order: Mapping[str, Any]) -> None:
        """A worker has sent a batch.

        Args:
            origin: Which worker.
            step: Number of the batch.
            order: State of the order after it.
        """
        self._settle(origin, step + origin.of, step + 1, order)

    def _settle(self, origin: Origin, upcoming: int, step: int, order: Mapping[str, Any]) -> None:
        with self._lock:
            if origin.base < self._base:
                return
            if origin.base > self._base:  # a new iteration
                self._base = origin.base
                self._next, self._before = {}, {}
            if upcoming < self._next.get(origin.worker, 0):
                return
            self._next[origin.worker] = upcoming
            self._before[step] = order
            missing = min(self._next.get(worker, origin.base + worker) for worker in range(origin.of))
            if origin.end is not None:
                missing = min(missing, origin.end)
            if missing in self._before:
                self.order = self._before[missing]
            for passed in [step for step in self._before if step < missing]:
                del self._before[passed]
