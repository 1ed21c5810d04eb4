from __future__ import annotations

import copy
import json
import multiprocessing as mp
import pickle
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from helpers.batches import assert_same, joined, naive_sample
from helpers.mixtures import make_set
from torch.utils.data import DataLoader

from wdsmix import MixtureDataset, ShardSet
from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.catalog import open_catalog
from wdsmix.mixture.config import MixtureConfig


def take(dataset: Any, count: int) -> list[dict[str, Any]]:
    return list(islice(iter(dataset), count))


def with_sample(mixture: dict, **sample: object) -> dict:
    data = copy.deepcopy(mixture)
    data["sample"].update(sample)
    return data


RICH = {
    "observation_offsets": [-2, 0, 1],
    "action_chunk": 5,
    "pad_to": {"state": 16, "action": 16, "text_emb": 8},
    "reward": True,
    "done": True,
    "extras": ["score", "task_zh", "timestamp", "nothing"],
}


def test_shapes_and_types(mixture: dict) -> None:
    (batch,) = take(MixtureDataset(with_sample(mixture, **RICH), 6, num_threads=1), 1)
    expected = {
        "images": (torch.uint8, (6, 3, 2, 3, 16, 20)),
        "image_mask": (torch.bool, (6, 3, 2)),
        "state": (torch.float32, (6, 3, 16)),
        "state_mask": (torch.bool, (6, 16)),
        "action": (torch.float32, (6, 5, 16)),
        "action_mask": (torch.bool, (6, 16)),
        "action_is_pad": (torch.bool, (6, 5)),
        "observation_is_pad": (torch.bool, (6, 3)),
        "text_emb": (torch.float32, (6, 3, 8)),
        "text_emb_mask": (torch.bool, (6, 8)),
        "reward": (torch.float32, (6, 3)),
        "reward_mask": (torch.bool, (6,)),
        "done": (torch.float32, (6, 3)),
        "done_mask": (torch.bool, (6,)),
        "embodiment_id": (torch.int64, (6,)),
        "source_id": (torch.int64, (6,)),
        "episode": (torch.int64, (6,)),
        "frame": (torch.int64, (6,)),
    }
    found = {name: (v.dtype, tuple(v.shape)) for name, v in batch.items() if isinstance(v, torch.Tensor)}
    assert found == expected
    assert batch.keys() - expected.keys() == {"task", "extras", "step", "cursor"}
    assert batch["step"] == 0
    assert batch["images"].permute(0, 1, 2, 4, 5, 3).is_contiguous()  # NHWC in memory
    assert len(json.dumps(batch["cursor"])) < 1500
    assert len({value.untyped_storage().data_ptr() for value in batch.values() if isinstance(value, torch.Tensor)}) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_every_sample_equals_a_map_style_read(mixture: dict, sets: Path, threads: int) -> None:
    data = with_sample(mixture, **RICH)
    opened = [ShardSet(sets / "lift"), ShardSet(sets / "chunks")]
    seen: set[tuple[int, int, int]] = set()
    for batch in take(MixtureDataset(data, 16, num_threads=threads), 12):
        for b in range(16):
            source = int(batch["source_id"][b])
            where = (int(batch["episode"][b]), int(batch["frame"][b]))
            seen.add((source, *where))
            wanted = naive_sample(
                opened[source],
                *where,
                offsets=RICH["observation_offsets"],
                chunk=5,
                cameras=["cam0", "cam1"],
                pad_to={"state": 16, "action": 16, "text_emb": 8, "reward": 1, "done": 1},
                size=(20, 16),
            )
            for name in ("images", "image_mask", "observation_is_pad", "action_is_pad"):
                assert np.array_equal(batch[name][b].numpy(), wanted[name]), name
            for name in ("state", "action", "text_emb"):
                assert np.array_equal(batch[name][b].numpy(), wanted[name]), name
                assert np.array_equal(batch[f"{name}_mask"][b].numpy(), wanted[f"{name}_mask"]), name
            for name in ("reward", "done"):
                assert np.array_equal(batch[name][b].numpy(), wanted[name][:, 0])
                assert bool(batch[f"{name}_mask"][b]) == bool(wanted[f"{name}_mask"][0])
            assert batch["task"][b] == wanted["task"]
            assert int(batch["embodiment_id"][b]) == (5, 2)[source]
            assert batch["extras"]["score"][b] == (3 if source == 0 else None)
            assert batch["extras"]["task_zh"][b] == ("抓" if source == 0 else None)
            assert batch["extras"]["timestamp"][b] == where[1] / 10
            assert batch["extras"]["nothing"][b] is None
    frames = {0: [(0, 9), (1, 4), (3, 12), (4, 6)], 1: [(2, 5), (3, 8), (9, 3)]}
    assert seen == {(s, e, t) for s, episodes in frames.items() for e, n in episodes for t in range(n)}


