"""Pipeline: from a rank's share of a step to a finished batch, several batches ahead, on a few threads.

A *job* is arithmetic only: which frames. Starting one takes a slot and hands the rows of the batch to the threads,
which decode into it; finishing one waits for them. Pictures and vectors are written once, into the memory that the
consumer sees. Batches finish in the order of their jobs, whatever the threads do.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.mixture.assemble import Assembler, Samples
from wdsmix.mixture.batch import BatchMemory, batch_fields
from wdsmix.mixture.catalog import Catalog
from wdsmix.mixture.slots import Slot, SlotBatch, SlotRing, lend_tensors
from wdsmix.mixture.spares import Spares

__all__ = ["Job", "Note", "Pending", "Pipeline"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """Which samples make a rank's part of a step."""

    step: int
    source: npt.NDArray[np.int32]
    """int32 [B]."""
    row: npt.NDArray[np.int64]
    """int64 [B]: frame row in its source."""
    draw: npt.NDArray[np.int64]
    """int64 [B]: which draw of its source; chooses goals."""
    cursor: dict[str, Any]
    """The state after this step."""
    valid: npt.NDArray[np.bool_] | None = None
    """bool [B]: in an evaluation, what is no mere filling."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """What a dataset wants to know of a finished batch, wherever it was built."""

    step: int
    cursor: dict[str, Any]
    samples: int
    nbytes: int
    """Bytes of the frames that were read."""
    replaced: int


@dataclass(kw_only=True, slots=True)
class Pending:
    """A batch that is being filled."""

    job: Job
    samples: Samples
    slot: Slot
    memory: BatchMemory
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(-1))  # next() on it is atomic
    futures: list[Future[None]] = field(default_factory=list)
    failed: dict[int, Exception] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    extras: dict[str, list[object]] = field(default_factory=dict)
    nbytes: int = 0
    busy: dict[int, str] = field(default_factory=dict)
    cancelled: bool = False


class Pipeline:
    """Builds the batches of one consumer.

    Args:
        catalog: The opened mixture.
        batch_size: Samples a batch.
        threads: How many decode.
        shared: Whether batches go to another process.
        token: Of the dataset; notes for it travel with shared batches.
        heard: Called with the note of each batch that stays in this process.
        spares: What to do about frames that can't be read; None: raise.
        first_batch_timeout_s: How long the first batch may take; 0: for ever.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        batch_size: int,
        threads: int,
        shared: bool,
        token: str,
        heard: Callable[[Note], None],
        spares: Spares | None = None,
        first_batch_timeout_s: float = 0.0,
    ) -> None:
        self._catalog = catalog
        self._assembler = Assembler(catalog)
        self._fields = batch_fields(catalog.layout, batch_size)
        self._rows = batch_size
        self._threads = threads
        self._shared = shared
        self._token = token
        self._spares = spares
        self._heard = heard
        self._timeout = first_batch_timeout_s
        self._process = os.getpid()
        self._ring = SlotRing(BatchMemory.size_of(self._fields), shared=shared)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="wdsmix-decode")
        self._finished = 0

    @property
    def process(self) -> int:
        """The process it belongs to: threads don't survive a fork."""
        return self._process

    def start(self, job: Job) -> Pending:
        """Begins to fill a batch."""
        samples = self._assembler.locate(job.source, job.row, job.draw)
        slot = self._ring.take()
        pending = Pending(job=job, samples=samples, slot=slot, memory=BatchMemory(self._fields, slot.flat))
        for _ in range(min(self._threads, self._rows)):
            pending.futures.append(self._pool.submit(self._work, pending))
        return pending

    def _work(self, pending: Pending) -> None:
        """Fills rows until there are none left; row -1 stands for all that is not a picture."""
        me = threading.get_ident()
        samples, memory, assembler = pending.samples, pending.memory, self._assembler
        while not pending.cancelled and not (pending.failed and self._spares is None):
            row = next(pending.numbers)
            if row >= self._rows:
                break
            try:
                if row < 0:
                    pending.busy[me] = "reading vectors"
                    pending.tasks, pending.nbytes = assembler.fill_vectors(samples, memory)
                    pending.extras = assembler.extras(samples)
                else:
                    pending.busy[me] = f"reading and decoding pictures of sample {row}"
                    assembler.fill_pictures(samples, memory, row)
            except Exception as error:  # handed on by finish, in the consumer's thread
                pending.failed[row] = error
        pending.busy.pop(me, None)

    def finish(self, pending: Pending) -> dict[str, Any]:
        """Waits for a batch.

        Raises:
            DataError: a frame can't be read (the first one in the batch's order), or the first batch takes too long;
                names what it was at.
        """
        try:
            timeout = self._timeout if self._timeout > 0 and not self._finished else None
            if wait_for(pending.futures, timeout=timeout).not_done:
                raise self._stalled(pending)
            for future in pending.futures:
                future.result()
            replaced = self._mend(pending)
        except BaseException:
            self.cancel(pending)
            raise
        self._finished += 1
        return self._lend(pending, replaced)

    def _stalled(self, pending: Pending) -> DataError:
        at = "; ".join(dict.fromkeys(pending.busy.values())) or "waiting for a thread"
        rows = [int(text.rsplit(" ", 1)[1]) for text in pending.busy.values() if text[-1].isdigit()]
        where = "; ".join(self._assembler.describe(pending.samples, row) for row in rows[:3])
        return DataError(
            f"the first batch is not there after {self._timeout:g} s: still {at}",
            where=where or None,
            hint="is the storage reachable? first_batch_timeout_s sets the limit, 0 waits for ever",
        )

    def _mend(self, pending: Pending) -> npt.NDArray[np.bool_]:
        """Raises the first failure, or puts spare samples in the place of those that failed."""
        replaced = np.zeros(self._rows, dtype=np.bool_)
        for row in sorted(pending.failed):
            error = pending.failed[row]
            if self._spares is None or not isinstance(error, DataError) or row < 0:
                raise error
            task, extras = self._spares.replace(
                self._assembler, pending.samples, pending.job.draw, pending.memory, row, error
            )
            pending.tasks[row] = task
            for name, value in extras.items():
                pending.extras[name][row] = value
            replaced[row] = True
        return replaced

    def _lend(self, pending: Pending, replaced: npt.NDArray[np.bool_]) -> dict[str, Any]:
        arrays = pending.memory.arrays
        if "replaced" in arrays:
            arrays["replaced"][...] = replaced
        if "valid" in arrays:
            valid = pending.job.valid
            arrays["valid"][...] = ~replaced if valid is None else valid & ~replaced
        batch = {
            **lend_tensors(pending.slot.lend(), self._fields),
            "task": pending.tasks,
            "extras": pending.extras,
            "step": pending.job.step,
            "cursor": pending.job.cursor,
        }
        note = Note(
            step=pending.job.step,
            cursor=pending.job.cursor,
            samples=self._rows,
            nbytes=pending.nbytes,
            replaced=int(replaced.sum()),
        )
        if not self._shared:
            self._heard(note)
            return batch
        return SlotBatch(batch, pending.slot, self._fields, (self._token, note))

    def cancel(self, pending: Pending) -> None:
        """Gives a batch up; its slot is free once no thread writes to it any more."""
        pending.cancelled = True
        for future in pending.futures:
            future.cancel()
        if not wait_for(pending.futures, timeout=5.0).not_done:  # a row takes milliseconds; else storage is stuck
            self._ring.give_back(pending.slot)

    def close(self) -> None:
        """Has the threads end; does not wait for them, for one may be stuck in storage."""
        self._pool.shutdown(wait=False, cancel_futures=True)
