"""What a check found wrong: every fault is counted, the first of each kind are kept.

A *check* is one question put to a set ("does every frame match its crc32c?"); a *fault* is one place where the
answer is no. Faults are named after the check that found them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import numpy as np

from wdsmix.errors import WdsmixError

__all__ = ["CHECKS", "LEVELS", "Check", "Fault", "Faults", "Level"]

Level: TypeAlias = Literal["list", "head", "quick", "full"]
LEVELS: tuple[Level, ...] = ("list", "head", "quick", "full")


@dataclass(frozen=True, slots=True)
class Check:
    """One question put to a set."""

    kind: str
    """Short name; the kind of its faults."""
    level: Level
    """The cheapest level that asks it."""
    title: str
    """What holds when it passes."""
    unit: str
    """What is counted while asking."""


CHECKS: tuple[Check, ...] = (
    Check("manifest", "list", "manifest follows the contract", "manifests"),
    Check("digest", "list", "manifest is the version asked for", "manifests"),
    Check("missing", "list", "all files are there", "files"),
    Check("size", "list", "files have their sizes", "files"),
    Check("extra", "list", "no foreign files", "files"),
    Check("leftover", "list", "no unfinished work", "files"),
    Check("store", "head", "objects are those that were pushed", "objects"),
    Check("checksum", "quick", "files match sha256 and crc32c", "files"),
    Check("stats", "quick", "statistics fit manifest and rows", "vectors"),
    Check("index", "quick", "episode index agrees with shards", "episodes"),
    Check("frames", "quick", "frame tables agree with index and tars", "frames"),
    Check("vector", "quick", "vectors are finite, members equal rows", "values"),
    Check("counts", "quick", "counts are the manifest's", "counts"),
    Check("header", "full", "tar headers and padding are whole", "members"),
    Check("crc", "full", "frames match crc32c", "frames"),
    Check("members", "full", "samples have the members of their row", "frames"),
    Check("json", "full", "sample JSON agrees with its row", "frames"),
    Check("picture", "full", "pictures decode as the manifest lists", "pictures"),
)

_KINDS = frozenset(check.kind for check in CHECKS)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that is wrong, and where."""

    kind: str
    file: str
    """Name of the file within the set; empty: the folder."""
    message: str
    where: str = ""
    """Place in the file: byte offset, key, row, field."""
    expected: str = ""
    found: str = ""

    def __str__(self) -> str:
        text = ": ".join(part for part in (self.file, self.where, self.message) if part)
        facts = [f"{word} {value}" for word, value in (("expected", self.expected), ("found", self.found)) if value]
        return f"{text} ({', '.join(facts)})" if facts else text

    def to_json(self) -> dict[str, str]:
        """All fields by name."""
        return {name: getattr(self, name) for name in ("kind", "file", "where", "message", "expected", "found")}


@dataclass(slots=True)
class Faults:
    """Collects faults; keeps at most ``limit`` of a kind, counts all; counts what was looked at beside them."""

    limit: int = 20
    counts: Counter[str] = field(default_factory=Counter)
    examined: Counter[str] = field(default_factory=Counter)
    """Kind of check -> things it looked at."""
    kept: dict[str, list[Fault]] = field(default_factory=dict)
    files: dict[str, set[str]] = field(default_factory=dict)
    """File -> kinds of faults in it."""

    def add(
        self,
        kind: str,
        file: str,
        message: str,
        *,
        where: str = "",
        expected: object = None,
        found: object = None,
    ) -> None:
        """Notes one fault."""
        if kind not in _KINDS:
            raise ValueError(f"unknown kind of fault: {kind}")
        self.counts[kind] += 1
        self.files.setdefault(file, set()).add(kind)
        kept = self.kept.setdefault(kind, [])
        if len(kept) < self.limit:
            kept.append(
                Fault(
                    kind=kind,
                    file=file,
                    message=message,
                    where=where,
                    expected=_text(expected),
                    found=_text(found),
                )
            )

    def add_error(self, kind: str, file: str, error: Exception, *, where: str = "") -> None:
        """Notes an exception as a fault."""
        if isinstance(error, WdsmixError):
            place = ", ".join(part for part in (where, error.where) if part)
            self.add(kind, file, error.message, where=place, expected=error.expected, found=error.found)
        else:
            words = str(error).strip().splitlines() or [""]
            self.add(kind, file, f"{type(error).__name__}: {words[0]}"[:300], where=where)

    def saw(self, kind: str, amount: int = 1) -> None:
        """Counts what a check looked at."""
        self.examined[kind] += amount

    def merge(self, other: Faults) -> None:
        """Takes over the faults of a part that was checked elsewhere."""
        self.counts.update(other.counts)
        self.examined.update(other.examined)
        for file, kinds in other.files.items():
            self.files.setdefault(file, set()).update(kinds)
        for kind, faults in other.kept.items():
            kept = self.kept.setdefault(kind, [])
            kept.extend(faults[: max(0, self.limit - len(kept))])

    def __iter__(self) -> Iterator[Fault]:
        for check in CHECKS:
            yield from self.kept.get(check.kind, ())

    @property
    def total(self) -> int:
        """Number of all faults, kept or not."""
        return sum(self.counts.values())


def _text(value: object) -> str:
    return "" if value is None else _plain(value)[:300]


def _plain(value: object) -> str:
    """As `str`, but numpy's numbers, alone or within, as numbers."""
    if isinstance(value, np.ndarray):
        return _plain(value.tolist() if value.dtype.kind != "f" else list(value))
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_plain(item) if not isinstance(item, str) else repr(item) for item in value)
        comma = "," if isinstance(value, tuple) and len(value) == 1 else ""
        return f"({inner}{comma})" if isinstance(value, tuple) else f"[{inner}]"
    return str(value)
