from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers.training_batches import NAMES, config_for, made, prepared, raw_batch, train
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from wdsmix.cli import main
from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.training.checkpoint import KINDS, load_checkpoint, save_checkpoint
from wdsmix.training.expand import Rule, expand_checkpoint, expand_tensors, policy_rules
from wdsmix.training.expand_file import expand_file
from wdsmix.training.policies import build_policy, policy_config
from wdsmix.training.policies.linear import GrowingInput, GrowingOutput, growing_sides

every_policy = pytest.mark.parametrize("name", NAMES)
SIZES = {"state": 32, "action": 32, "embodiment": 32}


def trained(name, *, state=16, action=16, steps=3):
    """A policy after a few steps, its batch, and its checkpoint with averaged weights and moments."""
    policy, batch = made(name, size=6, state=state, action=action)
    named = [(n, p) for n, p in policy.named_parameters() if p.requires_grad]
    groups = [[n for n, p in named if p.ndim >= 2], [n for n, p in named if p.ndim < 2]]
    known = dict(named)
    optimizer = torch.optim.AdamW([{"params": [known[n] for n in group]} for group in groups], 1e-3)
    for _ in range(steps):
        optimizer.zero_grad()
        policy.losses(batch)["loss"].backward()
        optimizer.step()
        policy.after_step()
    policy.eval()
    content: dict = {key: kind() for key, kind in KINDS.items() if isinstance(kind, type)}
    content |= {
        "policy": policy.config.model_dump(mode="json"),
        "model": policy.state_dict(),
        "ema": {"model": {key: value * 0.5 for key, value in policy.state_dict().items()}, "updates": 3},
        "optimizer": optimizer.state_dict(),
        "optimizer_names": groups,
        "embodiments": {"arm": 0},
        "train": {"num_embodiments": 16},
        "step": steps,
    }
    return policy, batch, content


def wider(batch, state, action):
    """The same samples, zeros and masks for what they lack."""

    def pad(x, width):
        return F.pad(x, (0, width - x.shape[-1]))

    following = batch.next and replace(batch.next, state=pad(batch.next.state, state))
    return replace(
        batch,
        state=pad(batch.state, state),
        state_mask=pad(batch.state_mask, state),
        action=pad(batch.action, action),
        action_mask=pad(batch.action_mask, action),
        next=following,
    )


def loaded(content):
    policy = build_policy(content["policy"]["policy"], policy_config(content["policy"]))
    policy.load_state_dict(content["model"])
    return policy.eval()


@every_policy
@pytest.mark.parametrize("width", [16, 14])
@pytest.mark.parametrize("init", ["mean", "zeros", "normal"])
def test_old_inputs_have_the_old_outputs_to_the_bit(name, width, init):
    policy, batch, content = trained(name, state=width, action=width, steps=1)
    grown = loaded(expand_checkpoint(content, SIZES, init=init))
    after = wider(batch, 32, 32)
    with torch.no_grad():
        old, new = policy.act(batch), grown.act(after)
        assert torch.equal(new[..., :width], old)
        assert not new[..., width:].any()
        # The loss sums over 32 columns in place of 16: the same but for the order of that sum.
        torch.testing.assert_close(grown.losses(after)["loss"], policy.losses(batch)["loss"], rtol=1e-6, atol=0)


@every_policy
def test_trains_on_and_new_rows_learn_from_new_robots_only(name):
    _, batch, content = trained(name)
    big = expand_checkpoint(content, SIZES)
    policy = loaded(big)
    table = next(p for n, p in policy.named_parameters() if n.endswith("embodiment_embed.weight"))
    layers = [m for m in policy.modules() if isinstance(m, GrowingOutput)]
    readers = [m for m in policy.modules() if isinstance(m, GrowingInput) and m.weight.requires_grad]
    old = wider(batch, 32, 32)
    policy.losses(old)["loss"].backward()
    assert not table.grad[16:].any()
    assert table.grad[:3].any(1).all()
    assert not any(layer.weight.grad[16:].any() or layer.bias.grad[16:].any() for layer in layers)
    assert not any(layer.weight.grad[:, 16:].any() for layer in readers)
    policy.zero_grad()
    raw = raw_batch(6, steps=2 + (name == "offline-rl"), state=32, action=32, rewards=name == "offline-rl")
    raw["embodiment_id"] = torch.arange(6) + 20
    new = prepared(raw, policy.config)
    policy.losses(new)["loss"].backward()
    assert table.grad.any(1).nonzero().flatten().tolist() == list(range(20, 26))
    assert all(layer.weight.grad[16:].any() for layer in [*layers])
    assert all(layer.weight.grad[:, 16:].any() for layer in readers)
    before = policy.losses(new)["mse"].item()
    train(policy, new, 30)
    assert policy.losses(new)["mse"].item() < 0.7 * before


