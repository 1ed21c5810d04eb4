"""What the kernel says: CPU time, page faults and memory of a process tree, and load by others."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Usage", "busy_seconds", "memory_mib", "tree", "usage"]

_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """Of a process tree since it started; what ended and was waited for is in it."""

    user: float
    """CPU-seconds."""
    system: float
    """CPU-seconds."""
    faults: int
    """Page faults, minor and major."""

    def __sub__(self, earlier: Usage) -> Usage:
        return Usage(
            user=self.user - earlier.user,
            system=self.system - earlier.system,
            faults=self.faults - earlier.faults,
        )

    @property
    def cpu(self) -> float:
        """User and system CPU-seconds."""
        return self.user + self.system


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third (state) on; None where the process is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def tree(root: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):  # noqa: PTH208  (one call, many times a second)
        if name.isdigit():
            fields = _stat(int(name))
            if fields is not None:
                children.setdefault(int(fields[1]), []).append(int(name))
    found = [root]
    for pid in found:
        found.extend(children.get(pid, ()))
    return found


def usage(root: int) -> Usage:
    """CPU time and page faults of a process tree."""
    user = system = faults = 0
    for pid in tree(root):
        fields = _stat(pid)
        if fields is not None:
            faults += sum(int(fields[i]) for i in (7, 8, 9, 10))
            user += int(fields[11]) + int(fields[13])
            system += int(fields[12]) + int(fields[14])
    return Usage(user=user / _TICK, system=system / _TICK, faults=faults)


def busy_seconds() -> float:
    """CPU-seconds that all cores spent on anything, time stolen by the host included."""
    fields = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq + steal) / _TICK


def memory_mib(root: int) -> float:
    """Anonymous and shared memory of a process tree, MiB; pages that several share count once, mapped files not."""
    total = 0
    for pid in tree(root):
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return total / 1024
