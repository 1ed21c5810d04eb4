"""Evaluation covers each frame once over all ranks; goals are where they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsmix.errors import ConfigError
from wdsmix.mixture.evaluation import EvaluationOrder
from wdsmix.mixture.goals import choose_goals
from wdsmix.mixture.order import SourceOrder, rank_slice

SIZES = st.lists(st.integers(0, 40), min_size=1, max_size=6).filter(sum)


@given(SIZES, st.integers(1, 9), st.sampled_from([1, 2, 4, 8]))
def test_every_frame_once_over_all_ranks_with_equal_batch_counts(sizes, batch, world):
    order = EvaluationOrder(sizes)
    got = []
    for number in range(order.steps(batch * world)):
        step = order.step(number, batch * world)
        for rank in range(world):
            part = rank_slice(batch * world, rank, world)
            assert len(step.row[part]) == batch
            got += list(zip(step.source[part][step.valid[part]], step.row[part][step.valid[part]], strict=True))
        assert all(row < sizes[source] for source, row in zip(step.source, step.row, strict=True))
    assert got == [(s, r) for s, size in enumerate(sizes) for r in range(size)]
    with pytest.raises(IndexError):
        order.step(order.steps(batch), batch)


def test_nothing_to_evaluate_is_refused():
    with pytest.raises(ConfigError):
        EvaluationOrder([0, 0])


@given(
    frames=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    lowest=st.integers(0, 5),
    extra=st.integers(0, 20),
    fraction=st.sampled_from([0.0, 0.3, 1.0]),
    seed=st.integers(-3, 2**70),
)
def test_goals_lie_ahead_in_the_episode_or_in_another(frames, lowest, extra, fraction, seed):
    ends = np.cumsum(np.array(frames, dtype=np.int64))
    row = np.arange(ends[-1])
    options = {"seed": seed, "name": "x", "ends": ends, "lowest": lowest, "highest": lowest + extra}
    goals = choose_goals(draw=row + 7, row=row, negative_fraction=fraction, **options)
    episode = np.repeat(np.arange(len(frames)), frames)
    for i in range(len(row)):
        left = ends[episode[i]] - 1 - i
        if goals.negative[i]:
            assert goals.offset[i] == -1
            assert episode[goals.row[i]] != episode[i]
        else:
            assert goals.row[i] == i + goals.offset[i]
            assert min(lowest, left) <= goals.offset[i] <= min(lowest + extra, left)
    assert not (fraction == 0.0 and goals.negative.any())
    assert goals.negative.all() == (fraction == 1.0 and len(frames) > 1) or fraction == 0.3
    picked = choose_goals(draw=row[3:5] + 7, row=row[3:5], negative_fraction=fraction, **options)
    assert picked.row.tolist() == goals.row[3:5].tolist()


def test_goals_are_spread_evenly_and_change_with_the_epoch():
    ends = np.arange(1, 101, dtype=np.int64) * 100
    row = np.tile(np.arange(0, 10_000, 100), 100)
    draw = np.arange(len(row))
    goals = choose_goals(seed=0, name="x", draw=draw, row=row, ends=ends, lowest=1, highest=20, negative_fraction=0.25)
    counts = np.bincount(goals.offset[~goals.negative], minlength=21)
    assert counts[0] == 0
    assert counts[1:].min() > 300
    assert counts[1:].max() < 450
    assert abs(goals.negative.mean() - 0.25) < 0.02
    assert np.bincount(goals.row[goals.negative] // 100, minlength=100).min() > 5
    assert len(set(goals.offset[row == 0].tolist())) > 10


@given(st.lists(st.integers(1, 60), min_size=1, max_size=15), st.integers(1, 40_000))
def test_blocks_hold_each_row_once(frames, block_bytes):
    from helpers import orders

    order = SourceOrder(orders.source_of("x", frames), seed=0, streams=2, window=9, block_bytes=block_bytes)
    expected = orders.blocks(frames, 1000, block_bytes)
    for rows in expected:
        for row in rows:
            assert list(order.block(row)) == rows
