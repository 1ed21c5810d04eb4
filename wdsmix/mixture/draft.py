"""Draft: a first mixture.yaml for some sets, with comments that say what to think about."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from wdsmix.errors import ConfigError
from wdsmix.manifest import Manifest
from wdsmix.mixture.config import CORE_VECTORS
from wdsmix.shards.reader import ShardSet
from wdsmix.store.opening import is_url
from wdsmix.texts import counted

__all__ = ["draft_mixture"]

_PAD_MULTIPLE = 16


def draft_mixture(sets: Sequence[str | Path], *, folder: Path, weights: Literal["frames", "equal"] = "frames") -> str:
    """Text of a mixture.yaml.

    Args:
        sets: Folders or URLs of shard sets.
        folder: Where the file is to lie; the paths in it are relative to it.
        weights: ``frames``: as many samples of each source as it has frames; ``equal``: the same share for each.

    Raises:
        ConfigError: a set has no split ``train``, or the sets have nothing to train on.
        DataError: a set is missing or damaged.
    """
    opened = [ShardSet(path) for path in sets]
    for shard_set in opened:
        if "train" not in shard_set.manifest.splits:
            raise ConfigError(
                "the set has no split 'train'",
                path=shard_set.path,
                found=", ".join(shard_set.manifest.splits) or "none",
            )
    manifests = [shard_set.manifest for shard_set in opened]
    names = _unique(
        [manifest.name or shard_set.path.name for manifest, shard_set in zip(manifests, opened, strict=True)]
    )
    frames = [manifest.splits["train"].frames for manifest in manifests]
    robots = list(dict.fromkeys(manifest.embodiment for manifest in manifests))
    lines = ["seed: 0"]
    if robots != [""]:
        lines += [
            "# Each robot's embodiment_id. Keep it for the life of a policy; add new robots at the end.",
            f"embodiments: {{{', '.join(f'{_text(robot)}: {i}' for i, robot in enumerate(robots))}}}",
        ]
    lines += ["", f"# Shares of the samples, relative to each other ({_reason(weights)}).", "sources:"]
    for i in range(len(opened)):
        lines += [
            f"  - name: {_text(names[i])}",
            f"    shards: {_text(_place(sets[i], folder))}"
            f"  # {counted(frames[i], 'frame')}, {counted(manifests[i].splits['train'].episodes, 'episode')}",
            f"    weight: {frames[i] / sum(frames) if weights == 'frames' else 1 / len(frames):.6g}",
            *_waypoints(manifests[i]),
        ]
    lines += ["", "sample:", *_sample(opened)]
    lines += [
        "",
        "streams: 8           # places of a source read side by side",
        "window: 8192         # frames of a source within which the order is mixed",
        "block_bytes: 2MiB    # neighbouring bytes shuffled as one",
    ]
    return "\n".join(lines) + "\n"


def _place(shards: str | Path, folder: Path) -> str:
    """A URL stays as it is, so that latest.json is followed whenever the mixture is opened."""
    return str(shards) if is_url(shards) else os.path.relpath(Path(shards).absolute(), folder.absolute())


def _waypoints(manifest: Manifest) -> list[str]:
    """A navigation source's own lines: steps are of little use to a policy, poses ahead are."""
    told = manifest.details.get("navigation")
    if not isinstance(told, dict) or not told.get("spacing"):
        return []
    return [
        f"    action: waypoints  # poses ahead as [x, y, cos, sin], divided by {told['spacing']:.4g} m a frame",
        "    normalize: {action: spacing}",
    ]


def _sample(opened: Sequence[ShardSet]) -> list[str]:
    manifests = [shard_set.manifest for shard_set in opened]
    slots = sorted(
        {slot for manifest in manifests for slot, camera in manifest.cameras.items() if camera.kind == "rgb"},
        key=lambda slot: (len(slot), slot),
    )
    sizes = sorted(
        {
            (width, height)
            for manifest in manifests
            for slot in slots
            if slot in manifest.cameras
            for width, height in manifest.cameras[slot].sizes
        }
    )
    side = 0 if len(sizes) < 2 else min(max(size) for size in sizes)
    stored = ", ".join(f"{width}x{height}" for width, height in sizes)
    note = f"stored: {stored}; all are brought to this side" if side else f"0 = as stored{stored and f', {stored}'}"
    widths: dict[str, list[int]] = {}
    for manifest in manifests:
        for name, entry in manifest.vectors.items():
            widths.setdefault(name, []).append(entry.width)
    lines = [
        f"  cameras: [{', '.join(map(_text, slots))}]",
        f"  image_size: {side}        # {note}",
        "  history: 1           # observations at -history+1 ... 0",
        "  action_chunk: 16     # actions at 0 ... 15",
    ]
    core = [name for name in ("state", "action") if name in widths]
    padded = {name: -(-max(widths[name]) // _PAD_MULTIPLE) * _PAD_MULTIPLE for name in core}
    if padded:
        own = "; ".join(f"{name}: {', '.join(map(str, sorted(set(widths[name]))))}" for name in core)
        lines.append(f"  pad_to: {{{', '.join(f'{n}: {w}' for n, w in padded.items())}}}  # widths as stored: {own}")
    modes = [
        f"{name}: {mode}"
        for name, mode in (("state", "mean_std"), ("action", "q01_q99"))
        if name in core and all(name in s.stats.fields for s in opened if name in s.manifest.vectors)
    ]
    if modes:
        lines.append(f"  normalize: {{{', '.join(modes)}}}")
    for flag in ("reward", "done"):
        if flag in widths:
            lines.append(f"  # {flag}: true")
    further = {name: max(values) for name, values in widths.items() if name not in CORE_VECTORS}
    if further:
        listed = ", ".join(f"{name} ({width})" for name, width in sorted(further.items()))
        lines.append(f"  # vectors: [...]    # further vectors of these sets: {listed}")
    return lines


def _reason(weights: str) -> str:
    return (
        "by frames: each frame as often as any other"
        if weights == "frames"
        else "equal: each source as often as any other"
    )


def _unique(names: Sequence[str]) -> list[str]:
    out: list[str] = []
    for name in names:
        number, candidate = 1, name
        while candidate in out:
            number += 1
            candidate = f"{name}_{number}"
        out.append(candidate)
    return out


def _text(text: str) -> str:
    """A YAML scalar: bare where that is safe, else quoted (JSON strings are YAML strings)."""
    bare = text.isascii() and text[:1].isalpha() and all(c.isalnum() or c in "_-./" for c in text)
    if bare and text.lower() not in ("yes", "no", "on", "off", "true", "false", "null", "y", "n"):
        return text
    return json.dumps(text, ensure_ascii=False)
