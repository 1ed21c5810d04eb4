"""Augmentation on the device: batched, one draw a sample, the same over all steps of its history.

All random numbers come from one generator on the CPU, a fixed number of them for a batch's shape: its state is all
there is to save, and a run on another device sees the same draws.

A horizontal flip shows another motion, so state and actions have to be mirrored with the pictures. How is stated for
each robot, as signed positions counted from 1, in units before normalisation: ``[1, -2, 3]`` (the second number changes
its sign), ``[4, 5, 6, 1, 2, 3]`` (two arms trade places). Samples whose task says left or right are never flipped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import torch.nn.functional as F
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from wdsmix.errors import ConfigError
from wdsmix.mixture.catalog import Catalog, OpenSource
from wdsmix.mixture.normalize import Scale

__all__ = ["AugmentConfig", "Augmenter", "Draw", "Mirror"]

Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
_SIDED = re.compile(r"\b(left|right|clockwise|counterclockwise|anticlockwise)\b|左|右", re.IGNORECASE)
_GREY = (0.299, 0.587, 0.114)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Mirror(_Model):
    """What a flip does to a robot's vectors, as signed positions from 1; empty for a robot without the vector."""

    action: list[int]
    state: list[int] = []


class AugmentConfig(_Model):
    """What is changed, and by how much at most; 0 turns a change off."""

    brightness: Share = 0.2
    """Factor 1 - b to 1 + b."""
    contrast: Share = 0.2
    saturation: Share = 0.2
    hue: Annotated[float, Field(ge=0, le=0.5)] = 0.02
    """Turns of the colour circle, either way."""
    crop: Share = 0.15
    """Share of the picture's area that a random crop may lose; what is left is resized to the whole."""
    rotation: Annotated[float, Field(ge=0, le=180)] = 3.0
    """Degrees, either way."""
    flip: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Probability of a horizontal flip of all of a sample's pictures, its state and its actions."""
    mirror: dict[str, Mirror] = {}
    """Robot -> what a flip does to its vectors. With ``flip``, every robot of the mixture has to be here."""
    action_noise: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    """Standard deviation in normalised units; nothing is added to masked dimensions and padded steps."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Draw:
    """The random changes of one batch."""

    place: Tensor | None
    """float32 [B, C, 2, 3], on the device: from places in the result to places in the picture, both in [-1, 1]."""
    colour: Tensor | None
    """float32 [B, 3, 3], on the device: from colours to colours."""
    contrast: Tensor | None
    """float32 [B]."""
    flip: Tensor | None
    """bool [B]."""
    mirrors: Mapping[str, tuple[Tensor, ...]]
    """Vector -> index, gain, offset and bound for each source."""
    source: Tensor | None
    """int64 [B]."""
    noise: Tensor | None
    """float32 [B, K, Da]."""

    def pictures(self, images: Tensor, sample: Tensor, camera: Tensor) -> Tensor:
        """Changes pictures.

        Args:
            images: float32 [N, 3, H, W] in [0, 1].
            sample: int64 [N]: which sample each is of.
            camera: int64 [N]: which camera.

        Returns:
            The same shape, in [0, 1].
        """
        if self.place is not None:
            height, width = images.shape[-2:]
            theta = self.place[sample, camera].clone()
            # Turned in pixels, not in the stretched coordinates of a picture that is no square.
            theta[:, 0, 1] *= height / width
            theta[:, 1, 0] *= width / height
            grid = F.affine_grid(theta, list(images.shape), align_corners=False)
            images = F.grid_sample(images, grid, padding_mode="reflection", align_corners=False)
        if self.colour is not None:
            images = torch.einsum("nij,njhw->nihw", self.colour[sample], images)
        if self.contrast is not None:
            grey = torch.einsum("j,njhw->n", images.new_tensor(_GREY), images) / (images.shape[-1] * images.shape[-2])
            mean, factor = grey[:, None, None, None], self.contrast[sample][:, None, None, None]
            images = mean + (images - mean) * factor
        return images.clamp(0, 1)

    def vector(self, name: str, values: Tensor, mask: Tensor) -> Tensor:
        """Mirrors a normalised vector where its sample is flipped.

        Args:
            name: ``state`` or ``action``.
            values: float32 [B, T, D].
            mask: bool [B, D]: dimensions that are real.
        """
        if self.flip is None or self.source is None or name not in self.mirrors:
            return values
        index, gain, offset, bound = (part[self.source][:, None] for part in self.mirrors[name])
        mirrored = values.gather(2, index.expand(-1, values.shape[1], -1)) * gain + offset
        mirrored = torch.where(mask[:, None], mirrored.clamp(-bound, bound), 0.0)
        return torch.where(self.flip[:, None, None], mirrored, values)

    def actions(self, action: Tensor, real: Tensor) -> Tensor:
        """Adds noise to the real ones of float32 [B, K, Da]."""
        return action if self.noise is None else action + torch.where(real, self.noise, 0.0)


class Augmenter:
    """Draws changes, batch after batch.

    Args:
        config: What is changed.
        seed: Of its generator; each rank takes another.
        catalog: The mixture; needed for flips, whose mirrored vectors are in units before normalisation.

    Raises:
        ConfigError: flips are asked for, and a robot's mirror is not stated, or does not fit its vectors.
    """

    def __init__(self, config: AugmentConfig, seed: int, catalog: Catalog | None = None) -> None:
        self.config = config
        self._generator = torch.Generator().manual_seed(seed)
        self._mirrors = _mirrors(config, catalog) if config.flip else {}

    def state_dict(self) -> dict[str, Any]:
        """Where its generator stands."""
        return {"generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a saved state."""
        self._generator.set_state(state["generator"].cpu())

    def draw(self, batch: Mapping[str, Any], device: torch.device | str) -> Draw:
        """The changes of the next batch, as the loader made it."""
        config = self.config
        size, cameras, action = len(batch["task"]), batch["image_mask"].shape[2], batch["action"]

        def between(low: float, high: float, *shape: int) -> Tensor:
            return low + (high - low) * torch.rand(size, *shape, generator=self._generator)

        flip = None
        if config.flip:
            sided = torch.tensor([_SIDED.search(task) is not None for task in batch["task"]])
            flip = (between(0, 1) < config.flip) & ~sided
        place = self._places(between, cameras, flip)
        light, saturation = (between(1 - x, 1 + x) for x in (config.brightness, config.saturation))
        turn, contrast = between(-config.hue, config.hue), between(1 - config.contrast, 1 + config.contrast)
        noise = None
        if config.action_noise:
            noise = config.action_noise * torch.randn(action.shape, generator=self._generator)
        has_colour = config.brightness or config.saturation or config.hue

        def there(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        return Draw(
            place=there(place),
            colour=there(_colours(light, saturation, turn)) if has_colour else None,
            contrast=there(contrast) if config.contrast else None,
            flip=there(flip),
            mirrors={name: tuple(part.to(device) for part in parts) for name, parts in self._mirrors.items()},
            source=there(batch["source_id"]) if flip is not None else None,
            noise=there(noise),
        )

    def _places(self, between: Any, cameras: int, flip: Tensor | None) -> Tensor | None:
        """float32 [B, C, 2, 3]; drawn for each camera, flipped for all of a sample's."""
        config = self.config
        angle = between(-config.rotation, config.rotation, cameras) * (math.pi / 180)
        side = between(1 - config.crop, 1, cameras).sqrt()
        shift = between(-1, 1, cameras, 2) * (1 - side)[..., None]
        if not (config.crop or config.rotation or flip is not None):
            return None
        cos, sin = angle.cos() * side, angle.sin() * side
        turned = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        if flip is not None:
            turned = torch.where(flip[:, None, None, None], turned * torch.tensor([-1.0, 1.0]), turned)
        return torch.cat([turned, shift[..., None]], -1)


def _colours(light: Tensor, saturation: Tensor, turn: Tensor) -> Tensor:
    """float32 [B, 3, 3]: brightness, saturation and hue in one matrix; grey stays grey."""
    grey = torch.tensor(_GREY).expand(3, 3)
    around = torch.full((3, 3), 1 / 3)
    cross = torch.tensor([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]]) / math.sqrt(3)
    cos, sin = ((2 * math.pi * turn).cos()[:, None, None], (2 * math.pi * turn).sin()[:, None, None])
    hue = cos * torch.eye(3) + (1 - cos) * around + sin * cross  # a rotation around the grey axis
    vivid = torch.lerp(grey, torch.eye(3), saturation[:, None, None])
    return light[:, None, None] * (vivid @ hue)


