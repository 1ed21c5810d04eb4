"""Batches as the loader makes them, from arithmetic alone, and policies small enough for a test."""

from __future__ import annotations

from typing import Any

import torch

from wdsmix.training.batches import prepare
from wdsmix.training.policies import POLICIES, Policy, PolicyBatch, build_policy, policy_config

NAMES = sorted(POLICIES)


def raw_batch(
    size: int = 8,
    *,
    steps: int = 2,
    cameras: int = 2,
    side: int = 32,
    chunk: int = 4,
    state: int = 6,
    action: int = 5,
    rewards: bool = False,
    seed: int = 0,
) -> dict[str, Any]:
    """A batch with holes of every kind: absent cameras, lacking dimensions, steps beyond the episode."""
    g = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.rand(size, *shape, generator=g)

    pixels = (random(steps, cameras, side, side, 3) * 256).to(torch.uint8)
    state_mask, action_mask = random(state) < 0.8, random(action) < 0.8
    state_mask[:, 0] = action_mask[:, 0] = True
    batch = {
        "images": pixels.permute(0, 1, 2, 5, 3, 4),
        "image_mask": random(steps, cameras) < 0.7,
        "state": (random(steps, state) * 2 - 1) * state_mask[:, None],
        "state_mask": state_mask,
        "action": (random(chunk, action) * 2 - 1) * action_mask[:, None],
        "action_mask": action_mask,
        "action_is_pad": torch.arange(chunk) >= torch.randint(1, 2 * chunk, (size, 1), generator=g),
        "observation_is_pad": torch.zeros(size, steps, dtype=torch.bool),
        "embodiment_id": torch.arange(size) % 3,
        "source_id": torch.arange(size) % 2,
        "episode": torch.arange(size),
        "frame": torch.zeros(size, dtype=torch.int64),
        "task": [("pick up the cube", "open the drawer", "")[i % 3] for i in range(size)],
        "extras": {},
    }
    batch["observation_is_pad"][: size // 2, 0] = steps > 1
    if rewards:
        batch["observation_is_pad"][:, -1] = torch.arange(size) == size - 1
        for name in ("reward", "done"):
            batch[name], batch[f"{name}_mask"] = random(steps).round(), torch.ones(size, dtype=torch.bool)
    return batch


def made(name: str, *, seed: int = 0, width: int = 32, **shape: Any) -> tuple[Policy, PolicyBatch]:
    """A policy and a batch that fits it; ``shape`` as in `raw_batch`, and options of the policy."""
    fields = POLICIES[name].Config.model_fields
    options = {key: shape.pop(key) for key in list(shape) if key not in ("cameras", "chunk") and key in fields}
    reinforced = name == "offline-rl"
    steps = shape.pop("steps", 2)
    raw = raw_batch(steps=steps + reinforced, rewards=reinforced, **shape)
    config = config_for(name, raw, width=width, history=steps, **options)
    torch.manual_seed(seed)
    return build_policy(name, config), prepared(raw, config)


def config_for(name: str, raw: dict[str, Any], **options: Any) -> Any:
    """The configuration of a policy for a batch."""
    values = {
        "policy": name,
        "cameras": raw["images"].shape[2],
        "image_size": tuple(raw["images"].shape[-2:]),
        "history": raw["images"].shape[1],
        "chunk": raw["action"].shape[1],
        "state_dim": raw["state"].shape[2],
        "action_dim": raw["action"].shape[2],
    }
    return policy_config({**values, **options})


def prepared(raw: dict[str, Any], config: Any, augment: Any = None) -> PolicyBatch:
    """The batch on the CPU."""
    following = raw["images"].shape[1] - config.history
    return prepare(raw, "cpu", config, augment, offsets=range(1 - config.history, 1 + following))


def train(policy: Policy, batch: PolicyBatch, steps: int, rate: float = 3e-3) -> None:
    """Plain AdamW on one batch."""
    optimizer = torch.optim.AdamW([p for p in policy.parameters() if p.requires_grad], rate, weight_decay=0)
    policy.train()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        policy.losses(batch)["loss"].backward()
        optimizer.step()
        policy.after_step()
    policy.eval()
