from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.training_batches import NAMES, config_for, made, prepared, raw_batch, train

from wdsmix.errors import ConfigError
from wdsmix.training.policies import build_policy, policy_config

every_policy = pytest.mark.parametrize("name", NAMES)


def mse(policy, batch):
    """By numpy, sample by sample: the error of the real actions."""
    with torch.no_grad():
        found = policy.act(batch).numpy()
    errors = []
    for b in range(len(batch)):
        steps = ~batch.action_is_pad[b].numpy()
        dims = batch.action_mask[b].numpy()
        errors.append(((found[b] - batch.action[b].numpy())[steps][:, dims] ** 2).mean())
    return float(np.mean(errors))


@every_policy
def test_overfits_a_batch(name):
    policy, batch = made(name)
    policy.eval()
    before = mse(policy, batch)
    train(policy, batch, 180 if name == "vla" else 100)
    assert mse(policy, batch) < 0.05 * before
    logged = policy.losses(batch)
    assert {"loss", "mse", "l1"} <= logged.keys()
    assert all(value.dtype == torch.float32 and value.ndim == 0 for value in logged.values())


@pytest.mark.parametrize("name", ["bc", "vla"])
def test_the_logged_error_is_that_of_the_actions(name):
    policy, batch = made(name)
    policy.eval()
    assert policy.losses(batch)["mse"].item() == pytest.approx(mse(policy, batch), rel=1e-5)


@every_policy
def test_what_is_masked_reaches_neither_loss_nor_gradient(name):
    policy, batch = made(name, dropout=0.0)
    policy.eval()
    poisoned = replace(
        batch,
        images=torch.where(batch.image_mask[..., None, None, None], batch.images, float("nan")),
        action=torch.where(batch.action_mask[:, None] & ~batch.action_is_pad[..., None], batch.action, float("nan")),
    )
    outside = batch.observation_is_pad
    poisoned = replace(poisoned, state=torch.where(outside[..., None], 7e4, poisoned.state))
    poisoned = replace(poisoned, images=torch.where(outside[:, :, None, None, None, None], 7e4, poisoned.images))
    gradients = []
    for given in (batch, poisoned):
        policy.zero_grad()
        loss = policy.losses(given)["loss"]
        loss.backward()
        gradients.append([loss.detach(), *(p.grad.clone() for p in policy.parameters() if p.requires_grad)])
    for clean, dirty in zip(*gradients, strict=True):
        torch.testing.assert_close(dirty, clean, rtol=0, atol=0)


@every_policy
def test_gradients_of_masked_inputs_are_exactly_zero(name):
    policy, batch = made(name)
    images, state = batch.images.clone().requires_grad_(), batch.state.clone().requires_grad_()
    policy.eval()
    policy.losses(replace(batch, images=images, state=state))["loss"].backward()
    seen = batch.image_mask & ~batch.observation_is_pad[..., None]
    assert not images.grad[~seen].any()
    assert images.grad[seen].abs().sum() > 0
    assert not state.grad[batch.observation_is_pad].any()
    assert state.grad[~batch.observation_is_pad].abs().sum() > 0


@every_policy
def test_masked_dimensions_of_the_output_learn_nothing(name):
    policy, batch = made(name)
    lacking = torch.zeros_like(batch.action_mask)
    lacking[:, :3] = True
    batch = replace(batch, action_mask=lacking, action=batch.action * lacking[:, None])
    policy.losses(batch)["loss"].backward()
    layer = policy.action if hasattr(policy, "action") else policy.head.action
    assert layer.weight.grad[:3].any(1).all()
    assert not layer.weight.grad[3:].any()
    assert not layer.bias.grad[3:].any()
    assert not policy.act(batch)[..., 3:].any()


@every_policy
def test_a_sample_without_actions_teaches_nothing(name):
    policy, batch = made(name, **({"temperature": 0.0} if name == "offline-rl" else {}))
    dead = replace(batch, action_mask=torch.zeros_like(batch.action_mask), action=torch.zeros_like(batch.action))
    if dead.next is not None:
        dead = replace(dead, next=replace(dead.next, valid=torch.zeros_like(dead.next.valid)))
    loss = policy.losses(dead)["loss"]
    loss.backward()
    assert loss.item() == 0
    assert not any(p.grad.any() for p in policy.parameters() if p.requires_grad)


@every_policy
def test_every_parameter_takes_part_whatever_is_there(name):
    for shape in ({"cameras": 0}, {"steps": 1}, {}):
        policy, batch = made(name, size=4, **shape)
        batch = replace(batch, image_mask=torch.zeros_like(batch.image_mask), task=[""] * 4)
        if batch.next is not None:
            batch = replace(batch, next=replace(batch.next, image_mask=torch.zeros_like(batch.next.image_mask)))
        loss = policy.losses(batch)["loss"]
        loss.backward()
        assert torch.isfinite(loss)
        lacking = [n for n, p in policy.named_parameters() if p.requires_grad and p.grad is None]
        assert lacking == []
        assert torch.isfinite(policy.act(batch)).all()


