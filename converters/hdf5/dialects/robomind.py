"""RoboMIND, real and simulated: one file is one episode.

::

    h5_<embodiment>/<task>/success_episodes/{train, val}/<time>/data/trajectory.hdf5
    puppet/{joint_position[_left|_right], ...} (T, D)   the state       master/...  the same: the action
    franka/...                                          simulation: states alone, at another rate than the pictures
    observations/rgb_images/<camera> (T,)               JPEG, or raw pixels in the same storage
    language_raw (1,), optional

Where nothing is commanded (simulation, some humanoids), the action is the state of the next row. Pictures of the Franka
and UR robots are stored with red and blue swapped, those of the others are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.images import survey
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    Part,
    find_parts,
    read_text,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import (
    JOINTS,
    absolute,
    assumed_rate,
    one_episode,
    plain_cameras,
    root_has,
    rows_of,
)
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, number

__all__ = ["DIALECTS"]

_FPS = 30.0
_IMAGES = "/observations/rgb_images"
_KEYS = (("joint_position",), ("joint_position_left", "joint_position_right"))
_SWAPPED = ("h5_franka", "h5_ur")
_PLAIN = ("h5_agilex", "h5_tienkung", "h5_sim")
_SPLITS = {"train": "train", "val": "val", "test": "test"}


def _embodiment(tree: Tree) -> str:
    """Name of the folder ``h5_<embodiment>`` that the file lies in; empty where it does not."""
    return next((name for name in reversed(tree.path.absolute().parts[:-1]) if name.startswith("h5_")), "")


def _robot(tree: Tree) -> str:
    return next((name for name in ("puppet", "franka") if tree.group(join(name)) is not None), "puppet")


def _keys(tree: Tree, base: str) -> Sequence[str]:
    for keys in _KEYS:
        if all(rows_of(tree, join(base, key)) for key in keys):
            return keys
    return ()


def _parts(tree: Tree, options: Hdf5Options) -> tuple[list[Part], list[Part], bool]:
    """State, action, and whether the action is the state of the next row."""
    robot = _robot(tree)
    state = find_parts(tree, "/", options.state or _keys(tree, robot) or _KEYS[0], (robot, ""), what="state")
    commanded = options.action or _keys(tree, "master")
    if commanded:
        return state, find_parts(tree, "/", commanded, ("master", ""), what="action"), False
    return state, find_parts(tree, "/", _keys(tree, robot) or _KEYS[0], (robot,), what="action"), True


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    name = _embodiment(tree)
    folders = tree.path.absolute().parts[:-1]
    parts = [part for above, part in pairwise(folders) if above.endswith("_episodes") and part in _SPLITS]
    _, action, follows = _parts(tree, options)
    warnings = ["no commands (master): the action is the state of the next row"] if follows else []
    sim = bool(number(attribute(tree.file, "sim"))) or _robot(tree) == "franka"
    return assumed_rate(
        options,
        _FPS,
        "RoboMIND files (other readers take 10)",
        kinds=() if options.action else absolute(tree, action),
        splits={"": _SPLITS[parts[-1]]} if parts else {},
        embodiment=name.removeprefix("h5_"),
        details={"sim": str(sim).lower(), "action_from": "state of the next row" if follows else "master"},
        warnings=warnings,
    )


def _cameras(tree: Tree, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    folder = _embodiment(tree)
    order: Literal["rgb", "bgr"] = "bgr" if folder.startswith(_SWAPPED) else "rgb"
    found, warnings = plain_cameras(options, {name: join(_IMAGES, name) for name in tree.children(_IMAGES)}, order)
    if found and not options.jpeg_order and not folder.startswith((*_SWAPPED, *_PLAIN)):
        warnings.append(
            "colour order of RoboMIND differs by robot, and no folder h5_<embodiment> tells which this is: taken as "
            "RGB; if colours look wrong: --jpeg-order bgr"
        )
    return found, warnings


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    state, action, follows = _parts(tree, options)
    cameras, warnings = _cameras(tree, options)
    task, doubtful = read_text(tree, "/", "language_raw")
    if doubtful:
        warnings.append("language_raw is of unknown encoding")
    frames = None
    if follows:
        frames = max(0, rows_of(tree, action[0].path) - 1)
        shown = _pictures(tree, cameras)
        if options.on_length_mismatch == "index-resample" and len(shown) == 1 and shown[0] < frames:
            # pictures are the fewer: each gets the state of its time, and that of the next picture as its action
            frames = shown[0] - 1
            state = _stretched(tree, state, shown[0], slice(0, frames))
            action = _stretched(tree, action, shown[0], slice(1, None))
        else:
            action = [replace(part, start=1) for part in action]
    return EpisodeLayout(
        state=state,
        action=action,
        frames=frames,
        cameras=cameras,
        task=task or options.instruction,
        warnings=warnings,
    )


def _pictures(tree: Tree, cameras: dict[str, CameraPart]) -> list[int]:
    """The numbers of pictures that the cameras have, without repeats."""
    counts = set()
    for camera in cameras.values():
        try:
            counts.add(survey(tree, camera.path).rows)
        except Hdf5Error:
            continue
    return sorted(counts)


def _stretched(tree: Tree, parts: Sequence[Part], pictures: int, taken: slice) -> list[Part]:
    """The parts, with the row next in time to each picture, all streams spanning the same time."""
    found = []
    for part in parts:
        last = rows_of(tree, part.path) - 1
        rows = np.rint(np.arange(pictures) * (last / max(1, pictures - 1))).astype(np.int64)
        found.append(replace(part, rows=rows[taken].tolist()))
    return found


DIALECTS = [
    Dialect(
        name="robomind",
        rank=80,
        summary="RoboMIND: puppet/, master/ or franka/, observations/rgb_images/<camera>",
        matches=root_has("observations/rgb_images"),
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        limits=JOINTS,
        pairing="same row (of the next row where nothing is commanded)",
        state="joint_position or joint_position_left, _right (of puppet or franka)",
        action="the same of master, else of the next row",
        cameras="observations/rgb_images/*",
        rate="30, with a warning",
    )
]
