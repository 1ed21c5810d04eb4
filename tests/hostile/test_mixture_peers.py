"""Faults that other loaders were seen to have: shards fewer than consumers, equal names, silent ends, stale orders."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.mixtures import make_set
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset
from wdsmix.errors import ConfigError, DataError

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
KEYS = ("source_id", "episode", "frame")


def rows(batches: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    return [row for batch in batches for row in zip(*(batch[k].tolist() for k in KEYS), strict=True)]


def mix(*folders: Path, weights: tuple[float, ...] = (), **more: object) -> dict[str, Any]:
    weights = weights or (1.0,) * len(folders)
    return {
        "sources": [
            {"name": f"s{i}", "shards": str(folder), "weight": weight}
            for i, (folder, weight) in enumerate(zip(folders, weights, strict=True))
        ],
        "window": 32,
        "block_bytes": 4000,
        **more,
    }


def test_one_shard_for_eight_ranks_and_four_workers(tmp_path: Path) -> None:
    make_set(tmp_path / "a", episodes=[16, 16], episodes_per_shard=2)
    assert len(list((tmp_path / "a").glob("*.tar"))) == 1
    ranks = [list(islice(MixtureDataset(mix(tmp_path / "a"), 2, r, 8), 4)) for r in range(8)]
    times = Counter(row for rank in ranks for row in rows(rank))
    assert len(times) == 32
    assert set(times.values()) == {2}  # 8 ranks of 8 samples: two epochs
    loader = DataLoader(MixtureDataset(mix(tmp_path / "a"), 8, steps_per_epoch=8), batch_size=None, num_workers=4)
    times = Counter(rows(list(loader)))
    assert len(times) == 32
    assert set(times.values()) == {2}


def test_five_shards_on_two_ranks_give_equal_numbers_of_batches(tmp_path: Path) -> None:
    make_set(tmp_path / "a", episodes=[7, 9, 6, 8, 4], episodes_per_shard=1, splits=["train"] * 5)
    assert len(list((tmp_path / "a").glob("*.tar"))) == 5
    for workers in (0, 2):
        counts, seen = [], []
        for rank in range(2):
            dataset = EvaluationDataset(mix(tmp_path / "a"), 4, "train", rank=rank, world_size=2)
            batches = list(DataLoader(dataset, batch_size=None, num_workers=workers))
            assert len(batches) == len(dataset)
            counts.append(len(batches))
            for batch in batches:
                keep = batch["valid"].tolist()
                seen += [row for row, valid in zip(rows([batch]), keep, strict=True) if valid]
        assert counts == [5, 5]
        assert sorted(seen) == [(0, e, t) for e, n in enumerate([7, 9, 6, 8, 4]) for t in range(n)]
        trained = [
            MixtureDataset(mix(tmp_path / "a"), 4, rank, 2, steps_per_epoch=17, num_threads=1) for rank in range(2)
        ]
        assert [sum(1 for _ in DataLoader(d, batch_size=None, num_workers=workers)) for d in trained] == [17, 17]


def test_two_sets_with_equal_shard_names(tmp_path: Path) -> None:
    make_set(tmp_path / "a" / "data", episodes=[6], dims={"state": 4, "action": 3})
    make_set(tmp_path / "b" / "data", episodes=[6], dims={"state": 4, "action": 3}, numbers=[50])
    assert {p.name for p in (tmp_path / "a/data").iterdir()} == {p.name for p in (tmp_path / "b/data").iterdir()}
    batches = list(islice(MixtureDataset(mix(tmp_path / "a/data", tmp_path / "b/data"), 6), 2))
    assert set(rows(batches)) == {(s, e, t) for s, e in ((0, 0), (1, 50)) for t in range(6)}


@pytest.mark.parametrize("place", ["member border", "inside a header", "end marker"])
def test_a_cut_shard_is_no_shorter_set(tmp_path: Path, place: str) -> None:
    make_set(tmp_path / "a", episodes=[10])
    tar = tmp_path / "a" / "train-00000.tar"
    data = tar.read_bytes()
    cut = {"member border": len(data) // 2 // 512 * 512, "inside a header": 10 * 512 + 100, "end marker": -1024}[place]
    tar.write_bytes(data[:cut])
    with pytest.raises(DataError, match=r"train-00000\.tar"):
        list(islice(MixtureDataset(mix(tmp_path / "a"), 2), 20))


def test_no_flip_goes_unseen(tmp_path: Path) -> None:
    """One byte after another over a whole frame, headers, payload and padding: each is refused."""
    make_set(tmp_path / "a", episodes=[1], size=(8, 8), dims={"state": 1, "action": 1})
    tar = tmp_path / "a" / "train-00000.tar"
    dataset = MixtureDataset(mix(tmp_path / "a"), 1, num_threads=1)
    data = bytearray(tar.read_bytes())
    assert next(iter(dataset))["step"] == 0
    for place in range(0, len(data) - 1024, 37):
        with tar.open("r+b") as file:
            file.seek(place)
            file.write(bytes([data[place] ^ 4]))
            file.flush()
            with pytest.raises(DataError, match="crc32c"):
                next(iter(dataset))
            file.seek(place)
            file.write(data[place : place + 1])
    assert next(iter(dataset))["step"] == 1


def test_other_weights_at_resume_repeat_nothing(tmp_path: Path) -> None:
    for name, first in (("a", 0), ("b", 100)):
        make_set(tmp_path / name, episodes=[40, 40], numbers=[first, first + 1], distinct_pictures=2)
    one = MixtureDataset(mix(tmp_path / "a", tmp_path / "b"), 8)
    before = list(islice(one, 8))
    two = MixtureDataset(mix(tmp_path / "a", tmp_path / "b", weights=(0.9, 0.1)), 8)
    two.load_state_dict(before[-1]["cursor"])
    after = list(islice(two, 6))  # 43 of a, 5 of b: 75 and 37 of 80 each in all, so none twice
    times = Counter(rows(before) + rows(after))
    assert len(times) == 8 * 14
    assert abs(sum(row[0] == 0 for row in rows(after)) - 0.9 * 48) < 1


def test_a_source_smaller_than_the_worker_count_keeps_its_share(tmp_path: Path) -> None:
    make_set(tmp_path / "tiny", episodes=[2])
    make_set(tmp_path / "big", episodes=[30, 30], distinct_pictures=2)
    data = mix(tmp_path / "tiny", tmp_path / "big", weights=(0.5, 0.5))
    dataset = MixtureDataset(data, 4, steps_per_epoch=10)
    drawn = rows(list(DataLoader(dataset, batch_size=None, num_workers=5)))
    assert Counter(row[0] for row in drawn) == {0: 20, 1: 20}
    assert Counter(row for row in drawn if row[0] == 0) == {(0, 0, 0): 10, (0, 0, 1): 10}


def test_each_epoch_has_an_order_of_its_own(tmp_path: Path) -> None:
    make_set(tmp_path / "a", episodes=[4] * 8, distinct_pictures=2)
    batches = list(islice(MixtureDataset(mix(tmp_path / "a", window=8, streams=2), 1), 3 * 32))
    epochs = [[(e, t) for _, e, t in rows(batches[n : n + 32])] for n in (0, 32, 64)]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    episodes = [tuple(dict.fromkeys(e for e, _ in epoch)) for epoch in epochs]
    assert len(set(episodes)) == 3  # of shards and episodes too, not of frames alone


def test_ranks_and_workers_draw_different_sequences(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_set(tmp_path / name, episodes=[20, 20], distinct_pictures=2)
    data = mix(tmp_path / "a", tmp_path / "b", weights=(0.37, 0.63))
    loader = DataLoader(MixtureDataset(data, 4), batch_size=None, num_workers=2)
    batches = list(islice(loader, 10))
    evens, odds = rows(batches[::2]), rows(batches[1::2])
    assert not set(evens) & set(odds)
    left, right = (rows(list(islice(MixtureDataset(data, 4, rank, 2), 5))) for rank in range(2))
    assert not set(left) & set(right)
    assert [row[0] for row in evens] != [row[0] for row in odds]
    assert sum(row[0] == 1 for row in evens + odds) == pytest.approx(0.63 * 40, abs=1)


@pytest.mark.parametrize("embodiment", ["penda", None])
def test_an_unknown_embodiment_is_no_domain_zero(tmp_path: Path, embodiment: str | None) -> None:
    make_set(tmp_path / "a", embodiment="panda2")
    data = mix(tmp_path / "a", embodiments={"panda": 5})
    if embodiment:
        data["sources"][0]["embodiment"] = embodiment
    with pytest.raises(ConfigError, match=rf"unknown embodiment '{embodiment or 'panda2'}'.*'panda'"):
        MixtureDataset(data, 2)


def test_statistics_of_two_embodiments_stay_apart(tmp_path: Path) -> None:
    """Sources of unlike widths, normalised each by its own; a third in a group with the first by both."""

    def far(number: int, vectors: dict[str, Any]) -> dict[str, Any]:
        return {name: v + 100 for name, v in vectors.items()}

    make_set(tmp_path / "a", dims={"state": 4, "action": 3}, embodiment="x")
    make_set(tmp_path / "b", dims={"state": 7, "action": 6}, embodiment="y", change=far)
    data = mix(tmp_path / "a", tmp_path / "b", embodiments={"x": 0, "y": 1})
    data["sample"] = {"normalize": {"state": "mean_std"}}
    for batch in islice(MixtureDataset(data, 30), 1):
        for s, width in ((0, 4), (1, 7)):
            state = batch["state"][batch["source_id"] == s][:, 0]
            assert state[:, :width].mean(dim=0).abs().max() < 1e-4  # 15 frames: an epoch
            assert torch.equal(state[:, width:], torch.zeros_like(state[:, width:]))


def test_a_frame_lost_in_a_worker_is_an_error_with_its_place(tmp_path: Path) -> None:
    make_set(tmp_path / "a", episodes=[8, 8])
    tar = tmp_path / "a" / "train-00000.tar"
    data = bytearray(tar.read_bytes())
    data[700] ^= 255
    tar.write_bytes(data)
    stream = iter(DataLoader(MixtureDataset(mix(tmp_path / "a"), 4), batch_size=None, num_workers=2))
    with pytest.raises(DataError) as caught:
        list(islice(stream, 10))
    for word in ("source 's0'", "set 'a'", "byte 0", "key 000000_000000", "crc32c", "train-00000.tar"):
        assert word in str(caught.value)
    failed = 0
    for _ in range(6):  # whoever goes on hears it again, and never meets an end
        try:
            next(stream)
        except DataError:
            failed += 1
    assert failed >= 2
    stream._shutdown_workers()  # torch waits five seconds for each where an exception still holds the iterator


def test_weights_are_no_part_of_the_batch_order_of_others(tmp_path: Path) -> None:
    make_set(tmp_path / "a", episodes=[10, 10], distinct_pictures=2)
    data = mix(tmp_path / "a")
    other = copy.deepcopy(data)
    other["sources"][0]["weight"] = 17.0
    assert rows(list(islice(MixtureDataset(data, 4), 6))) == rows(list(islice(MixtureDataset(other, 4), 6)))
