"""The inspect command, against numbers computed by hand from the members of the tars."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from helpers.sets import CAMERAS, VECTORS, header, picture, toy_episode, toy_set, write_shard
from PIL import Image

from wdsmix.cli import main
from wdsmix.report.sheet import contact_sheet, frame_picture
from wdsmix.report.summary import summarize
from wdsmix.shards.finish import finish_set
from wdsmix.shards.reader import ShardSet


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inspect") / "toy"
    toy_set(folder)
    return folder


def _members(folder: Path, shard: str) -> dict[str, bytes]:
    with tarfile.open(folder / f"{shard}.tar") as tar:
        return {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]


def test_summary(toy: Path) -> None:
    found = summarize(ShardSet(toy))
    shards = ("train-00000", "train-00001", "val-00000")
    members = {shard: _members(toy, shard) for shard in shards}
    whole = {name: data for shard in shards for name, data in members[shard].items()}
    for slot in CAMERAS:
        sizes = [len(data) for name, data in whole.items() if name.endswith(f".{slot}.jpg")]
        camera = found["cameras"][slot]
        assert (camera["frames"], camera["sampled"]) == (len(sizes), len(sizes))
        assert camera["mean_bytes"] == pytest.approx(np.mean(sizes))
        assert camera["share"] == len(sizes) / 20
    train = [d for s in shards[:2] for n, d in members[s].items() if n.endswith(".state.npy")]
    rows = np.stack([np.load(io.BytesIO(data)) for data in train]).astype(np.float64)
    dims = found["vectors"]["state"]["dims"]
    np.testing.assert_allclose([dim["mean"] for dim in dims], rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose([dim["std"] for dim in dims], rows.std(axis=0), rtol=1e-12)
    assert [dim["max"] for dim in dims] == rows.max(axis=0).tolist()
    assert list(found["vectors"]) == ["state", "action", "reward", "text_emb"]
    tasks = [json.loads(data)["task"] for name, data in whole.items() if name.endswith(".json")]
    assert {entry["task"]: entry["frames"] for entry in found["tasks"]} == {t: tasks.count(t) for t in set(tasks)}
    assert [entry["episodes"] for entry in found["tasks"]] == [3, 2]
    assert found["shards"] == {"count": 3, "frames_min": 6, "frames_mean": pytest.approx(20 / 3), "frames_max": 7}
    assert found["bytes"]["tars"] == sum((toy / f"{shard}.tar").stat().st_size for shard in shards)
    assert [(h["from"], h["to"], h["episodes"]) for h in found["episodes"]["histogram"]] == [
        (n, n, 1) for n in (2, 3, 4, 5, 6)
    ]
    assert found["episodes"]["seconds"] == 2.0
    json.dumps(found)


def test_long_histogram(tmp_path: Path) -> None:
    lengths = [1, 1, 40, 95, 100]
    episodes = [toy_episode(k, n, cameras=()) for k, n in enumerate(lengths)]
    finish_set(tmp_path, [write_shard(tmp_path, "train-00000", "train", episodes)], header())
    bins = summarize(ShardSet(tmp_path))["episodes"]["histogram"]
    assert len(bins) == 10
    assert bins[-1] == {"from": 91, "to": 100, "episodes": 2}
    for entry in bins:
        assert entry["episodes"] == sum(entry["from"] <= n <= entry["to"] for n in lengths)


def test_output(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(toy)]) == 0
    out = capsys.readouterr().out
    for words in (
        "toy  test/toy  panda  10 Hz  licence unknown",
        "20 frames, 5 episodes",
        "train: 14 frames, 4 episodes, 2 shards",
        "val: 6 frames, 1 episode, 1 shard",
        "cam1    view_cam1  16x12  jpeg      18 (90 %)",
        "state [3]",
        "text_emb [4], in 0 of 20 frames",
        "tasks (2)",
        "2 to 6 frames, median 4, mean 4.0; 2.0 s in all",
    ):
        assert " ".join(words.split()) in " ".join(out.split())


def test_constant_dimensions_drops_and_odd_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = toy_episode(0, 3, tasks=["[red] [/] 打开抽屉"])
    fields["vectors"]["action"][:, 1] = 2
    drops = [
        {"episode": 1 + k, "source_file": f"f{k}", "source_episode": "", "kind": "file", "reason": "no [gripper]"}
        for k in range(2)
    ]
    receipts = [write_shard(tmp_path, "train-00000", "train", [fields])]
    more = {"dropped": drops, "warnings": ["[b]odd\x1b[2J"], "licence": "MIT"}
    vectors = {**header()["vectors"], "action": {"width": 2, "names": ["[x]", "y"], "units": ["m", ""]}}
    finish_set(tmp_path, receipts, header(**more) | {"vectors": vectors})
    assert main(["inspect", str(tmp_path), "--top", "1"]) == 0
    out = capsys.readouterr().out
    assert "[red] [/] 打开抽屉" in out
    assert "dropped 2 (file): no [gripper], such as f0" in out
    assert "! [b]odd\\x1b[2J" in out
    assert "\x1b" not in out
    assert "[x] [m]" in out
    assert "and 1 more dimensions (--top); 1 of all are constant" in out
    assert "MIT" in out
    dims = summarize(ShardSet(tmp_path))["vectors"]["action"]["dims"]
    assert [dim["constant"] for dim in dims] == [False, True]


def test_json_and_frame(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(toy), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "toy"
    picture_file = tmp_path / "f.png"
    assert main(["inspect", str(toy), "--frame", "-1", "--out", str(picture_file)]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["frame"], value["key"], value["shard"]) == (19, "000005_000005", "val-00000")
    assert value["extras"] == {"score": 5.0, "task_zh": "任务"}
    state = np.load(io.BytesIO(_members(toy, "val-00000")["000005_000005.state.npy"]))
    assert value["vectors"]["state"] == state.tolist()
    pixels = np.array(Image.open(picture_file))
    assert pixels.shape == (12, 32, 3)
    by_pillow = np.array(Image.open(io.BytesIO(picture(535))))
    assert np.abs(pixels[:, :16].astype(int) - by_pillow).mean() < 1


def test_wrong_usage(toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(toy), "--frame", "20"]) == 2
    assert "expected 0 to 19, found 20" in capsys.readouterr().err
    assert main(["inspect", str(toy), "--out", "x.png"]) == 2
    assert main(["inspect", str(toy), "--top", "0"]) == 2
    assert main(["inspect", str(toy), "--sheet", str(tmp_path / "sheet.unknown")]) == 2
    assert main(["inspect", str(toy), "--sheet", str(tmp_path / "nowhere" / "sheet.png")]) == 2
    assert main(["inspect", str(tmp_path)]) == 1


def test_contact_sheet(toy: Path, tmp_path: Path) -> None:
    opened = ShardSet(toy)
    sheet = np.array(contact_sheet(opened, episodes=5, cell=64))
    first = np.array(Image.fromarray(opened.frame(0).images["cam0"]).resize((64, 48), Image.Resampling.NEAREST))
    flat = _find(sheet, first)
    assert flat is not None
    last = np.array(Image.fromarray(opened.frame(19).images["cam1"]).resize((64, 48), Image.Resampling.NEAREST))
    place = _find(sheet, last)
    assert place is not None
    assert place[0] > flat[0]
    assert place[1] > flat[1]
    assert sheet.shape[1] == 6 + 6 * (64 + 6) + 6
    assert main(["inspect", str(toy), "--sheet", str(tmp_path / "s.png"), "--episodes", "2"]) == 0
    assert Image.open(tmp_path / "s.png").height < sheet.shape[0] * 3


def _find(sheet: np.ndarray, part: np.ndarray) -> tuple[int, int] | None:
    height, width = part.shape[:2]
    for y, x in np.argwhere((sheet == part[0, 0]).all(axis=-1)):
        if np.array_equal(sheet[y : y + height, x : x + width], part):
            return int(y), int(x)
    return None


def test_sheets_of_odd_sets(tmp_path: Path) -> None:
    (tmp_path / "blind").mkdir()
    receipts = [write_shard(tmp_path / "blind", "train-00000", "train", [toy_episode(0, 1, cameras=())], cameras={})]
    finish_set(tmp_path / "blind", receipts, header(cameras={}))
    contact_sheet(ShardSet(tmp_path / "blind"))
    with pytest.raises(ValueError, match="no picture"):
        frame_picture(ShardSet(tmp_path / "blind").frame(0))
    (tmp_path / "empty").mkdir()
    finish_set(tmp_path / "empty", [write_shard(tmp_path / "empty", "train-00000", "train", [])], header())
    opened = ShardSet(tmp_path / "empty")
    contact_sheet(opened)
    assert summarize(opened)["episodes"] == {"count": 0, "histogram": []}
    assert set(opened.manifest.vectors) == set(VECTORS)
    assert main(["inspect", str(tmp_path / "empty")]) == 0
    assert main(["validate", str(tmp_path / "empty"), "--level", "full"]) == 0
