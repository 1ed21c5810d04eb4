"""A small policy over the batches of any mixture; the other examples train it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Policy(nn.Module):
    """Pictures and state of the last observation to a chunk of actions."""

    def __init__(self, batch: dict[str, Any]) -> None:
        super().__init__()
        action = batch["action"]
        self.eyes = nn.Sequential(nn.Conv2d(3, 16, 8, 8), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.head = nn.Sequential(nn.LazyLinear(64), nn.GELU(), nn.Linear(64, action[0].numel()))
        self.shape = action.shape[1:]
        self.robots = nn.Embedding(64, 8)
        self({name: batch[name] for name in ("images", "image_mask", "state", "embodiment_id")})  # sizes lazy layers

    def forward(self, batch: dict[str, Any]) -> torch.Tensor:
        """Actions, float32 [B, K, Da]."""
        images = batch["images"][:, -1].float() / 255 - 0.5  # [B, cams, 3, H, W]
        seen = self.eyes(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        seen = seen * batch["image_mask"][:, -1, :, None]  # cameras that a robot lacks say nothing
        parts = [seen.flatten(1), batch["state"][:, -1], self.robots(batch["embodiment_id"])]
        return self.head(torch.cat(parts, dim=1)).unflatten(1, self.shape)

    def loss(self, batch: dict[str, Any]) -> torch.Tensor:
        """Mean squared error over the actions that exist: within the episode, and of this robot's dimensions."""
        real = ~batch["action_is_pad"][:, :, None] & batch["action_mask"][:, None, :]
        error = functional.mse_loss(self(batch), batch["action"], reduction="none")
        return (error * real).sum() / real.sum().clamp(min=1)
