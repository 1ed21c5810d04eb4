"""Which episodes are held out: units chosen by a hash, so that nothing but seed and name decides for a unit."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from wdsmix.converters.base import ConvertOptions

from wdsmix.episode import EpisodeRef
from wdsmix.errors import ConfigError

__all__ = ["assign_splits"]


def assign_splits(refs: Mapping[int, EpisodeRef], options: ConvertOptions) -> tuple[dict[int, str], dict[int, str]]:
    """Puts each episode into a split.

    A *unit* is what is never divided between splits: a file or an episode. Of U units those with the
    round(fraction * U) smallest sha256 of seed and name go to ``val``.

    Returns:
        Episode number -> split in the order of ``refs``, and episode number -> why it is in none.

    Raises:
        ConfigError: too few units for the asked fraction, or no published split.
    """
    if options.split_by == "source":
        return _published(refs, options)
    if not options.val_fraction:
        return dict.fromkeys(refs, "train"), {}
    unit_of = {
        number: ref.file if options.split_by == "file" else f"{ref.file}\0{ref.id}" for number, ref in refs.items()
    }
    units = list(dict.fromkeys(unit_of.values()))
    wanted = round(options.val_fraction * len(units))
    if not 0 < wanted < len(units):
        least = next((f"{k / 100:g}" for k in range(1, 100) if 0 < round(k / 100 * len(units)) < len(units)), None)
        larger = f"--val-fraction {least} or more" if least and not wanted else "another --val-fraction"
        finer = " or --split-by episode" if options.split_by == "file" and len(refs) > len(units) else ""
        raise ConfigError(
            f"{len(units)} {options.split_by}{'s' if len(units) != 1 else ''} can't be split: "
            f"{options.val_fraction:g} of them is {wanted} for validation",
            where="--split-by/--val-fraction",
            expected="at least one unit on each side",
            hint=f"use {larger}{finer}"
            if len(units) > 1
            else "one unit can't be split; leave --val-fraction out" + finer,
        )
    ranked = sorted(units, key=lambda unit: hashlib.sha256(f"{options.seed}\0{unit}".encode()).digest())
    held_out = set(ranked[:wanted])
    return {number: "val" if unit in held_out else "train" for number, unit in unit_of.items()}, {}


def _published(refs: Mapping[int, EpisodeRef], options: ConvertOptions) -> tuple[dict[int, str], dict[int, str]]:
    if options.val_fraction:
        raise ConfigError("the source's own splits leave no fraction to choose", where="--split-by/--val-fraction")
    names = {ref.split for ref in refs.values() if ref.split is not None}
    if not names:
        raise ConfigError(
            "the source publishes no split", where="--split-by", hint="use --split-by episode or --split-by file"
        )
    spelled: dict[str, str] = {}
    for name in sorted(names):
        plain = re.sub(r"[^A-Za-z0-9]+", "_", name).strip("_") or "split"
        if plain in spelled.values():
            raise ConfigError("two published splits get the same name", where="--split-by", found=plain)
        spelled[name] = plain
    splits = {number: spelled[ref.split] for number, ref in refs.items() if ref.split is not None}
    outside = {number: "the source puts it into no split" for number, ref in refs.items() if ref.split is None}
    return splits, outside