def test_each_frame_once_an_epoch_and_shares_exact(mixture: dict) -> None:
    drawn: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    n = 0
    for batch in take(MixtureDataset(mixture, 8), 40):
        for source, episode, frame in zip(
            batch["source_id"].tolist(), batch["episode"].tolist(), batch["frame"].tolist(), strict=True
        ):
            drawn[source].append((episode, frame))
        n += 8
        assert abs(len(drawn[0]) - 0.7 * n) < 1
        assert batch["cursor"]["order"]["counts"] == {"lift": len(drawn[0]), "chunks": len(drawn[1])}
    # Within a global batch samples are sorted by stream, so an epoch's border is only clear in the sums.
    for size, rows in ((31, drawn[0]), (16, drawn[1])):
        times = Counter(rows)
        assert len(times) == size
        assert max(times.values()) - min(times.values()) <= 1


def test_normalised_values_against_numpy(mixture: dict, sets: Path) -> None:
    data = with_sample(mixture, action_chunk=3, normalize={"state": "mean_std", "action": "min_max"})
    data["sources"][1]["normalize"] = {"action": "none"}
    opened = [ShardSet(sets / "lift"), ShardSet(sets / "chunks")]
    train = []
    for one in opened:
        keep = list(one.episodes("train"))
        train.append({k: np.concatenate([getattr(e, k) for e in keep]).astype(np.float64) for k in ("state", "action")})
    for batch in take(MixtureDataset(data, 16), 4):
        for b in range(16):
            source = int(batch["source_id"][b])
            raw = naive_sample(
                opened[source],
                int(batch["episode"][b]),
                int(batch["frame"][b]),
                offsets=[0],
                chunk=3,
                cameras=[],
                pad_to={"state": 16, "action": 16},
                size=(20, 16),
            )
            d = opened[source].manifest.vectors["state"].width
            rows = train[source]["state"]
            expected = (raw["state"][:, :d] - rows.mean(axis=0)) / rows.std(axis=0)
            np.testing.assert_allclose(batch["state"][b, :, :d].numpy(), expected, atol=1e-5)
            d = opened[source].manifest.vectors["action"].width
            rows = train[source]["action"]
            low, high = rows.min(axis=0), rows.max(axis=0)
            expected = raw["action"][:, :d]
            if source == 0:
                expected = 2 * (expected - low) / (high - low) - 1
            np.testing.assert_allclose(batch["action"][b, :, :d].numpy(), expected, atol=1e-5)
        for name in ("state", "action"):
            dead = ~batch[f"{name}_mask"][:, None, :].expand_as(batch[name])
            assert (batch[name][dead] == 0).all()


