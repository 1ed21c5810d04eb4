"""What a dialect says about a file and its episodes: which datasets are the vectors, the cameras, the task.

A *dialect* knows one structure. A *part* is one dataset of a vector; a vector is its parts side by side.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import h5py
import numpy as np
from wdsmix.converters.hdf5.faults import Hdf5Error, no_memory
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, text

from wdsmix.episode import DimensionKind
from wdsmix.texts import printable

__all__ = ["CameraPart", "Dialect", "EpisodeLayout", "FileFacts", "Part", "find_parts", "name_fault", "read_text"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One dataset (T, ...) that is part of a vector."""

    path: str
    name: str
    """Prefix of the names of its dimensions."""
    start: int = 0
    """Its row of frame 0."""
    stop: int | None = None
    """The row after its last one; None: all that it has."""
    rows: Sequence[int] | None = None
    """Rows of the dataset that are the stream, which ``start`` and ``stop`` then count; None: all, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CameraPart:
    """One camera."""

    path: str
    """Its dataset or group; of a video, a name for messages."""
    order: Literal["rgb", "bgr"] = "rgb"
    """Of raw pixels and of a plain decode."""
    flip: Literal["none", "vertical", "rot180"] = "none"
    start: int = 0
    stop: int | None = None
    video: str = ""
    """Name of the video that holds the pictures, relative to the file's folder."""
    names: Sequence[str] | None = None
    """Names of the picture files that the rows tell, relative to the file's folder and checked to lie in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileFacts:
    """What holds for all episodes of a file."""

    fps: float
    fps_from: str
    """Where the rate came from: ``--fps``, ``file`` or ``default``."""
    kinds: Mapping[str, tuple[DimensionKind, ...]] = field(default_factory=dict)
    """Vector -> what its dimensions mean."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Name of an episode's group -> split."""
    selected: frozenset[str] | None = None
    """Names of the wanted episodes; None: all."""
    task: str = ""
    embodiment: str = ""
    warnings: Sequence[str] = ()
    details: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeLayout:
    """Where the streams of one episode lie."""

    state: Sequence[Part]
    action: Sequence[Part]
    gripper: Sequence[Part] = ()
    """Appended to the state by ``--gripper append``."""
    optional: Mapping[str, Part] = field(default_factory=dict)
    """``reward``, ``done``: left out where they hold nothing."""
    cameras: Mapping[str, CameraPart] = field(default_factory=dict)
    """Key -> camera."""
    frames: int | None = None
    """Frames of the episode where the dialect knows; None: the rows of the action."""
    slack: int | None = None
    """Rows that a stream may have beyond ``frames``; None: one where ``frames`` is given, else none."""
    task: str = ""
    task_zh: str = ""
    score: float | None = None
    success: bool | None = None
    """Whether the attempt succeeded, where the source tells; see ``Dialect.failed``."""
    keep: Sequence[int] | None = None
    """The frames that are taken, ascending; None: all. Streams are as long as if all were."""
    extras: Mapping[str, object] = field(default_factory=dict)
    frame_extras: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Name -> a fact for each frame (JSON types)."""
    warnings: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """One structure of files. Each module of the package ``dialects`` holds some, as ``DIALECTS``."""

    name: str
    rank: int
    """Order of detection: the lowest that matches is taken."""
    summary: str
    """One line: who writes it, what it looks like."""
    matches: Callable[[Tree, str], bool]
    """Whether the file, looked at through one of its episodes (a group; ``/`` for the whole), is of this dialect."""
    groups: Callable[[Tree, Hdf5Options], list[str]]
    """Groups of the episodes, in natural order."""
    facts: Callable[[Tree, Hdf5Options], FileFacts] | None = None
    layout: Callable[[Tree, str, Hdf5Options, FileFacts], EpisodeLayout] | None = None
    refusal: str = ""
    """Why such a file can't be converted, and what to do; empty: it can."""
    numbered: bool = False
    """Whether gaps in the numbers of the episodes mean that some are missing."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Vector -> size that none of its values should have, such as 1 of commands from -1 to 1, or rad of a turn."""
    virtual: bool = False
    """Whether the names that ``groups`` gives are the dialect's own (rows of datasets), not groups of the file."""
    failed: Literal["keep", "drop"] = "keep"
    """What becomes of attempts that the source calls failed, unless ``--failed`` says otherwise."""
    pairing: str = "same row"
    """Which row of the action goes with an observation, in words, for the manifest."""
    state: str = ""
    action: str = ""
    cameras: str = ""
    rate: str = ""
    """Defaults, in words, for the help."""


