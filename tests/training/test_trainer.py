"""Training and evaluation: figures against numpy, fp16 with dimensions that carry nothing, faults, the commands."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.mixtures import make_set
from helpers.train_runs import ALONE, trainer, write_sets

from wdsmix import ShardSet, cli
from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.mixture.config import MixtureConfig, load_mixture
from wdsmix.store.transfer import exclusive
from wdsmix.training.checkpoint import load_checkpoint
from wdsmix.training.evaluation import Evaluator, dimension_groups, load_policy
from wdsmix.training.logs import read_log
from wdsmix.training.precision import autoselect
from wdsmix.training.trainer import named_groups


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


class Constant(torch.nn.Module):
    """A policy that says 0.25 whatever it sees; its shape is that of a real one."""

    def __init__(self, config):
        super().__init__()
        self.config = config

    def act(self, batch):
        return torch.full_like(batch.action, 0.25)


@pytest.mark.parametrize("batch_size", [3, 64])
def test_figures_against_numpy(path, tmp_path, batch_size):
    mixture = load_mixture(path)
    config = trainer(mixture, tmp_path, steps=1).policy.config
    report = Evaluator(mixture, ["val"], batch_size, ALONE).run(Constant(config), autoselect("cpu"))
    means = {"mse": [], "mean_mse": []}
    for name, width in (("arm", 3), ("hand", 5)):
        opened = ShardSet(path.parent / name)
        stats = opened.stats.fields["action"]
        q01, q99 = np.array(stats.q01), np.array(stats.q99)
        episodes = list(opened.episodes("val"))
        scaled = np.concatenate([np.clip(2 * (e.action - q01) / (q99 - q01) - 1, -1, 1) for e in episodes])
        length = len(scaled)
        chunks = np.full((length, 3, width), np.nan)
        for t in range(length):
            for k in range(min(3, length - t)):
                chunks[t, k] = scaled[t + k]
        row = report["sources"][name]
        assert (row["frames"], row["split"]) == (length, "val")
        error = 0.25 - chunks
        assert row["mse"] == pytest.approx(np.nanmean(error**2), rel=1e-5)
        assert row["l1"] == pytest.approx(np.nanmean(np.abs(error)), rel=1e-5)
        spread = np.nanmean((chunks - np.nanmean(chunks, axis=0)) ** 2)
        assert row["mean_mse"] == pytest.approx(spread, rel=1e-5)
        assert row["ratio"] == pytest.approx(row["mse"] / spread, rel=1e-5)
        (group,) = row["groups"].values()
        real = error * (q99 - q01) / 2
        assert group["dims"] == width
        assert group["real_l1"] == pytest.approx(np.nanmean(np.abs(real)), rel=1e-4)
        assert group["real_rmse"] == pytest.approx(math.sqrt(np.nanmean(real**2)), rel=1e-4)
        for key, values in means.items():
            values.append(row[key])
    assert report["mse"] == pytest.approx(np.mean(means["mse"]))
    assert report["ratio"] == pytest.approx(np.mean(means["mse"]) / np.mean(means["mean_mse"]))


def test_a_limit_takes_frames_of_each_source_and_a_source_without_the_split_is_named(path, tmp_path):
    mixture = load_mixture(path)
    policy = Constant(trainer(mixture, tmp_path, steps=1).policy.config)
    report = Evaluator(mixture, ["val"], 2, ALONE, frames=3).run(policy, autoselect("cpu"))
    assert {name: row["frames"] for name, row in report["sources"].items()} == {"arm": 4, "hand": 4}
    make_set(tmp_path / "plain", episodes=[4], dims={"state": 6, "action": 5}, size=(16, 16), embodiment="hand")
    sources = [
        mixture.sources[0],
        mixture.sources[1].model_copy(update={"shards": str(tmp_path / "plain"), "name": "plain"}),
    ]
    report = Evaluator(mixture.model_copy(update={"sources": sources}), ["test", "val"], 2, ALONE).run(
        policy, autoselect("cpu")
    )
    assert (list(report["sources"]), report["left_out"]) == (["arm"], ["plain"])
    with pytest.raises(ConfigError, match="no source has a held-out split"):
        Evaluator(mixture, ["test"], 2, ALONE)
    # What is trained on is not held out.
    with pytest.raises(ConfigError, match="no source has a held-out split"):
        Evaluator(mixture, ["train"], 2, ALONE)


def test_groups_go_by_name(path):
    from wdsmix.mixture.catalog import open_catalog

    source = open_catalog(load_mixture(path)).sources[0]
    assert dimension_groups(source) == {"action": [0, 1, 2]}
    names = ["arm_0", "arm_1", "gripper"]
    vectors = source.set.manifest.vectors
    vectors["action"] = vectors["action"].model_copy(update={"names": names})
    assert dimension_groups(source) == {"arm": [0, 1], "gripper": [2]}


def _odd(number: int, vectors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A dimension that never changes, and one of std 1e-9, in state and action."""
    rng = np.random.default_rng(number)
    for rows in vectors.values():
        rows[:, 0] = 0.7
        rows[:, 1] = rng.normal(0, 1e-9, len(rows))
    return vectors


