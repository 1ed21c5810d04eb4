from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from helpers.mixtures import make_set

from wdsmix.cli import main
from wdsmix.mixture.catalog import open_catalog
from wdsmix.mixture.config import load_mixture


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    make_set(
        tmp_path / "sets" / "lift",
        episodes=[20, 30, 10],
        dims={"state": 7, "action": 7, "reward": 1, "text_emb": 9},
        cameras=["cam0", "cam1"],
        size=(32, 32),
        embodiment="panda",
        splits=["train", "train", "val"],
    )
    make_set(
        tmp_path / "sets" / "chunks",
        episodes=[25],
        dims={"state": 18, "action": 14},
        size=(32, 24),
        embodiment="two arms",
    )
    return tmp_path


def test_init_plan_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mix", "init", "sets/lift", "sets/chunks", "--out", "conf/mixture.yaml"]) == 0
    assert "conf/mixture.yaml" in capsys.readouterr().out
    config = load_mixture("conf/mixture.yaml")
    assert config.embodiments == {"panda": 0, "two arms": 1}
    assert [source.name for source in config.sources] == ["lift", "chunks"]
    assert [source.shards for source in config.sources] == ["../sets/lift", "../sets/chunks"]
    assert [source.weight for source in config.sources] == [
        pytest.approx(50 / 75, rel=1e-5),
        pytest.approx(1 / 3, rel=1e-5),
    ]
    assert config.sample.pad_to == {"state": 32, "action": 16}
    assert config.sample.image_size == 32
    assert config.sample.cameras == ["cam0", "cam1"]
    assert config.sample.normalize["state"].mode == "mean_std"
    assert open_catalog(config).layout.dims == {"state": 32, "action": 16}

    assert main(["mix", "plan", "conf/mixture.yaml", "--json", "--steps", "10", "--batch-size", "15"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["samples"] == 150
    assert plan["dims"] == {"state": 32, "action": 16}
    lift, chunks = plan["sources"]
    assert lift["frames"] == 50
    assert lift["episodes"] == 2
    assert lift["epochs"] == pytest.approx(2, rel=1e-4)
    assert lift["share"] == pytest.approx(2 / 3, rel=1e-5)
    assert chunks["pictures"] == {"cam0": ["32x24"], "cam1": []}
    assert chunks["dims"] == {"state": 18, "action": 14}
    tars = sum(path.stat().st_size for path in (folder / "sets" / "lift").glob("train-*.tar"))
    assert lift["frame_bytes"] * 50 == pytest.approx(tars - 1024)
    assert lift["live_bytes"] == tars - 1024  # the window is larger than the source

    assert main(["mix", "plan", "conf/mixture.yaml"]) == 0
    text = capsys.readouterr().out
    for word in ("lift", "66.67 %", "18 → 32", "none, masked", "Pillow BILINEAR", "mean_std", "q01_q99", "panda"):
        assert word in text

    assert main(["mix", "run", "conf/mixture.yaml", "--steps", "9", "--batch-size", "10", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["samples"] == report["global_samples"] == 90
    assert [source["samples"] for source in report["sources"]] == [60, 30]
    assert report["samples_per_second"] > 0
    assert main(["mix", "run", "conf/mixture.yaml", "--steps", "3", "--batch-size", "5", "--world-size", "2"]) == 0
    captured = capsys.readouterr()
    assert "30 samples over all ranks" in captured.out
    assert "mix run: 15/15 samples" in captured.err


def test_plan_says_what_is_masked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def change(number: int, vectors: dict) -> dict:
        vectors["state"][:, 2] = 4
        vectors["action"][:, 0] = 0
        vectors["action"][0, 0] = number == 0
        return vectors

    make_set(tmp_path / "a", episodes=[200, 200], change=change)
    (tmp_path / "m.yaml").write_text(
        yaml.safe_dump(
            {
                "sources": [{"name": "a", "shards": "a", "weight": 1}],
                "sample": {"normalize": {"state": "mean_std", "action": "q01_q99"}},
            }
        )
    )
    assert main(["mix", "plan", str(tmp_path / "m.yaml"), "--json"]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert source["masked"] == {"state": [2]}
    assert source["ranged"] == {"action": [0]}
    assert main(["mix", "plan", str(tmp_path / "m.yaml")]) == 0
    out = capsys.readouterr().out
    assert re.search(r"pictures \d+x\d+ \(resize: none needed\); observations", out)
    assert "state dimensions [2] have no spread" in out
    assert "action dimensions [0]: q01 and q99" in out

    (tmp_path / "m.yaml").write_text(
        yaml.safe_dump(
            {"sources": [{"name": "a", "shards": "a", "weight": 1}], "sample": {"cameras": [], "normalize": {}}}
        )
    )
    assert main(["mix", "plan", str(tmp_path / "m.yaml"), "--samples", "1"]) == 0
    out = capsys.readouterr().out
    assert "no pictures; observations at [0]" in out
    assert "Mixture over 1 sample\n" in re.sub(" +\n", "\n", out)


def test_init_variants(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mix", "init", "sets/lift", "sets/lift", "--out", "-", "--weights", "equal"]) == 0
    text = capsys.readouterr().out
    assert "image_size: 0        # 0 = as stored, 32x32\n" in text
    data = yaml.safe_load(text)
    assert [source["name"] for source in data["sources"]] == ["lift", "lift_2"]
    assert [source["weight"] for source in data["sources"]] == [0.5, 0.5]
    assert data["sample"]["image_size"] == 0
    assert main(["mix", "init", "sets/lift"]) == 0
    before = Path("mixture.yaml").read_bytes()
    assert main(["mix", "init", "sets/chunks"]) == 3
    assert "--force" in capsys.readouterr().err
    assert Path("mixture.yaml").read_bytes() == before
    assert main(["mix", "init", "sets/chunks", "--force"]) == 0
    assert [source.name for source in load_mixture("mixture.yaml").sources] == ["chunks"]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["plan", "none.yaml"], 2, ["none.yaml", "can't read"]),
        (["init", "nowhere", "--out", "other.yaml"], 2, ["nowhere"]),
        (["run", "mixture.yaml", "--steps", "0"], 2, ["--steps"]),
        (["run", "mixture.yaml", "--rank", "1"], 2, ["rank and world_size"]),
        (["run", "mixture.yaml", "--workers", "-1"], 2, ["--workers"]),
        (["plan", "mixture.yaml", "--steps", "1", "--samples", "1"], 2, ["--samples"]),
        ([], 2, ["ACTION"]),
    ],
)
def test_bad_usage(
    folder: Path, capsys: pytest.CaptureFixture[str], argv: list[str], code: int, words: list[str]
) -> None:
    assert main(["mix", "init", "sets/lift"]) == 0
    assert main(["mix", *argv]) == code
    error = capsys.readouterr().err
    for word in words:
        assert word in error


def test_a_damaged_shard_ends_a_run_with_1(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["mix", "init", "sets/lift"]) == 0
    tar = folder / "sets" / "lift" / "train-00000.tar"
    data = bytearray(tar.read_bytes())
    data[len(data) // 2] ^= 8
    tar.write_bytes(bytes(data))
    assert main(["mix", "run", "mixture.yaml", "--steps", "3"]) == 1
    assert "crc32c" in capsys.readouterr().err


def test_names_that_yaml_would_misread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_set(tmp_path / "no", name="no", embodiment="007: #1")
    monkeypatch.chdir(tmp_path)
    assert main(["mix", "init", "no", "--out", "-"]) == 0
    data = yaml.safe_load(capsys.readouterr().out)
    assert data["sources"][0]["name"] == "no"
    assert data["embodiments"] == {"007: #1": 0}
