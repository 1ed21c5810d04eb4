"""The order of samples: one endless sequence, a function of seed and configuration alone.

Nouns: *sample n* is the n-th of the whole run; *draw j* of a source is its j-th sample (over the whole run); an
*epoch* of a source is one pass over its N frames: draw j is item ``j mod N`` of epoch ``j div N``. Batch size, ranks,
workers and threads only group the sequence.

The order of a source in an epoch, with L = 3 streams and windows of w::

    blocks, permuted:   [ b7 ][ b2 ][  b9  ][ b0 ][ b4 ] ...      every epoch another permutation
    cut into streams:   |--- stream 0 ---|--- stream 1 ---|--- stream 2 ---|   lengths differ by at most one frame
    in each stream:     windows of w permuted, then windows shifted by w/2 permuted
    item i:             position i div L of stream i mod L

So I/O moves along L streams of neighbouring bytes, about two windows of frames are live, each frame comes exactly once
an epoch, and any item is found in O(window) without what came before.

State is one count per source. Everything here is pure numpy: no I/O, no torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.blocks import BLOCK_RULE, blocks_of
from wdsmix.mixture.hashing import hash64, key_of, permutation, shuffle_rows
from wdsmix.mixture.quota import Quota, integer_weights

__all__ = ["ORDER_VERSION", "MixtureOrder", "SourceFrames", "SourceOrder", "Step", "rank_slice"]

ORDER_VERSION = 1
"""Raised when the same seed and config would give another sequence: a breaking change."""

_AT_ONCE = 1024
"""Samples that are computed together."""

_FAR = 192
"""Samples between two steps from which on it costs less to leap over them than to compute them with the steps."""

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceFrames:
    """One source as the order sees it: its episodes, in index order, of the chosen split."""

    name: str
    weight: float
    frames: Int64Array
    """int64 [E]: frames of each episode, all above 0."""
    lengths: Int64Array
    """int64 [E]: bytes of each in its tar."""
    offsets: Int64Array
    """int64 [E]: where each begins in its tar."""
    shards: npt.NDArray[np.int32]
    """int32 [E]: its shard."""
    digest: str
    """What of the set was chosen, and its version: a state is refused by another digest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One global batch, rank-major: rank r of R has the r-th of R equal slices, whatever R is."""

    step: int
    sample: Int64Array
    """int64 [G]: global sample number."""
    source: npt.NDArray[np.int32]
    """int32 [G]: index into the sources."""
    draw: Int64Array
    """int64 [G]: which draw of its source, over the whole run."""
    row: Int64Array
    """int64 [G]: frame row in its source (cumulative over the episodes as given)."""
    stream: npt.NDArray[np.int32]
    """int32 [G]: ascending."""


def rank_slice(size: int, rank: int, world: int) -> slice:
    """Where rank ``rank`` of ``world`` finds its part of a global batch of ``size``.

    Raises:
        ConfigError: the batch can't be cut into equal parts.
    """
    if size % world:
        raise ConfigError("a global batch must divide evenly", where="world size", expected=f"a divisor of {size}")
    part = size // world
    return slice(rank * part, (rank + 1) * part)


class SourceOrder:
    """The order of one source's frames: draw -> frame row.

    Args:
        source: Its episodes.
        seed: Chooses the order, together with the source's name.
        streams: L.
        window: Frames of a window over all streams; each stream has ``max(1, window // streams)``.
        block_bytes: About how many bytes a block has.

    Raises:
        ConfigError: the source has no frames.
    """

    def __init__(self, source: SourceFrames, *, seed: int, streams: int, window: int, block_bytes: int) -> None:
        blocks = blocks_of(
            frames=source.frames,
            lengths=source.lengths,
            offsets=source.offsets,
            shards=source.shards,
            block_bytes=block_bytes,
        )
        self._first, self._count = blocks.first, blocks.count
        self.size = int(blocks.count.sum())
        if self.size == 0:
            raise ConfigError("no frames to draw from", where=f"source {source.name!r}")
        self._key = (seed, source.name)
        self._streams = streams
        self._width = max(1, window // streams)
        lengths = (self.size - np.arange(streams, dtype=np.int64) + streams - 1) // streams
        self._lengths = np.maximum(lengths, 0)
        self._starts = np.cumsum(self._lengths) - self._lengths
        self._epochs: dict[int, tuple[Int64Array, Int64Array]] = {}
        self._windows: dict[tuple[int, int], Int64Array] = {}

    def rows(self, first: int, count: int) -> tuple[Int64Array, npt.NDArray[np.int32]]:
        """Frame rows (int64 [count]) and streams (int32 [count]) of the draws from ``first`` on."""
        parts: list[Int64Array] = []
        streams: list[Int64Array] = []
        half = self._width // 2
        while count > 0:
            epoch, item = divmod(first, self.size)
            number = (item // self._streams - half) // self._width + 1
            table = self._window(epoch, number)
            begin = item - max(0, half + (number - 1) * self._width) * self._streams
            part = table[begin : begin + count]
            parts.append(part)
            streams.append(np.arange(item, item + len(part), dtype=np.int64) % self._streams)
            first += len(part)
            count -= len(part)
        if not parts:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int32)
        return np.concatenate(parts), np.concatenate(streams).astype(np.int32)

    def block(self, row: int) -> range:
        """The rows of the block that ``row`` lies in: what may stand in for a frame that can't be read."""
        number = int(np.searchsorted(self._first, row, side="right")) - 1
        first = int(self._first[number])
        return range(first, first + int(self._count[number]))

    def _window(self, epoch: int, number: int) -> Int64Array:
        """Rows of the items of output window ``number`` of an epoch, in item order."""
        found = self._windows.get((epoch, number))
        if found is None:
            if len(self._windows) >= 4:
                del self._windows[next(iter(self._windows))]
            found = self._windows[epoch, number] = self._compute_window(epoch, number)
        return found

    def _compute_window(self, epoch: int, number: int) -> Int64Array:
        width, streams, lengths = self._width, self._streams, self._lengths
        longest = int(lengths[0])
        low = max(0, width // 2 + (number - 1) * width)
        high = min(width // 2 + number * width, longest)
        # Second pass: output position p of the window stands for position q in the same window.
        inside = np.clip(lengths - low, 0, high - low)
        key = key_of(*self._key, "second", epoch)
        second = low + shuffle_rows(key, number * streams, inside, columns=high - low, spacing=width)
        # First pass: q stands for position t in q's own window of the unshifted grid (one or two of them here).
        begin, end = low // width, -(-high // width)
        key = key_of(*self._key, "first", epoch)
        maps = []
        for grid in range(begin, end):
            edge = grid * width
            inside = np.clip(lengths - edge, 0, width)
            maps.append(edge + shuffle_rows(key, grid * streams, inside, columns=width, spacing=width))
        position = np.take_along_axis(np.concatenate(maps, axis=1), second - begin * width, axis=1)
        rows = self._locate(epoch, (self._starts[:, None] + position).T.reshape(-1)[: self.size - low * streams])
        rows.flags.writeable = False
        return rows

    def _locate(self, epoch: int, position: Int64Array) -> Int64Array:
        """Rows at positions of an epoch's permuted list of blocks."""
        found = self._epochs.get(epoch)
        if found is None:
            order = permutation(key_of(*self._key, "blocks", epoch), len(self._first))
            ends = np.cumsum(self._count[order])
            if len(self._epochs) >= 2:
                del self._epochs[next(iter(self._epochs))]
            # row = position + shift of its block
            found = self._epochs[epoch] = ends, self._first[order] - (ends - self._count[order])
        ends, shift = found
        return position + shift[np.searchsorted(ends, position, side="right")]


class MixtureOrder:
    """The endless sequence of a mixture, step by step, from any state.

    Args:
        sources: In the order of the configuration; names are unique.
        seed: Any integer.
        streams: L, above 0.
        window: Frames per source within which the order is mixed, above 0.
        block_bytes: About how many bytes a block has, above 0.

    Raises:
        ConfigError: no sources, equal names, a bad weight or a source without frames.
    """

    def __init__(
        self, sources: Sequence[SourceFrames], *, seed: int, streams: int, window: int, block_bytes: int
    ) -> None:
        for option, value in (("streams", streams), ("window", window), ("block_bytes", block_bytes)):
            if value < 1:
                raise ConfigError("bad value", where=option, expected="1 or more", found=value)
        names = [source.name for source in sources]
        if len(set(names)) != len(names):
            twice = sorted({name for name in names if names.count(name) > 1})
            raise ConfigError("two sources have the same name", where="sources", found=", ".join(twice))
        self.names = names
        self._weights = dict(zip(names, integer_weights([source.weight for source in sources]), strict=True))
        self._digests = {source.name: source.digest for source in sources}
        self._fixed: dict[str, int] = {
            "order": ORDER_VERSION,
            "block_rule": BLOCK_RULE,
            "seed": seed,
            "streams": streams,
            "window": window,
            "block_bytes": block_bytes,
        }
        self._orders = [
            SourceOrder(source, seed=seed, streams=streams, window=window, block_bytes=block_bytes)
            for source in sources
        ]
        self._order_key = key_of(seed, "within a stream")
        self.steps = 0
        self.samples = 0
        self._counts: dict[str, int] = dict.fromkeys(names, 0)
        self._open_phase()

    @property
    def counts(self) -> dict[str, int]:
        """Draws so far by source name, sources of earlier phases included."""
        self._catch_up()
        return dict(self._counts)

    @property
    def orders(self) -> Sequence[SourceOrder]:
        """The order of each source."""
        return self._orders

    @property
    def sizes(self) -> dict[str, int]:
        """Frames of each source."""
        return {name: order.size for name, order in zip(self.names, self._orders, strict=True)}

    def _open_phase(self) -> None:
        self._phase_samples = self.samples
        self._phase_counts = dict(self._counts)
        self._quota = Quota(list(self._weights.values()), [0] * len(self.names))
        self._next: list[tuple[Step, list[int]]] = []
        self._next_size = 0
        self._skipped = 0  # samples that no count knows of yet
        self._hopped = 0  # samples skipped since the last step

    def _ahead(self, size: int, number: int) -> list[tuple[Step, list[int]]]:
        """The next steps of ``size`` samples, and each source's count after them, the last one first."""
        chosen = self._quota.take(number * size)
        sample = np.arange(self.samples, self.samples + number * size, dtype=np.int64)
        step = np.repeat(np.arange(number), size)
        row = np.empty(number * size, dtype=np.int64)
        draw = np.empty(number * size, dtype=np.int64)
        stream = np.empty(number * size, dtype=np.int32)
        after = np.empty((number, len(self.names)), dtype=np.int64)
        for source, order in enumerate(self._orders):
            (places,) = np.nonzero(chosen == source)
            before = self._counts[self.names[source]]
            row[places], stream[places] = order.rows(before, len(places))
            draw[places] = before + np.arange(len(places))
            after[:, source] = before + np.cumsum(np.bincount(step[places], minlength=number))
        place = np.lexsort((hash64(self._order_key, sample), stream, step))
        sample, chosen, draw, row, stream = sample[place], chosen[place], draw[place], row[place], stream[place]
        counts = after.tolist()
        steps = []
        for k in range(number):
            here = slice(k * size, (k + 1) * size)
            one = Step(
                step=self.steps + k,
                sample=sample[here],
                source=chosen[here],
                draw=draw[here],
                row=row[here],
                stream=stream[here],
            )
            steps.append((one, counts[k]))
        return steps[::-1]

    def step(self, size: int) -> Step:
        """The next global batch of ``size`` samples."""
        self._catch_up()
        if self._next_size != size or not self._next:
            self._drop_ahead()
            # Several at once, for what numpy costs is the calls; but not where most of them would be skipped.
            number = 1 if self._hopped >= _FAR else max(1, _AT_ONCE // max(size, 1))
            self._next_size, self._next = size, self._ahead(size, number)
        step, counts = self._next.pop()
        self._counts.update(zip(self.names, counts, strict=True))
        self.samples += size
        self.steps += 1
        self._hopped = 0
        return step

    def skip(self, size: int) -> None:
        """Passes over the next global batch of ``size`` samples, without finding any."""
        if self._next_size == size and self._next:
            self._counts.update(zip(self.names, self._next.pop()[1], strict=True))
        else:
            self._drop_ahead()
            self._skipped += size
        self.samples += size
        self.steps += 1
        self._hopped += size

    def _catch_up(self) -> None:
        """Counts what was skipped."""
        if self._skipped:
            self._quota.skip(self._skipped)
            self._skipped = 0
            for name, count in zip(self.names, self._quota.counts, strict=True):
                self._counts[name] = self._phase_counts.get(name, 0) + count

    def _drop_ahead(self) -> None:
        """Goes back to where the steps that were handed out end."""
        if self._next:
            drawn = [self._counts[name] - self._phase_counts.get(name, 0) for name in self.names]
            self._quota, self._next = Quota(list(self._weights.values()), drawn), []

    def state_dict(self) -> dict[str, object]:
        """All the position there is, as JSON types: a few hundred bytes, the same on every rank."""
        return {
            **self._fixed,
            "steps": self.steps,
            "samples": self.samples,
            "counts": self.counts,
            "digests": dict(self._digests),
            "phase": {
                "samples": self._phase_samples,
                "counts": dict(self._phase_counts),
                "weights": dict(self._weights),
            },
        }

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Goes to a saved position. Other weights, new and removed sources open a phase: shares count from there.

        Raises:
            ConflictError: seed, streams, window, block rule or a set's digest differ; names each with both values.
            ConfigError: not such a state.
        """
        differences = [
            f"{key} was {state.get(key)!r}, is {value!r}"
            for key, value in self._fixed.items()
            if state.get(key) != value
        ]
        digests = _mapping(state, "digests")
        differences += [
            f"source {name!r} was set {digests[name]!r}, is {digest!r}"
            for name, digest in self._digests.items()
            if name in digests and digests[name] != digest
        ]
        if differences:
            raise ConflictError("the state belongs to another order: " + "; ".join(differences), where="loader state")
        counts, phase = _counts(state, "counts"), _mapping(state, "phase")
        phase_counts, weights = _counts(phase, "counts"), _counts(phase, "weights")
        samples, steps, phase_samples = _count(state, "samples"), _count(state, "steps"), _count(phase, "samples")
        same = {name: weights.get(name) for name in self.names} == self._weights and len(weights) == len(self.names)
        quota = None
        if same:
            drawn = [counts.get(name, 0) - phase_counts.get(name, 0) for name in self.names]
            try:
                quota = Quota(list(self._weights.values()), drawn)
            except ValueError as error:
                raise ConfigError("the state contradicts itself", where="loader state: counts", found=error) from error
            if sum(drawn) != samples - phase_samples:
                raise ConfigError(
                    "the state contradicts itself",
                    where="loader state: counts",
                    expected=f"{samples - phase_samples} samples in the phase",
                    found=sum(drawn),
                )
        self.samples, self.steps = samples, steps
        self._counts = {**counts, **{name: counts.get(name, 0) for name in self.names}}
        # The digests of sources that are gone stay known, so that their return is checked.
        self._digests = {**{name: str(digest) for name, digest in digests.items()}, **self._digests}
        if quota is None:
            self._open_phase()
        else:
            self._quota, self._next, self._skipped = quota, [], 0
            self._phase_samples, self._phase_counts = phase_samples, phase_counts


def _mapping(state: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = state.get(key)
    if not isinstance(value, Mapping):
        raise ConfigError("not a loader state", where=key, expected="a mapping", found=type(value).__name__)
    return value


def _count(state: Mapping[str, object], key: str) -> int:
    value = state.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ConfigError("not a loader state", where=key, expected="a whole number from 0", found=value)
    return value


def _counts(state: Mapping[str, object], key: str) -> dict[str, int]:
    values = _mapping(state, key)
    return {name: _count(values, name) for name in values}
