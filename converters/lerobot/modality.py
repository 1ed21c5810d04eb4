"""meta/modality.json (GR00T): parts of vectors, their kinds, and other names of cameras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wdsmix.converters.lerobot.info import read_json
from wdsmix.converters.lerobot.tree import Tree

from wdsmix.errors import DataError

__all__ = ["Modality", "ModalityPart", "read_modality"]

_STANDARD = {"state": "observation.state", "action": "action"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ModalityPart:
    """A named slice of a column."""

    name: str
    column: str
    start: int
    end: int
    absolute: bool
    rotation: str
    """Rotation type, or empty."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Modality:
    """The file's content; empty where there is none."""

    parts: Mapping[str, tuple[ModalityPart, ...]] = field(default_factory=dict)
    """``state`` and ``action`` -> parts, in order of the file."""
    cameras: Mapping[str, str] = field(default_factory=dict)
    """Name -> key of the feature."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    """Name -> column."""


def read_modality(tree: Tree) -> Modality:
    """Reads meta/modality.json where there is one.

    Raises:
        DataError: it is there and not valid; names the part.
    """
    if "meta/modality.json" not in tree.names():
        return Modality()
    raw = read_json(tree, "meta/modality.json")
    if not isinstance(raw, dict):
        raise DataError("not a JSON object", path="meta/modality.json", found=type(raw).__name__)
    parts: dict[str, tuple[ModalityPart, ...]] = {}
    for vector, column in _STANDARD.items():
        section = raw.get(vector)
        if isinstance(section, dict):
            parts[vector] = tuple(
                _part(f"{vector}.{name}", str(name), value, column) for name, value in section.items()
            )
    return Modality(
        parts=parts,
        cameras=dict(_renames(raw.get("video"), "observation.images.")),
        annotations=dict(_renames(raw.get("annotation"), "annotation.")),
    )


def _part(where: str, name: str, raw: object, column: str) -> ModalityPart:
    start, end = (raw.get("start"), raw.get("end")) if isinstance(raw, dict) else (None, None)
    if not isinstance(raw, dict) or type(start) is not int or type(end) is not int or not 0 <= start < end:
        raise DataError(
            "not a slice", path="meta/modality.json", where=where, expected="start < end", found=str(raw)[:200]
        )
    absolute = raw.get("absolute", True)
    if not isinstance(absolute, bool):
        raise DataError(
            "not true or false", path="meta/modality.json", where=f"{where}.absolute", found=str(absolute)[:80]
        )
    return ModalityPart(
        name=name,
        column=str(raw.get("original_key") or column),
        start=start,
        end=end,
        absolute=absolute,
        rotation=str(raw.get("rotation_type") or ""),
    )


def _renames(section: object, prefix: str) -> list[tuple[str, str]]:
    if not isinstance(section, dict):
        return []
    return [
        (str(name), str((value.get("original_key") if isinstance(value, dict) else None) or f"{prefix}{name}"))
        for name, value in section.items()
    ]
