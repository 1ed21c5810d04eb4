"""Statistics against numpy on the same rows cast to float64."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wdsmix.errors import DataError
from wdsmix.manifest import FieldStats
from wdsmix.stats import FieldAccumulator, bin_middle, bin_of, merge_stats

TINY = 2.0**-135  # width of a bin where float32 is denormal


def tolerance(values: np.ndarray, q: float) -> float:
    """0.1 % of the larger of the two order statistics that the quantile lies between."""
    ordered = np.sort(values)
    place = q * (len(ordered) - 1)
    return 1e-3 * max(abs(ordered[int(np.floor(place))]), abs(ordered[int(np.ceil(place))])) + TINY


def check_against_numpy(rows: np.ndarray, stats: FieldStats) -> None:
    exact = rows.astype(np.float64)
    assert stats.count == len(rows)
    for d in range(rows.shape[1]):
        column = exact[:, d]
        scale = max(np.abs(column - column.mean()).max(), 0.0)
        assert stats.mean[d] == pytest.approx(column.mean(), rel=1e-9, abs=1e-9 * scale)
        assert stats.std[d] == pytest.approx(column.std(), rel=1e-9, abs=1e-12 * scale + 1e-300)
        assert stats.min[d] == column.min()
        assert stats.max[d] == column.max()
        for q, found in ((0.01, stats.q01[d]), (0.99, stats.q99[d])):
            assert abs(found - np.quantile(column, q)) <= tolerance(column, q)
            assert column.min() <= found <= column.max()
        histogram = stats.histogram[d]
        assert sum(histogram.counts) == len(rows)
        assert histogram.bins == sorted(set(histogram.bins))


def wild(kind: str, rng: np.random.Generator, n: int) -> np.ndarray:
    return {
        "normal": lambda: rng.normal(size=n),
        "constant": lambda: np.full(n, rng.normal() * 1e3),
        "zeros": lambda: np.zeros(n),
        "bimodal": lambda: rng.choice([-1.0, 1.0], n) + rng.normal(size=n) * 1e-3,
        "offset": lambda: 1e6 + rng.normal(size=n),
        "tiny noise": lambda: 1e6 + rng.normal(size=n) * 0.05,
        "negative": lambda: -np.exp(rng.normal(size=n) * 4),
        "heavy": lambda: rng.standard_cauchy(n) * 1e10,
        "denormal": lambda: rng.normal(size=n) * 1e-41,
        "huge": lambda: rng.uniform(-3.4e38, 3.4e38, n),
        "mostly zero": lambda: np.where(rng.random(n) < 0.97, 0.0, rng.normal(size=n)),
        "one-sided step": lambda: np.where(rng.random(n) < 0.99, 5.0, -7e4),
    }[kind]()


KINDS = [
    "normal",
    "constant",
    "zeros",
    "bimodal",
    "offset",
    "tiny noise",
    "negative",
    "heavy",
    "denormal",
    "huge",
    "mostly zero",
    "one-sided step",
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 3, 100, 101, 5000])
def test_wild_distributions_agree_with_numpy(kind: str, n: int) -> None:
    rng = np.random.default_rng([n, KINDS.index(kind)])
    rows = np.stack([wild(kind, rng, n) for _ in range(3)], axis=1).astype(np.float32)
    check_against_numpy(rows, FieldAccumulator.of(rows).finish())


@settings(max_examples=80)
@given(
    hnp.arrays(
        np.float32,
        st.tuples(st.integers(1, 60), st.integers(1, 4)),
        elements=st.floats(width=32, allow_nan=False, allow_infinity=False),
    )
)
def test_any_finite_rows_agree_with_numpy(rows: np.ndarray) -> None:
    check_against_numpy(rows, FieldAccumulator.of(rows).finish())


def grouped(parts: list[FieldAccumulator], rng: np.random.Generator) -> FieldAccumulator:
    parts = [FieldAccumulator.from_json(part.to_json()) for part in parts]
    while len(parts) > 1:
        a, b = sorted(rng.choice(len(parts), 2, replace=False))
        parts[a].merge(parts.pop(b))
    return parts[0]


@settings(max_examples=40)
@given(st.sampled_from(KINDS), st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(0, 2**32 - 1))
def test_merging_in_any_grouping_gives_the_same(kind: str, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = wild(kind, rng, sum(sizes)).astype(np.float32).reshape(-1, 1)
    whole = FieldAccumulator.of(rows).finish()
    parts = [FieldAccumulator.of(part) for part in np.split(rows, np.cumsum(sizes)[:-1])]
    merged = grouped(parts, rng).finish()
    assert merged.histogram == whole.histogram
    assert (merged.q01, merged.q99, merged.min, merged.max) == (whole.q01, whole.q99, whole.min, whole.max)
    spread = whole.max[0] - whole.min[0]
    assert merged.mean[0] == pytest.approx(whole.mean[0], rel=1e-12, abs=1e-12 * spread)
    assert merged.std[0] == pytest.approx(whole.std[0], rel=1e-12, abs=1e-14 * spread + 1e-300)
    again = merge_stats([part.finish() for part in parts])
    assert again.histogram == whole.histogram
    # stats.json holds rounded means, so that offsets cost digits
    largest = max(abs(whole.min[0]), abs(whole.max[0]))
    assert again.std[0] == pytest.approx(whole.std[0], rel=1e-9, abs=1e-15 * largest)


def test_a_constant_dimension_has_no_spread_at_all() -> None:
    parts = [FieldAccumulator.of(np.full((n, 1), 0.1, np.float32)) for n in (1, 7, 300)]
    for part in parts[1:]:
        parts[0].merge(part)
    stats = parts[0].finish()
    assert stats.std == [0.0]
    assert stats.mean == stats.min == stats.max == stats.q01 == stats.q99 == [float(np.float32(0.1))]


def test_bins_ascend_with_the_values_and_hold_their_middle() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 200_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = np.sort(values[np.isfinite(values)])
    bins = bin_of(values)
    assert (np.diff(bins) >= 0).all()
    middle = bin_middle(bins)
    error = np.abs(middle - values.astype(np.float64))
    assert (error <= np.maximum(np.abs(values.astype(np.float64)) * 2.0**-10, TINY)).all()
    filled = bins[bins != 0]
    assert np.array_equal(bin_of(bin_middle(filled).astype(np.float32)), filled)
    assert bin_of(np.array([0.0, -0.0], np.float32)).tolist() == [0, 0]


def test_histogram_does_not_change_between_releases() -> None:
    # bins of stats.json are part of the on-disk contract
    values = np.array([0.0, 1.0, 1.001, 1.002, -1.0, 3.4028235e38, 1e-45, 0.1], np.float32)
    assert bin_of(values).tolist() == [0, 65024, 65024, 65025, -65024, 130559, 0, 63283]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_with_its_place(bad: float) -> None:
    rows = np.zeros((5, 3), np.float32)
    rows[3, 1] = bad
    with pytest.raises(DataError, match="row 3, dimension 1"):
        FieldAccumulator.of(rows)


def test_json_gives_the_same_accumulator_back() -> None:
    rng = np.random.default_rng(1)
    made = FieldAccumulator.of(rng.normal(size=(100, 5)).astype(np.float32) * np.float32(1e-3))
    made.merge(FieldAccumulator.of(rng.normal(size=(33, 5)).astype(np.float32)))
    back = FieldAccumulator.from_json(json.loads(json.dumps(made.to_json())))
    assert back.finish() == made.finish()
    other = FieldAccumulator.of(rng.normal(size=(10, 5)).astype(np.float32))
    made.merge(other)
    back.merge(other)
    assert back.to_json() == made.to_json()


def test_nothing_merges_into_nothing() -> None:
    empty = FieldAccumulator(2)
    assert FieldAccumulator.from_json(empty.to_json()).count == 0
    with pytest.raises(DataError, match="no rows"):
        empty.finish()
    with pytest.raises(DataError, match="no statistics"):
        merge_stats([])
    rows = np.ones((3, 2), np.float32)
    empty.merge(FieldAccumulator.of(rows))
    empty.merge(FieldAccumulator.of(rows[:0]))
    assert empty.finish() == FieldAccumulator.of(rows).finish()


def test_widths_must_agree() -> None:
    one = FieldAccumulator.of(np.zeros((2, 3), np.float32))
    with pytest.raises(DataError, match="expected 3, found 4"):
        one.merge(FieldAccumulator.of(np.zeros((2, 4), np.float32)))


@pytest.mark.parametrize(
    "damage",
    [
        {"count": 99},
        {"width": 3},
        {"mean": [1.0]},
        {"histogram": []},
        {"histogram": [{"bins": [5, 4], "counts": [1, 3]}, {"bins": [0], "counts": [4]}]},
        {"histogram": [{"bins": [2**40], "counts": [4]}, {"bins": [0], "counts": [4]}]},
        {"histogram": [{"bins": [1, 2], "counts": [5, -1]}, {"bins": [0], "counts": [4]}]},
        {"min": None},
        {"count": "x"},
    ],
)
def test_damaged_json_is_a_data_error(damage: dict) -> None:
    saved = FieldAccumulator.of(np.zeros((4, 2), np.float32)).to_json()
    with pytest.raises(DataError, match="not saved statistics"):
        FieldAccumulator.from_json({**saved, **damage})


def test_the_layout_in_memory_does_not_matter() -> None:
    rows = np.random.default_rng(2).normal(size=(500, 7)).astype(np.float32)
    plain = FieldAccumulator.of(rows).to_json()
    assert FieldAccumulator.of(np.asfortranarray(rows)).to_json() == plain
    assert FieldAccumulator.of(np.repeat(rows, 2, axis=0)[::2]).to_json() == plain
