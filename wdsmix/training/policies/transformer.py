"""A transformer over a history of observations, whose actions are each conditioned on those before it.

One sequence: for each observation step a token for every camera and one for the state, then K action places. Place k
sees the whole history and the actions before k (as recorded in training, as chosen when it acts), never one behind.
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from wdsmix.training.policies.base import Policy, PolicyBatch, PolicyConfig
from wdsmix.training.policies.linear import GrowingInput, GrowingOutput
from wdsmix.training.policies.losses import action_loss, known_actions
from wdsmix.training.policies.networks import Block, PictureTokens, StateEncoder

__all__ = ["CausalTransformer"]


class CausalTransformer(Policy):
    """Autoregressive over the action chunk.

    Args:
        config: Its shape.
    """

    class Config(PolicyConfig):
        """Shape and options."""

        policy: str = "transformer"
        loss: Literal["l1", "mse", "huber"] = "mse"
        layers: Annotated[int, Field(ge=1)] = 3
        heads: Literal[1, 2, 4, 8, 16] = 4
        condition_dropout: Annotated[float, Field(ge=0, le=1)] = 0.5
        """Share of earlier actions hidden in training, so that the next one is not just read off the last."""

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        width, steps = config.width, config.history
        self.pictures = PictureTokens(config)
        self.state = StateEncoder(config)
        self.step_embed = nn.Parameter(torch.randn(steps, 1, width) * 0.02)
        self.kind_embed = nn.Parameter(torch.randn(config.cameras + 1, width) * 0.02)
        self.earlier = GrowingInput("action", config.action_dim, width)
        self.hidden_embed = nn.Parameter(torch.zeros(width))
        self.place_embed = nn.Parameter(torch.randn(config.chunk, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, config.heads, config.dropout) for _ in range(config.layers))
        self.norm = nn.LayerNorm(width)
        self.action = GrowingOutput("action", width, config.action_dim)

    def losses(self, batch: PolicyBatch) -> dict[str, Tensor]:
        """See `Policy.losses`."""
        earlier = known_actions(batch)[:, :-1]
        hidden = batch.action_is_pad[:, :-1]
        if self.training and self.config.condition_dropout:
            hidden = hidden | (torch.rand(hidden.shape, device=hidden.device) < self.config.condition_dropout)
        predicted = self._actions(self._history(batch), batch.observation_is_pad, earlier, hidden)
        return {name: value.mean() for name, value in action_loss(predicted, batch, self.config.loss).items()}

    def act(self, batch: PolicyBatch) -> Tensor:
        """See `Policy.act`; one pass over the sequence for each action."""
        history, is_pad = self._history(batch), batch.observation_is_pad
        chosen = batch.state.new_zeros(len(batch), 0, self.config.action_dim)
        for k in range(self.config.chunk):
            hidden = torch.zeros(len(batch), k, dtype=torch.bool, device=chosen.device)
            following = self._actions(history, is_pad, chosen, hidden)[:, -1:].float() * batch.action_mask[:, None, :]
            chosen = torch.cat([chosen, following], 1)
        return chosen

    def _history(self, batch: PolicyBatch) -> Tensor:
        """Tokens of the observations, [B, T * (C + 1), width]."""
        seen = batch.image_mask & ~batch.observation_is_pad[:, :, None]
        state = self.state(batch.state, batch.embodiment_id)[:, :, None]
        tokens = torch.cat([self.pictures(batch.images, seen).to(state.dtype), state], 2)
        return (tokens + self.step_embed + self.kind_embed).flatten(1, 2)

    def _actions(self, history: Tensor, is_pad: Tensor, earlier: Tensor, hidden: Tensor) -> Tensor:
        """Actions at places 0 ... k, [B, k + 1, Da], from the k before: [B, k, Da], and which of them are hidden."""
        known = torch.where(hidden[:, :, None], self.hidden_embed, self.earlier(earlier).float())
        places = torch.cat([self.hidden_embed.expand(len(earlier), 1, -1), known], 1)
        places = places + self.place_embed[: places.shape[1]]
        x = torch.cat([history.float(), places], 1)
        mask = self._mask(is_pad, places.shape[1])
        for block in self.blocks:
            x = block(x, mask)
        out: Tensor = self.action(self.norm(x[:, history.shape[1] :]))
        return out

    def _mask(self, is_pad: Tensor, places: int) -> Tensor:
        """What sees what, bool [B, 1, N, N]: steps up to its own that lie in the episode, and always itself."""
        tokens = self.config.cameras + 1
        steps = torch.arange(self.config.history, device=is_pad.device).repeat_interleave(tokens)
        behind = self.config.history + torch.arange(places, device=is_pad.device)
        time = torch.cat([steps, behind])
        real = torch.cat([~is_pad.repeat_interleave(tokens, 1), is_pad.new_ones(len(is_pad), places)], 1)
        itself = torch.eye(len(time), dtype=torch.bool, device=is_pad.device)
        return (((time[:, None] >= time[None, :]) & real[:, None, :]) | itself)[:, None]
