"""What dialects of one file an episode have in common: rules of detection, an assumed rate, absolute targets."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import numpy as np
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import CameraPart, FileFacts, Part, refused_camera
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.slots import match_camera

from wdsmix.episode import DimensionKind

__all__ = [
    "JOINTS",
    "absolute",
    "any_shows",
    "assumed_rate",
    "clock_warning",
    "no_state",
    "one_episode",
    "plain_cameras",
    "root_has",
    "rows_of",
    "shape_of",
    "wanted_cameras",
]

JOINTS = {"state": 6.5, "action": 6.5}
"""Limits of joint angles in radians: a turn, and a little."""
_LOOKED_AT = 16


def root_has(*rules: str) -> Callable[[Tree, str], bool]:
    """A rule over the root: every one of the paths is there; ``*`` stands for any one child."""

    def matches(tree: Tree, episode: str) -> bool:
        return all(_there(tree, "/", rule.split("/")) for rule in rules)

    return matches


def _there(tree: Tree, place: str, parts: list[str]) -> bool:
    if not parts:
        return tree.get(place) is not None
    if parts[0] == "*":
        return any(_there(tree, join(place, name), parts[1:]) for name in tree.children(place)[:16])
    return tree.get(join(place, parts[0])) is not None and _there(tree, join(place, parts[0]), parts[1:])


def any_shows(names: Sequence[str], rule: Callable[[str], bool]) -> bool:
    """Whether a rule holds for one of the first episodes of a file; one that can't be looked at is passed over.

    Raises:
        Hdf5Error: it holds for none, and one of them can't be looked at.
    """
    wrong: Hdf5Error | None = None
    for name in names[:_LOOKED_AT]:
        try:
            if rule(name):
                return True
        except Hdf5Error as fault:
            wrong = wrong or fault
    if wrong is not None:
        raise wrong
    return False


def one_episode(tree: Tree, options: Hdf5Options) -> list[str]:
    """The groups of a file that is one episode."""
    return ["/"]


def assumed_rate(
    options: Hdf5Options,
    fps: float,
    why: str,
    *,
    kinds: Sequence[DimensionKind] = (),
    splits: Mapping[str, str] | None = None,
    task: str = "",
    embodiment: str = "",
    details: Mapping[str, object] | None = None,
    warnings: Sequence[str] = (),
) -> FileFacts:
    """The facts of a file that holds no rate.

    Args:
        options: Of the family.
        fps: What is assumed where ``--fps`` says nothing.
        why: Who records so, in words.
        kinds: Of the action.
        splits: See `FileFacts`.
        task: See `FileFacts`.
        embodiment: See `FileFacts`.
        details: See `FileFacts`.
        warnings: Further ones.
    """
    given = bool(options.fps)
    assumed = f"{why} hold no rate: {fps:.4g} frames/s assumed; give --fps to set it"
    return FileFacts(
        fps=options.fps or fps,
        fps_from="--fps" if given else "default",
        kinds={"action": tuple(kinds)} if kinds else {},
        splits=splits or {},
        task=task,
        embodiment=embodiment,
        details=details or {},
        warnings=tuple(warnings) if given else (assumed, *warnings),
    )


def shape_of(tree: Tree, path: str) -> tuple[int, ...]:
    """The shape of a dataset; empty where it is absent, a scalar, or can't be looked at."""
    try:
        dataset = tree.dataset(path)
    except Hdf5Error:
        return ()
    return dataset.shape or () if dataset is not None else ()


def rows_of(tree: Tree, path: str) -> int:
    """Rows of a dataset; 0 where it is absent, empty or no array."""
    dataset = tree.dataset(path)
    return dataset.shape[0] if dataset is not None and dataset.shape else 0


def absolute(tree: Tree, parts: Sequence[Part]) -> tuple[DimensionKind, ...]:
    """One ``absolute`` for each dimension of the parts."""
    count = 0
    for part in parts:
        dataset = tree.dataset(part.path)
        count += math.prod(dataset.shape[1:]) if dataset is not None and dataset.shape else 0
    kinds: list[DimensionKind] = ["absolute"] * (count if count <= tree.budget.width else 0)
    return tuple(kinds)


def clock_warning(tree: Tree, path: str, unit: float, fps: float) -> list[str]:
    """A warning where recorded times tell another rate than the one that is taken.

    Args:
        tree: The open file.
        path: The dataset (T,) of times.
        unit: Seconds of one.
        fps: The rate that is taken.
    """
    try:
        if rows_of(tree, path) < 3:
            return []
        times = tree.read_vector(path).reshape(-1).astype(np.float64) * unit
    except Hdf5Error:
        return []
    steps = np.diff(times)
    steps = steps[np.isfinite(steps) & (steps > 0)]
    if not len(steps):
        return [f"the times in {path} do not advance; not used"]
    rate = float(1 / np.median(steps))
    if abs(rate - fps) <= 0.1 * fps:
        return []
    return [f"the times in {path} tell {rate:.3g} frames/s, {fps:.4g} are taken; give --fps to set it"]


def plain_cameras(
    options: Hdf5Options,
    paths: Mapping[str, str],
    order: Literal["rgb", "bgr"] = "rgb",
    flip: Literal["none", "vertical", "rot180"] = "none",
) -> tuple[dict[str, CameraPart], list[str]]:
    """Cameras that are read alike, and warnings of those whose names no set can keep.

    Args:
        options: Of the family; they overrule the rest.
        paths: Key -> dataset or group.
        order: Of colours.
        flip: What undoes the orientation.
    """
    order, flip = options.jpeg_order or order, options.image_flip or flip
    found: dict[str, CameraPart] = {}
    warnings: list[str] = []
    for key, path in paths.items():
        if refused := refused_camera(key):
            warnings += refused
        else:
            found[key] = CameraPart(path=path, order=order, flip=flip)
    return found, warnings


def no_state(tree: Tree, where: str, expected: str) -> Hdf5Error:
    """The fault of an episode that has none of the keys of the state; lists what is there."""
    return Hdf5Error(
        "none of the default state keys",
        path=str(tree.path),
        where=where,
        expected=expected,
        found=", ".join(tree.children(where)[:30]) or "nothing",
        hint="name the keys of the state with --state KEY,KEY",
    )


def wanted_cameras(options: Hdf5Options, found: Mapping[str, CameraPart]) -> dict[str, CameraPart]:
    """The cameras that the user chose, so that a fault of another costs nothing; all where none is there."""
    chosen = {key for name in options.cameras.values() if (key := match_camera(name, _paths(found))) is not None}
    return {key: camera for key, camera in found.items() if key in chosen or not chosen}


def _paths(cameras: Mapping[str, CameraPart]) -> dict[str, str]:
    return {key: camera.path for key, camera in cameras.items()}
