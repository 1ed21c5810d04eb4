"""Exponential moving average of a policy's weights, which evaluates better than the last step's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["Ema"]


class Ema:
    """Follows a model: ``average = d * average + (1 - d) * weight`` after each step, in float32.

    The decay d rises from 0.1 to ``decay`` as (1 + n) / (10 + n) over n updates, so that the first weights, which are
    random, are soon forgotten. What is not floating point is copied.

    Args:
        model: The model to follow.
        decay: Largest d.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._model, self._decay = model, decay
        self.updates = 0
        self._average: dict[str, Tensor] = {name: value.detach().clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes in the model's present weights."""
        decay = min(self._decay, (1 + self.updates) / (10 + self.updates))
        self.updates += 1
        for name, value in self._model.state_dict().items():
            average = self._average[name]
            if average.is_floating_point():
                average.lerp_(value.to(average.dtype), 1 - decay)
            else:
                average.copy_(value)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Within it the model has the averaged weights."""
        kept = {name: value.detach().clone() for name, value in self._model.state_dict().items()}
        self._model.load_state_dict(self._average)
        try:
            yield
        finally:
            self._model.load_state_dict(kept)

    def state_dict(self) -> dict[str, Any]:
        """The averages and how many updates they hold."""
        return {"model": self._average, "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes to a saved state.

        Raises:
            ValueError: it is that of another model.
        """
        saved = state["model"]
        if {name: value.shape for name, value in saved.items()} != {n: v.shape for n, v in self._average.items()}:
            raise ValueError("the averaged weights are those of another model")
        for name, value in saved.items():
            self._average[name].copy_(value)
        self.updates = int(state["updates"])