def test_a_frozen_dimension_is_masked(tmp_path: Path) -> None:
    def freeze(number: int, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        vectors["state"][:, 1] = 5.0
        return vectors

    make_set(tmp_path / "a", change=freeze)
    data = {
        "sources": [{"name": "a", "shards": str(tmp_path / "a"), "weight": 1}],
        "sample": {"normalize": {"state": "mean_std"}, "pad_to": {"state": 6}},
    }
    (batch,) = take(MixtureDataset(data, 8), 1)
    assert (batch["state_mask"] == torch.tensor([True, False, True, True, False, False])).all()
    assert (batch["state"][~batch["state_mask"][:, None, :]] == 0).all()


@pytest.mark.parametrize("sample", [{}, {"history": 2, "action_chunk": 4, "normalize": {"action": "q01_q99"}}])
def test_world_sizes_give_the_same_global_batches(mixture: dict, sample: dict) -> None:
    data = with_sample(mixture, **sample)
    whole = take(MixtureDataset(data, 16, rank=0, world_size=1, num_threads=1), 6)
    for world in (2, 4, 8):
        ranks = [MixtureDataset(data, 16 // world, rank=r, world_size=world, num_threads=1) for r in range(world)]
        streams = [iter(rank) for rank in ranks]
        for expected in whole:
            assert_same(joined([next(stream) for stream in streams]), expected)
        assert all(rank.state_dict() == ranks[0].state_dict() for rank in ranks)


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "method"), [(0, None), (1, "fork"), (3, "fork"), (3, "spawn")])
def test_workers_give_the_same_batches(mixture: dict, workers: int, method: str | None) -> None:
    expected = take(MixtureDataset(mixture, 4), 8)
    dataset = MixtureDataset(mixture, 4)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=method)
    stream = iter(loader)
    found = [next(stream) for _ in range(5)]
    # The parent follows what arrived; the cursor is exact.
    resumed = MixtureDataset(mixture, 4)
    resumed.load_state_dict(dataset.state_dict(cursor=found[4]["cursor"]))
    for a, b in zip([*found, *take(resumed, 3)], expected, strict=True):
        assert_same(a, b)
    if workers:
        assert 20 <= dataset.state_dict()["order"]["samples"] <= 20 + 4 * 2 * workers
    else:
        assert dataset.state_dict() == found[4]["cursor"]


def test_workers_continue_from_a_loaded_state(mixture: dict) -> None:
    expected = take(MixtureDataset(mixture, 4), 9)
    dataset = MixtureDataset(mixture, 4)
    dataset.load_state_dict(expected[2]["cursor"])
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    for a, b in zip(islice(loader, 6), expected[3:], strict=True):
        assert_same(a, b)


def _resume(path: str, state: str, rank: int, world: int, batch_size: int, count: int, out: Any) -> None:
    dataset = MixtureDataset(path, batch_size, rank=rank, world_size=world, num_threads=1)
    dataset.load_state_dict(json.loads(state))
    out.put((rank, pickle.dumps(take(dataset, count))))


def test_resume_in_other_processes_with_another_world_size(mixture: dict, tmp_path: Path) -> None:
    path = tmp_path / "mixture.yaml"
    path.write_text(yaml.safe_dump(mixture), encoding="utf-8")
    whole = MixtureDataset(path, 8)
    take(whole, 5)
    state = json.dumps(whole.state_dict())
    expected = take(whole, 4)
    assert [batch["step"] for batch in expected] == [5, 6, 7, 8]
    context = mp.get_context("spawn")
    out = context.Queue()
    processes = [context.Process(target=_resume, args=(str(path), state, r, 2, 4, 4, out)) for r in range(2)]
    for process in processes:
        process.start()
    parts = dict(out.get(timeout=120) for _ in processes)
    for process in processes:
        process.join()
    ranks = [pickle.loads(parts[r]) for r in range(2)]
    for n, batch in enumerate(expected):
        assert_same(joined([rank[n] for rank in ranks]), batch)


