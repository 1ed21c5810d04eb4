"""Where the reward of a sample comes from: what its source stored, or a stated rule for sources that stored none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from wdsmix.errors import DataError

__all__ = ["RewardRule", "rewards_of"]

RewardRule = Literal["stored", "score", "demonstration"]
"""For samples without a stored reward: ``stored`` has no rule (their source is refused); ``score``: the episode's
``score`` at its last frame, 0 before; ``demonstration``: 1 at its last frame, 0 before. Both rules end the episode."""


def rewards_of(batch: Mapping[str, Any], rule: RewardRule) -> tuple[Tensor, Tensor, Tensor]:
    """Reward, end and validity of each sample's own action.

    Args:
        batch: A batch of the loader, with observation offsets ``-T+1 ... 0, 1``.
        rule: For samples without a stored reward.

    Returns:
        float32 [B], float32 [B] (0 or 1), and bool [B]: whether the transition has a reward and either a next
        observation or an end. One that is cut off by the end of a recording has neither.

    Raises:
        DataError: the rule asks for a score, and a sample has none.
    """
    is_last: Tensor = batch["observation_is_pad"][:, -1]
    nothing = torch.zeros(len(is_last))
    has = batch.get("reward_mask", nothing.bool())
    reward = torch.where(has, batch["reward"][:, -2] if "reward" in batch else nothing, 0.0)
    done = torch.where(has, batch["done"][:, -2] if "done" in batch else nothing, 0.0)
    valid = has & ((done > 0) | ~is_last)
    if rule == "stored" or bool(has.all()):
        return reward, done, valid
    worth = torch.ones(len(is_last))
    if rule == "score":
        scores = batch["extras"].get("score", [None] * len(is_last))
        for place in (is_last & ~has).nonzero()[:, 0].tolist():
            if not isinstance(scores[place], int | float):
                raise DataError(
                    "the reward is to be the episode's score, and it has none",
                    where=f"source {int(batch['source_id'][place])}, episode {int(batch['episode'][place])}",
                    found=scores[place],
                    hint="set options.rewards to demonstration, or leave the source out",
                )
            worth[place] = float(scores[place])
    ends = is_last.float()
    return torch.where(has, reward, ends * worth), torch.where(has, done, ends), valid | ~has
