"""States of the random generators that a run draws from: saved, restored, and kept from what must not disturb them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["kept", "random_state", "restore", "seed_all"]


def seed_all(seed: int, *numbers: int) -> int:
    """Seeds torch's generators from a seed and some numbers (rank, step, ...), and returns the seed it used."""
    mixed = seed
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + 2 * number + 1442695040888963407) % 2**63
    torch.manual_seed(mixed)
    return mixed


def random_state(device: torch.device) -> dict[str, Any]:
    """State of torch's generators, on the CPU and on a device, as tensors."""
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def restore(state: dict[str, Any], device: torch.device) -> None:
    """Goes back to a state; a GPU's is left out where one of the two runs has none."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


@contextmanager
def kept(device: torch.device) -> Iterator[None]:
    """Whatever is drawn within it, the generators go on as if it had not been."""
    state = random_state(device)
    try:
        yield
    finally:
        restore(state, device)
