"""State in every way of running: nothing repeated, nothing lost."""

from __future__ import annotations

import copy
import json
import pickle
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from helpers.batches import assert_same, joined
from helpers.mixtures import make_set
from torch.utils.data import DataLoader

from wdsmix import MixtureDataset
from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.position import Arrivals, Origin

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]

Batch = dict[str, Any]


def stateful(dataset: MixtureDataset, workers: int, **more: object) -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    return torchdata.StatefulDataLoader(dataset, batch_size=None, num_workers=workers, **more)


def equal(found: list[Batch], expected: list[Batch]) -> None:
    assert [batch["step"] for batch in found] == [batch["step"] for batch in expected]
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b)


@pytest.fixture
def expected(mixture: dict) -> list[Batch]:
    return list(islice(MixtureDataset(mixture, 4), 30))


@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_goes_on_where_it_was_saved(mixture: dict, expected: list[Batch], workers: int) -> None:
    for saved_after in (0, 1, 2, 5):
        loader = stateful(MixtureDataset(mixture, 4), workers)
        stream = iter(loader)
        equal(list(islice(stream, saved_after)), expected[:saved_after])
        state = pickle.loads(pickle.dumps(loader.state_dict()))
        del stream, loader
        dataset = MixtureDataset(mixture, 4)
        resumed = stateful(dataset, workers)
        resumed.load_state_dict(state)
        found = list(islice(resumed, 4))
        equal(found, expected[saved_after : saved_after + 4])
        # The dataset in this process knows where its workers were moved to.
        steps = dataset.state_dict()["order"]["steps"]
        assert saved_after + 4 <= steps <= saved_after + 4 + 2 * workers
        assert len(dataset._arrivals) <= 4
        other = MixtureDataset(mixture, 4)
        other.load_state_dict(dataset.state_dict(cursor=found[-1]["cursor"]))
        equal(list(islice(other, 2)), expected[saved_after + 4 : saved_after + 6])


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_stateful_dataloader_over_epochs(mixture: dict, expected: list[Batch], workers: int, persistent: bool) -> None:
    """Saved anywhere in an epoch of five steps, the rest of it and the next two follow."""
    if persistent and not workers:
        pytest.skip("no workers to persist")
    more = {"persistent_workers": persistent}
    loader = stateful(MixtureDataset(mixture, 4, steps_per_epoch=5), workers, **more)
    states = []
    found = []
    for _ in range(2):
        for batch in loader:
            found.append(batch)
            states.append((len(found), loader.state_dict()))
        states.append((len(found), loader.state_dict()))  # at an epoch's end
    equal(found, expected[:10])
    for saved_after, state in states[:6] + states[-1:]:
        resumed = stateful(MixtureDataset(mixture, 4, steps_per_epoch=5), workers, **more)
        resumed.load_state_dict(state)
        found = []
        while len(found) < 8:
            found += resumed
        equal(found, expected[saved_after : saved_after + len(found)])


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_epochs_of_a_dataloader_repeat_and_lose_nothing(
    mixture: dict, expected: list[Batch], workers: int, persistent: bool
) -> None:
    if persistent and not workers:
        pytest.skip("no workers to persist")
    dataset = MixtureDataset(mixture, 4, steps_per_epoch=4)
    loader = DataLoader(dataset, batch_size=None, num_workers=workers, persistent_workers=persistent)
    assert len(loader) == 4
    found = []
    for epoch in range(4):
        found += loader
        assert dataset.state_dict() == expected[4 * epoch + 3]["cursor"]
    equal(found, expected[:16])
    assert dataset.metrics()["samples"] == 64


def test_fewer_steps_than_workers(mixture: dict, expected: list[Batch]) -> None:
    for persistent in (False, True):
        dataset = MixtureDataset(mixture, 4, steps_per_epoch=1)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=persistent)
        equal([batch for _ in range(3) for batch in loader], expected[:3])


def test_a_dataloader_that_is_left_early(mixture: dict, expected: list[Batch]) -> None:
    dataset = MixtureDataset(mixture, 4)
    loader = DataLoader(dataset, batch_size=None, num_workers=2)
    last = list(islice(loader, 3))[-1]
    # Batches that workers had ready are passed over, unless the position is set to that of the last one used.
    assert next(iter(loader))["step"] >= 3
    dataset.load_state_dict(last["cursor"])
    equal(list(islice(loader, 3)), expected[3:6])


def test_an_epoch_left_early_with_persistent_workers_counts_as_done(mixture: dict, expected: list[Batch]) -> None:
    dataset = MixtureDataset(mixture, 4, steps_per_epoch=6)
    loader = DataLoader(dataset, batch_size=None, num_workers=2, persistent_workers=True)
    equal(list(islice(loader, 1)), expected[:1])
    equal(list(loader), expected[6:12])
    assert dataset.state_dict() == expected[11]["cursor"]


