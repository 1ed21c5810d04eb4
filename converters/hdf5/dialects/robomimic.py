"""robomimic, mimicgen and robocasa: demonstrations with an ``obs`` group each (LIBERO and Isaac Lab share much of it).

::

    data                      attributes env_args (JSON), total (unreliable: ignored)
    └─ demo_0                 attributes num_samples, ep_meta (robocasa: JSON with "lang")
       ├─ actions (T, A), rewards (T,), dones (T,)
       └─ obs/<key> (T, ...)  cameras <cam>_image (T, H, W, 3) uint8, upright RGB
    mask/<filter>             names of demonstrations: the published split

mimicgen leaves out ``next_obs`` and adds ``datagen_info``; robocasa's demonstrations carry their instruction. A stream
that is not mapped may have any length (raw robocasa has more states than actions).

Actions of an operational-space controller are deltas of position, then rotation (axis-angle), then the gripper.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Literal

import h5py
import numpy as np
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    Part,
    find_parts,
    refused_camera,
)
from wdsmix.converters.hdf5.mapping import FASTEST, SLOWEST
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import no_state, plain_cameras, shape_of
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import (
    MAX_ATTRIBUTE_BYTES,
    attribute,
    clean_text,
    json_object,
    number,
    text,
)
from wdsmix.converters.slots import natural_key

from wdsmix.episode import DimensionKind
from wdsmix.texts import counted

__all__ = ["DIALECTS", "controller_kinds", "demo_facts", "demo_groups", "is_demo", "key_cameras", "rewards_and_dones"]

_FPS = 20.0
_LONGEST = 200
"""Characters of a fact that goes into the manifest."""
_STATE = ("eef_pos", "eef_quat", "gripper_qpos")
_SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("valid", "val", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval"), "test"),
}


def demo_groups(tree: Tree, options: Hdf5Options) -> list[str]:
    """The groups of ``/data``, in natural order."""
    return [join("data", name) for name in tree.child_groups("/data")]


def is_demo(tree: Tree, episode: str) -> bool:
    """Whether a group is a demonstration: it has actions."""
    return episode.startswith("/data/") and tree.dataset(join(episode, "actions")) is not None


def _matches(tree: Tree, episode: str) -> bool:
    return is_demo(tree, episode) and tree.group(join(episode, "obs")) is not None


def _is_robocasa(tree: Tree, episode: str) -> bool:
    owner = tree.group(episode)
    return owner is not None and "ep_meta" in owner.attrs and _matches(tree, episode)


def _is_mimicgen(tree: Tree, episode: str) -> bool:
    return tree.group(join(episode, "datagen_info")) is not None and _matches(tree, episode)


def _controllers(config: object, robots: int) -> list[Mapping[str, object]]:
    """The arm controllers in an environment's arguments, one a robot or arm, in either spelling of robosuite."""
    if isinstance(config, list):
        return [entry for entry in config if isinstance(entry, dict)]
    if not isinstance(config, dict):
        return []
    body = config.get("body_parts")
    if isinstance(body, dict):
        nested = body.get("arms")
        arms = nested if isinstance(nested, dict) else body
        return [arms[side] for side in ("right", "left") if isinstance(arms.get(side), dict)]
    return [config] * robots


def controller_kinds(env: Mapping[str, object], width: int) -> tuple[DimensionKind, ...]:
    """What the dimensions of the action mean; empty where the controller does not tell.

    Args:
        env: ``env_kwargs`` of the environment's arguments.
        width: Dimensions of the action.
    """
    named = env.get("robots")
    robots = len(named) if isinstance(named, list) else 1
    kinds: list[DimensionKind] = []
    for control in _controllers(env.get("controller_configs"), max(1, robots)):
        kind = control.get("type")
        spaces = {"OSC_POSE": 6, "OSC_POSITION": 3}
        if kind not in spaces:
            return ()
        delta = control.get("input_type", "delta") == "delta" and control.get("control_delta", True) is not False
        turns = spaces[str(kind)] - 3
        kinds += ["delta"] * 3 if delta else ["absolute"] * 3
        kinds += ["delta_rotation"] * turns if delta else ["absolute"] * turns
        kinds.append("absolute")
    return tuple(kinds) if len(kinds) == width else ()


def _splits(tree: Tree, options: Hdf5Options) -> tuple[dict[str, str], frozenset[str] | None, list[str]]:
    """Split of each demonstration, the ones ``--mask`` selects, and warnings."""
    splits: dict[str, str] = {}
    warnings: list[str] = []
    demos = set(tree.children("/data"))
    selected: frozenset[str] | None = None
    for name in tree.children("/mask"):
        dataset = tree.dataset(join("mask", name))
        if dataset is None or not dataset.shape or dataset.dtype.kind not in "SO":
            continue
        if math.prod(dataset.shape) * dataset.dtype.itemsize > MAX_ATTRIBUTE_BYTES:
            raise Hdf5Error(
                "refused: too many names in a mask", path=str(tree.path), where=f"/mask/{name}", check="safe"
            )
        if dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype) is None:
            continue
        tree.check_chunk(join("mask", name), dataset)
        members = [text(value)[0] or "" for value in np.asarray(dataset[()]).reshape(-1).tolist()]
        if name == options.mask:
            selected = frozenset(members)
        split = _SPLITS.get(name.lower())
        if split is None:
            continue
        absent = sorted(set(members) - demos, key=natural_key)
        if absent:
            shown = ", ".join(absent[:5]) + (", ..." if len(absent) > 5 else "")
            warnings.append(f"mask/{name} names {counted(len(absent), 'demonstration')} that the file lacks: {shown}")
        for member in members:
            if splits.get(member, split) != split:
                warnings.append(f"{member} is in the masks of two splits; taken for {max(splits[member], split)!r}")
                split_of = max(splits[member], split, key=["train", "val", "test"].index)
            else:
                split_of = split
            splits[member] = split_of
    if options.mask and selected is None:
        there = ", ".join(tree.children("/mask")) or "none"
        raise Hdf5Error(
            "no such filter key", path=str(tree.path), where="--mask", expected=f"one of: {there}", found=options.mask
        )
    return splits, selected, warnings


