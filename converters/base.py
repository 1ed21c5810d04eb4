"""The protocol between a source family and the runner, and the options of a conversion."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from wdsmix.episode import Episode, EpisodeRef, SourceInfo
from wdsmix.errors import ConfigError

__all__ = ["ConvertOptions", "Source"]


@runtime_checkable
class Source(Protocol):
    """What a converter is. Must pickle without open files: each worker process gets its own copy.

    Three attributes are optional: ``path``, the file or folder it reads (the set must not be written into it);
    ``libraries``, names of the distributions that shape what it yields (their versions go into plan and manifest); and
    a method ``inputs()``, the paths of all local files it reads: their sizes and times are kept while a set is
    unfinished, and a resume is refused when one changed. Without it a change that ``fingerprint`` misses goes unseen.
    """

    def describe(self) -> SourceInfo:
        """What holds for the whole source. Called after `episodes`."""
        ...

    def arguments(self) -> Mapping[str, object]:
        """Options that shape what `read` gives (JSON types); go into plan and manifest."""
        ...

    def fingerprint(self) -> str:
        """Changes when the input does: a hash over relative names, sizes and some content, never over mtimes."""
        ...

    def episodes(self) -> list[EpisodeRef]:
        """All episodes, from metadata only, in natural order; unreadable files and bad ones as refs with a fault."""
        ...

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one episode.

        Raises:
            DataError: the episode is bad; the runner drops it with this reason, or fails the run, by policy.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class ConvertOptions:
    """How a source becomes a set. All but ``workers``, ``part`` and ``on_bad`` shape the bytes."""

    name: str = ""
    """Name of the set; empty: the source's."""
    embodiment: str = ""
    """Robot name; empty: the source's, else the set's name."""
    licence: str = ""
    """Licence of the data; empty: the source's."""
    hz: float = 0.0
    """Wanted frames per second; 0 keeps the native rate."""
    hz_mode: Literal["stride", "nearest"] = "stride"
    action_kind: Literal["", "absolute", "delta"] = ""
    """What the action's dimensions are where the source does not say; decides how frames are left out."""
    image_size: int = 0
    """Side of the square pictures are brought to; 0 keeps their size."""
    resize: Literal["squash", "fit", "crop"] = "squash"
    quality: int = 92
    subsampling: Literal["444", "420"] = "444"
    split_by: Literal["file", "episode", "source"] = "episode"
    val_fraction: float = 0.0
    seed: int = 0
    """Chooses the units of the validation split."""
    max_episodes: int = 0
    """0: all."""
    frames_per_shard: int = 2000
    allow_no_camera: bool = False
    on_bad: Literal["drop", "fail"] = "drop"
    workers: int = 1
    part: tuple[int, int] = (0, 1)
    """(i, n): convert the i-th of n shares of the planned shards (0-based)."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Room for runners of third parties; goes into the plan."""

    def __post_init__(self) -> None:
        checks = [
            (0 <= self.hz < math.inf, "hz", "0 or more", self.hz),
            (0 <= self.image_size <= 8192, "image-size", "0 to 8192", self.image_size),
            (1 <= self.quality <= 100, "quality", "1 to 100", self.quality),
            (0 <= self.val_fraction < 1, "val-fraction", "0 up to below 1", self.val_fraction),
            (self.max_episodes >= 0, "max-episodes", "0 or more", self.max_episodes),
            (self.frames_per_shard >= 1, "frames-per-shard", "1 or more", self.frames_per_shard),
            (self.workers >= 1, "workers", "1 or more", self.workers),
            (
                0 <= self.part[0] < self.part[1],
                "part",
                "i/n with 1 <= i <= n",
                f"{self.part[0] + 1}/{self.part[1]}",
            ),
        ]
        for good, option, expected, found in checks:
            if not good:
                raise ConfigError("bad value", where=f"--{option}", expected=expected, found=found)
