"""Gaps in the numbers of chunks and episodes: a sign that a part of an export did not arrive."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from wdsmix.converters.hdf5.dialects import all_dialects
from wdsmix.converters.hdf5.scan import FileScan

__all__ = ["gaps"]


def gaps(scans: Mapping[str, FileScan]) -> list[str]:
    """Numbers missing in the names of chunks and of their episodes."""
    found = []
    numbered = {file: scan for file, scan in scans.items() if scan.dialect in _numbered()}
    for file, scan in numbered.items():
        gap = _missing([episode.group.rsplit("/", 1)[-1] for episode in scan.episodes])
        if gap:
            found.append(f"{file}: {gap}")
    folders: dict[str, list[str]] = {}
    for file in scans:  # an unreadable chunk is there all the same
        if numbered:
            folders.setdefault(file.rpartition("/")[0], []).append(Path(file).stem)
    for folder, names in folders.items():
        gap = _missing(names)
        if gap:
            found.append(f"{folder}: {gap}" if folder else gap)
    return found


def _numbered() -> set[str]:
    return {name for name, dialect in all_dialects().items() if dialect.numbered}


def _missing(names: Sequence[str]) -> str:
    """The gaps in numbered names, in words; empty where there is none."""
    series: dict[str, set[int]] = {}
    widths: dict[str, int] = {}
    for name in names:
        match = re.fullmatch(r"(.*?)(\d{1,9})", name)
        if match:
            series.setdefault(match[1], set()).add(int(match[2]))
            widths[match[1]] = min(widths.get(match[1], 9), len(match[2]))
    gaps = []
    for prefix, numbers in series.items():
        ordered = sorted(numbers)
        for low, high in pairwise(ordered):
            if high - low > 1:
                first, last = f"{prefix}{low + 1:0{widths[prefix]}d}", f"{prefix}{high - 1:0{widths[prefix]}d}"
                gaps.append(first if first == last else f"{first} to {last}")
    if not gaps:
        return ""
    return "missing in the numbering: " + ", ".join(gaps[:20]) + (f" and {len(gaps) - 20} more" if gaps[20:] else "")
