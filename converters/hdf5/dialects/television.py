"""Open-TeleVision after its post-processing: one file is one episode.

::

    observation.image.left, observation.image.right   (T, 3, H, W) RGB
    observation.state (T, Ds)    qpos_action (T, Da)    cmds, ee_action: not read by default

The dots are part of the names.
"""

from __future__ import annotations

from wdsmix.converters.hdf5.layout import (
    Dialect,
    EpisodeLayout,
    FileFacts,
    find_parts,
    read_text,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import JOINTS, absolute, assumed_rate, one_episode, plain_cameras
from wdsmix.converters.hdf5.safe import Tree, join

__all__ = ["DIALECTS"]

_FPS = 60.0
_IMAGES = "observation.image."


def _matches(tree: Tree, episode: str) -> bool:
    return (
        episode == "/" and tree.dataset("/observation.state") is not None and tree.dataset("/qpos_action") is not None
    )


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    kinds = () if options.action else absolute(tree, find_parts(tree, "/", ("qpos_action",)))
    return assumed_rate(options, _FPS, "TeleVision files", kinds=kinds)


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    names = [name for name in tree.children("/") if name.startswith(_IMAGES) and "depth" not in name]
    cameras, warnings = plain_cameras(options, {name[len(_IMAGES) :]: join(name) for name in names})
    return EpisodeLayout(
        state=find_parts(tree, "/", options.state or ("observation.state",), what="state"),
        action=find_parts(tree, "/", options.action or ("qpos_action",), what="action"),
        cameras=cameras,
        task=read_text(tree, "/", "task")[0] or options.instruction,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="television",
        rank=15,
        summary="Open-TeleVision: observation.image.<eye>, observation.state, qpos_action at the root",
        matches=_matches,
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        limits=JOINTS,
        state="observation.state",
        action="qpos_action",
        cameras="observation.image.*",
        rate="60, with a warning",
    )
]
