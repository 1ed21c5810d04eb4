from __future__ import annotations

import numpy as np
import pytest

from wdsmix.mixture.config import Normalization
from wdsmix.mixture.normalize import Normalizer, Scale, scale_of
from wdsmix.stats import FieldAccumulator, merge_stats


def rows(count: int = 4000, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal([0, 5, -100, 1e-3], [1, 0.01, 30, 2], (count, 4)).astype(np.float32)


def normalize(data: np.ndarray, mode: str, clip: float | None = None, width: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """One source's rows as a batch of single-step samples, padded."""
    scale = scale_of(FieldAccumulator.of(data).finish(), Normalization(mode=mode, clip=clip))
    normalizer = Normalizer([scale], width)
    values = np.zeros((len(data), 1, width), np.float32)
    values[:, 0, : data.shape[1]] = data
    mask = np.empty((len(data), width), bool)
    normalizer.apply(values, np.zeros(len(data), np.int64), np.ones(len(data), bool), mask)
    return values[:, 0], mask


def test_mean_std_against_numpy() -> None:
    data = rows()
    values, mask = normalize(data, "mean_std", clip=float("inf"))
    wide = data.astype(np.float64)
    expected = (wide - wide.mean(axis=0)) / wide.std(axis=0)
    np.testing.assert_allclose(values[:, :4], expected, rtol=1e-5, atol=1e-6)
    assert mask[:, :4].all()
    assert not mask[:, 4:].any()
    assert (values[:, 4:] == 0).all()


def test_mean_std_is_clipped_at_10_by_default() -> None:
    data = np.zeros((10_000, 1), np.float32)
    data[0] = 1
    values, _ = normalize(data, "mean_std")
    assert values.max() == 10


def test_min_max_against_numpy() -> None:
    data = rows()
    values, _ = normalize(data, "min_max")
    wide = data.astype(np.float64)
    low, high = wide.min(axis=0), wide.max(axis=0)
    np.testing.assert_allclose(values[:, :4], 2 * (wide - low) / (high - low) - 1, atol=1e-6)
    assert values.min() == -1
    assert values.max() == 1


@pytest.mark.parametrize(("clip", "bound"), [(None, 1.0), (1.5, 1.5)])
def test_q01_q99_against_numpy(clip: float | None, bound: float) -> None:
    data = rows()[:, [0, 2, 3]]
    values, _ = normalize(data, "q01_q99", clip)
    wide = data.astype(np.float64)
    low, high = np.quantile(wide, 0.01, axis=0), np.quantile(wide, 0.99, axis=0)
    expected = np.clip(2 * (wide - low) / (high - low) - 1, -bound, bound)
    np.testing.assert_allclose(values[:, :3], expected, atol=6e-3)  # stored quantiles are within 0.1 %
    assert np.abs(values).max() == np.float32(bound)


def test_none_keeps_every_bit() -> None:
    data = np.array([[1.1, -0.0, 1e-42, 3e38]], np.float32)
    values, mask = normalize(data, "none", width=4)
    assert (values.view(np.int32) == data.view(np.int32)).all()
    assert mask.all()


@pytest.mark.parametrize("mode", ["mean_std", "min_max", "q01_q99"])
@pytest.mark.parametrize("level", [0.0, 5.0, -1e6])
def test_a_dimension_without_spread_is_zero_and_masked(mode: str, level: float) -> None:
    data = rows()
    data[:, 1] = level
    values, mask = normalize(data, mode)
    assert (values[:, 1] == 0).all()
    assert mask[0].tolist() == [True, False, True, True, False, False]


@pytest.mark.parametrize("mode", ["mean_std", "min_max"])
def test_std_of_1e_9_counts_as_none(mode: str) -> None:
    data = rows()
    data[:, 0] = np.random.default_rng(1).normal(0, 1e-9, len(data))
    values, mask = normalize(data, mode)
    assert (values[:, 0] == 0).all()
    assert not mask[:, 0].any()
    other = np.array([[1e9, 5, -100, 0]], np.float32)
    scale = scale_of(FieldAccumulator.of(data).finish(), Normalization(mode=mode, clip=float("inf")))
    batch = other[:, None, :].copy()
    Normalizer([scale], 4).apply(batch, np.zeros(1, np.int64), np.ones(1, bool), np.empty((1, 4), bool))
    assert batch[0, 0, 0] == 0  # also for a value that was never seen


def test_small_but_real_spread_is_kept() -> None:
    data = rows()
    data[:, 0] = np.random.default_rng(1).normal(0, 1e-4, len(data))
    values, mask = normalize(data, "mean_std")
    assert mask[:, 0].all()
    np.testing.assert_allclose(values[:, 0].std(), 1, rtol=1e-4)


def test_a_gripper_that_hardly_ever_closes_keeps_its_range() -> None:
    data = np.zeros((1000, 1), np.float32)
    data[:3] = 1
    stats = FieldAccumulator.of(data).finish()
    scale = scale_of(stats, Normalization(mode="q01_q99"))
    assert scale.ranged.tolist() == [True]
    values, mask = normalize(data, "q01_q99", width=1)
    assert mask.all()
    assert np.unique(values).tolist() == [-1, 1]


def test_quantiles_too_close_to_resolve_use_the_range() -> None:
    data = np.linspace(1.0, 1.001, 1000, dtype=np.float32).reshape(-1, 1)
    scale = scale_of(FieldAccumulator.of(data).finish(), Normalization(mode="q01_q99"))
    assert scale.ranged.tolist() == [True]
    np.testing.assert_allclose(scale.centre, 1.0005, rtol=1e-6)
    np.testing.assert_allclose(1 / scale.factor, 0.0005, rtol=1e-3)


def test_each_source_has_its_own_scale_and_width() -> None:
    first, second = rows(seed=1), rows(seed=2)[:, :2] * np.float32(7)
    scales = [
        scale_of(FieldAccumulator.of(first).finish(), Normalization(mode="mean_std")),
        scale_of(FieldAccumulator.of(second).finish(), Normalization(mode="min_max")),
        Scale.identity(1),
        None,
    ]
    batch = np.zeros((5, 2, 5), np.float32)
    batch[0, :, :4] = first[:2]
    batch[1, :, :2] = second[:2]
    batch[2, :, :1] = 3.5
    batch[4, :, :4] = first[:2]
    mask = np.empty((5, 5), bool)
    present = np.array([True, True, True, True, False])
    raw = batch.copy()
    Normalizer(scales, 5).apply(batch, np.array([0, 1, 2, 3, 0]), present, mask)
    wide = first.astype(np.float64)
    np.testing.assert_allclose(batch[0, :, :4], (raw[0, :, :4] - wide.mean(0)) / wide.std(0), rtol=1e-4, atol=1e-5)
    low, high = second.min(0).astype(np.float64), second.max(0).astype(np.float64)
    np.testing.assert_allclose(batch[1, :, :2], 2 * (raw[1, :, :2] - low) / (high - low) - 1, atol=1e-5)
    assert batch[2, :, 0].tolist() == [3.5, 3.5]
    assert mask.sum(axis=1).tolist() == [4, 2, 1, 0, 0]
    assert (batch[~np.broadcast_to(mask[:, None, :], batch.shape)] == 0).all()
    assert not batch[4].any()


def test_merged_statistics_normalise_like_numpy_over_both() -> None:
    parts = [rows(500, 1), rows(1500, 2) + np.float32(3)]
    merged = merge_stats([FieldAccumulator.of(part).finish() for part in parts])
    scale = scale_of(merged, Normalization(mode="mean_std"))
    both = np.concatenate(parts).astype(np.float64)
    np.testing.assert_allclose(scale.centre, both.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(1 / scale.factor, both.std(axis=0), rtol=1e-9)
