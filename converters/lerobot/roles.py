"""What each column and each camera becomes: chosen once for a dataset, the same for all its episodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from wdsmix.converters.lerobot.columns import is_numeric, is_picture, is_scalar
from wdsmix.converters.lerobot.info import DEFAULT_COLUMNS, Feature, Info
from wdsmix.converters.lerobot.modality import Modality, ModalityPart
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.slots import natural_key

from wdsmix.episode import DimensionKind, VectorSpec
from wdsmix.errors import ConfigError, DataError
from wdsmix.texts import counted

__all__ = ["Part", "Roles", "VectorRole", "choose_roles"]

_STANDARD: dict[str, tuple[str, ...]] = {
    "state": ("observation.state", "state"),
    "action": ("action", "actions"),
    "reward": ("next.reward", "reward"),
    "done": ("next.done", "done"),
}
_SPLIT = {"state": ("observation.state.", "state."), "action": ("action.", "actions.")}
_TASK_TEXT = ("annotation.human.action.task_description", "annotation.human.task_description", "language_instruction")
_ROTATION = re.compile(r"rot|rpy|euler|axis_?angle|quat|roll|pitch|yaw", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A column, or a slice of one."""

    column: str
    width: int
    """Numbers in a cell of the column."""
    start: int
    stop: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorRole:
    """A vector: its parts joined."""

    parts: tuple[Part, ...]
    spec: VectorSpec

    @property
    def width(self) -> int:
        """Dimensions."""
        return sum(part.stop - part.start for part in self.parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """What a dataset's columns become."""

    vectors: Mapping[str, VectorRole]
    extras: tuple[str, ...]
    """Columns whose cells go into the frames' JSON."""
    task_column: str = ""
    """Column that tells the task where there is no ``task_index``: of numbers into the task table, or of texts."""
    present: frozenset[str] = frozenset()
    """Those of the default columns that are there."""

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns to read, but pictures."""
        wanted = {part.column for role in self.vectors.values() for part in role.parts}
        return tuple(sorted(wanted | set(self.extras) | set(self.present) | ({self.task_column} - {""})))


@dataclass(kw_only=True, slots=True)
class _Chooser:
    info: Info
    options: LeRobotOptions
    modality: Modality
    schema: Mapping[str, pa.DataType]
    widths: Mapping[str, int]
    """Width of each numeric column, measured where a file was at hand, else declared."""
    warnings: list[str]

    def whole(self, column: str) -> Part:
        return Part(column=column, width=self.widths[column], start=0, stop=self.widths[column])

    def numeric(self, key: str) -> bool:
        return key in self.schema and is_numeric(self.schema[key]) and self.widths.get(key, 0) > 0

    def asked(self, name: str, keys: Sequence[str]) -> VectorRole:
        for key in keys:
            if not self.numeric(key):
                there = ", ".join(sorted((k for k in self.schema if self.numeric(k)), key=natural_key))
                raise ConfigError(
                    "no such column of numbers", where=f"--{name}", expected=f"one of: {there}", found=key
                )
        return self.role(name, tuple(self.whole(key) for key in keys), self.key_kinds(keys))

    def key_kinds(self, keys: Sequence[str]) -> tuple[DimensionKind, ...]:
        """Kinds by names: what is called delta is one."""
        kinds: list[DimensionKind] = []
        for key in keys:
            delta = "delta" in key.lower()
            for name in self.names(key):
                turns = delta and (_ROTATION.search(key) or _ROTATION.search(name))
                kinds.append("delta_rotation" if turns else "delta" if delta else "unknown")
        return tuple(kinds) if set(kinds) - {"unknown"} else ()

    def names(self, column: str) -> tuple[str, ...]:
        feature = self.info.features.get(column)
        width = self.widths[column]
        if feature is not None and len(feature.names) == width:
            return feature.names
        if feature is not None and feature.names and width > 1:
            self.warnings.append(
                f"{column}: {counted(len(feature.names), 'name')} for {width} dimensions; they are numbered"
            )
        return tuple(f"dim_{k}" for k in range(width)) if width > 1 else (column,)

    def role(
        self, name: str, parts: tuple[Part, ...], kinds: tuple[DimensionKind, ...] = (), names: tuple[str, ...] = ()
    ) -> VectorRole:
        if not names:
            names = tuple(text for part in parts for text in self.names(part.column)[part.start : part.stop])
            if len(parts) > 1:
                names = tuple(
                    f"{part.column}.{text}" if text != part.column else text
                    for part in parts
                    for text in self.names(part.column)[part.start : part.stop]
                )
        return VectorRole(parts=parts, spec=VectorSpec(names=names, kinds=kinds))

    def standard(self, name: Literal["state", "action"]) -> VectorRole | None:
        parts = self.modality.parts.get(name, ())
        column = next((key for key in _STANDARD[name] if self.numeric(key)), None)
        if column is not None:
            self.refuse_chunks(column)
            return self.role(name, (self.whole(column),), self.part_kinds(name, column, parts))
        if parts:
            return self.from_parts(name, parts)
        split = sorted(
            (key for key in self.schema if key.startswith(_SPLIT[name]) and self.numeric(key)), key=natural_key
        )
        if len(split) == 1:
            self.warnings.append(f"{name} is {split[0]}, the only column of its kind")
            return self.asked(name, split)
        if split:
            shown = ", ".join(f"{key} ({self.widths[key]})" for key in split)
            chosen = ",".join(key for key in split if "delta" not in key) or ",".join(split)
            raise ConfigError(
                f"{name} is split over columns: {shown}",
                where=f"--{name}",
                hint=f"say which, such as --{name} {chosen}",
            )
        return None

    def refuse_chunks(self, column: str) -> None:
        pads = f"{column}_is_pad"
        if pads in self.schema and not is_scalar(self.schema[column]):
            raise ConfigError(
                f"{column} holds chunks of several steps ({pads} lies beside it): left over from training",
                where=f"--{column}",
                hint=f"convert the recording itself, or take it as it is with --{column} {column}",
            )

    def part_kinds(self, name: str, column: str, parts: Sequence[ModalityPart]) -> tuple[DimensionKind, ...]:
        kinds: list[DimensionKind] = ["unknown"] * self.widths[column]
        for part in parts:
            if part.column == column and part.end <= len(kinds):
                kinds[part.start : part.end] = [_kind(part)] * (part.end - part.start)
            elif part.column == column:
                self.warnings.append(
                    f"modality.json: {name}.{part.name} ends at {part.end}, {column} has "
                    f"{counted(len(kinds), 'dimension')}"
                )
        return tuple(kinds) if set(kinds) - {"unknown"} else ()

    def from_parts(self, name: str, parts: Sequence[ModalityPart]) -> VectorRole:
        made: list[Part] = []
        kinds: list[DimensionKind] = []
        names: list[str] = []
        for part in parts:
            width = self.widths.get(part.column, 0) if self.numeric(part.column) else 0
            if part.end > width:
                raise DataError(
                    "a part is not in the data",
                    path="meta/modality.json",
                    where=f"{name}.{part.name}",
                    expected=f"{part.column} of at least {part.end} dimensions",
                    found=width or "no such column of numbers",
                    hint=f"name the columns with --{name}",
                )
            made.append(Part(column=part.column, width=width, start=part.start, stop=part.end))
            kinds += [_kind(part)] * (part.end - part.start)
            names += [f"{part.name}.{k}" for k in range(part.end - part.start)]
        return self.role(name, tuple(made), tuple(kinds), tuple(names))


def _kind(part: ModalityPart) -> DimensionKind:
    if part.absolute:
        return "absolute"
    return "delta_rotation" if part.rotation else "delta"


def choose_roles(
    info: Info,
    options: LeRobotOptions,
    modality: Modality,
    schema: Mapping[str, pa.DataType],
    widths: Mapping[str, int],
    warnings: list[str],
) -> Roles:
    """Chooses what each column becomes.

    Args:
        info: The declared features.
        options: Keys that the user chose.
        modality: Parts and renames.
        schema: Column -> type, of the data files.
        widths: Column -> numbers in a cell.
        warnings: Is added to.

    Raises:
        ConfigError: no state and no action, columns that need a choice, or a chosen one that is not there.
    """
    chooser = _Chooser(info=info, options=options, modality=modality, schema=schema, widths=widths, warnings=warnings)
    vectors: dict[str, VectorRole] = {}
    for name in ("state", "action"):
        asked = options.state if name == "state" else options.action
        role = chooser.asked(name, asked) if asked else chooser.standard("state" if name == "state" else "action")
        if role is not None:
            vectors[name] = role
        else:
            warnings.append(f"no {name}: none of {', '.join(_STANDARD[name])} is there, nor a column split from it")
    if not vectors:
        raise ConfigError(
            "neither a state nor an action is there",
            path="meta/info.json",
            found=", ".join(schema) or "no columns",
            hint="name the columns with --state and --action",
        )
    for name in ("reward", "done"):
        column = next((key for key in _STANDARD[name] if chooser.numeric(key) and widths[key] == 1), None)
        if column is not None:
            vectors[name] = chooser.role(name, (chooser.whole(column),))
    used = {part.column for role in vectors.values() for part in role.parts} | set(DEFAULT_COLUMNS)
    extras = _further(chooser, vectors, used)
    task = "" if "task_index" in schema else next((key for key in _TASK_TEXT if key in schema), "")
    return Roles(
        vectors=vectors,
        extras=tuple(extras),
        task_column=task,
        present=frozenset(key for key in DEFAULT_COLUMNS if key in schema),
    )


def _further(chooser: _Chooser, vectors: dict[str, VectorRole], used: set[str]) -> list[str]:
    """Gives the other columns their places; returns those for the frames' JSON."""
    keep, extras = chooser.options.keep, []
    for key in keep or ():
        if key not in chooser.schema:
            raise ConfigError(
                "no such column", where="--keep", expected=f"one of: {', '.join(chooser.schema)}", found=key
            )
    for key, kind in chooser.schema.items():
        feature: Feature | None = chooser.info.features.get(key)
        if key in used or is_picture(kind) or (feature is not None and feature.camera):
            continue
        if keep is not None and key not in keep:
            continue
        if is_numeric(kind) and chooser.widths.get(key, 0) > 1 and not pa.types.is_integer(kind):
            name = re.sub(r"[^A-Za-z0-9_-]+", "_", key.removeprefix("observation.")).strip("_-") or "vector"
            while name in vectors or name == "json" or re.fullmatch(r"cam\d+", name):
                name += "_"
            vectors[name] = chooser.role(name, (chooser.whole(key),), chooser.key_kinds([key]))
        else:
            extras.append(key)
    return extras
