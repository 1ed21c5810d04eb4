"""Environments of peers, as far as that goes without a registry."""

import importlib.metadata
import subprocess
import sys
from pathlib import Path

from benchmarks.environments import PEERS, _reason, _stub_torchvision, environment, prepare
from benchmarks.settings import CONTENDERS


def test_every_peer_has_an_environment_and_contenders():
    assert {contender.peer for contender in CONTENDERS.values()} == {None, *PEERS}
    assert environment(Path("work"), None) == Path(sys.executable)
    assert environment(Path("work"), "hf") == Path("work/peers/hf/bin/python")


def test_the_stub_counts_as_installed_and_imports(tmp_path):
    _stub_torchvision(tmp_path)
    found = [item for item in importlib.metadata.distributions(path=[str(tmp_path)]) if item.name == "torchvision"]
    assert len(found) == 1
    code = "import torchvision; from torchvision.transforms.functional import to_tensor; print(torchvision.__version__)"
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True, env={"PYTHONPATH": ""}
    )
    assert answer.stdout.strip() == found[0].version


def test_a_peer_that_cannot_be_installed_is_told_and_not_fatal(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    reason = prepare(tmp_path, PEERS["hf"])
    assert reason is not None
    assert "hf.log" in reason
    assert not (tmp_path / "peers" / "hf" / ".ready").exists()


def test_the_reason_is_pips_first_error(tmp_path):
    log = tmp_path / "pip.log"
    log.write_text("Collecting x\nERROR: No matching distribution found for x\nERROR: later\n")
    assert _reason(log).startswith("ERROR: No matching distribution found for x (see ")
