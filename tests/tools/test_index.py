"""The index command."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from helpers.sets import picture

from wdsmix.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "robot").mkdir()
    with wds.TarWriter(str(tmp_path / "robot" / "train-0.tar")) as sink:
        for frame in range(3):
            sink.write({"__key__": f"a_{frame}", "img.jpg": picture(frame), "qpos.npy": np.ones(2), "pyd": {}})
    return tmp_path / "robot"


def test_index_then_validate_and_inspect(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = "(?P<episode>.+)_(?P<frame>[0-9]+)$"
    command = ["index", str(folder), "--episode-from", rule, "--hz", "4", "--vector", "state=.qpos.npy"]
    assert main([*command, "--camera", "cam0=img.jpg", "--embodiment", "arm"]) == 0
    captured = capsys.readouterr()
    assert "! members .pyd are ignored: never loaded, as it could run code" in captured.out
    assert "cam0 = .img.jpg: 3 jpeg pictures, 16x12" in captured.out
    assert "state = .qpos.npy: 2 wide, 3 frames" in captured.out
    assert "✓ robot: 3 frames of 1 episode in 1 tar, 4 Hz" in captured.out
    assert [line.split(":")[0] for line in captured.err.splitlines()] == ["scan", "index"]
    assert main(["validate", str(folder), "--level", "full"]) == 0
    assert main(["inspect", str(folder), "--json"]) == 0
    value = json.loads(capsys.readouterr().out.split("no faults at level full\n")[1])
    assert (value["embodiment"], value["kind"], value["hz"]) == ("arm", "webdataset", 4)
    assert main(command) == 3
    assert "--force" in capsys.readouterr().err
    assert main([*command, "--force", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["counts"] == {"episodes": 1, "frames": 3, "shards": 1}
    assert captured.err == ""


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--camera", "cam0"], 2, "--camera: bad or repeated value (expected NAME=SUFFIX, found cam0)"),
        (["--camera", "cam0=a.jpg", "--camera", "cam0=b.jpg"], 2, "--camera"),
        (["--vector", "=x"], 2, "--vector"),
        (["--jobs", "-1"], 2, "--jobs"),
        (["--episode-from", "["], 2, "not a regular expression"),
        (["--episode-from", "^([0-9]+)"], 1, "train-0.tar: byte 0, key a_0: the key does not match"),
        (["--episode-from", "json:id"], 1, "no episode in field id"),
    ],
)
def test_errors(folder: Path, capsys: pytest.CaptureFixture[str], options: list[str], code: int, words: str) -> None:
    assert main(["index", str(folder), *options]) == code
    assert words in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["train-0.tar"]
