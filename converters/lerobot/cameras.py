"""Cameras: which there are, where their pictures lie, and which slot each gets."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa
from wdsmix.converters.lerobot.columns import is_picture
from wdsmix.converters.lerobot.info import Info
from wdsmix.converters.lerobot.modality import Modality
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.slots import assign_slots, named_camera, natural_key

from wdsmix.episode import Camera
from wdsmix.errors import ConfigError

__all__ = ["CameraRole", "Cameras", "DepthCode", "choose_cameras", "default_slots"]

_PRIMARY = re.compile(r"top|front|base|main|scene")
_PRIMARY_TOO = re.compile(r"agentview|high|head|primary|cent(er|re)|ego")
_WRIST = re.compile(r"wrist|gripper|hand")


@dataclass(frozen=True, kw_only=True, slots=True)
class DepthCode:
    """How a depth video's 12-bit codes become distances (m)."""

    near: float = 0.01
    far: float = 10.0
    shift: float = 3.5
    log: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class CameraRole:
    """One camera."""

    key: str
    store: Literal["video", "cell"]
    """In a video, or in a column of the data files."""
    camera: Camera
    depth: DepthCode | None = None
    """Of a depth video."""
    metres: bool = False
    """Whether depth cells of floating point hold metres (else millimetres)."""


@dataclass(kw_only=True, slots=True)
class Cameras:
    """The cameras of a dataset."""

    slots: dict[str, CameraRole] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)
    """Declared and nowhere there."""
    skipped: list[str] = field(default_factory=list)
    """Depth cameras that were not asked for."""


def _last(key: str) -> str:
    return re.sub(r"^observation[./](images?[./])?", "", key.lower())


def _wrist(key: str) -> bool:
    return bool(_WRIST.search(_last(key))) or _last(key) == "image_1"


def _primary(key: str) -> int:
    last = _last(key)
    if _PRIMARY.search(last) or last in ("image_0", "image2"):
        return 0
    return 1 if _PRIMARY_TOO.search(last) else 2


def default_slots(keys: Sequence[str], *, first: int = 0) -> dict[str, str]:
    """Slot -> key by the default rule."""
    return assign_slots(keys, primary=_primary, wrist=_wrist, first=first)


def choose_cameras(
    info: Info,
    options: LeRobotOptions,
    modality: Modality,
    schema: Mapping[str, pa.DataType],
    filmed: Mapping[str, int],
) -> Cameras:
    """Finds the cameras and gives them their slots.

    Args:
        info: The declared features.
        options: The user's choice.
        modality: Other names of cameras.
        schema: Column -> type of the data files.
        filmed: Video key -> how many episodes have its file.

    Raises:
        ConfigError: a chosen camera is not there.
    """
    found: dict[str, CameraRole] = {}
    result = Cameras()
    declared = [feature for feature in info.features.values() if feature.camera]
    for feature in declared:
        cell = feature.key in schema and is_picture(schema[feature.key])
        if not cell and not filmed.get(feature.key):
            result.absent.append(feature.key)
            continue
        found[feature.key] = _role(feature.key, info, "cell" if cell else "video")
    for key, kind in schema.items():
        if key not in info.features and is_picture(kind):
            found[key] = _role(key, info, "cell")
    depth = [key for key in found if found[key].camera.kind == "depth" or info_depth(info, key)]
    if options.cameras:
        result.slots = _chosen(options.cameras, found, modality)
        return result
    if not options.depth:
        result.skipped = sorted(depth, key=natural_key)
    colour = [key for key in found if key not in depth]
    slots = default_slots(colour)
    if options.depth:
        slots |= {f"cam{len(slots) + k}": key for k, key in enumerate(sorted(depth, key=natural_key))}
    result.slots = {slot: found[key] for slot, key in slots.items()}
    return result


def info_depth(info: Info, key: str) -> bool:
    """Whether a feature is declared as depth."""
    return key in info.features and info.features[key].depth


def _chosen(wanted: Mapping[str, str], found: Mapping[str, CameraRole], modality: Modality) -> dict[str, CameraRole]:
    slots = {}
    for slot, name in wanted.items():
        key = named_camera(name, list(found)) or modality.cameras.get(name)
        if key is None or key not in found:
            raise ConfigError(
                "no such camera",
                where="--camera",
                expected=f"one of: {', '.join(sorted(found, key=natural_key)) or 'none is there'}",
                found=name,
            )
        slots[slot] = found[key]
    return slots


def _role(key: str, info: Info, store: Literal["video", "cell"]) -> CameraRole:
    feature = info.features.get(key)
    details = feature.details if feature is not None else {}
    depth = feature is not None and feature.depth
    code = None
    if depth and store == "video":
        coded = "video.depth_min" in details or "gray1" in str(details.get("video.pix_fmt") or "")
        if not coded:  # 8-bit, colour-mapped or grey: to be looked at, not metric
            return CameraRole(key=key, store=store, camera=Camera(key=key))
        code = DepthCode(
            near=_setting(details, "video.depth_min", 0.01),
            far=_setting(details, "video.depth_max", 10.0),
            shift=_setting(details, "video.shift", 3.5),
            log=bool(details.get("video.use_log", True)),
        )
    return CameraRole(
        key=key,
        store=store,
        camera=Camera(key=key, kind="depth" if depth else "rgb"),
        depth=code,
        metres=str(details.get("depth_unit") or "m") != "mm",
    )


def _setting(details: Mapping[str, object], name: str, default: float) -> float:
    value = details.get(name)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else default