@every_policy
def test_a_batch_without_state_works(name):
    raw = raw_batch(steps=2 + (name == "offline-rl"), rewards=name == "offline-rl")
    raw["state"], raw["state_mask"] = raw["state"][..., :0], raw["state_mask"][:, :0]
    config = config_for(name, raw, history=2, width=32)
    policy, batch = build_policy(name, config), prepared(raw, config)
    policy.losses(batch)["loss"].backward()
    assert torch.isfinite(policy.act(batch)).all()


@every_policy
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_finite_and_losses_are_float32(name, dtype):
    policy, batch = made(name, size=4)
    policy.eval()
    with torch.autocast("cpu", dtype=dtype):
        losses = policy.losses(batch)
        out = policy.act(batch)
    assert all(value.dtype == torch.float32 and torch.isfinite(value) for value in losses.values())
    assert out.dtype == torch.float32
    assert torch.isfinite(out).all()
    losses["loss"].backward()
    assert all(torch.isfinite(p.grad).all() for p in policy.parameters() if p.requires_grad)
    full = policy.losses(batch)["mse"]
    assert losses["mse"].item() == pytest.approx(full.item(), rel=0.05)


@every_policy
def test_the_loss_of_a_batch_is_the_mean_of_its_halves(name):
    """So that ranks, whose gradients are averaged, train on the loss of the whole batch."""
    policy, _ = made(name)
    policy.eval()
    raw = raw_batch(steps=2 + (name == "offline-rl"), rewards=name == "offline-rl")
    whole = policy.losses(prepared(raw, policy.config))["loss"].item()
    halves = []
    for half in (slice(0, 4), slice(4, 8)):
        part = {key: value[half] for key, value in raw.items() if key != "extras"} | {"extras": {}}
        halves.append(policy.losses(prepared(part, policy.config))["loss"].item())
    assert whole == pytest.approx(np.mean(halves), rel=1e-5)


@every_policy
def test_acting_looks_at_no_recorded_action_and_repeats_itself(name):
    policy, batch = made(name)
    policy.eval()
    with torch.no_grad():
        first = policy.act(batch)
        again = policy.act(replace(batch, action=torch.full_like(batch.action, 9.0)))
    assert first.shape == batch.action.shape
    assert torch.equal(first, again)


@every_policy
def test_the_robot_matters_and_others_learn_nothing_from_it(name):
    policy, batch = made(name)
    policy.eval()
    ids = torch.full_like(batch.embodiment_id, 2)
    with torch.no_grad():
        assert not torch.equal(policy.act(batch), policy.act(replace(batch, embodiment_id=ids)))
    policy.losses(replace(batch, embodiment_id=ids))["loss"].backward()
    table = next(p for n, p in policy.named_parameters() if n.endswith("embodiment_embed.weight"))
    assert table.grad.any(1).nonzero().flatten().tolist() == [2]


def test_transformer_conditions_on_earlier_actions_only():
    policy, batch = made("transformer")
    policy.eval()
    history = policy._history(batch)
    hidden = torch.zeros(8, 3, dtype=torch.bool)

    def found(earlier):
        with torch.no_grad():
            return policy._actions(history, batch.observation_is_pad, earlier, hidden)

    earlier = batch.action[:, :-1]
    base = found(earlier)
    for changed in range(3):
        other = earlier.clone()
        other[:, changed] += 1
        differs = (found(other) != base).flatten(2).any(2)
        assert not differs[:, : changed + 1].any()
        assert differs[:, changed + 1 :].all()


def test_transformer_acts_on_what_it_chose():
    policy, batch = made("transformer")
    policy.eval()
    with torch.no_grad():
        chosen = policy.act(batch)
        forced = policy._actions(
            policy._history(batch), batch.observation_is_pad, chosen[:, :-1], torch.zeros(8, 3, dtype=torch.bool)
        )
    torch.testing.assert_close(forced * batch.action_mask[:, None], chosen, rtol=1e-5, atol=1e-6)


def test_vla_tells_tasks_apart():
    policy, batch = made("vla", size=4)
    same = {
        name: getattr(batch, name)[:1].expand(4, *getattr(batch, name).shape[1:])
        for name in ("images", "image_mask", "state", "state_mask", "embodiment_id", "action_mask", "action_is_pad")
    }
    sign = torch.tensor([1.0, -1.0, 1.0, -1.0])[:, None, None]
    batch = replace(batch, **same, action=sign.expand_as(batch.action), task=["push", "pull", "push", "pull"])
    batch = replace(batch, action_mask=torch.ones_like(batch.action_mask))
    train(policy, batch, 60)
    assert mse(policy, batch) < 0.05


def test_unknown_policies_and_options_are_refused():
    shape = {"cameras": 1, "image_size": (32, 32), "state_dim": 3, "action_dim": 2}
    with pytest.raises(ConfigError, match="bc, transformer, vla, offline-rl"):
        policy_config({"policy": "diffusion", **shape})
    with pytest.raises(ConfigError, match="did you mean 'heads'"):
        policy_config({"policy": "vla", "head": 4, **shape})
    with pytest.raises(ConfigError, match="another policy"):
        build_policy("bc", policy_config({"policy": "vla", **shape}))