REFUSED_CAMERA = "left out: camera"
"""How the warning of `refused_camera` begins."""


def name_fault(name: str) -> str | None:
    """What is wrong with the name of a group that would become the name of an episode or camera."""
    if name in ("", ".", ".."):
        return f"refused: the name {name!r}"
    if any(unicodedata.category(char) in ("Cc", "Cs") for char in name):
        return "refused: a name with control characters or broken encoding"
    if len(name.encode("utf-8", "surrogateescape")) > 255:
        return "refused: a name of more than 255 bytes"
    return None


def refused_camera(name: str) -> list[str]:
    """A warning where a camera has a name that no set can keep; empty: it can."""
    wrong = name_fault(name)
    shown = printable(name if len(name) <= 60 else f"{name[:57]}...")
    return [f"{REFUSED_CAMERA} {shown}: {wrong}"] if wrong else []


def find_parts(
    tree: Tree, group: str, keys: Sequence[str], bases: Sequence[str] = ("",), *, what: str = "data"
) -> list[Part]:
    """Finds the datasets of the given keys, each in the first of the bases that has it.

    Raises:
        Hdf5Error: one is missing; lists what is there.
    """
    parts = []
    for key in keys:
        tried = [join(group, base, key) for base in bases]
        path = next((place for place in tried if tree.dataset(place) is not None), None)
        if path is None:
            there = sorted({child for base in bases for child in tree.children(join(group, base))})
            shown = ", ".join(there[:30]) + (", ..." if len(there) > 30 else "")
            raise Hdf5Error(
                f"{what} {key!r} is missing",
                path=str(tree.path),
                where=group,
                expected=tried[0],
                found=shown or "nothing",
            )
        parts.append(Part(path=path, name=key.strip("/").rsplit("/", 1)[-1]))
    return parts


def read_text(tree: Tree, group: str, name: str) -> tuple[str, bool]:
    """A text of an episode: its attribute, else the scalar dataset of that name.

    Returns:
        The text (empty where there is none) and whether its encoding is doubtful.
    """
    value, doubtful = text(read_value(tree, group, name))
    return value or "", doubtful


def read_value(tree: Tree, group: str, name: str) -> object:
    """An attribute of a group, else the value of its small dataset of that name, else None.

    Raises:
        MemoryError: its texts, which can share their bytes, are more than memory holds.
    """
    owner = tree.group(group)
    found = attribute(owner, name) if owner is not None else None
    if found is not None:
        return found
    dataset = tree.dataset(join(group, name))
    if dataset is None or dataset.shape is None or math.prod(dataset.shape) * dataset.dtype.itemsize > 1 << 20:
        return None
    try:
        tree.check_stored(join(group, name), dataset)
        tree.check_inflated(join(group, name), dataset)
        value: object = dataset[()]
    except (Hdf5Error, OSError, RuntimeError, ValueError, TypeError) as error:
        if no_memory(error):
            raise MemoryError from error
        return None
    if dataset.dtype.kind == "O" and h5py.check_string_dtype(dataset.dtype) is None:
        if isinstance(value, np.ndarray) and value.size == 1:  # a text as bytes of variable length
            value = value.reshape(-1)[0]
            value = value.tobytes() if isinstance(value, np.ndarray) and value.dtype.itemsize == 1 else value
        return value if isinstance(value, bytes) else None
    return value


__all__ += ["REFUSED_CAMERA", "read_value", "refused_camera"]
