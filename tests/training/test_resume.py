"""A run that stops and goes on is the run that did not: to the bit on one CPU, batch by batch on many ranks."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from helpers.train_runs import ALONE, SMALL, differences, rows, trainer, write_sets

from wdsmix import cli
from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.config import MixtureConfig, load_mixture
from wdsmix.mixture.loader import MixtureDataset
from wdsmix.training.checkpoint import load_checkpoint
from wdsmix.training.config import resumed_config
from wdsmix.training.logs import read_log
from wdsmix.training.trainer import Trainer

HELPERS = str(Path(__file__).resolve().parents[1])


def environment() -> dict[str, str]:
    """Of another process: the same helpers, and as many threads, on which the last bits of sums depend."""
    return {**os.environ, "PYTHONPATH": HELPERS, "OMP_NUM_THREADS": str(torch.get_num_threads())}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sets(tmp_path_factory.mktemp("sets"))


def command(path: Path, out: Path, *more: str) -> list[str]:
    config = out.parent / "train.yaml"
    config.write_text(json.dumps({**SMALL, "schedule_steps": 12}))
    return [sys.executable, "-m", "wdsmix.cli", "train", str(path), "--config", str(config), "--out", str(out), *more]


def resumed(mixture: MixtureConfig, out: Path, **changes):
    start = load_checkpoint(out)
    train = resumed_config(start["train"], changes, ranks_then=start["world"], ranks_now=1)
    return Trainer(train, mixture, out, ALONE, start, quiet=True)


def test_two_halves_and_a_new_process_are_the_whole_to_the_bit(path, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    mixture = load_mixture(path)
    # The whole run evaluates on the way, which must not move its random states.
    trainer(mixture, whole, steps=12, eval_every=5).run()
    trainer(mixture, halves, steps=6, schedule_steps=12, eval_every=5).run()
    again = command(path, halves, "--resume", "--steps", "12", "--eval-every", "4")
    done = subprocess.run(again, capture_output=True, text=True, check=False, env=environment())
    assert done.returncode == 0, done.stderr
    a, b = load_checkpoint(whole), load_checkpoint(halves)
    assert a["step"] == b["step"] == 12
    a["train"] = b["train"] = None  # eval_every differs
    assert differences(a, b) == []
    logs = [[r for r in read_log(out / "log.jsonl") if r["kind"] == "train"] for out in (whole, halves)]
    assert [row["step"] for row in logs[1]] == list(range(1, 13))
    for key in ("loss", "lr", "gradient_norm"):
        assert [row[key] for row in logs[0]] == [row[key] for row in logs[1]], key
    assert logs[0][-1]["lr"] < logs[0][3]["lr"]


def test_sigterm_writes_a_checkpoint_that_goes_on_as_if_nothing_were(path, tmp_path):
    """To all processes of the job, as schedulers send it: the loader's workers must not die before the trainer."""
    out = tmp_path / "out"
    begun = command(path, out, "--steps", "100000", "--workers", "2")
    process = subprocess.Popen(begun, stderr=subprocess.PIPE, text=True, env=environment(), start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:
            if (out / "log.jsonl").is_file() and (out / "log.jsonl").stat().st_size:
                break
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGTERM)
        _, told = process.communicate(timeout=120)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 143, told
    assert "go on with --resume" in told
    step = load_checkpoint(out)["step"]
    mixture = load_mixture(path)
    resumed(mixture, out, steps=step + 2, workers=0).run()
    trainer(mixture, tmp_path / "whole", steps=step + 2, schedule_steps=12).run()
    a, b = load_checkpoint(tmp_path / "whole"), load_checkpoint(out)
    a["train"] = b["train"] = None
    assert differences(a, b) == []


KILLED = """
import os, signal, sys
import torch

real, saves = torch.save, []

def save(content, file):
    saves.append(1)
    if len(saves) == 2:
        file.write(b"half of it")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    real(content, file)

torch.save = save
from wdsmix import cli
sys.exit(cli.main(sys.argv[1:]))
"""


