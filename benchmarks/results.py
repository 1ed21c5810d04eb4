"""From single measurements to a row a contender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.settings import CONTENDERS, Contender

__all__ = ["QUIET", "Row", "memory_growth", "rows"]

QUIET = 0.05
"""Cores that others may use in a window whose samples/s count."""

Record = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """Medians over the rounds."""

    name: str
    windows: int
    quiet: int
    """Windows with less than `QUIET` cores of foreign load."""
    cpu: float
    """CPU-seconds a thousand samples."""
    cpu_least: float
    cpu_most: float
    cost: float
    """CPU time over that of decoding the same number of pictures in the same round."""
    system: float
    """CPU-seconds in the kernel, a thousand samples."""
    rate: float
    """Samples a second: of the quiet windows where there are any, else of all."""
    rate_best: float
    faults: float
    """Page faults a thousand samples."""
    first_batch_s: float
    peak_mib: float
    share_gap: float
    """Largest difference of a source's share from its weight in any run."""

    @property
    def contender(self) -> Contender:
        """What was measured."""
        return CONTENDERS[self.name]


def _anchors(records: Sequence[Record], subsampling: str) -> dict[int, float]:
    name = "decode" if subsampling == "444" else f"decode-{subsampling}"
    found: dict[int, list[float]] = {}
    for record in records:
        if record["contender"] == name and "error" not in record:
            found.setdefault(record["round"], []).append(record["cpu"])
    return {turn: median(values) for turn, values in found.items()}


def rows(records: Sequence[Record]) -> list[Row]:
    """One row a contender that gave numbers, in the order of `CONTENDERS`.

    Args:
        records: As `benchmarks.rounds.run_rounds` gives them.
    """
    table = []
    for name, contender in CONTENDERS.items():
        mine = [record for record in records if record["contender"] == name and "error" not in record]
        if not mine:
            continue
        limit = _anchors(records, contender.subsampling)
        scale = contender.pictures / 2
        costs = [record["cpu"] / (limit[record["round"]] * scale) for record in mine if record["round"] in limit]
        quiet = [record for record in mine if record["foreign_cores"] < QUIET]
        cpus = [record["cpu"] for record in mine]
        table.append(
            Row(
                name=name,
                windows=len(mine),
                quiet=len(quiet),
                cpu=median(cpus),
                cpu_least=min(cpus),
                cpu_most=max(cpus),
                cost=median(costs) if costs else float("nan"),
                rate=median(record["samples_per_s"] for record in quiet or mine),
                rate_best=max(record["samples_per_s"] for record in mine),
                share_gap=max(record["share_gap"] for record in mine),
                **{
                    field: median(record[field] for record in mine)
                    for field in ("system", "faults", "first_batch_s", "peak_mib")
                },
            )
        )
    return table


def memory_growth(memory: Sequence[tuple[float, float]]) -> float | None:
    """How far memory rises after the first tenth of a long window.

    Args:
        memory: [seconds since the window began, MiB] pairs.

    Returns:
        The highest later reading over the highest of the first tenth; None with too few readings.
    """
    inside = [(at, mib) for at, mib in memory if at >= 0]
    if len(inside) < 20:
        return None
    end = inside[-1][0]
    early = [mib for at, mib in inside if at <= end / 10]
    late = [mib for at, mib in inside if at > end / 10]
    return max(late) / max(early)
