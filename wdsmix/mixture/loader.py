"""MixtureDataset: the batches of a weighted mixture, exact and resumable.

A dataset is a stream with one *position*. Iterating it in a process moves the position: whoever iterates again goes on
where the last batch ended. A *state* is a position as JSON types; a batch's ``cursor`` is the state after that batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.assemble import Assembler
from wdsmix.mixture.batch import BatchMemory, batch_fields
from wdsmix.mixture.catalog import Catalog, open_catalog
from wdsmix.mixture.config import MixtureConfig, load_mixture
from wdsmix.mixture.crew import Crew
from wdsmix.mixture.order import MixtureOrder, Step, rank_slice
from wdsmix.mixture.place import Place, resolve_place

__all__ = ["Batch", "MixtureDataset", "State"]

Batch = dict[str, Any]
State = dict[str, Any]

STATE_VERSION = 1


class MixtureDataset(IterableDataset[Batch]):
    """An endless stream of batches; use it alone, or in ``DataLoader(dataset, batch_size=None, num_workers=k)``.

    A batch is a dict (B samples, T observation offsets, K actions, C cameras, widths as ``pad_to`` says)::

        images               uint8   [B, T, C, 3, H, W]   a permuted view of NHWC memory; zeros where there is none
        image_mask           bool    [B, T, C]            whether the frame has a picture of the camera
        state, action        float32 [B, T, Ds], [B, K, Da]
        state_mask, ...      bool    [B, Ds], [B, Da]     dimensions that are real and have spread; others are 0
        observation_is_pad   bool    [B, T]               the offset lies outside the episode: its edge is repeated
        action_is_pad        bool    [B, K]
        NAME, NAME_mask      float32 [B, T, D], bool [B, D]   further vectors; zeros where a sample lacks them
        reward, done         float32 [B, T]               where asked, at the observation offsets
        reward_mask, ...     bool    [B]                  whether the sample has it
        task                 list of B strings
        extras               dict: name -> list of B values, None where the frame lacks it
        embodiment_id, source_id, episode, frame   int64 [B]
        step                 int                          number of the global batch over the whole run
        cursor               dict                         the state after this batch, the same on every rank

    Batches are a function of configuration and position alone: rank-major concatenation over any number of ranks, any
    number of workers and threads give the same global batches. Under DataLoader workers the batches a worker reads
    ahead do not move this object's position: take ``state_dict(cursor=batch["cursor"])``, and keep one iterator of the
    DataLoader for the whole run, for a new one starts at this object's position again (`load_state_dict` moves it).

    Args:
        config: A mixture.yaml, its content, or a checked configuration.
        batch_size: Samples a batch on this rank.
        rank: This process's rank; default: torch.distributed, then RANK and WORLD_SIZE, then 0 of 1. Settled whenever
            an iteration starts, so that the dataset may be made before the process group.
        world_size: How many ranks; together with ``rank``.
        num_threads: Threads that decode; default: the cores this process may use, one in a DataLoader worker.

    Raises:
        ConfigError: the configuration or an argument is at fault.
        DataError: a set is missing or damaged.
    """

    def __init__(
        self,
        config: MixtureConfig | Mapping[str, Any] | str | Path,
        batch_size: int,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(config, str | Path):
            config = load_mixture(config)
        elif not isinstance(config, MixtureConfig):
            config = MixtureConfig.from_dict(config)
        for name, value in (("batch_size", batch_size), ("num_threads", 1 if num_threads is None else num_threads)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError("bad value", where=name, expected="a whole number from 1", found=value)
        self.config = config
        self.batch_size = batch_size
        self._rank, self._world_size = rank, world_size
        if rank is not None or world_size is not None:
            resolve_place(rank, world_size)
        self._num_threads = num_threads
        self._parent_place: Place | None = None
        self._catalog: Catalog | None = open_catalog(config)
        self._digests = {source.name: source.order.digest for source in self._catalog.sources}
        self._order: MixtureOrder | None = self._catalog.new_order()
        self._state: dict[str, object] = self._order.state_dict()
        self._assembler: Assembler | None = None

    @property
    def catalog(self) -> Catalog:
        """The opened sets; opened again in each new process."""
        if self._catalog is None:
            catalog = open_catalog(self.config)
            digests = {source.name: source.order.digest for source in catalog.sources}
            for name, digest in self._digests.items():
                if digests[name] != digest:
                    raise ConflictError(
                        "the set changed since the dataset was made",
                        where=f"source {name!r}",
                        expected=digest,
                        found=digests[name],
                    )
            self._catalog = catalog
        return self._catalog

    @property
    def place(self) -> Place:
        """Rank and world size of this process, as settled now."""
        parent = self._parent_place if get_worker_info() is not None else None
        return resolve_place(self._rank, self._world_size, parent=parent)

    def state_dict(self, cursor: Mapping[str, Any] | None = None) -> State:
        """The position as a few hundred bytes of JSON types, the same on every rank.

        Args:
            cursor: A batch's ``cursor``: the state is then that after this batch. Needed where a DataLoader with
                workers runs ahead; without it the state is that after the last batch iterated in this process.
        """
        order = self._state if cursor is None else _order_state(cursor)
        return _wrapped(order)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position, before the first batch or between two: the next one follows the saved one.

        Batch size, ranks, workers and threads may differ from those that saved it. New weights and new sources open
        a phase: shares count from there, and no frame is repeated or lost.

        Raises:
            ConflictError: seed, streams, window or a set differ; names each.
            ConfigError: not such a state.
        """
        order = self.catalog.new_order()
        order.load_state_dict(_order_state(state))
        self._state, self._order = order.state_dict(), None

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is None:
            return self._batches(self.place)
        return self._worker_batches(self.place, worker.id, worker.num_workers)

    def _batches(self, place: Place) -> Iterator[Batch]:
        """All batches of a rank, in this process, from the dataset's position on."""
        size = self.batch_size * place.world
        crew = Crew(self._num_threads or len(os.sched_getaffinity(0)))
        try:
            while True:
                if self._order is None:
                    self._order = self.catalog.new_order()
                    self._order.load_state_dict(self._state)
                order, self._order = self._order, None  # stays None, and so is built anew, if the batch fails
                step = order.step(size)
                state = order.state_dict()
                batch = self._batch(step, rank_slice(size, place.rank, place.world), state, crew)
                self._order, self._state = order, state
                yield batch
        finally:
            crew.close()

    def _worker_batches(self, place: Place, worker: int, workers: int) -> Iterator[Batch]:
        """Every ``workers``-th batch of a rank, the ``worker``-th first; leaves the dataset's position alone."""
        size = self.batch_size * place.world
        crew = Crew(self._num_threads or 1)
        order = self.catalog.new_order()
        order.load_state_dict(self._state)
        try:
            for _ in range(worker):
                order.skip(size)
            while True:
                step = order.step(size)
                yield self._batch(step, rank_slice(size, place.rank, place.world), order.state_dict(), crew)
                for _ in range(workers - 1):
                    order.skip(size)
        finally:
            crew.close()

    def _batch(self, step: Step, mine: slice, state: dict[str, object], crew: Crew) -> Batch:
        if self._assembler is None:
            self._assembler = Assembler(self.catalog)
        assembler = self._assembler
        samples = assembler.locate(step.source[mine], step.row[mine])
        memory = BatchMemory(batch_fields(self.catalog.layout, len(samples)))
        tasks = assembler.fill_vectors(samples, memory)
        crew.run(lambda row: assembler.fill_pictures(samples, memory, row), len(samples))
        return {
            **_tensors(memory),
            "task": tasks,
            "extras": assembler.extras(samples),
            "step": step.step,
            "cursor": _wrapped(state),
        }

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: no open set, no memory map; and this process's place, which it can't see."""
        state = self.__dict__.copy()
        state["_catalog"] = state["_order"] = state["_assembler"] = None
        place = self.place
        state["_parent_place"] = place if place != Place(rank=0, world=1) else self._parent_place
        return state


def _tensors(memory: BatchMemory) -> dict[str, torch.Tensor]:
    """The arrays of a batch as tensors over one storage; pictures channels-first by view."""
    flat = torch.from_numpy(memory.flat)
    out: dict[str, torch.Tensor] = {}
    for name, field in memory.fields.items():
        kind = torch.from_numpy(np.empty(0, dtype=field.dtype)).dtype
        out[name] = flat[field.start : field.start + field.nbytes].view(kind).view(field.shape)
    out["images"] = out["images"].permute(0, 1, 2, 5, 3, 4)
    return out


def _wrapped(order: Mapping[str, object]) -> State:
    return {"wdsmix_mixture": STATE_VERSION, "order": dict(order)}


def _order_state(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """The order's part of a state.

    Raises:
        ConfigError: not a state of a MixtureDataset, or one of another version.
    """
    found = state.get("wdsmix_mixture") if isinstance(state, Mapping) else None
    if found != STATE_VERSION or not isinstance(state.get("order"), Mapping):
        raise ConfigError(
            "not a state of a MixtureDataset", expected=f"version {STATE_VERSION}", found=found or type(state).__name__
        )
    order: Mapping[str, Any] = state["order"]
    return order
