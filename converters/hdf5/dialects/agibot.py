"""AgiBot World: states and commands in HDF5, pictures in videos beside it; one file is one episode.

::

    proprio_stats/<task>/<episode>/proprio_stats.h5
        state/{joint, effector, head, waist, end, robot}/<quantity> (T, ...)
        action/<same>/<quantity>     T rows, or as many as action/<group>/index names, or none
    observations/<task>/<episode>/videos/<camera>_color.mp4
    task_info/task_<task>.json       task_name, and the steps of each episode

A group of states without rows is absent. Between its rows a command holds; before the first, the first does. A group
that is never commanded takes the state of the next row, but for the effector, whose commands (0 to 1) and states
(millimetres) have other units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.beside import video_names
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.language import one_text
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    Part,
    find_parts,
    refused_camera,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import (
    absolute,
    assumed_rate,
    clock_warning,
    one_episode,
    root_has,
    rows_of,
    wanted_cameras,
)
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sidecar import read_beside

__all__ = ["DIALECTS"]

_FPS = 30.0
_GROUPS = ("joint", "effector", "head", "waist")
_ROOT = "../../.."
_STEPS = 10_000
"""Steps of one episode that are looked at."""


def _place(tree: Tree) -> tuple[str, str]:
    """Task and episode, by the names of the folders."""
    folder = tree.path.absolute().parent
    return folder.parent.name, folder.name


def _keys(tree: Tree) -> list[str]:
    there = [f"{name}/position" for name in _GROUPS if rows_of(tree, join("state", name, "position"))]
    return there or ["joint/position"]


def _named(part: Part) -> Part:
    """A position is called by its group, anything else by both."""
    group, _, quantity = part.path.rpartition("/")
    prefix = group.rsplit("/", 1)[-1]
    return replace(part, name=prefix if quantity == "position" else f"{prefix}_{quantity}")


def _state(tree: Tree, options: Hdf5Options) -> list[Part]:
    parts = find_parts(tree, "/", options.state or _keys(tree), ("state", ""), what="state")
    return [_named(part) for part in parts]


def _action(tree: Tree, options: Hdf5Options, frames: int) -> tuple[list[Part], list[str]]:
    keys = options.action or _keys(tree)
    parts: list[Part] = []
    warnings: list[str] = []
    for part in find_parts(tree, "/", keys, ("action", ""), what="action"):
        rows = rows_of(tree, part.path)
        group = part.path.rpartition("/")[0]
        if rows > frames:
            raise Hdf5Error(
                "more commands than states: the recording is corrupt",
                path=str(tree.path),
                where=part.path,
                check="vectors",
                expected=f"at most {frames} rows",
                found=str(rows),
            )
        if rows == frames:
            parts.append(_named(part))
        elif rows:
            parts.append(replace(_named(part), rows=_held(tree, group, rows, frames).tolist()))
            warnings.append(f"{part.path} has fewer rows than the state: a command holds until the next")
        else:
            parts.append(_following(tree, part, group, frames))
            warnings.append(f"{part.path} has no rows: the state of the next row is taken")
    return parts, warnings


def _following(tree: Tree, part: Part, group: str, frames: int) -> Part:
    """The state of the next row, for a group that is never commanded."""
    other = part.path.replace("/action/", "/state/", 1)
    if group.endswith("/effector") or rows_of(tree, other) != frames:
        raise Hdf5Error(
            "has no rows, and the state can't stand for it",
            path=str(tree.path),
            where=part.path,
            check="vectors",
            expected=f"{frames} rows, or fewer with an index",
            hint="leave it out with --action, such as --action joint/position",
        )
    rows = np.minimum(np.arange(1, frames + 1), frames - 1)
    return replace(_named(part), path=other, rows=rows.tolist())


def _held(tree: Tree, group: str, rows: int, frames: int) -> npt.NDArray[np.int64]:
    """int64 [frames]: the row of the last command at each frame."""
    own, joint = join(group, "index"), join("action/joint/index")
    path = own if rows_of(tree, own) else joint
    given = tree.read_vector(path).reshape(-1) if rows_of(tree, path) else np.empty(0)
    index = given.astype(np.int64)
    if len(index) != rows or (len(index) and not 0 <= index.min() <= index.max() < frames):
        raise Hdf5Error(
            "an index that does not fit its commands",
            path=str(tree.path),
            where=path,
            check="vectors",
            expected=f"{rows} frames of 0 to {frames - 1}",
            found=f"{len(index)} of {index.min()} to {index.max()}" if len(index) else "none",
        )
    order = np.argsort(index, kind="stable")
    held = np.searchsorted(index[order], np.arange(frames), side="right") - 1
    return order[np.maximum(held, 0)].astype(np.int64)


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    state = _state(tree, options)
    kinds = () if options.action or options.state else absolute(tree, state)
    warnings = [] if options.fps else clock_warning(tree, "/timestamp", 1e-9, _FPS)
    return assumed_rate(options, _FPS, "AgiBot files", kinds=kinds, warnings=warnings)


def _cameras(tree: Tree, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    task, episode = _place(tree)
    folder = f"{_ROOT}/observations/{task}/{episode}/videos"
    found: dict[str, CameraPart] = {}
    warnings: list[str] = []
    for name in video_names(tree, folder):
        key = name.rsplit("/", 1)[-1][:-4].removesuffix("_color")
        if refused := refused_camera(key):
            warnings += refused
        else:
            order, flip = options.jpeg_order or "rgb", options.image_flip or "none"
            found[key] = CameraPart(path=join("videos", f"{key}_color"), order=order, flip=flip, video=name)
    if not found and not options.allow_no_camera:
        raise Hdf5Error(
            "its videos are missing",
            path=str(tree.path),
            check="images",
            expected=f"MP4 files in {folder}",
            hint="extract observations beside proprio_stats (or --allow-no-camera, for states and actions alone)",
        )
    return wanted_cameras(options, found), warnings


def _entry(tree: Tree) -> tuple[Mapping[str, object], list[str]]:
    """What the task's JSON file says of the episode, and warnings."""
    task, episode = _place(tree)
    found, wrong = read_beside(tree, f"{_ROOT}/task_info/task_{task}.json")
    if not isinstance(found, list):
        return {}, [wrong] if wrong else []
    for entry in found:
        if isinstance(entry, dict) and str(entry.get("episode_id")) == episode:
            return entry, []
    return {}, [f"task_info/task_{task}.json does not name an episode that is there"]


