"""The options of the HDF5 family, checked."""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, cast

from wdsmix.converters.hdf5.language import load_instructions
from wdsmix.converters.hdf5.mapping import FASTEST, SLOWEST, Mapped, load_mapping
from wdsmix.converters.hdf5.strings import clean_text

from wdsmix.errors import ConfigError

__all__ = ["Hdf5Options", "options_from"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Hdf5Options:
    """What shapes the reading of HDF5 files. Pickles."""

    dialect: str = ""
    """Name of a dialect; empty: each file's own, by its structure."""
    mapping: Mapped | None = None
    """A mapping file, for structures that no dialect knows."""
    cameras: Mapping[str, str] = field(default_factory=dict)
    """Slot -> camera; empty: all, in the default order of slots."""
    state: tuple[str, ...] = ()
    """Keys of the state; empty: the dialect's."""
    action: tuple[str, ...] = ()
    fps: float = 0.0
    """Rate of the recordings; 0: the file's, else the dialect's."""
    gripper: Literal["auto", "append", "ignore"] = "auto"
    min_score: float | None = None
    tasks: tuple[str, ...] = ()
    """Patterns of the wanted tasks; empty: all."""
    instruction: str = ""
    """Task of episodes that carry none; ``{folder}`` and ``{file}`` stand for names."""
    instructions: Mapping[str, str] = field(default_factory=dict)
    """Name of an episode, file or folder, or a pattern of paths -> its task, whatever the file says."""
    instruction_key: str = ""
    """Which of the texts of a file of instructions beside the episode; empty: the dialect's choice."""
    mask: str = ""
    """Only the demonstrations of this filter key."""
    jpeg_order: Literal["", "rgb", "bgr"] = ""
    """Colour order that a plain decode gives; empty: the dialect's."""
    image_flip: Literal["", "none", "vertical", "rot180"] = ""
    obs_shift: Literal[-1, 0, 1] = 0
    """The action of a row goes with the observation so many rows later."""
    failed: Literal["", "keep", "drop"] = ""
    """What becomes of attempts that the source calls failed; empty: the dialect's rule."""
    raw_size: tuple[int, int] | None = None
    """(width, height) of raw pictures that are stored flat."""
    on_length_mismatch: Literal["drop", "error", "truncate", "index-resample"] = "drop"
    length_tolerance: int = 2
    """Rows that ``truncate`` may cut."""
    allow_no_camera: bool = False

    def __post_init__(self) -> None:
        if self.fps and not SLOWEST <= self.fps <= FASTEST:
            expected = f"{SLOWEST:g} to {FASTEST:g} frames per second"
            raise ConfigError("bad value", where="--fps", expected=expected, found=self.fps)
        if self.length_tolerance < 0:
            raise ConfigError(
                "bad value", where="--length-tolerance", expected="0 or more", found=self.length_tolerance
            )
        if self.mapping is not None and self.dialect not in ("", "mapping"):
            raise ConfigError("--mapping and --dialect exclude each other", where="--dialect", found=self.dialect)
        if self.dialect == "mapping" and self.mapping is None:
            raise ConfigError("--dialect mapping needs --mapping FILE.yaml", where="--dialect")

    def wants_task(self, *texts: str | None) -> bool:
        """Whether one of an episode's task texts matches one of the wanted patterns."""
        if not self.tasks:
            return True
        for pattern in self.tasks:
            low = pattern.lower()
            glob = any(char in low for char in "*?[")
            for value in texts:
                if value and (fnmatch.fnmatchcase(value.lower(), low) if glob else low in value.lower()):
                    return True
        return False

    def arguments(self) -> dict[str, object]:
        """The options as JSON types."""
        plain = {name: value for name, value in asdict(self).items() if name not in ("mapping", "allow_no_camera")}
        plain["mapping"] = self.mapping.model_dump(mode="json") if self.mapping else None
        lines = json.dumps(sorted(self.instructions.items()))
        plain["instructions"] = hashlib.sha256(lines.encode()).hexdigest() if self.instructions else ""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _size(text: str) -> tuple[int, int] | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,5})x(\d{1,5})", text)
    if match is None or not int(match[1]) or not int(match[2]):
        raise ConfigError("bad value", where="--raw-size", expected="WIDTHxHEIGHT, such as 640x480", found=text)
    return int(match[1]), int(match[2])


def options_from(args: argparse.Namespace) -> Hdf5Options:
    """The options from parsed arguments.

    Raises:
        ConfigError: a value is bad, two exclude each other, or the mapping file is not valid.
    """
    given = cast("str | None", args.mapping)
    return Hdf5Options(
        dialect=args.dialect or "",
        mapping=load_mapping(Path(given)) if given else None,
        cameras=dict(getattr(args, "camera", None) or {}),
        state=tuple(getattr(args, "state", None) or ()),
        action=tuple(getattr(args, "action", None) or ()),
        fps=args.fps or 0.0,
        gripper=args.gripper,
        min_score=args.min_score,
        tasks=tuple(args.task or ()),
        instruction=clean_text(args.instruction or ""),
        instructions=load_instructions(Path(args.instructions)) if args.instructions else {},
        instruction_key=args.instruction_key or "",
        mask=args.mask or "",
        jpeg_order=args.jpeg_order or "",
        image_flip=args.image_flip or "",
        obs_shift=args.obs_shift,
        failed=args.failed or "",
        raw_size=_size(args.raw_size or ""),
        on_length_mismatch=args.on_length_mismatch,
        length_tolerance=args.length_tolerance,
        allow_no_camera=bool(getattr(args, "allow_no_camera", False)),
    )
