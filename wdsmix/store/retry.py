"""Trying again: full-jitter backoff, counted in tries without progress."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from wdsmix.errors import ConfigError, StorageError

__all__ = ["Backoff", "Retries", "StoreOptions", "TransientError"]

T = TypeVar("T")


class TransientError(StorageError):
    """A request failed in a way that the next one may not: a lost connection, a time-out, a busy server."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreOptions:
    """How patient a store is."""

    tries: int = 8
    """Tries without progress before giving up; every byte received starts the count anew."""
    pause: float = 0.2
    """Upper bound of the first pause in s; it doubles with every try."""
    pause_limit: float = 10.0
    """Upper bound of any pause in s."""
    connect_timeout: float = 5.0
    """s."""
    read_timeout: float = 15.0
    """s without a byte after which a connection is given up."""
    connections: int = 32
    """Connections that may be open at once."""

    def __post_init__(self) -> None:
        if self.tries < 1 or self.connections < 1:
            raise ConfigError("bad store options", expected="tries and connections of 1 or more", found=self)
        if min(self.pause, self.pause_limit) < 0 or min(self.connect_timeout, self.read_timeout) <= 0:
            raise ConfigError("bad store options", expected="positive times", found=self)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> StoreOptions:
        """Options with ``WDSMIX_STORE_TRIES`` and ``WDSMIX_STORE_TIMEOUT`` (s without a byte) applied.

        Raises:
            ConfigError: one of them is not a number.
        """
        found = os.environ if environment is None else environment
        values = {}
        for name, kind, usual in (("WDSMIX_STORE_TRIES", int, 8), ("WDSMIX_STORE_TIMEOUT", float, 15.0)):
            text = found.get(name)
            try:
                values[name] = kind(text) if text else usual
            except ValueError:
                raise ConfigError("not a number", where=name, found=text) from None
        return cls(tries=int(values["WDSMIX_STORE_TRIES"]), read_timeout=values["WDSMIX_STORE_TIMEOUT"])


class Retries:
    """The retries of one store, shared by its threads: settings, a counter, and a way to stop them all."""

    def __init__(self, options: StoreOptions) -> None:
        self.options = options
        self.stopped = threading.Event()
        self._lock, self._pid = threading.Lock(), os.getpid()
        self._random = random.Random()
        self._counts: dict[str, int] = {}

    def _guard(self) -> threading.Lock:
        if os.getpid() != self._pid:  # forked: another thread of the parent may have held the lock
            self._lock, self.stopped, self._random = threading.Lock(), threading.Event(), random.Random()
            self._pid = os.getpid()  # last: whoever sees the new pid must see the new lock
        return self._lock

    @property
    def count(self) -> int:
        """Failed tries so far that were followed by another one."""
        with self._guard():
            return sum(self._counts.values())

    @property
    def counts(self) -> dict[str, int]:
        """The same by what went wrong."""
        with self._guard():
            return dict(sorted(self._counts.items()))

    def note(self, message: str) -> None:
        """Counts one failed try."""
        with self._guard():
            self._counts[message] = self._counts.get(message, 0) + 1

    def stop(self) -> None:
        """Makes every pending and later retry give up, so that threads end."""
        self.stopped.set()

    def check(self) -> None:
        """Ends the work of a thread once all is to stop.

        Raises:
            TransientError: it is.
        """
        if self.stopped.is_set():
            raise TransientError("stopped")

    def backoff(self) -> Backoff:
        """A new count of tries."""
        return Backoff(self)

    def call(self, request: Callable[[], T]) -> T:
        """Makes one request until it succeeds or has failed too often.

        Raises:
            TransientError: the last failure.
        """
        backoff = self.backoff()
        while True:
            try:
                return request()
            except TransientError as error:
                backoff.failed(error)

    def jitter(self, limit: float) -> float:
        """Somewhere between nothing and ``limit``."""
        with self._guard():
            return self._random.uniform(0.0, limit)


class Backoff:
    """Tries without progress of one operation."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._tries = 0

    def progress(self) -> None:
        """Something arrived: the count starts anew."""
        self._tries = 0

    def failed(self, error: TransientError) -> None:
        """Counts a failed try and waits.

        Raises:
            TransientError: ``error``, if it was the last one allowed or the work was stopped.
        """
        self._tries += 1
        options = self._retries.options
        if self._tries >= options.tries or self._retries.stopped.is_set():
            if self._tries > 1:
                error.message += f", {self._tries} tries in a row"
            raise error
        self._retries.note(error.message)
        limit = min(options.pause_limit, options.pause * 2 ** min(self._tries - 1, 30))
        if self._retries.stopped.wait(self._retries.jitter(limit)):
            raise error
