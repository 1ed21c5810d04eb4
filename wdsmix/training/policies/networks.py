"""Parts that policies share: picture encoder, observation encoder, action head, attention.

All statistics are within a sample (GroupNorm, LayerNorm), never over a batch: those would mix in padding.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wdsmix.training.policies.base import PolicyBatch, PolicyConfig
from wdsmix.training.policies.linear import GrowingInput, GrowingOutput, GrowingTable

__all__ = [
    "ActionHead",
    "Attention",
    "Block",
    "ImageEncoder",
    "Keypoints",
    "ObservationEncoder",
    "PictureTokens",
    "StateEncoder",
    "fuse",
]

GROUPS = 8


class ImageEncoder(nn.Module):
    """A small convolutional network, for the pictures that are there.

    Args:
        config: Gives ``width``.
    """

    STRIDE = 16
    """Pixels of a side that one place of the result stands for."""

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.width = config.width
        layers: list[nn.Module] = []
        sides = (3, 32, 48, 64)
        for place, (inputs, outputs) in enumerate(pairwise(sides)):
            layers += [
                nn.Conv2d(inputs, outputs, 5 if place == 0 else 3, stride=2, padding=2 if place == 0 else 1),
                nn.GroupNorm(GROUPS, outputs),
                nn.SiLU(),
            ]
        layers += [nn.Conv2d(sides[-1], config.width, 3, stride=2, padding=1), nn.GroupNorm(GROUPS, config.width)]
        self.layers = nn.Sequential(*layers)

    def forward(self, images: Tensor) -> Tensor:
        """From [N, 3, H, W] to [N, width, H/16, W/16] (rounded up)."""
        out: Tensor = self.layers(images)
        return out


class Keypoints(nn.Module):
    """What is where: for each channel the mean place of its softmax, and its mean, as one token a picture.

    Args:
        width: Channels in, features out.
        points: Channels whose places are taken.
    """

    def __init__(self, width: int, points: int = 32) -> None:
        super().__init__()
        self.points = nn.Conv2d(width, points, 1)
        self.project = nn.Linear(2 * points + width, width)

    def forward(self, features: Tensor) -> Tensor:
        """From [N, width, h, w] to [N, width]."""
        scores = self.points(features).float()
        n, points, h, w = scores.shape
        soft = scores.flatten(2).softmax(-1).view(n, points, h, w)
        y, x = (torch.linspace(-1, 1, side, device=soft.device) for side in (h, w))
        places = torch.cat([(soft.sum(3) * y).sum(2), (soft.sum(2) * x).sum(2)], 1)
        mean = F.silu(features).mean((2, 3))
        out: Tensor = self.project(torch.cat([places.to(mean.dtype), mean], 1))
        return out


class StateEncoder(nn.Module):
    """State vector and robot, as one token a time step.

    Args:
        config: Gives widths and number of robots.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.state = GrowingInput("state", config.state_dim, config.width)
        self.embodiment_embed = GrowingTable(config.num_embodiments, config.width)
        nn.init.normal_(self.embodiment_embed.weight, std=0.1)
        self.mlp = nn.Sequential(nn.SiLU(), nn.Linear(config.width, config.width))

    def forward(self, state: Tensor, embodiment_id: Tensor) -> Tensor:
        """From [B, T, Ds] and [B] to [B, T, width]."""
        out: Tensor = self.mlp(self.state(state) + self.embodiment_embed(embodiment_id)[:, None, :])
        return out


class PictureTokens(nn.Module):
    """One token for each picture of a window; a learned one stands where there is no picture.

    Args:
        config: Gives the number of cameras.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.encoder = ImageEncoder(config)
        self.keypoints = Keypoints(config.width)
        self.absent_embed = nn.Parameter(torch.zeros(config.cameras, config.width))

    def forward(self, images: Tensor, mask: Tensor) -> Tensor:
        """From [B, T, C, 3, H, W] and [B, T, C] to [B, T, C, width]."""
        out = self.absent_embed.expand(*mask.shape, -1)
        tokens = self.keypoints(self.encoder(images[mask]))
        return out.masked_scatter(mask[..., None], tokens.to(out.dtype))


class ObservationEncoder(nn.Module):
    """A window of observations as one vector: pictures and state of each step, fused; then all steps, fused.

    Args:
        config: Gives its shape.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width, steps = config.width, config.history
        self.pictures = PictureTokens(config)
        self.state = StateEncoder(config)
        self.step = fuse((config.cameras + 1) * width, width)
        self.outside_embed = nn.Parameter(torch.zeros(steps, width))
        self.window = fuse(steps * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def encode(self, images: Tensor, mask: Tensor, state: Tensor, is_pad: Tensor, robot: Tensor) -> Tensor:
        """The window, [B, width], from the fields of a `PolicyBatch`."""
        tokens = self.pictures(images, mask & ~is_pad[:, :, None]).flatten(2)
        steps = self.step(torch.cat([tokens, self.state(state, robot)], -1))
        steps = torch.where(is_pad[:, :, None], self.outside_embed.to(steps.dtype), steps)
        out: Tensor = self.dropout(self.window(steps.flatten(1)))
        return out

    def forward(self, batch: PolicyBatch) -> Tensor:
        """The batch's window, [B, width]."""
        return self.encode(batch.images, batch.image_mask, batch.state, batch.observation_is_pad, batch.embodiment_id)


class ActionHead(nn.Module):
    """From a vector to K actions.

    Args:
        config: Gives K, its width and the actions' width.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.shape = (config.chunk, config.width)
        self.steps = nn.Linear(config.width, config.chunk * config.width)
        self.action = GrowingOutput("action", config.width, config.action_dim)

    def forward(self, features: Tensor) -> Tensor:
        """From [B, width] to [B, K, Da]."""
        out: Tensor = self.action(F.silu(self.steps(features).unflatten(-1, self.shape)))
        return out


def fuse(inputs: int, width: int) -> nn.Sequential:
    """Two layers over tokens laid side by side."""
    return nn.Sequential(nn.Linear(inputs, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())


class Attention(nn.Module):
    """Multi-head attention of tokens to tokens.

    Args:
        width: Features of a token.
        heads: Heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.pair = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor, mask: Tensor) -> Tensor:
        """From [B, N, width], attending to ``seen`` [B, M, width] where ``mask`` (bool, to [B, 1, N, M]) is True."""
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.pair(seen).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        projected: Tensor = self.out(out.transpose(1, 2).flatten(2))
        return projected


class Block(nn.Module):
    """A transformer block: self-attention, attention to a context where there is one, and a feed-forward layer.

    Args:
        width: Features of a token.
        heads: Heads.
        dropout: Of each branch.
        crosses: Whether it attends to a context.
    """

    def __init__(self, width: int, heads: int, dropout: float, *, crosses: bool = False) -> None:
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.cross_norm = nn.LayerNorm(width) if crosses else None
        self.cross = Attention(width, heads) if crosses else None
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, mask: Tensor, context: Tensor | None = None, context_mask: Tensor | None = None
    ) -> Tensor:
        """From [B, N, width] to the same; masks as in `Attention`."""
        y = self.norm(x)
        x = x + self.dropout(self.attention(y, y, mask))
        if self.cross is not None and self.cross_norm is not None and context is not None and context_mask is not None:
            x = x + self.dropout(self.cross(self.cross_norm(x), context, context_mask))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out
