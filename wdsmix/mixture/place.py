"""Place: which rank of how many this process is.

Three may say so: the caller's arguments, torch.distributed once it is initialised, and the variables RANK and
WORLD_SIZE that launchers set. Those that say something must agree: a wrong rank trains on a part of the data, silently.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from wdsmix.errors import ConfigError

__all__ = ["Place", "resolve_place"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Rank ``rank`` of ``world``."""

    rank: int
    world: int

    def __post_init__(self) -> None:
        if self.world < 1 or not 0 <= self.rank < self.world:
            raise ConfigError(
                "bad rank", where="rank and world size", expected="0 <= rank < world size", found=self._text()
            )

    def _text(self) -> str:
        return f"rank {self.rank} of {self.world}"

    def __str__(self) -> str:
        return self._text()


def resolve_place(rank: int | None, world_size: int | None, *, parent: Place | None = None) -> Place:
    """Settles the place from whoever says something: arguments, torch.distributed, environment; else rank 0 of 1.

    Args:
        rank: The caller's; with ``world_size`` or not at all.
        world_size: The caller's.
        parent: In a worker process: what the process that made it had settled on.

    Raises:
        ConfigError: they disagree, or one is half given or out of range.
    """
    said: dict[str, Place] = {}
    if (rank is None) != (world_size is None):
        raise ConfigError("rank and world_size belong together", where="rank and world size", expected="both or none")
    if rank is not None and world_size is not None:
        said["the arguments"] = Place(rank=rank, world=world_size)
    group = _from_torch()
    if group is not None:
        said["torch.distributed"] = group
    if parent is not None:
        said["the parent process"] = parent
    variables = _from_environment(next(iter(said.values()), None))
    if variables is not None:
        said["RANK and WORLD_SIZE"] = variables
    if not said:
        return Place(rank=0, world=1)
    if len(set(said.values())) > 1:
        raise ConfigError(
            "they disagree on the place of this process",
            where="rank and world size",
            expected="one answer",
            found=", ".join(f"{place} by {who}" for who, place in said.items()),
        )
    return next(iter(said.values()))


def _from_torch() -> Place | None:
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        return None
    return Place(rank=dist.get_rank(), world=dist.get_world_size())


def _from_environment(known: Place | None) -> Place | None:
    """What the variables say; ``known`` fills in for one that is not set (Lightning sets WORLD_SIZE alone)."""
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if texts == (None, None):
        return None
    try:
        rank, world = (None if text is None else int(text) for text in texts)
    except ValueError as error:
        raise ConfigError(
            "not a number",
            where="RANK and WORLD_SIZE",
            expected="whole numbers",
            found=" and ".join(repr(text) for text in texts),
        ) from error
    if known is None and None in (rank, world) and (rank or 0, world or 1) != (0, 1):
        raise ConfigError(
            f"{'RANK' if rank is None else 'WORLD_SIZE'} is not set though the other is",
            where="rank and world size",
            expected="both variables or none",
            hint="Lightning sets WORLD_SIZE alone: iterate when its process group is there, or pass both as arguments",
        )
    known = known or Place(rank=0, world=1)
    return Place(rank=known.rank if rank is None else rank, world=known.world if world is None else world)
