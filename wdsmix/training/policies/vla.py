"""Vision, language, action: K action queries that attend to picture patches, the task's words and the robot's state."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from wdsmix.training.policies.base import Policy, PolicyBatch, PolicyConfig
from wdsmix.training.policies.linear import GrowingOutput
from wdsmix.training.policies.losses import action_loss
from wdsmix.training.policies.networks import Block, ImageEncoder, StateEncoder
from wdsmix.training.policies.text import text_encoder

__all__ = ["VisionLanguageAction"]


class VisionLanguageAction(Policy):
    """All K actions at once, by cross-attention.

    Args:
        config: Its shape.
    """

    class Config(PolicyConfig):
        """Shape and options."""

        policy: str = "vla"
        loss: Literal["l1", "mse", "huber"] = "mse"
        layers: Annotated[int, Field(ge=1)] = 3
        heads: Literal[1, 2, 4, 8, 16] = 4
        text_encoder: Annotated[str, Field(min_length=1)] = "hashed"
        """``hashed``: word pieces, learned from nothing; else a Hugging Face model, frozen (extra ``vla``)."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width = config.width
        patches = -(-config.image_size[0] // ImageEncoder.STRIDE) * -(-config.image_size[1] // ImageEncoder.STRIDE)
        self.images = ImageEncoder(config)
        self.patch_embed = nn.Parameter(torch.randn(patches, width) * 0.02)
        self.camera_embed = nn.Parameter(torch.randn(config.cameras, 1, width) * 0.02)
        self.step_embed = nn.Parameter(torch.randn(config.history, width) * 0.02)
        self.state = StateEncoder(config)
        self.text = text_encoder(config.text_encoder, width)
        self.context_norm = nn.LayerNorm(width)
        # As large as the state beside it: with small ones all K places look alike, and learn to differ very late.
        self.query_embed = nn.Parameter(torch.randn(config.chunk, width) * 0.3)
        self.blocks = nn.ModuleList(
            Block(width, config.heads, config.dropout, crosses=True) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(width)
        self.action = GrowingOutput("action", width, config.action_dim)

    def losses(self, batch: PolicyBatch) -> dict[str, Tensor]:
        """See `Policy.losses`."""
        found = action_loss(self._actions(batch), batch, self.config.loss)
        return {name: value.mean() for name, value in found.items()}

    def act(self, batch: PolicyBatch) -> Tensor:
        """See `Policy.act`."""
        return self._actions(batch).float() * batch.action_mask[:, None, :]

    def _actions(self, batch: PolicyBatch) -> Tensor:
        """The actions, [B, K, Da]."""
        inside = ~batch.observation_is_pad
        state = self.state(batch.state, batch.embodiment_id)
        patches, seen = self._patches(batch, state.dtype)
        words, are_words = self.text(batch.task)
        context = torch.cat([patches, state + self.step_embed, words], 1)
        mask = torch.cat([seen, inside, are_words], 1)[:, None, None]
        context = self.context_norm(context)
        x = self.query_embed + state[:, -1:]
        everything = mask.new_ones(1, 1, 1, 1)
        for block in self.blocks:
            x = block(x, everything, context, mask)
        out: Tensor = self.action(self.norm(x))
        return out

    def _patches(self, batch: PolicyBatch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Picture tokens, [B, T * C * patches, width], and which of them are real."""
        seen = batch.image_mask & ~batch.observation_is_pad[:, :, None]
        found = self.images(batch.images[seen]).flatten(2).transpose(1, 2)
        places = seen[..., None].expand(-1, -1, -1, len(self.patch_embed))
        tokens = torch.zeros(*places.shape, self.config.width, dtype=dtype, device=found.device)
        tokens = tokens.masked_scatter(places[..., None], found.to(dtype))
        tokens = tokens + self.patch_embed + self.camera_embed + self.step_embed[:, None, None]
        return tokens.flatten(1, 3), places.flatten(1)
