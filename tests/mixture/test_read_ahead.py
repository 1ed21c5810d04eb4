"""Reading ahead, beside a naive count of what the next draws use: order, budget, what is passed, what a batch lacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.mixtures import make_set

from wdsmix.mixture.assemble import Assembler, Samples
from wdsmix.mixture.blocks import Blocks, blocks_of
from wdsmix.mixture.catalog import Catalog, OpenSource, open_catalog
from wdsmix.mixture.config import MixtureConfig
from wdsmix.mixture.needs import BlockTable
from wdsmix.mixture.order import SourceOrder
from wdsmix.mixture.pipeline import Job, Pipeline
from wdsmix.mixture.place import Place
from wdsmix.mixture.readplan import Planned, ReadPlan
from wdsmix.mixture.remote import ReadAhead
from wdsmix.mixture.upcoming import upcoming

BLOCK_BYTES, STREAMS = 12_000, 4


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ahead")
    for number, name in enumerate("abc"):
        make_set(
            folder / name,
            episodes=[40, 3, 25, 60, 1, 2, 31, 50, 17 + number],
            size=(8, 8),
            episodes_per_shard=2 + number % 2,
            distinct_pictures=5,
        )
    return folder


@pytest.fixture
def opened(folders: Path) -> Callable[..., Catalog]:
    def open_them(names: str = "abc", *, sample: dict[str, Any] | None = None, **options: Any) -> Catalog:
        config = {
            "seed": 3,
            "sources": [
                {"name": name, "shards": str(folders / name), "weight": 1.0 + 2 * (name == "b")} for name in names
            ],
            "sample": {"action_chunk": 2, **({"history": 2} if sample is None else sample)},
            "streams": STREAMS,
            "window": 96,
            "block_bytes": BLOCK_BYTES,
        }
        return open_catalog(MixtureConfig.from_dict({**config, **options}))

    return open_them


def _blocks(source: OpenSource) -> Blocks:
    frames = source.order
    return blocks_of(
        frames=frames.frames,
        lengths=frames.lengths,
        offsets=frames.offsets,
        shards=frames.shards,
        block_bytes=BLOCK_BYTES,
    )


def _block_by_row(blocks: Blocks) -> list[int]:
    return [number for number, count in enumerate(blocks.count.tolist()) for _ in range(count)]


class Naive:
    """What draws of a source use, counted one by one."""

    def __init__(self, catalog: Catalog, place: int) -> None:
        source = catalog.sources[place]
        self.order: SourceOrder = catalog.new_order().orders[place]
        blocks = _blocks(source)
        self.of_row = _block_by_row(blocks)
        self.bounds = [(int(e - n), int(e) - 1) for e, n in zip(source.ends, source.frames, strict=True)]
        self.offsets = catalog.layout.offsets
        mean = source.order.lengths.sum() / self.order.size
        self.bytes = [int(count * mean) for count in blocks.count.tolist()]

    def uses(self, draw: int, streams: np.ndarray) -> list[int]:
        """Blocks, ascending; of the frames between the first and the last offset only those at the ends and its own."""
        (row,), (stream,) = (array.tolist() for array in self.order.rows(draw, 1))
        if not streams[stream]:
            return []
        low, high = next((low, high) for low, high in self.bounds if low <= row <= high)
        rows = {row, *(min(max(row + reach, low), high) for reach in (min(self.offsets), max(self.offsets)))}
        return sorted({self.of_row[r] for r in rows})


def _plan(catalog: Catalog, place: int) -> ReadPlan:
    source = catalog.sources[place]
    blocks = _blocks(source)
    ready = np.zeros(len(blocks.first), dtype=bool)
    order = catalog.new_order().orders[place]
    return ReadPlan(source, order, blocks, catalog.layout.offsets, catalog.config.window, ready)


@pytest.mark.parametrize(
    ("window", "sample", "mask"),
    [
        (96, {"history": 1}, [True] * STREAMS),
        (96, {"history": 2}, [True] * STREAMS),
        (96, {"observation_offsets": [-30, -2, 0, 20]}, [True, False, True, True]),
        (16, {"history": 4}, [False, True, False, False]),
        (10_000, {"history": 3}, [True] * STREAMS),
    ],
)
def test_blocks_are_planned_in_the_order_of_first_use(
    opened: Callable[..., Catalog], window: int, sample: dict[str, Any], mask: list[bool]
) -> None:
    catalog = opened("a", window=window, sample=sample)
    plan, naive = _plan(catalog, 0), Naive(catalog, 0)
    streams = np.array(mask)
    start, seen, seen_bytes = 57, [], 0
    plan.restart(start)
    draw = start
    expected: list[int] = []
    for _ in range(max(3, 700 // plan.step)):
        found = plan.plan(streams)
        while draw < plan.until:
            expected += [number for number in naive.uses(draw, streams) if number not in expected]
            draw += 1
        assert all(planned.turn == 1 for planned in found)
        seen += [planned.number for planned in found]
        seen_bytes += sum(planned.bytes for planned in found)
        assert seen == expected
    assert seen_bytes == plan.ahead == sum(naive.bytes[number] for number in expected)
    assert len(expected) > 10


def test_other_streams_count_from_the_step_that_is_planned_next(opened: Callable[..., Catalog]) -> None:
    catalog = opened("a", window=1000)
    plan, naive = _plan(catalog, 0), Naive(catalog, 0)
    plan.restart(0)
    expected: list[int] = []
    seen: list[int] = []
    for step in range(10):
        streams = np.arange(STREAMS) == step % STREAMS
        seen += [planned.number for planned in plan.plan(streams)]
        for draw in range(step * plan.step, plan.until):
            expected += [number for number in naive.uses(draw, streams) if number not in expected]
        assert seen == expected


def test_passed_blocks_are_told_once_and_planned_anew(opened: Callable[..., Catalog]) -> None:
    catalog = opened("a", window=32)
    plan, naive = _plan(catalog, 0), Naive(catalog, 0)
    streams = np.ones(STREAMS, dtype=bool)
    plan.restart(0)
    last: dict[int, int] = {}  # of what is planned and not passed
    first: dict[int, int] = {}
    drawn: Counter[int] = Counter()
    size = Counter(naive.of_row)
    told = planned_anew = early = 0
    used = 0
    ever: set[int] = set()

    def over(number: int, now: int) -> int:
        """How many draws ago it was known that nothing is left of a block; below 0: it is not known."""
        behind = plan.window // 8 if drawn[number] % size[number] == 0 else plan.window
        return now - behind - last[number] - 1

    for now in range(0, 900, 3):
        gone = [planned.number for planned in plan.passed(now)]
        assert len(gone) == len(set(gone))
        for number in gone:
            assert over(number, now) >= 0
            early += last.pop(number) >= now - plan.window
        assert not [number for number in last if over(number, now) > plan.step + 3]
        told += len(gone)
        while plan.until + plan.step <= now + plan.window:
            found = [planned.number for planned in plan.plan(streams)]
            fresh = []
            while used < plan.until:
                for number in naive.uses(used, streams):
                    if number not in last:
                        fresh.append(number)
                        first[number] = used
                        drawn[number] = 0
                    last[number] = used
                drawn[naive.of_row[int(naive.order.rows(used, 1)[0][0])]] += 1
                used += 1
            assert found == fresh
            planned_anew += len(ever.intersection(found))
            ever.update(found)
        assert plan.ahead == sum(naive.bytes[number] for number in last if first[number] >= now)
    assert told > 100
    assert planned_anew > 50
    assert early > 50


def test_what_comes_late_does_not_make_another_block_ready(opened: Callable[..., Catalog]) -> None:
    catalog = opened("a", window=32)
    source = catalog.sources[0]
    ready = np.zeros(len(_blocks(source).first), dtype=bool)
    order = catalog.new_order().orders[0]
    plan = ReadPlan(source, order, _blocks(source), catalog.layout.offsets, 32, ready)
    plan.restart(0)
    streams = np.ones(STREAMS, dtype=bool)
    before = plan.plan(streams)
    plan.came(before[0])
    assert np.flatnonzero(ready).tolist() == [before[0].number]
    plan.restart(0)
    assert not ready.any()
    again = plan.plan(streams)
    assert again[0].number == before[0].number
    plan.came(before[0])
    assert not ready.any()
    plan.came(again[0])
    assert np.flatnonzero(ready).tolist() == [before[0].number]


# --- all sources ------------------------------------------------------------------------------------------------------


class Recorder:
    """Stands for a crew; keeps calls."""

    stopped = False
    size = 2

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def submit(self, call: Any) -> None:
        self.calls.append(call)

    def take(self, name: str) -> Iterator[tuple[Any, ...]]:
        """Arguments of the calls of a method since the last look."""
        found = [call for call in self.calls if call.args[1] == name]
        self.calls = [call for call in self.calls if call not in found]
        return (call.args[2] for call in found)


class Reader:
    """Read-ahead of a catalog, whose threads do nothing, and batches to follow."""

    def __init__(self, catalog: Catalog, places: list[int], size: int = 8) -> None:
        self.catalog, self.size = catalog, size
        self.ahead = ReadAhead(catalog, places)
        self.demand, self.later = Recorder(), Recorder()
        self.ahead._demand, self.ahead._ahead = self.demand, self.later  # type: ignore[assignment]
        self.order = catalog.new_order()
        self.assembler = Assembler(catalog)
        self.samples: Samples

    def batch(self) -> dict[str, int]:
        """Follows the next batch; returns the draws so far."""
        step = self.order.step(self.size)
        state = self.order.state_dict()
        self.samples = self.assembler.locate(step.source, step.row, step.draw)
        job = Job(step=step.step, source=step.source, row=step.row, draw=step.draw, cursor={"order": state})
        self.ahead.follow(job, self.samples)
        return self.order.counts

    def planned(self) -> list[tuple[str, Planned]]:
        """What was handed to the threads ahead since the last look."""
        return [(source.opened.name, planned) for source, planned in self.later.take("_fetch_block")]


class NaiveReadAhead:
    """What is to be planned, counted one by one."""

    def __init__(self, reader: Reader, places: list[int]) -> None:
        catalog = reader.catalog
        self.naive = {catalog.sources[place].name: Naive(catalog, place) for place in places}
        self.weights = {catalog.sources[place].name: catalog.sources[place].config.weight for place in places}
        self.step = {source.opened.name: source.step for source in reader.ahead._sources.values()}
        self.window = {source.opened.name: source.window for source in reader.ahead._sources.values()}
        self.budget = catalog.config.read_ahead
        self.begin(dict.fromkeys(self.naive, 0))

    def begin(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.until = {name: counts[name] for name in self.naive}
        self.first: dict[str, dict[int, int]] = {name: {} for name in self.naive}

    def plan(self, counts: dict[str, int]) -> list[tuple[str, int]]:
        found = []
        streams = np.ones(STREAMS, dtype=bool)
        ahead = self.bytes_ahead(self.counts)  # what this batch has drawn from is room for the next one
        self.counts = counts
        for name in self.naive:
            if self.until[name] < counts[name]:  # a small budget was used up by others
                self.until[name], self.first[name] = counts[name], {}
        while ahead < self.budget:
            due = [n for n in self.naive if self.until[n] + self.step[n] <= counts[n] + self.window[n]]
            if not due:
                break
            name = min(due, key=lambda n: (self.until[n] - counts[n]) / self.weights[n])
            for draw in range(self.until[name], self.until[name] + self.step[name]):
                for number in self.naive[name].uses(draw, streams):
                    if number not in self.first[name]:
                        self.first[name][number] = draw
                        found.append((name, number))
                        ahead += self.naive[name].bytes[number]
            self.until[name] += self.step[name]
        return found

    def bytes_ahead(self, counts: dict[str, int]) -> int:
        return sum(
            self.naive[name].bytes[number]
            for name, known in self.first.items()
            for number, draw in known.items()
            if draw >= counts[name]
        )


@pytest.mark.parametrize("budget", [2**30, 150_000, 1])
def test_sources_are_planned_in_step_and_within_the_budget(opened: Callable[..., Catalog], budget: int) -> None:
    catalog = opened(window=200, read_ahead=budget)
    places = [0, 2]
    reader = Reader(catalog, places)
    naive = NaiveReadAhead(reader, places)
    largest = max(max(each.bytes) for each in naive.naive.values())
    seen: list[tuple[str, int]] = []
    expected: list[tuple[str, int]] = []
    for number in range(40):  # nothing is passed yet
        counts = reader.batch()
        if not number:
            naive.begin(counts)
        seen += [(name, planned.number) for name, planned in reader.planned()]
        expected += naive.plan(counts)
        assert seen == expected
        ahead = sum(source.ahead for source in reader.ahead._sources.values())
        assert ahead == naive.bytes_ahead(counts)
        assert ahead < budget + largest * max(naive.step.values()) * 3
    assert len(seen) > (30 if budget > 1 else 15)
    assert budget == 1 or {name for name, _ in seen} == {"a", "c"}


def test_after_a_jump_planning_begins_anew(opened: Callable[..., Catalog]) -> None:
    catalog = opened(window=200)
    places = [0, 1, 2]
    reader = Reader(catalog, places)
    reader.batch()
    before = reader.planned()
    assert before
    for _ in range(300):
        reader.order.step(reader.size)
    counts = reader.batch()
    naive = NaiveReadAhead(reader, places)
    naive.begin(counts)
    after = reader.planned()
    assert [(name, planned.number) for name, planned in after] == naive.plan(counts)
    assert {planned.turn for _, planned in before} == {1}
    assert {planned.turn for _, planned in after} == {2}
    source = next(iter(reader.ahead._sources.values()))
    reader.ahead._begun.set()
    reader.ahead._fetch_block(source, next(planned for name, planned in before if name == source.opened.name))
    assert not reader.ahead._table.ready_of(0).any()  # of a turn that is over
    reader.ahead._fetch_block(source, next(planned for name, planned in after if name == source.opened.name))
    assert reader.ahead._table.ready_of(0).sum() == 1


def test_orders_that_are_shared_give_the_same_plan(opened: Callable[..., Catalog]) -> None:
    catalog = opened(window=200)
    alone, sharing = Reader(catalog, [0, 1]), Reader(catalog, [0, 1])
    sharing.ahead.share(sharing.order.orders)
    for _ in range(30):
        alone.batch()
        sharing.batch()
        assert [(n, p.number, p.rows) for n, p in alone.planned()] == [
            (n, p.number, p.rows) for n, p in sharing.planned()
        ]
    assert sharing.ahead._sources[1].order is sharing.order.orders[1]


def _shown(catalog: Catalog, samples: Samples, b: int) -> list[tuple[int, int, int | None]]:
    """(Shard, row in it, row in the source) of each frame of a sample; None for a goal in another episode."""
    source = catalog.sources[int(samples.source[b])]
    e = source.number.tolist().index(int(samples.episode[b]))
    begin = int(source.ends[e] - source.frames[e])
    found: list[tuple[int, int, int | None]] = [
        (int(source.shard[e]), int(source.first_row[e]) + frame, begin + frame)
        for frame in samples.observed[b].tolist()
    ]
    if samples.goal is not None:
        g = source.number.tolist().index(int(samples.goal.episode[b]))
        frame = int(samples.goal.frame[b])
        row = int(source.ends[g] - source.frames[g]) + frame
        found.append((int(source.shard[g]), int(source.first_row[g]) + frame, row if g == e else None))
    return found


def test_upcoming_batches_know_what_they_need(opened: Callable[..., Catalog]) -> None:
    catalog = opened("abc", sample=GOAL)
    pipeline = Pipeline(catalog, batch_size=4, threads=1, shared=False)
    ahead = pipeline._ahead = ReadAhead(catalog, [1])
    order = catalog.new_order()
    for coming in islice(upcoming(pipeline, order, Place(rank=1, world=2), 4), 60):
        needs = ahead.needs(coming.samples, coming.job.draw)
        assert coming.samples.needs is not None
        assert (coming.samples.needs.blocks == needs.blocks).all()
        assert (coming.samples.needs.streams == needs.streams).all()
    assert ahead._sources[1].order is order.orders[1]


GOAL = {"goal": {"max_offset": 20, "negative_goal_fraction": 0.3}}


@pytest.mark.parametrize("sample", [{"observation_offsets": [-9, 0, 4]}, GOAL])
def test_frames_that_a_batch_lacks(
    opened: Callable[..., Catalog], sample: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opened(sample=sample, window=500)
    places = [0, 2]
    reader = Reader(catalog, places, size=16)
    of_row = {place: _block_by_row(_blocks(catalog.sources[place])) for place in places}
    monkeypatch.setattr(reader.ahead, "_look_on", lambda job: None)  # its plan is an evaluation's
    rng = np.random.default_rng(1)
    asked = left = 0
    for _ in range(20):
        reader.batch()
        for source, planned in [*reader.later.take("_fetch_block")]:
            if rng.random() < 0.7:
                source.came(planned)
                planned.tries = 1
            elif rng.random() < 0.5:
                planned.tries = 1  # somebody is at it
        reader.demand.calls.clear()
        samples = reader.samples
        late, blocks = set(), set()
        for b, place in enumerate(samples.source.tolist()):
            for shard, at, row in _shown(catalog, samples, b) if place in places else []:
                number = None if row is None else of_row[place][row]
                planned = None if number is None else reader.ahead._sources[place]._planned.get(number)
                if planned is None or not planned.ready:
                    late.add((place, shard, at))
                    if planned is not None and not planned.tries and not planned.urgent:
                        blocks.add((place, number))
        job = Job(step=0, source=samples.source, row=samples.row, draw=samples.row, cursor={})
        reader.ahead.follow(job, samples)  # as in an evaluation: by frames
        frames = [
            (opened.id, shard, at)
            for opened, shard, rows in reader.demand.take("_fetch_frames")
            for at in rows.tolist()
        ]
        assert len(frames) == len(set(frames))
        assert set(frames) == late
        left += len(late)
        # With a pace that is good enough: blocks.
        reader.ahead._pace, reader.ahead._budget = 1e12, 0
        counts = reader.order.counts
        job = Job(
            step=0, source=samples.source, row=samples.row, draw=samples.row, cursor={"order": {"counts": counts}}
        )
        reader.ahead.follow(job, samples)
        urgent = {(source.opened.id, planned.number) for source, planned in reader.demand.take("_fetch_urgent")}
        assert urgent == blocks
        asked += len(urgent)
        reader.ahead._pace, reader.ahead._budget = 0.0, 2**30
        reader.later.calls.clear()
    assert left > 100
    assert asked > 10


@pytest.mark.parametrize("stored", [[0, 1, 2], [1], [2]])
def test_blocks_of_frames_over_all_sources(opened: Callable[..., Catalog], stored: list[int]) -> None:
    catalog = opened(sample=GOAL)
    blocks = {place: _blocks(catalog.sources[place]) for place in stored}
    table = BlockTable([int(source.ends[-1]) for source in catalog.sources], blocks, STREAMS)
    step = catalog.new_order().step(300)
    samples = Assembler(catalog).locate(step.source, step.row, step.draw)
    needs = table.of(samples, step.draw)
    assert (needs.streams == step.stream).all()
    assert not table.ready[-1]
    negatives = 0
    for b, place in enumerate(samples.source.tolist()):
        for t, (_, _, row) in enumerate(_shown(catalog, samples, b)):
            number = int(needs.blocks[b, t])
            if place not in stored:
                assert table.ready[number]
            elif row is None:
                negatives += 1
                assert number == len(table.ready) - 1
            else:
                assert number - int(table.first[place]) == _block_by_row(blocks[place])[row]
                assert not table.ready[number]
    assert negatives > 10
    part = needs.part(slice(4, 9))
    assert (part.blocks == needs.blocks[4:9]).all()
    assert (part.streams == needs.streams[4:9]).all()
    table.ready_of(stored[0])[:] = True
    first = int(table.first[stored[0]])
    assert table.ready[first : first + len(blocks[stored[0]].first)].all()


@pytest.mark.parametrize("place", [0, 1])
def test_bytes_of_blocks_and_of_an_evaluation(opened: Callable[..., Catalog], place: int) -> None:
    catalog = opened("ab")
    source = catalog.sources[place]
    plan = _plan(catalog, place)
    rows = [
        (int(shard), int(first) + frame)
        for shard, first, frames in zip(source.shard, source.first_row, source.frames, strict=True)
        for frame in range(int(frames))
    ]

    def check(planned: Planned) -> None:
        shard, start, stop = plan.span(planned)
        (number,) = {rows[row][0] for row in planned.rows}
        assert shard is source.set.shard(number)
        ends = [(int(shard.offset[at]), int(shard.length[at])) for at in (rows[row][1] for row in planned.rows)]
        assert start == ends[0][0]
        assert stop == sum(ends[-1])
        assert all(a + size == b for (a, size), (b, _) in pairwise(ends))

    plan.restart(0)
    blocks: dict[int, Planned] = {}
    while plan.until < plan.order.size:
        blocks |= {planned.number: planned for planned in plan.plan(np.ones(STREAMS, dtype=bool))}
    assert sorted(row for planned in blocks.values() for row in planned.rows) == list(range(len(rows)))
    for planned in blocks.values():
        check(planned)
    for start, stop in ((0, 300), (39, 40), (10, 1000), (228, 229), (len(rows), len(rows) + 5)):
        pieces = plan.pieces(start, stop)
        assert [row for planned in pieces for row in planned.rows] == list(range(start, min(stop, len(rows))))
        for planned in pieces:
            check(planned)
    assert len(plan.pieces(0, 1000)) == len(set(source.shard.tolist()))