def _steps(entry: Mapping[str, object], frames: int) -> dict[str, list[object]]:
    """The step that each frame is in, where the file tells."""
    label = entry.get("label_info")
    given = label.get("action_config") if isinstance(label, dict) else None
    texts: list[object] = [""] * frames
    for step in given[:_STEPS] if isinstance(given, list) else ():
        if not isinstance(step, dict):
            continue
        first, last, words = step.get("start_frame"), step.get("end_frame"), one_text(step.get("action_text"))
        if isinstance(first, int) and isinstance(last, int) and words:
            for frame in range(max(0, first), min(frames, last)):
                texts[frame] = words
    return {"substep": texts} if any(texts) else {}


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    state = _state(tree, options)
    frames = rows_of(tree, state[0].path)
    action, warnings = _action(tree, options, frames)
    cameras, refused = _cameras(tree, options)
    entry, wrong = _entry(tree)
    return EpisodeLayout(
        state=state,
        action=action,
        frames=frames,
        slack=0,
        cameras=cameras,
        task=one_text(entry.get("task_name")) or options.instruction,
        frame_extras=_steps(entry, frames),
        warnings=[*warnings, *refused, *wrong],
    )


DIALECTS = [
    Dialect(
        name="agibot",
        rank=120,
        summary="AgiBot World: state/<group>, action/<group>, videos in observations/<task>/<episode>/videos",
        matches=root_has("state/joint", "action/joint"),
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        state="{joint, effector, head, waist}/position (of state)",
        action="the same (of action)",
        cameras="videos/*.mp4 of the episode",
        rate="30, with a warning",
    )
]
