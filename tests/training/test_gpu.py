"""On a GPU, where there is one: fp16 with a scaler, bf16, and a checkpoint that goes on from a GPU to the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from helpers.train_runs import ALONE, trainer, write_sets

from wdsmix.mixture.config import load_mixture
from wdsmix.training.checkpoint import load_checkpoint
from wdsmix.training.config import resumed_config
from wdsmix.training.distributed import Group
from wdsmix.training.logs import read_log
from wdsmix.training.precision import autoselect
from wdsmix.training.trainer import Trainer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def test_autoselect_goes_by_the_capability():
    chosen = autoselect("cuda:0")
    major, _ = torch.cuda.get_device_capability(0)
    assert chosen.name == ("bf16" if major >= 8 else "fp16" if major == 7 else "fp32")


@pytest.mark.parametrize("precision", ["fp16", "bf16", "fp32"])
def test_trains_and_goes_on(tmp_path: Path, precision: str):
    if precision == "bf16" and torch.cuda.get_device_capability(0) < (8, 0):
        pytest.skip("the GPU has no bf16")
    mixture = load_mixture(write_sets(tmp_path / "sets"))
    group = Group(rank=0, world=1, device=torch.device("cuda", 0))
    run = trainer(mixture, tmp_path / "out", group, steps=20, precision=precision, eval_every=10)
    assert run.precision.uses_scaler == (precision == "fp16")
    outcome = run.run()
    assert outcome.evaluation is not None
    assert math.isfinite(outcome.evaluation["mse"])
    rows = [row for row in read_log(tmp_path / "out" / "log.jsonl") if row["kind"] == "train"]
    assert all(math.isfinite(row["loss"]) for row in rows)
    assert rows[-1]["scale"] == (65536 / 2 ** rows[-1]["skipped"] if precision == "fp16" else 1)
    start = load_checkpoint(tmp_path / "out")
    assert start["random"][0]["cuda"] is not None
    for where in (group, ALONE):
        changes = {"steps": 24, "precision": "auto"}
        train = resumed_config(start["train"], changes, ranks_then=1, ranks_now=1)
        assert Trainer(train, mixture, tmp_path / where.device.type, where, start, quiet=True).run().step == 24
