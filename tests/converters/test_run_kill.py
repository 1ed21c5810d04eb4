"""Whole runs as processes: killed at any point and resumed, in parts, interrupted; the bytes are always the same."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from helpers import fake_family
from wdsmix.converters import workfolder

TESTS = Path(fake_family.__file__).parents[1]
SET = ["--episodes", "12", "--does", "5=bad", "--does", "7=segv", "--frames-per-shard", "30", "--val-fraction", "0.2"]


def with_source(words: tuple[str | Path, ...]) -> None:
    """Makes the folder that the fake family is said to read."""
    if words[0] == "convert" and len(words) > 2:
        Path(words[2]).mkdir(parents=True, exist_ok=True)


def start(*words: str | Path, slow: float = 0.0) -> subprocess.Popen:
    with_source(words)
    return subprocess.Popen(
        [sys.executable, "-m", "helpers.fake_family", *map(str, words), *(["--slow", str(slow)] if slow else [])],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def done(process: subprocess.Popen) -> tuple[int, str, str]:
    out, error = process.communicate(timeout=120)
    return process.returncode, out, error


def here(*words: str | Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """The command in this process."""
    with_source(words)
    code = fake_family.main([*map(str, words)])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def convert(out: Path, *words: str, slow: float = 0.0) -> subprocess.Popen:
    return start("convert", "fake", out.parent / "src", out, *SET, *words, slow=slow)


def hashes(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def group_is_gone(group: int, within: float = 5.0) -> bool:
    """Whether no process of a session is left, zombies aside."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        left = 0
        for process in psutil.process_iter():
            try:
                left += os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
            except (ProcessLookupError, psutil.Error):
                continue
        if not left:
            return True
        time.sleep(0.05)
    return False


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """The set that one undisturbed run writes."""
    out = tmp_path_factory.mktemp("whole") / "set"
    code, text, error = done(convert(out, "--workers", "2"))
    assert code == 0, error
    assert "killed the process (SIGSEGV)" in text
    return out


def test_worker_count_changes_no_byte(whole, tmp_path):
    for workers in ("1", "3"):
        code, _, error = done(convert(tmp_path / f"set{workers}", "--workers", workers, "--quiet"))
        assert (code, error) == (0, "")
        assert hashes(tmp_path / f"set{workers}") == hashes(whole)


@pytest.mark.parametrize("workers", [1, 3])
def test_killed_at_any_point_and_resumed(whole, tmp_path, workers):
    out = tmp_path / "set"
    chance = random.Random(workers)
    kills = 0
    for _ in range(40):
        began = time.monotonic()
        process = convert(out, "--workers", str(workers), slow=0.004)
        # the plan's time is Python's start; most kills shall come later
        wait = chance.choice([0.2, 0.9, 1.2, 1.5]) + chance.random() * 0.5
        while process.poll() is None and time.monotonic() - began < wait:
            time.sleep(0.005)
        if process.poll() is not None:
            assert done(process)[0] == 0
            break
        os.killpg(process.pid, signal.SIGKILL)
        done(process)
        kills += 1
        assert group_is_gone(process.pid)
        assert not (out / "manifest.json").exists() or hashes(out)["manifest.json"] == hashes(whole)["manifest.json"]
        if kills == 3:
            code, _, error = done(convert(out, "--workers", str(workers)))
            assert code == 0, error
            break
    assert kills
    assert hashes(out) == hashes(whole)


def test_three_parts_merged(whole, tmp_path, capsys):
    parts = [tmp_path / f"part{k}" for k in (1, 2, 3)]
    for k, part in enumerate(parts, 1):
        code, text, error = here("convert", "fake", tmp_path / "src", part, *SET, "--part", f"{k}/3", capsys=capsys)
        assert code == 0, error
        assert "wdsmix merge" in text
        assert not (part / "manifest.json").exists()
    names = [{path.name for path in part.glob("*.tar")} for part in parts]
    assert set.union(*names) == {path.name for path in whole.glob("*.tar")}
    assert sum(map(len, names)) == len(set.union(*names))
    code, _, error = here("merge", tmp_path / "some", parts[2], parts[0], capsys=capsys)
    assert code == 1
    for name in names[1]:
        assert name.removesuffix(".tar") in error
    code, _, error = here("merge", tmp_path / "some", parts[1], capsys=capsys)
    assert code == 0, error
    assert hashes(tmp_path / "some") == hashes(whole)
    for _ in range(2):
        code, text, error = here("merge", tmp_path / "all", *parts, capsys=capsys)
        assert code == 0, error
        assert "reading it killed the process" in text
        assert hashes(tmp_path / "all") == hashes(whole)


