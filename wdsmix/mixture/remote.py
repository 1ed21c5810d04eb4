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
import threading
import time
import weakref
from collections import deque
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
from wdsmix.mixture.blocks import blocks_of
from wdsmix.mixture.catalog import Catalog, OpenSource
from wdsmix.mixture.config import MixtureConfig
from wdsmix.mixture.crew import Crew
from wdsmix.mixture.order import SourceOrder
from wdsmix.shards.shardfile import ShardFile
from wdsmix.store.cached import Counts

if TYPE_CHECKING:
    from wdsmix.mixture.pipeline import Job

__all__ = ["ReadAhead", "read_ahead_of"]

_log = logging.getLogger("wdsmix")

Int64Array = npt.NDArray[np.int64]

_CONNECTIONS = 8
_STEP = 64  # parts of a window in which it is planned, if they have
_DRAWS = 64  # each, or a sixteenth of the window
_JOBS = 8  # of an evaluation, planned ahead
_TRIES = 4  # to find a block whole that another process is fetching
_FIRST = 1.0  # s, at most, that blocks wait for the frames of the first batch
_SOON = 2.0  # s: a batch waits for whole blocks if all that it lacks comes in this time
_LEISURE = 1.0  # s, at most, that each block ahead waits for those in demand
_FAINT = 0.25  # of the mean: a stream that gives a rank less is left to demand


class _Planned:
    """A run of rows that is fetched ahead, or has been."""

    __slots__ = ("bytes", "last", "ready", "rows", "tries", "turn", "urgent")

    def __init__(self, rows: range, last: int, size: int, turn: int) -> None:
        self.rows, self.last, self.bytes, self.turn = rows, last, size, turn
        self.ready = self.urgent = False
        self.tries = 0


@dataclass(frozen=True, slots=True)
class _Frames:
    """Frames of a source that a batch lacks."""

    source: _Source
    rows: Int64Array
    """int64 [N]: rows in the source; -1 for a goal in another episode."""
    shard: Int64Array
    """int64 [N]."""
    at: Int64Array
    """int64 [N]: rows in the shard."""


