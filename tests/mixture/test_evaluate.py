"""EvaluationDataset and goals against loops by hand."""

from __future__ import annotations

import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.batches import assert_same, episode_length, joined, naive_sample, set_row
from helpers.orders import key, mix
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset, ShardSet
from wdsmix.errors import ConfigError, ConflictError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

TRAIN = [[(0, 9), (1, 4), (3, 12), (4, 6)], [(2, 5), (3, 8), (9, 3)]]
FRAMES = [(s, e, t) for s, episodes in enumerate(TRAIN) for e, n in episodes for t in range(n)]


def rows(batch: dict[str, Any]) -> list[tuple[int, ...]]:
    return list(zip(*(batch[k].tolist() for k in ("source_id", "episode", "frame")), strict=True))


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_every_frame_once_over_ranks_and_workers(mixture: dict, workers: int, world: int) -> None:
    size = 12 // world
    whole = list(EvaluationDataset(mixture, 12, "train"))
    ranks = [EvaluationDataset(mixture, size, "train", rank=r, world_size=world) for r in range(world)]
    assert {len(rank) for rank in ranks} == {4}
    assert ranks[0].frames == 47
    parts = [list(DataLoader(rank, batch_size=None, num_workers=workers)) for rank in ranks]
    assert [len(part) for part in parts] == [4] * world
    together = [joined(step) for step in zip(*parts, strict=True)]
    for a, b in zip(together, whole, strict=True):
        assert_same(a, b)
    valid = [row for batch in together for row, keep in zip(rows(batch), batch["valid"].tolist(), strict=True) if keep]
    assert valid == FRAMES
    assert int((~together[-1]["valid"]).sum()) == 1


def test_values_equal_a_map_style_loop_again_and_again(mixture: dict, sets: Path) -> None:
    opened = [ShardSet(sets / "lift"), ShardSet(sets / "chunks")]
    dataset = EvaluationDataset(mixture, 10, "train", num_threads=3)
    for _ in range(2):
        count = 0
        for batch in dataset:
            for b, (s, e, t) in enumerate(rows(batch)):
                naive = naive_sample(
                    opened[s],
                    e,
                    t,
                    offsets=[0],
                    chunk=1,
                    cameras=["cam0", "cam1"],
                    pad_to={"state": 16, "action": 16},
                    size=(20, 16),
                )
                for name in ("images", "image_mask", "state", "state_mask", "action", "action_is_pad"):
                    assert np.array_equal(batch[name][b].numpy(), naive[name]), name
                assert batch["task"][b] == naive["task"]
                count += 1
        assert count == 50


def test_a_split_that_only_one_source_has(mixture: dict) -> None:
    with pytest.raises(ConfigError, match="no split 'val'"):
        EvaluationDataset(mixture, 4)
    dataset = EvaluationDataset(mixture, 4, sources=["lift"])
    valid = [row for b in dataset for row, keep in zip(rows(b), b["valid"].tolist(), strict=True) if keep]
    assert valid == [(0, e, t) for e, n in ((2, 1), (5, 7)) for t in range(n)]
    with pytest.raises(ConfigError, match="'lift'"):
        EvaluationDataset(mixture, 4, sources=["lif"])
    with pytest.raises(ConfigError, match="no sources"):
        EvaluationDataset(mixture, 4, sources=[])
    with pytest.raises(ConfigError, match="batch_size"):
        EvaluationDataset(mixture, 0)


def test_a_part_of_the_sources_keeps_the_samples_of_the_mixture(sets: Path) -> None:
    config = {
        "embodiments": {"panda": 5, "dual_arm": 2},
        "sources": [
            {"name": "chunks", "shards": str(sets / "chunks"), "weight": 0.3},
            {"name": "lift", "shards": str(sets / "lift"), "weight": 0.7},
        ],
    }
    whole = next(iter(EvaluationDataset(config, 4, "train")))
    dataset = EvaluationDataset(config, 4, sources=["lift"])
    batches = list(dataset)
    assert dataset.frames == 8
    assert len(batches) == 2
    for batch in batches:
        assert batch["source_id"].tolist() == [1] * 4
        assert batch["embodiment_id"].tolist() == [5] * 4
        for name in ("images", "state", "action"):
            assert batch[name].shape == whole[name].shape, name
    assert batches[0]["state"].shape[-1] == 14  # the other source's width
    alone = EvaluationDataset(config, 4, "train", sources=["chunks"])  # first in the file
    assert [row[0] for batch in alone for row in rows(batch)] == [0] * 16
    assert alone.frames == 16
    assert next(iter(alone))["images"].shape[2] == 2  # the other source's cameras


def test_it_is_scaled_by_the_train_split(mixture: dict, sets: Path) -> None:
    mixture["sample"]["normalize"] = {"state": "mean_std"}
    train = np.concatenate([e.state for e in ShardSet(sets / "lift").episodes("train")]).astype(np.float64)
    whole = ShardSet(sets / "lift")
    for batch in EvaluationDataset(mixture, 4, sources=["lift"]):
        for b, (_, e, t) in enumerate(rows(batch)):
            raw = whole.frame(set_row(whole, e, t)).state
            wanted = (raw - train.mean(axis=0)) / train.std(axis=0)
            np.testing.assert_allclose(batch["state"][b, 0, :7].numpy(), wanted, atol=1e-5)


