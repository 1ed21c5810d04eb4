from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from helpers.training_batches import config_for, prepared, raw_batch
from pydantic import ValidationError

from wdsmix.errors import ConfigError
from wdsmix.mixture.normalize import Scale
from wdsmix.training.augment import AugmentConfig, Augmenter

OFF = dict.fromkeys(("brightness", "contrast", "saturation", "hue", "crop", "rotation"), 0.0)


def same_pictures(size=6, steps=3, cameras=2, side=32):
    """The same smooth picture everywhere, and nothing absent, padded or masked."""
    raw = raw_batch(size, steps=steps, cameras=cameras, side=side)
    y, x = torch.meshgrid(torch.linspace(0, 1, side), torch.linspace(0, 1, side), indexing="ij")
    picture = (torch.stack([x, y, x * y]) * 255).to(torch.uint8)
    raw["images"] = picture.expand(size, steps, cameras, 3, side, side).contiguous()
    raw["image_mask"] = torch.ones(size, steps, cameras, dtype=torch.bool)
    raw["task"] = ["lift"] * size
    return raw


def seen(raw, augment):
    """Pictures in [0, 1]."""
    return prepared(raw, config_for("bc", raw, pixels="unit"), augment).images / 2 + 0.5


@pytest.mark.parametrize("change", [{"crop": 0.5}, {"rotation": 20.0}, {"brightness": 0.4}, {"contrast": 0.5}, {}])
def test_one_change_a_sample_and_the_same_over_its_history(change):
    raw = same_pictures()
    images = seen(raw, Augmenter(AugmentConfig(**(OFF | change if change else {})), seed=1))
    assert torch.equal(images, images[:, :1].expand_as(images))
    for one in range(6):
        assert not any(torch.allclose(images[one], images[other], atol=1e-3) for other in range(one))
    geometric = not change or "crop" in change or "rotation" in change
    assert torch.allclose(images[:, :, 0], images[:, :, 1], atol=1e-3) != geometric


def test_nothing_on_changes_nothing():
    raw = same_pictures()
    assert torch.equal(seen(raw, Augmenter(AugmentConfig(**OFF), seed=1)), seen(raw, None))


def test_the_generator_alone_decides():
    raw, config = same_pictures(), AugmentConfig(action_noise=0.1)
    first, second = Augmenter(config, seed=3), Augmenter(config, seed=3)
    torch.manual_seed(0)
    a = [prepared(raw, config_for("bc", raw), first) for _ in range(3)]
    torch.manual_seed(1)
    b = [prepared(raw, config_for("bc", raw), second) for _ in range(2)]
    state = second.state_dict()
    resumed = Augmenter(config, seed=99)
    resumed.load_state_dict(state)
    b.append(prepared(raw, config_for("bc", raw), resumed))
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.action, other.action)
    assert not torch.equal(a[0].images, a[1].images)
    assert not torch.equal(a[0].images, prepared(raw, config_for("bc", raw), Augmenter(config, seed=4)).images)


def test_the_draw_does_not_depend_on_what_is_there():
    raw, config = same_pictures(), AugmentConfig(action_noise=0.1)
    whole = seen(raw, Augmenter(config, seed=3))
    holes = dict(raw, image_mask=torch.rand(6, 3, 2) < 0.5)
    part = prepared(holes, config_for("bc", raw, pixels="unit"), Augmenter(config, seed=3))
    assert torch.allclose(part.images[holes["image_mask"]] / 2 + 0.5, whole[holes["image_mask"]], atol=1e-6)
    assert not part.images[~holes["image_mask"]].any()


