"""EvaluationDataset: one exact pass over a split, every frame once over all ranks."""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from wdsmix.errors import ConfigError
from wdsmix.mixture.catalog import Catalog, open_catalog, reopen_catalog
from wdsmix.mixture.config import MixtureConfig, load_mixture
from wdsmix.mixture.evaluation import EvaluationOrder
from wdsmix.mixture.explain import did_you_mean
from wdsmix.mixture.order import rank_slice
from wdsmix.mixture.pipeline import Job, Pending, Pipeline, pipeline_here
from wdsmix.mixture.place import Place, resolve_place
from wdsmix.mixture.slots import SlotBatch, listen
from wdsmix.mixture.unbroken import Unbroken

__all__ = ["EvaluationDataset"]

AHEAD = 2


class EvaluationDataset(IterableDataset[dict[str, Any]]):
    """The frames of a split in order, once each; batches as those of `MixtureDataset`, with ``valid`` (bool [B]).

    All ranks have the same number of batches. The last batch is filled up with samples that are not ``valid``; so is a
    sample that stands in for an unreadable one (``on_error: skip``): leave both out of every mean. Weights play no
    part; vectors are scaled by the statistics of the train split. Iterating again begins anew.

    Args:
        config: A mixture.yaml, its content, or a checked configuration.
        batch_size: Samples a batch on this rank.
        split: The split of every source, in place of the one that the configuration names.
        sources: Names of the sources to evaluate; default: all. Layout, scales and ids stay those of the whole mixture.
        rank: As for `MixtureDataset`.
        world_size: As for `MixtureDataset`.
        num_threads: As for `MixtureDataset`.

    Raises:
        ConfigError: a source lacks the split, or an argument is at fault.
    """

    def __init__(
        self,
        config: MixtureConfig | Mapping[str, Any] | str | Path,
        batch_size: int,
        split: str = "val",
        *,
        sources: Sequence[str] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_threads: int | None = None,
    ) -> None:
        super().__init__()
        if isinstance(config, str | Path):
            config = load_mixture(config)
        elif not isinstance(config, MixtureConfig):
            config = MixtureConfig.from_dict(config)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise ConfigError("bad value", where="batch_size", expected="a whole number from 1", found=batch_size)
        self.batch_size = batch_size
        self.config, self._chosen = _of_split(config, split, sources)
        self._rank, self._world_size, self._num_threads = rank, world_size, num_threads
        self._parent_place: Place | None = None
        self._catalog: Catalog | None = None
        self._digests: dict[str, str] = {}
        self._pipeline: Pipeline | None = None
        self._token = uuid.uuid4().hex
        listen(self._token, self._ignore)
        self._order = EvaluationOrder(
            [int(source.ends[-1]) if source.name in self._chosen else 0 for source in self.catalog.sources]
        )

    @property
    def catalog(self) -> Catalog:
        """The opened sets; opened again in each new process."""
        if self._catalog is None:
            catalog = reopen_catalog(self.config, self._digests) if self._digests else open_catalog(self.config)
            self._digests = {source.name: source.order.digest for source in catalog.sources}
            marks = tuple(dict.fromkeys([*catalog.layout.marks, "valid"]))
            self._catalog = replace(catalog, layout=replace(catalog.layout, marks=marks))
        return self._catalog

    @property
    def frames(self) -> int:
        """Frames of the pass, over all ranks."""
        return self._order.size

    @property
    def place(self) -> Place:
        """Rank and world size of this process, as settled now."""
        parent = self._parent_place if get_worker_info() is not None else None
        return resolve_place(self._rank, self._world_size, parent=parent)

    def __len__(self) -> int:
        """Batches of a pass on each rank."""
        return self._order.steps(self.batch_size * self.place.world)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        if worker is None:
            threads = self._num_threads or len(os.sched_getaffinity(0))
            return Unbroken(self._batches(range(len(self)), self._pipeline_of(threads, shared=False), AHEAD))
        steps = range(worker.id, len(self), worker.num_workers)
        return Unbroken(self._batches(steps, self._pipeline_of(self._num_threads or 1, shared=True), 0))

    def _pipeline_of(self, threads: int, *, shared: bool) -> Pipeline:
        self._pipeline = pipeline_here(
            self._pipeline, self.catalog, batch_size=self.batch_size, threads=threads, shared=shared
        )
        return self._pipeline

    def _batches(self, steps: range, pipeline: Pipeline, ahead: int) -> Iterator[dict[str, Any]]:
        place = self.place
        size = self.batch_size * place.world
        mine = rank_slice(size, place.rank, place.world)
        queue: deque[Pending] = deque()
        left = iter(steps)
        try:
            for _ in steps:
                while len(queue) <= ahead and (number := next(left, None)) is not None:
                    step = self._order.step(number, size)
                    job = Job(
                        step=number,
                        source=step.source[mine],
                        row=step.row[mine],
                        draw=step.row[mine],
                        valid=step.valid[mine],
                        cursor={},
                    )
                    queue.append(pipeline.start(job))
                yield self._deliver(pipeline, queue.popleft())
        finally:
            pipeline.cancel(*queue)

    def _deliver(self, pipeline: Pipeline, pending: Pending) -> dict[str, Any]:
        batch, _ = pipeline.finish(pending)
        if isinstance(batch, SlotBatch):
            batch.note = self._token, None
        return batch

    def _ignore(self, message: None) -> None:
        """Nothing to follow; but the memory of workers is let go with the object that listens."""

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_catalog"] = state["_pipeline"] = None
        with contextlib.suppress(ConfigError):  # it may not be settled yet
            place = self.place
            state["_parent_place"] = place if place != Place(rank=0, world=1) else self._parent_place
        return state


def _of_split(config: MixtureConfig, split: str, names: Sequence[str] | None) -> tuple[MixtureConfig, frozenset[str]]:
    """The configuration with the split of the named sources replaced, and their names.

    The other sources stay in it, unread: the layout of a sample, norm groups and source ids are those of the mixture.
    """
    known = [source.name for source in config.sources]
    for name in names or ():
        if name not in known:
            raise ConfigError(f"no source {name!r}", path=config.path, where="sources", hint=did_you_mean(name, known))
    chosen = frozenset(known if names is None else names)
    if not chosen:
        raise ConfigError("no sources to evaluate", path=config.path, where="sources")
    sources = [
        source.model_copy(update={"split": split}) if source.name in chosen else source for source in config.sources
    ]
    return config.model_copy(update={"sources": sources}), chosen
