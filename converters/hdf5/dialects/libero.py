"""LIBERO: robomimic's structure, with the instruction in the file and the pictures upside down.

::

    <task_with_underscores>_demo.hdf5
    data                      attributes problem_info (JSON), bddl_file_name, macros_image_convention, env_args (JSON)
    └─ demo_0
       ├─ actions (T, 7), rewards (T,), dones (T,), states, robot_states (T, 9)
       └─ obs                 agentview_rgb, eye_in_hand_rgb (T, H, W, 3)
                              ee_states (T, 6), gripper_states (T, 2), joint_states (T, 7)

Pictures of the convention "opengl" have their last row first; regenerated sets carry no attribute, and have it too.
Released files store the observation after the action of its row (``--obs-shift -1`` pairs each action with the
observation before it); regenerated ones store the one before.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from wdsmix.converters.hdf5.dialects.robomimic import (
    demo_facts,
    demo_groups,
    is_demo,
    key_cameras,
    rewards_and_dones,
)
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, find_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import no_state
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, clean_text, json_object, text

from wdsmix.episode import DimensionKind

__all__ = ["DIALECTS"]

_MARKS = ("problem_info", "bddl_file_name")
_STATES = (("ee_states", "gripper_states"), ("ee_pos", "ee_ori", "gripper_states"), ("joint_states", "gripper_states"))
_ACTION: tuple[DimensionKind, ...] = ("delta",) * 3 + ("delta_rotation",) * 3 + ("absolute",)
_CONVENTION = "macros_image_convention"
_Flip = Literal["none", "vertical", "rot180"]


def _matches(tree: Tree, episode: str) -> bool:
    data = tree.group("/data")
    return is_demo(tree, episode) and (
        (data is not None and any(name in data.attrs for name in _MARKS))
        or tree.get(join(episode, "obs/agentview_rgb")) is not None
    )


def _data_attribute(tree: Tree, name: str) -> object:
    data = tree.group("/data")
    return attribute(data, name) if data is not None else None


def _language(value: object) -> str:
    """The instruction, which may be a list of words, or of letters."""
    if isinstance(value, list):
        words = [word for word in value if isinstance(word, str)]
        value = ("" if all(len(word) == 1 for word in words) else " ").join(words)
    return clean_text(value) if isinstance(value, str) else ""


def _from_name(stem: str) -> str:
    """The instruction that a file's name tells, without the scene before it."""
    bare = re.sub(r"^(?:[A-Z0-9]+_)*SCENE\d+_", "", stem.removesuffix("_demo"))
    return clean_text(bare.replace("_", " "))


def _flip(tree: Tree) -> tuple[_Flip, str]:
    """What undoes the orientation of the pictures, and the convention the file tells."""
    told = (text(_data_attribute(tree, _CONVENTION))[0] or "").lower()
    return ("none" if told == "opencv" else "vertical"), told


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    facts = demo_facts(tree, options)
    problem, wrong = json_object(_data_attribute(tree, "problem_info"))
    warnings = list(facts.warnings)
    if wrong:
        warnings.append(f"attribute problem_info of /data is {wrong}")
    if not _language(problem.get("language_instruction")):
        told = "--instruction" if options.instruction else "the file's name"
        warnings.append(f"no instruction in problem_info; taken from {told}")
    _, convention = _flip(tree)
    if convention not in ("opengl", "opencv") and not options.image_flip:
        what = f"{_CONVENTION} is {convention[:40]!r}" if convention else f"no {_CONVENTION}"
        warnings.append(
            f"{what}: pictures taken as upside down, as LIBERO renders them; if they are not: --image-flip none"
        )
    env, _ = json_object(_data_attribute(tree, "env_args"))
    kwargs = env.get("env_kwargs")
    told_kinds = isinstance(kwargs, dict) and "controller_configs" in kwargs
    return replace(
        facts,
        kinds=facts.kinds or ({} if told_kinds else {"action": _ACTION}),
        warnings=warnings,
        details={**facts.details, "image_convention": convention},
    )


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    there = tree.children(join(group, "obs"))
    default: tuple[str, ...] | None = next((keys for keys in _STATES if all(key in there for key in keys)), None)
    if default is None and tree.dataset(join(group, "robot_states")) is not None:
        default = ("robot_states",)
    if not default and not options.state:
        raise no_state(tree, join(group, "obs"), "ee_states and gripper_states, or joint_states and gripper_states")
    problem, _ = json_object(_data_attribute(tree, "problem_info"))
    language = _language(problem.get("language_instruction"))
    cameras, warnings = key_cameras(tree, group, options, _flip(tree)[0])
    return EpisodeLayout(
        state=find_parts(tree, group, options.state or default or (), ("obs", ""), what="state"),
        action=find_parts(tree, group, options.action or ("actions",), ("", "obs"), what="action"),
        optional=rewards_and_dones(tree, group),
        cameras=cameras,
        task=language or options.instruction or _from_name(tree.path.stem),
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="libero",
        rank=20,
        summary="LIBERO: as robomimic, with problem_info, obs/{agentview_rgb, eye_in_hand_rgb} upside down",
        matches=_matches,
        groups=demo_groups,
        facts=_facts,
        layout=_layout,
        limits={"action": 1.0},
        pairing="same row (released files hold the observation after the action: --obs-shift -1)",
        state="ee_states, gripper_states (of obs)",
        action="actions",
        cameras="obs/*_rgb",
        rate="control_freq of env_args, else 20 with a warning",
    )
]
