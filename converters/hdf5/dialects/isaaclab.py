"""Isaac Lab and LeIsaac: robomimic's outline, with nested observations and no rate, written while the robot moves.

::

    data                       attribute env_args (JSON: env_name, type 2)
    └─ demo_0                  attributes num_samples, seed, success
       ├─ actions (T, A)
       ├─ obs/...              a dictionary of any depth, or one dataset (T, D); cameras by their shape
       ├─ states/...           absolute, after the step of their row
       └─ initial_state/...    one row

``obs/actions`` is the action of the row before, never to be learned as the action. ``obs/joint_pos`` is relative to
the robot's default pose. A state that is taken from ``states`` is the row before, so that the first frame is left out.
Failed attempts (``success`` false) are left out unless ``--failed keep``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from wdsmix.converters.hdf5.dialects.robomimic import demo_facts, demo_groups, is_demo, rewards_and_dones
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import CameraPart, Dialect, EpisodeLayout, FileFacts, Part
from wdsmix.converters.hdf5.nested import find_leaves, nested_cameras, nested_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import rows_of, shape_of
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, json_object, number

from wdsmix.episode import DimensionKind

__all__ = ["DIALECTS"]

_JOINTS = r"(?:.*/)?(?:(?:left|right)_)?(?:arm_)?joint_pos"
_POSE = ("eef_pos", "eef_quat", "gripper_pos")
_RELATIVE: tuple[DimensionKind, ...] = ("delta",) * 3 + ("delta_rotation",) * 3 + ("absolute",)


def _env(tree: Tree) -> dict[str, object]:
    data = tree.group("/data")
    return json_object(attribute(data, "env_args") if data is not None else None)[0]


def _matches(tree: Tree, episode: str) -> bool:
    return is_demo(tree, episode) and (
        tree.group(join(episode, "initial_state")) is not None or number(_env(tree).get("type")) == 2
    )


def _is_leisaac(tree: Tree, episode: str) -> bool:
    return "leisaac" in str(_env(tree).get("env_name", "")).lower() and _matches(tree, episode)


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    facts = demo_facts(tree, options)
    warnings = list(facts.warnings)
    if not options.instruction:
        warnings.append("no language in the file: the environment's name is the task; give --instruction")
    first = next((join("data", name) for name in tree.children("/data")), "")
    relative = "ik-rel" in facts.task.lower() and shape_of(tree, join(first, "actions"))[1:] == (7,)
    return replace(facts, kinds=facts.kinds or ({"action": _RELATIVE} if relative else {}), warnings=warnings)


def _default_state(tree: Tree, group: str) -> list[str]:
    leaves = find_leaves(tree, join(group, "obs"))
    if "" in leaves:
        return ["obs"]
    seen = [path for path in leaves if not path.startswith("datagen_info")]
    if joints := [path for path in seen if re.fullmatch(_JOINTS, path)]:
        return joints
    by_name = {path.rsplit("/", 1)[-1]: path for path in reversed(seen)}
    if poses := [by_name[name] for name in _POSE if name in by_name]:
        return poses
    raise Hdf5Error(
        "none of the default state keys",
        path=str(tree.path),
        where=join(group, "obs"),
        expected="joint_pos, or " + ", ".join(_POSE),
        found=", ".join(list(leaves)[:30]) or "nothing",
        hint="name the keys of the state with --state KEY,KEY",
    )


def _action(tree: Tree, group: str, options: Hdf5Options) -> list[Part]:
    parts = nested_parts(tree, group, options.action or ("actions",), "", what="action")
    for part in parts:
        if part.path == join(group, "obs/actions"):
            raise Hdf5Error(
                "obs/actions is the action of the row before, not of its row",
                path=str(tree.path),
                where=group,
                expected="actions",
                found=part.path,
            )
    return parts


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    keys = options.state or _default_state(tree, group)
    state = nested_parts(tree, group, keys, "obs", what="state")
    action = _action(tree, group, options)
    optional = rewards_and_dones(tree, group)
    cameras, warnings = nested_cameras(tree, join(group, "obs"), options)
    frames, after = None, join(group, "states") + "/"
    if any(part.path.startswith(after) for part in state):
        state = [part if part.path.startswith(after) else replace(part, start=1) for part in state]
        action = [replace(part, start=1) for part in action]
        optional = {name: replace(part, start=1) for name, part in optional.items()}
        cameras = {name: replace(camera, start=1) for name, camera in cameras.items()}
        frames = max(0, rows_of(tree, action[0].path) - 1)
        warnings.append("states are those after the step: the state is of the row before, the first frame is left out")
    owner = tree.group(group)
    success = number(attribute(owner, "success")) if owner is not None else None
    return EpisodeLayout(
        state=state,
        action=action,
        optional=optional,
        cameras=_short(cameras),
        frames=frames,
        task=options.instruction or facts.task,
        success=None if success is None else bool(success),
        warnings=warnings,
    )


def _short(cameras: dict[str, CameraPart]) -> dict[str, CameraPart]:
    """The cameras by the last part of their path, where that tells them apart."""
    last = [key.rsplit("/", 1)[-1] for key in cameras]
    return dict(zip(last, cameras.values(), strict=True)) if len(set(last)) == len(last) else cameras


def _dialect(name: str, rank: int, matches: Callable[[Tree, str], bool], summary: str) -> Dialect:
    return Dialect(
        name=name,
        rank=rank,
        summary=summary,
        matches=matches,
        groups=demo_groups,
        facts=_facts,
        layout=_layout,
        failed="drop",
        pairing="same row (obs/actions, the previous action, is not read)",
        state="joint_pos, else eef_pos, eef_quat, gripper_pos (anywhere in obs), else obs",
        action="actions",
        cameras="pictures anywhere in obs",
        rate="20, with a warning",
    )


DIALECTS = [
    _dialect("leisaac", 29, _is_leisaac, "LeIsaac: as isaaclab, of an environment LeIsaac-*"),
    _dialect(
        "isaaclab", 30, _matches, "Isaac Lab, Isaac Lab Mimic: data/<demo>/{actions, obs/..., initial_state, states}"
    ),
]
