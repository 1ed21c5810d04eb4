"""The options of the navigation family, checked."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from wdsmix.errors import ConfigError

__all__ = ["NavOptions", "options_from"]


@dataclass(frozen=True, kw_only=True, slots=True)
class NavOptions:
    """What shapes the reading of navigation data. Pickles."""

    cameras: Mapping[str, str] = field(default_factory=dict)
    """Slot -> camera; empty: the layout's."""
    fps: float = 0.0
    """Frames per second of the recording; 0: measured, else the layout's."""
    spacing: float = 0.0
    """The configuration's metres between stored frames; 0: known by the dataset's name, else measured."""
    stride: int = 1
    """Every n-th frame is kept, and steps lead from one to the next."""
    strict: bool = False
    """Reject any difference between the counts of pictures and poses."""
    path_points: int = 5
    """VAMOS: points that a path is resampled to."""
    tasks: tuple[str, ...] = ()
    """VAMOS: only rows whose text contains one of these."""
    instruction: str = ""
    """Task of trajectories that carry no language."""

    def __post_init__(self) -> None:
        for option, value, good in (
            ("--fps", self.fps, 0 <= self.fps <= 10_000),
            ("--spacing", self.spacing, 0 <= self.spacing < math.inf),
            ("--stride", self.stride, self.stride >= 1),
            ("--path-points", self.path_points, 1 <= self.path_points <= 1000),
        ):
            if not good:
                raise ConfigError("bad value", where=option, found=value)

    def arguments(self) -> dict[str, object]:
        """The options as JSON types."""
        plain = asdict(self)
        return {**plain, "tasks": list(self.tasks), "fps": float(self.fps), "spacing": float(self.spacing)}


def options_from(args: argparse.Namespace) -> NavOptions:
    """The options from parsed arguments.

    Raises:
        ConfigError: a value is bad, or one has no meaning here.
    """
    for name in ("state", "action"):
        if getattr(args, name, None):
            raise ConfigError(
                "the vectors of navigation data are fixed",
                where=f"--{name}",
                hint="state is [x, y, yaw] and action [dx, dy, dyaw]; waypoints are made when training reads the set",
            )
    for name in ("fps", "spacing"):
        if getattr(args, name) == 0:
            raise ConfigError("bad value", where=f"--{name}", expected="more than 0", found=0)
    return NavOptions(
        cameras=dict(getattr(args, "camera", None) or {}),
        fps=args.fps or 0.0,
        spacing=args.spacing or 0.0,
        stride=args.stride,
        strict=args.strict,
        path_points=args.path_points,
        tasks=tuple(args.task or ()),
        instruction=args.instruction or "",
    )
