"""MixtureDataset: the batches of a weighted mixture, exact and resumable.

A dataset is a stream with one *position*. Iterating it in a process moves the position: whoever iterates again goes on
where the last batch ended. A *state* is a position as JSON types; a batch's ``cursor`` is the state after that batch.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from wdsmix.errors import ConfigError, WdsmixError
from wdsmix.mixture.catalog import Catalog, open_catalog, reopen_catalog
from wdsmix.mixture.config import MixtureConfig, load_mixture
from wdsmix.mixture.metrics import Metrics
from wdsmix.mixture.order import MixtureOrder
from wdsmix.mixture.pipeline import Pending, Pipeline, pipeline_here
from wdsmix.mixture.place import Place, resolve_place
from wdsmix.mixture.position import Arrivals, Origin, Sent, Stands, WorkerPosition, announced, order_state, wrap
from wdsmix.mixture.slots import SlotBatch, listen
from wdsmix.mixture.unbroken import Unbroken
from wdsmix.mixture.upcoming import upcoming

__all__ = ["Batch", "MixtureDataset", "State"]

Batch = dict[str, Any]
State = dict[str, Any]

AHEAD = 2
"""Batches built ahead within a process. Under DataLoader workers the DataLoader's own prefetch takes their place."""


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
    number of workers and threads give the same global batches. Under DataLoader workers this object's position is that
    after the last batch that has come from them with all before it, a few ahead of the consumer: save
    ``state_dict(cursor=batch["cursor"])``, or use StatefulDataLoader. A new iterator of a DataLoader starts at this
    object's position, so keep one for the whole run, or set ``steps_per_epoch``, or go back to the last batch used with
    ``load_state_dict(batch["cursor"])`` first. With ``persistent_workers`` an epoch that is left early counts as done.

    ``on_error: skip`` adds ``replaced`` (bool [B]); ``sample.goal`` adds ``goal_images`` uint8 [B, C, 3, H, W],
    ``goal_image_mask`` bool [B, C], ``goal_offset`` int64 [B] (frames; -1 for a negative), ``goal_negative`` bool [B].

    Batches are built ahead on threads, into memory that is used again once the last tensor of a batch is gone; a batch
    may be held for as long as you like.

    Args:
        config: A mixture.yaml, its content, or a checked configuration.
        batch_size: Samples a batch on this rank.
        rank: This process's rank; default: torch.distributed, then RANK and WORLD_SIZE, then 0 of 1. Settled whenever
            an iteration starts, so that the dataset may be made before the process group.
        world_size: How many ranks; together with ``rank``.
        num_threads: Threads that decode; default: the cores this process may use, one in a DataLoader worker.
        steps_per_epoch: Ends an iteration after so many steps, and is its `len`; the next iteration goes on from there.
        metrics_path: File that gets a JSON line of `metrics` at most every ``metrics_interval_s`` seconds.
        metrics_interval_s: Seconds.

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
        *,
        steps_per_epoch: int | None = None,
        metrics_path: str | Path | None = None,
        metrics_interval_s: float = 60.0,
    ) -> None:
        super().__init__()
        if isinstance(config, str | Path):
            config = load_mixture(config)
        elif not isinstance(config, MixtureConfig):
            config = MixtureConfig.from_dict(config)
        counts = {"batch_size": batch_size, "num_threads": num_threads, "steps_per_epoch": steps_per_epoch}
        for name, value in counts.items():
            if value is None and name != "batch_size":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError("bad value", where=name, expected="a whole number from 1", found=value)
        self.config = config
        self.batch_size = batch_size
        self._rank, self._world_size = rank, world_size
        if rank is not None or world_size is not None:
            resolve_place(rank, world_size)
        self._num_threads = num_threads
        self._steps = steps_per_epoch
        self._parent_place: Place | None = None
        self._catalog: Catalog | None = open_catalog(config)
        self._digests = {source.name: source.order.digest for source in self._catalog.sources}
        self._order: MixtureOrder | None = self._catalog.new_order()
        self._state: Mapping[str, Any] = self._order.state_dict()
        self._pipeline: Pipeline | None = None
        self._turn = 0
        self._moves = self._era = self._loaded_era = 0
        self._arrivals = Arrivals()
        self._rounds_seen = self._rounds_before_load = 0
        self._worker_position: WorkerPosition | None = None
        self._worker_round = 0
        self._worker_begun = False
        self._metrics_options = None if metrics_path is None else Path(metrics_path), metrics_interval_s
        self._sizes = self._order.sizes
        self._sender_token = ""
        self._settle_in()

    def _settle_in(self) -> None:
        """What an object does in the process in which it is made or unpickled."""
        self._home = os.getpid()
        self._token = uuid.uuid4().hex
        weights = {source.name: source.weight for source in self.config.sources}
        self._metrics = Metrics(weights, self._sizes, *self._metrics_options)
        listen(self._token, self._hear_worker)

    @property
    def catalog(self) -> Catalog:
        """The opened sets; opened again in each new process."""
        if self._catalog is None:
            self._catalog = reopen_catalog(self.config, self._digests)
        return self._catalog

    @property
    def place(self) -> Place:
        """Rank and world size of this process, as settled now."""
        parent = self._parent_place if get_worker_info() is not None else None
        return resolve_place(self._rank, self._world_size, parent=parent)

    def __len__(self) -> int:
        """Batches of an iteration.

        Raises:
            TypeError: the stream is endless, without ``steps_per_epoch``.
        """
        if self._steps is None:
            raise TypeError("a MixtureDataset is endless: set steps_per_epoch to give it a length")
        return self._steps

    def metrics(self) -> dict[str, Any]:
        """What the stream did so far, as JSON types: see `Metrics.snapshot`.

        Counted in the process that consumes; DataLoader workers report with each batch.
        """
        return self._metrics.snapshot()

    def state_dict(self, cursor: Mapping[str, Any] | None = None) -> State:
        """The position as a few hundred bytes of JSON types, the same on every rank.

        Args:
            cursor: A batch's ``cursor``: the state is then that after this batch. Needed where a DataLoader with
                workers runs ahead; without it the state is that after the last batch iterated in this process, or
                after the last one that arrived from workers with all before it, at most a few ahead of the consumer.
        """
        if cursor is not None:
            return wrap(order_state(cursor))
        position = self._worker_position
        if position is None:
            return wrap(self._position())
        stands = Stands(origin=self._origin(position), step=position.step, order=position.order)
        return announced(position.state(), (self._parent_token, stands))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes to a saved position, before the first batch or between two: the next one follows the saved one.

        Batch size, ranks, workers and threads may differ from those that saved it. New weights and new sources open
        a phase: shares count from there, and no frame is repeated or lost. Under DataLoader workers the next iterator
        of the DataLoader starts from it.

        Raises:
            ConflictError: seed, streams, window or a set differ; names each.
            ConfigError: not such a state.
        """
        position, info = WorkerPosition.from_state(state), get_worker_info()
        if position is not None:
            position.check(*((info.id, info.num_workers) if info else (0, 0)))
        order = self.catalog.new_order()
        order.load_state_dict(order_state(state))
        self._state, self._arrivals = order.state_dict(), Arrivals()
        self._moves += 1
        self._worker_position, self._worker_begun = position, False
        if info is None:
            self._era += 1
            self._loaded_era, self._rounds_before_load = self._era, self._rounds_seen
            self._metrics.rebase()

    def __iter__(self) -> Iterator[Batch]:
        worker = get_worker_info()
        if worker is None:
            return Unbroken(self._batches(self.place))
        try:
            place = self.place
            self._begin_in_worker(place, worker.id, worker.num_workers)
        except WdsmixError as error:  # raised here, it would kill a persistent worker and say nothing to its parent
            return Unbroken(iter(()), error)
        return Unbroken(self._worker_batches(place))

    def _position(self) -> Mapping[str, Any]:
        return self._state if self._arrivals.order is None else self._arrivals.order

    def _hear_worker(self, message: Sent | Stands) -> None:
        """A worker has sent a batch, or says where it stands."""
        origin = message.origin
        if origin.era == self._era:
            self._rounds_seen = max(self._rounds_seen, origin.round)
            if isinstance(message, Stands):
                self._arrivals.stands(origin, message.step, message.order)
                return
            self._metrics.begin(self._position()["counts"])
            self._arrivals.arrived(origin, message.note.step, order_state(message.note.cursor))
        elif origin.era < self._loaded_era and origin.round > self._rounds_before_load:
            raise ConfigError(
                "load_state_dict does not reach workers that run already",
                where="persistent_workers",
                hint="load the state before the first iteration of the DataLoader, or make a new DataLoader",
            )
        if isinstance(message, Sent):
            self._metrics.add(message.note)

    def _order_at(self, state: Mapping[str, Any]) -> MixtureOrder:
        if self._order is None:
            self._order = self.catalog.new_order()
        self._order.load_state_dict(state)
        return self._order

    def _pipeline_of(self, threads: int, *, shared: bool) -> Pipeline:
        """The pipeline of this process; threads and slots live on from one iteration to the next."""
        self._pipeline = pipeline_here(
            self._pipeline, self.catalog, batch_size=self.batch_size, threads=threads, shared=shared
        )
        return self._pipeline

    def _batches(self, place: Place) -> Iterator[Batch]:
        """The batches of a rank, in this process, from the dataset's position on."""
        self._turn += 1
        turn, moves = self._turn, self._moves
        self._take_over()
        pipeline = self._pipeline_of(self._num_threads or len(os.sched_getaffinity(0)), shared=False)
        jobs = upcoming(pipeline, self._order_at(self._state), place, self.batch_size)
        self._metrics.begin(self._state["counts"])
        queue: deque[Pending] = deque()
        left = self._steps
        try:
            while left is None or left > 0:
                if turn != self._turn or moves != self._moves:  # another iterator or load_state_dict in between
                    pipeline.cancel(*queue)
                    queue.clear()
                    self._turn += 1
                    turn, moves = self._turn, self._moves
                    jobs = upcoming(pipeline, self._order_at(self._position()), place, self.batch_size)
                while len(queue) <= AHEAD and (left is None or len(queue) < left):
                    coming = next(jobs)
                    queue.append(pipeline.start(coming.job, coming.samples))
                left = None if left is None else left - 1
                yield self._deliver(pipeline, queue.popleft())
        finally:
            pipeline.cancel(*queue)

    def _take_over(self) -> None:
        """From here on this process moves the position, and not workers that may still send."""
        self._state, self._arrivals = self._position(), Arrivals()
        self._era += 1

    def _deliver(self, pipeline: Pipeline, pending: Pending) -> Batch:
        waited = time.perf_counter()
        batch, note = pipeline.finish(pending)
        self._metrics.waited(time.perf_counter() - waited)
        self._metrics.add(note)
        if self._arrivals.order is not None:
            self._take_over()
        self._state = order_state(note.cursor)
        return batch

    @property
    def _parent_token(self) -> str:
        """In a worker: by which the dataset in the parent process goes."""
        return self._sender_token if self._home == os.getpid() else self._token

    def _begin_in_worker(self, place: Place, worker: int, workers: int) -> None:
        """Settles where a new iteration of this worker starts: the same in each of them.

        Raises:
            ConfigError: a persistent worker is to begin anew and can't know how far the consumer had come.
        """
        position, total = self._worker_position, self._steps
        resumed = position is not None and not self._worker_begun
        self._worker_begun = True
        self._worker_round += 1
        if resumed:
            return
        start = self._position()
        if position is not None:
            if total is None:
                raise ConfigError(
                    "the DataLoader began a new iteration of an endless stream with persistent workers",
                    where="persistent_workers",
                    hint="set steps_per_epoch, or keep one iterator for the whole run",
                )
            # An iteration that was left early counts as done.
            order = self._order_at(position.order)
            self._skip(order, total - position.index, place)
            start = order.state_dict()
        order = self._order_at(start)
        index = worker if total is None else min(worker, total)
        self._skip(order, index, place)
        self._worker_position = WorkerPosition(id=worker, of=workers, index=index, order=order.state_dict())

    def _origin(self, position: WorkerPosition) -> Origin:
        base = position.step - position.index
        end = None if self._steps is None else base + self._steps
        worker, of = position.id, position.of
        return Origin(worker=worker, of=of, base=base, end=end, era=self._era, round=self._worker_round)

    def _worker_batches(self, place: Place) -> Iterator[Batch]:
        """Every ``of``-th batch of a rank, in a DataLoader worker."""
        position, total = self._worker_position, self._steps
        if position is None:
            return
        pipeline = self._pipeline_of(self._num_threads or 1, shared=True)
        order, index, of = self._order_at(position.order), position.index, position.of
        origin, token = self._origin(position), self._parent_token
        for coming in upcoming(pipeline, order, place, self.batch_size, index=index, of=of, total=total):
            batch, note = pipeline.finish(pipeline.start(coming.job, coming.samples))
            if isinstance(batch, SlotBatch):
                batch.note = token, Sent(origin=origin, note=note)
            self._worker_position = replace(position, index=coming.after, order=coming.order)
            yield batch

    def _skip(self, order: MixtureOrder, steps: int, place: Place) -> None:
        for _ in range(steps):
            order.skip(self.batch_size * place.world)

    def __getstate__(self) -> dict[str, Any]:
        """What another process needs: no open set, no memory map; and this process's place, which it can't see."""
        state = self.__dict__.copy()
        for name in ("_catalog", "_order", "_pipeline"):
            state[name] = None
        for name in ("_metrics", "_arrivals", "_token", "_home"):
            del state[name]
        state["_state"], state["_sender_token"] = self._position(), self._token
        with contextlib.suppress(ConfigError):  # it may not be settled yet
            place = self.place
            state["_parent_place"] = place if place != Place(rank=0, world=1) else self._parent_place
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._arrivals = Arrivals()
        self._settle_in()
