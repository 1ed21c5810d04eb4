from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.mixtures import make_set
from helpers.training_batches import config_for, prepared, raw_batch
from PIL import Image

from wdsmix.errors import ConfigError, DataError
from wdsmix.mixture.loader import MixtureDataset
from wdsmix.training.batches import prepare
from wdsmix.training.policies import POLICIES
from wdsmix.training.rewards import rewards_of


def test_pixels_are_scaled_and_absent_pictures_are_zero():
    raw = raw_batch()
    mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
    pixels = raw["images"].numpy().transpose(0, 1, 2, 4, 5, 3) / 255
    mask = raw["image_mask"].numpy()[..., None, None, None]
    for pixel_scale, expected in (("imagenet", (pixels - mean) / std), ("unit", pixels * 2 - 1)):
        found = prepared(raw, config_for("bc", raw, pixels=pixel_scale))
        assert found.images.dtype == torch.float32
        wanted = np.where(mask, expected, 0).transpose(0, 1, 2, 5, 3, 4)
        np.testing.assert_allclose(found.images.numpy(), wanted, atol=2e-6)
    assert torch.equal(found.image_mask, raw["image_mask"])


@pytest.mark.parametrize("size", [(16, 16), (48, 24), (33, 40)])
def test_pictures_are_resized_as_pillow_does(size):
    raw = raw_batch(2)
    found = prepared(raw, config_for("bc", raw, image_size=size, pixels="unit")).images
    for place in raw["image_mask"].nonzero().tolist():
        picture = raw["images"][tuple(place)].permute(1, 2, 0).numpy()
        wanted = np.asarray(Image.fromarray(picture).resize(size[::-1], Image.Resampling.BILINEAR))
        got = (found[tuple(place)].permute(1, 2, 0).numpy() + 1) * 127.5
        assert np.abs(got - wanted).max() < 1.01


def test_masked_numbers_are_zero_even_if_they_were_not():
    raw = raw_batch()
    raw["state"] = torch.where(raw["state_mask"][:, None], raw["state"], float("nan"))
    raw["action"] = torch.where(raw["action_mask"][:, None], raw["action"], float("nan"))
    batch = prepared(raw, config_for("bc", raw))
    assert not batch.state[~raw["state_mask"][:, None].expand_as(batch.state)].any()
    assert not batch.action[~raw["action_mask"][:, None].expand_as(batch.action)].any()
    assert torch.isfinite(batch.state).all()
    assert torch.isfinite(batch.action).all()


def test_another_shape_is_refused():
    raw = raw_batch()
    for key, value in (("cameras", 3), ("state_dim", 7), ("action_dim", 4), ("chunk", 5), ("history", 1)):
        config = config_for("bc", raw, **{key: value})
        with pytest.raises(ConfigError, match="shape"):
            prepare(raw, "cpu", config, offsets=(-1, 0))


def test_the_next_observation_is_the_window_one_frame_later():
    raw = raw_batch(steps=3, rewards=True)
    batch = prepared(raw, config_for("offline-rl", raw, history=2))
    whole = prepared(raw, config_for("bc", raw))
    assert torch.equal(batch.images, whole.images[:, :2])
    assert torch.equal(batch.next.images, whole.images[:, 1:])
    assert torch.equal(batch.next.state, whole.state[:, 1:])
    assert torch.equal(batch.next.is_pad, raw["observation_is_pad"][:, 1:])
    assert torch.equal(batch.next.reward, raw["reward"][:, 1])
    assert torch.equal(batch.next.done, raw["done"][:, 1])
    assert prepared(raw, config_for("bc", raw, history=2)).next is None


def rewards(**changes):
    """Four samples: inside an episode; at its last frame with an end; the same, cut off; without a stored reward."""
    batch = {
        "observation_is_pad": torch.tensor([[False, False], [False, True], [False, True], [False, True]]),
        "reward": torch.tensor([[0.5, 9.0], [1.0, 9.0], [2.0, 9.0], [0.0, 0.0]]),
        "reward_mask": torch.tensor([True, True, True, False]),
        "done": torch.tensor([[0.0, 9.0], [1.0, 9.0], [0.0, 9.0], [0.0, 0.0]]),
        "done_mask": torch.tensor([True, True, True, False]),
        "extras": {"score": [None, None, None, 4.5]},
        "source_id": torch.arange(4),
        "episode": torch.arange(4),
    }
    return batch | changes


