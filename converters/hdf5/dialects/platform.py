"""The platform's export: chunks of episodes, one group for each annotated subtask.

::

    chunk_001.hdf5
    └─ data/episode_001/                    attributes (or scalar datasets) task, task_zh, score
       ├─ action                            (T, Da)
       ├─ observation.state                 (T, Ds)
       ├─ observation.gripper               (T, Dg), optional
       └─ observation.images.camera_01      a picture a row, in any storage

The dots are part of the names; the nested spelling (``observation/state``) is read alike. The file tells neither a
rate nor the names of the dimensions.
"""

from __future__ import annotations

import h5py
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    Part,
    find_parts,
    read_text,
    read_value,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import plain_cameras
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import number

__all__ = ["DIALECTS"]

_IMAGES = "observation.images."
_FPS = 30.0


def _spellings(key: str) -> tuple[str, ...]:
    return (key, key.replace(".", "/"))


def _has(tree: Tree, group: str, key: str) -> str | None:
    return next((name for name in _spellings(key) if tree.dataset(join(group, name)) is not None), None)


def _matches(tree: Tree, episode: str) -> bool:
    if not episode.startswith("/data/"):
        return False
    names = tree.children(episode)
    return any(name == "action" or name == "observation.state" or name.startswith(_IMAGES) for name in names)


def _groups(tree: Tree, options: Hdf5Options) -> list[str]:
    return [join("data", name) for name in tree.child_groups("/data")]


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    if options.fps:
        return FileFacts(fps=options.fps, fps_from="--fps")
    warning = f"the export holds no rate: {_FPS:g} frames/s assumed (its usual refresh rate); give --fps to set it"
    return FileFacts(fps=_FPS, fps_from="default", warnings=(warning,))


def _cameras(tree: Tree, group: str, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    nested = join(group, "observation/images")
    paths = {name: join(nested, name) for name in tree.children(nested)}
    dotted = [name for name in tree.children(group) if name.startswith(_IMAGES)]
    paths.update({name[len(_IMAGES) :]: join(group, name) for name in dotted})  # this spelling comes first
    return plain_cameras(options, {name: path for name, path in paths.items() if "depth" not in name.lower()})


def _parts(tree: Tree, group: str, given: tuple[str, ...], default: str, what: str) -> list[Part]:
    keys = given or (default,)
    return find_parts(tree, group, [_has(tree, group, key) or key for key in keys], what=what)


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    gripper = _has(tree, group, "observation.gripper")
    append = gripper is not None and "observation.gripper" not in options.state and gripper not in options.state
    task, doubt = read_text(tree, group, "task")
    task_zh, doubt_zh = read_text(tree, group, "task_zh")
    score_value = read_value(tree, group, "score")
    score = number(score_value)
    cameras, warnings = _cameras(tree, group, options)
    if doubt or doubt_zh:
        warnings.append("a task text is neither UTF-8 nor GB18030; read as Latin-1, it may be wrong")
    if score_value is not None and not isinstance(score_value, h5py.Empty) and score is None:
        warnings.append("a score is not a number; taken as none")
    return EpisodeLayout(
        state=_parts(tree, group, options.state, "observation.state", "state"),
        action=_parts(tree, group, options.action, "action", "action"),
        gripper=[Part(path=join(group, gripper), name="gripper")] if append and gripper else (),
        cameras=cameras,
        task=task or task_zh or options.instruction,
        task_zh=task_zh,
        score=score,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="platform",
        rank=10,
        summary="data platform export: data/<episode>/{action, observation.state, observation.images.<camera>}",
        matches=_matches,
        groups=_groups,
        facts=_facts,
        layout=_layout,
        numbered=True,
        state="observation.state (+ observation.gripper)",
        action="action",
        cameras="observation.images.*",
        rate="30, with a warning",
    )
]
