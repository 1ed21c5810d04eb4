"""Reading ahead: what the next batches need of sets that lie in stores is fetched before they are built.

The order is arithmetic, so that what comes is known. Two kinds of calls go to threads of their own:

- *demand*: what a batch that has just been started still lacks. The frames alone, a chunk or two each, where its blocks
  would take long to come, as those of the first batch; else the blocks, which are needed anyway: a request costs as
  much as a frame.
- *ahead*: whole blocks, in the order of their first use, up to a window of draws (in which the order of a source turns
  over its blocks) and a number of bytes before that; at leisure while there are blocks in demand.

All processes of a node plan the same and share the cache: what one fetches the others leave alone. A rank plans the
streams that its own batches are drawn from. An error is left to the thread that needs the bytes: it tries once more,
and raises.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import google_crc32c
import numpy as np
import numpy.typing as npt
from torch.utils.data import get_worker_info

from wdsmix.errors import DataError, WdsmixError
from wdsmix.mixture.assemble import Assembler, Hand, Samples
from wdsmix.mixture.batch import BatchMemory
from wdsmix.mixture.blocks import Blocks, blocks_of
from wdsmix.mixture.catalog import Catalog, OpenSource
from wdsmix.mixture.config import MixtureConfig
from wdsmix.mixture.crew import Crew
from wdsmix.mixture.needs import BlockTable, Needs
from wdsmix.mixture.order import SourceOrder
from wdsmix.mixture.readplan import Planned, ReadPlan
from wdsmix.store.cache import open_cache, usable
from wdsmix.store.cached import Counts

if TYPE_CHECKING:
    from wdsmix.mixture.pipeline import Job

__all__ = ["ReadAhead", "read_ahead_of"]

_log = logging.getLogger("wdsmix")

Int64Array = npt.NDArray[np.int64]

_CONNECTIONS = 8
_JOBS = 8  # of an evaluation, planned ahead
_TRIES = 4  # to find a block whole that another process is fetching
_FIRST = 1.0  # s, at most, that blocks wait for the frames of the first batch
_SOON = 0.15  # s: a batch waits for whole blocks if all that it lacks comes in this time
_LEISURE = 1.0  # s, at most, that each block ahead waits for those in demand
_AT_WORK = 6  # batches of a process at once, at most
_MENDS = 3  # of a sample, at most
_FAINT = 0.25  # of the mean: a stream that gives a rank less is left to demand


@dataclass(frozen=True, slots=True)
class _Frames:
    """Frames of a source that a batch lacks."""

    source: ReadPlan
    blocks: Int64Array
    """int64 [N]: numbers in the source; one behind the last for a goal in another episode."""
    shard: Int64Array
    """int64 [N]."""
    at: Int64Array
    """int64 [N]: rows in the shard."""


class ReadAhead:
    """Fetches what a pipeline will need. Its methods are called by the thread that starts jobs, and never wait.

    Args:
        catalog: The opened mixture.
        sources: Places of the sources that lie in stores.
    """

    def __init__(self, catalog: Catalog, sources: Sequence[int]) -> None:
        config, orders = catalog.config, catalog.new_order().orders
        blocks = {place: _blocks(catalog.sources[place], config.block_bytes) for place in sources}
        self._table = BlockTable([order.size for order in orders], blocks, config.streams)
        self._sources = {
            place: ReadPlan(
                catalog.sources[place],
                orders[place],
                blocks[place],
                catalog.layout.offsets,
                config.window,
                self._table.ready_of(place),
            )
            for place in sources
        }
        self._budget = self._affordable(config, [catalog.sources[place] for place in sources])
        self._streams = np.zeros(config.streams)
        """How much of late batches came from each stream: a rank reads some only."""
        info = get_worker_info()
        workers = 1 if info is None else info.num_workers
        self._at_work = _AT_WORK * workers
        """Batches that may be at work at once."""
        threads = max(2, _CONNECTIONS // workers)
        self._demand = Crew(threads, "wdsmix-demand")
        self._ahead = Crew(threads, "wdsmix-ahead")
        self._connections = threads * workers
        self._pace = 0.0
        """Bytes per second of one connection, as blocks came of late; 0: none came yet."""
        self._urgent = 0
        """Blocks in demand that are not there yet."""
        self._lock, self._calm = threading.Lock(), threading.Event()
        self._calm.set()
        self._begun = threading.Event()
        self._last: tuple[int, int] | None = None
        self._counts = [source.set.counts for source in catalog.sources if source.set.counts is not None]

    @staticmethod
    def _affordable(config: MixtureConfig, sources: Sequence[OpenSource]) -> int:
        """Bytes to read ahead: as many as are asked for, but only what the cache has room for beside what is live."""
        live = sum(source.live_bytes(config.window) for source in sources)
        room = open_cache(config.cache_folder, config.cache_limit).room()
        free = (usable(room) - live) // int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        return min(config.read_ahead, max(free, live // 16))

    def share(self, orders: Sequence[SourceOrder]) -> None:
        """Plans by the orders that jobs are made by, one a source: their windows are computed once then."""
        for place, source in self._sources.items():
            source.order = orders[place]

    def needs(self, samples: Samples, draw: Int64Array) -> Needs:
        """What samples need; see `BlockTable.of`."""
        return self._table.of(samples, draw)

    def follow(self, job: Job, samples: Samples) -> None:
        """A batch is started: has what it lacks fetched, and what comes after it."""
        needs = samples.needs
        if needs is None:
            needs = self.needs(samples, job.draw)
        there = self._table.ready.take(needs.blocks)
        if not there.all():
            self._ask(job, samples, needs, ~there)
        self._streams *= 0.9
        self._streams += np.bincount(needs.streams, minlength=len(self._streams))
        if not self._begun.is_set():  # the frames of the first batch come first
            self._submit(self._demand, self._begin)
        if job.cursor:
            self._look_ahead(job.cursor["order"]["counts"], len(job.row))
        else:
            self._look_on(job)

    def _ask(self, job: Job, samples: Samples, needs: Needs, late: npt.NDArray[np.bool_]) -> None:
        """Has what a batch lacks fetched."""
        lacking = self._lacking(samples, needs, late)
        if job.cursor:
            lacking = self._ask_blocks(lacking)
        for frames in lacking:
            for number in np.unique(frames.shard).tolist():
                at = np.unique(frames.at[frames.shard == number])
                self._submit(self._demand, self._fetch_frames, frames.source.opened, number, at)

    def _lacking(self, samples: Samples, needs: Needs, late: npt.NDArray[np.bool_]) -> list[_Frames]:
        """Frames of a batch whose blocks are not there yet (bool [B, T] or [B, T + 1]), source by source."""
        shown = samples.observed.shape[1]
        found = []
        for place, source in self._sources.items():
            here = late & (samples.source == place)[:, None]
            b, t = np.nonzero(here[:, :shown])
            blocks, shard, at = needs.blocks[b, t], samples.shard[b], samples.first_row[b] + samples.observed[b, t]
            goal = samples.goal
            if goal is not None:
                far = np.flatnonzero(here[:, shown])
                blocks = np.concatenate([blocks, needs.blocks[far, shown]])
                shard, at = np.concatenate([shard, goal.shard[far]]), np.concatenate([at, goal.shard_row[far]])
            if len(blocks):
                blocks = blocks - self._table.first[place]
                left = source.look_again(blocks)
                found.append(_Frames(source, blocks[left], shard[left], at[left]))
        return found

    def _ask_blocks(self, lacking: list[_Frames]) -> list[_Frames]:
        """Asks for whole blocks if all that a batch lacks comes soon enough; returns the frames that are left."""
        found: list[tuple[ReadPlan, Planned]] = []
        left: list[_Frames] = []
        for frames in lacking:
            blocks, other = frames.source.untried(frames.blocks)
            found += [(frames.source, planned) for planned in blocks]
            left.append(_Frames(frames.source, frames.blocks[other], frames.shard[other], frames.at[other]))
        if not found or sum(planned.bytes for _, planned in found) > _SOON * self._pace * self._connections:
            return lacking
        for source, planned in found:
            if not planned.urgent:
                planned.urgent = True
                self._ask_block(source, planned)
        return left

    def _ask_block(self, source: ReadPlan, planned: Planned) -> None:
        """Has a block fetched before all that is only ahead; whoever reads its frames meanwhile waits for it."""
        end: Callable[[], None] = _nothing
        if source.is_open(planned):
            shard, start, stop = source.span(planned)
            if shard.remote is not None:
                shard.remote.promise(start, stop)
                end = functools.partial(shard.remote.withdraw, start, stop)
        with self._lock:
            self._urgent += 1
            self._calm.clear()
        self._demand.submit(
            functools.partial(_call, weakref.ref(self), "_fetch_urgent", (source, planned), otherwise=end)
        )

    def _fetch_urgent(self, source: ReadPlan, planned: Planned) -> None:
        again = False
        try:
            again = self._fetch(source, planned)
        finally:
            with self._lock:
                self._urgent -= 1
                if not self._urgent:
                    self._calm.set()
        if again:
            self._submit(self._ahead, self._fetch_block, source, planned)

    def _fetch(self, source: ReadPlan, planned: Planned) -> bool:
        """Fetches a block; returns whether to look again later, for another process is at a part of it."""
        began = time.perf_counter()
        planned.tries += 1
        try:
            shard, start, stop = source.span(planned)
            if shard.remote is None or shard.remote.prefetch(start, stop):
                source.came(planned)
        except WdsmixError as error:
            _log.debug("left to the thread that needs it: %s", error)
            return False
        if planned.ready and planned.tries == 1:
            pace = (stop - start) / max(time.perf_counter() - began, 1e-6)
            self._pace = 0.8 * self._pace + 0.2 * pace if self._pace else pace
        return not planned.ready and planned.tries < _TRIES

    def _submit(self, crew: Crew, method: Callable[..., None], *arguments: object) -> None:
        """Has a thread call a method, if there is still somebody who wants it done."""
        crew.submit(functools.partial(_call, weakref.ref(self), method.__name__, arguments))

    def _fetch_frames(self, opened: OpenSource, number: int, at: Int64Array) -> None:
        try:
            shard = opened.set.shard(number)
            if shard.remote is None:
                return
            start = shard.offset[at].astype(np.int64)
            stop = start + shard.length[at]
            cut = np.flatnonzero(start[1:] != stop[:-1])  # neighbours come by one request
            for first, last in zip(start[[0, *(cut + 1)]].tolist(), stop[[*cut, -1]].tolist(), strict=True):
                if self._demand.stopped:
                    return
                shard.remote.prefetch(first, last)
        except WdsmixError as error:
            _log.debug("left to the thread that needs it: %s", error)

    def _begin(self) -> None:
        self._begun.set()

    def _look_ahead(self, counts: dict[str, int], batch: int) -> None:
        """Plans from where the order stands after a batch."""
        ahead = 0
        due: list[ReadPlan] = []
        for source in self._sources.values():
            now = counts[source.name]
            ahead += source.ahead
            if not now <= source.until <= now + 2 * source.window:
                source.restart(now)
            gone = source.passed(now, self._at_work * batch)
            if gone:
                self._submit(self._ahead, self._finish_blocks, source, gone)
            if source.until + source.step <= now + source.window:
                due.append(source)
        if not due or ahead >= self._budget:
            return
        streams = self._streams >= _FAINT * self._streams.mean()
        while due and ahead < self._budget:
            source = min(due, key=lambda s: (s.until - counts[s.name]) / s.weight)
            for planned in source.plan(streams):
                ahead += planned.bytes
                self._submit(self._ahead, self._fetch_block, source, planned)
            if source.until + source.step > counts[source.name] + source.window:
                due.remove(source)

    def _look_on(self, job: Job) -> None:
        """Plans an evaluation, whose batches follow each other at equal distances."""
        place, row = int(job.source[0]), int(job.row[0])
        last, self._last = self._last, (place, row)
        source = self._sources.get(place)
        if source is None or last is None or last[0] != place or row <= last[1]:
            return
        stride, size = row - last[1], len(job.row)
        if source.until < row or source.until > row + (_JOBS + 1) * stride:
            source.restart(row + stride)
        while source.until <= row + _JOBS * stride:
            for planned in source.pieces(source.until, source.until + size):
                self._submit(self._ahead, self._fetch_block, source, planned)
            source.until += stride

    def _fetch_block(self, source: ReadPlan, planned: Planned) -> None:
        if not self._begun.is_set():
            self._begun.wait(_FIRST)
        if not self._calm.is_set():
            self._calm.wait(_LEISURE)
        if self._ahead.stopped or planned.turn != source.turn or planned.ready:
            return
        if self._fetch(source, planned):
            self._submit(self._ahead, self._fetch_block, source, planned)

    def _finish_blocks(self, source: ReadPlan, gone: list[Planned]) -> None:
        for planned in gone:
            try:
                shard, start, stop = source.span(planned)
                if shard.remote is not None:
                    shard.remote.finished(start, stop)
            except WdsmixError as error:
                _log.debug("not marked: %s", error)

    def mend(
        self, assembler: Assembler, samples: Samples, memory: BatchMemory, hand: Hand, failed: dict[int, BaseException]
    ) -> None:
        """Has the damaged frames of samples that failed read once more from the store, and fills those samples again.

        Args:
            assembler: Of the batch.
            samples: Of the batch.
            memory: The batch.
            hand: Told what is being done.
            failed: Sample -> why it can't be read; what is well afterwards is taken out.
        """
        for b in [b for b, error in failed.items() if isinstance(error, DataError)]:
            for _ in range(_MENDS):
                try:
                    whole = self._make_whole(samples, b)
                except WdsmixError as error:
                    failed[b] = error
                    break
                if not whole:
                    break
                del failed[b]
                assembler.fill_pictures(samples, memory, range(b, b + 1), hand, failed)
                if not isinstance(failed.get(b), DataError):
                    break

    def _make_whole(self, samples: Samples, b: int) -> bool:
        """Whether the frames of a sample have their checksums; damaged ones are read anew.

        All may be well by now: what a process that was held up has touched is given up, and fetched again later.
        """
        source = self._sources.get(int(samples.source[b]))
        if source is None:
            return False
        frames = {(int(samples.shard[b]), int(samples.first_row[b] + frame)) for frame in samples.observed[b]}
        if samples.goal is not None:
            frames.add((int(samples.goal.shard[b]), int(samples.goal.shard_row[b])))
        whole = True
        for number, row in sorted(frames):
            shard = source.opened.set.shard(number)
            start = int(shard.offset[row])
            stop = start + int(shard.length[row])
            shard.pages.touch(start, stop)
            if google_crc32c.value(shard.tar[start:stop]) != int(shard.crc32c[row]):
                whole &= shard.renew(row)
        return whole

    def take_counts(self) -> Counts:
        """What was counted since the last call."""
        return self._counts[0].take() if self._counts else Counts()


def _blocks(opened: OpenSource, size: int) -> Blocks:
    frames = opened.order
    return blocks_of(
        frames=frames.frames, lengths=frames.lengths, offsets=frames.offsets, shards=frames.shards, block_bytes=size
    )


def _nothing() -> None:
    pass


def _call(
    owner: weakref.ref[ReadAhead],
    method: str,
    arguments: tuple[object, ...],
    otherwise: Callable[[], None] = _nothing,
) -> None:
    """Calls a method of what may be gone. No WeakMethod: one that dies with the interpreter prints an error."""
    found = owner()
    if found is not None:
        getattr(found, method)(*arguments)
    else:
        otherwise()


def read_ahead_of(catalog: Catalog) -> ReadAhead | None:
    """One for a mixture of which some sources lie in stores; None where all lie on disks."""
    places = [source.id for source in catalog.sources if source.set.counts is not None]
    return ReadAhead(catalog, places) if places else None