def test_rewards_are_those_stored_or_those_of_the_rule():
    reward, done, valid = rewards_of(rewards(), "stored")
    assert reward.tolist() == [0.5, 1.0, 2.0, 0.0]
    assert done.tolist() == [0, 1, 0, 0]
    assert valid.tolist() == [True, True, False, False]
    reward, done, valid = rewards_of(rewards(), "score")
    assert reward.tolist() == [0.5, 1.0, 2.0, 4.5]
    assert done.tolist() == [0, 1, 0, 1]
    assert valid.tolist() == [True, True, False, True]
    assert rewards_of(rewards(), "demonstration")[0].tolist() == [0.5, 1.0, 2.0, 1.0]
    none = rewards()
    for key in ("reward", "reward_mask", "done", "done_mask"):
        del none[key]
    reward, done, valid = rewards_of(none, "demonstration")
    assert reward.tolist() == done.tolist() == [0, 1, 1, 1]
    assert valid.all()
    with pytest.raises(DataError, match=r"source 3, episode 3: .* it has none; set"):
        rewards_of(rewards(extras={"score": [1, 1, 1, None]}), "score")
    with pytest.raises(DataError, match="has none"):
        rewards_of(rewards(extras={}), "score")


def test_a_policy_that_only_acts_needs_no_rewards():
    """Held-out episodes may lack the score that the trained ones have."""
    raw = raw_batch(steps=3, rewards=True)
    raw["reward_mask"][:] = False
    config = config_for("offline-rl", raw, history=2, rewards="score")
    with pytest.raises(DataError, match="has none"):
        prepared(raw, config)
    batch = prepare(raw, "cpu", config, offsets=(-1, 0, 1), learns=False)
    whole = prepared(raw, config_for("bc", raw))
    assert batch.next is None
    assert torch.equal(batch.images, whole.images[:, :2])
    assert torch.equal(batch.image_mask, whole.image_mask[:, :2])


@pytest.fixture(scope="module")
def sets(tmp_path_factory):
    """Three sources: one with rewards, one with a score, one with neither."""
    folder = tmp_path_factory.mktemp("sets")
    rewarded = {"state": 4, "action": 3, "reward": 1, "done": 1}
    make_set(folder / "paid", dims=rewarded, episodes=(5, 4))
    make_set(folder / "scored", episodes=(5, 4), extras={"score": 3.5})
    make_set(folder / "plain", episodes=(5, 4))
    return folder


def mixture(sets, *names, **sample):
    return {
        "sources": [{"name": name, "shards": str(sets / name), "weight": 1} for name in names],
        "sample": {"action_chunk": 2, "observation_offsets": [0, 1], **sample},
    }


def opened(sets, rule, *names, **sample):
    dataset = MixtureDataset(mixture(sets, *names, **sample), 8, rank=0, world_size=1, num_threads=1)
    raw = next(iter(dataset))
    config = config_for("offline-rl", raw, history=1, rewards=rule, image_size=(16, 16), width=16)
    POLICIES["offline-rl"].check_mixture(config, dataset.catalog)
    return prepared(raw, config), raw


def test_offline_rl_takes_rewards_from_a_mixture(sets):
    batch, raw = opened(sets, "stored", "paid", reward=True, done=True)
    assert torch.equal(batch.next.reward, raw["reward"][:, 0])
    assert batch.images.shape == (8, 1, 1, 3, 16, 16)
    asked = {"reward": True, "done": True, "extras": ["score"]}
    batch, raw = opened(sets, "score", "paid", "scored", **asked)
    last = raw["observation_is_pad"][:, 1] & (raw["source_id"] == 1)
    inside = ~raw["observation_is_pad"][:, 1] & (raw["source_id"] == 1)
    assert (batch.next.reward[last] == 3.5).all()
    assert not batch.next.reward[inside].any()
    assert torch.equal(batch.next.reward[raw["source_id"] == 0], raw["reward"][raw["source_id"] == 0, 0])
    batch, raw = opened(sets, "demonstration", "plain")
    assert torch.equal(batch.next.reward, raw["observation_is_pad"][:, 1].float())


@pytest.mark.parametrize(
    ("rule", "names", "sample", "message"),
    [
        (
            "stored",
            ["paid", "plain"],
            {"reward": True, "done": True},
            "options.rewards: source 'plain' stores no reward.*score",
        ),
        ("stored", ["paid"], {}, "add 'reward: true' and 'done: true'"),
        ("stored", ["paid"], {"reward": True}, "add 'reward: true' and 'done: true'"),
        ("score", ["scored"], {}, "extras"),
        ("score", ["plain"], {"extras": ["score"]}, "'plain': episode 0 has no score"),
        ("demonstration", ["plain"], {"observation_offsets": [-1, 0]}, r"expected \[-1, 0, 1\], found \[-1, 0\]"),
    ],
)
def test_offline_rl_says_what_a_mixture_lacks(sets, rule, names, sample, message):
    dataset = MixtureDataset(mixture(sets, *names, **sample), 4, rank=0, world_size=1, num_threads=1)
    history = sum(offset <= 0 for offset in dataset.catalog.layout.offsets)
    config = config_for("offline-rl", next(iter(dataset)), history=history, rewards=rule)
    with pytest.raises(ConfigError, match=message):
        POLICIES["offline-rl"].check_mixture(config, dataset.catalog)
