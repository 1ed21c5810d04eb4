"""Which frames stand for an episode wherever it is looked at without reading all of it."""

from __future__ import annotations

__all__ = ["moments"]


def moments(frames: int) -> list[int]:
    """First, middle and last frame of an episode: fewer of one with less than three, none of an empty one.

    Of two frames in the middle, the later one.
    """
    return sorted({0, frames // 2, frames - 1}) if frames else []
