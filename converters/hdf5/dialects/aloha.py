"""ALOHA and ACT: one file is one episode.

::

    /action (T, 14)      /observations/{qpos, qvel, effort} (T, 14)      /base_action (T, 2), optional
    /observations/images/<camera>   (T, H, W, 3) raw RGB, or (T, L) zero-padded JPEG, or a JPEG an element
    /compress_len        not kept up to date by the tools that cut episodes: ignored

Compressed pictures were given to OpenCV's encoder as RGB, so that red and blue are swapped for every other decoder.
Whether pictures are compressed is seen from the number of dimensions, never from an attribute.
"""

from __future__ import annotations

from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.images import survey
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    find_parts,
    read_text,
    refused_camera,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join

__all__ = ["DIALECTS"]

_FPS = 50.0
_IMAGES = "/observations/images"


def _matches(tree: Tree, episode: str) -> bool:
    return episode == "/" and tree.dataset("/observations/qpos") is not None and tree.dataset("/action") is not None


def _groups(tree: Tree, options: Hdf5Options) -> list[str]:
    return ["/"]


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    if options.fps:
        return FileFacts(fps=options.fps, fps_from="--fps")
    warning = (
        f"ALOHA files hold no rate: {_FPS:g} frames/s taken (AgileX records at 30, RDT at 25); give --fps to set it"
    )
    return FileFacts(fps=_FPS, fps_from="default", warnings=(warning,))


def _cameras(tree: Tree, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    found: dict[str, CameraPart] = {}
    swapped = False
    notes: list[str] = []
    for name in tree.children(_IMAGES):
        if "depth" in name.lower():
            continue
        if refused := refused_camera(name):
            notes += refused
            continue
        path = join(_IMAGES, name)
        try:
            encoded = survey(tree, path).kind != "raw"
        except Hdf5Error:
            encoded = False
        order = options.jpeg_order or "bgr" if encoded else "rgb"
        swapped = swapped or (encoded and not options.jpeg_order)
        found[name] = CameraPart(path=path, order=order, flip=options.image_flip or "none")
    note = "compressed ALOHA pictures are taken as red and blue swapped; if colours look wrong: --jpeg-order rgb"
    return found, [note, *notes] if swapped else notes


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    task = next((found for name in ("language_raw", "task") if (found := read_text(tree, "/", name)[0])), "")
    cameras, warnings = _cameras(tree, options)
    return EpisodeLayout(
        state=find_parts(tree, "/", options.state or ("qpos",), ("observations", ""), what="state"),
        action=find_parts(tree, "/", options.action or ("action",), ("", "observations"), what="action"),
        cameras=cameras,
        task=task or options.instruction,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="aloha",
        rank=90,
        summary="ALOHA, ACT, mobile-ALOHA: /action, /observations/{qpos, images/<camera>}, one episode a file",
        matches=_matches,
        groups=_groups,
        facts=_facts,
        layout=_layout,
        state="qpos (of observations)",
        action="action",
        cameras="observations/images/*",
        rate="50, with a note",
    )
]
