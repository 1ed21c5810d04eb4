"""Norm groups: whose statistics may be taken together, and which statistics a vector has in the form of the batch."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from wdsmix.errors import ConfigError
from wdsmix.manifest import FieldStats
from wdsmix.mixture.waypoints import waypoint_stats
from wdsmix.shards.reader import ShardSet

if TYPE_CHECKING:
    from wdsmix.mixture.catalog import OpenSource

__all__ = ["check_peers", "stats_of"]

_NUMBERED = re.compile(r"[a-z_.]*\d+")


def stats_of(name: str, source: OpenSource) -> FieldStats | None:
    """Statistics of a vector as the batch has it; those of waypoints are computed here, over the set's train split."""
    if name != "action" or source.waypoints is None:
        return source.set.stats.fields.get(name)
    whole = ShardSet(source.set.path)  # all shards, though a pattern may have chosen some
    try:
        return waypoint_stats(whole, source.waypoints)
    finally:
        whole.close()


def check_peers(name: str, source: OpenSource, peers: Sequence[OpenSource]) -> None:
    """Refuses to pool statistics of unlike things: an equal width does not tell what the dimensions are.

    Raises:
        ConfigError: forms or names of the group's vectors differ.
    """
    where = f"source {source.name!r}: norm_group"
    forms = {other.name: other.waypoints if name == "action" else None for other in peers}
    if len({None if way is None else replace(way, spacing=0.0) for way in forms.values()}) > 1:
        raise ConfigError(
            "actions of unlike form share a norm_group",
            where=where,
            expected="action: waypoints of one kind for all, or for none",
            found=", ".join(f"{other}: {'as stored' if way is None else 'waypoints'}" for other, way in forms.items()),
        )
    if any(way is not None for way in forms.values()):
        return
    named = [(other.name, other.set.manifest.vectors[name].names) for other in peers]
    named = [(other, names) for other, names in named if not all(_NUMBERED.fullmatch(text) for text in names)]
    for other, names in named[1:]:
        if names != named[0][1]:
            place = next(k for k, pair in enumerate(zip(names, named[0][1], strict=True)) if pair[0] != pair[1])
            raise ConfigError(
                f"{name} has other names within norm_group {source.config.norm_group!r}: one width, unlike dimensions",
                where=where,
                expected=f"{named[0][1][place]!r} as dimension {place}, as in {named[0][0]}",
                found=f"{names[place]!r} in {other}",
                hint="give them groups of their own",
            )
