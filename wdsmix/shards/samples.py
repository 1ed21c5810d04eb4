"""Samples of any tar that follows WebDataset naming: consecutive members that share a key.

The key is a member's name up to the first dot of its basename, folders included; the rest is its suffix. Folder
entries, pax headers, GNU long names and a leading ``./`` are fine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsmix.errors import DataError
from wdsmix.shards.tario import Member, iter_members, split_name

__all__ = ["Sample", "iter_samples"]


@dataclass(slots=True)
class Sample:
    """One sample of a tar."""

    key: str
    """Without a leading ``./``."""
    start: int
    """First byte of its first header."""
    end: int
    """After the padding of its last member."""
    members: dict[str, Member] = field(default_factory=dict)
    """Suffix -> member, in the order of the tar."""

    @property
    def place(self) -> str:
        """How an error names it."""
        return f"byte {self.start}, key {self.key}"


def iter_samples(buffer: Any, *, path: str | Path) -> Iterator[Sample]:
    """Yields the samples of a whole tar in order.

    Raises:
        DataError: the tar is damaged or cut, a member has no suffix, a suffix occurs twice in a sample (in any case:
            stock readers lower it), or a key comes back after another one. Names tar and offset.
    """
    current: Sample | None = None
    previous = ""
    seen: dict[str, int] = {}
    lowered: set[str] = set()
    for member in iter_members(buffer, path=path, expect_end=True):
        name, suffix = split_name(member.name)
        where = f"byte {member.start}"
        if not suffix or name.endswith("/"):  # the latter: d/._a.jpg, by the stock rule key "d/"
            raise DataError(
                "a member has no suffix or no name before it, so it belongs to no sample",
                path=path,
                where=where,
                expected="KEY.SUFFIX",
                found=repr(member.name),
            )
        key = name.removeprefix("./")
        if current is None or name != previous:
            if name in seen:
                raise DataError(
                    f"key {key} comes back after other samples (it was at byte {seen[name]})",
                    path=path,
                    where=where,
                    hint="the members of a sample must follow each other: sort the files by name before packing them",
                )
            if current is not None:
                yield current
            current = Sample(key, member.start, member.end)
            seen[name] = member.start
            previous = name
            lowered = set()
        if suffix.lower() in lowered:
            raise DataError(f"suffix {suffix} occurs twice in sample {key}", path=path, where=where)
        lowered.add(suffix.lower())
        current.members[suffix] = member
        current.end = member.end
    if current is not None:
        yield current