def test_resume_with_another_batch_size_gives_the_same_samples(mixture: dict) -> None:
    first = MixtureDataset(mixture, 8)
    take(first, 3)
    second = MixtureDataset(mixture, 12)
    second.load_state_dict(first.state_dict())
    a, b = take(first, 3), take(second, 2)

    def samples(batches: list[dict[str, Any]]) -> list[tuple[int, ...]]:
        keys = ("source_id", "episode", "frame")
        return sorted(row for batch in batches for row in zip(*(batch[k].tolist() for k in keys), strict=True))

    assert samples(a) == samples(b)


def test_iterating_goes_on_where_it_stopped(mixture: dict) -> None:
    expected = take(MixtureDataset(mixture, 4), 6)
    dataset = MixtureDataset(mixture, 4)
    found = take(dataset, 2) + take(dataset, 1)
    left, right = iter(dataset), iter(dataset)  # one stream, one position
    found += [next(left), next(right), next(left)]
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)


def test_loading_between_two_batches(mixture: dict) -> None:
    dataset = MixtureDataset(mixture, 4)
    stream = iter(dataset)
    first = [next(stream) for _ in range(4)]
    dataset.load_state_dict(first[0]["cursor"])
    for batch in first[1:]:
        assert_same(next(stream), batch)
    assert dataset.state_dict() == first[3]["cursor"]


def test_new_weights_open_a_phase(mixture: dict) -> None:
    dataset = MixtureDataset(mixture, 10)
    take(dataset, 10)
    state = dataset.state_dict()
    changed = copy.deepcopy(mixture)
    changed["sources"][0]["weight"], changed["sources"][1]["weight"] = 0.2, 0.8
    other = MixtureDataset(changed, 10)
    other.load_state_dict(state)
    batches = take(other, 10)
    drawn = torch.cat([batch["source_id"] for batch in batches])
    assert int((drawn == 1).sum()) == 80
    counts = batches[-1]["cursor"]["order"]["counts"]
    assert counts == {"lift": 70 + 20, "chunks": 30 + 80}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 4}, ["seed was 3, is 4"]),
        ({"window": 32}, ["window was 16, is 32"]),
        ({"streams": 2}, ["streams was 4, is 2"]),
    ],
)
def test_states_that_do_not_fit(mixture: dict, change: dict, words: list[str]) -> None:
    state = MixtureDataset(mixture, 4).state_dict()
    with pytest.raises(ConflictError) as caught:
        MixtureDataset({**mixture, **change}, 4).load_state_dict(state)
    for word in words:
        assert word in str(caught.value)


def test_a_state_of_another_split_is_refused(mixture: dict) -> None:
    state = MixtureDataset(mixture, 4).state_dict()
    mixture["sources"][0]["split"] = "val"
    with pytest.raises(ConflictError, match="'lift'"):
        MixtureDataset(mixture, 4).load_state_dict(state)


@pytest.mark.parametrize("state", [{}, {"wdsmix_mixture": 99, "order": {}}, {"wdsmix_mixture": 1}, None, [1]])
def test_what_is_no_state(mixture: dict, state: Any) -> None:
    dataset = MixtureDataset(mixture, 4)
    with pytest.raises(ConfigError, match="not a state"):
        dataset.load_state_dict(state)
    if state is not None:
        with pytest.raises(ConfigError, match="not a state"):
            dataset.state_dict(cursor=state)


def test_a_set_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    make_set(tmp_path / "a")
    data = {"sources": [{"name": "a", "shards": str(tmp_path / "a"), "weight": 1}]}
    dataset = MixtureDataset(data, 2)
    copied = pickle.dumps(dataset)
    (tmp_path / "a").rename(tmp_path / "old")
    make_set(tmp_path / "a", episodes=[5, 3, 8])
    with pytest.raises(ConflictError, match="source 'a'"):
        take(pickle.loads(copied), 1)
    with pytest.raises(ConflictError, match="'a'"):
        MixtureDataset(data, 2).load_state_dict(dataset.state_dict())