@every_policy
def test_the_optimiser_goes_on_with_its_moments(name):
    _, _, content = trained(name)
    big = expand_checkpoint(content, SIZES)
    policy = loaded(big)
    known = dict(policy.named_parameters())
    optimizer = torch.optim.AdamW([{"params": [known[n] for n in group]} for group in big["optimizer_names"]], 1e-3)
    optimizer.load_state_dict(big["optimizer"])
    sides, names = growing_sides(policy), [n for group in big["optimizer_names"] for n in group]
    grew = 0
    for number, param_name in enumerate(names):
        was, now = content["optimizer"]["state"][number], big["optimizer"]["state"][number]
        assert now["step"] == was["step"]
        for key in ("exp_avg", "exp_avg_sq"):
            assert now[key].shape == known[param_name].shape
            head = now[key]
            if param_name in sides:
                axis, _ = sides[param_name]
                head, tail = now[key].split([16, 16], axis)
                assert not tail.any()
                grew += 1
            assert torch.equal(head, was[key])
    assert grew >= 2 * 4
    batch = prepared(
        raw_batch(4, steps=2 + (name == "offline-rl"), state=32, action=32, rewards=name == "offline-rl"), policy.config
    )
    policy.losses(batch)["loss"].backward()
    optimizer.step()
    assert all(torch.isfinite(p).all() for p in policy.parameters())


def test_new_rows_and_columns_are_what_is_said():
    g = torch.Generator().manual_seed(1)
    tensors = {"table": torch.randn(16, 8, generator=g) * 3 + 1, "in": torch.randn(8, 16, generator=g)}
    rules = [Rule.parse("table=embodiment:0"), Rule.parse("in=state:1")]
    sizes = {"embodiment": 4000, "state": 20}
    mean = expand_tensors(tensors, rules, sizes, init="mean")
    assert torch.equal(mean["table"][:16], tensors["table"])
    torch.testing.assert_close(mean["table"][16:], tensors["table"].mean(0).expand(3984, 8))
    assert torch.equal(mean["in"][:, :16], tensors["in"])
    assert not mean["in"][:, 16:].any()
    assert not expand_tensors(tensors, rules, sizes, init="zeros")["table"][16:].any()
    normal = expand_tensors(tensors, rules, sizes, init="normal")
    spread = (tensors["table"] - tensors["table"].mean(0)).square().mean().sqrt()
    assert normal["table"][16:].std() == pytest.approx(spread.item(), rel=0.02)
    assert abs(normal["table"][16:].mean().item()) < 0.05
    assert torch.equal(normal["table"], expand_tensors(tensors, rules, sizes, init="normal")["table"])
    assert not torch.equal(normal["table"], expand_tensors(tensors, rules, sizes, init="normal", seed=1)["table"])
    assert not normal["in"][:, 16:].any()


@every_policy
def test_averaged_weights_and_configuration_grow_too(name):
    _, batch, content = trained(name)
    kept = copy.deepcopy(content)
    big = expand_checkpoint(content, SIZES)
    assert {key: big["policy"][key] for key in ("state_dim", "action_dim", "num_embodiments")} == dict.fromkeys(
        ("state_dim", "action_dim", "num_embodiments"), 32
    )
    averaged = loaded({**big, "model": big["ema"]["model"]})
    small = loaded({**content, "model": content["ema"]["model"]})
    with torch.no_grad():
        assert torch.equal(averaged.act(wider(batch, 32, 32))[..., :16], small.act(batch))
    assert big["ema"]["updates"] == 3
    assert big["embodiments"] == {"arm": 0}
    assert big["train"]["num_embodiments"] == 32
    assert kept["policy"] == content["policy"]
    assert all(torch.equal(kept["model"][key], content["model"][key]) for key in kept["model"])


def test_growing_twice_is_growing_once():
    _, _, content = trained("bc")
    once = expand_checkpoint(content, SIZES, init="zeros")
    twice = expand_checkpoint(expand_checkpoint(content, {"state": 20}, init="zeros"), SIZES, init="zeros")
    assert all(torch.equal(once["model"][key], twice["model"][key]) for key in once["model"])
    same = expand_checkpoint(content, {"state": 16, "action": 16, "embodiment": 16})
    assert all(torch.equal(same["model"][key], content["model"][key]) for key in content["model"])