def test_fp16_with_dimensions_that_carry_nothing(tmp_path):
    common = {"dims": {"state": 4, "action": 4}, "size": (16, 16), "splits": ["train", "train", "val"]}
    make_set(tmp_path / "odd", episodes=[10, 8, 6], change=_odd, **common)
    make_set(tmp_path / "even", episodes=[10, 8, 6], **common)
    mixture = MixtureConfig.from_dict(
        {
            "sources": [
                {"name": "odd", "shards": "odd", "weight": 1, "normalize": {"state": "mean_std", "action": "mean_std"}},
                {"name": "even", "shards": "even", "weight": 1},
            ],
            "sample": {"action_chunk": 2, "normalize": {"state": "mean_std", "action": "q01_q99"}},
        },
        folder=tmp_path,
    )
    run = trainer(mixture, tmp_path / "out", steps=24, precision="fp16", eval_every=24, augment=None)
    assert (run.precision.name, run.precision.uses_scaler) == ("fp16", True)
    report = run.run().evaluation
    rows = [row for row in read_log(tmp_path / "out" / "log.jsonl") if row["kind"] == "train"]
    assert len(rows) == 24
    assert all(math.isfinite(row["loss"]) for row in rows)
    skipped = rows[-1]["skipped"]
    assert skipped < 6
    assert rows[-1]["scale"] == 65536 / 2**skipped
    assert report["sources"]["odd"]["groups"]["action"]["dims"] == 2
    assert all(math.isfinite(row["mse"]) for row in report["sources"].values())
    content = load_checkpoint(tmp_path / "out")
    assert all(torch.isfinite(value).all() for value in content["model"].values())
    assert content["stepper"]["scaler"]["scale"] == rows[-1]["scale"]


def test_fp16_refuses_inputs_without_bounds(tmp_path):
    def huge(number, vectors):
        return {name: rows * 1e5 for name, rows in vectors.items()}

    make_set(tmp_path / "huge", change=huge, size=(16, 16))
    values = {"sources": [{"name": "huge", "shards": "huge", "weight": 1}]}
    mixture = MixtureConfig.from_dict(values, folder=tmp_path)
    with pytest.raises(ConfigError, match=r"source 'huge': normalize: state is not bounded.*within 1000"):
        trainer(mixture, tmp_path / "out", steps=1, precision="fp16")
    trainer(mixture, tmp_path / "out", steps=1, precision="fp32")
    bounded = {**values, "sample": {"normalize": {"state": "q01_q99", "action": "mean_std"}}}
    trainer(MixtureConfig.from_dict(bounded, folder=tmp_path), tmp_path / "out", steps=1, precision="fp16")


