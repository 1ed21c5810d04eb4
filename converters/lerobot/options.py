"""The options of the LeRobot family, checked."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from wdsmix.errors import ConfigError

__all__ = ["LeRobotOptions", "options_from"]


@dataclass(frozen=True, kw_only=True, slots=True)
class LeRobotOptions:
    """What shapes the reading of a LeRobot dataset. Pickles."""

    cameras: Mapping[str, str] = field(default_factory=dict)
    """Slot -> camera, by its key, the end of it, or its name in modality.json; empty: all, by the default rule."""
    state: tuple[str, ...] = ()
    """Columns joined to the state; empty: the standard one."""
    action: tuple[str, ...] = ()
    fps: float = 0.0
    """Rate; 0: the declared one, after it was checked."""
    depth: bool = False
    """Keep depth cameras."""
    keep: tuple[str, ...] | None = None
    """Other columns to keep; None: all."""
    video_mismatch: Literal["nearest", "drop"] = "nearest"
    bad_rows: Literal["episode", "row"] = "episode"
    info: Mapping[str, object] = field(default_factory=dict)
    """Replaces keys of info.json."""
    allow_no_camera: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.fps <= 10_000:
            raise ConfigError("bad value", where="--fps", expected="a rate in frames per second", found=self.fps)

    def arguments(self) -> dict[str, object]:
        """The options as JSON types."""
        return {
            "cameras": dict(self.cameras),
            "state": list(self.state),
            "action": list(self.action),
            "fps": float(self.fps),
            "depth": self.depth,
            "keep": None if self.keep is None else list(self.keep),
            "video_mismatch": self.video_mismatch,
            "bad_rows": self.bad_rows,
            "info": dict(self.info),
        }


def options_from(args: argparse.Namespace) -> LeRobotOptions:
    """The options from parsed arguments.

    Raises:
        ConfigError: a value is bad, or the file of ``--info`` is.
    """
    if args.fps is not None and not args.fps > 0:
        raise ConfigError("bad value", where="--fps", expected="a rate in frames per second", found=args.fps)
    keep = [key.strip() for key in str(args.keep or "all").split(",") if key.strip()]
    return LeRobotOptions(
        cameras=dict(getattr(args, "camera", None) or {}),
        state=tuple(getattr(args, "state", None) or ()),
        action=tuple(getattr(args, "action", None) or ()),
        fps=args.fps or 0.0,
        depth=args.depth,
        keep=None if keep == ["all"] else () if keep == ["none"] else tuple(keep),
        video_mismatch=args.video_mismatch,
        bad_rows=args.bad_rows,
        info=_info(args.info),
        allow_no_camera=bool(getattr(args, "allow_no_camera", False)),
    )


def _info(given: str | None) -> dict[str, object]:
    if not given:
        return {}
    try:
        parsed = json.loads(Path(given).read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't be read: {error}", where="--info", path=given) from error
    if not isinstance(parsed, dict):
        raise ConfigError("not a JSON object", where="--info", path=given)
    return parsed