def test_geometry_is_that_of_the_stated_angle_and_crop():
    """Oracle: a linear picture turned by hand about its middle."""
    side = 64
    raw = same_pictures(4, 1, 1, side)
    augment = Augmenter(AugmentConfig(**(OFF | {"rotation": 10.0, "crop": 0.3})), seed=0)
    place = augment.draw(raw, "cpu").place
    images = seen(raw, Augmenter(augment.config, seed=0))
    at = (torch.arange(side) + 0.5) / side * 2 - 1
    inner = slice(16, 48)
    for sample in range(4):
        theta = place[sample, 0].double().numpy()
        scale = math.sqrt(np.linalg.det(theta[:, :2]))
        angle = math.degrees(math.atan2(theta[1, 0], theta[0, 0]))
        assert math.sqrt(0.7) - 1e-6 <= scale <= 1
        assert abs(angle) <= 10
        assert np.abs(theta[:, 2]).max() <= 1 - scale + 1e-6
        xs = theta[0, 0] * at[None, :].numpy() + theta[0, 1] * at[:, None].numpy() + theta[0, 2]
        wanted = ((xs + 1) / 2 * side - 0.5) / (side - 1)
        got = images[sample, 0, 0, 0].numpy()
        assert np.abs(got - wanted)[inner, inner].max() < 0.01


def test_a_turn_is_one_in_pixels_in_a_picture_that_is_no_square():
    augment = Augmenter(AugmentConfig(**(OFF | {"rotation": 30.0})), seed=0)
    images = torch.zeros(1, 3, 40, 80)
    images[:, :, 20, 10:70] = 1  # a line, which stays as long as the picture lets it
    raw = same_pictures(1, 1, 1)
    draw = augment.draw(raw, "cpu")
    angle = math.atan2(float(draw.place[0, 0, 1, 0]), float(draw.place[0, 0, 0, 0]))
    out = draw.pictures(images, torch.tensor([0]), torch.tensor([0]))[0, 0]
    ys, xs = (out > 0.4).nonzero(as_tuple=True)
    middle = (xs > 25) & (xs < 55)
    slope = np.polyfit(xs[middle].numpy(), ys[middle].numpy(), 1)[0]
    assert math.atan(slope) == pytest.approx(-angle, abs=0.03)


def test_colour_changes_keep_grey_grey_and_stay_in_range():
    augment = Augmenter(AugmentConfig(**(OFF | {"saturation": 0.5, "hue": 0.2})), seed=0)
    raw = same_pictures()
    raw["images"] = torch.full_like(raw["images"], 100)
    torch.testing.assert_close(seen(raw, augment), torch.full_like(seen(raw, None), 100 / 255), rtol=0, atol=1e-5)
    raw = same_pictures()
    images = seen(raw, Augmenter(AugmentConfig(brightness=0.9, contrast=0.9), seed=0))
    assert images.min() >= 0
    assert images.max() <= 1
    factor = seen(raw, Augmenter(AugmentConfig(**(OFF | {"brightness": 0.3})), seed=5)) / seen(raw, None)
    ratios = factor[:, 0, 0, 0, 8, 8]
    assert ((ratios > 0.7) & (ratios < 1.3)).all()
    assert ratios.std() > 0.05


def test_action_noise_touches_real_actions_only():
    raw = raw_batch(64, chunk=8)
    config = config_for("bc", raw)
    clean, noisy = prepared(raw, config), prepared(raw, config, Augmenter(AugmentConfig(action_noise=0.2), seed=0))
    real = raw["action_mask"][:, None] & ~raw["action_is_pad"][..., None]
    difference = noisy.action - clean.action
    assert not difference[~real].any()
    assert difference[real].std().item() == pytest.approx(0.2, rel=0.1)
    assert torch.equal(noisy.state, clean.state)


