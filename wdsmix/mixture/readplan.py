"""ReadPlan: which blocks of a source the next draws need, step by step, and which of them are there.

What is known of a block lies in arrays by its number. The order is looked at some steps ahead at once; blocks become
*planned* a step at a time, in the order of their first use, and are *passed* when all their frames have been drawn, or
the order has moved a window beyond the last draw that is known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from wdsmix.mixture.blocks import Blocks
from wdsmix.mixture.catalog import OpenSource
from wdsmix.mixture.order import SourceOrder
from wdsmix.shards.shardfile import ShardFile

__all__ = ["Planned", "ReadPlan"]

Int64Array = npt.NDArray[np.int64]

_STEPS = 64  # parts of a window in which it is planned, if they have
_DRAWS = 64  # each, or a sixteenth of the window
_AT_ONCE = 16  # steps that are looked at together, if they have
_MOST = 4096  # draws together, at most
_SLACK = 8  # of a window, at least


class Planned:
    """A run of rows that is fetched ahead, or has been."""

    __slots__ = ("at", "bytes", "number", "ready", "rows", "shard", "tries", "turn", "urgent")

    def __init__(self, rows: range, shard: int, at: int, turn: int, size: int = 0, number: int = -1) -> None:
        """Plans a run.

        Args:
            rows: In the source; side by side in one shard.
            shard: As `ShardSet.shard` counts.
            at: Row of the first one in its shard.
            turn: Which time that planning began.
            size: About how many bytes.
            number: Of the block; -1: none.
        """
        self.rows, self.shard, self.at, self.turn, self.bytes, self.number = rows, shard, at, turn, size, number
        self.ready = self.urgent = False
        self.tries = 0


class _Step(NamedTuple):
    """What the draws of a step use."""

    blocks: Int64Array
    """int64 [K]: numbers, in the order of first use."""
    draws: Int64Array
    """int64 [K]: first draw of the step that uses each."""
    own: Int64Array
    """int64 [K]: how many draws of the step are of each one's frames."""


