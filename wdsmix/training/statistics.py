"""What a checkpoint keeps of the mixture it was trained on: scales of every source, and the robots' ids.

Scales belong to a policy: its inputs and outputs mean nothing without them. So they travel in the checkpoint, and a
mixture that would scale a source differently is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.mixture.catalog import Catalog
from wdsmix.mixture.explain import did_you_mean

__all__ = ["check_scales", "embodiments_of", "grown", "merged_scales", "scales_of"]

_PARTS = ("centre", "factor", "live")


def scales_of(catalog: Catalog) -> dict[str, dict[str, dict[str, Any]]]:
    """The scales of a mixture, as plain containers.

    Returns:
        Source -> vector -> ``centre`` and ``factor`` (float64 [D]), ``live`` (bool [D]), ``bound`` (number): a value x
        reaches the policy as ``clip((x - centre) * factor, -bound, bound)``, 0 where not live. D is its own width,
        before padding.
    """
    found: dict[str, dict[str, dict[str, Any]]] = {source.name: {} for source in catalog.sources}
    for vector, scales in catalog.scales.items():
        for source, scale in zip(catalog.sources, scales, strict=True):
            if scale is not None:
                parts = {part: np.array(getattr(scale, part)) for part in _PARTS}
                way = source.waypoints
                if vector == "action" and way is not None and way.divided:  # done where waypoints are made
                    parts["factor"][:2] /= way.spacing * way.every
                found[source.name][vector] = {
                    **{part: torch.from_numpy(values) for part, values in parts.items()},
                    "bound": float(scale.bound),
                }
    return found


def check_scales(saved: Mapping[str, Any], catalog: Catalog) -> None:
    """Checks that a mixture scales the sources of a checkpoint as it did in training; new sources are fine.

    Raises:
        ConflictError: names the source, the vector and the dimension.
    """
    for name, vectors in scales_of(catalog).items():
        for vector, scale in vectors.items():
            before = saved.get(name, {}).get(vector)
            if before is None:
                continue
            for part in (*_PARTS, "bound"):
                old, new = torch.as_tensor(before[part]), torch.as_tensor(scale[part])
                if old.shape == new.shape and torch.equal(old, new):
                    continue
                where = f"source {name!r}: {vector}"
                if old.shape == new.shape and old.ndim:
                    at = int((old != new).nonzero()[0])
                    where, old, new = f"{where}, dimension {at}", old[at], new[at]
                raise ConflictError(
                    f"the mixture scales the source unlike the checkpoint ({part} differs)",
                    path=catalog.config.path,
                    where=where,
                    expected=old.tolist() if old.ndim == 0 else f"{len(old)} dimensions",
                    found=new.tolist() if new.ndim == 0 else f"{len(new)} dimensions",
                    hint="use the sets and the normalize keys of the training, or give the source another name",
                )


def merged_scales(saved: Mapping[str, Any], catalog: Catalog) -> dict[str, Any]:
    """The checkpoint's scales and those of the mixture's new sources.

    Raises:
        ConflictError: see `check_scales`.
    """
    check_scales(saved, catalog)
    return {**saved, **scales_of(catalog)}


def embodiments_of(catalog: Catalog) -> dict[str, int]:
    """Robot -> id: the configuration's map, or, where it has none, the single robot of all sources."""
    if catalog.config.embodiments:
        return dict(catalog.config.embodiments)
    return {source.embodiment: source.embodiment_id for source in catalog.sources}


def grown(saved: Mapping[str, int], new: Mapping[str, int], *, rows: int, may_grow: bool) -> dict[str, int]:
    """The map of a checkpoint after a mixture's map came to it: it only grows, and no id ever moves.

    Args:
        saved: Robot -> id in the checkpoint.
        new: Robot -> id in the mixture.
        rows: Rows of the policy's embodiment table.
        may_grow: Whether new robots are let in, as in training; evaluation knows no new ones.

    Raises:
        ConfigError: an id moved, two robots share one, a robot is unknown, or the table is too small.
    """
    out = dict(saved)
    owners = {number: name for name, number in saved.items()}
    for name, number in new.items():
        where = f"embodiments: {name}"
        if name in saved:
            if saved[name] != number:
                raise ConfigError("an id never moves", where=where, expected=saved[name], found=number)
            continue
        if number in owners:
            raise ConfigError(
                f"the id {number} is taken by {owners[number]!r}",
                where=where,
                expected="an id of its own",
                found=number,
                hint=f"the checkpoint's next free id is {max(owners, default=-1) + 1}",
            )
        if not may_grow:
            raise ConfigError("the policy was not trained on this robot", where=where, hint=did_you_mean(name, saved))
        if number >= rows:
            raise ConfigError(
                "the policy's embodiment table is too small",
                where=where,
                expected=f"an id below {rows}",
                found=number,
                hint=f"grow it with wdsmix expand CKPT OUT --num-embodiments {_rounded(number + 1)}",
            )
        out[name], owners[number] = number, name
    return out


def _rounded(count: int) -> int:
    return -(-count // 16) * 16
