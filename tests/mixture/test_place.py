from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch.distributed as dist

from wdsmix import MixtureDataset
from wdsmix.errors import ConfigError
from wdsmix.mixture.place import Place, resolve_place


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


def test_alone() -> None:
    assert resolve_place(None, None) == Place(rank=0, world=1)


def test_arguments_and_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve_place(1, 4) == Place(rank=1, world=4)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_place(None, None) == Place(rank=1, world=4)
    assert resolve_place(1, 4) == Place(rank=1, world=4)
    with pytest.raises(ConfigError, match=r"rank 0 of 1 by the arguments, rank 1 of 4 by RANK and WORLD_SIZE"):
        resolve_place(0, 1)


@pytest.mark.parametrize(("rank", "world"), [(0, None), (None, 2), (2, 2), (-1, 2), (0, 0)])
def test_bad_arguments(rank: int | None, world: int | None) -> None:
    with pytest.raises(ConfigError, match="rank and world size"):
        resolve_place(rank, world)


@pytest.mark.parametrize(
    ("rank", "world"), [("1", None), (None, "2"), ("a", "2"), ("3", "2"), (None, "x"), (None, "0")]
)
def test_bad_variables(monkeypatch: pytest.MonkeyPatch, rank: str | None, world: str | None) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", world)):
        if value is not None:
            monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError):
        resolve_place(None, None)


def test_lightning_sets_world_size_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert resolve_place(None, None) == Place(rank=0, world=1)
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert resolve_place(3, 4) == Place(rank=3, world=4)
    assert resolve_place(None, None, parent=Place(rank=2, world=4)) == Place(rank=2, world=4)
    with pytest.raises(ConfigError, match="rank 0 of 2 by the arguments, rank 0 of 4 by RANK"):
        resolve_place(0, 2)
    with pytest.raises(ConfigError, match="RANK is not set"):
        resolve_place(None, None)


def test_torch_distributed(tmp_path: Path, mixture: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = MixtureDataset(mixture, 4)  # made before the process group
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    try:
        assert resolve_place(None, None) == Place(rank=0, world=1)
        assert dataset.place == Place(rank=0, world=1)
        with pytest.raises(ConfigError, match=r"rank 1 of 2 by the arguments, rank 0 of 1 by torch.distributed"):
            resolve_place(1, 2)
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        with pytest.raises(ConfigError, match=r"torch.distributed.*RANK"):
            next(iter(dataset))
    finally:
        dist.destroy_process_group()


def test_variables_are_read_when_iteration_starts(mixture: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = MixtureDataset(mixture, 2)
    expected = next(iter(MixtureDataset(mixture, 2, rank=1, world_size=2)))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert next(iter(dataset))["frame"].tolist() == expected["frame"].tolist()


def test_a_worker_process_is_told_the_place(mixture: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils.data import _utils

    dataset = MixtureDataset(mixture, 2)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    data = pickle.dumps(dataset)  # as spawn does, in the parent
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    copied = pickle.loads(data)
    assert copied.place == Place(rank=0, world=1)  # no worker: it looks for itself
    info = _utils.worker.WorkerInfo(id=0, num_workers=1, seed=0, dataset=copied)
    monkeypatch.setattr(_utils.worker, "_worker_info", info)
    assert copied.place == Place(rank=1, world=2)
