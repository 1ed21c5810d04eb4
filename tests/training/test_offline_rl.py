from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.training_batches import made, train

from wdsmix.errors import ConfigError
from wdsmix.training.policies.base import Next


def numbers(policy, batch):
    """Features, twin critics, target, value and next value as numpy arrays."""
    with torch.no_grad():
        features = policy.observation(batch)
        following = batch.next
        after = policy.observation.encode(
            following.images, following.image_mask, following.state, following.is_pad, batch.embodiment_id
        )
        action = batch.action[:, 0] * ~batch.action_is_pad[:, :1]
        q = np.stack([critic(features, action).numpy() for critic in policy.critics])
        target = np.stack([critic(features, action).numpy() for critic in policy.targets]).min(0)
        return q, target, policy.value(features)[:, 0].numpy(), policy.value(after)[:, 0].numpy()


def test_losses_are_those_of_implicit_q_learning():
    options = {"discount": 0.9, "expectile": 0.8, "temperature": 2.0, "largest_weight": 1.1, "reward_scale": 3.0}
    policy, batch = made("offline-rl", **options)
    for critic in policy.critics:  # away from their targets
        torch.nn.init.normal_(critic.value.weight)
    policy.eval()
    q, target, value, after = numbers(policy, batch)
    following = batch.next
    real = following.valid.numpy().astype(float)
    wanted = 3 * following.reward.numpy() + 0.9 * (1 - following.done.numpy()) * after
    advantage = target - value
    losses = policy.losses(batch)
    assert losses["critic"].item() == pytest.approx((((q - wanted) ** 2).sum(0) * real).mean(), rel=1e-4)
    lean = np.where(advantage > 0, 0.8, 0.2)
    assert losses["value"].item() == pytest.approx((lean * advantage**2 * real).mean(), rel=1e-4)
    with torch.no_grad():
        error = (policy.head(policy.observation(batch)) - batch.action).numpy() ** 2
    each = []
    for b in range(len(batch)):
        each.append(error[b][~batch.action_is_pad[b].numpy()][:, batch.action_mask[b].numpy()].mean())
    weight = np.minimum(np.exp(2 * advantage), 1.1)
    assert losses["actor"].item() == pytest.approx((weight * np.array(each)).mean(), rel=1e-4)
    total = losses["actor"] + losses["critic"] + losses["value"]
    assert losses["loss"].item() == pytest.approx(total.item())


def test_the_parts_stop_each_others_gradients():
    policy, batch = made("offline-rl")

    def touched(part):
        policy.zero_grad()
        policy.losses(batch)[part].backward()
        heads = {"head": policy.head, "critics": policy.critics, "value": policy.value, "targets": policy.targets}
        return {
            name
            for name, module in heads.items()
            if any(p.grad is not None and p.grad.any() for p in module.parameters())
        }

    assert touched("actor") == {"head"}
    assert touched("critic") == {"critics"}
    assert touched("value") == {"value"}


def test_target_critics_follow_slowly_and_are_not_trained():
    policy, batch = made("offline-rl", target_rate=0.25)
    assert not any(p.requires_grad for p in policy.targets.parameters())
    with torch.no_grad():
        for p in policy.critics.parameters():
            p.add_(1)
    before = [p.clone() for p in policy.targets.parameters()]
    policy.losses(batch)
    assert all(torch.equal(p, old) for p, old in zip(policy.targets.parameters(), before, strict=True))
    policy.after_step()
    for p, old in zip(policy.targets.parameters(), before, strict=True):
        torch.testing.assert_close(p - old, torch.full_like(p, 0.25))
    assert any(name.startswith("targets.") for name in policy.state_dict())


def test_transitions_that_are_cut_off_teach_critics_nothing():
    policy, batch = made("offline-rl", temperature=0.0)
    other = replace(batch.next, reward=torch.where(batch.next.valid, batch.next.reward, 50.0))
    assert not batch.next.valid.all()
    assert policy.losses(batch)["loss"].item() == policy.losses(replace(batch, next=other))["loss"].item()


def test_a_batch_without_the_next_observation_is_refused():
    policy, batch = made("offline-rl")
    with pytest.raises(ConfigError, match=r"next observation.*end in 0, 1"):
        policy.losses(replace(batch, next=None))


def test_prefers_the_action_that_is_rewarded():
    """A bandit: half of the data act +1 and earn 1, half act -1 and earn nothing. Cloning answers 0."""

    def answer(temperature):
        size = 16
        policy, batch = made("offline-rl", size=size, cameras=0, steps=1, chunk=1, width=16, temperature=temperature)
        sign = torch.tensor([1.0, -1.0]).repeat(size // 2)
        ones = torch.ones(size)
        batch = replace(
            batch,
            state=torch.zeros_like(batch.state),
            action=sign[:, None, None].expand_as(batch.action),
            action_mask=torch.ones_like(batch.action_mask),
            embodiment_id=torch.zeros_like(batch.embodiment_id),
            next=Next(
                images=batch.images,
                image_mask=batch.image_mask,
                state=torch.zeros_like(batch.state),
                is_pad=torch.ones(size, 1, dtype=torch.bool),
                reward=(sign > 0).float(),
                done=ones,
                valid=ones.bool(),
            ),
        )
        train(policy, batch, 250)
        with torch.no_grad():
            q, *_ = numbers(policy, batch)
            return policy.act(batch).mean().item(), q.mean(0)

    cloned, _ = answer(0.0)
    learned, q = answer(5.0)
    assert abs(cloned) < 0.1
    assert learned > 0.9
    np.testing.assert_allclose(q, [1, 0] * 8, atol=0.1)
