"""The examples run as they are written, and go on exactly where they stopped."""

from __future__ import annotations

import importlib.util
import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
import yaml
from helpers.mixtures import make_set

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

pytestmark = pytest.mark.filterwarnings("ignore")  # those of lightning and accelerate are their own


@pytest.fixture
def mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, robot, width in (("lift", "panda", 7), ("fold", "dual_arm", 14)):
        make_set(
            tmp_path / name,
            episodes=[9, 7, 6],
            splits=["train", "train", "val"],
            dims={"state": width, "action": width},
            size=(32, 32),
            embodiment=robot,
        )
    data = {
        "embodiments": {"panda": 0, "dual_arm": 1},
        "sources": [{"name": name, "shards": name, "weight": 1} for name in ("lift", "fold")],
        "sample": {"action_chunk": 4, "pad_to": {"state": 16, "action": 16}, "normalize": {"action": "mean_std"}},
    }
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return tmp_path / "mixture.yaml"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch):
    def run(name: str, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        torch.manual_seed(0)
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")

    return run


def needs(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


def losses(text: str) -> list[str]:
    return re.findall(r"step \d+: loss [\d.]+", text)


@pytest.mark.parametrize("workers", [0, 2])
def test_plain_loop(mixture: Path, example, capsys: pytest.CaptureFixture[str], workers: int) -> None:
    common = [mixture, "--batch-size", 4, "--workers", workers]
    example("plain_loop.py", *common, "--steps", 6, "--checkpoint", "whole.pt")
    whole = losses(capsys.readouterr().out)
    assert len(whole) == 6
    for _ in range(2):
        example("plain_loop.py", *common, "--steps", 3, "--checkpoint", "parts.pt")
    assert losses(capsys.readouterr().out) == whole


def test_lightning(mixture: Path, example) -> None:
    needs("lightning")
    common = [mixture, "--batch-size", 4, "--val", "lift", "--workers"]
    example("lightning_module.py", *common, 0, "--steps", 6, "--out", "whole")
    example("lightning_module.py", *common, 2, "--steps", 3, "--out", "parts")
    example("lightning_module.py", *common, 0, "--steps", 6, "--out", "parts", "--resume", "parts/last.ckpt")
    whole, parts = (torch.load(f"{name}/last.ckpt", weights_only=False) for name in ("whole", "parts"))
    assert parts["global_step"] == 6
    assert parts["MixtureModule"]["order"]["samples"] == 24
    assert parts["MixtureModule"] == whole["MixtureModule"]
    for name, value in whole["state_dict"].items():
        assert torch.equal(value, parts["state_dict"][name]), name


def test_accelerate(mixture: Path, example, capsys: pytest.CaptureFixture[str]) -> None:
    needs("accelerate")
    common = [mixture, "--batch-size", 4, "--workers"]
    example("accelerate_loop.py", *common, 0, "--steps", 6, "--out", "whole")
    whole = losses(capsys.readouterr().out)
    assert len(whole) == 6
    example("accelerate_loop.py", *common, 2, "--steps", 3, "--out", "parts")
    example("accelerate_loop.py", *common, 0, "--steps", 3, "--out", "parts", "--resume")
    assert losses(capsys.readouterr().out) == whole


@pytest.mark.parametrize("workers", [0, 1])
def test_webdataset(mixture: Path, example, capsys: pytest.CaptureFixture[str], workers: int) -> None:
    example("webdataset_pipeline.py", mixture, mixture.parent / "lift", "--workers", workers)
    out = capsys.readouterr().out
    assert re.findall(r"step \d: images .*?\)", out) == [f"step {n}: images (8, 1, 1, 3, 16, 16)" for n in range(3)]
    assert len(re.findall(r"^\d{6}_\d{6}: action\.npy, cam0\.jpg, json, state\.npy$", out, re.MULTILINE)) == 3
