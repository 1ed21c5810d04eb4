"""The learning rate over the steps of a run: linear warm-up, then a cosine down to a floor."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from wdsmix.errors import ConfigError

__all__ = ["Schedule"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Schedule:
    """A pure function of the step, so that resuming needs nothing but the step."""

    peak: float
    """Learning rate after the warm-up."""
    warmup: int
    """Steps over which it rises to the peak, in equal parts."""
    total: int
    """Steps at whose end the cosine has come down; the floor from then on."""
    floor: float
    """Share of the peak that is left at the end."""

    def __post_init__(self) -> None:
        if not 0 <= self.warmup <= self.total:
            raise ConfigError(
                "bad value", where="warmup_steps", expected=f"0 to {self.total} (schedule_steps)", found=self.warmup
            )

    def at(self, step: int) -> float:
        """Learning rate of step ``step``, counted from 0."""
        if step < self.warmup:
            return self.peak * (step + 1) / self.warmup
        done = min((step - self.warmup) / max(self.total - self.warmup, 1), 1.0)
        return self.peak * (self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * done)))

    def apply(self, optimizer: torch.optim.Optimizer, step: int) -> float:
        """Sets the rate of all parameter groups for a step; returns it."""
        rate = self.at(step)
        for group in optimizer.param_groups:
            group["lr"] = rate
        return rate