class ReadPlan:
    """What is planned of one source. Called by one thread; others only tell what has come (`came`).

    Args:
        opened: The source.
        order: Its order.
        blocks: Its blocks.
        offsets: Of the frames that a sample shows.
        window: Draws to plan ahead, at most.
        ready: bool [N]: whether each block is there; written here. A hint: whoever reads a frame asks the cache.
    """

    def __init__(
        self,
        opened: OpenSource,
        order: SourceOrder,
        blocks: Blocks,
        offsets: Sequence[int],
        window: int,
        ready: npt.NDArray[np.bool_],
    ) -> None:
        self.opened, self.order = opened, order
        self._first, self._count = blocks.first, blocks.count
        self._size = (blocks.count * (float(opened.order.lengths.sum()) / order.size)).astype(np.int64)
        self._shard, self._at = self._places(blocks.first)
        self._reach = list(dict.fromkeys((0, min(offsets, default=0), max(offsets, default=0))))
        self.window = min(window, order.size)
        self.step = max(1, self.window // _STEPS, min(_DRAWS, self.window // 16))
        self.name, self.weight = opened.config.name, opened.config.weight
        self.turn = 0
        """How often planning began anew."""
        self.until = -1
        """Draw up to which it is planned; -1: nothing yet."""
        self.ahead = 0
        """Bytes planned and not drawn from yet."""
        self._ready = ready
        self._known = np.zeros(len(ready), dtype=bool)
        self._last = np.zeros(len(ready), dtype=np.int64)
        """Of each block that is known: the draw behind the last step, as far as planned, that uses it."""
        self._drawn = np.zeros(len(ready), dtype=np.int64)
        """Of each block that is known: how often, as far as planned, its frames are drawn."""
        self._planned: dict[int, Planned] = {}
        self._waiting: deque[tuple[int, int]] = deque()
        """(First draw, bytes) of what was planned and is not drawn from yet."""
        self._used: deque[tuple[int, Int64Array]] = deque()
        """(Draw behind it, blocks) of each step that was planned."""
        self._kept: deque[tuple[int, Int64Array]] = deque()
        """The same of blocks that will be drawn from again, later than is planned, as far as is known."""
        self._coming: deque[_Step] = deque()
        """Steps that were looked at and are not planned yet."""
        self._streams: npt.NDArray[np.bool_] = np.zeros(0, dtype=bool)
        """Those of which ``_coming`` tells."""

    def restart(self, draw: int) -> None:
        """Plans from a draw on; what was planned before does not count any more."""
        self.until = draw
        self.turn += 1
        self.ahead = 0
        self._planned.clear()
        self._known[:] = self._ready[:] = False
        for queue in (self._waiting, self._used, self._kept, self._coming):
            queue.clear()

    def plan(self, streams: npt.NDArray[np.bool_]) -> list[Planned]:
        """Plans a step; returns the blocks that are new, in the order of first use.

        Args:
            streams: bool [L]: whose draws count.
        """
        if not self._coming or not np.array_equal(streams, self._streams):
            self._streams = streams
            self._coming = deque(self._look(streams))
        blocks, draws, own = self._coming.popleft()
        self.until += self.step
        new = ~self._known[blocks]
        self._last[blocks] = self.until
        self._drawn[blocks] = np.where(new, own, self._drawn[blocks] + own)
        self._used.append((self.until, blocks))
        numbers = blocks[new]
        if not len(numbers):
            return []
        self._ready[numbers] = False  # a thread may have told late
        self._known[numbers] = True
        found: list[Planned] = []
        facts = (self._first, self._count, self._shard, self._at, self._size)
        values = (array.tolist() for array in (numbers, draws[new], *(fact[numbers] for fact in facts)))
        for number, draw, start, count, shard, at, size in zip(*values, strict=True):
            rows = range(start, start + count)
            planned = self._planned[number] = Planned(rows, shard, at, self.turn, size, number)
            self._waiting.append((draw, size))
            self.ahead += size
            found.append(planned)
        return found

    def _look(self, streams: npt.NDArray[np.bool_]) -> list[_Step]:
        """What some streams use in the steps that come next."""
        steps = max(1, min(_AT_ONCE, _MOST // self.step))
        rows, stream = self.order.rows(self.until, steps * self.step)
        draws = np.flatnonzero(streams[stream])
        rows = rows[draws]
        if len(self._reach) > 1:
            episode = np.searchsorted(self.opened.ends, rows, side="right")
            end = self.opened.ends[episode]
            low = end - self.opened.frames[episode]
            rows = np.stack([np.clip(rows + reach, low, end - 1) for reach in self._reach], axis=1).reshape(-1)
        draws = np.repeat(draws, len(self._reach))
        blocks = np.searchsorted(self._first, rows, side="right") - 1
        # Uses of one block in one step, side by side, in the order of the draws.
        key = draws // self.step * len(self._first) + blocks
        place = np.argsort(key, kind="stable")
        key = key[place]
        edge = np.flatnonzero(np.append(True, key[1:] != key[:-1])) if len(key) else place
        own = np.add.reduceat(place % len(self._reach) == 0, edge, dtype=np.int64) if len(key) else place
        blocks, draws = blocks[place[edge]], draws[place[edge]]
        by_use = np.lexsort((blocks, draws))
        blocks, draws, own = blocks[by_use], draws[by_use], own[by_use]
        cuts = np.searchsorted(draws, np.arange(1, steps) * self.step)
        parts = (np.split(array, cuts) for array in (blocks, draws + self.until, own))
        return [_Step(*arrays) for arrays in zip(*parts, strict=True)]

    def came(self, planned: Planned) -> None:
        """A planned block is there. May be called by any thread."""
        planned.ready = True
        if self._planned.get(planned.number) is planned:
            self._ready[planned.number] = True

    def passed(self, draw: int, slack: int = 0) -> list[Planned]:
        """Forgets blocks that the draws before ``draw`` have used up; returns them, a step at a time.

        Args:
            draw: The next one.
            slack: Draws before it that may still be at work.
        """
        while self._waiting and self._waiting[0][0] < draw:
            self.ahead -= self._waiting.popleft()[1]
        gone: list[Planned] = []
        for queue, behind in ((self._used, max(slack, self.window // _SLACK)), (self._kept, max(slack, self.window))):
            while queue and queue[0][0] <= draw - behind:
                end, blocks = queue.popleft()
                blocks = blocks[(self._last[blocks] == end) & self._known[blocks]]
                if queue is self._used:
                    whole = self._drawn[blocks] % self._count[blocks] == 0
                    self._kept.append((end, blocks[~whole]))
                    blocks = blocks[whole]
                self._known[blocks] = self._ready[blocks] = False
                gone += [self._planned.pop(number) for number in blocks.tolist()]
        return gone

    def untried(self, blocks: Int64Array) -> tuple[list[Planned], npt.NDArray[np.bool_]]:
        """Planned blocks that nobody has tried to fetch.

        Args:
            blocks: int64 [N]: among these numbers; those behind the last block are none.

        Returns:
            Them, and bool [N]: which of ``blocks`` are other.
        """
        numbers, which = np.unique(blocks, return_inverse=True)
        known = [self._planned.get(number) for number in numbers.tolist()]
        found = [None if planned is None or planned.tries else planned for planned in known]
        other = np.array([planned is None for planned in found], dtype=bool)
        return [planned for planned in found if planned is not None], other[which]

    def look_again(self, blocks: Int64Array) -> npt.NDArray[np.bool_]:
        """Notes blocks that another process has fetched.

        Args:
            blocks: int64 [N]: among these numbers; those behind the last block are none.

        Returns:
            bool [N]: which of ``blocks`` are still not there.
        """
        numbers, which = np.unique(blocks, return_inverse=True)
        late = np.ones(len(numbers), dtype=bool)
        for k, number in enumerate(numbers.tolist()):
            planned = self._planned.get(number)
            if planned is not None and planned.tries and self.is_open(planned):
                shard, start, stop = self.span(planned)
                if shard.remote is None or shard.remote.holds(start, stop):
                    self.came(planned)
                    late[k] = False
        return late[which]

    def is_open(self, planned: Planned) -> bool:
        """Whether the shard of a block is open, so that `span` asks nothing of the store."""
        return self.opened.set.is_open(planned.shard)

    def span(self, planned: Planned) -> tuple[ShardFile, int, int]:
        """Shard and bytes of a block; opens the shard."""
        shard = self.opened.set.shard(planned.shard)
        last = planned.at + len(planned.rows) - 1
        return shard, shard.offset.item(planned.at), shard.offset.item(last) + shard.length.item(last)

    def _places(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Shard of each row, and row in it: int64 [N]."""
        opened = self.opened
        e = np.searchsorted(opened.ends, rows, side="right")
        return opened.shard[e].astype(np.int64), opened.first_row[e] + rows - (opened.ends[e] - opened.frames[e])

    def pieces(self, start: int, stop: int) -> list[Planned]:
        """Rows ``start`` to ``stop`` cut where the shard changes, or its rows do not follow each other."""
        opened = self.opened
        stop = min(stop, int(opened.ends[-1]))
        if stop <= start:
            return []
        e = np.arange(*np.searchsorted(opened.ends, [start, stop - 1], side="right"))  # all but the last
        follows = (opened.shard[e + 1] == opened.shard[e]) & (
            opened.first_row[e + 1] == opened.first_row[e] + opened.frames[e]
        )
        cuts = np.concatenate([[start], opened.ends[e][~follows]])
        places = (array.tolist() for array in (cuts, np.append(cuts[1:], stop), *self._places(cuts)))
        return [Planned(range(a, b), shard, at, self.turn) for a, b, shard, at in zip(*places, strict=True)]
