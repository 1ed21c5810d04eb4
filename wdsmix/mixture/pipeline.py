"""Pipeline: from a rank's share of a step to a finished batch, several batches ahead, on a few threads.

A *job* is arithmetic only: which frames. Starting one takes a slot and hands the rows of the batch to the threads,
which decode into it; finishing one waits for them. Pictures and vectors are written once, into the memory that the
consumer sees. Batches finish in the order of their jobs, whatever the threads do. A batch that is given up gives its
slot back when the last thread has left it, and not before.
"""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.mixture.assemble import Assembler, Hand, Samples
from wdsmix.mixture.batch import BatchMemory, batch_fields
from wdsmix.mixture.catalog import Catalog
from wdsmix.mixture.crew import Crew
from wdsmix.mixture.order import SourceOrder
from wdsmix.mixture.remote import read_ahead_of
from wdsmix.mixture.slots import Slot, SlotBatch, SlotRing, lend_tensors
from wdsmix.mixture.spares import Spares

__all__ = ["Job", "Note", "Pending", "Pipeline", "pipeline_here"]

_FEW = 8
"""Rows that a thread takes at a time, fewer in a small batch: finding frames one after another is cheaper."""


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
    fetched: int = 0
    """Bytes that came from stores."""
    asked: int = 0
    """Reads of frames that lie in stores."""
    waited: int = 0
    """Of these, how many had to wait."""


@dataclass(kw_only=True, slots=True, eq=False)
class Pending:
    """A batch that is being filled."""

    job: Job
    samples: Samples
    slot: Slot
    memory: BatchMemory
    at_work: int
    """Threads that have yet to leave it."""
    tasks: list[str]
    extras: dict[str, list[object]]
    turns: Iterator[int] = field(default_factory=lambda: itertools.count(-1))  # next() on it is atomic
    failed: dict[int, BaseException] = field(default_factory=dict)
    nbytes: list[int] = field(default_factory=list)
    """Of the frames of each turn."""
    busy: dict[int, Hand] = field(default_factory=dict)
    """Thread -> what it is at."""
    lock: threading.Lock = field(default_factory=threading.Lock)
    done: threading.Event = field(default_factory=threading.Event)
    cancelled: bool = False


