"""``wdsmix check``: the table, the offenders, the exit code; nothing is written."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
from helpers.fake_source import FakeEpisode, FakeSource
from helpers.hdf5_fixtures import jpeg, pictures, write_camera, write_platform
from wdsmix.converters import check as module

from wdsmix.cli import main


@pytest.fixture(autouse=True)
def here(request, monkeypatch):
    """Reads in this process, but for the tests of the children: a spawn a call would be slow."""
    if "children" not in request.node.name:
        real = module._read_all
        monkeypatch.setattr(module, "_read_all", lambda *args, **options: real(*args, **{**options, "workers": 0}))


def check(capsys, *argv):
    code = main(["check", "hdf5", *map(str, argv), "--json", "--workers", "2"])
    report = json.loads(capsys.readouterr().out)
    return code, report, {line["name"]: line for line in report["checks"]}


@pytest.fixture
def folder(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    write_platform(source / "chunk_001.hdf5", episodes=[1, 2])
    return source


def test_a_good_source(folder, capsys):
    before = sorted(path.stat().st_mtime_ns for path in [folder, *folder.iterdir()])
    code, report, lines = check(capsys, folder)
    assert code == 0
    assert report["good"]
    assert (report["files"], report["episodes"], report["frames"]) == (1, 2, 24)
    assert lines["images decodable"] == {
        "name": "images decodable", "ok": 12, "bad": 0, "note": False, "offenders": []
    }  # fmt: skip
    assert lines["rate known"]["bad"] == 1  # told, no fault
    assert lines["rate known"]["note"]
    _, _, lines = check(capsys, folder, "--full")
    assert lines["images decodable"]["ok"] == 48
    assert before == sorted(path.stat().st_mtime_ns for path in [folder, *folder.iterdir()])


def test_each_fault_lands_in_its_line(folder, capsys):
    path = folder / "chunk_003.hdf5"
    write_platform(path, episodes=range(1, 8))
    with h5py.File(path, "a") as file:
        data = file["data"]
        del data["episode_001/action"]
        group = data["episode_002"]
        state = group["observation.state"][()]
        del group["observation.state"]
        group["observation.state"] = state[:10]
        group = data["episode_003"]
        del group["observation.images.camera_01"]
        write_camera(group, "observation.images.camera_01", pictures(11), "vlen")
        data["episode_004/observation.state"][3, 2] = np.nan
        group = data["episode_005"]
        del group["observation.images.camera_02"]
        rows = [jpeg(view) for view in pictures(12)]
        rows[6] = rows[6][: len(rows[6]) // 2]
        write_camera(group, "observation.images.camera_02", rows, "padded")
        data["episode_006"].attrs["task"] = np.bytes_(b"caf\xe9\xff")
        data["episode_008"] = h5py.ExternalLink("/etc/passwd", "/")
    (folder / "chunk_004.hdf5").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    code, report, lines = check(capsys, folder)
    assert code == 1
    assert not report["good"]
    bad = {name: line["bad"] for name, line in lines.items() if line["bad"] and not line["note"]}
    assert bad == {
        "file opens": 1,
        "fields complete": 1,
        "action and state rows equal": 1,
        "first dimensions equal": 1,
        "values finite": 1,
        "images decodable": 1,
        "strings readable": 1,
        "nothing leads outside the file": 1,
    }
    assert "camera_02" in lines["images decodable"]["offenders"][0]
    assert "frame 6" in lines["images decodable"]["offenders"][0]
    assert "row 3 dimension 2" in lines["values finite"]["offenders"][0]
    assert "chunk_002" in " ".join(lines["names without gaps"]["offenders"])
    assert lines["file opens"]["ok"] == 2


def test_a_damaged_picture_between_the_samples_needs_full(folder, capsys):
    path = folder / "chunk_002.hdf5"
    write_platform(path, episodes=[1], cameras=())
    rows = [jpeg(view) for view in pictures(12)]
    rows[4] = rows[4][: len(rows[4]) // 2]
    with h5py.File(path, "a") as file:
        write_camera(file["data/episode_001"], "observation.images.camera_01", rows, "padded")
    assert check(capsys, folder)[0] == 0
    code, _, lines = check(capsys, folder, "--full")
    assert code == 1
    assert lines["images decodable"]["bad"] == 1


def test_filtered_episodes_are_no_fault(folder, capsys):
    code, report, _ = check(capsys, folder, "--task", "block 1")
    assert code == 0
    assert (report["episodes"], report["filtered"]) == (1, 1)
    code, report, _ = check(capsys, folder, "--task", "nothing")
    assert code == 1  # nothing would be converted


def test_the_table(folder, capsys):
    (folder / "chunk_002.hdf5").write_bytes(b"")
    assert main(["check", "hdf5", str(folder), "--quiet", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "images decodable" in out
    assert "chunk_002.hdf5: empty file" in out
    assert "not good as it is" in out


def test_samples(samples, capsys):
    assert check(capsys, samples / "hdf5/robomimic_lift_images")[0] == 0
    assert check(capsys, samples / "hdf5/robosuite_1.0_raw")[0] == 1


def test_usage(tmp_path, capsys):
    assert main(["check", "hdf5", str(tmp_path / "gone")]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["check", "hdf5", str(tmp_path), "--dialect", "x"]) == 2


def test_children_find_the_same(folder, capsys, monkeypatch):
    there = check(capsys, folder)
    real = module._read_all
    monkeypatch.setattr(module, "_read_all", lambda *args, **options: real(*args, **{**options, "workers": 0}))
    assert check(capsys, folder) == there


def test_children_that_die_cost_one_episode():
    source = FakeSource([FakeEpisode(f"e{k}", does="segv" if k == 2 else "") for k in range(6)])
    report = module.check(source, "fake", workers=2, full=True)
    assert report.episodes == 6
    assert report.lines["episode reads"].ok == 5
    assert report.lines["episode reads"].offenders == [
        "a.fake/e2: reading it crashed the process: a damaged or hostile file"
    ]
    assert not report.good


def test_other_families_are_checked_over_the_protocol():
    source = FakeSource(
        [
            FakeEpisode("good"),
            FakeEpisode("bad", does="bad"),
            FakeEpisode("worse", does="key"),
            FakeEpisode("dark", does="picture"),
            FakeEpisode("gone", fault="not there", fault_kind="file", file="b.fake"),
            FakeEpisode("odd", fault="no action"),
            FakeEpisode("other", fault="not wanted", fault_kind="filter"),
        ]
    )
    report = module.check(source, "fake", full=True)
    bad = {name: line.bad for name, line in report.lines.items() if line.bad}
    assert bad == {"file opens": 1, "fields complete": 1, "episode reads": 2, "images decodable": 1}
    assert (report.episodes, report.filtered, report.files) == (4, 1, 2)
