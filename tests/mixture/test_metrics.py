"""What a stream says of itself: counts against the batches, the file, and the stage that stalls."""

from __future__ import annotations

import json
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.batches import set_row
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset, ShardSet
from wdsmix.errors import DataError
from wdsmix.mixture import assemble
from wdsmix.mixture.metrics import Metrics
from wdsmix.mixture.pipeline import Note
from wdsmix.mixture.upcoming import upcoming


@pytest.mark.parametrize("workers", [0, 2])
def test_metrics_against_the_batches(mixture: dict, sets: Path, workers: int) -> None:
    dataset = MixtureDataset(mixture, 10, steps_per_epoch=8, num_threads=2)
    began = time.monotonic()
    batches = list(DataLoader(dataset, batch_size=None, num_workers=workers))
    took = time.monotonic() - began
    found = dataset.metrics()
    assert found == json.loads(json.dumps(found))
    opened = [ShardSet(sets / "lift"), ShardSet(sets / "chunks")]
    nbytes = 0
    drawn = [0, 0]
    for batch in batches:
        keys = ("source_id", "episode", "frame")
        for s, e, t in zip(*(batch[key].tolist() for key in keys), strict=True):
            _, shard, row = opened[s].locate(set_row(opened[s], e, t))
            nbytes += int(opened[s].shard(shard).length[row])
            drawn[s] += 1
    assert (found["batches"], found["samples"], found["step"], found["replaced"]) == (8, 80, 7, 0)
    assert found["bytes_read"] == nbytes
    assert found["seconds"] > 0
    assert found["samples_per_s"] >= 80 / (took + 1)
    assert found["shares"]["lift"] == {"asked": 0.7, "realised": drawn[0] / 80}
    assert found["shares"]["chunks"]["realised"] == drawn[1] / 80
    assert found["epochs"] == {"lift": drawn[0] / 31, "chunks": drawn[1] / 16}
    if workers:
        assert found["wait_share"] is None
    else:
        assert 0 < found["wait_share"] < 1


@pytest.mark.parametrize("workers", [0, 2])
def test_shares_count_from_where_this_run_began(mixture: dict, workers: int) -> None:
    first = MixtureDataset(mixture, 10)
    cursor = list(islice(first, 7))[-1]["cursor"]
    mixture["sources"][0]["weight"], mixture["sources"][1]["weight"] = 0.2, 0.8
    dataset = MixtureDataset(mixture, 10, steps_per_epoch=3)
    dataset.load_state_dict(cursor)
    list(DataLoader(dataset, batch_size=None, num_workers=workers))
    found = dataset.metrics()
    assert found["shares"]["lift"] == {"asked": pytest.approx(0.2), "realised": 0.2}
    assert found["epochs"]["lift"] == (49 + 6) / 31  # over the whole run
    assert found["step"] == 9
    dataset.load_state_dict(cursor)  # back
    list(DataLoader(dataset, batch_size=None, num_workers=workers))
    again = dataset.metrics()
    assert again["shares"] == found["shares"]
    assert (again["step"], again["batches"]) == (9, 6)


def test_before_the_first_batch(mixture: dict) -> None:
    found = MixtureDataset(mixture, 4).metrics()
    assert found["batches"] == 0
    assert found["step"] == -1
    assert found["shares"]["lift"] == {"asked": 0.7, "realised": None}


def test_the_file_gets_a_line_an_interval(mixture: dict, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    dataset = MixtureDataset(mixture, 4, metrics_path=path, metrics_interval_s=0)
    list(islice(dataset, 5))
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["batches"] for line in lines] == [1, 2, 3, 4, 5]
    assert [line["samples"] for line in lines] == [4, 8, 12, 16, 20]
    assert lines[-1].keys() == dataset.metrics().keys()
    seldom = MixtureDataset(mixture, 4, metrics_path=tmp_path / "none", metrics_interval_s=3600)
    list(islice(seldom, 5))
    assert not (tmp_path / "none").exists()


def test_intervals_by_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    metrics = Metrics({"a": 3.0, "b": 1.0}, {"a": 10, "b": 20}, tmp_path / "m", 10.0)
    metrics.begin({"a": 5, "b": 5})
    for step in range(45):
        now[0] += 1
        cursor: dict[str, Any] = {"order": {"counts": {"a": 5 + 3 * (step + 1), "b": 5 + step + 1}}}
        metrics.add(Note(step=step, cursor=cursor, samples=4, nbytes=1000, replaced=step % 2))
        metrics.waited(0.25)
    lines = [json.loads(line) for line in (tmp_path / "m").read_text().splitlines()]
    assert [line["seconds"] for line in lines] == [10, 20, 30, 40]
    found = metrics.snapshot()
    assert found["samples_per_s"] == 4.0
    assert found["wait_share"] == 0.25
    assert found["replaced"] == 22
    assert found["shares"] == {"a": {"asked": 0.75, "realised": 0.75}, "b": {"asked": 0.25, "realised": 0.25}}
    assert found["epochs"] == {"a": 14.0, "b": 2.5}


