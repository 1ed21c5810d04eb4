"""FastUMI: a handheld gripper, one or two of them; one file is one episode.

::

    [robot_<i>]/observations/qpos (T, 8)   position (m), quaternion (x, y, z, w), opening of the clamp
    [robot_<i>]/action (T, 8)              the same as qpos
    [robot_<i>]/observations/images/<camera> (T, H, W, 3)   as OpenCV decodes a video: blue first

The rate is 20, 30 or 60 by an option of the writer; the file does not tell which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import (
    Dialect,
    EpisodeLayout,
    FileFacts,
    Part,
    find_parts,
    read_text,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import absolute, assumed_rate, one_episode, plain_cameras
from wdsmix.converters.hdf5.safe import Tree, join

__all__ = ["DIALECTS"]

_FPS = 20.0
_WIDTH = 8


def _arms(tree: Tree) -> list[str]:
    """Groups of the arms: ``/`` where there is one alone."""
    names = [name for name in tree.child_groups("/") if name.startswith("robot_")]
    arms = [join(name) for name in names if tree.dataset(join(name, "observations/qpos")) is not None]
    return arms or ["/"]


def _matches(tree: Tree, episode: str) -> bool:
    if episode != "/":
        return False
    arms = _arms(tree)
    if arms != ["/"]:
        return all(tree.dataset(join(arm, "action")) is not None for arm in arms)
    shapes: list[tuple[int, ...]] = []
    for name in ("/observations/qpos", "/action"):
        dataset = tree.dataset(name)
        shapes.append((dataset.shape or ()) if dataset is not None else ())
    return all(len(shape) == 2 and shape[1] == _WIDTH for shape in shapes) and (
        tree.children("/observations") == ["images", "qpos"]
    )


def _parts(tree: Tree, keys: Sequence[str], bases: Sequence[str], what: str) -> list[Part]:
    found = []
    for arm in _arms(tree):
        prefix = "" if arm == "/" else arm.strip("/") + "_"
        for part in find_parts(tree, arm, keys, bases, what=what):
            found.append(replace(part, name=prefix + part.name))
    return found


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    kinds = () if options.action else absolute(tree, _parts(tree, ("action",), ("",), "action"))
    return assumed_rate(options, _FPS, "FastUMI files (20, 30 or 60)", kinds=kinds, details={"arms": len(_arms(tree))})


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    paths: dict[str, str] = {}
    for arm in _arms(tree):
        images = join(arm, "observations/images")
        prefix = "" if arm == "/" else arm.strip("/") + "_"
        paths.update({prefix + name: join(images, name) for name in tree.children(images)})
    cameras, warnings = plain_cameras(options, paths, "bgr")
    if cameras and not options.jpeg_order:
        warnings.append("FastUMI pictures are taken as blue first; if colours look wrong: --jpeg-order rgb")
    state = _parts(tree, options.state or ("qpos",), ("observations", ""), "state")
    action = _parts(tree, options.action or ("action",), ("", "observations"), "action")
    if not state:
        raise Hdf5Error("no arm", path=str(tree.path), where=group)
    return EpisodeLayout(
        state=state,
        action=action,
        cameras=cameras,
        task=read_text(tree, "/", "task")[0] or options.instruction,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="fastumi",
        rank=85,
        summary="FastUMI: [robot_<i>]/{action (T, 8), observations/{qpos (T, 8), images/<camera>}}",
        matches=_matches,
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        state="qpos of each arm",
        action="action of each arm (equal to qpos)",
        cameras="observations/images/* of each arm",
        rate="20, with a warning",
    )
]
