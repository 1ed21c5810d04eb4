"""Properties of the order of samples, against a naive rewriting of its definition."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from helpers import orders
from hypothesis import given
from hypothesis import strategies as st

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.order import MixtureOrder, SourceOrder, rank_slice
from wdsmix.mixture.quota import TOTAL, Quota, integer_weights

WEIGHTS = st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=9)
SKEWED = st.lists(st.sampled_from([1.0, 1.0, 2.0, 0.25, 1e-2, 3e-4]), min_size=2, max_size=12)
EPISODES = st.lists(st.integers(1, 60), min_size=1, max_size=25)


def mixture(weights: dict[str, float], frames: dict[str, list[int]], **options: int) -> MixtureOrder:
    settings = {"seed": 3, "streams": 4, "window": 64, "block_bytes": 8000} | options
    return MixtureOrder([orders.source_of(n, frames[n], weight=w) for n, w in weights.items()], **settings)


FRAMES = {"a": [17, 5, 30, 2, 2, 9], "b": [40], "c": [3, 1], "d": [11] * 7}


# shares


@given(WEIGHTS)
def test_after_any_number_of_samples_each_source_is_less_than_one_sample_from_its_share(weights):
    whole = integer_weights(weights)
    drawn = Quota(whole, [0] * len(weights)).take(600)
    counts = np.cumsum(drawn[:, None] == np.arange(len(weights)), axis=0)
    for n in range(1, len(drawn) + 1):
        for count, weight in zip(counts[n - 1].tolist(), whole, strict=True):
            assert abs(count * TOTAL - n * weight) < TOTAL


def test_shares_hold_for_hundreds_of_random_weight_vectors():
    rng = np.random.default_rng(1)
    for _ in range(300):
        whole = integer_weights(rng.dirichlet(np.full(rng.integers(2, 20), 0.3)).clip(1e-6).tolist())
        drawn = Quota(whole, [0] * len(whole)).take(2000)
        counts = np.cumsum(drawn[:, None] == np.arange(len(whole)), axis=0)
        due = np.arange(1, 2001, dtype=np.float64)[:, None] * (np.array(whole) / TOTAL)
        assert np.abs(counts - due).max() < 1


@given(WEIGHTS)
def test_choice_equals_the_rule_written_in_fractions(weights):
    whole = integer_weights(weights)
    assert Quota(whole, [0] * len(whole)).take(200).tolist() == orders.quota_sequence(whole, 200)


@given(WEIGHTS, st.integers(0, 300), st.integers(1, 100))
def test_choice_goes_on_from_counts_alone(weights, before, after):
    whole = integer_weights(weights)
    through = Quota(whole, [0] * len(whole))
    through.take(before)
    resumed = Quota(whole, through.counts)
    assert resumed.take(after).tolist() == through.take(after).tolist()


@given(st.one_of(WEIGHTS, SKEWED), st.lists(st.integers(0, 700), min_size=1, max_size=8), st.booleans())
def test_skipping_stands_where_choosing_does(weights, sizes, resumed):
    whole = integer_weights(weights)
    through, over = Quota(whole, [0] * len(whole)), Quota(whole, [0] * len(whole))
    for size in sizes:
        through.take(size)
        if resumed:
            over = Quota(whole, over.counts)
        over.skip(size)
        assert over.counts == through.counts
    assert over.take(50).tolist() == through.take(50).tolist()


@pytest.mark.parametrize("size", range(9, 16))
def test_skipping_goes_on_from_counts_that_the_sequence_never_has_as_choosing_does(size):
    whole = integer_weights([3, 1, 5, 8])
    foreign = [0, 1, 0, 0]  # the sequence begins with the last source
    through, over = Quota(whole, foreign), Quota(whole, foreign)
    through.take(size)
    over.skip(size)
    assert over.counts == through.counts


def test_skipping_far_costs_the_same_for_any_distance():
    """Of 10**13 samples; the counts are within one of the shares, and choosing goes on from them."""
    whole = integer_weights([0.5, 0.3, 0.19, 0.01])
    quota = Quota(whole, [0] * 4)
    quota.skip(10**13)
    assert sum(quota.counts) == 10**13
    assert all(abs(count * TOTAL - 10**13 * weight) < TOTAL for count, weight in zip(quota.counts, whole, strict=True))
    quota.take(1000)


@given(WEIGHTS)
def test_integer_weights_sum_and_are_nearest(weights):
    whole = integer_weights(weights)
    assert sum(whole) == TOTAL
    for got, weight in zip(whole, weights, strict=True):
        assert abs(got - weight / sum(weights) * TOTAL) < 1.001


@pytest.mark.parametrize("weights", [[], [0.0, 1.0], [-1.0], [float("nan")], [float("inf")], [1e-12, 1.0]])
def test_weights_that_cannot_be_kept_are_refused(weights):
    with pytest.raises(ConfigError):
        integer_weights(weights)


# the order of one source


@given(
    frames=EPISODES,
    epoch=st.integers(0, 3),
    seed=st.integers(-5, 2**63),
    streams=st.integers(1, 9),
    window=st.integers(1, 200),
    block_bytes=st.integers(1, 40_000),
)
def test_an_epoch_equals_its_definition_and_holds_each_frame_once(frames, epoch, seed, streams, window, block_bytes):
    options = {"seed": seed, "streams": streams, "window": window, "block_bytes": block_bytes}
    order = SourceOrder(orders.source_of("x", frames), **options)
    rows, stream = order.rows(epoch * order.size, order.size)
    assert sorted(rows.tolist()) == list(range(sum(frames)))
    assert rows.tolist() == orders.epoch_rows("x", frames, epoch, frame_bytes=1000, **options)
    assert stream.tolist() == [i % streams for i in range(order.size)]


@given(frames=EPISODES, first=st.integers(0, 4000), count=st.integers(0, 300), window=st.integers(1, 100))
def test_any_draw_is_found_without_those_before(frames, first, count, window):
    options = {"seed": 1, "streams": 3, "window": window, "block_bytes": 9000}
    through = SourceOrder(orders.source_of("x", frames), **options)
    all_rows = np.concatenate([through.rows(start, 37)[0] for start in range(0, first + count, 37)] or [[]])
    direct, _ = SourceOrder(orders.source_of("x", frames), **options).rows(first, count)
    assert direct.tolist() == all_rows[first : first + count].tolist()


def test_every_epoch_and_every_source_has_another_order():
    options = {"seed": 0, "streams": 2, "window": 32, "block_bytes": 4000}
    order = SourceOrder(orders.source_of("x", [50, 50]), **options)
    other = SourceOrder(orders.source_of("y", [50, 50]), **options)
    epochs = {tuple(o.rows(e * 100, 100)[0].tolist()) for o in (order, other) for e in range(4)}
    assert len(epochs) == 8


def test_frames_of_a_window_stay_near_each_other():
    """Live frames are bounded: an item is at most one and a half windows from its place in the block list."""
    width, streams, size = 32, 2, 4000
    order = SourceOrder(orders.source_of("x", [size]), seed=0, streams=streams, window=64, block_bytes=10**9)
    rows, _ = order.rows(0, size)
    for r in range(streams):
        mine = rows[r::streams]
        place = np.arange(len(mine)) + r * (size // streams)
        assert np.abs(mine - place).max() < 1.5 * width
        assert np.abs(mine - place).max() > 0.9 * width


def test_neighbours_within_an_epoch_come_from_many_blocks():
    order = SourceOrder(orders.source_of("x", [500] * 40), seed=0, streams=8, window=2048, block_bytes=10_000)
    rows, _ = order.rows(0, 256)
    assert len(set((rows // 10).tolist())) > 128


# the mixture


def draws(order: MixtureOrder, steps: int, size: int) -> list[tuple[str, int]]:
    out = []
    for _ in range(steps):
        step = order.step(size)
        by_sample = np.argsort(step.sample)
        out += [(order.names[s], r) for s, r in zip(step.source[by_sample], step.row[by_sample].tolist(), strict=True)]
    return out


@given(size=st.integers(1, 50))
def test_batch_size_only_groups_the_sequence(size):
    weights = {"a": 0.5, "b": 0.3, "c": 0.2}
    got = draws(mixture(weights, FRAMES), 400 // size, size)
    assert got == draws(mixture(weights, FRAMES), len(got), 1)


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_ranks_cut_a_step_into_equal_slices_by_stream(world):
    order = mixture({"a": 0.5, "d": 0.5}, FRAMES, streams=8)
    step = order.step(32)
    parts = [rank_slice(32, rank, world) for rank in range(world)]
    assert np.concatenate([step.sample[part] for part in parts]).tolist() == step.sample.tolist()
    assert {part.stop - part.start for part in parts} == {32 // world}
    assert (np.diff(step.stream) >= 0).all()
    assert sorted(step.sample.tolist()) == list(range(32))


def test_a_batch_that_ranks_cannot_share_is_refused():
    with pytest.raises(ConfigError, match="divide evenly"):
        rank_slice(10, 0, 4)


@pytest.mark.parametrize("weights", [{"a": 1 / 64, "d": 63 / 64}, {"a": 511 / 512, "d": 1 / 512}, {"c": 1, "b": 1e3}])
def test_each_frame_once_per_source_epoch_for_lopsided_weights(weights):
    order = mixture(weights, FRAMES)
    drawn: dict[str, list[int]] = {name: [] for name in weights}
    for name, row in draws(order, 3000, 8):
        drawn[name].append(row)
    for name, rows in drawn.items():
        size = sum(FRAMES[name])
        for epoch in range(len(rows) // size):
            assert sorted(rows[epoch * size : (epoch + 1) * size]) == list(range(size)), (name, epoch)
        assert max(Counter(rows[len(rows) // size * size :]).values(), default=1) == 1


@given(before=st.integers(0, 60), size=st.integers(1, 30), other=st.integers(1, 30))
def test_state_resumes_with_another_batch_size(before, size, other):
    weights = {"a": 0.55, "b": 0.1, "d": 0.35}
    through = mixture(weights, FRAMES)
    draws(through, before, size)
    state = json.loads(json.dumps(through.state_dict()))
    resumed = mixture(weights, FRAMES)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == through.state_dict()
    assert draws(resumed, 10, other) == draws(through, 10 * other, 1)


def test_skip_equals_step():
    one, two = mixture({"a": 0.4, "b": 0.6}, FRAMES), mixture({"a": 0.4, "b": 0.6}, FRAMES)
    for _ in range(7):
        one.step(12)
        two.skip(12)
    assert one.state_dict() == two.state_dict()
    assert draws(one, 3, 12) == draws(two, 3, 12)


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([1, 12, 12, 12, 40, 200])), min_size=1, max_size=40),
    st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=3),
    st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=3),
    st.integers(0, 40),
)
def test_any_steps_can_be_skipped(hops, weights, later, phase):
    """Steps and skips in any order and of any size, over a change of weights: the same states, the same samples."""
    names = ["a", "b", "d"]
    one, two = (mixture(dict(zip(names, weights, strict=True)), FRAMES) for _ in range(2))
    for number, (skipped, size) in enumerate(hops):
        if number == phase:
            states = one.state_dict(), two.state_dict()
            one, two = (mixture(dict(zip(names, later, strict=True)), FRAMES) for _ in range(2))
            one.load_state_dict(states[0])
            two.load_state_dict(states[1])
        expected = one.step(size)
        if skipped:
            two.skip(size)
        else:
            found = two.step(size)
            for field in ("step", "sample", "source", "draw", "row", "stream"):
                assert np.array_equal(getattr(found, field), getattr(expected, field)), field
        if number % 3 == 0:
            assert one.state_dict() == two.state_dict()
            assert one.counts == two.counts
    assert one.state_dict() == two.state_dict()
    assert draws(one, 3, 12) == draws(two, 3, 12)


def test_skipping_finds_no_rows(monkeypatch):
    monkeypatch.setattr(SourceOrder, "rows", lambda *_: pytest.fail("rows were computed"))
    order = mixture({"a": 0.4, "b": 0.6}, FRAMES)
    for _ in range(100):
        order.skip(64)
    assert order.samples == 6400
    assert sum(order.counts.values()) == 6400


@given(st.integers(0, 500), WEIGHTS.filter(lambda w: len(w) >= 3))
def test_new_weights_hold_at_once_and_repeat_and_lose_nothing(at, weights):
    names = ["a", "b", "d"]
    first = mixture(dict(zip(names, (0.7, 0.2, 0.1), strict=True)), FRAMES)
    before = draws(first, at, 1)
    changed = dict(zip(names, weights, strict=False))
    second = mixture(changed, FRAMES)
    second.load_state_dict(first.state_dict())
    after = draws(second, 400, 1)
    whole = dict(zip(names, integer_weights(list(changed.values())), strict=True))
    for n in range(1, 401):
        seen = Counter(name for name, _ in after[:n])
        assert all(abs(seen[name] * TOTAL - n * whole[name]) < TOTAL for name in names)
    for name in names:
        rows = [row for source, row in before + after if source == name]
        size = sum(FRAMES[name])
        alone, _ = SourceOrder(
            orders.source_of(name, FRAMES[name]), seed=3, streams=4, window=64, block_bytes=8000
        ).rows(0, len(rows))
        assert rows == alone.tolist()
        assert sorted(rows[:size]) == sorted(set(rows[:size]))


def test_sources_come_and_go_and_go_on_where_they_were():
    order = mixture({"a": 0.5, "b": 0.5}, FRAMES)
    first = draws(order, 50, 1)
    order_c = mixture({"a": 0.5, "c": 0.5}, FRAMES)
    order_c.load_state_dict(order.state_dict())
    draws(order_c, 21, 1)
    assert order_c.counts["b"] == order.counts["b"]
    back = mixture({"b": 0.9, "c": 0.1}, FRAMES)
    back.load_state_dict(json.loads(json.dumps(order_c.state_dict())))
    later = [row for name, row in draws(back, 20, 1) if name == "b"]
    b_rows = [row for name, row in first if name == "b"]
    alone, _ = SourceOrder(orders.source_of("b", FRAMES["b"]), seed=3, streams=4, window=64, block_bytes=8000).rows(
        0, len(b_rows) + len(later)
    )
    assert b_rows + later == alone.tolist()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 4}, "seed was 3, is 4"),
        ({"streams": 5}, "streams was 4, is 5"),
        ({"window": 65}, "window was 64, is 65"),
        ({"block_bytes": 1}, "block_bytes was 8000, is 1"),
    ],
)
def test_a_state_of_another_order_is_refused_naming_the_difference(change, named):
    state = mixture({"a": 1.0}, FRAMES).state_dict()
    with pytest.raises(ConflictError, match=named):
        mixture({"a": 1.0}, FRAMES, **change).load_state_dict(state)


def test_a_state_of_another_version_of_a_set_is_refused():
    source = orders.source_of("a", [9])
    options = {"seed": 0, "streams": 1, "window": 8, "block_bytes": 100}
    state = MixtureOrder([source], **options).state_dict()
    with pytest.raises(ConflictError, match="source 'a' was set 'digest of a', is 'other'"):
        MixtureOrder([replace(source, digest="other")], **options).load_state_dict(state)


@pytest.mark.parametrize("broken", [{}, {"counts": {"a": -1}}, {"counts": {"a": 7}}, {"samples": 1.5}, {"phase": 3}])
def test_a_state_that_contradicts_itself_is_refused(broken):
    order = mixture({"a": 1.0}, FRAMES)
    order.step(4)
    state = {} if not broken else order.state_dict() | broken
    with pytest.raises((ConfigError, ConflictError)):
        mixture({"a": 1.0}, FRAMES).load_state_dict(state)


def test_equal_names_and_empty_sources_are_refused():
    options = {"seed": 0, "streams": 1, "window": 8, "block_bytes": 100}
    with pytest.raises(ConfigError, match="same name"):
        MixtureOrder([orders.source_of("a", [3]), orders.source_of("a", [4])], **options)
    with pytest.raises(ConfigError, match="no frames"):
        MixtureOrder([orders.source_of("a", [])], **options)


def test_a_mixture_of_a_hundred_million_frames_resumes_at_once():
    """Cost is asserted as a count of what is computed (one window), not as time."""
    frames = np.full(1_000_000, 100, dtype=np.int64)
    source = orders.source_of("big", [1])
    lengths = frames * 50_000
    big = replace(
        source,
        frames=frames,
        lengths=lengths,
        offsets=np.cumsum(lengths) - lengths,
        shards=np.zeros(len(frames), dtype=np.int32),
    )
    order = SourceOrder(big, seed=0, streams=8, window=8192, block_bytes=2 << 20)
    rows, _ = order.rows(64_000_000, 64)
    assert len(set(rows.tolist())) == 64
    assert rows.max() < 100_000_000
    assert len(order._windows) == 1
