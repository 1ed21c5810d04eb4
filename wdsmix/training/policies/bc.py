"""Behaviour cloning: a convolutional picture encoder, a state encoder, and a fused layer that names all K actions."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from wdsmix.training.policies.base import Policy, PolicyBatch, PolicyConfig
from wdsmix.training.policies.losses import action_loss
from wdsmix.training.policies.networks import ActionHead, ObservationEncoder

__all__ = ["BehaviourCloning"]


class BehaviourCloning(Policy):
    """Regression of the action chunk.

    Args:
        config: Its shape.
    """

    class Config(PolicyConfig):
        """Shape and options."""

        policy: str = "bc"
        loss: Literal["l1", "mse", "huber"] = "mse"

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.observation = ObservationEncoder(config)
        self.head = ActionHead(config)

    def losses(self, batch: PolicyBatch) -> dict[str, Tensor]:
        """See `Policy.losses`."""
        found = action_loss(self.head(self.observation(batch)), batch, self.config.loss)
        return {name: value.mean() for name, value in found.items()}

    def act(self, batch: PolicyBatch) -> Tensor:
        """See `Policy.act`."""
        out: Tensor = self.head(self.observation(batch)).float()
        return out * batch.action_mask[:, None, :]
