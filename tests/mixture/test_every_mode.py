"""Workers, start methods, threads, world sizes: the same global batches, to the byte, in memory used again."""

from __future__ import annotations

import copy
import gc
import itertools
import multiprocessing
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.batches import assert_same, joined
from torch.utils.data import DataLoader, IterableDataset

from wdsmix import EvaluationDataset, MixtureDataset
from wdsmix.mixture import slots

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

WORLDS = (1, 2, 4, 8)
STEPS = 10


class SideBySide(IterableDataset):
    """Several datasets in one DataLoader: (number of the dataset, its next batch); one start serves them all."""

    def __init__(self, datasets: list[MixtureDataset]) -> None:
        self.datasets = datasets

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        streams = [iter(dataset) for dataset in self.datasets]
        while True:
            for number, stream in enumerate(streams):
                batch = next(stream, None)
                if batch is None:
                    return
                yield number, batch


def rich(mixture: dict) -> dict:
    data = copy.deepcopy(mixture)
    data["sample"].update(
        observation_offsets=[-1, 0],
        action_chunk=3,
        extras=["timestamp", "score"],
        goal={"max_offset": 4, "negative_goal_fraction": 0.5},
        normalize={"state": "q01_q99", "action": "mean_std"},
    )
    return data


def just(item: object) -> object:
    return item


@pytest.mark.parametrize(
    ("method", "workers"),
    [(None, 0), ("fork", 1), ("fork", 2), ("fork", 5), ("spawn", 2), ("forkserver", 5)],
)
def test_global_batches_are_the_same_in_every_mode(mixture: dict, method: str | None, workers: int) -> None:
    data = rich(mixture)
    expected = list(islice(MixtureDataset(data, 8, num_threads=1), STEPS))
    places = [(threads, world, rank) for threads in (1, 4) for world in WORLDS for rank in range(world)]
    datasets = [
        MixtureDataset(data, 8 // world, rank, world, num_threads=threads, steps_per_epoch=STEPS)
        for threads, world, rank in places
    ]
    if method == "forkserver":
        multiprocessing.set_forkserver_preload(["wdsmix.mixture.loader"])
    loader = DataLoader(
        SideBySide(datasets),
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method,
        prefetch_factor=3 if workers else None,
        collate_fn=just,
    )
    found: dict[tuple[int, int, int], list[dict[str, Any]]] = {place: [] for place in places}
    for number, batch in loader:
        found[places[number]].append(batch)
    for threads, world in itertools.product((1, 4), WORLDS):
        ranks = [found[threads, world, rank] for rank in range(world)]
        assert [len(batches) for batches in ranks] == [STEPS] * world
        for parts, whole in zip(zip(*ranks, strict=True), expected, strict=True):
            assert_same(joined(parts), whole)
    assert all(dataset.state_dict() == expected[-1]["cursor"] for dataset in datasets)


def bytes_of(batch: dict[str, Any]) -> dict[str, bytes]:
    return {name: v.numpy().tobytes() for name, v in batch.items() if isinstance(v, torch.Tensor)}


@pytest.mark.parametrize(("workers", "threads"), [(0, 1), (0, 4), (2, 1), (2, 3)])
def test_batches_that_are_held_keep_their_bytes(mixture: dict, workers: int, threads: int) -> None:
    dataset = MixtureDataset(mixture, 4, num_threads=threads)
    stream = iter(DataLoader(dataset, batch_size=None, num_workers=workers))
    held, seen = [], []
    for n, batch in enumerate(islice(stream, 24)):
        if n % 2 or n < 8:
            held.append(batch)
            seen.append(bytes_of(batch))
    del batch
    assert all(bytes_of(batch) == before for batch, before in zip(held, seen, strict=True))
    if workers:
        mapped = [key for key, (owner, _) in slots._mapped.items() if owner == dataset._token]
        assert len(mapped) <= len(held) + 6 * workers
    else:
        assert len(dataset._pipeline._ring) <= len(held) + 5


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_slots_are_used_again(mixture: dict, workers: int) -> None:
    dataset = MixtureDataset(mixture, 4, num_threads=2)
    stream = iter(DataLoader(dataset, batch_size=None, num_workers=workers))
    where = [next(stream)["images"].data_ptr() for _ in range(60)]
    assert len(set(where)) <= (4 if workers == 0 else 5 * workers)  # a few, however many batches
    if workers == 0:
        assert len(dataset._pipeline._ring) <= 4


def test_memory_of_workers_is_let_go(mixture: dict) -> None:
    def ours() -> list[str]:
        links = []
        for link in Path("/proc/self/fd").iterdir():
            try:
                links.append(str(link.readlink()))
            except FileNotFoundError:  # the listing itself
                continue
        return [link for link in links if "wdsmix-batch" in link]

    gc.collect()
    slots._forget_the_dead()
    assert ours() == []
    dataset = MixtureDataset(mixture, 4)
    evaluation = EvaluationDataset(mixture, 4, split="train")
    for _ in range(3):  # each has new workers, with new slots
        held = [*islice(DataLoader(dataset, batch_size=None, num_workers=2), 8)]
        held += DataLoader(evaluation, batch_size=None, num_workers=1)
    before = bytes_of(held[0])
    assert 0 < len(ours()) < 30
    del dataset, evaluation
    gc.collect()
    assert bytes_of(held[0]) == before  # mapped as long as someone looks
    held.clear()
    gc.collect()
    assert ours() == []


class Brighter(IterableDataset):
    """A map over batches in the worker that replaces, adds, removes and keeps views."""

    def __init__(self, inner: MixtureDataset) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[Any]:
        for batch in self.inner:
            images = batch["images"]
            batch["last"] = images[:, -1]
            batch["action"] = batch["action"] * 2
            del batch["source_id"]
            yield batch["last"], batch  # torch sends a tensor of its own by moving its whole storage


def test_a_map_in_the_worker(mixture: dict) -> None:
    expected = list(islice(MixtureDataset(mixture, 4), 12))
    loader = DataLoader(Brighter(MixtureDataset(mixture, 4)), batch_size=None, num_workers=2, collate_fn=just)
    held = list(islice(loader, 12))
    for (last, found), wanted in zip(held, expected, strict=True):
        assert torch.equal(last, wanted["images"][:, -1])
        assert torch.equal(found.pop("last"), last)
        assert torch.equal(found.pop("action"), wanted.pop("action") * 2)
        del wanted["source_id"]
        assert_same(found, wanted)


def test_pinned_memory_is_no_condition(mixture: dict) -> None:
    loader = DataLoader(MixtureDataset(mixture, 4), batch_size=None, num_workers=1)
    assert not next(iter(loader))["images"].is_pinned()


def test_a_webdataset_pipeline_takes_it_as_its_source(mixture: dict) -> None:
    wds = pytest.importorskip("webdataset")
    expected = list(islice(MixtureDataset(mixture, 4), 6))
    for workers in (0, 2):
        pipeline = wds.DataPipeline(MixtureDataset(mixture, 4), wds.map(_double))
        for found, wanted in zip(DataLoader(pipeline, batch_size=None, num_workers=workers), expected, strict=False):
            assert torch.equal(found["action"], wanted["action"] * 2)
            assert torch.equal(found["images"], wanted["images"])
            assert found["cursor"] == wanted["cursor"]
            if found["step"] == 5:
                break


def _double(batch: dict[str, Any]) -> dict[str, Any]:
    batch["action"] = batch["action"] * 2
    return batch