def test_copies_left_early_and_a_changed_set(mixture: dict, tmp_path: Path, sets: Path) -> None:
    import shutil

    shutil.copytree(sets / "lift", tmp_path / "lift")
    mixture["sources"][0]["shards"] = str(tmp_path / "lift")
    dataset = EvaluationDataset(mixture, 8, "train")
    first = next(iter(dataset))
    assert_same(next(iter(dataset)), first)
    copied = pickle.dumps(dataset)
    assert_same(next(iter(pickle.loads(copied))), first)
    manifest = tmp_path / "lift" / "manifest.json"
    from helpers.mixtures import make_set

    shutil.rmtree(tmp_path / "lift")
    make_set(tmp_path / "lift", cameras=["cam0", "cam1"], size=(20, 16), embodiment="panda")
    assert manifest.is_file()
    with pytest.raises(ConflictError, match="source 'lift': the set changed"):
        next(iter(pickle.loads(copied)))


def hashed(seed: int, name: str, what: str, draw: int) -> int:
    return mix(key(seed, name, what), draw)


@pytest.mark.parametrize("fraction", [0.0, 0.4, 1.0])
def test_goals_are_those_of_a_naive_loop(mixture: dict, sets: Path, fraction: float) -> None:
    """Draw by draw in plain integers: sign, distance, row; then the goal's picture by a map-style read."""
    low, high = 2, 5
    mixture["sample"]["goal"] = {"min_offset": low, "max_offset": high, "negative_goal_fraction": fraction}
    opened = [ShardSet(sets / "lift"), ShardSet(sets / "chunks")]
    names = ["lift", "chunks"]
    dataset = MixtureDataset(mixture, 12, num_threads=2)
    order = dataset.catalog.new_order()
    negatives = 0
    for batch in islice(dataset, 8):
        step = order.step(12)
        for b, (s, e, t) in enumerate(rows(batch)):
            draw, frames = int(step.draw[b]), dict(TRAIN[s])
            every = [(k, i) for k, n in TRAIN[s] for i in range(n)]
            negative = hashed(3, names[s], "goal sign", draw) >> 1 < round(fraction * 2**63)
            if negative:
                others = [row for row in every if row[0] != e]
                goal = others[(hashed(3, names[s], "goal row", draw) >> 32) * len(others) >> 32]
                offset = -1
            else:
                left = frames[e] - 1 - t
                least, most = min(low, left), min(high, left)
                offset = least + ((hashed(3, names[s], "goal offset", draw) >> 32) * (most - least + 1) >> 32)
                goal = (e, t + offset)
            negatives += negative
            assert bool(batch["goal_negative"][b]) == negative
            assert int(batch["goal_offset"][b]) == offset
            assert goal[1] < episode_length(opened[s], goal[0])
            frame = opened[s].frame(set_row(opened[s], *goal))
            for c, slot in enumerate(("cam0", "cam1")):
                assert bool(batch["goal_image_mask"][b, c]) == (slot in frame.images)
                pixels = frame.images.get(slot, np.zeros((16, 20, 3), np.uint8))
                assert np.array_equal(batch["goal_images"][b, c].permute(1, 2, 0).numpy(), pixels)
    assert {0.0: negatives == 0, 0.4: 20 < negatives < 60, 1.0: negatives == 96}[fraction]


def test_goals_do_not_depend_on_ranks_or_workers_and_exist_in_evaluation(mixture: dict) -> None:
    mixture["sample"]["goal"] = {"max_offset": 3, "negative_goal_fraction": 0.3}
    expected = list(islice(MixtureDataset(mixture, 8), 4))
    ranks = [iter(MixtureDataset(mixture, 2, r, 4)) for r in range(4)]
    for batch in expected:
        assert_same(joined([next(rank) for rank in ranks]), batch)
    one = list(EvaluationDataset(mixture, 8, "train"))
    two = list(DataLoader(EvaluationDataset(mixture, 8, "train"), batch_size=None, num_workers=2))
    for a, b in zip(one, two, strict=True):
        assert_same(a, b)
    assert all(batch["goal_images"].shape == (8, 2, 3, 16, 20) for batch in one)


def test_goals_take_part_in_the_picture_size(mixture: dict) -> None:
    mixture["sample"]["goal"] = {"max_offset": 3}
    mixture["sample"]["image_size"] = 12
    batch = next(iter(MixtureDataset(mixture, 4)))
    assert batch["goal_images"].shape == (4, 2, 3, 12, 12)
    assert batch["goal_images"].permute(0, 1, 3, 4, 2).is_contiguous()
    same = (batch["goal_offset"] == 0).nonzero()[:, 0]
    for b in same.tolist():
        assert (batch["goal_images"][b] == batch["images"][b, 0]).all()
