"""Upcoming: the next batches of a rank, or of one of its workers, found several at a time.

What arithmetic costs here is the calls, and the caches that decoding has emptied since the last one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from wdsmix.mixture.assemble import Samples
from wdsmix.mixture.order import MixtureOrder, rank_slice
from wdsmix.mixture.pipeline import Job, Pipeline
from wdsmix.mixture.place import Place
from wdsmix.mixture.position import wrap

__all__ = ["Upcoming", "upcoming"]

_AT_ONCE = 1024
"""Samples of all ranks and builders."""


class Upcoming(NamedTuple):
    """A batch to build, and the position that has been reached with it."""

    job: Job
    samples: Samples
    after: int
    """Number, within the iteration, of the batch that follows."""
    order: Mapping[str, Any]
    """State of the order before that batch."""


def upcoming(
    pipeline: Pipeline,
    order: MixtureOrder,
    place: Place,
    batch_size: int,
    *,
    index: int = 0,
    of: int = 1,
    total: int | None = None,
) -> Iterator[Upcoming]:
    """Every ``of``-th batch from where ``order`` stands, which is batch ``index`` of the iteration.

    Args:
        pipeline: Locates samples.
        order: Moved ahead of what is yielded: each item says where it stands.
        place: Rank and world size.
        batch_size: Samples a batch on this rank.
        index: Number of the first batch.
        of: Builders who take turns.
        total: Batches of the iteration; None: no end.
    """
    size = batch_size * place.world
    mine = rank_slice(size, place.rank, place.world)
    pipeline.share(order.orders)
    while total is None or index < total:
        jobs: list[tuple[Job, int, Mapping[str, Any]]] = []
        for _ in range(max(1, _AT_ONCE // (size * of))):
            if total is not None and index >= total:
                break
            step = order.step(size)
            job = Job(
                step=step.step,
                source=step.source[mine],
                row=step.row[mine],
                draw=step.draw[mine],
                cursor=wrap(order.state_dict()),
            )
            hop = of - 1 if total is None else min(of - 1, total - 1 - index)
            for _ in range(hop):
                order.skip(size)
            index += 1 + hop
            jobs.append((job, index, order.state_dict()))
        located = pipeline.locate([job for job, _, _ in jobs])
        for (job, after, state), samples in zip(jobs, located, strict=True):
            yield Upcoming(job, samples, after, state)
