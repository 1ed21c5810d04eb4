"""``on_error: skip``: a frame that can't be read is replaced, marked, counted; the same one everywhere."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.batches import assert_same, joined, naive_sample
from helpers.mixtures import make_set
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset, ShardSet
from wdsmix.errors import DataError
from wdsmix.mixture.spares import nearest_first

EPISODES = [6, 5, 7, 4]
BAD = {(0, 2), (0, 3), (2, 0), (3, 3)}


def damage(folder: Path, frames: set[tuple[int, int]], part: str = "picture") -> None:
    opened = ShardSet(folder)
    for name in opened.manifest.shards:
        shard = opened.shard(opened.manifest.shards.index(name))
        with (folder / f"{name}.tar").open("r+b") as tar:
            for row in range(len(shard)):
                if (int(shard.episode[row]), int(shard.frame[row])) in frames:
                    back = int(shard.length[row]) - 500
                    tar.seek(int(shard.offset[row]) + (700 if part == "picture" else back))
                    tar.write(b"\xaa\x55\xaa\x55")


@pytest.fixture
def good(tmp_path: Path) -> Path:
    make_set(tmp_path / "good", episodes=EPISODES, cameras=["cam0", "cam1"], extras={"score": 3}, tasks=["a", "b", "c"])
    return tmp_path / "good"


@pytest.fixture
def bad(good: Path) -> Path:
    shutil.copytree(good, good.parent / "bad")
    damage(good.parent / "bad", BAD)
    return good.parent / "bad"


def config(folder: Path, **more: object) -> dict[str, Any]:
    return {
        "sources": [{"name": "robot", "shards": str(folder), "weight": 1}],
        "sample": {
            "cameras": ["cam0", "cam1"],
            "history": 1,
            "extras": ["score", "timestamp"],
            **more.pop("sample", {}),
        },
        "on_error": "skip",
        "block_bytes": 10**7,  # the two episodes of a shard are one block
        "window": 16,
        **more,
    }


def spare_of(episode: int, frame: int, bad: set[tuple[int, int]]) -> tuple[int, int]:
    """By hand: the nearest good frame among the two episodes of the shard, the later of two at one distance."""
    pair = [(e, t) for e in (episode // 2 * 2, episode // 2 * 2 + 1) for t in range(EPISODES[e])]
    place = pair.index((episode, frame))
    return min((abs(i - place), -i, other) for i, other in enumerate(pair) if other not in bad)[2]


@pytest.mark.parametrize("threads", [1, 3])
def test_the_nearest_good_frame_of_the_block_stands_in(good: Path, bad: Path, threads: int) -> None:
    whole = ShardSet(good)
    replaced = 0
    for wanted, found in zip(
        islice(MixtureDataset(config(good), 11), 8), MixtureDataset(config(bad), 11, num_threads=threads), strict=False
    ):
        assert found["cursor"]["order"]["counts"] == wanted["cursor"]["order"]["counts"]
        assert not wanted["replaced"].any()
        for b in range(11):
            asked = (int(wanted["episode"][b]), int(wanted["frame"][b]))
            expected = spare_of(*asked, BAD) if asked in BAD else asked
            assert bool(found["replaced"][b]) == (asked in BAD)
            replaced += asked in BAD
            assert (int(found["episode"][b]), int(found["frame"][b])) == expected
            naive = naive_sample(
                whole,
                *expected,
                offsets=[0],
                chunk=1,
                cameras=["cam0", "cam1"],
                pad_to={"state": 4, "action": 3},
                size=(24, 24),
            )
            for name in ("images", "image_mask", "state", "action", "observation_is_pad", "action_is_pad"):
                assert np.array_equal(found[name][b].numpy(), naive[name]), name
            assert found["task"][b] == naive["task"]
            assert found["extras"]["timestamp"][b] == expected[1] / 10
            assert found["extras"]["score"][b] == 3
    assert replaced >= 12


def test_ranks_workers_and_reruns_agree(bad: Path) -> None:
    data = config(bad, sample={"goal": {"max_offset": 3, "negative_goal_fraction": 0.5}, "history": 2})
    expected = list(islice(MixtureDataset(data, 8), 9))
    assert sum(int(batch["replaced"].sum()) for batch in expected) > 9  # windows and goals touch more bad frames
    for a, b in zip(DataLoader(MixtureDataset(data, 8), batch_size=None, num_workers=2), expected, strict=False):
        assert_same(a, b)
        if a["step"] == 8:
            break
    ranks = [iter(MixtureDataset(data, 4, rank, 2, num_threads=2)) for rank in range(2)]
    for batch in expected:
        assert_same(joined([next(rank) for rank in ranks]), batch)


def test_a_damaged_json_member_is_replaced_too(bad: Path, good: Path) -> None:
    shutil.rmtree(bad)
    shutil.copytree(good, bad)
    damage(bad, {(1, 1)}, part="json")
    data = config(bad, sample={"cameras": []})  # no picture is read: only the extras see it
    (batch,) = islice(MixtureDataset(data, sum(EPISODES)), 1)
    assert batch["replaced"].sum() == 1
    b = int(batch["replaced"].nonzero())
    assert (int(batch["episode"][b]), int(batch["frame"][b])) == (1, 2)
    assert batch["extras"]["timestamp"][b] == 0.2


def test_the_limit_stops_the_run(bad: Path) -> None:
    epoch = sum(EPISODES)
    stream = iter(MixtureDataset(config(bad, max_skipped=2 * len(BAD) - 1), epoch))
    dataset = next(stream)
    assert dataset["replaced"].sum() == len(BAD)
    with pytest.raises(DataError, match=r"more than 7 samples could not be read") as caught:
        next(stream)
    assert caught.value.hint is not None
    assert "max_skipped" in caught.value.hint
    for _ in range(2):
        with pytest.raises(DataError, match="more than 7"):  # not an end that looks like one
            next(stream)
    with pytest.raises(DataError, match="more than 0"):
        next(iter(MixtureDataset(config(bad, max_skipped=0), epoch)))


def test_metrics_count_what_was_replaced(bad: Path) -> None:
    for workers in (0, 2):
        dataset = MixtureDataset(config(bad), sum(EPISODES), steps_per_epoch=3)
        list(DataLoader(dataset, batch_size=None, num_workers=workers))
        assert dataset.metrics()["replaced"] == 3 * len(BAD)


def test_a_block_without_a_good_frame(good: Path) -> None:
    damage(good, {(e, t) for e in (0, 1) for t in range(EPISODES[e])})
    with pytest.raises(DataError, match=r"no readable frame in the block.*11 frames"):
        next(iter(MixtureDataset(config(good), 22)))


@pytest.mark.parametrize("how", ["cut", "gone", "table"])
def test_a_damaged_shard_is_not_skipped(good: Path, how: str) -> None:
    tar = good / "train-00001.tar"
    if how == "cut":
        tar.write_bytes(tar.read_bytes()[:-1024])
    elif how == "gone":
        tar.unlink()
    else:
        table = good / "train-00001.frames.arrow"
        data = bytearray(table.read_bytes())
        data[len(data) // 2] ^= 1
        table.write_bytes(data)
    with pytest.raises(DataError, match="train-00001"):
        next(iter(MixtureDataset(config(good), 22)))


def test_evaluation_leaves_it_out(bad: Path) -> None:
    for workers in (0, 2):
        dataset = EvaluationDataset(config(bad), 5, "train")
        frames, stand_ins = [], 0
        for batch in DataLoader(dataset, batch_size=None, num_workers=workers):
            assert not (batch["valid"] & batch["replaced"]).any()
            keep = batch["valid"].tolist()
            rows = zip(batch["episode"].tolist(), batch["frame"].tolist(), strict=True)
            frames += [row for row, valid in zip(rows, keep, strict=True) if valid]
            stand_ins += int(batch["replaced"].sum())
        every = [(e, t) for e, n in enumerate(EPISODES) for t in range(n)]
        assert frames == [row for row in every if row not in BAD]
        filling = -len(every) % 5
        assert stand_ins == len(BAD) + (filling if every[-1] in BAD else 0)


def test_raise_is_the_default(bad: Path) -> None:
    data = config(bad)
    del data["on_error"]
    with pytest.raises(DataError, match="crc32c"):
        list(islice(MixtureDataset(data, 22), 1))


def test_a_damaged_goal_alone_gets_another_goal(good: Path) -> None:
    """Goals four frames on; the last frame of each episode but one is bad: most samples keep their own frame."""
    damage(good, {(1, 4)})
    data = config(good, sample={"goal": {"min_offset": 1, "max_offset": 9, "negative_goal_fraction": 0.2}})
    kept = moved = 0
    for found in islice(MixtureDataset(data, 22), 6):
        for b in found["replaced"].nonzero()[:, 0].tolist():
            own = found["episode"][b] == 1 and found["frame"][b] == 4
            assert not own
            if not found["goal_negative"][b]:
                goal = int(found["frame"][b] + found["goal_offset"][b])
                assert (int(found["episode"][b]), goal) != (1, 4)
                kept += int(found["episode"][b]) == 1
            moved += 1
    assert kept
    assert moved > 6


@pytest.mark.parametrize(("row", "rows"), [(3, range(0, 7)), (0, range(0, 3)), (5, range(2, 6)), (4, range(4, 5))])
def test_order_of_the_spares(row: int, rows: range) -> None:
    wanted = sorted((other for other in rows if other != row), key=lambda other: (abs(other - row), -other))
    assert list(nearest_first(row, rows)) == wanted
