"""Training processes that are interrupted and killed leave nothing behind, and what follows is exact."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import psutil
import pytest
import yaml
from helpers import train_loop

from wdsmix import MixtureDataset


@pytest.fixture
def path(tmp_path: Path, mixture: dict) -> Path:
    (tmp_path / "mixture.yaml").write_text(yaml.safe_dump(mixture), encoding="utf-8")
    return tmp_path / "mixture.yaml"


@pytest.fixture
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Fails when /dev/shm or the temporary folder of the processes holds more than before."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))
    monkeypatch.setattr(tempfile, "tempdir", None)
    shared = Path("/dev/shm")
    owner = scratch.owner()

    def entries() -> set[str]:
        # Semaphores are multiprocessing's own; its resource tracker removes them, of other test runs too.
        return {
            entry.name for entry in shared.iterdir() if entry.owner() == owner and not entry.name.startswith("sem.")
        }

    before = entries()
    yield scratch
    assert [entry.name for entry in scratch.rglob("*")] == []
    assert entries() <= before


def ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_until_ended(pids: list[int], timeout: float) -> None:
    end = time.monotonic() + timeout
    while time.monotonic() < end and not all(map(ended, pids)):
        time.sleep(0.05)
    left = [pid for pid in pids if not ended(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def fork_training(path: Path, workers: int, state: str) -> tuple[int, int]:
    """A forked child that trains (no start of Python, no import of torch); its pid, and where its lines come."""
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setsid()
            os.close(here)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with os.fdopen(there, "w") as out, open(os.devnull, "w") as null:  # noqa: PTH123
                os.dup2(null.fileno(), 2)
                train_loop.train(str(path), workers, "fork", state, out)
        except KeyboardInterrupt:
            code = 130
        finally:
            os._exit(code)
    os.close(there)
    return pid, here


def test_twenty_kills_and_restarts(path: Path, nothing_left: Path) -> None:
    expected = list(islice(MixtureDataset(path, 4), 150))
    wanted = [
        list(zip(*(batch[k].tolist() for k in ("source_id", "episode", "frame")), strict=True)) for batch in expected
    ]
    gc.collect()
    state, done, everyone = "", 0, []
    for cycle in range(20):
        pid, lines = fork_training(path, 2 if cycle % 5 else 0, state)
        with os.fdopen(lines) as stream:
            for line in islice(stream, 2 + cycle % 4):
                batch = json.loads(line)
                assert batch["step"] == done
                assert [tuple(row) for row in batch["rows"]] == wanted[done]
                done += 1
                state = json.dumps(batch["cursor"])
            workers = [child.pid for child in psutil.Process(pid).children(recursive=True)]
            assert len(workers) == (2 if cycle % 5 else 0)
            how = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)[cycle % 3]
            if how == signal.SIGINT:
                os.killpg(pid, how)  # as a terminal does
            else:
                os.kill(pid, how)
        os.waitpid(pid, 0)
        everyone += workers
    assert done > 60
    wait_until_ended(everyone, 20)  # torch's workers look for their parent every five seconds


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda how: how.name)
def test_spawned_workers_end_with_their_parent(path: Path, nothing_left: Path, how: signal.Signals) -> None:
    process = subprocess.Popen(
        [sys.executable, train_loop.__file__, str(path), "1", "spawn", ""],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    steps = [json.loads(process.stdout.readline())["step"] for _ in range(4)]
    assert steps == [0, 1, 2, 3]
    children = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    assert children
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
    else:
        process.send_signal(how)
    process.communicate(timeout=30)
    wait_until_ended([*children, process.pid], 20)


def test_a_worker_that_is_killed_is_an_error(path: Path) -> None:
    """In a process of its own, for torch's SIGCHLD handler would go on raising in this one."""
    code = (
        "import os, signal, sys\n"
        "from torch.utils.data import DataLoader\n"
        "from wdsmix import MixtureDataset\n"
        "stream = iter(DataLoader(MixtureDataset(sys.argv[1], 4), batch_size=None, num_workers=2))\n"
        "held = [next(stream) for _ in range(3)]\n"
        "before = [batch['images'].clone() for batch in held]\n"
        "try:\n"
        "    os.kill(stream._workers[0].pid, signal.SIGKILL)\n"
        "    for _ in range(20): next(stream)\n"
        "    ended = 'no error'\n"
        "except Exception as error:\n"
        "    ended = str(error)\n"
        "signal.signal(signal.SIGCHLD, signal.SIG_DFL)\n"
        "same = all(bool((b['images'] == c).all()) for b, c in zip(held, before))\n"
        "sys.stdout.write(f'{same} {ended}')\n"
        "sys.stdout.flush()\n"
        "stream._shutdown_workers()\n"  # or a fellow waits for ever for a lock that the killed one held
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], timeout=60, check=False, capture_output=True, text=True
    )
    assert done.stdout.startswith("True DataLoader worker (pid"), done.stderr


def test_the_process_ends_though_a_thread_hangs(path: Path) -> None:
    code = (
        "import sys, time\n"
        "from wdsmix import MixtureDataset\n"
        "from wdsmix.mixture import assemble\n"
        "stream = iter(MixtureDataset(sys.argv[1], 4, num_threads=2))\n"
        "next(stream); time.sleep(1)\n"
        "assemble.find_pictures = lambda *_: time.sleep(600)\n"
        "next(stream); next(stream)\n"  # those ahead were begun before
        "sys.exit(7)\n"
    )
    began = time.monotonic()
    assert subprocess.run([sys.executable, "-c", code, str(path)], timeout=60, check=False).returncode == 7
    assert time.monotonic() - began < 30
