"""States and actions of data.json as columns of numbers: aliases, empty parts, parts that change width."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError

__all__ = ["MAIN_PARTS", "Columns", "chosen", "columns_of", "rest_of", "tag"]

Columns = Mapping[tuple[str, str], npt.NDArray[np.float64]]
"""(part, field) -> float64 [T, D]."""

MAIN_PARTS = ("left_arm", "right_arm", "left_ee", "right_ee")
"""Parts of state and action, in this order, where nothing else is asked."""

_ALIASES = {"left_hand": "left_ee", "right_hand": "right_ee"}
_FIELD = "qpos"
_MOST_PARTS = 64
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_TAKEN = re.compile(r"state|action|reward|done|json|cam\d+")


def columns_of(items: Sequence[Mapping[str, Any]], block: str, idx: Sequence[int]) -> Columns:
    """The numbers of one block (``states`` or ``actions``) over all frames.

    Parts that are empty in every frame are left out.

    Raises:
        DataError: no numbers at all, or a part that changes its width; names the frame.
    """
    rows = [_flat(item.get(block), block, number) for item, number in zip(items, idx, strict=True)]
    keys = list(dict.fromkeys(key for row in rows for key in row))
    if len(keys) > _MOST_PARTS:
        raise DataError("too many parts", where=block, expected=f"at most {_MOST_PARTS}", found=len(keys))
    if not keys:
        raise DataError(f"no {block}: none of its frames has joint data")
    found: dict[tuple[str, str], npt.NDArray[np.float64]] = {}
    for key in keys:
        widths = [len(row.get(key, ())) for row in rows]
        if len(set(widths)) > 1:
            odd = next(k for k, width in enumerate(widths) if width != widths[0])
            raise DataError(
                "a part changes its width",
                where=f"{block}.{tag(key)}",
                expected=f"{widths[0]} numbers as at idx {idx[0]}",
                found=f"{widths[odd]} at idx {idx[odd]}",
            )
        found[key] = np.array([row[key] for row in rows], np.float64)
    return found


def tag(key: tuple[str, str]) -> str:
    """A part's name, with its field where that is not the position."""
    return key[0] if key[1] == _FIELD else f"{key[0]}.{key[1]}"


def _flat(block: object, name: str, number: int) -> dict[tuple[str, str], list[float]]:
    """(part, field) -> numbers of one frame, empty ones left out."""
    if block is None:
        return {}
    if not isinstance(block, dict):
        raise DataError("not an object", where=f"{name} at idx {number}", found=type(block).__name__)
    flat: dict[tuple[str, str], list[float]] = {}
    for given, value in block.items():
        part = str(given)
        own = _ALIASES.get(part, part)
        if own != part and own in block:
            own = part
        fields = value if isinstance(value, dict) else {_FIELD: value}
        for field, numbers in fields.items():
            listed = _numbers(numbers, f"{name}.{part}.{field} at idx {number}")
            if listed:
                flat[own, str(field)] = listed
    return flat


def _numbers(value: object, where: str) -> list[float]:
    if value is None or isinstance(value, str):
        return []
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = [value]
    if not isinstance(value, list):
        return []
    numbers: list[float] = []
    for entry in value:
        if isinstance(entry, list):
            numbers += _numbers(entry, where)
        elif isinstance(entry, (int, float)):
            try:
                numbers.append(float(entry))
            except OverflowError as error:
                raise DataError("too large a number", where=where) from error
        else:
            raise DataError("not a number", where=where, found=type(entry).__name__)
    return numbers


def chosen(columns: Columns, wanted: Sequence[str], option: str) -> list[tuple[str, str]]:
    """The keys that make up state or action.

    Args:
        columns: What is there.
        wanted: Names such as ``left_arm`` or ``left_arm.qvel``; empty: arms and hands, else every position.
        option: Of the command line, for the message.

    Raises:
        DataError: a wanted one is not there.
    """
    if not wanted:
        main = [(part, _FIELD) for part in MAIN_PARTS if (part, _FIELD) in columns]
        return main or [key for key in columns if key[1] == _FIELD] or list(columns)
    named = {tag(key): key for key in columns}
    keys = []
    for name in wanted:
        short = name.removesuffix(f".{_FIELD}")
        short = _ALIASES.get(short, short)
        if short not in named:
            raise DataError("no such part", where=option, expected=f"one of: {', '.join(named)}", found=name)
        keys.append(named[short])
    return keys


def rest_of(columns: Columns, used: Sequence[tuple[str, str]], prefix: str) -> dict[str, tuple[str, str]]:
    """Name of a further vector -> key, of what is in neither state nor action.

    Raises:
        DataError: a name can't be that of a vector, or two come out alike.
    """
    found: dict[str, tuple[str, str]] = {}
    for key in columns:
        if key in used:
            continue
        name = prefix + tag(key).replace(".", "_")
        if not _NAME.fullmatch(name) or _TAKEN.fullmatch(name) or name in found:
            raise DataError("a part whose name can't be that of a vector", found=ascii(tag(key))[:80])
        found[name] = key
    return found
