"""What a run was made with."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path

from benchmarks.environments import PEERS, REPOSITORY, environment

__all__ = ["machine", "versions", "warm_cache"]


def machine() -> str:
    """Processor, cores, memory and system, in words."""
    model = next(
        (line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        platform.machine(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, {memory:.0f} GiB, {platform.system()} {platform.release().split('-')[0]}"


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def versions(work: Path, peers: Iterable[str]) -> dict[str, str]:
    """Of Python, the packages all contenders share, and the peers."""
    found = {"Python": platform.python_version()}
    found.update({name: version(name) for name in ("wdsmix", "torch", "numpy", "simplejpeg", "pillow")})
    found["wdsmix"] += _commit()
    for peer in peers:
        name = PEERS[peer].distribution
        code = f"import importlib.metadata as m; print(m.version({name!r}))"
        answer = subprocess.run([str(environment(work, peer)), "-c", code], capture_output=True, text=True, check=False)
        found[name] = answer.stdout.strip() or "unknown"
    return found


def _commit() -> str:
    """Of the work tree, in brackets, with a + where it has changes; nothing outside of a repository."""
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty=+", "--exclude=*"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    return f" ({answer.stdout.strip()})" if answer.returncode == 0 else ""


def warm_cache(folders: Iterable[Path]) -> None:
    """Reads every file once, so that no measurement waits for the disk."""
    block = bytearray(2**22)
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb", buffering=0) as file:
                    while file.readinto(block):
                        pass
