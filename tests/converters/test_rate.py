"""Which frames are kept, and what the vectors between them become."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wdsmix.converters.rate import check_kinds, kept_frames, kept_rows, thin_vector, true_rate

from wdsmix.episode import VectorSpec
from wdsmix.errors import ConfigError


@pytest.mark.parametrize(
    ("fps", "hz", "mode", "rows", "rate"),
    [
        (30, 0, "stride", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], 30),
        (30, 10, "stride", [0, 3, 6, 9], 10),
        (30, 12, "stride", [0, 2, 4, 6, 8], 15),
        (30, 60, "stride", list(range(10)), 30),
        (30, 1e-300, "stride", [0], None),
        (30, 12, "nearest", [0, 3, 5, 8], 12),
        (30, 20, "nearest", [0, 2, 3, 5, 6, 8, 9], 20),
        (30, 45, "nearest", list(range(10)), 30),
        (30, 0, "nearest", list(range(10)), 30),
        (29.97, 10, "stride", [0, 3, 6, 9], 9.99),
    ],
)
def test_examples(fps, hz, mode, rows, rate):
    assert kept_rows(10, fps, hz, mode).tolist() == rows
    if rate is not None:
        assert true_rate(fps, hz, mode) == pytest.approx(rate)


@given(
    frames=st.integers(1, 3000),
    fps=st.floats(0.5, 500),
    hz=st.floats(0.01, 600),
    mode=st.sampled_from(["stride", "nearest"]),
)
def test_properties(frames, fps, hz, mode):
    rows = kept_rows(frames, fps, hz, mode)
    assert rows[0] == 0
    assert rows[-1] < frames
    assert (np.diff(rows) > 0).all()
    assert kept_frames(frames, fps, hz, mode) == len(rows)
    rate = true_rate(fps, hz, mode)
    assert abs(rows - np.arange(len(rows)) * fps / rate).max() <= 0.5 + 1e-6
    assert (len(rows) + 0.5) * fps / rate >= frames - 1, "it goes on to the end"


@given(frames=st.integers(1, 40), step=st.integers(1, 7), data=st.data())
def test_sums_reach_up_to_the_next_kept_row(frames, step, data):
    values = np.array(
        data.draw(st.lists(st.floats(-9, 9, width=32), min_size=3 * frames, max_size=3 * frames)), np.float32
    ).reshape(frames, 3)
    rows = kept_rows(frames, 30, 30 / step, "stride")
    made = thin_vector("action", values, ("delta", "absolute", "unknown"), rows)
    ends = [*rows[1:].tolist(), frames]
    for k, (start, end) in enumerate(zip(rows.tolist(), ends, strict=True)):
        assert made[k, 0] == pytest.approx(math.fsum(values[start:end, 0].tolist()), rel=1e-6, abs=1e-6)
        assert (made[k, 1:] == values[start, 1:]).all()
    assert made.dtype == np.float32
    assert thin_vector("action", values, (), rows)[:, 0].tolist() == values[rows, 0].tolist()
    done = thin_vector("done", values[:, :1], (), rows)
    assert done[:, 0].tolist() == [values[a:b, 0].max() for a, b in zip(rows.tolist(), ends, strict=True)]
    reward = thin_vector("reward", values[:, :1], (), rows)
    assert reward[:, 0] == pytest.approx(
        [math.fsum(values[a:b, 0].tolist()) for a, b in zip(rows.tolist(), ends, strict=True)], rel=1e-6, abs=1e-6
    )


def test_all_rows_are_kept_to_the_bit():
    values = np.random.default_rng(0).standard_normal((9, 2)).astype(np.float32)
    assert thin_vector("action", values, ("delta", "delta"), np.arange(9)) is values


def test_rotation_deltas_are_refused():
    specs = {"action": VectorSpec(names=("x", "rx", "grip"), kinds=("delta", "delta_rotation", "absolute"))}
    with pytest.raises(ConfigError, match=r"action holds rotation deltas \(rx\).*--hz 0"):
        check_kinds(specs, 30, 10, "stride")
    with pytest.raises(ConfigError):
        check_kinds(specs, 30, 29, "nearest")
    check_kinds(specs, 30, 0, "stride")
    check_kinds(specs, 30, 29, "stride")
    check_kinds(specs, 30, 90, "nearest")
