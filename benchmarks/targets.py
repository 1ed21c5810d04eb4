"""The project's goals for speed, each with what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.results import Row

__all__ = ["Target", "targets"]

_OWN = ("wdsmix-threads2", "wdsmix-workers2")
_PEERS = ("mosaic", "litdata", "energon", "hf", "grain")


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """One goal."""

    goal: str
    bound: float
    least: bool
    """Whether the value may not be below the bound; else not above."""
    value: float | None
    """None: not measured."""
    strict: bool = False
    """Whether the bound itself does not do."""

    @property
    def met(self) -> bool | None:
        """None where not measured."""
        if self.value is None:
            return None
        if self.strict and self.value == self.bound:
            return False
        return self.value >= self.bound if self.least else self.value <= self.bound


def targets(table: Sequence[Row], growth: float | None) -> list[Target]:
    """All goals.

    Args:
        table: Of one run.
        growth: From `benchmarks.results.memory_growth`, over ten epochs.
    """
    by_name = {row.name: row for row in table}
    return [*_limits(by_name), *_comparisons(by_name), *_resources(by_name, growth)]


def _limits(table: Mapping[str, Row]) -> list[Target]:
    bounds = {
        "wdsmix-threads1": 1.10,
        "wdsmix-threads2": 1.10,
        "wdsmix-workers2": 1.15,
        "wdsmix-temporal-threads2": 1.10,
        "wdsmix-temporal-workers2": 1.15,
    }
    return [
        Target(
            goal=f"{name}: CPU time, × decoding alone",
            bound=bound,
            least=False,
            value=table[name].cost if name in table else None,
        )
        for name, bound in bounds.items()
    ]


def _comparisons(table: Mapping[str, Row]) -> list[Target]:
    own = table.get("wdsmix-workers2")
    wanted = [("webdataset-docs", 3.0), ("webdataset-tuned", 2.0), *((f"{peer}-tuned", 1.0) for peer in _PEERS)]
    found = []
    for name, bound in wanted:
        peer = table.get(name)
        both = own is not None and peer is not None
        for words, value in (
            ("samples per CPU-second", peer.cpu / own.cpu if both else None),
            ("samples per second", own.rate / peer.rate if both else None),
        ):
            goal = f"wdsmix-workers2: {words}, × {name}"
            found.append(Target(goal=goal, bound=bound, least=True, value=value, strict=bound == 1.0))
    return found


def _resources(table: Mapping[str, Row], growth: float | None) -> list[Target]:
    found = []
    for name in _OWN:
        row = table.get(name)
        for words, bound, value in (
            ("page faults per 1,000 samples", 5000.0, row and row.faults),
            ("CPU-s in the kernel per 1,000 samples", 0.05, row and row.system),
            ("first batch, s", 0.5, row and row.first_batch_s),
            ("peak anonymous + shared memory, MiB", 600.0, row and row.peak_mib),
        ):
            found.append(Target(goal=f"{name}: {words}", bound=bound, least=False, value=value))
    goal = "wdsmix-workers2: memory over ten epochs, × that after warm-up"
    return [*found, Target(goal=goal, bound=1.05, least=False, value=growth)]