def test_a_kill_within_a_checkpoint_costs_the_steps_since_the_last(path, tmp_path):
    out, mixture = tmp_path / "out", load_mixture(path)
    words = command(path, out, "--steps", "9", "--checkpoint-every", "3")[3:]
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *words], capture_output=True, text=True, check=False, env=environment()
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert load_checkpoint(out)["step"] == 3
    assert [row["step"] for row in read_log(out / "log.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [p.name for p in (out / "checkpoints").glob("*.partial")] == ["step-00000006.pt.partial"]
    assert cli.main(["train", *words[1:], "--resume"]) == 0
    assert not list((out / "checkpoints").glob("*.partial"))
    assert [row["step"] for row in read_log(out / "log.jsonl")] == list(range(1, 10))
    trainer(mixture, tmp_path / "whole", steps=9, schedule_steps=12).run()
    a, b = load_checkpoint(tmp_path / "whole"), load_checkpoint(out)
    a["train"] = b["train"] = None
    assert differences(a, b) == []


def test_a_run_goes_on_where_it_was_told_to_train(path, tmp_path, monkeypatch):
    """On a machine with a GPU, a run that was begun with --device cpu stays on the CPU."""
    out = tmp_path / "out"
    words = command(path, out, "--steps", "1", "--device", "cpu")[3:]
    assert cli.main(words) == 0
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert cli.main(["train", str(path), "--out", str(out), "--resume", "--steps", "2"]) == 0
    assert load_checkpoint(out)["step"] == 2


def test_ctrl_c_ends_after_the_step(path, tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def watch(step, batch):
        if step == 3:
            signal.raise_signal(signal.SIGINT)

    outcome = trainer(load_mixture(path), tmp_path, steps=50).run(watch)
    assert (outcome.step, outcome.signal) == (4, signal.SIGINT)
    assert load_checkpoint(tmp_path)["step"] == 4
    assert signal.getsignal(signal.SIGINT) is before


def test_a_second_ctrl_c_acts_at_once(path, tmp_path):
    before = signal.getsignal(signal.SIGINT)

    def watch(step, batch):
        if step == 3:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        trainer(load_mixture(path), tmp_path, steps=50, checkpoint_every=2).run(watch)
    assert signal.getsignal(signal.SIGINT) is before
    assert load_checkpoint(tmp_path)["step"] == 2


RANKS = """
import json, os, sys
from pathlib import Path
from helpers.train_runs import rows, trainer
import torch
from wdsmix.mixture.config import load_mixture
from wdsmix.training.checkpoint import load_checkpoint
from wdsmix.training.config import resumed_config
from wdsmix.training.distributed import joined
from wdsmix.training.trainer import Trainer

mixture, folder, port = load_mixture(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
torch.set_num_threads(1)
PLAIN = {"options": {"width": 16}, "augment": None, "eval_every": 100}

def rank(number, world, port, steps):
    os.environ.update(RANK=str(number), WORLD_SIZE=str(world), LOCAL_RANK=str(number))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with joined("cpu") as group:
        if steps == 3:
            run = trainer(mixture, folder / "out", group, steps=3, schedule_steps=6, batch_size=4, **PLAIN)
        else:
            start = load_checkpoint(folder / "out")
            train = resumed_config(start["train"], {"steps": steps}, ranks_then=start["world"], ranks_now=world)
            run = Trainer(train, mixture, folder / "out", group, start, quiet=True)
        seen = {}
        outcome = run.run(lambda step, batch: seen.update({step: rows(batch)}))
        report = {"seen": seen, "batch_size": run.train.batch_size, "evaluation": outcome.evaluation}
        (folder / f"{steps}-{number}.json").write_text(json.dumps(report))

def ranks(world, port, steps):  # forked, so that torch is imported once
    children = []
    for number in range(world):
        child = os.fork()
        if child == 0:
            try:
                rank(number, world, port, steps)
            except BaseException:
                import traceback
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes = [os.waitpid(child, 0)[1] for child in children]
    if any(codes):
        sys.exit(f"ranks ended with {codes}")

ranks(2, port, 3)
ranks(4, port + 1, 6)
"""


def test_two_ranks_then_four_see_the_batches_of_one(path, tmp_path):
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    port = 20000 + os.getpid() % 20000
    done = subprocess.run(
        [sys.executable, str(script), str(path), str(tmp_path), str(port)],
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    mixture = load_mixture(path)
    batches = iter(MixtureDataset(mixture, 8))
    wanted = [rows(next(batches)) for _ in range(6)]
    parts = {
        (steps, number): json.loads((tmp_path / f"{steps}-{number}.json").read_text())
        for steps, world in ((3, 2), (6, 4))
        for number in range(world)
    }
    assert {part["batch_size"] for (steps, _), part in parts.items() if steps == 6} == {2}
    for step in range(1, 7):
        steps, world = (3, 2) if step <= 3 else (6, 4)
        seen = [tuple(row) for number in range(world) for row in parts[steps, number]["seen"][str(step)]]
        assert seen == wanted[step - 1], step
    # Averaged over the ranks, the gradients are those of the whole batch; and every rank evaluates to the same.
    alone = trainer(
        mixture, tmp_path / "alone", steps=6, batch_size=8, options={"width": 16}, augment=None, eval_every=100
    )
    evaluation = alone.run().evaluation
    a, b = load_checkpoint(tmp_path / "alone"), load_checkpoint(tmp_path / "out")
    assert (b["world"], len(b["random"])) == (4, 4)
    assert a["loader"] == b["loader"]
    for name, value in a["model"].items():
        torch.testing.assert_close(b["model"][name], value, rtol=1e-3, atol=1e-4)
    reports = [parts[6, number]["evaluation"] for number in range(4)]
    assert all(report == reports[0] for report in reports)
    for name, row in evaluation["sources"].items():
        assert reports[0]["sources"][name]["frames"] == row["frames"]
        assert reports[0]["sources"][name]["mse"] == pytest.approx(row["mse"], rel=1e-2)
        assert reports[0]["sources"][name]["mean_mse"] == pytest.approx(row["mean_mse"], rel=1e-12)


def test_the_map_of_robots_only_grows(path, tmp_path):
    out = tmp_path / "out"
    whole = load_mixture(path)
    first = MixtureConfig.from_dict(
        {**whole.model_dump(), "embodiments": {"arm": 0}, "sources": [whole.sources[0].model_dump()]},
        folder=path.parent,
    )
    trainer(first, out, steps=2, options={"width": 16}).run()
    assert load_checkpoint(out)["embodiments"] == {"arm": 0}
    resumed(whole, out, steps=4).run()  # a new robot: a phase begins
    after = load_checkpoint(out)
    assert after["embodiments"] == {"arm": 0, "hand": 1}
    assert set(after["normalization"]) == {"arm", "hand"}
    assert after["loader"]["order"]["counts"]["hand"] > 0
    resumed(first, out, steps=5).run()  # and one that is left out stays known
    assert load_checkpoint(out)["embodiments"] == {"arm": 0, "hand": 1}
    for ids, message in (({"arm": 1, "hand": 0}, "never moves"), ({"arm": 0, "hand": 16}, "never moves")):
        with pytest.raises(ConfigError, match=message):
            resumed(whole.model_copy(update={"embodiments": ids}), out, steps=6)
    wider = whole.model_copy(update={"sample": whole.sample.model_copy(update={"pad_to": {"state": 9, "action": 8}})})
    with pytest.raises(ConfigError, match=r"sample\.pad_to\.state: .*expected 8, found 9.*wdsmix expand"):
        resumed(wider, out, steps=6)
    other = whole.sample.model_copy(update={"normalize": {}})
    with pytest.raises(ConflictError, match="scales the source unlike the checkpoint"):
        resumed(whole.model_copy(update={"sample": other}), out, steps=6)


@pytest.mark.parametrize("policy", ["transformer", "vla", "offline-rl"])
def test_every_policy_goes_on_to_the_bit(path, tmp_path, policy):
    mixture, options = load_mixture(path), {"width": 16, "dropout": 0.1}
    if policy == "offline-rl":
        options["rewards"] = "demonstration"
        sample = mixture.sample.model_copy(update={"observation_offsets": [-1, 0, 1]})
        mixture = mixture.model_copy(update={"sample": sample})
    whole = trainer(mixture, tmp_path / "whole", steps=6, policy=policy, options=options)
    before = {name: value.clone() for name, value in whole.policy.state_dict().items()}
    whole.run()
    trainer(mixture, tmp_path / "halves", steps=3, schedule_steps=6, policy=policy, options=options).run()
    resumed(mixture, tmp_path / "halves", steps=6).run()
    a, b = load_checkpoint(tmp_path / "whole"), load_checkpoint(tmp_path / "halves")
    assert differences(a, b) == []
    assert any(not torch.equal(value, before[name]) for name, value in a["model"].items())


def test_an_expanded_policy_trains_on(path, tmp_path, capsys):
    out, grown = tmp_path / "out", tmp_path / "grown.pt"
    trainer(load_mixture(path), out, steps=3).run()
    sizes = ["--num-embodiments", "32", "--state-dim", "12", "--action-dim", "16"]
    assert cli.main(["expand", str(out), str(grown), *sizes]) == 0
    wider = path.parent / "wider.yaml"
    wider.write_text(path.read_text().replace("{state: 8, action: 8}", "{state: 12, action: 16}"))
    flags = ["--start-from", str(grown), "--steps", "5", "--threads", "1", "--eval-every", "5"]
    assert cli.main(["train", str(path), "--out", str(tmp_path / "narrow"), *flags]) == 2
    assert "do not have the shape of the policy" in capsys.readouterr().err
    assert cli.main(["train", str(wider), "--out", str(tmp_path / "on"), *flags]) == 0
    after = load_checkpoint(tmp_path / "on")
    assert (after["step"], after["policy"]["num_embodiments"], after["policy"]["action_dim"]) == (5, 32, 16)
    assert after["loader"]["order"]["samples"] == 20  # the mixture went on, too
    assert cli.main(["evaluate", str(tmp_path / "on"), str(wider)]) == 0
