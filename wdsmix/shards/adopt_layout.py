"""What is to become of foreign tars: the user's options, and the layout that follows from the members found."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wdsmix.errors import ConfigError, DataError
from wdsmix.shards.adopt_scan import ShardScan, SuffixScan

__all__ = ["AdoptOptions", "Layout", "decide_layout"]

_SLOT = re.compile(r"cam(0|[1-9][0-9]*)")
_VECTOR = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptOptions:
    """How foreign tars become a set."""

    episode_from: str = ""
    """Regular expression on the key (its group ``episode``, else its first group; a group ``frame`` is the frame's
    number), ``json:FIELD``, or empty: each sample is an episode of one frame."""
    split_from: str = ""
    """Regular expression on the tar's name whose first group is the split; empty: by its prefix."""
    name: str = ""
    """Empty: the folder's."""
    embodiment: str = ""
    """Empty: the set's name."""
    licence: str = ""
    hz: float = 0.0
    """Frames per second; 0: by the timestamps, else 1."""
    cameras: Mapping[str, str] = field(default_factory=dict)
    """Slot -> member suffix; empty: all pictures, in order of their names."""
    vectors: Mapping[str, str] = field(default_factory=dict)
    """Vector -> member suffix; all other .npy vectors keep their names."""
    force: bool = False
    """Index again what was indexed before."""
    jobs: int = 1

    def __post_init__(self) -> None:
        rules: list[tuple[str, bool, str, object]] = [
            ("--hz", 0 <= self.hz < float("inf"), "0 or more", self.hz),
            ("--jobs", self.jobs >= 1, "1 or more", self.jobs),
        ]
        rules += [("--camera", bool(_SLOT.fullmatch(slot)), "cam0, cam1, ...", slot) for slot in self.cameras]
        rules += [("--vector", bool(_VECTOR.fullmatch(name)), "a plain name", name) for name in self.vectors]
        for option, mapping in (("--camera", self.cameras), ("--vector", self.vectors)):
            twice = [suffix for suffix, n in Counter(mapping.values()).items() if n > 1]
            rules.append((option, not twice, "each member once", ", ".join(twice)))
        for option, good, expected, found in rules:
            if not good:
                raise ConfigError("bad value", where=option, expected=expected, found=found)
        try:
            groups = re.compile(self.split_from).groups
        except re.error as error:
            raise ConfigError(
                f"not a regular expression: {error}", where="--split-from", found=self.split_from
            ) from error
        if self.split_from and not groups:
            raise ConfigError("the expression has no group", where="--split-from", found=self.split_from)


@dataclass(slots=True)
class Layout:
    """What the members of the whole set are."""

    cameras: dict[str, str] = field(default_factory=dict)
    vectors: dict[str, tuple[str, int]] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    """Suffix -> why."""
    warnings: list[str] = field(default_factory=list)


def _merged(scans: Sequence[ShardScan]) -> dict[str, SuffixScan]:
    whole: dict[str, SuffixScan] = {}
    for scan in scans:
        for suffix, found in scan.suffixes.items():
            into = whole.setdefault(suffix, SuffixScan(found.kind, problem=found.problem, place=found.place))
            into.count += found.count
            into.widths.update(found.widths)
            if found.problem and not into.problem:
                into.problem, into.place = found.problem, found.place
    return whole


def decide_layout(scans: Sequence[ShardScan], options: AdoptOptions) -> Layout:
    """One layout for all tars.

    Raises:
        ConfigError: an option names a member that no sample has, or two members would be one vector.
        DataError: a named member can't be used, or there is nothing to use.
    """
    layout = Layout()
    suffixes = _merged(scans)
    _check_spelling(suffixes)
    for option, kind, mapping in (("--camera", "picture", options.cameras), ("--vector", "vector", options.vectors)):
        for name, suffix in mapping.items():
            if suffix not in suffixes or suffixes[suffix].kind != kind:
                known = ", ".join(sorted(s for s, found in suffixes.items() if found.kind == kind)) or "none"
                raise ConfigError(
                    f"no {kind} member of that suffix", where=f"{option} {name}", expected=known, found=suffix
                )
    pictures = sorted((s for s, found in suffixes.items() if found.kind == "picture"), key=_natural)
    layout.cameras = dict(options.cameras) or {f"cam{k}": suffix for k, suffix in enumerate(pictures)}
    for suffix in pictures:
        if suffix not in layout.cameras.values():
            layout.ignored[suffix] = "not named by --camera"
    named = {suffix: name for name, suffix in options.vectors.items()}
    for suffix in sorted((s for s, found in suffixes.items() if found.kind == "vector"), key=_natural):
        found = suffixes[suffix]
        problem = found.problem
        if len(found.widths) > 1:
            problem = problem or f"its width varies ({', '.join(map(str, sorted(found.widths)[:5]))})"
        name = named.get(suffix, suffix[: -len(".npy")] or "vector")
        if problem and suffix in named:
            raise DataError(f"can't be vector {name}: {problem}", path=found.place, where=suffix)
        if problem or not _VECTOR.fullmatch(name):
            layout.ignored[suffix] = problem or "its name is not a plain one: name it with --vector"
        elif name in layout.vectors:
            raise ConfigError(
                f"two members for vector {name}", where="--vector", found=f"{layout.vectors[name][0]}, {suffix}"
            )
        else:
            layout.vectors[name] = (suffix, next(iter(found.widths)))
    for suffix, found in suffixes.items():
        if found.kind == "ignored":
            layout.ignored[suffix] = found.problem
    if not layout.cameras and not layout.vectors:
        raise DataError("the samples hold no picture and no vector", found=", ".join(sorted(suffixes)) or "no samples")
    for suffix, why in sorted(layout.ignored.items()):
        layout.warnings.append(f"members .{suffix} are ignored: {why}")
    return layout


def _check_spelling(suffixes: Mapping[str, SuffixScan]) -> None:
    spelled: dict[str, str] = {}
    for suffix, found in suffixes.items():
        other = spelled.setdefault(suffix.lower(), suffix)
        if other != suffix:
            raise DataError("a suffix is spelled in two ways", path=found.place, expected=other, found=suffix)


def _natural(text: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", text)]
