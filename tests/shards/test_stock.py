"""`ShardSet.webdataset`: the stock library over a set."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.mixtures import make_set
from torch.utils.data import DataLoader

from wdsmix import ShardSet
from wdsmix.errors import ConfigError


@pytest.fixture
def opened(tmp_path: Path) -> ShardSet:
    make_set(tmp_path / "a", episodes=[5, 3, 4], splits=["train", "val", "train"], episodes_per_shard=1)
    return ShardSet(tmp_path / "a")


@pytest.mark.parametrize("split", [None, "train", "val"])
def test_samples_are_the_frames(opened: ShardSet, split: str | None) -> None:
    wanted = [frame for frame in opened if split in (None, frame.split)]
    found = list(opened.webdataset(split))
    assert [sample["__key__"] for sample in found] == [frame.key for frame in wanted]
    for sample, frame in zip(found, wanted, strict=True):
        assert np.array_equal(np.load(io.BytesIO(sample["state.npy"])), frame.vectors["state"])
        assert json.loads(sample["json"])["task"] == frame.task


def test_its_own_decoding_and_workers(opened: ShardSet) -> None:
    stream = opened.webdataset("train").decode("rgb8").to_tuple("cam0.jpg", "action.npy")
    images = [image for image, _ in DataLoader(stream, batch_size=None, num_workers=2)]
    assert len(images) == 9
    assert all(image.shape == (24, 24, 3) for image in images)


def test_options_go_through(opened: ShardSet) -> None:
    keys = [sample["__key__"] for sample in opened.webdataset("train", shardshuffle=10, seed=1)]
    assert len(set(keys)) == 9


def test_what_can_not_be(opened: ShardSet, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no split 'test'"):
        opened.webdataset("test")
    odd = tmp_path / "b{1..3}"
    make_set(odd)
    with pytest.raises(ConfigError, match="pattern"):
        ShardSet(odd).webdataset()


def test_of_chosen_shards_only(opened: ShardSet) -> None:
    name = opened.manifest.shards[0]
    some = ShardSet(opened.path, shards=[name])
    assert {sample["__url__"] for sample in some.webdataset()} == {str(opened.path / f"{name}.tar")}
