"""Which camera gets which slot: ``cam0`` the primary one, ``cam1`` the wrist, the others after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from wdsmix.converters.slots import assign_slots

__all__ = ["default_slots", "match_camera"]

_WRIST = ("wrist", "hand", "gripper")
_PRIMARY = ("agentview", "cam_high", "front", "head", "top", "high", "base", "main", "primary", "center", "camera_01")


def _wrist(key: str) -> bool:
    return any(word in key.lower() for word in _WRIST)


def _rank(key: str) -> int:
    low = key.lower()
    return next((index for index, word in enumerate(_PRIMARY) if word in low), len(_PRIMARY))


def default_slots(keys: Sequence[str]) -> dict[str, str]:
    """The default slots of a source's cameras: the primary one is the first by `_PRIMARY`, else in natural order."""
    return assign_slots(keys, primary=_rank, wrist=_wrist)


def match_camera(wanted: str, paths: Mapping[str, str]) -> str | None:
    """The key of the camera that a user names by its key, by the end of its path, or without ``_image``.

    Args:
        wanted: What the user wrote.
        paths: Key -> path in the file.
    """
    if wanted in paths:
        return wanted
    bare = wanted.strip("/")
    for key, path in paths.items():
        if path.endswith("/" + bare) or key in (f"{bare}_image", f"{bare}_rgb"):
            return key
    return None
