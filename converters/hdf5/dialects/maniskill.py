"""ManiSkill: trajectories of one file, their metadata in a JSON file of the same name.

::

    <name>.h5                          <name>.json: env_info {env_id, env_kwargs}, episodes [{episode_id, ...}]
    └─ traj_0
       ├─ actions                      (T, A), or a dictionary of robots
       ├─ rewards, terminated, truncated, success, fail (T,)
       ├─ env_states                   (T+1, D), or a dictionary of them
       └─ obs                          dictionary of T+1 rows: agent/{qpos, qvel},
                                       sensor_data/<camera>/rgb (before version 3: image/<camera>/rgb);
                                       or one dataset (T+1, D)

The observation after the last action has no action: it is left out. Trajectories that were saved with obs_mode
"none" have no ``obs``, hence no pictures: they are refused, or give states and actions (``--allow-no-camera``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import cast

from wdsmix.converters.hdf5.dialects.robomimic import rewards_and_dones
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import CameraPart, Dialect, EpisodeLayout, FileFacts
from wdsmix.converters.hdf5.mapping import FASTEST, SLOWEST
from wdsmix.converters.hdf5.nested import find_leaves, nested_cameras, nested_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import any_shows, rows_of, shape_of
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sidecar import read_beside
from wdsmix.converters.hdf5.strings import clean_text, number
from wdsmix.converters.slots import natural_key

from wdsmix.episode import DimensionKind
from wdsmix.texts import counted

__all__ = ["DIALECTS", "control_kinds"]

_FPS = 20.0
_LONGEST = 200
_AGENT = ("qpos", "qvel")
_RECORDS = "maniskill records"
_PICTURES = ("sensor_data", "image")


def _trajectories(tree: Tree, options: Hdf5Options | None = None) -> list[str]:
    return [join(name) for name in tree.child_groups("/") if re.fullmatch(r"traj_\d+", name)]


def _filled(tree: Tree, child: str) -> bool:
    """Whether one of the first trajectories has a child, and actions."""
    return any_shows(
        _trajectories(tree), lambda name: all(tree.get(join(name, key)) is not None for key in (child, "actions"))
    )


def _matches(tree: Tree, episode: str) -> bool:
    return episode == "/" and _filled(tree, "obs")


def _matches_raw(tree: Tree, episode: str) -> bool:
    return episode == "/" and _filled(tree, "actions") and not _filled(tree, "obs")


def _dictionary(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _sidecar(tree: Tree) -> tuple[Mapping[str, object], str | None]:
    name = tree.path.with_suffix(".json").name
    found, wrong = read_beside(tree, name)
    if wrong is None and not isinstance(found, dict):
        wrong = f"no {name} beside it" if found is None else f"{name} holds no object"
    return _dictionary(found), wrong


def _records(tree: Tree) -> dict[str, Mapping[str, object]]:
    """Name of a trajectory's group -> its entry in the JSON file."""
    if _RECORDS not in tree.notes:
        listed = _sidecar(tree)[0].get("episodes")
        entries = [entry for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
        tree.notes[_RECORDS] = {f"traj_{entry.get('episode_id')}": entry for entry in entries}
    return cast("dict[str, Mapping[str, object]]", tree.notes[_RECORDS])


def control_kinds(mode: str, width: int) -> tuple[DimensionKind, ...]:
    """What the dimensions of an action mean; empty where the controller does not tell.

    Args:
        mode: ManiSkill's control mode.
        width: Dimensions of the action: an arm of seven joints or an end effector, with or without a gripper.
    """
    delta: DimensionKind = "delta"
    moves: tuple[DimensionKind, ...]
    if mode in ("pd_joint_pos", "pd_ee_pose", "pd_ee_pos"):
        return cast("tuple[DimensionKind, ...]", ("absolute",) * width)
    if re.fullmatch(r"pd_joint(_target)?_delta_pos", mode):
        moves = (delta,) * 7
    elif re.fullmatch(r"pd_ee(_target)?_delta_pose", mode):
        moves = (delta,) * 3 + ("delta_rotation",) * 3
    elif re.fullmatch(r"pd_ee(_target)?_delta_pos", mode):
        moves = (delta,) * 3
    else:
        return ()
    return {len(moves): moves, len(moves) + 1: (*moves, "absolute")}.get(width, ())


def _rate(env: Mapping[str, object]) -> float | None:
    kwargs = _dictionary(env.get("env_kwargs"))
    for holder in (kwargs, _dictionary(kwargs.get("sim_config")), _dictionary(kwargs.get("sim_cfg"))):
        given = holder.get("control_freq")
        rate = None if isinstance(given, bool) else number(given)
        if rate and SLOWEST <= rate <= FASTEST:
            return rate
    return None


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    sidecar, wrong = _sidecar(tree)
    env = _dictionary(sidecar.get("env_info"))
    kwargs = _dictionary(env.get("env_kwargs"))
    warnings = [f"{wrong}; task, control mode and success are not known"] if wrong else []
    found = _rate(env)
    fps, origin = (options.fps, "--fps") if options.fps else (found or _FPS, "file" if found else "default")
    if origin == "default":
        warnings.append(f"no control_freq in the metadata: {_FPS:g} frames/s assumed; give --fps to set it")
    records = _records(tree)
    groups = [name.strip("/") for name in _trajectories(tree)]
    if records and (lost := sorted(set(records) - set(groups), key=natural_key)):
        shown = ", ".join(lost[:5]) + (", ..." if lost[5:] else "")
        warnings.append(
            f"the metadata name {counted(len(lost), 'trajectory', 'trajectories')} that the file lacks: {shown}"
        )
    modes = {str(record["control_mode"]) for record in records.values() if "control_mode" in record}
    modes = modes or ({str(kwargs["control_mode"])} if "control_mode" in kwargs else set())
    if len(modes) > 1:
        warnings.append(f"trajectories of several control modes: {', '.join(sorted(modes))[:_LONGEST]}")
    width = next((shape[1] for name in groups if len(shape := shape_of(tree, join(name, "actions"))) == 2), 0)
    kinds = control_kinds(next(iter(modes)), width) if len(modes) == 1 else ()
    return FileFacts(
        fps=fps,
        fps_from=origin,
        kinds={"action": kinds} if kinds else {},
        task=clean_text(str(env.get("env_id") or "")),
        embodiment=str(kwargs.get("robot_uids") or "")[:_LONGEST] if isinstance(kwargs.get("robot_uids"), str) else "",
        warnings=warnings,
        details={
            "env_id": str(env.get("env_id") or "")[:_LONGEST],
            "control_mode": ", ".join(sorted(modes))[:_LONGEST],
            "obs_mode": str(kwargs.get("obs_mode") or "")[:_LONGEST],
        },
    )


def _cameras(tree: Tree, group: str, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    cameras: dict[str, CameraPart] = {}
    warnings: list[str] = []
    for base in _PICTURES:
        found, notes = nested_cameras(tree, join(group, "obs", base), options)
        warnings += notes
        cameras.update({re.sub(r"/(?:rgb|Color)$", "", key): camera for key, camera in found.items()})
    return cameras, warnings


def _state(tree: Tree, group: str, options: Hdf5Options) -> tuple[tuple[str, ...], str]:
    """Keys of the state, and where to look for them."""
    if options.state:
        return options.state, "obs"
    if tree.get(join(group, "obs")) is None:
        return tuple(f"env_states/{leaf}".strip("/") for leaf in find_leaves(tree, join(group, "env_states"))), ""
    if tree.dataset(join(group, "obs")) is not None:
        return ("obs",), ""
    agent = find_leaves(tree, join(group, "obs/agent"))  # of several robots: <robot>/qpos
    return tuple(f"agent/{key}" for key in agent if key.rsplit("/", 1)[-1] in _AGENT), "obs"


def _actions(tree: Tree, group: str) -> tuple[str, ...]:
    """Keys of the action: of several robots, a dictionary of theirs."""
    leaves = find_leaves(tree, join(group, "actions"))
    return tuple(f"actions/{leaf}".strip("/") for leaf in leaves) or ("actions",)


def _success(tree: Tree, group: str, record: Mapping[str, object]) -> bool | None:
    told = record.get("success", _dictionary(record.get("info")).get("success"))
    if isinstance(told, bool):
        return told
    dataset = tree.dataset(join(group, "success"))
    if dataset is None or dataset.dtype.kind not in "biu" or dataset.shape is None or len(dataset.shape) != 1:
        return None
    rows = dataset.shape[0]
    return bool(tree.read_vector(join(group, "success"), rows - 1, rows)[-1]) if rows else None


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    keys, base = _state(tree, group, options)
    if not keys:
        raise Hdf5Error(
            "no state",
            path=str(tree.path),
            where=group,
            expected="obs/agent/qpos" if base else "obs or env_states",
            found=", ".join(tree.children(join(group, base))[:30]) or "nothing",
            hint="name the keys of the state with --state KEY,KEY",
        )
    action = nested_parts(tree, group, options.action or _actions(tree, group), "", what="action")
    cameras, warnings = _cameras(tree, group, options)
    record = _records(tree).get(group.strip("/"), {})
    extras = {
        name: record[name] for name in ("control_mode", "episode_seed") if isinstance(record.get(name), (str, int))
    }
    return EpisodeLayout(
        state=nested_parts(tree, group, keys, base, what="state"),
        action=action,
        optional=rewards_and_dones(tree, group, done="terminated"),
        cameras=cameras,
        frames=rows_of(tree, action[0].path),
        task=options.instruction or facts.task,
        success=_success(tree, group, record),
        extras={name: value[:_LONGEST] if isinstance(value, str) else value for name, value in extras.items()},
        warnings=warnings,
    )


_RAW = (
    "raw ManiSkill trajectories hold no observations (obs_mode none), hence no images; replay them: "
    "python -m mani_skill.trajectory.replay_trajectory --obs-mode rgb --save-traj "
    "(or --allow-no-camera, for env_states and actions alone)"
)

DIALECTS = [
    Dialect(
        name=name,
        rank=rank,
        summary=summary,
        matches=matches,
        groups=_trajectories,
        facts=_facts,
        layout=_layout,
        refusal=refusal,
        pairing="same row, the last observation left out",
        state=state,
        action="actions",
        cameras=cameras,
        rate="control_freq of the JSON file, else 20 with a warning",
    )
    for name, rank, matches, refusal, state, cameras, summary in (
        (
            "maniskill-raw",
            129,
            _matches_raw,
            _RAW,
            "env_states",
            "none",
            "ManiSkill trajectories without observations",
        ),
        (
            "maniskill",
            130,
            _matches,
            "",
            "agent/qpos, agent/qvel (of obs), else obs",
            "obs/sensor_data/*/rgb, obs/image/*/rgb",
            "ManiSkill 2 and 3: traj_<i>/{actions, obs/...}, NAME.json beside NAME.h5",
        ),
    )
]
