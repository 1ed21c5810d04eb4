"""Losses over what is real: float32, also under autocast, and exactly 0, with gradient exactly 0, where masked."""

from __future__ import annotations

import torch
from torch import Tensor

from wdsmix.training.policies.base import PolicyBatch

__all__ = ["action_loss", "action_weight", "known_actions", "masked_mean"]


def action_weight(batch: PolicyBatch) -> Tensor:
    """Bool [B, K, Da]: the actions that count."""
    return batch.action_mask[:, None, :] & ~batch.action_is_pad[:, :, None]


def known_actions(batch: PolicyBatch) -> Tensor:
    """The recorded actions as an input, float32 [B, K, Da]; 0 where they do not count."""
    return torch.where(action_weight(batch), batch.action, 0.0)


def masked_mean(values: Tensor, real: Tensor) -> Tensor:
    """Mean of each sample's real numbers, float32 [B]; 0 for a sample without any.

    Args:
        values: float [B, ...].
        real: bool, of the same shape.
    """
    kept = torch.where(real, values.float(), 0.0).flatten(1)
    return kept.sum(1) / real.flatten(1).sum(1).clamp(min=1)


def action_loss(predicted: Tensor, batch: PolicyBatch, kind: str) -> dict[str, Tensor]:
    """Distance of predicted actions to those of the batch, a number a sample, float32 [B].

    Args:
        predicted: float [B, K, Da].
        batch: Holds the actions and masks.
        kind: Which of them is the ``loss``: ``l1``, ``mse`` or ``huber``.

    Returns:
        ``loss``, ``mse`` and ``l1``.
    """
    real = action_weight(batch)
    # Masked before squaring: what lies in padding, were it NaN, reaches neither the loss nor a gradient.
    error = torch.where(real, predicted.float() - batch.action.float(), 0.0)
    mse, l1 = masked_mean(error.square(), real), masked_mean(error.abs(), real)
    if kind == "huber":
        size = error.abs()
        loss = masked_mean(torch.where(size < 1, 0.5 * error.square(), size - 0.5), real)
    else:
        loss = {"mse": mse, "l1": l1}[kind]
    return {"loss": loss, "mse": mse, "l1": l1}
