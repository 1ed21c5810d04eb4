"""A v3.0 set of 50 episodes in several videos: each frame is its row's, whoever reads which shard, and after a kill."""

from __future__ import annotations

import hashlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers.lerobot_fixtures import Made, identity, stored
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.lerobot.dataset import LeRobotSource
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.lerobot.tree import LocalTree
from wdsmix.converters.run import convert

LENGTHS = tuple(6 + (k * 7) % 9 for k in range(50))
CODECS = ("libx264", "libsvtav1")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, tuple[Made, Path]]:
    found = {}
    for codec in CODECS:
        one = Made(lengths=LENGTHS, codec=codec, per_video=12, per_data=17)
        found[codec] = (one, one.write(tmp_path_factory.mktemp(codec) / "robot"))
    return found


def hashes(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(folder.rglob("*")) if p.is_file()}


def wanted_rows(length: int, hz: float, mode: str) -> list[int]:
    """By the definition of --hz, one row at a time."""
    if hz == 0:
        return list(range(length))
    if mode == "stride":
        return list(range(0, length, max(1, round(20 / hz))))
    rows: list[int] = []
    for k in range(length):
        row = math.floor(k / hz * 20 + 0.5)
        if row < length:
            rows.append(row)
    return rows


def run(root: Path, out: Path, **options: object) -> dict[str, str]:
    convert(LeRobotSource(LocalTree(root), LeRobotOptions()), out, ConvertOptions(frames_per_shard=60, **options))
    return hashes(out)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("codec", "hz", "mode", "size"),
    [
        ("libx264", 0, "stride", 0),
        ("libx264", 10, "stride", 48),
        ("libx264", 7, "nearest", 0),
        ("libsvtav1", 0, "stride", 48),
        ("libsvtav1", 10, "nearest", 0),
        ("libsvtav1", 7, "stride", 0),
    ],
)
def test_one_worker_or_three(made, tmp_path, codec, hz, mode, size):
    dataset, root = made[codec]
    options = {"hz": hz, "hz_mode": mode, "image_size": size}
    alone = run(root, tmp_path / "one", workers=1, **options)
    assert alone == run(root, tmp_path / "three", workers=3, **options)
    frames = stored(tmp_path / "one")
    seen = 0
    for episode, length in enumerate(LENGTHS):
        rows = wanted_rows(length, hz, mode)
        for frame, row in enumerate(rows):
            one = frames[episode, frame]
            for number, slot in enumerate(("cam0", "cam1")):
                assert identity(one.pictures[slot]) == (episode, row, number)
                assert one.pictures[slot].shape[0] == (size or 64)
            assert np.array_equal(one.vectors["state"], dataset.state_of(episode)[row])
            assert np.array_equal(one.vectors["action"], dataset.action_of(episode)[row])
            assert one.meta["timestamp"] == pytest.approx(row / 20, abs=1e-6)
            assert one.meta["task"] == dataset.tasks[episode % 2]
        seen += len(rows)
    assert seen == len(frames)


@pytest.mark.slow
def test_after_a_kill(made, tmp_path):
    _, root = made["libx264"]
    whole = run(root, tmp_path / "whole", workers=2)
    out = tmp_path / "killed"
    command = [sys.executable, "-m", "wdsmix.cli", "convert", "lerobot", str(root), str(out), "--quiet"]
    command += ["--frames-per-shard", "60", "--workers", "2"]
    process = subprocess.Popen(command, start_new_session=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None and not list(out.glob(".work/*.receipt.json")):
        time.sleep(0.002)
    killed_midway = process.poll() is None
    if killed_midway:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not killed_midway or not (out / "manifest.json").exists()
    assert subprocess.run(command, check=False, timeout=120).returncode == 0
    assert hashes(out) == whole


@pytest.mark.slow
def test_parts_of_two_machines(made, tmp_path):
    from wdsmix.cli import main

    _, root = made["libx264"]
    whole = run(root, tmp_path / "whole", workers=1)
    parts = [str(tmp_path / f"part{k}") for k in (1, 2)]
    for k, part in enumerate(parts, 1):
        command = ["convert", "lerobot", str(root), part, "--quiet", "--frames-per-shard", "60", "--workers", "1"]
        assert main([*command, "--part", f"{k}/2"]) == 0
    assert main(["merge", str(tmp_path / "merged"), *parts, "--quiet"]) == 0
    assert hashes(tmp_path / "merged") == whole


def test_a_file_is_decoded_once_by_who_reads_on(made):
    """Consecutive episodes of a video share its decoder: no seek, no frame twice."""
    _, root = made["libx264"]
    source = LeRobotSource(LocalTree(root), LeRobotOptions())
    refs = source.episodes()
    readers = set()
    for ref in refs[:12]:
        episode = source.read(ref)
        assert sum(1 for _ in episode.images["cam0"].read(np.arange(len(episode)))) == len(episode)
        readers.add(source._reader.videos._pool._open["observation.images.front"])
    (reader,) = readers
    assert (reader.seeks, reader.decoded) == (0, sum(LENGTHS[:12]))
    late = LeRobotSource(LocalTree(root), LeRobotOptions())
    late.episodes()
    episode = late.read(refs[9])
    list(episode.images["cam0"].read(np.arange(len(episode))))
    reader = late._reader.videos._pool._open["observation.images.front"]
    assert reader.decoded <= LENGTHS[9] + 10 + 3  # one group of pictures
    source.close()
    late.close()


def test_memory_is_flat_in_the_length_of_a_video(tmp_path):
    psutil = pytest.importorskip("psutil")
    from helpers.lerobot_fixtures import picture, write_video
    from wdsmix.converters.video import VideoReader

    write_video(tmp_path / "v.mp4", [picture(0, k % 500, size=(320, 240)) for k in range(600)])
    process = psutil.Process()
    with VideoReader(tmp_path / "v.mp4") as reader:
        stream = reader.read(range(600))
        for _ in range(100):
            next(stream)
        early = process.memory_info().rss
        for _ in stream:
            pass
        assert process.memory_info().rss - early < 20 << 20  # all its frames would be 110 MiB