def demo_facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    """What ``env_args`` and ``mask`` tell: rate, kinds of the actions, splits, the environment as task."""
    data = tree.group("/data")
    found, wrong = json_object(attribute(data, "env_args") if data is not None else None)
    kwargs = found.get("env_kwargs")
    env: dict[str, object] = kwargs if isinstance(kwargs, dict) else {}
    splits, selected, warnings = _splits(tree, options)
    if wrong:
        warnings.append(f"attribute env_args of /data is {wrong}; rate and kind of the actions are not known from it")
    total = number(attribute(data, "total")) if data is not None else None
    fps, origin = options.fps, "--fps"
    if not fps:
        given = env.get("control_freq")
        rate = None if isinstance(given, bool) else number(given)
        fps, origin = (rate, "file") if rate and SLOWEST <= rate <= FASTEST else (_FPS, "default")
        if origin == "default":
            why = "no control_freq in env_args" if given is None else f"control_freq {str(given)[:40]!r} is no rate"
            warnings.append(f"{why}: {_FPS:g} frames/s assumed; give --fps to set it")
    groups = demo_groups(tree, options)
    width, rows = 0, 0
    for group in groups:
        actions = shape_of(tree, join(group, "actions"))
        rows += actions[0] if actions else 0
        width = width or (actions[1] if len(actions) == 2 else 0)
    if total is not None and total != rows:
        warnings.append(f"attribute total of /data says {total:g} rows, the demonstrations hold {rows}; ignored")
    kinds = controller_kinds(env, width)
    robots = env.get("robots")
    return FileFacts(
        fps=fps,
        fps_from=origin,
        kinds={"action": kinds} if kinds else {},
        splits=splits,
        selected=selected,
        task=clean_text(str(found.get("env_name", "") or "")),
        embodiment="_".join(map(str, robots)).lower()[:_LONGEST] if isinstance(robots, list) else "",
        warnings=warnings,
        details={"env_name": str(found.get("env_name", "") or "")[:_LONGEST]},
    )


def _default_state(tree: Tree, group: str) -> list[str]:
    names = tree.children(join(group, "obs"))
    robots = sorted({found[0] for name in names if (found := re.match(r"robot\d+", name))}, key=natural_key)
    keys = [f"{robot}_{key}" for robot in robots for key in _STATE if f"{robot}_{key}" in names]
    if not keys:
        raise no_state(tree, join(group, "obs"), ", ".join(f"robot0_{key}" for key in _STATE))
    return keys


def key_cameras(
    tree: Tree, group: str, options: Hdf5Options, flip: Literal["none", "vertical", "rot180"] = "none"
) -> tuple[dict[str, CameraPart], list[str]]:
    """The cameras of a demonstration's ``obs``, by their names, and warnings.

    Args:
        tree: The open file.
        group: The demonstration.
        options: Of the family.
        flip: What undoes the orientation, unless the options say.
    """
    paths: dict[str, str] = {}
    for name in tree.children(join(group, "obs")):
        wanted = name in options.cameras.values()
        if not wanted and (not name.endswith(("_image", "_rgb")) or "depth" in name):
            continue
        if refused_camera(name) or tree.dataset(join(group, "obs", name)) is not None:
            paths[name] = join(group, "obs", name)
    return plain_cameras(options, paths, flip=flip)


def rewards_and_dones(tree: Tree, group: str, reward: str = "rewards", done: str = "dones") -> dict[str, Part]:
    """The reward and done of an episode, as far as it has them."""
    return {
        name: Part(path=join(group, key), name=name)
        for name, key in (("reward", reward), ("done", done))
        if tree.dataset(join(group, key)) is not None
    }


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    owner = tree.group(group)
    meta, wrong = json_object(attribute(owner, "ep_meta") if owner is not None else None)
    language, doubtful = text(meta.get("lang"))
    warnings = [f"attribute ep_meta of a demonstration is {wrong}"] if wrong else []
    if doubtful:
        warnings.append("an instruction in ep_meta is of unknown encoding")
    cameras, refused = key_cameras(tree, group, options)
    warnings += refused
    return EpisodeLayout(
        state=find_parts(tree, group, options.state or _default_state(tree, group), ("obs", ""), what="state"),
        action=find_parts(tree, group, options.action or ("actions",), ("", "obs"), what="action"),
        optional=rewards_and_dones(tree, group),
        cameras=cameras,
        task=language or options.instruction or facts.task,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name=name,
        rank=rank,
        summary=f"{name}: {summary}",
        matches=matches,
        groups=demo_groups,
        facts=demo_facts,
        layout=_layout,
        limits={"action": 1.0},
        state="robot<i>_eef_pos, robot<i>_eef_quat, robot<i>_gripper_qpos (of obs)",
        action="actions",
        cameras="obs/*_image",
        rate="control_freq of env_args, else 20 with a warning",
    )
    for name, rank, matches, summary in (
        ("robocasa", 36, _is_robocasa, "as robomimic, with the instruction in ep_meta"),
        ("mimicgen", 38, _is_mimicgen, "as robomimic, with datagen_info and without next_obs"),
        ("robomimic", 40, _matches, "data/<demo>/{actions, obs/<key>}, mask/<filter>"),
    )
]
