"""AgileX ``data_tools``: one file is one episode.

::

    camera/color/<camera> (T,)                            names of picture files in the episode's folder,
                                                          or (T, H, W, 3) as OpenCV reads them: blue first
    arm/jointStatePosition/{puppet*, master*} (T, 7)      state and action
    gripper/encoderDistance/*, robotBase/vel/*            not read by default
    timestamp (T,) s      size (advisory)      instruction    name of a .npy file
"""

from __future__ import annotations

import io
import os

import numpy as np
from wdsmix.converters.hdf5.beside import named_pictures, string_rows
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.language import one_text
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
from wdsmix.converters.hdf5.rules import absolute, assumed_rate, clock_warning, one_episode, root_has
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sidecar import MAX_SIDECAR_BYTES, read_beside
from wdsmix.converters.loose import inside

from wdsmix.errors import DataError

__all__ = ["DIALECTS"]

_FPS = 30.0
_IMAGES = "/camera/color"
_ARMS = "arm/jointStatePosition"
_JSON = "instructions.json"


def _arms(tree: Tree, prefix: str) -> list[str]:
    found = [name for name in tree.children(join(_ARMS)) if name.startswith(prefix)]
    if not found:
        raise Hdf5Error(
            f"no {prefix} arm",
            path=str(tree.path),
            where=join(_ARMS),
            expected=f"{prefix}Left, {prefix}Right or the like",
            found=", ".join(tree.children(join(_ARMS))[:30]) or "nothing",
            hint="name the keys of the state and the action with --state and --action",
        )
    return found


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    try:
        kinds = () if options.action else absolute(tree, find_parts(tree, "/", _arms(tree, "master"), (_ARMS,)))
    except Hdf5Error:
        kinds = ()
    warnings = [] if options.fps else clock_warning(tree, "/timestamp", 1.0, _FPS)
    return assumed_rate(options, _FPS, "AgileX data_tools files", kinds=kinds, warnings=warnings)


def _cameras(tree: Tree, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    found: dict[str, CameraPart] = {}
    warnings: list[str] = []
    flip = options.image_flip or "none"
    for name in tree.children(_IMAGES):
        if refused := refused_camera(name):
            warnings += refused
            continue
        path = join(_IMAGES, name)
        rows = string_rows(tree, path)
        if rows is None:
            found[name] = CameraPart(path=path, order=options.jpeg_order or "bgr", flip=flip)
            continue
        names = named_pictures(tree, path, rows)
        found[name] = CameraPart(path=path, order=options.jpeg_order or "rgb", flip=flip, names=names)
    return found, warnings


def _language(tree: Tree) -> tuple[str, list[str]]:
    """The instruction in the files beside the episode, and warnings."""
    found, wrong = read_beside(tree, _JSON)
    task = one_text(found, ("instructions", "instruction"))
    if task or wrong:
        return task, [wrong] if wrong else []
    name, _ = read_text(tree, "/", "instruction")
    if not name:
        return "", []
    if not name.endswith(".npy"):
        return name, []
    try:
        path = inside(tree.path.parent, name)
    except DataError as error:
        raise Hdf5Error(
            error.message, path=str(tree.path), where="/instruction", check="safe", found=error.where
        ) from error
    tree.beside.setdefault(name, (None, None))
    try:
        if not path.is_file():
            return "", []
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_size > MAX_SIDECAR_BYTES:
                return "", [f"{name} is too large"]
            values = np.load(io.BytesIO(file.read()), allow_pickle=False)
    except (OSError, ValueError, EOFError, SyntaxError, MemoryError) as error:
        return "", [f"{name} can't be read: {' '.join(str(error).split())[:120]}"]
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "US":
        return "", [f"{name} holds no text (an embedding?)"]
    return one_text([str(value) for value in values.reshape(-1)[:16].astype("U").tolist()]), []


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    cameras, warnings = _cameras(tree, options)
    task, wrong = _language(tree)
    state, action = options.state or _arms(tree, "puppet"), options.action or _arms(tree, "master")
    return EpisodeLayout(
        state=find_parts(tree, "/", state, (_ARMS, ""), what="state"),
        action=find_parts(tree, "/", action, (_ARMS, ""), what="action"),
        cameras=cameras,
        task=task or options.instruction,
        warnings=[*warnings, *wrong],
    )


DIALECTS = [
    Dialect(
        name="agilex",
        rank=100,
        summary="AgileX data_tools: camera/color/<camera> (names of files, or pixels), arm/jointStatePosition/<arm>",
        matches=root_has("camera/color", _ARMS),
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        state="puppet* (of arm/jointStatePosition)",
        action="master* (of arm/jointStatePosition)",
        cameras="camera/color/*",
        rate="30, with a warning",
    )
]