def test_a_loss_that_is_not_finite_says_where(tmp_path):
    def huge(number, vectors):
        return {name: rows * (1e30 if name == "action" else 1) for name, rows in vectors.items()}

    make_set(tmp_path / "huge", change=huge, size=(16, 16))
    mixture = MixtureConfig.from_dict({"sources": [{"name": "huge", "shards": "huge", "weight": 1}]}, folder=tmp_path)
    run = trainer(mixture, tmp_path / "out", steps=5)
    before = {name: value.clone() for name, value in run.policy.state_dict().items()}
    with pytest.raises(DataError, match=r"step 1, rank 0: the loss is not finite .found inf.*'huge' \(id 0\) 4 times"):
        run.run()
    assert all(torch.equal(value, before[name]) for name, value in run.policy.state_dict().items())
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_a_held_out_error_that_is_not_finite_says_where(path, tmp_path):
    mixture = load_mixture(path)
    policy = Constant(trainer(mixture, tmp_path, steps=1).policy.config)

    def act(batch):
        wrong = (batch.embodiment_id == 1)[:, None, None]
        return torch.where(wrong, math.nan, torch.zeros_like(batch.action))

    policy.act = act
    with pytest.raises(DataError, match=r"source 'hand', split val: the held-out error is not finite"):
        Evaluator(mixture, ["val"], 4, ALONE).run(policy, autoselect("cpu"))


def test_a_checkpoint_that_does_not_fit_itself_is_refused(path, tmp_path):
    mixture = load_mixture(path)
    trainer(mixture, tmp_path, steps=1).run()
    start = load_checkpoint(tmp_path)
    name = start["optimizer_names"][0][0]
    wrong = {**start["model"], name: torch.zeros(2, 2)}
    state = start["optimizer"]["state"]
    moments = {**state, 0: {**state[0], "exp_avg": torch.zeros(1)}}
    for change in (
        {"model": wrong},
        {"model": {}},
        {"ema": {"model": wrong, "updates": 1}},
        {"ema": {"model": {name: wrong[name]}, "updates": 1}},
        {"optimizer": {**start["optimizer"], "state": moments}},
        {"optimizer_names": [start["optimizer_names"][1], start["optimizer_names"][0]]},
        {"stepper": {}},
        {"loader": {}},
        {"random": [{"torch": 3}]},
        {"normalization": {"arm": 3}},
    ):
        with pytest.raises((DataError, ConflictError, ConfigError)):
            trainer(mixture, tmp_path / "on", start={**start, **change}, steps=2)
    with pytest.raises(DataError, match="do not fit each other"):
        load_policy({**start, "ema": {"model": wrong}})


