"""Positions of a stream of batches: as saved, as batches arrive from workers, and as one worker sees it.

A saved state wraps the order's own state::

    {"wdsmix_mixture": 1, "order": {...}}                                  any process, any number of workers
    {"wdsmix_mixture": 1, "order": {...}, "worker": {id, of, index}}       one DataLoader worker's (StatefulDataLoader)
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wdsmix.errors import ConfigError

__all__ = ["STATE_VERSION", "Arrivals", "WorkerPosition", "order_state", "wrap"]

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
    """Number of that step within the iteration."""
    order: Mapping[str, Any]
    """State of the order before that step."""

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
            ConfigError: it is another one of another number.
        """
        if (self.id, self.of) != (worker, workers):
            raise ConfigError(
                "a DataLoader worker's state goes with its worker",
                where="num_workers",
                expected=f"worker {self.id} of {self.of}",
                found=f"worker {worker} of {workers}",
                hint='for another number of workers save state_dict(cursor=batch["cursor"])',
            )


class Arrivals:
    """Follows batches that workers send: the state after the last one before which none is missing.

    Thread-safe, for a DataLoader that pins memory receives in a thread of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: int | None = None
        self._early: dict[int, Mapping[str, Any]] = {}
        self.order: Mapping[str, Any] | None = None
        """State of the order after that batch; None before the first."""

    def add(self, step: int, order: Mapping[str, Any], first: int) -> None:
        """A batch has come.

        Args:
            step: Its number.
            order: State of the order after it.
            first: Number of the first step to come.
        """
        with self._lock:
            if self._expected is None:
                self._expected = first
            self._early[step] = order
            while self._expected in self._early:
                self.order = self._early.pop(self._expected)
                self._expected += 1