class _Source:
    """What is planned of one source."""

    def __init__(self, opened: OpenSource, order: SourceOrder, offsets: Sequence[int], config: MixtureConfig) -> None:
        self.opened, self.order = opened, order
        frames = opened.order
        self._blocks = blocks_of(
            frames=frames.frames,
            lengths=frames.lengths,
            offsets=frames.offsets,
            shards=frames.shards,
            block_bytes=config.block_bytes,
        )
        self.window = min(config.window, order.size)
        self.step = max(1, self.window // _STEP, min(_DRAWS, self.window // 16))
        self.weight = opened.config.weight
        self._reach = min(offsets, default=0), max(offsets, default=0)
        self.mean = float(opened.order.lengths.sum()) / order.size
        self.turn = 0
        """How often planning began anew."""
        self.until = -1
        """Draw up to which it is planned; -1: nothing yet."""
        self.planned: dict[int, _Planned] = {}
        """By first row."""
        self.waiting: deque[tuple[int, int]] = deque()
        """(First draw, bytes) of what was planned and is not drawn from yet."""

    def restart(self, draw: int) -> None:
        """Plans from a draw on; what was planned before does not count any more."""
        self.until = draw
        self.turn += 1
        self.planned.clear()
        self.waiting.clear()

    def plan(self, mine: npt.NDArray[np.bool_]) -> list[_Planned]:
        """Blocks that the next draws of some streams need and that are not planned yet, in the order of first use."""
        count = self.step
        first = self.until
        rows, streams = self.order.rows(first, count)
        self.until += count
        draws = np.flatnonzero(mine[streams])
        rows = rows[draws]
        low, high = self._bounds(rows)
        blocks = np.concatenate(
            [self._block(np.clip(rows + reach, low, high)) for reach in dict.fromkeys((0, *self._reach))]
        )
        draws = first + np.tile(draws, len(blocks) // max(len(draws), 1))
        found: list[_Planned] = []
        numbers, place = np.unique(blocks, return_index=True)
        last = {int(b): int(d) for b, d in zip(blocks, draws, strict=True)}
        for k in np.argsort(draws[place], kind="stable").tolist():
            number, draw = int(numbers[k]), int(draws[place[k]])
            begin = int(self._blocks.first[number])
            span = range(begin, begin + int(self._blocks.count[number]))
            known = self.planned.get(span.start)
            if known is not None:
                known.last = max(known.last, last[number])
                continue
            made = self.planned[span.start] = _Planned(span, last[number], int(len(span) * self.mean), self.turn)
            self.waiting.append((draw, made.bytes))
            found.append(made)
        return found

    def _block(self, rows: Int64Array) -> Int64Array:
        return np.searchsorted(self._blocks.first, rows, side="right") - 1

    def _bounds(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        episode = np.searchsorted(self.opened.ends, rows, side="right")
        return self.opened.ends[episode] - self.opened.frames[episode], self.opened.ends[episode] - 1

    def is_ready(self, rows: Int64Array) -> npt.NDArray[np.bool_]:
        """Whether the block of each row has been fetched: bool [N]."""
        starts = self._blocks.first[self._block(rows)]
        ready = [(known := self.planned.get(start)) is not None and known.ready for start in starts.tolist()]
        return np.array(ready, dtype=bool)

    def blocks(self, rows: Int64Array) -> tuple[list[_Planned], npt.NDArray[np.bool_]]:
        """Planned blocks of rows that nobody has tried to fetch, and which rows (bool [N]) lie in none of them."""
        left = rows < 0
        starts, which = np.unique(self._blocks.first[self._block(rows[~left])], return_inverse=True)
        known = [self.planned.get(start) for start in starts.tolist()]
        found = [None if planned is None or planned.tries else planned for planned in known]
        other = np.array([planned is None for planned in found], dtype=bool)
        left[~left] = other[which]
        return [planned for planned in found if planned is not None], left

    def is_open(self, planned: _Planned) -> bool:
        """Whether the shard of a block is open, so that `span` asks nothing of the store."""
        e = int(np.searchsorted(self.opened.ends, planned.rows.start, side="right"))
        return self.opened.set.is_open(int(self.opened.shard[e]))

    def passed(self, draw: int) -> list[_Planned]:
        """Forgets blocks that all draws before ``draw`` have used up; returns them."""
        while self.waiting and self.waiting[0][0] < draw:
            self.waiting.popleft()
        gone = [known for known in self.planned.values() if known.last < draw - self.window]
        for known in gone:
            del self.planned[known.rows.start]
        return gone

    def ahead(self) -> int:
        """Bytes planned and not drawn from yet."""
        return sum(size for _, size in self.waiting)

    def span(self, rows: range) -> tuple[ShardFile, int, int]:
        """Shard and bytes of rows that lie side by side in one shard; opens it."""
        opened = self.opened
        e = int(np.searchsorted(opened.ends, rows.start, side="right"))
        shard = opened.set.shard(int(opened.shard[e]))
        first = int(opened.first_row[e]) + rows.start - int(opened.ends[e] - opened.frames[e])
        last = first + len(rows) - 1
        return shard, int(shard.offset[first]), int(shard.offset[last]) + int(shard.length[last])

    def pieces(self, start: int, stop: int) -> list[range]:
        """Rows ``start`` to ``stop`` cut where the shard changes, or its rows do not follow each other."""
        opened = self.opened
        stop = min(stop, int(opened.ends[-1]))
        cuts = [start]
        if stop > start:
            e = np.arange(*np.searchsorted(opened.ends, [start, stop - 1], side="right"))  # all but the last
            follows = (opened.shard[e + 1] == opened.shard[e]) & (
                opened.first_row[e + 1] == opened.first_row[e] + opened.frames[e]
            )
            cuts += opened.ends[e][~follows].tolist()
        return [range(a, b) for a, b in zip(cuts, [*cuts[1:], stop], strict=True) if b > a]


class ReadAhead:
    """Fetches what a pipeline will need. Its methods are called by the thread that starts jobs, and never wait.

    Args:
        catalog: The opened mixture.
        sources: Places of the sources that lie in stores.
    """

    def __init__(self, catalog: Catalog, sources: Sequence[int]) -> None:
        orders = catalog.new_order().orders
        offsets = catalog.layout.offsets
        config = catalog.config
        self._sources = {place: _Source(catalog.sources[place], orders[place], offsets, config) for place in sources}
        self._budget = config.read_ahead
        self._sizes = np.array([order.size for order in orders], dtype=np.int64)
        self._streams = np.zeros(config.streams)
        """How much of late batches came from each stream: a rank reads some only."""
        info = get_worker_info()
        threads = max(2, _CONNECTIONS // (1 if info is None else info.num_workers))
        self._demand = Crew(threads, "wdsmix-demand")
        self._ahead = Crew(threads, "wdsmix-ahead")
        self._connections = threads * (1 if info is None else info.num_workers)
        self._pace = 0.0
        """Bytes per second of one connection, as blocks came of late; 0: none came yet."""
        self._urgent = 0
        """Blocks in demand that are not there yet."""
        self._lock, self._calm = threading.Lock(), threading.Event()
        self._calm.set()
        self._begun = threading.Event()
        self._last: tuple[int, int] | None = None
        self._counts = [source.set.counts for source in catalog.sources if source.set.counts is not None]

    def follow(self, job: Job, samples: Samples) -> None:
        """A batch is started: has what it lacks fetched, and what comes after it."""
        lacking = [
            self._lacking(source, samples, mine)
            for place, source in self._sources.items()
            if len(mine := np.flatnonzero(samples.source == place))
        ]
        if job.cursor:
            lacking = self._ask_blocks(lacking)
        for frames in lacking:
            for number in np.unique(frames.shard).tolist():
                at = np.unique(frames.at[frames.shard == number])
                self._submit(self._demand, self._fetch_frames, frames.source.opened, number, at)
        stream = job.draw % self._sizes[job.source] % len(self._streams)
        self._streams = 0.9 * self._streams + np.bincount(stream, minlength=len(self._streams))
        if not self._begun.is_set():  # the frames of the first batch come first
            self._submit(self._demand, self._begin)
        if job.cursor:
            self._look_ahead(job.cursor["order"]["counts"])
        else:
            self._look_on(job)

    def _lacking(self, source: _Source, samples: Samples, mine: Int64Array) -> _Frames:
        """Frames of a batch whose blocks are not there yet."""
        rows = samples.row[mine, None] - samples.frame[mine, None] + samples.observed[mine]
        (b, t) = np.nonzero(~source.is_ready(rows.reshape(-1)).reshape(rows.shape))
        rows, b = rows[b, t], mine[b]
        shard = samples.shard[b]
        at = samples.first_row[b] + samples.observed[b, t]
        goal = samples.goal
        if goal is not None:
            own = goal.episode[mine] == samples.episode[mine]
            aim = np.where(own, samples.row[mine] - samples.frame[mine] + goal.frame[mine], -1)
            late = ~own
            late[own] = ~source.is_ready(aim[own])
            far = mine[late]
            rows = np.concatenate([rows, aim[late]])
            shard, at = np.concatenate([shard, goal.shard[far]]), np.concatenate([at, goal.shard_row[far]])
        return _Frames(source, rows, shard, at)

    def _ask_blocks(self, lacking: list[_Frames]) -> list[_Frames]:
        """Asks for whole blocks if all that a batch lacks comes soon enough; returns the frames that are left."""
        found: list[tuple[_Source, _Planned]] = []
        left: list[_Frames] = []
        for frames in lacking:
            blocks, other = frames.source.blocks(frames.rows)
            found += [(frames.source, planned) for planned in blocks]
            left.append(_Frames(frames.source, frames.rows[other], frames.shard[other], frames.at[other]))
        if sum(planned.bytes for _, planned in found) > _SOON * self._pace * self._connections:
            return lacking
        for source, planned in found:
            if not planned.urgent:
                planned.urgent = True
                self._ask_block(source, planned)
        return left

    def _ask_block(self, source: _Source, planned: _Planned) -> None:
        """Has a block fetched before all that is only ahead; whoever reads its frames meanwhile waits for it."""
        end: Callable[[], None] = _nothing
        if source.is_open(planned):
            shard, start, stop = source.span(planned.rows)
            if shard.remote is not None:
                shard.remote.promise(start, stop)
                end = functools.partial(shard.remote.withdraw, start, stop)
        with self._lock:
            self._urgent += 1
            self._calm.clear()
        self._demand.submit(
            functools.partial(_call, weakref.WeakMethod(self._fetch_urgent), (source, planned), otherwise=end)
        )

    def _fetch_urgent(self, source: _Source, planned: _Planned) -> None:
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

    def _fetch(self, source: _Source, planned: _Planned) -> bool:
        """Fetches a block; returns whether to look again later, for another process is at a part of it."""
        began = time.perf_counter()
        planned.tries += 1
        try:
            shard, start, stop = source.span(planned.rows)
            planned.ready = shard.remote is None or shard.remote.prefetch(start, stop)
        except WdsmixError as error:
            _log.debug("left to the thread that needs it: %s", error)
            return False
        if planned.ready and planned.tries == 1:
            pace = (stop - start) / max(time.perf_counter() - began, 1e-6)
            self._pace = 0.8 * self._pace + 0.2 * pace if self._pace else pace
        return not planned.ready and planned.tries < _TRIES

    def _submit(self, crew: Crew, method: Callable[..., None], *arguments: object) -> None:
        """Has a thread call a method, if there is still somebody who wants it done."""
        crew.submit(functools.partial(_call, weakref.WeakMethod(method), arguments))

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

    def _look_ahead(self, counts: dict[str, int]) -> None:
        """Plans from where the order stands after a batch."""
        ahead = sum(source.ahead() for source in self._sources.values())
        for source in self._sources.values():
            now = counts[source.opened.name]
            if not now <= source.until <= now + 2 * source.window:
                source.restart(now)
            for gone in source.passed(now):
                self._submit(self._ahead, self._finish_block, source, gone)
        mine = self._streams >= _FAINT * self._streams.mean()
        while ahead < self._budget:
            sources = [s for s in self._sources.values() if s.until + s.step <= counts[s.opened.name] + s.window]
            if not sources:
                break
            source = min(sources, key=lambda s: (s.until - counts[s.opened.name]) / s.weight)
            for planned in source.plan(mine):
                ahead += planned.bytes
                self._submit(self._ahead, self._fetch_block, source, planned)

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
            for rows in source.pieces(source.until, source.until + size):
                planned = _Planned(rows, source.until, 0, source.turn)
                self._submit(self._ahead, self._fetch_block, source, planned)
            source.until += stride

    def _fetch_block(self, source: _Source, planned: _Planned) -> None:
        self._begun.wait(_FIRST)
        self._calm.wait(_LEISURE)
        if self._ahead.stopped or planned.turn != source.turn or planned.ready:
            return
        if self._fetch(source, planned):
            self._submit(self._ahead, self._fetch_block, source, planned)

    def _finish_block(self, source: _Source, gone: _Planned) -> None:
        try:
            shard, start, stop = source.span(gone.rows)
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
            try:
                renewed = self._renew(samples, b)
            except WdsmixError as error:
                failed[b] = error
                continue
            if renewed:
                del failed[b]
                assembler.fill_pictures(samples, memory, range(b, b + 1), hand, failed)

    def _renew(self, samples: Samples, b: int) -> bool:
        source = self._sources.get(int(samples.source[b]))
        if source is None:
            return False
        frames = {(int(samples.shard[b]), int(samples.first_row[b] + frame)) for frame in samples.observed[b]}
        if samples.goal is not None:
            frames.add((int(samples.goal.shard[b]), int(samples.goal.shard_row[b])))
        renewed = False
        for number, row in sorted(frames):
            shard = source.opened.set.shard(number)
            start = int(shard.offset[row])
            data = shard.tar[start : start + int(shard.length[row])]
            if google_crc32c.value(data) != int(shard.crc32c[row]):
                renewed |= shard.renew(row)
        return renewed

    def take_counts(self) -> Counts:
        """What was counted since the last call."""
        return self._counts[0].take() if self._counts else Counts()


def _nothing() -> None:
    pass


def _call(
    method: weakref.WeakMethod[Callable[..., None]],
    arguments: tuple[object, ...],
    otherwise: Callable[[], None] = _nothing,
) -> None:
    found = method()
    if found is not None:
        found(*arguments)
    else:
        otherwise()


def read_ahead_of(catalog: Catalog) -> ReadAhead | None:
    """One for a mixture of which some sources lie in stores; None where all lie on disks."""
    places = [source.id for source in catalog.sources if source.set.counts is not None]
    return ReadAhead(catalog, places) if places else None
