"""Threads, forks and garbage: orders of events that go wrong where memory is used again."""

from __future__ import annotations

import copy
import gc
import os
import random
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers.batches import assert_same
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset
from wdsmix.errors import ConfigError
from wdsmix.mixture import slots
from wdsmix.mixture.crew import Crew
from wdsmix.mixture.unbroken import Unbroken


@pytest.fixture
def expected(mixture: dict) -> list[dict[str, Any]]:
    return list(islice(MixtureDataset(mixture, 4), 40))


def crew_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("wdsmix-decode")]


@pytest.mark.parametrize("seed", range(3))
def test_anything_in_any_order(mixture: dict, expected: list[dict[str, Any]], seed: int) -> None:
    """Iterators begun, left and dropped, positions loaded, batches held: each batch is that of its step, to the end."""
    rng = random.Random(seed)
    dataset = MixtureDataset(mixture, 4, num_threads=3)
    streams = [iter(dataset)]
    held: list[dict[str, Any]] = []
    most = 1
    for _ in range(150):
        at = dataset.state_dict()["order"]["steps"]
        what = rng.random()
        if at > 35 or what < 0.1:
            target = rng.randrange(0, 30)
            dataset.load_state_dict(expected[target]["cursor"])
            at = target + 1
        elif what < 0.25:
            streams.append(iter(dataset))
        elif what < 0.35 and len(streams) > 1:
            streams.pop(rng.randrange(len(streams)))
        most = max(most, len(streams))
        batch = next(rng.choice(streams))
        assert batch["step"] == at
        assert_same(batch, expected[at])
        if rng.random() < 0.3:
            held.append(batch)
        if len(held) > 12:
            del held[rng.randrange(len(held))]
    for batch in held:
        assert_same(batch, expected[batch["step"]])
    assert len(dataset._pipeline._ring) <= 13 + 3 * (most + 2)  # each iterator has three under way


def test_workers_forked_while_threads_decode(mixture: dict, expected: list[dict[str, Any]]) -> None:
    dataset = MixtureDataset(mixture, 4, num_threads=4)
    here = iter(dataset)
    for _ in range(4):
        first = next(here)
        assert_same(first, expected[first["step"]])
        there = iter(DataLoader(copy.copy(dataset), batch_size=None, num_workers=2))
        for batch in islice(there, 3):
            assert_same(batch, expected[batch["step"]])
        del there


def test_a_forked_child_drops_what_it_inherited(mixture: dict, expected: list[dict[str, Any]]) -> None:
    """Generators, batches and datasets that a child lets go of: no waiting for threads that are not there."""
    dataset = MixtureDataset(mixture, 4, num_threads=4)
    stream = iter(dataset)
    held = [next(stream) for _ in range(3)]
    child = os.fork()
    if child == 0:
        held.clear()
        del stream, dataset
        gc.collect()
        os._exit(0)
    end = time.monotonic() + 20
    while (done := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < end:
        time.sleep(0.01)
    assert done == (child, 0)
    for batch in [*held, *islice(stream, 5)]:
        assert_same(batch, expected[batch["step"]])


def test_nothing_of_a_dataset_stays(mixture: dict) -> None:
    gc.collect()
    before, listeners = len(crew_threads()), len(slots._listeners)
    for _ in range(3):
        one, two = MixtureDataset(mixture, 4, num_threads=3), EvaluationDataset(mixture, 4, "train", num_threads=3)
        kept = [next(iter(one)), next(iter(two))]
        list(islice(DataLoader(one, batch_size=None, num_workers=1), 2))
        del one, two
    gc.collect()
    end = time.monotonic() + 10
    while len(crew_threads()) > before and time.monotonic() < end:
        time.sleep(0.02)
    assert len(crew_threads()) <= before
    assert len(slots._listeners) == listeners
    assert kept[0]["images"].any()


def test_an_iterator_that_is_dropped_frees_its_dataset_at_once(mixture: dict) -> None:
    """No reference cycles: batch memory is too large to wait for the collector."""
    import weakref

    dataset = MixtureDataset(mixture, 4, num_threads=2)
    stream = iter(dataset)
    next(stream)
    gone = weakref.ref(dataset)
    ring = weakref.ref(dataset._pipeline._ring)
    gc.disable()
    try:
        del stream, dataset
        end = time.monotonic() + 10
        while ring() is not None and time.monotonic() < end:  # a thread may be about to leave
            time.sleep(0.01)
        assert gone() is None
        assert ring() is None
    finally:
        gc.enable()


def test_descriptors_do_not_pile_up(mixture: dict) -> None:
    dataset = MixtureDataset(mixture, 4, steps_per_epoch=3)
    counts = []
    for _ in range(6):
        list(DataLoader(dataset, batch_size=None, num_workers=2))
        gc.collect()
        counts.append(len(list(Path("/proc/self/fd").iterdir())))
    assert max(counts[1:]) <= counts[1] + 4


def test_crew() -> None:
    crew = Crew(3, "test-crew")
    done: list[int] = []
    lock = threading.Lock()
    finished = threading.Event()

    def call(n: int) -> None:
        with lock:
            done.append(n)
            if len(done) == 50:
                finished.set()

    for n in range(50):
        crew.submit(lambda n=n: call(n))
    assert finished.wait(10)
    assert sorted(done) == list(range(50))
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("test-crew")]
    assert len(threads) == 3
    assert all(thread.daemon for thread in threads)
    del crew
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()


def test_unbroken() -> None:
    def two() -> Any:
        yield {"n": 1}
        raise ConfigError("no")

    stream = Unbroken(two())
    assert next(stream) == {"n": 1}
    for _ in range(3):
        with pytest.raises(ConfigError):
            next(stream)
    assert list(Unbroken(iter([{"n": 1}]))) == [{"n": 1}]
    with pytest.raises(ConfigError):
        next(Unbroken(iter([{"n": 1}]), ConfigError("first")))