@settings(max_examples=25)
@given(st.integers(1, 40), st.integers(0, 40), st.sampled_from([1, 3, 33]), st.booleans())
def test_growing_layers_keep_their_bits(inputs, more, rows, half):
    """For any width and growth; and they are `torch.nn.Linear`, up to the order of a sum."""
    torch.manual_seed(inputs)
    x = torch.randn(rows, inputs)
    layer, big = GrowingInput("state", inputs, 24), GrowingInput("state", inputs + more, 24)
    out, wide = GrowingOutput("action", 24, inputs), GrowingOutput("action", 24, inputs + more)
    with torch.no_grad():
        big.weight.zero_()[:, :inputs] = layer.weight
        big.bias.copy_(layer.bias.normal_())
        wide.weight[:inputs], wide.bias[:inputs] = out.weight, out.bias
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            hidden = layer(x)
            assert torch.equal(big(F.pad(x, (0, more))), hidden)
            assert torch.equal(wide(hidden)[:, :inputs], out(hidden))
        if not half:
            torch.testing.assert_close(hidden, F.linear(x, layer.weight, layer.bias), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(out(hidden), F.linear(hidden, out.weight, out.bias), rtol=1e-4, atol=1e-5)


def test_shrinking_is_refused():
    _, _, content = trained("bc")
    for side in SIZES:
        with pytest.raises(ConflictError, match=r"only grows.*expected 16 or more.*found 8"):
            expand_checkpoint(content, {side: 8})


def test_rules_that_do_not_fit_are_refused():
    tensors = {"a.weight": torch.zeros(4, 6), "b.weight": torch.zeros(4, 7), "bias": torch.zeros(4)}
    with pytest.raises(ConfigError, match="names no tensor"):
        expand_tensors(tensors, [Rule.parse("c.*=state:1")], {"state": 8})
    with pytest.raises(ConfigError, match=r"b\.weight.*not the state_dim of 'a\.weight'.*expected 6.*found 7"):
        expand_tensors(tensors, [Rule.parse("*.weight=state:1")], {"state": 8})
    with pytest.raises(ConfigError, match="no such axis"):
        expand_tensors(tensors, [Rule.parse("bias=state:1")], {"state": 8})
    for text in ("weight", "weight=arm:1", "weight=state:x", "=state:1"):
        with pytest.raises(ConfigError, match="not a rule"):
            Rule.parse(text)


def test_command_grows_a_checkpoint(tmp_path, capsys):
    policy, batch, content = trained("transformer")
    save_checkpoint(tmp_path / "step.pt", content)
    digest = hashlib.sha256((tmp_path / "step.pt").read_bytes()).hexdigest()
    options = ["--num-embodiments", "32", "--state-dim", "32", "--action-dim", "32", "--init", "normal"]
    assert main(["expand", str(tmp_path / "step.pt"), str(tmp_path / "big.pt"), *options]) == 0
    text = capsys.readouterr().out
    assert "state.state.weight  [32, 16] -> [32, 32]" in text
    assert "state.embodiment_embed.weight  [16, 32] -> [32, 32]" in text
    grown = load_checkpoint(tmp_path / "big.pt")
    assert grown["step"] == 3
    with torch.no_grad():
        assert torch.equal(loaded(grown).act(wider(batch, 32, 32))[..., :16], policy.act(batch))
    assert hashlib.sha256((tmp_path / "step.pt").read_bytes()).hexdigest() == digest
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.pt", "step.pt"]
    for out in ("big.pt", "step.pt"):
        assert main(["expand", str(tmp_path / "step.pt"), str(tmp_path / out), *options]) == 3
    assert main(["expand", str(tmp_path / "big.pt"), str(tmp_path / "small.pt"), "--state-dim", "16"]) == 3
    capsys.readouterr()
    assert main(["expand", str(tmp_path / "big.pt"), str(tmp_path / "same.pt")]) == 2
    assert "at least one of --state-dim, --action-dim, --num-embodiments" in capsys.readouterr().err
    assert main(["expand", str(tmp_path / "no.pt"), str(tmp_path / "same.pt"), "--state-dim", "64"]) == 2
    for size in ("0", "-1", "1000000000000"):
        assert main(["expand", str(tmp_path / "step.pt"), str(tmp_path / "same.pt"), "--state-dim", size]) == 2
        assert "error: --state-dim: bad size" in capsys.readouterr().err
    assert main(["expand", str(tmp_path / "step.pt"), str(tmp_path / "step.pt" / "x.pt"), *options]) == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["big.pt", "step.pt"]


def test_safetensors_with_and_without_a_policy(tmp_path):
    policy, batch, content = trained("bc")
    config = json.dumps(content["policy"])
    tensors = {key: value.contiguous() for key, value in content["model"].items()}
    save_file(tensors, tmp_path / "a.safetensors", metadata={"policy": config, "step": "3"})
    expand_file(tmp_path / "a.safetensors", tmp_path / "b.safetensors", SIZES)
    with safe_open(tmp_path / "b.safetensors", "pt") as file:
        metadata, model = file.metadata(), {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    assert metadata["step"] == "3"
    grown = loaded({"policy": json.loads(metadata["policy"]), "model": model})
    with torch.no_grad():
        assert torch.equal(grown.act(wider(batch, 32, 32))[..., :16], policy.act(batch))
    save_file(tensors, tmp_path / "plain.safetensors")
    with pytest.raises(ConfigError, match="does not say which policy"):
        expand_file(tmp_path / "plain.safetensors", tmp_path / "c.safetensors", SIZES)
    rules = [Rule.parse("*.state.state.weight=state:1")]
    changed = expand_file(tmp_path / "plain.safetensors", tmp_path / "c.safetensors", {"state": 32}, rules=rules)
    assert changed == {"observation.state.state.weight": ([32, 16], [32, 32])}


def test_a_state_dict_of_another_program(tmp_path):
    torch.save({"emb.weight": torch.eye(16), "head.bias": torch.ones(3)}, tmp_path / "a.pt")
    expand_file(tmp_path / "a.pt", tmp_path / "b.pt", {"embodiment": 32}, rules=[Rule.parse("emb.*=embodiment:0")])
    grown = torch.load(tmp_path / "b.pt", weights_only=True)
    assert torch.equal(grown["emb.weight"], torch.cat([torch.eye(16), torch.full((16, 16), 1 / 16)]))
    assert torch.equal(grown["head.bias"], torch.ones(3))


def test_hostile_files_are_refused(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "written"), "w")

    (tmp_path / "short.pt").write_bytes(b"PK\x03\x04rubbish")
    (tmp_path / "short.safetensors").write_bytes(b"\xff" * 20)
    torch.save({"x": Evil()}, tmp_path / "evil.pt")
    for name in ("short.pt", "evil.pt", "short.safetensors"):
        with pytest.raises(DataError, match=name):
            expand_file(tmp_path / name, tmp_path / f"out{name[name.rindex('.') :]}", SIZES)
    for policy in ("[]", "3", "[" * 100_000):
        save_file({"w": torch.zeros(2)}, tmp_path / "odd.safetensors", metadata={"policy": policy})
        with pytest.raises(DataError, match=r"odd\.safetensors: can't be read"):
            expand_file(tmp_path / "odd.safetensors", tmp_path / "out.safetensors", SIZES)
    header = b'{"w": {"dtype": "F32", "shape": [1099511627776], "data_offsets": [0, 4398046511104]}}'
    (tmp_path / "huge.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(DataError, match="huge"):
        expand_file(tmp_path / "huge.safetensors", tmp_path / "out.safetensors", SIZES)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(ConfigError, match="not a state dict"):
        expand_file(tmp_path / "list.pt", tmp_path / "out.pt", SIZES)
    with pytest.raises(ConfigError, match="different kinds"):
        expand_file(tmp_path / "list.pt", tmp_path / "out.safetensors", SIZES)
    assert not (tmp_path / "written").exists()
    assert not list(tmp_path.glob("out*"))


def test_a_checkpoint_whose_parts_do_not_fit_is_refused(tmp_path):
    _, _, content = trained("bc", steps=1)
    model = dict(content["model"])
    del model[next(iter(model))]
    first = next(name for name in model if name.endswith("state.state.weight"))
    for number, change in enumerate(
        (
            {"model": {first: 3}},
            {"model": {**content["model"], first: torch.zeros(())}},
            {"optimizer": {}},
            {"optimizer_names": [["a"]]},
            {"ema": {"weights": 1}},
            {"policy": {"policy": "bc"}},
        )
    ):
        save_checkpoint(tmp_path / f"{number}.pt", {**content, **change})
        with pytest.raises((ConfigError, DataError)):
            expand_file(tmp_path / f"{number}.pt", tmp_path / "out.pt", SIZES)
    assert not (tmp_path / "out.pt").exists()


@every_policy
def test_the_rules_of_a_policy_name_what_depends_on_a_size(name):
    """Oracle: build it at two sizes and compare the shapes of all tensors."""
    raw = raw_batch(2, steps=2, state=16, action=16)
    small = config_for(name, raw, width=32)
    shapes = {key: value.shape for key, value in build_policy(name, small).state_dict().items()}
    found = {(rule.pattern, rule.axis, rule.side) for rule in policy_rules(small.model_dump(mode="json"))}
    expected = set()
    for side, key in (("state", "state_dim"), ("action", "action_dim"), ("embodiment", "num_embodiments")):
        big = build_policy(name, policy_config({**small.model_dump(mode="json"), key: 17})).state_dict()
        for tensor, value in big.items():
            expected |= {(tensor, axis, side) for axis, n in enumerate(value.shape) if n != shapes[tensor][axis]}
    assert found == expected
