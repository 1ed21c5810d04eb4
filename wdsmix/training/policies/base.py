"""What every policy is: its configuration, the batch it sees, and the three calls that a trainer makes.

A *mask* is True where a number is real. Whatever is masked out (dimensions a robot lacks, actions and observations
beyond the episode, cameras that are absent) adds exactly 0 to a loss and to every gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from wdsmix.training.rewards import RewardRule

if TYPE_CHECKING:
    from wdsmix.mixture.catalog import Catalog

__all__ = ["Next", "Policy", "PolicyBatch", "PolicyConfig"]

Whole = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]


class PolicyConfig(BaseModel):
    """Shape of a policy. Each policy has a subclass with its own options; `wdsmix.training.policies` makes them."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    policy: str
    cameras: Whole
    image_size: tuple[Count, Count]
    """(height, width) the network sees, in pixels."""
    history: Count = 1
    """T observation steps, the last one the sample's own frame."""
    chunk: Count = 1
    """K actions."""
    state_dim: Whole
    action_dim: Count
    num_embodiments: Count = 16
    width: Annotated[int, Field(ge=16, multiple_of=16)] = 128
    """Features of a token, and of the fused observation."""
    pixels: Annotated[str, Field(pattern="^(imagenet|unit)$")] = "imagenet"
    """``imagenet``: minus ImageNet's mean, by its std; ``unit``: [-1, 1]."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @property
    def reward_rule(self) -> RewardRule | None:
        """Where a policy that learns from rewards takes them from; None for the others."""
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Next:
    """What follows a sample's own frame; for offline reinforcement learning."""

    images: Tensor
    """float32 [B, T, C, 3, H, W]: the observation window, one frame later."""
    image_mask: Tensor
    """bool [B, T, C]."""
    state: Tensor
    """float32 [B, T, Ds]."""
    is_pad: Tensor
    """bool [B, T]; the last column: the episode ends with the sample's own frame."""
    reward: Tensor
    """float32 [B], for the action at the sample's own frame."""
    done: Tensor
    """float32 [B], 1 where that action ended the task; 0 otherwise, also where the recording just stops."""
    valid: Tensor
    """bool [B]: it has a reward, and either a next observation or an end."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyBatch:
    """A batch on the policy's device, as `wdsmix.training.batches.prepare` makes it; masked numbers are exactly 0."""

    images: Tensor
    """float32 [B, T, C, 3, H, W]; 0 where there is no picture."""
    image_mask: Tensor
    """bool [B, T, C]."""
    state: Tensor
    """float32 [B, T, Ds], normalised."""
    state_mask: Tensor
    """bool [B, Ds]."""
    action: Tensor
    """float32 [B, K, Da], normalised."""
    action_mask: Tensor
    """bool [B, Da]."""
    action_is_pad: Tensor
    """bool [B, K]."""
    observation_is_pad: Tensor
    """bool [B, T]; False in the last column."""
    embodiment_id: Tensor
    """int64 [B]."""
    task: Sequence[str]
    """B texts."""
    next: Next | None = None
    """Where the mixture gives reward and the next observation."""

    def __len__(self) -> int:
        return len(self.embodiment_id)


class Policy(nn.Module, ABC):
    """A network from observations to a chunk of actions.

    Args:
        config: Of this policy's ``Config``.
    """

    Config: ClassVar[type[PolicyConfig]] = PolicyConfig

    def __init__(self, config: PolicyConfig) -> None:
        super().__init__()
        self.config = config

    @classmethod
    def check_mixture(cls, config: PolicyConfig, catalog: Catalog) -> None:
        """Checks that an opened mixture has what this policy needs, before anything is trained.

        Raises:
            ConfigError: it lacks something; says what to write where.
        """

    @abstractmethod
    def losses(self, batch: PolicyBatch) -> dict[str, Tensor]:
        """``loss``, float32 scalar to be minimised, and further scalars for the log.

        Every parameter that requires a gradient takes part in each call. The loss is a mean over all B samples, and
        each sample's is a mean over its own real numbers: ranks with equal batches average to the whole batch's loss.
        """

    @abstractmethod
    def act(self, batch: PolicyBatch) -> Tensor:
        """The actions, float32 [B, K, Da], normalised; 0 in masked dimensions. Never looks at ``batch.action``."""

    def after_step(self) -> None:
        """Called after each step of the optimiser; moves target networks, where there are some."""
