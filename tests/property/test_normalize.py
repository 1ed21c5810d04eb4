from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from wdsmix.mixture.config import Normalization
from wdsmix.mixture.normalize import Normalizer, scale_of
from wdsmix.stats import FieldAccumulator

VALUES = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1e-30, 1e-9, 5.0])
ROWS = hnp.arrays(np.float32, st.tuples(st.integers(1, 30), st.integers(1, 5)), elements=VALUES)


@given(
    rows=ROWS,
    other=VALUES,
    mode=st.sampled_from(["none", "mean_std", "min_max", "q01_q99"]),
    extra=st.integers(0, 3),
    present=st.booleans(),
)
def test_bounded_finite_and_zero_where_masked(
    rows: np.ndarray, other: float, mode: str, extra: int, present: bool
) -> None:
    how = Normalization(mode=mode)
    width = rows.shape[1] + extra
    normalizer = Normalizer([scale_of(FieldAccumulator.of(rows).finish(), how)], width)
    values = np.zeros((len(rows) + 1, 1, width), np.float32)
    values[:-1, 0, : rows.shape[1]] = rows
    values[-1, 0, : rows.shape[1]] = other  # a value that the statistics have not seen
    mask = np.empty((len(values), width), bool)
    has = np.full(len(values), present)
    normalizer.apply(values, np.zeros(len(values), np.int64), has, mask)
    assert np.isfinite(values).all()
    assert (np.abs(values) <= how.bound).all()
    assert (values[:, 0][~mask] == 0).all()
    assert not mask[:, rows.shape[1] :].any()
    assert present or not mask.any()
    assert (mask == mask[0]).all()
    if mode in ("mean_std", "min_max") and present:
        wide = rows.astype(np.float64)
        spread = np.ptp(wide, axis=0)
        assert (mask[0, : rows.shape[1]] <= (spread > 0)).all()
        if mode == "min_max":
            live = mask[0, : rows.shape[1]]
            assert (np.abs(values[:-1, 0, : rows.shape[1]].max(axis=0)[live] - 1) < 1e-6).all()
