"""Many processes: one a GPU (or a CPU process each), as torchrun starts them.

Gradients are averaged by DistributedDataParallel. Everything else that ranks must agree on goes through `Group`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from wdsmix.errors import ConfigError

if TYPE_CHECKING:
    from wdsmix.training.policies.base import Policy, PolicyBatch

__all__ = ["Group", "joined", "leads_by_environment", "parallel"]

DEVICES = "auto, cpu, cuda or cuda:N"


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """This process among those of the run."""

    rank: int
    world: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes files and talks."""
        return self.rank == 0

    def total(self, values: Tensor) -> Tensor:
        """Sum over all ranks, in place, on any device; returns its argument."""
        if self.world > 1:
            if self.device.type == "cuda":  # nccl sums on the GPU alone
                moved = values.to(self.device)
                dist.all_reduce(moved)
                values.copy_(moved)
            else:
                dist.all_reduce(values)
        return values

    def largest(self, *values: int) -> list[int]:
        """Elementwise maximum over all ranks."""
        if self.world == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64, device=self.device)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
        return [int(value) for value in tensor]

    def gathered(self, value: Any) -> list[Any]:
        """Each rank's value, by rank, on all ranks."""
        if self.world == 1:
            return [value]
        out: list[Any] = [None] * self.world
        dist.all_gather_object(out, value)
        return out

    def barrier(self) -> None:
        """Waits for all ranks."""
        if self.world > 1:
            dist.barrier()


@contextmanager
def joined(device: str = "auto", *, timeout_s: float = 1800.0) -> Iterator[Group]:
    """Joins the process group that torchrun's variables describe; alone without them.

    Args:
        device: ``auto`` (a GPU where there is one), ``cpu``, ``cuda`` or ``cuda:N``. Each rank takes the GPU of its
            LOCAL_RANK.
        timeout_s: How long a rank waits for the others.

    Raises:
        ConfigError: no such device, or no way to the other ranks.
    """
    chosen = _device(device)
    if not _by_torchrun():
        yield Group(rank=0, world=1, device=chosen)
        return
    ours = not dist.is_initialized()
    if ours:
        if chosen.type == "cuda":
            torch.cuda.set_device(chosen)
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"can't join the other ranks: {reason}",
                where="RANK and WORLD_SIZE",
                hint="start with torchrun, or unset them",
            ) from error
    try:
        yield Group(rank=dist.get_rank(), world=dist.get_world_size(), device=chosen)
    finally:
        if ours:
            dist.destroy_process_group()


def leads_by_environment() -> bool:
    """Whether this process is the one that writes files, known before it joins the others."""
    return not _by_torchrun() or os.environ["RANK"] == "0"


def _by_torchrun() -> bool:
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def _device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError("no such device", where="device", expected=DEVICES, found=name) from error
    if device.type not in ("cpu", "cuda"):
        raise ConfigError("no device to train on", where="device", expected=DEVICES, found=name)
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if device.type == "cuda" and torch.cuda.is_available():
        count = torch.cuda.device_count()
        if device.index >= count:
            raise ConfigError("no such GPU", where="device", expected=f"one of {count}", found=str(device))
    return device


class _Losses(nn.Module):
    """A policy whose forward pass is its losses, as DistributedDataParallel wants it."""

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: PolicyBatch) -> dict[str, Tensor]:
        return self.policy.losses(batch)


def parallel(policy: Policy, group: Group) -> nn.Module:
    """A module that maps a `PolicyBatch` to the policy's losses, and averages gradients over the ranks."""
    losses = _Losses(policy)
    if group.world == 1:
        return losses
    return DistributedDataParallel(losses)