def catalog(*centres, factor=None):
    """What the augmenter reads of an opened mixture: two robots, a state of 3 and an action of 2, padded to 6 and 5."""

    def scale(centre, factors):
        return Scale(
            centre=np.array(centre),
            factor=np.array(factors),
            live=np.array(factors) > 0,
            bound=1.0,
            ranged=np.zeros(len(centre), dtype=bool),
        )

    return SimpleNamespace(
        sources=[SimpleNamespace(name=name, embodiment=name) for name in ("arm", "base")],
        layout=SimpleNamespace(dims={"state": 6, "action": 5}),
        scales={
            "state": [scale([0.0, 1.0, 2.0], [1.0, 0.5, 2.0]), None],
            "action": [scale([0.1, 0.3], [2.0, 0.5]), scale([0.0, 0.0], [1.0, 1.0])],
        },
    )


MIRROR = {"arm": {"action": [-2, -1], "state": [1, 3, -2]}, "base": {"action": [1, -2], "state": []}}


def test_a_flip_mirrors_pictures_state_and_actions():
    raw = same_pictures(8)
    raw["task"] = ["lift"] * 6 + ["turn LEFT", "向右转"]
    raw["state_mask"] = (torch.arange(6) < 3) & (raw["source_id"] == 0)[:, None]
    raw["action_mask"] = (torch.arange(5) < 2).expand(8, 5)
    for name in ("state", "action"):
        raw[name] = raw[name] * raw[f"{name}_mask"][:, None] * 0.2
    augment = Augmenter(AugmentConfig(**OFF, flip=1.0, mirror=MIRROR), 0, catalog())
    config = config_for("bc", raw, pixels="unit")
    plain, flipped = prepared(raw, config), prepared(raw, config, augment)
    torch.testing.assert_close(flipped.images[:6], plain.images[:6].flip(-1), rtol=0, atol=1e-5)
    assert torch.equal(flipped.images[6:], plain.images[6:])
    assert torch.equal(flipped.action[6:], plain.action[6:])
    arm, base = slice(0, 6, 2), slice(1, 6, 2)
    raw_action = plain.action[arm, :, :2] / torch.tensor([2.0, 0.5]) + torch.tensor([0.1, 0.3])
    wanted = (-raw_action.flip(-1) - torch.tensor([0.1, 0.3])) * torch.tensor([2.0, 0.5])
    torch.testing.assert_close(flipped.action[arm, :, :2], wanted.clamp(-1, 1))
    torch.testing.assert_close(flipped.action[base, :, :2], plain.action[base, :, :2] * torch.tensor([1.0, -1.0]))
    raw_state = plain.state[arm, :, :3] / torch.tensor([1.0, 0.5, 2.0]) + torch.tensor([0.0, 1.0, 2.0])
    other = raw_state[..., [0, 2, 1]] * torch.tensor([1.0, 1.0, -1.0])
    wanted = (other - torch.tensor([0.0, 1.0, 2.0])) * torch.tensor([1.0, 0.5, 2.0])
    torch.testing.assert_close(flipped.state[arm, :, :3], wanted.clamp(-1, 1))
    assert not flipped.state[:, :, 3:].any()
    assert not flipped.action[:, :, 2:].any()


def test_flips_are_refused_without_a_stated_mirror():
    with pytest.raises(ConfigError, match="opened mixture"):
        Augmenter(AugmentConfig(flip=0.5, mirror=MIRROR), 0)
    with pytest.raises(ConfigError, match=r"source 'base' can't be flipped.*base: \{action"):
        Augmenter(AugmentConfig(flip=0.5, mirror={"arm": MIRROR["arm"]}), 0, catalog())
    for wrong in ([1, 1], [1], [0, 1], [1, 2, 3], []):
        with pytest.raises(ConfigError, match=r"augment\.mirror\.base\.action.*signed permutation of 1 to 2"):
            Augmenter(AugmentConfig(flip=0.5, mirror=MIRROR | {"base": {"action": wrong}}), 0, catalog())
    Augmenter(AugmentConfig(), 0)


def test_bad_options_are_refused():
    for options in ({"blur": 1}, {"crop": 1.0}, {"flip": 1.5}, {"action_noise": -1}, {"hue": 0.6}):
        with pytest.raises(ValidationError):
            AugmentConfig(**options)