class Pipeline:
    """Builds the batches of one consumer.

    Args:
        catalog: The opened mixture.
        batch_size: Samples a batch.
        threads: How many decode.
        shared: Whether batches go to another process.
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
        spares: Spares | None = None,
        first_batch_timeout_s: float = 0.0,
    ) -> None:
        self._catalog = catalog
        self._assembler = Assembler(catalog)
        self._fields = batch_fields(catalog.layout, batch_size)
        self._rows = batch_size
        self._shared = shared
        self._spares = spares
        self._timeout = first_batch_timeout_s
        self._process = os.getpid()
        self._ring = SlotRing(BatchMemory.size_of(self._fields), shared=shared)
        self._memories: dict[int, BatchMemory] = {}
        self._crew = Crew(threads, "wdsmix-decode")
        self._few = max(1, min(_FEW, batch_size // (2 * threads)))
        self._finished = 0
        self._ahead = read_ahead_of(catalog)

    @property
    def process(self) -> int:
        """The process it belongs to: threads don't survive a fork."""
        return self._process

    def share(self, orders: Sequence[SourceOrder]) -> None:
        """Tells the orders by which jobs are made; see `ReadAhead.share`."""
        if self._ahead is not None:
            self._ahead.share(orders)

    def locate(self, jobs: Sequence[Job]) -> list[Samples]:
        """Finds the samples of several batches, in one go."""
        if not jobs:
            return []
        source, row, draw = (np.concatenate([getattr(job, name) for job in jobs]) for name in ("source", "row", "draw"))
        samples = self._assembler.locate(source, row, draw)
        if self._ahead is not None:
            samples = replace(samples, needs=self._ahead.needs(samples, draw))
        return samples.split(self._rows)

    def start(self, job: Job, samples: Samples | None = None) -> Pending:
        """Begins to fill a batch, whose samples may be located already."""
        if samples is None:
            (samples,) = self.locate([job])
        if self._ahead is not None:
            self._ahead.follow(job, samples)
        slot = self._ring.take()
        memory = self._memories.get(slot.number)
        if memory is None:
            memory = self._memories[slot.number] = BatchMemory(self._fields, slot.flat)
        hands = min(self._crew.size, -(-self._rows // self._few) + 1)
        pending = Pending(
            job=job,
            samples=samples,
            slot=slot,
            memory=memory,
            at_work=hands,
            tasks=[""] * self._rows,
            extras={name: [None] * self._rows for name in self._assembler.layout.extras},
        )
        call = functools.partial(self._work, pending)
        for _ in range(hands):
            self._crew.submit(call)
        return pending

    def _work(self, pending: Pending) -> None:
        """Fills rows, a few at a time, until there are none left; before them, what is done once a batch."""
        hand, me = Hand(), threading.get_ident()
        pending.busy[me] = hand
        try:
            while not (pending.cancelled or self._crew.stopped or (pending.failed and self._spares is None)):
                turn = next(pending.turns)
                if turn * self._few >= self._rows:
                    break
                self._fill(pending, turn, hand)
        except BaseException as error:  # handed on by finish; such as SystemExit: never wait for a thread that is gone
            pending.failed[hand.row] = error
        finally:
            pending.busy.pop(me, None)
            self._leave(pending)

    def _fill(self, pending: Pending, turn: int, hand: Hand) -> None:
        assembler, samples = self._assembler, pending.samples
        if turn < 0:
            hand.stage = "reading vectors"
            try:
                pending.tasks = assembler.fill_vectors(samples, pending.memory)
            except Exception as error:  # handed on by finish, in the consumer's thread
                pending.failed[-1] = error
            return
        rows = range(turn * self._few, min((turn + 1) * self._few, self._rows))
        failed: dict[int, BaseException] = {}
        pending.nbytes.append(assembler.fill_pictures(samples, pending.memory, rows, hand, failed))
        if failed:
            if self._ahead is not None:
                self._ahead.mend(assembler, samples, pending.memory, hand, failed)
            pending.failed.update(failed)
        for row in rows if pending.extras else ():
            if row in pending.failed:
                continue
            try:
                for name, value in assembler.extras(samples, row).items():
                    pending.extras[name][row] = value
            except Exception as error:
                pending.failed[row] = error

    def _leave(self, pending: Pending) -> None:
        with pending.lock:
            pending.at_work -= 1
            if not pending.at_work:
                pending.done.set()
                if pending.cancelled:
                    self._ring.give_back(pending.slot)

    def finish(self, pending: Pending) -> tuple[dict[str, Any], Note]:
        """Waits for a batch.

        Returns:
            It, and what there is to say of it. One to share with another process is a `SlotBatch`.

        Raises:
            DataError: a frame can't be read (the first one in the batch's order), or the first batch takes too long;
                names what it was at.
        """
        try:
            timeout = self._timeout if self._timeout > 0 and not self._finished else None
            if not pending.done.wait(timeout):
                raise self._stalled(pending)
            if self._crew.stopped:
                raise RuntimeError("the process ends: no more batches")
            replaced = self._mend(pending)
        except BaseException:
            self.cancel(pending)
            raise
        self._finished += 1
        return self._lend(pending, replaced)

    def _stalled(self, pending: Pending) -> DataError:
        busy = sorted({(hand.stage, hand.row) for hand in list(pending.busy.values())}, key=lambda item: item[1])
        at = " and ".join(dict.fromkeys(stage for stage, _ in busy)) or "waiting for a thread"
        where = "; ".join(self._assembler.describe(pending.samples, row) for _, row in busy[:3] if row >= 0)
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
                self._assembler,
                pending.samples,
                pending.job.draw,
                pending.memory,
                row,
                error,
                None if self._ahead is None else self._ahead.mend,
            )
            pending.tasks[row] = task
            for name, value in extras.items():
                pending.extras[name][row] = value
            replaced[row] = True
        return replaced

    def _lend(self, pending: Pending, replaced: npt.NDArray[np.bool_]) -> tuple[dict[str, Any], Note]:
        arrays = pending.memory.arrays
        if "replaced" in arrays:
            arrays["replaced"][...] = replaced
        if "valid" in arrays:
            valid = pending.job.valid
            arrays["valid"][...] = ~replaced if valid is None else valid & ~replaced
        block = pending.slot.lend()
        batch = {
            **lend_tensors(block, self._fields),
            "task": pending.tasks,
            "extras": pending.extras,
            "step": pending.job.step,
            "cursor": pending.job.cursor,
        }
        counts = None if self._ahead is None else self._ahead.take_counts()
        note = Note(
            step=pending.job.step,
            cursor=pending.job.cursor,
            samples=self._rows,
            nbytes=sum(pending.nbytes),
            replaced=int(replaced.sum()),
            **({} if counts is None else vars(counts)),
        )
        return (SlotBatch(batch, pending.slot, block, self._fields) if self._shared else batch), note

    def cancel(self, *given_up: Pending) -> None:
        """Gives batches up, without waiting; a slot is free once no thread writes to it any more."""
        if os.getpid() != self._process:  # a forked child: threads and slots are its parent's
            return
        for pending in given_up:
            with pending.lock:
                if pending.cancelled:
                    continue
                pending.cancelled = True
                if not pending.at_work:
                    self._ring.give_back(pending.slot)


def pipeline_here(
    current: Pipeline | None, catalog: Catalog, *, batch_size: int, threads: int, shared: bool
) -> Pipeline:
    """The pipeline of this process: the current one, whose threads and slots live on, or a new one after a fork."""
    if current is not None and current.process == os.getpid():
        return current
    config = catalog.config
    spares = Spares(catalog.new_order().orders, config.max_skipped) if config.on_error == "skip" else None
    return Pipeline(
        catalog,
        batch_size=batch_size,
        threads=threads,
        shared=shared,
        spares=spares,
        first_batch_timeout_s=config.first_batch_timeout_s,
    )
