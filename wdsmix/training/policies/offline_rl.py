"""Offline reinforcement learning: implicit Q-learning (Kostrikov and others, 2021) on one summed loss.

Three parts that stop each other's gradients share an observation encoder: twin critics Q(s, a) of the first action of
the chunk, learned from reward and V(s'); a value V(s) that leans to the upper expectile of the critics, so that no
action outside the data is ever asked for; and an actor that imitates the data, weighted by how much better than V(s)
the recorded action was. The target critics follow the critics slowly, after each step.
"""

from __future__ import annotations

import copy
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from wdsmix.errors import ConfigError
from wdsmix.mixture.catalog import Catalog, OpenSource
from wdsmix.training.policies.base import Policy, PolicyBatch, PolicyConfig
from wdsmix.training.policies.linear import GrowingInput
from wdsmix.training.policies.losses import action_loss, known_actions
from wdsmix.training.policies.networks import ActionHead, ObservationEncoder
from wdsmix.training.rewards import RewardRule

__all__ = ["Critic", "OfflineRL"]


class Critic(nn.Module):
    """The value of an action in a situation.

    Args:
        config: Gives widths.
    """

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        width = config.width
        self.action = GrowingInput("action", config.action_dim, width)
        self.mlp = nn.Sequential(
            nn.Linear(2 * width, width), nn.LayerNorm(width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
        )
        self.value = nn.Linear(width, 1)

    def forward(self, features: Tensor, action: Tensor) -> Tensor:
        """From [B, width] and [B, Da] to float32 [B]."""
        hidden = self.mlp(torch.cat([features, self.action(action).to(features.dtype)], 1))
        out: Tensor = self.value(hidden).float()[:, 0]
        return out


class OfflineRL(Policy):
    """Implicit Q-learning over chunks.

    Args:
        config: Its shape.
    """

    class Config(PolicyConfig):
        """Shape and options."""

        policy: str = "offline-rl"
        loss: Literal["l1", "mse", "huber"] = "mse"
        """Of the actor, before it is weighted."""
        rewards: RewardRule = "stored"
        """What stands for the reward of sources that store none; ``stored`` refuses them."""
        reward_scale: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
        discount: Annotated[float, Field(ge=0, lt=1)] = 0.99
        expectile: Annotated[float, Field(ge=0.5, lt=1)] = 0.7
        temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
        """The actor's weight is exp(temperature * advantage); 0 is behaviour cloning."""
        largest_weight: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 20.0
        target_rate: Annotated[float, Field(gt=0, le=1)] = 0.005
        """Share of the way to the critics that the target critics go, a step."""

        @property
        def reward_rule(self) -> RewardRule | None:
            """See `PolicyConfig.reward_rule`."""
            return self.rewards

    config: Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.observation = ObservationEncoder(config)
        self.head = ActionHead(config)
        self.critics = nn.ModuleList(Critic(config) for _ in range(2))
        self.targets = copy.deepcopy(self.critics).requires_grad_(False)
        self.value = nn.Sequential(
            nn.Linear(config.width, config.width), nn.LayerNorm(config.width), nn.SiLU(), nn.Linear(config.width, 1)
        )

    @classmethod
    def check_mixture(cls, config: PolicyConfig, catalog: Catalog) -> None:
        """See `Policy.check_mixture`."""
        asked = tuple(range(1 - config.history, 2))
        if catalog.layout.offsets != asked:
            raise ConfigError(
                "offline-rl needs the observation that follows",
                where="sample.observation_offsets",
                expected=list(asked),
                found=list(catalog.layout.offsets),
            )
        rule = config.reward_rule
        lacking = [source for source in catalog.sources if "reward" not in source.set.manifest.vectors]
        if len(lacking) < len(catalog.sources) and not {"reward", "done"} <= set(catalog.layout.scalars):
            raise ConfigError("offline-rl needs rewards", where="sample", hint="add 'reward: true' and 'done: true'")
        if lacking and rule == "stored":
            raise ConfigError(
                f"source {lacking[0].name!r} stores no reward, and offline-rl learns from rewards",
                where="options.rewards",
                hint="leave it out, or state a rule: score (the episode's score, at its end) or demonstration (1 at "
                "the end of each episode)",
            )
        if lacking and rule == "score":
            if "score" not in catalog.layout.extras:
                raise ConfigError("the reward is to be the score", where="sample.extras", hint="add 'extras: [score]'")
            for source in lacking:
                _check_scores(source)

    def losses(self, batch: PolicyBatch) -> dict[str, Tensor]:
        """See `Policy.losses`.

        Raises:
            ConfigError: the batch has no reward and next observation.
        """
        config, following = self.config, batch.next
        if following is None:
            raise ConfigError(
                "the batch has no next observation", where="sample.observation_offsets", hint="let them end in 0, 1"
            )
        features = self.observation(batch)
        action = known_actions(batch)[:, 0]
        with torch.no_grad():
            after = self.observation.encode(
                following.images, following.image_mask, following.state, following.is_pad, batch.embodiment_id
            )
            reward = torch.where(following.valid, following.reward, 0.0) * config.reward_scale
            wanted = reward + config.discount * (1 - following.done) * self.value(after).float()[:, 0]
            target = torch.stack([critic(features, action) for critic in self.targets]).amin(0)
        value = self.value(features).float()[:, 0]
        advantage = target - value
        lean = torch.where(advantage > 0, config.expectile, 1 - config.expectile)
        real = following.valid.float()
        critic = torch.stack([(q(features, action) - wanted).square() for q in self.critics]).sum(0) * real
        weight = (config.temperature * advantage.detach()).clamp(max=20).exp().clamp(max=config.largest_weight)
        actor = action_loss(self.head(features), batch, config.loss)
        parts = {
            "actor": (weight * actor["loss"]).mean(),
            "critic": critic.mean(),
            "value": (lean * advantage.square() * real).mean(),
        }
        log = {"mse": actor["mse"].mean(), "l1": actor["l1"].mean(), "advantage": advantage.detach().mean()}
        return {"loss": parts["actor"] + parts["critic"] + parts["value"], **parts, **log}

    def act(self, batch: PolicyBatch) -> Tensor:
        """See `Policy.act`."""
        out: Tensor = self.head(self.observation(batch)).float()
        return out * batch.action_mask[:, None, :]

    @torch.no_grad()
    def after_step(self) -> None:
        """Moves the target critics."""
        for target, online in zip(self.targets.parameters(), self.critics.parameters(), strict=True):
            target.lerp_(online, self.config.target_rate)


def _check_scores(source: OpenSource) -> None:
    index = source.set.index
    chosen = set(source.number.tolist())
    for place, number in enumerate(index.episode.tolist()):
        if number in chosen and not isinstance(index.extras(place).get("score"), int | float):
            raise ConfigError(
                f"source {source.name!r}: episode {number} has no score",
                where="options.rewards",
                hint="take demonstration, or leave the source out",
            )
