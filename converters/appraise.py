"""Looks at the shards of a finished conversion, before its manifest is written: see `wdsmix.converters.plausible`.

Reads the frame tables, and of each episode the first, middle and last picture of every camera. What comes out depends
on the shards alone, not on how they came to be written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from wdsmix.converters.plan import Plan
from wdsmix.converters.plausible import Look, Looks, Streams, far_values, look, related, spread_over

from wdsmix.errors import DataError
from wdsmix.report.moments import moments
from wdsmix.shards.finish import pooled_stats
from wdsmix.shards.receipt import EpisodeRow, ShardReceipt
from wdsmix.shards.shardfile import ShardFile

__all__ = ["Appraisal", "appraise"]

_MOST_FAR = 8


@dataclass(kw_only=True, slots=True)
class Appraisal:
    """What the set shows."""

    facts: dict[str, object] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    lines: dict[str, str] = field(default_factory=dict)
    """For the summary."""


def appraise(folder: Path, plan: Plan, receipts: Iterable[ShardReceipt]) -> Appraisal:
    """Looks at every episode.

    Args:
        folder: Of the shards.
        plan: Of the set.
        receipts: One a shard.
    """
    receipts = list(receipts)
    streams = Streams(
        names={name: vector.names for name, vector in plan.vectors.items()},
        kinds={name: vector.kinds for name, vector in plan.vectors.items()},
        fps=plan.hz,
        # headings of a robot that drives are unwrapped
        limits=_limits(plan),
        units={} if "navigation" in plan.details else {name: vector.units for name, vector in plan.vectors.items()},
    )
    looks = Looks(streams=streams)
    compared = spread_over(sum(len(receipt.episodes) for receipt in receipts))
    if "relation" in plan.details or "navigation" in plan.details:  # measured by the family, or of another meaning
        compared = set()
    number = 0
    for receipt in receipts:
        for row, shard in _opened(folder, plan, receipt):
            vectors = _vectors(shard, row)
            looks.add(f"{row.source_file}/{row.source_episode}", _look(plan, shard, row, vectors))
            relation = related(vectors) if number in compared else None
            if relation is not None:
                looks.relation.episodes.append(relation)
            number += 1
    facts, warnings, lines = looks.tell()
    far = far_values(streams, pooled_stats(receipts, list(plan.vectors)).fields)
    if len(far) > _MOST_FAR:
        far = [*far[:_MOST_FAR], f"... and {len(far) - _MOST_FAR} more dimensions with values far out"]
    return Appraisal(facts=facts, warnings=[*warnings, *far], lines=lines)


def _limits(plan: Plan) -> dict[str, float]:
    """The limits that the source tells; none where frames were skipped, whose commands may be sums."""
    told = plan.details.get("limits")
    if not isinstance(told, dict) or plan.hz != plan.source_fps:
        return {}
    return {str(vector): float(limit) for vector, limit in told.items() if isinstance(limit, (int, float))}


def _opened(folder: Path, plan: Plan, receipt: ShardReceipt) -> Iterator[tuple[EpisodeRow, ShardFile]]:
    if not receipt.episodes:
        return
    files = {entry.name: entry for entry in receipt.files}
    widths = {name: vector.width for name, vector in plan.vectors.items()}
    try:
        shard = ShardFile(folder, receipt.shard, files, widths, verify=False)
    except (DataError, OSError):
        return  # finishing the set, or validating it, says so
    for row in receipt.episodes:
        yield row, shard


def _vectors(shard: ShardFile, row: EpisodeRow) -> Mapping[str, npt.NDArray[np.float32]]:
    part = slice(row.first_row, row.first_row + row.frames)
    return {name: values[part] for name, values in shard.vectors.items() if shard.present[name][part].all()}


def _look(plan: Plan, shard: ShardFile, row: EpisodeRow, vectors: Mapping[str, npt.NDArray[np.float32]]) -> Look:
    pictures: dict[str, list[bytes | npt.NDArray[np.uint8]]] = {}
    try:
        for frame in moments(row.frames):
            members = shard.members(row.first_row + frame, verify=False)
            for slot, camera in plan.cameras.items():
                data = members.get(f"{slot}.{camera.suffix}")
                if data is not None and camera.kind == "rgb":
                    pictures.setdefault(slot, []).append(bytes(data))
    except DataError:
        pictures = {}
    return look(vectors, pictures)
