"""Which camera gets which slot: ``cam0`` the primary one, ``cam1`` the wrist, the others after them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

__all__ = ["assign_slots", "named_camera", "natural_key", "slot_fault"]

_SLOT = re.compile(r"[a-z][a-z0-9_]{0,63}")
_TAKEN = frozenset({"state", "action", "reward", "done", "json"})


def slot_fault(name: str) -> str | None:
    """What is wrong with the name that a user gives a slot: it becomes a part of the members' names."""
    if not _SLOT.fullmatch(name):
        return "not a name of a slot: up to 64 of a-z, 0-9 and _, a letter first, such as cam0"
    return f"not a name of a slot: {name} is that of a vector or of the JSON" if name in _TAKEN else None


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which ``image_2`` comes before ``image_10``."""
    parts = []
    for run in re.findall(r"[0-9]+|[^0-9]+", name):
        plain = run.lstrip("0")
        parts.append((0, len(plain), plain) if run[0].isdigit() else (1, 0, run))
    return (*parts, (1, 0, name))


def assign_slots(
    keys: Sequence[str], *, primary: Callable[[str], int], wrist: Callable[[str], bool], first: int = 0
) -> dict[str, str]:
    """The default slots of a source's cameras.

    Args:
        keys: The cameras.
        primary: Rank of a camera as the primary one; the lowest wins.
        wrist: Whether a camera is one of a wrist; such a one is primary only where there is no other.
        first: Number of the first slot.

    Returns:
        Slot -> key: the primary camera, then the first wrist camera, then the rest in natural order, without gaps.
    """
    rest = sorted(set(keys), key=natural_key)
    if not rest:
        return {}
    chosen = min(rest, key=lambda key: (wrist(key), primary(key), rest.index(key)))
    rest.remove(chosen)
    hand = next((key for key in rest if wrist(key)), None)
    if hand is not None:
        rest.remove(hand)
        rest.insert(0, hand)
    return {f"cam{first + index}": key for index, key in enumerate([chosen, *rest])}


def named_camera(wanted: str, keys: Sequence[str]) -> str | None:
    """The camera that a user names by its key or by the end of it (after a dot or slash), if that fits one alone."""
    if wanted in keys:
        return wanted
    fitting = [key for key in keys if key.endswith((f".{wanted}", f"/{wanted}"))]
    return fitting[0] if len(fitting) == 1 else None
