"""From a batch of the mixture to what a policy sees, on the policy's device.

Pictures travel as bytes and become floats on the device, where they are resized, augmented and scaled; only those that
are there cost anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wdsmix.errors import ConfigError
from wdsmix.training.augment import Augmenter, Draw
from wdsmix.training.policies.base import Next, PolicyBatch, PolicyConfig
from wdsmix.training.rewards import rewards_of

__all__ = ["prepare"]

PIXELS = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "unit": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Name -> mean and std of each colour, of pixels in [0, 1]."""


def prepare(
    batch: Mapping[str, Any],
    device: torch.device | str,
    config: PolicyConfig,
    augment: Augmenter | None = None,
    *,
    offsets: Sequence[int] | None = None,
    learns: bool = True,
) -> PolicyBatch:
    """Brings a batch of a `MixtureDataset` or an `EvaluationDataset` to the device.

    Args:
        batch: As the loader makes it.
        device: Where to.
        config: Shape of the policy.
        augment: Changes pictures and actions at random; None for evaluation.
        offsets: The mixture's observation offsets. Those up to 0 are the observation. Where they are
            ``-T+1 ... 0, 1`` and the policy learns from rewards, `PolicyBatch.next` is filled. Default: ``-T+1 ... 0``.
        learns: False: the policy only acts, and neither rewards nor what follows are looked at.

    Raises:
        ConfigError: the batch does not have the policy's shape.
        DataError: a sample has no reward, and the policy's rule finds none.
    """
    offsets = tuple(range(1 - config.history, 1)) if offsets is None else tuple(offsets)
    now = sum(offset <= 0 for offset in offsets)
    images = batch["images"]
    found = (images.shape[1], images.shape[2], batch["state"].shape[-1], *batch["action"].shape[1:])
    asked = (config.history + len(offsets) - now, config.cameras, config.state_dim, config.chunk, config.action_dim)
    if found != asked or now != config.history:
        raise ConfigError(
            "the batch does not have the policy's shape (offsets, cameras, state width, actions, action width)",
            expected=asked,
            found=found,
        )
    draw = None if augment is None else augment.draw(batch, device)

    def there(name: str) -> Tensor:
        tensor: Tensor = batch[name]
        return tensor.to(device, non_blocking=True)

    image_mask = there("image_mask")
    if not learns:
        images, image_mask = images[:, :now], image_mask[:, :now]
    pictures = _pictures(images.to(device, non_blocking=True), image_mask, config, draw)
    state_mask, action_mask, action_is_pad = there("state_mask"), there("action_mask"), there("action_is_pad")
    state = torch.where(state_mask[:, None, :], there("state"), 0.0)
    action = torch.where(action_mask[:, None, :], there("action"), 0.0)
    if draw is not None:
        state, action = draw.vector("state", state, state_mask), draw.vector("action", action, action_mask)
        action = draw.actions(action, action_mask[:, None, :] & ~action_is_pad[:, :, None])
    outside = there("observation_is_pad")
    following = None
    if learns and config.reward_rule is not None and offsets == tuple(range(1 - now, 2)):
        reward, done, valid = rewards_of(batch, config.reward_rule)
        following = Next(
            images=pictures[:, 1:],
            image_mask=image_mask[:, 1:],
            state=state[:, 1:],
            is_pad=outside[:, 1:],
            reward=reward.to(device),
            done=done.to(device),
            valid=valid.to(device),
        )
    return PolicyBatch(
        images=pictures[:, :now],
        image_mask=image_mask[:, :now],
        state=state[:, :now],
        state_mask=state_mask,
        action=action,
        action_mask=action_mask,
        action_is_pad=action_is_pad,
        observation_is_pad=outside[:, :now],
        embodiment_id=there("embodiment_id"),
        task=list(batch["task"]),
        next=following,
    )


def _pictures(images: Tensor, mask: Tensor, config: PolicyConfig, draw: Draw | None) -> Tensor:
    """From uint8 [B, T, C, 3, H, W] to float32 of the policy's size; 0 where the mask says that there is none."""
    sample, _, camera = mask.nonzero(as_tuple=True)
    pixels = images[mask].float() / 255
    if tuple(pixels.shape[-2:]) != config.image_size and len(pixels):
        pixels = F.interpolate(pixels, config.image_size, mode="bilinear", antialias=True, align_corners=False)
    if draw is not None and len(pixels):
        pixels = draw.pictures(pixels, sample, camera)
    mean, std = (pixels.new_tensor(values)[:, None, None] for values in PIXELS[config.pixels])
    out = pixels.new_zeros(*mask.shape, 3, *config.image_size)
    if len(pixels):
        out[mask] = (pixels - mean) / std
    return out
