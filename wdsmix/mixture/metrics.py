"""Metrics: what a stream of batches did, as counted where its batches arrive."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wdsmix.mixture.pipeline import Note

__all__ = ["Metrics"]


class Metrics:
    """Counts batches; thread-safe.

    Args:
        weights: Source name -> weight.
        sizes: Source name -> frames.
        path: File that gets a JSON line at most every ``interval_s`` seconds; None: none.
        interval_s: Seconds.
    """

    def __init__(
        self, weights: Mapping[str, float], sizes: Mapping[str, int], path: Path | None, interval_s: float
    ) -> None:
        total = sum(weights.values())
        self._asked = {name: weight / total for name, weight in weights.items()}
        self._sizes = dict(sizes)
        self._path = path
        self._interval = interval_s
        self._lock = threading.Lock()
        self._begun = self._written = time.monotonic()
        self._samples = self._batches = self._bytes = self._replaced = 0
        self._fetched = self._reads = self._late = 0
        self._waited: float | None = None
        self._last = -1
        self._counts: dict[str, int] = {}
        self._first_counts: dict[str, int] | None = None

    def begin(self, counts: Mapping[str, int]) -> None:
        """An iteration starts at these counts of draws; time runs from the first one."""
        with self._lock:
            if self._first_counts is None:
                self._first_counts = dict(counts)
                if not self._batches:
                    self._begun = self._written = time.monotonic()

    def rebase(self) -> None:
        """The position was moved: shares count from the next iteration on, sums go on."""
        with self._lock:
            self._first_counts, self._counts, self._last = None, {}, -1

    def add(self, note: Note) -> None:
        """One batch has arrived."""
        with self._lock:
            self._batches += 1
            self._samples += note.samples
            self._bytes += note.nbytes
            self._replaced += note.replaced
            self._fetched += note.fetched
            self._reads += note.asked
            self._late += note.waited
            if note.step > self._last:
                self._last, self._counts = note.step, note.cursor["order"]["counts"]
            due = self._path is not None and time.monotonic() - self._written >= self._interval
            if due:
                self._written = time.monotonic()
        if due:
            self.write()

    def waited(self, seconds: float) -> None:
        """The consumer waited for a batch."""
        with self._lock:
            self._waited = (self._waited or 0.0) + seconds

    def snapshot(self) -> dict[str, Any]:
        """Totals since the first iteration, as JSON types.

        ``shares``: asked, and realised since the first iteration or `rebase`; ``epochs``: passes over each source, over
        the whole run; ``wait_share``: how much of the time the consumer waited, null under DataLoader workers, where
        only the DataLoader knows; ``bytes_fetched``: what came from stores; ``cache_hits``: how many of the reads of
        frames that lie in stores found them on the disk of the node, null where there were none.
        """
        with self._lock:
            elapsed = max(time.monotonic() - self._begun, 1e-9)
            first = self._first_counts or {}
            drawn = {name: self._counts.get(name, 0) - first.get(name, 0) for name in self._asked}
            if not self._counts:
                drawn = dict.fromkeys(self._asked, 0)
            total = sum(drawn.values())
            return {
                "batches": self._batches,
                "samples": self._samples,
                "seconds": elapsed,
                "samples_per_s": self._samples / elapsed,
                "bytes_read": self._bytes,
                "bytes_fetched": self._fetched,
                "cache_hits": 1 - self._late / self._reads if self._reads else None,
                "wait_share": None if self._waited is None else self._waited / elapsed,
                "replaced": self._replaced,
                "step": self._last,
                "shares": {
                    name: {"asked": asked, "realised": drawn[name] / total if total else None}
                    for name, asked in self._asked.items()
                },
                "epochs": {name: self._counts.get(name, 0) / size for name, size in self._sizes.items()},
            }

    def write(self) -> None:
        """Appends a line to the file now."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(self.snapshot()) + "\n")