@pytest.mark.parametrize("stage", ["pictures", "vectors"])
def test_a_stalled_stage_is_named(mixture: dict, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Storage that hangs is played by a check that waits for an event."""
    release = threading.Event()
    name = "find_pictures" if stage == "pictures" else "_gather"
    real = getattr(assemble, name)

    def hangs(*args: Any, **more: Any) -> Any:
        release.wait(20)
        return real(*args, **more)

    monkeypatch.setattr(assemble, name, hangs)
    mixture["first_batch_timeout_s"] = 0.3
    try:
        for dataset in (
            MixtureDataset(mixture, 4, num_threads=1),
            EvaluationDataset(mixture, 4, "train", num_threads=2),
        ):
            began = time.monotonic()
            with pytest.raises(DataError, match=rf"not there after 0.3 s: still .*reading.*{stage}") as caught:
                next(iter(dataset))
            assert time.monotonic() - began < 4
            assert caught.value.hint is not None
            if stage == "pictures":
                assert "source 'lift'" in str(caught.value)
                assert ".tar" in str(caught.value)
    finally:
        release.set()


def test_a_stalled_worker_says_so(mixture: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assemble, "find_pictures", lambda *_: time.sleep(60))
    mixture["first_batch_timeout_s"] = 0.3
    stream = iter(DataLoader(MixtureDataset(mixture, 4), batch_size=None, num_workers=1))
    with pytest.raises(DataError, match="still reading and decoding pictures"):
        next(stream)
    began = time.monotonic()
    stream._shutdown_workers()
    assert time.monotonic() - began < 4  # a thread that hangs does not keep the worker


def test_only_the_first_batch_is_timed(mixture: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    mixture["first_batch_timeout_s"] = 0.5
    dataset = MixtureDataset(mixture, 4, num_threads=1)
    stream = iter(dataset)
    for _ in range(4):
        next(stream)
    real = assemble.find_pictures
    slow = threading.Event()

    def once(*args: Any) -> Any:
        if not slow.is_set():
            slow.set()
            time.sleep(0.8)
        return real(*args)

    monkeypatch.setattr(assemble, "find_pictures", once)
    steps = [next(stream)["step"] for _ in range(4)]
    assert steps == [4, 5, 6, 7]
    assert slow.is_set()


def test_a_slot_is_not_used_again_while_a_thread_still_writes_to_it(
    mixture: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch given up while its threads hang; when they come back they must not write into a later batch."""
    expected = list(islice(MixtureDataset(mixture, 4), 6))
    release, hanging = threading.Event(), threading.Event()
    real, others = assemble.decode_frame, set(threading.enumerate())

    def hangs(*args: Any, **more: Any) -> None:
        if not release.is_set() and not hanging.is_set() and threading.current_thread() not in others:
            hanging.set()
            release.wait(20)
            args[2][0][1][...] = 77  # a late write
        real(*args, **more)

    monkeypatch.setattr(assemble, "decode_frame", hangs)
    dataset = MixtureDataset(mixture, 4, num_threads=2)
    pipeline = dataset._pipeline_of(2, shared=False)
    coming = upcoming(pipeline, dataset.catalog.new_order(), dataset.place, 4)
    given_up = pipeline.start(*next(coming)[:2])
    assert hanging.wait(10)
    pipeline.cancel(given_up)
    pipeline.cancel(given_up)  # twice is once
    assert given_up.slot.flags[0] == 1
    found = []
    coming = upcoming(pipeline, dataset.catalog.new_order(), dataset.place, 4)
    later = [pipeline.start(*next(coming)[:2]) for _ in range(3)]
    assert all(pending.slot is not given_up.slot for pending in later)
    release.set()
    found = [pipeline.finish(pending)[0] for pending in later]
    for a, b in zip(found, expected, strict=False):
        assert np.array_equal(a["images"], b["images"])
    assert given_up.done.wait(10)
    for _ in range(100):
        if given_up.slot.flags[0] == 0:
            break
        time.sleep(0.02)
    assert given_up.slot.flags[0] == 0  # and free at last
    assert pipeline.start(*next(coming)[:2]).slot is given_up.slot
