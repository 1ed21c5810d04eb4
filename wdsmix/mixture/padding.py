"""Padding: one width for a vector that has another one in each source; the rest is zeros, masked by the normalizer."""

from __future__ import annotations

from collections.abc import Mapping

from wdsmix.errors import ConfigError

__all__ = ["padded_width"]


def padded_width(name: str, widths: Mapping[str, int], pad_to: Mapping[str, int]) -> int:
    """Width of a vector in the batch.

    Args:
        name: The vector.
        widths: Source name -> its width there; sources without it have no entry.
        pad_to: Vector name -> wanted width.

    Returns:
        ``pad_to``'s, else that of the widest source, else 0.

    Raises:
        ConfigError: a source is wider than ``pad_to``; nothing is ever cut.
    """
    widest = max(widths.values(), default=0)
    wanted = pad_to.get(name, widest)
    if widest > wanted:
        source = next(source for source, width in widths.items() if width > wanted)
        raise ConfigError(
            f"{name} of source {source!r} is wider than pad_to, and vectors are never cut",
            where=f"sample.pad_to.{name}",
            expected=f"{widest} or more",
            found=wanted,
        )
    return wanted
