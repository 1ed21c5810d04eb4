"""Linear layers over vectors that may grow, to the same bits for what was there before.

A matrix product over 32 columns, 16 of them zero, need not give the bits of one over 16: libraries choose kernels, and
with them the order of summation, by shape. So the side that may grow is cut into blocks of a fixed number of columns
or rows, each a product of a fixed shape: growing adds blocks, and the old ones are the same calls on the same numbers.
"""

from __future__ import annotations

import math
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BLOCK", "GrowingInput", "GrowingOutput", "GrowingTable", "Side", "growing_sides"]

Side = Literal["state", "action", "embodiment"]
"""What may grow."""

BLOCK = 16
"""Columns or rows of a block; the last one is filled up with zeros."""


class GrowingInput(nn.Module):
    """A linear layer whose input may get more columns: `torch.nn.Linear` in function and in the shape of its weights.

    Args:
        of: What its input is.
        inputs: Columns now.
        outputs: Features.
    """

    def __init__(self, of: Side, inputs: int, outputs: int) -> None:
        super().__init__()
        self.grows: dict[str, tuple[int, Side]] = {"weight": (1, of)}
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        _init(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """From [..., inputs] to [..., outputs]."""
        inputs = self.weight.shape[1]
        out: Tensor | None = None
        for start in range(0, inputs, BLOCK):
            part = _filled(x[..., start : start + BLOCK], -1)
            product = F.linear(part, _filled(self.weight[:, start : start + BLOCK], -1))
            out = product if out is None else out + product
        if out is None:
            return self.bias.expand(*x.shape[:-1], -1)
        return out + self.bias


class GrowingOutput(nn.Module):
    """A linear layer whose output may get more rows; as `GrowingInput`.

    Args:
        of: What its output is.
        inputs: Features.
        outputs: Rows now.
    """

    def __init__(self, of: Side, inputs: int, outputs: int) -> None:
        super().__init__()
        self.grows: dict[str, tuple[int, Side]] = {"weight": (0, of), "bias": (0, of)}
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.zeros(outputs))
        _init(self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """From [..., inputs] to [..., outputs]."""
        parts = []
        for start in range(0, len(self.weight), BLOCK):
            weight, bias = self.weight[start : start + BLOCK], self.bias[start : start + BLOCK]
            parts.append(F.linear(x, _filled(weight, 0), _filled(bias, 0))[..., : len(weight)])
        return torch.cat(parts, -1)


class GrowingTable(nn.Embedding):
    """A row for each robot; more may come."""

    grows: ClassVar[dict[str, tuple[int, Side]]] = {"weight": (0, "embodiment")}


def growing_sides(module: nn.Module) -> dict[str, tuple[int, Side]]:
    """What may grow in a policy: name of a parameter -> its axis, and what lies along it."""
    return {
        f"{place}.{name}": side
        for place, part in module.named_modules()
        if isinstance(part, GrowingInput | GrowingOutput | GrowingTable)
        for name, side in part.grows.items()
    }


def _init(weight: Tensor) -> None:
    """As `torch.nn.Linear` does it, for the inputs there are."""
    if weight.numel():
        bound = 1 / math.sqrt(weight.shape[1])
        nn.init.uniform_(weight, -bound, bound)


def _filled(x: Tensor, side: int) -> Tensor:
    """Filled up with zeros to BLOCK along its first (0) or last (-1) side; memory of its own."""
    short = BLOCK - x.shape[side]
    if not short:
        return x.contiguous()
    pads = [0, 0] * (x.ndim - 1) + [0, short] if side == 0 else [0, short]
    return F.pad(x, pads)
