"""RoboTwin 2.0, before and since its format v1.0 (XPolicyLab): one file is one episode.

::

    legacy  joint_action/{left_arm, left_gripper, right_arm, right_gripper, vector} (T, ...)
            endpose/{left_endpose, ...} (T, 7), or endpose (T, 14)
            observation/<camera>/rgb (T,) JPEG     third_view_rgb
            ../instructions/<file>.json            {"seen": [...], "unseen": [...]}
    v1.0    state/ and action/ of {left, right}_{arm, ee}_joint_states, *_ee_poses (T, ...)
            vision/<camera>/colors (T,) JPEG
            instructions    JSON list              additional_info/frequency

In the legacy files the action of a row is the joints of the next row; in v1.0 the writer has paired them. Pictures were
given to OpenCV's encoder as RGB, so that red and blue are swapped for every other decoder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from wdsmix.converters.hdf5.language import one_text
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    find_parts,
    read_text,
    read_value,
)
from wdsmix.converters.hdf5.mapping import FASTEST, SLOWEST
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
from wdsmix.converters.hdf5.sidecar import read_beside
from wdsmix.converters.hdf5.strings import number

__all__ = ["DIALECTS"]

_FPS = 250 / 15
"""Every 15th step of 1/250 s."""
_JOINTS = ("left_arm", "left_gripper", "right_arm", "right_gripper")
_V1_JOINTS = (
    "left_arm_joint_states",
    "left_ee_joint_states",
    "right_arm_joint_states",
    "right_ee_joint_states",
    "arm_joint_states",
    "ee_joint_states",
)
_SEEN = ("seen", "unseen")
_SWAPPED = "RoboTwin pictures are taken as red and blue swapped; if colours look wrong: --jpeg-order rgb"


def _cameras(options: Hdf5Options, paths: Mapping[str, str]) -> tuple[dict[str, CameraPart], list[str]]:
    found, warnings = plain_cameras(options, paths, "bgr")
    if found and not options.jpeg_order:
        warnings.append(_SWAPPED)
    return found, warnings


def _legacy_keys(tree: Tree) -> Sequence[str]:
    there = [name for name in _JOINTS if rows_of(tree, join("joint_action", name))]
    return there or ("vector",)


def _legacy_facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    kinds = () if options.action else absolute(tree, find_parts(tree, "/", _legacy_keys(tree), ("joint_action",)))
    return assumed_rate(options, _FPS, "RoboTwin's legacy files", kinds=kinds)


def _legacy_instruction(tree: Tree, options: Hdf5Options) -> tuple[str, list[str]]:
    name = f"../instructions/{tree.path.stem}.json"
    found, wrong = read_beside(tree, name)
    keys = (options.instruction_key,) if options.instruction_key else _SEEN
    task = one_text(found, keys)
    if found is not None and not task:
        wrong = f"{name} has no instruction under {' or '.join(keys)}"
    return task, [wrong] if wrong else []


def _legacy_layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    bases = ("joint_action", "endpose", "")
    state = find_parts(tree, "/", options.state or _legacy_keys(tree), bases, what="state")
    action = find_parts(tree, "/", options.action or _legacy_keys(tree), bases, what="action")
    paths = {
        name.removesuffix("_camera"): join("observation", name, "rgb")
        for name in tree.children("/observation")
        if tree.get(join("observation", name, "rgb")) is not None
    }
    if tree.get("/third_view_rgb") is not None:
        paths["third_view"] = "/third_view_rgb"
    cameras, warnings = _cameras(options, paths)
    task, wrong = _legacy_instruction(tree, options)
    return EpisodeLayout(
        state=state,
        action=[replace(part, start=1) for part in action],
        frames=max(0, rows_of(tree, action[0].path) - 1),
        cameras=cameras,
        task=task or options.instruction,
        warnings=[*warnings, *wrong],
    )


def _v1_keys(tree: Tree, base: str) -> list[str]:
    there = [name for name in _V1_JOINTS if rows_of(tree, join(base, name))]
    return there or list(_V1_JOINTS[:2])


def _v1_facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    version, _ = read_text(tree, "/", "data_format_version")
    details = {"data_format_version": version, "source_format": read_text(tree, "/", "source_format")[0]}
    kinds = () if options.action else absolute(tree, find_parts(tree, "/action", _v1_keys(tree, "action")))
    told = number(read_value(tree, "/additional_info", "frequency"))
    if options.fps or told is None or not SLOWEST <= told <= FASTEST:
        return assumed_rate(options, _FPS, "RoboTwin v1.0 files without a frequency", kinds=kinds, details=details)
    warning = (
        f"additional_info/frequency says {told:g}, taken as frames/s; RoboTwin's own writer stores simulation steps a "
        f"frame there, which at 1/250 s would be {250 / told:.4g} frames/s: give --fps to set it"
    )
    return FileFacts(
        fps=told,
        fps_from="file",
        kinds={"action": kinds} if kinds else {},
        details=details,
        warnings=(warning,),
    )


def _v1_instruction(tree: Tree) -> tuple[str, list[str]]:
    plain, _ = read_text(tree, "/", "instructions")
    if not plain:
        return read_text(tree, "/", "instruction")[0], []
    if not plain.startswith(("[", "{")):
        return plain, []
    try:
        return one_text(json.loads(plain), _SEEN), []
    except (ValueError, RecursionError) as error:
        return "", [f"instructions is not valid JSON ({' '.join(str(error).split())[:80]})"]


def _v1_layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    paths = {
        name: join("vision", name, "colors")
        for name in tree.children("/vision")
        if tree.get(join("vision", name, "colors")) is not None
    }
    cameras, warnings = _cameras(options, paths)
    task, wrong = _v1_instruction(tree)
    return EpisodeLayout(
        state=find_parts(tree, "/", options.state or _v1_keys(tree, "state"), ("state", ""), what="state"),
        action=find_parts(tree, "/", options.action or _v1_keys(tree, "action"), ("action", ""), what="action"),
        cameras=cameras,
        task=task or options.instruction,
        warnings=[*warnings, *wrong],
    )


DIALECTS = [
    Dialect(
        name="robotwin",
        rank=60,
        summary="RoboTwin v1.0, XPolicyLab: state/, action/, vision/<camera>/colors",
        matches=root_has("vision/*/colors", "state", "action"),
        groups=one_episode,
        facts=_v1_facts,
        layout=_v1_layout,
        limits=JOINTS,
        state="{left, right}_{arm, ee}_joint_states (of state)",
        action="the same (of action)",
        cameras="vision/*/colors",
        rate="additional_info/frequency, else 16.67; with a warning",
    ),
    Dialect(
        name="robotwin-legacy",
        rank=70,
        summary="RoboTwin 2.0 before v1.0: joint_action/, observation/<camera>/rgb",
        matches=root_has("joint_action", "observation/*/rgb"),
        groups=one_episode,
        facts=_legacy_facts,
        layout=_legacy_layout,
        limits=JOINTS,
        pairing="action of the next row",
        state="{left, right}_{arm, gripper} (of joint_action), else vector",
        action="the same of the next row",
        cameras="observation/*/rgb, third_view_rgb",
        rate="16.67, with a warning",
    ),
]
