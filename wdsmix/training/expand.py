"""Expand: more robots, wider states and wider actions for a trained policy, with the same outputs for what it knew.

Along an input (columns of a layer that reads state or actions) what is new is zero. Along an output (rows of an
embedding table or of a layer that writes actions, and their biases) it is made by *init*: the mean of the old rows,
zeros, or normal numbers of the old rows' spread. The optimiser's moments of what is new are zero.

Old inputs, padded with zeros, give the old outputs. With the layers of `wdsmix.training.policies.linear` that holds to
the bit, whatever the library that multiplies matrices; with plain linear layers it holds up to the order in which that
library sums.
"""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.training.policies import POLICIES, policy_config
from wdsmix.training.policies.linear import growing_sides

__all__ = ["SIDES", "Init", "Rule", "expand_checkpoint", "expand_tensors", "policy_rules"]

Init = Literal["mean", "zeros", "normal"]

SIDES = {"state": "state_dim", "action": "action_dim", "embodiment": "num_embodiments"}
"""What may grow -> its size in a policy's configuration."""

_MOMENTS = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Which tensors grow, and how."""

    pattern: str
    """Name of a tensor; ``*`` stands for anything."""
    axis: int
    """Along which of its axes: from 1 on it is an input, and what is new is zero."""
    side: str
    """``state``, ``action`` or ``embodiment``: to whose size."""

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Reads ``PATTERN=SIDE:AXIS``, such as ``*.state_proj.weight=state:1``.

        Raises:
            ConfigError: it has another form.
        """
        pattern, _, rest = text.rpartition("=")
        side, _, axis = rest.partition(":")
        if not pattern or side not in SIDES or not axis.isdecimal():
            raise ConfigError(
                "not a rule", where="--rule", expected=f"PATTERN=SIDE:AXIS with SIDE {', '.join(SIDES)}", found=text
            )
        return cls(pattern=pattern, axis=int(axis), side=side)


def policy_rules(policy: Mapping[str, Any]) -> list[Rule]:
    """The rules that a policy's own layers declare.

    Args:
        policy: Its configuration, as in a checkpoint.
    """
    # A pretrained text encoder is frozen, no part of the checkpoint, and not needed to see what may grow.
    config = policy_config({**policy, **({"text_encoder": "hashed"} if "text_encoder" in policy else {})})
    with torch.device("meta"):
        module = POLICIES[config.policy](config)
    return [Rule(pattern=name, axis=axis, side=side) for name, (axis, side) in growing_sides(module).items()]


def expand_tensors(
    tensors: Mapping[str, Tensor],
    rules: Sequence[Rule],
    sizes: Mapping[str, int],
    *,
    init: Init = "mean",
    seed: int = 0,
) -> dict[str, Tensor]:
    """Grows the tensors of a state dict; those that no rule names are handed on.

    Args:
        tensors: Name -> tensor.
        rules: Which grow.
        sizes: Side -> size to grow to; sides without one stay.
        init: What new rows hold.
        seed: For ``normal``; each tensor's numbers depend on its name and on nothing else.

    Raises:
        ConfigError: a rule names no tensor, or an axis that a tensor lacks, or tensors of one side differ in size.
        ConflictError: a size would shrink.
    """
    out = dict(tensors)
    was: dict[str, tuple[int, str]] = {}
    for rule in rules:
        names = [name for name in tensors if fnmatch.fnmatchcase(name, rule.pattern)]
        if not names:
            raise ConfigError("the rule names no tensor", where=rule.pattern)
        for name in names:
            if rule.axis >= tensors[name].ndim:
                raise ConfigError(
                    "no such axis", where=name, expected=f"axis {rule.axis}", found=list(tensors[name].shape)
                )
            old = tensors[name].shape[rule.axis]
            size, first = was.setdefault(rule.side, (old, name))
            if size != old:
                raise ConfigError(f"not the {SIDES[rule.side]} of {first!r}", where=name, expected=size, found=old)
            if rule.side in sizes:
                out[name] = _grown(out[name], rule, sizes[rule.side], name, init, seed)
    return out


def expand_checkpoint(
    checkpoint: Mapping[str, Any], sizes: Mapping[str, int], *, init: Init = "mean", seed: int = 0
) -> dict[str, Any]:
    """Grows all of a checkpoint: weights, averaged weights, the optimiser's moments, and the policy's configuration.

    Args:
        checkpoint: As `wdsmix.training.checkpoint.load_checkpoint` reads it.
        sizes: As in `expand_tensors`.
        init: What new rows hold.
        seed: For ``normal``.

    Raises:
        ConfigError: its tensors are not those of its policy.
        ConflictError: a size would shrink.
    """
    rules = policy_rules(checkpoint["policy"])
    out = dict(checkpoint)
    out["policy"] = {**checkpoint["policy"], **{SIDES[side]: size for side, size in sizes.items()}}
    out["model"] = expand_tensors(checkpoint["model"], rules, sizes, init=init, seed=seed)
    if checkpoint["ema"] is not None:
        averaged = expand_tensors(checkpoint["ema"]["model"], rules, sizes, init=init, seed=seed)
        out["ema"] = {**checkpoint["ema"], "model": averaged}
    names = [name for group in checkpoint["optimizer_names"] for name in group]
    out["optimizer"] = _moments(checkpoint["optimizer"], names, rules, sizes)
    train = checkpoint["train"]
    if train.get("num_embodiments") is not None and "embodiment" in sizes:
        out["train"] = {**train, "num_embodiments": sizes["embodiment"]}
    return out


def _moments(
    optimizer: Mapping[str, Any], names: Sequence[str], rules: Sequence[Rule], sizes: Mapping[str, int]
) -> dict[str, Any]:
    """The optimiser's state with moments of the new shapes; its parameters are numbered in the order of ``names``."""
    numbers = [number for group in optimizer["param_groups"] for number in group["params"]]
    if len(numbers) != len(names):
        raise ConfigError(
            "the optimiser's parameters are not those named",
            where="optimizer_names",
            expected=len(numbers),
            found=len(names),
        )
    state = dict(optimizer["state"])
    for number, name in zip(numbers, names, strict=True):
        mine = [rule for rule in rules if fnmatch.fnmatchcase(name, rule.pattern) and rule.side in sizes]
        if not mine or number not in state:
            continue
        state[number] = dict(state[number])
        for key in _MOMENTS:
            value = state[number].get(key)
            for rule in mine if isinstance(value, Tensor) else ():
                value = _grown(value, rule, sizes[rule.side], name, "zeros", 0)
            if value is not None:
                state[number][key] = value
    return {**optimizer, "state": state}


def _grown(tensor: Tensor, rule: Rule, size: int, name: str, init: Init, seed: int) -> Tensor:
    """The tensor, longer along the rule's axis."""
    old = tensor.shape[rule.axis]
    if size < old:
        raise ConflictError(
            "a checkpoint only grows: shrinking would lose what it learned",
            where=name,
            expected=f"{old} or more",
            found=size,
        )
    if size == old:
        return tensor
    shape = list(tensor.shape)
    shape[rule.axis] = size - old
    new = tensor.new_zeros(shape)
    if rule.axis == 0 and init != "zeros" and old:
        mean = tensor.double().mean(0)
        new += mean.to(tensor.dtype)
        if init == "normal":
            # Spread over the old rows, all of their numbers taken together; one row alone has none.
            spread = (tensor.double() - mean).square().mean().sqrt().item()
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()) ^ seed)
            new = (torch.randn(shape, generator=generator, dtype=torch.float64) * spread).to(tensor.dtype)
    return torch.cat([tensor, new], rule.axis)
