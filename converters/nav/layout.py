"""What every layout of navigation data gives: trajectories found, scanned from what is small, and opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
from wdsmix.converters.nav.options import NavOptions

from wdsmix.episode import Float32Array, ImageStream, VectorSpec

__all__ = ["Layout", "Opened", "Scan"]


@dataclass(kw_only=True, slots=True)
class Scan:
    """One trajectory before it is read."""

    id: str
    file: str
    """Its folder or file, relative to the source."""
    frames: int = 0
    """After ``--stride``."""
    vectors: Mapping[str, int] = field(default_factory=dict)
    cameras: Sequence[str] = ()
    """Keys of its cameras."""
    fault: str | None = None
    fault_kind: Literal["file", "episode", "filter"] = "episode"
    split: str | None = None
    locator: Mapping[str, str | int] = field(default_factory=dict)
    steps: npt.NDArray[np.float64] | None = None
    """float64: distances between its stored frames, in m."""
    rate: float = 0.0
    """Measured frames per second, after ``--stride``; 0 where nothing tells it."""
    repeats: int = 0
    """Pictures with the very bytes of the one before."""
    left_out: int = 0
    """Native frames left out: cut at the end, or without a match."""
    notes: Sequence[str] = ()
    """Said once a source, with the first trajectory and the count."""


@dataclass(kw_only=True, slots=True)
class Opened:
    """One trajectory, opened."""

    vectors: Mapping[str, Float32Array]
    images: Mapping[str, ImageStream]
    """Camera key -> pictures."""
    rows: npt.NDArray[np.int64]
    """int64 [T]: what to ask the images for."""
    timestamps: npt.NDArray[np.float64] | None = None
    task: str = ""
    extras: Mapping[str, object] = field(default_factory=dict)
    close: Callable[[], None] | None = None


class Layout(Protocol):
    """One way in which navigation data lie on disk; a module."""

    NAME: str
    RATE: float
    """Frames per second where nothing tells them."""
    SPECS: Mapping[str, VectorSpec]
    POSES: bool
    """Whether state and action are poses and steps, so that the mixture can make waypoints."""
    LIBRARIES: tuple[str, ...]

    def find(self, root: Path) -> list[str]:
        """Trajectories (or files of them) below the root, in natural order; empty where the layout is another."""
        ...

    def scan(self, root: Path, file: str, options: NavOptions) -> list[Scan]:
        """Looks at one of these; a fault is told in the scan, never raised."""
        ...

    def read(self, root: Path, file: str, locator: Mapping[str, str | int], options: NavOptions) -> Opened:
        """Opens a trajectory.

        Raises:
            DataError: it is bad.
        """
        ...

    def fingerprint(self, root: Path, file: str) -> bytes:
        """Changes with names, sizes and small files of it."""
        ...