def test_resize_brings_all_sizes_together(mixture: dict, tmp_path: Path) -> None:
    make_set(tmp_path / "big", cameras=["cam0", "cam1"], size={"cam0": (40, 30), "cam1": (12, 12)}, embodiment="panda")
    mixture["sources"].append({"name": "big", "shards": str(tmp_path / "big"), "weight": 1})
    (batch,) = take(MixtureDataset(with_sample(mixture, image_size=12), 12), 1)
    assert batch["images"].shape == (12, 1, 2, 3, 12, 12)
    from PIL import Image

    big = ShardSet(tmp_path / "big")
    for b in range(12):
        if batch["source_id"][b] == 2:
            frame = big.episode(int(batch["episode"][b])).images
            for c, slot in enumerate(("cam0", "cam1")):
                pixels = Image.fromarray(frame[slot][int(batch["frame"][b])])
                wanted = np.asarray(pixels.resize((12, 12), Image.Resampling.BILINEAR))
                assert np.array_equal(batch["images"][b, 0, c].permute(1, 2, 0).numpy(), wanted)


def test_png_sets(tmp_path: Path) -> None:
    import io

    from PIL import Image

    def png(pixels: np.ndarray) -> bytes:
        buffer = io.BytesIO()
        Image.fromarray(pixels).save(buffer, "PNG")
        return buffer.getvalue()

    make_set(tmp_path / "a", encode=png, member="png")
    data = {"sources": [{"name": "a", "shards": str(tmp_path / "a"), "weight": 1}]}
    opened = ShardSet(tmp_path / "a")
    for batch in take(MixtureDataset(data, 4), 2):
        for b in range(4):
            pixels = opened.episode(int(batch["episode"][b])).images["cam0"][int(batch["frame"][b])]
            assert np.array_equal(batch["images"][b, 0, 0].permute(1, 2, 0).numpy(), pixels)


def test_no_cameras_and_no_vectors(tmp_path: Path) -> None:
    make_set(tmp_path / "a", cameras=[], dims={"action": 3})
    data = {"sources": [{"name": "a", "shards": str(tmp_path / "a"), "weight": 1}]}
    (batch,) = take(MixtureDataset(data, 4), 1)
    assert batch["images"].shape == (4, 1, 0, 3, 0, 0)
    assert batch["state"].shape == (4, 1, 0)
    assert batch["action"].abs().sum() > 0


def test_an_odd_batch_over_small_sources(tmp_path: Path) -> None:
    make_set(tmp_path / "a", episodes=[1, 1])
    data = {"sources": [{"name": "a", "shards": str(tmp_path / "a"), "weight": 1}]}
    batches = take(MixtureDataset(data, 7), 4)  # several epochs within one batch
    frames = torch.cat([batch["episode"] for batch in batches])
    assert int((frames == 0).sum()) == 14


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("batch_size", True), ("num_threads", 0)])
def test_bad_arguments(mixture: dict, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=name):
        MixtureDataset(mixture, **{"batch_size": 4, name: value})


def test_pickled_it_is_small_and_goes_on(mixture: dict) -> None:
    dataset = MixtureDataset(mixture, 4)
    expected = take(MixtureDataset(mixture, 4), 4)
    take(dataset, 2)
    data = pickle.dumps(dataset)
    assert len(data) < 10_000
    for a, b in zip(take(pickle.loads(data), 2), expected[2:], strict=True):
        assert_same(a, b)


def test_order_of_the_catalog_is_the_order_of_the_batches(mixture: dict) -> None:
    order = open_catalog(MixtureConfig.from_dict(mixture)).new_order()
    numbers = [[(0, 9), (1, 4), (3, 12), (4, 6)], [(2, 5), (3, 8), (9, 3)]]
    rows = [[(e, t) for e, n in source for t in range(n)] for source in numbers]
    for batch in take(MixtureDataset(mixture, 6), 5):
        step = order.step(6)
        expected = [rows[s][r] for s, r in zip(step.source.tolist(), step.row.tolist(), strict=True)]
        assert list(zip(batch["episode"].tolist(), batch["frame"].tolist(), strict=True)) == expected