def test_parts_side_by_side_in_one_folder(whole, tmp_path):
    out = tmp_path / "set"
    running = [convert(out, "--part", f"{k}/3", "--workers", "1", slow=0.002) for k in (1, 2, 3)]
    ended = [done(process) for process in running]
    assert [code for code, _, _ in ended] == [0, 0, 0], [error for _, _, error in ended]
    code, _, error = done(start("merge", out))
    assert code == 0, error
    assert hashes(out) == hashes(whole)


def test_a_second_run_is_refused(whole, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(workfolder, "_PATIENCE", 0.1)
    out = tmp_path / "set"
    first = convert(out, slow=0.1)
    while not (out / ".work" / "plan.json").exists():
        time.sleep(0.02)
    for words in (
        ("convert", "fake", tmp_path / "src", out, *SET),
        ("convert", "fake", tmp_path / "src", out, *SET, "--part", "1/2"),
        ("merge", out),
    ):
        code, _, error = here(*words, capsys=capsys)
        assert code == 3, error
        assert "is at work there" in error
    os.kill(first.pid, signal.SIGTERM)
    assert done(first)[0] == 130
    assert here("convert", "fake", tmp_path / "src", out, *SET, capsys=capsys)[0] == 0
    assert hashes(out) == hashes(whole)


@pytest.mark.parametrize(
    ("number", "to_group"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)]
)
def test_interrupted(whole, tmp_path, number, to_group):
    out = tmp_path / "set"
    process = convert(out, "--workers", "2", slow=0.03)
    until = time.monotonic() + 30
    while not list(out.glob("*.partial")) and time.monotonic() < until:
        time.sleep(0.02)
    time.sleep(0.3)
    (os.killpg if to_group else os.kill)(process.pid, number)
    code, _, error = done(process)
    assert code == 130
    assert "interrupted" in error
    assert "Traceback" not in error
    assert group_is_gone(process.pid)
    assert not list(out.glob("*.partial"))
    assert done(convert(out))[0] == 0
    assert hashes(out) == hashes(whole)


def test_workers_do_not_outlive_a_killed_parent(tmp_path):
    process = convert(tmp_path / "set", "--workers", "2", slow=0.05)
    until = time.monotonic() + 30
    while not list((tmp_path / "set").glob("*.partial")) and time.monotonic() < until:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    assert group_is_gone(process.pid)


def test_refusals_by_exit_code(whole, tmp_path, capsys):
    def convert_here(out: Path, *words: str) -> tuple[int, str, str]:
        return here("convert", "fake", tmp_path / "src", out, "--frames-per-shard", "30", *words, capsys=capsys)

    out, other = tmp_path / "set", tmp_path / "other"
    assert convert_here(out, "--part", "1/2")[0] == 0
    code, _, error = convert_here(out, "--hz", "10")
    assert code == 3
    assert "--hz: 0.0 -> 10.0" in error
    assert convert_here(other, "--part", "2/2", "--quality", "50")[0] == 0
    code, _, error = here("merge", tmp_path / "merged", out, other, capsys=capsys)
    assert code == 3
    assert "--quality" in error
    code, _, error = here("merge", out, capsys=capsys)
    assert code == 1
    assert "shards are missing" in error
    code, _, error = here("merge", tmp_path / "merged", tmp_path / "nowhere", capsys=capsys)
    assert code == 1
    assert "not a part" in error
    assert convert_here(out, "--hz", "-1")[0] == 2
    assert convert_here(tmp_path / "src" / "set")[0] == 2
    code, _, error = here("convert", "gone", capsys=capsys)
    assert code == 2
    assert "no module named nowhere" in error
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "y").touch()
    assert convert_here(tmp_path / "x")[0] == 3
    code, _, error = convert_here(tmp_path / "z", "--does", "1=bad", "--on-bad", "fail")
    assert code == 1
    assert "ep1: obs" in error


@pytest.mark.parametrize(
    "words",
    [
        ("--camera", "cam0"),
        ("--camera", "Cam0=x"),
        ("--camera", "cam0=x", "--camera", "cam0=y"),
        ("--part", "3/2"),
        ("--part", "0/2"),
        ("--state", "a,,b"),
        ("--resize", "stretch"),
    ],
)
def test_bad_usage(tmp_path, capsys, words):
    assert here("convert", "fake", tmp_path / "src", tmp_path / "set", *words, capsys=capsys)[0] == 2
    assert not (tmp_path / "set").exists()