def test_only_matrices_decay(path, tmp_path):
    run = trainer(load_mixture(path), tmp_path, steps=1)
    decays, others = named_groups(run.policy, 0.1)
    assert (decays["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(p.ndim >= 2 and "embed" not in name for name, p in decays["params"])
    assert {name for name, _ in decays["params"] + others["params"]} == {n for n, _ in run.policy.named_parameters()}


def test_the_commands(path, tmp_path, capsys):
    out = tmp_path / "out"
    train = ["train", str(path), "--out", str(out), "--threads", "1", "--set", "options.width=16"]
    assert cli.main([*train, "--steps", "4", "--batch-size", "4", "--eval-every", "2", "--safetensors"]) == 0
    told = capsys.readouterr()
    assert "held out, step 4" in told.out
    assert "cpu, fp32" in told.err
    assert cli.main([*train, "--steps", "8"]) == 3
    assert "holds a run" in capsys.readouterr().err
    assert cli.main([*train, "--resume", "--steps", "6", "--set", "lrr=3"]) == 2
    assert "lrr: unknown key; did you mean 'lr'?" in capsys.readouterr().err
    assert cli.main(["train", str(path), "--out", str(out), "--resume", "--seed", "4"]) == 3
    assert "can't change within a run" in capsys.readouterr().err
    assert cli.main(["train", str(path), "--out", str(tmp_path / "none"), "--resume", "--steps", "6"]) == 2
    assert "no checkpoint to go on from" in capsys.readouterr().err
    assert cli.main(["train", str(path), "--out", str(tmp_path / "none"), "--resume", "auto", "--steps", "1"]) == 0
    for flags, message in (
        (["--set", "options.widht=16"], "options.widht: unknown key; did you mean 'width'?"),
        (["--set", "options.width=17"], "options.width: bad value"),
        (["--set", "options=" + "[" * 5000], "not YAML"),
        (["--seed", str(2**63)], "seed: bad value (expected less than"),
        (["--set", "options.chunk=3"], "options.chunk: chunk is settled by the mixture"),
        (["--set", "num_embodiments=1"], "no row for 'hand'"),
        (["--set", "augment.crops=0.1"], "augment.crops: unknown key; did you mean 'crop'?"),
        (["--policy", "cb"], "no such policy"),
        (["--precision", "fp8"], "precision"),
        (["--device", "toaster"], "no such device"),
    ):
        assert cli.main([*train[:3], str(tmp_path / "new"), "--steps", "1", *flags]) == 2, flags
        assert message in capsys.readouterr().err
    capsys.readouterr()
    assert cli.main(["evaluate", str(out), str(path), "--json", "--batch-size", "5"]) == 0
    report = json.loads(capsys.readouterr().out)
    logged = [row for row in read_log(out / "log.jsonl") if row["kind"] == "evaluation"][-1]
    for name, row in report["sources"].items():  # the same weights, in batches of another size
        assert row["mse"] == pytest.approx(logged["sources"][name]["mse"], rel=1e-4)
    assert cli.main(["evaluate", str(out), str(path), "--weights", "last", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mse"] != report["mse"]
    other = path.parent / "other.yaml"
    other.write_text(path.read_text().replace("hand: 1", "hand: 5"))
    assert cli.main(["evaluate", str(out), str(other)]) == 2
    assert "an id never moves" in capsys.readouterr().err
    for flags in (["--batch-size", "0"], ["--frames", "0"], ["--batch-size", "-1", "--frames", "3"]):
        assert cli.main(["evaluate", str(out), str(path), *flags]) == 2
        assert f"error: {flags[0]}: bad value" in capsys.readouterr().err
    assert cli.main(["evaluate", str(out), str(path), "--split", "train"]) == 2
    assert "--split: no source has this split" in (said := capsys.readouterr().err)
    assert "expected val, found train" in said
    assert "eval_split" not in said

    # A finished run, a run that another process is at, and what is no folder.
    assert cli.main(["train", str(path), "--out", str(out), "--resume"]) == 0
    assert "the run is finished: it is at step 4, steps is 4; nothing is left to do" in capsys.readouterr().err
    with exclusive(out / ".lock", "trains in this folder"):
        assert cli.main(["train", str(path), "--out", str(out), "--resume", "--steps", "9"]) == 3
    assert "another process trains in this folder" in capsys.readouterr().err
    assert not (out / ".lock").exists()
    for place in (path, path / "below"):
        assert cli.main([*train[:3], str(place), "--steps", "1"]) == 2
        assert "not a folder to write to" in capsys.readouterr().err

    from safetensors import safe_open

    with safe_open(out / "model.safetensors", "pt") as file:
        averaged = load_checkpoint(out)["ema"]["model"]
        assert set(file.keys()) == set(averaged)
        assert all(torch.equal(file.get_tensor(name), value) for name, value in averaged.items())
        scales = json.loads(file.metadata()["normalization"])
        assert len(scales["arm"]["action"]["centre"]) == 3
        assert json.loads(file.metadata()["embodiments"]) == {"arm": 0, "hand": 1}


def test_tensorboard(path, tmp_path):
    pytest.importorskip("tensorboard")
    trainer(load_mixture(path), tmp_path, steps=1, tensorboard=True).run()
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_worker_that_dies_is_told(path, tmp_path):
    """In a process of its own, for torch's SIGCHLD handler would go on raising in this one."""
    code = (
        "import multiprocessing, pathlib, sys\n"
        "from helpers.train_runs import trainer\n"
        "from wdsmix.mixture.config import load_mixture\n"
        "def watch(step, batch):\n"
        "    if step == 2:\n"
        "        for child in multiprocessing.active_children(): child.kill()\n"
        "trainer(load_mixture(sys.argv[1]), pathlib.Path(sys.argv[2]), steps=1000, workers=1).run(watch)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
        timeout=120,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert re.search(r"step \d+, rank 0: a process of the loader died: .*--workers", done.stderr), done.stderr


def test_the_loader_s_workers_give_the_same_run(path, tmp_path):
    mixture = load_mixture(path)
    for name, workers in (("threads", 0), ("workers", 2)):
        trainer(mixture, tmp_path / name, steps=4, workers=workers).run()
    a, b = (load_checkpoint(tmp_path / name) for name in ("threads", "workers"))
    assert a["loader"] == b["loader"]
    assert all(torch.equal(value, b["model"][name]) for name, value in a["model"].items())
