"""The options of the Unitree family, checked."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

from wdsmix.converters.unitree.tables import ROBOTS, table_of

from wdsmix.errors import ConfigError

__all__ = ["UnitreeOptions", "options_from"]


@dataclass(frozen=True, kw_only=True, slots=True)
class UnitreeOptions:
    """What shapes the reading of raw recordings. Pickles."""

    cameras: Mapping[str, str] = field(default_factory=dict)
    """Slot -> camera; empty: all, in the default order of slots."""
    state: tuple[str, ...] = ()
    """Parts (``left_arm``, or ``left_arm.qvel``) of the state; empty: arms and hands."""
    action: tuple[str, ...] = ()
    fps: float = 0.0
    """Rate of the recording; 0: the one asked for in data.json."""
    robot: str = ""
    """Robot type whose table gives names; empty: by the widths."""
    instruction: str = ""
    """Task instead of what data.json says."""
    dedupe: bool = False
    """Leave out frames whose pictures all repeat the ones before."""
    missing: Literal["drop", "fail"] = "drop"
    """What a frame without one of its pictures costs: itself, or its episode."""
    swap_hands: Literal["", "state", "action", "both"] = ""
    depth: bool = False
    keep_failed: bool = False
    allow_no_camera: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.fps <= 10_000:
            raise ConfigError("bad value", where="--fps", expected="a rate in frames per second", found=self.fps)
        if self.robot and table_of(self.robot) is None:
            raise ConfigError("no such robot", where="--robot", expected=", ".join(ROBOTS), found=self.robot)

    def arguments(self) -> dict[str, object]:
        """The options as JSON types."""
        plain = {name: value for name, value in asdict(self).items() if name != "allow_no_camera"}
        return {**plain, "state": list(self.state), "action": list(self.action), "fps": float(self.fps)}


def options_from(args: argparse.Namespace) -> UnitreeOptions:
    """The options from parsed arguments.

    Raises:
        ConfigError: a value is bad.
    """
    return UnitreeOptions(
        cameras=dict(getattr(args, "camera", None) or {}),
        state=tuple(getattr(args, "state", None) or ()),
        action=tuple(getattr(args, "action", None) or ()),
        fps=args.fps or 0.0,
        robot=args.robot or "",
        instruction=args.instruction or "",
        dedupe=args.dedupe,
        missing=args.missing_picture,
        swap_hands=args.swap_hands or "",
        depth=args.depth,
        keep_failed=args.keep_failed,
        allow_no_camera=bool(getattr(args, "allow_no_camera", False)),
    )
