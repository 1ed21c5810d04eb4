"""ALOHA and ACT and what descends from them: one file is one episode.

::

    /action (T, 14)      /observations/{qpos, qvel, effort} (T, 14)      /base_action (T, 2), optional
    /observations/images/<camera>   (T, H, W, 3) raw RGB, or (T, L) zero-padded JPEG, or a JPEG an element
    /observations/images_depth      AgileX: left out
    /compress_len        not kept up to date by the tools that cut episodes: ignored
    /language_raw, /substep_reasonings    the instruction, and one a row: by some writers

Compressed pictures were given to OpenCV's encoder as RGB, so that red and blue are swapped for every other decoder.
Whether pictures are compressed is seen from the number of dimensions, never from an attribute or a folder's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from wdsmix.converters.hdf5.beside import string_rows
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.images import survey
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
from wdsmix.converters.hdf5.rules import JOINTS, absolute, assumed_rate, one_episode, rows_of
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sidecar import read_beside
from wdsmix.converters.hdf5.strings import attribute, clean_text, number

from wdsmix.texts import counted

__all__ = ["DIALECTS"]

_IMAGES = "/observations/images"
_BASE = "/base_action"
_EXPANDED = "expanded_instruction_gpt-4-turbo.json"
_EXPANDED_KEYS = ("instruction", "simplified_instruction", "expanded_instruction")


@dataclass(frozen=True, kw_only=True, slots=True)
class _Variant:
    """One of the writers."""

    name: str
    fps: float
    who: str
    matches: Callable[[Tree], bool]


def _flag(tree: Tree, name: str) -> bool:
    return bool(number(attribute(tree.file, name)))


def _encoded(tree: Tree, path: str) -> bool:
    try:
        return survey(tree, path).kind != "raw"
    except Hdf5Error:
        return False


def _any_encoded(tree: Tree) -> bool:
    names = [name for name in tree.children(_IMAGES) if "depth" not in name.lower()]
    return any(_encoded(tree, join(_IMAGES, name)) for name in names[:1])


def _has(*paths: str) -> Callable[[Tree], bool]:
    return lambda tree: any(tree.get(path) is not None for path in paths)


def _cobot(tree: Tree) -> bool:
    if tree.get("/observations/images_depth") is not None:
        return True
    return tree.dataset(_BASE) is not None and not _flag(tree, "sim") and not _any_encoded(tree)


_VARIANTS = (
    _Variant(name="unitree-h5", fps=30, who="Unitree's HDF5 files", matches=_has("/substep_reasonings", "/is_edited")),
    _Variant(name="rdt", fps=25, who="RDT's files", matches=lambda tree: read_beside(tree, _EXPANDED) != (None, None)),
    _Variant(name="cobot-magic", fps=30, who="AgileX Cobot Magic files", matches=_cobot),
    _Variant(name="mobile-aloha", fps=50, who="mobile ALOHA files", matches=_has(_BASE)),
    _Variant(name="act-sim", fps=50, who="ACT's simulated files", matches=lambda tree: _flag(tree, "sim")),
    _Variant(name="aloha", fps=50, who="ALOHA files", matches=lambda tree: True),
)
"""The first that matches is taken. The rates are those of the recorders: none is in a file."""


def _matches(tree: Tree, episode: str) -> bool:
    return episode == "/" and tree.dataset("/observations/qpos") is not None and tree.dataset("/action") is not None


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    variant = next(variant for variant in _VARIANTS if variant.matches(tree))
    warnings = []
    if tree.path.stem.startswith("mirror_"):
        warnings.append("a mirrored copy of another episode, by its name: keep the two in one split")
    if not options.action and _moves(tree):
        warnings.append("base_action is not part of the action; --action action,base_action takes it")
    sim = attribute(tree.file, "sim")
    return assumed_rate(
        options,
        variant.fps,
        variant.who,
        kinds=() if options.action else absolute(tree, find_parts(tree, "/", ("action",))),
        details={"variant": variant.name, "sim": "" if sim is None else str(bool(number(sim))).lower()},
        warnings=warnings,
    )


def _moves(tree: Tree) -> bool:
    """Whether there is a base, and it moves."""
    try:
        return rows_of(tree, _BASE) > 0 and bool(tree.read_vector(_BASE).any())
    except Hdf5Error:
        return False


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
        encoded = _encoded(tree, path)
        order = options.jpeg_order or ("bgr" if encoded else "rgb")
        swapped = swapped or (encoded and not options.jpeg_order)
        found[name] = CameraPart(path=path, order=order, flip=options.image_flip or "none")
    note = "compressed ALOHA pictures are taken as red and blue swapped; if colours look wrong: --jpeg-order rgb"
    return found, [note, *notes] if swapped else notes


def _language(tree: Tree, options: Hdf5Options) -> tuple[str, list[str]]:
    """The instruction in the file, else in the one beside it, and warnings."""
    own = next(
        (found for name in ("language_raw", "task", "instruction") if (found := read_text(tree, "/", name)[0])), ""
    )
    if own and not options.instruction_key:
        return own, []
    beside, wrong = read_beside(tree, _EXPANDED)
    if wrong:
        return own, [wrong]
    if options.instruction_key and isinstance(beside, Mapping) and options.instruction_key not in beside:
        there = ", ".join(map(str, beside))[:200]
        return own, [f"{_EXPANDED} has no {options.instruction_key!r} (--instruction-key); it has: {there}"]
    keys = (options.instruction_key,) if options.instruction_key else _EXPANDED_KEYS
    return one_text(beside, keys) or own, []


def _steps(tree: Tree, task: str) -> tuple[dict[str, list[object]], list[str]]:
    """The instruction of each row, where one differs from the task."""
    try:
        rows = string_rows(tree, "/substep_reasonings")
    except Hdf5Error as fault:
        return {}, [f"substep_reasonings left out: {fault.message}"]
    texts: list[object] = [clean_text(row) for row in rows or ()]
    if not any(text not in ("", task) for text in texts):
        return {}, []
    if len(texts) != (wanted := rows_of(tree, "/action")):
        return {}, [f"substep_reasonings left out: {counted(len(texts), 'row')}, the action has {wanted}"]
    return {"substep": texts}, []


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    cameras, warnings = _cameras(tree, options)
    task, wrong = _language(tree, options)
    steps, more = _steps(tree, task)
    return EpisodeLayout(
        state=find_parts(tree, "/", options.state or ("qpos",), ("observations", ""), what="state"),
        action=find_parts(tree, "/", options.action or ("action",), ("", "observations"), what="action"),
        cameras=cameras,
        task=task or options.instruction,
        frame_extras=steps,
        warnings=[*warnings, *wrong, *more],
    )


DIALECTS = [
    Dialect(
        name="aloha",
        rank=90,
        summary="ALOHA, ACT and their kin: /action, /observations/{qpos, images/<camera>}, one episode a file",
        matches=_matches,
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        limits=JOINTS,
        state="qpos (of observations)",
        action="action",
        cameras="observations/images/*",
        rate="50; Cobot Magic and Unitree 30, RDT 25; with a warning",
    )
]