def _mirrors(config: AugmentConfig, catalog: Catalog | None) -> dict[str, tuple[Tensor, ...]]:
    """Vector -> int64 index, float32 gain, offset [S, D], and bound [S, 1]: what a flip does to normalised numbers."""
    if catalog is None:
        raise ConfigError("flips need the opened mixture", where="augment.flip", hint="give the Augmenter its catalog")
    mirrors = {}
    for name in ("action", "state"):
        width = catalog.layout.dims[name]
        rows = [
            _mirror(config, source, name, scale, width)
            for source, scale in zip(catalog.sources, catalog.scales[name], strict=True)
        ]
        mirrors[name] = tuple(torch.stack(parts) for parts in zip(*rows, strict=True))
    return mirrors


def _mirror(
    config: AugmentConfig, source: OpenSource, name: str, scale: Scale | None, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    where, robot = f"augment.mirror.{source.embodiment}.{name}", source.embodiment
    if robot not in config.mirror:
        raise ConfigError(
            f"source {source.name!r} can't be flipped: what that does to the actions of {robot!r} is not stated",
            where="augment.mirror",
            hint=f"state it, as {{{robot}: {{action: [1, -2, 3, ...], state: [...]}}}}, or set augment.flip to 0",
        )
    signed: Sequence[int] = getattr(config.mirror[robot], name)
    real = 0 if scale is None else len(scale.centre)
    if sorted(abs(position) for position in signed) != list(range(1, real + 1)):
        raise ConfigError(
            "a mirror names each position of the vector once, with a sign",
            where=where,
            expected=f"a signed permutation of 1 to {real}",
            found=list(signed),
        )
    index, gain, offset = torch.arange(width), torch.ones(width), torch.zeros(width)
    if scale is None:
        return index, gain, offset, torch.full((1,), math.inf)
    for out, position in enumerate(signed):
        at, sign = abs(position) - 1, 1.0 if position > 0 else -1.0
        index[out] = at
        gain[out] = sign * scale.factor[out] / scale.factor[at] if scale.factor[at] else 0.0
        offset[out] = (sign * scale.centre[at] - scale.centre[out]) * scale.factor[out]
    return index, gain, offset, torch.full((1,), scale.bound)