def test_an_endless_stream_can_not_begin_anew_in_persistent_workers(mixture: dict) -> None:
    loader = DataLoader(MixtureDataset(mixture, 4), batch_size=None, num_workers=1, persistent_workers=True)
    next(iter(loader))
    with pytest.raises(ConfigError, match="steps_per_epoch"):
        next(iter(loader))
    loader._iterator._shutdown_workers()  # torch waits for each where an exception still holds the iterator


def test_a_state_that_persistent_workers_would_not_see_is_refused(mixture: dict, expected: list[Batch]) -> None:
    dataset = MixtureDataset(mixture, 4, steps_per_epoch=3)
    dataset.load_state_dict(expected[4]["cursor"])
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    equal(list(loader), expected[5:8])
    dataset.load_state_dict(expected[0]["cursor"])
    with pytest.raises(ConfigError, match="does not reach workers"):
        next(iter(loader))
    loader._iterator._shutdown_workers()


@pytest.mark.parametrize("threads", [1, 3])
def test_from_workers_to_other_ranks_and_batch_sizes_by_cursor(mixture: dict, threads: int) -> None:
    whole = list(islice(MixtureDataset(mixture, 8), 8))
    loader = DataLoader(MixtureDataset(mixture, 8), batch_size=None, num_workers=3)
    saved = json.loads(json.dumps(list(islice(loader, 5))[-1]["cursor"]))
    for world in (1, 2, 4):
        ranks = [MixtureDataset(mixture, 8 // world, rank, world, num_threads=threads) for rank in range(world)]
        for rank in ranks:
            rank.load_state_dict(saved)
        streams = [iter(DataLoader(rank, batch_size=None, num_workers=world % 3)) for rank in ranks]
        equal([joined([next(stream) for stream in streams]) for _ in range(3)], whole[5:8])
    other = MixtureDataset(mixture, 12)
    other.load_state_dict(saved)
    keys = ("source_id", "episode", "frame")

    def samples(batches: list[Batch]) -> list[tuple[int, ...]]:
        return sorted(row for batch in batches for row in zip(*(batch[k].tolist() for k in keys), strict=True))

    assert samples(list(islice(other, 2))) == samples(whole[5:8])


def test_a_workers_state_goes_with_its_worker(mixture: dict) -> None:
    loader = stateful(MixtureDataset(mixture, 4), 2)
    next(iter(loader))
    state = loader.state_dict()
    worker = state["_snapshot"]["_worker_snapshots"]["worker_0"]
    inner = worker["fetcher_state"]["dataset_iter_state"] or worker["dataset_state"]
    assert type(inner["wdsmix_mixture"]) is int
    with pytest.raises(ConfigError, match="expected worker 0 of 2, found no worker"):
        MixtureDataset(mixture, 4).load_state_dict(inner)


def test_new_weights_and_a_new_source_under_workers(mixture: dict, sets: Path, tmp_path: Path) -> None:
    loader = DataLoader(MixtureDataset(mixture, 10), batch_size=None, num_workers=2)
    first = list(islice(loader, 6))
    make_set(tmp_path / "new", episodes=[6, 6], cameras=["cam0", "cam1"], size=(20, 16), embodiment="panda")
    changed = copy.deepcopy(mixture)
    changed["sources"].append({"name": "new", "shards": str(tmp_path / "new"), "weight": 1.0})
    changed["sources"][0]["weight"] = 0.25
    changed["sources"][1]["weight"] = 0.75
    dataset = MixtureDataset(changed, 10)
    dataset.load_state_dict(first[-1]["cursor"])
    second = list(islice(DataLoader(dataset, batch_size=None, num_workers=2), 8))
    drawn = [int(sum((batch["source_id"] == s).sum() for batch in second)) for s in range(3)]
    assert drawn == [10, 30, 40]
    seen: dict[tuple[int, ...], int] = {}
    for batch in [*first, *second]:
        for row in zip(*(batch[k].tolist() for k in ("source_id", "episode", "frame")), strict=True):
            seen[row] = seen.get(row, 0) + 1
    for source, size in ((0, 31), (1, 16), (2, 12)):  # each frame once an epoch, across the phases
        times = [count for row, count in seen.items() if row[0] == source]
        assert len(times) == size
        assert max(times) - min(times) <= 1
    # And back: the phase is kept in the state.
    resumed = MixtureDataset(changed, 10)
    resumed.load_state_dict(second[3]["cursor"])
    equal(list(islice(resumed, 4)), second[4:])


def test_a_changed_set_is_refused_by_name_in_every_way(tmp_path: Path) -> None:
    make_set(tmp_path / "a")
    data = {"sources": [{"name": "robot", "shards": str(tmp_path / "a"), "weight": 1}]}
    dataset = MixtureDataset(data, 2)
    loader = stateful(dataset, 1)
    next(iter(loader))
    cursor, state = dataset.state_dict(), loader.state_dict()
    (tmp_path / "a").rename(tmp_path / "old")
    make_set(tmp_path / "a", episodes=[5, 3, 8])
    with pytest.raises(ConflictError, match=r"source 'robot' was set '.*', is '"):
        MixtureDataset(data, 2).load_state_dict(cursor)
    resumed = stateful(MixtureDataset(data, 2), 1)
    resumed.load_state_dict(state)
    with pytest.raises((ConflictError, RuntimeError), match="source 'robot' was set"):
        next(iter(resumed))
    with pytest.raises(ConflictError, match="source 'robot': the set changed"):  # spawned workers open it anew
        next(iter(pickle.loads(pickle.dumps(dataset))))


def test_a_dataset_made_before_the_process_group(
    mixture: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    dataset = MixtureDataset(mixture, 2)
    expected = list(islice(MixtureDataset(mixture, 2, 1, 2), 4))
    # A process group of two would need two processes: what torch says is all that matters here.
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setenv("WORLD_SIZE", "2")  # as Lightning leaves it
    loader = DataLoader(dataset, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    equal(list(islice(loader, 4)), expected)
    equal(list(islice(dataset, 2)), list(islice(MixtureDataset(mixture, 2, 1, 2), 6))[-2:])


def test_copies_stand_on_their_own(mixture: dict, expected: list[Batch]) -> None:
    one = MixtureDataset(mixture, 4, steps_per_epoch=4)
    two = copy.deepcopy(one)
    equal(list(DataLoader(two, batch_size=None, num_workers=2)), expected[:4])
    assert two.state_dict() == expected[3]["cursor"]
    assert two.metrics()["batches"] == 4
    assert one.state_dict()["order"]["samples"] == 0
    assert one.metrics()["batches"] == 0


def test_here_and_in_workers_at_once(mixture: dict, expected: list[Batch]) -> None:
    """One position: whoever delivers last has moved it; neither gives a wrong batch, nothing piles up."""
    dataset = MixtureDataset(mixture, 4)
    here = iter(dataset)
    equal([next(here), next(here)], expected[:2])
    there = iter(DataLoader(dataset, batch_size=None, num_workers=2))
    equal([next(there), next(there)], expected[2:4])
    batch = next(here)
    assert_same(batch, expected[batch["step"]])
    assert dataset.state_dict() == batch["cursor"]
    more = list(islice(there, 20))
    equal(more, expected[4:24])
    assert dataset.state_dict() == batch["cursor"]
    assert len(dataset._arrivals) == 0


def origin(worker: int, of: int, *, base: int = 0, end: int | None = None) -> Origin:
    return Origin(worker=worker, of=of, base=base, end=end, era=0, round=1)


def test_arrivals_wait_for_what_is_missing() -> None:
    arrivals = Arrivals()
    arrivals.arrived(origin(1, 2), 1, {"after": 1})
    arrivals.arrived(origin(1, 2), 3, {"after": 3})
    assert arrivals.order is None
    arrivals.arrived(origin(0, 2), 0, {"after": 0})
    assert arrivals.order == {"after": 1}
    arrivals.arrived(origin(0, 2), 2, {"after": 2})
    assert arrivals.order == {"after": 3}
    for n in range(4, 1000):
        arrivals.arrived(origin(n % 2, 2), n, {"after": n})
        assert arrivals.order == {"after": n}
        assert len(arrivals) == 1
    arrivals.arrived(origin(0, 2, base=1000), 1000, {"after": 1000})  # the next iteration
    assert arrivals.order == {"after": 1000}
    arrivals.arrived(origin(0, 2), 500, {"after": 500})  # an old one's
    assert arrivals.order == {"after": 1000}


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("saved_after", [0, 1, 2, 3, 4, 6, 7])
def test_arrivals_of_moved_workers(workers: int, saved_after: int) -> None:
    """Workers of an iteration of seven steps, saved after some; each says where it stands before it sends."""
    arrivals = Arrivals()
    places = [next(n for n in range(saved_after, 99) if n % workers == k) for k in range(workers)]
    for k in reversed(range(workers)):
        step = min(places[k], 7)
        arrivals.stands(origin(k, workers, end=7), step, {"after": step - 1})
    assert arrivals.order == {"after": saved_after - 1}
    for n in range(saved_after, 7):
        arrivals.arrived(origin(n % workers, workers, end=7), n, {"after": n})
        assert arrivals.order == {"after": n}
