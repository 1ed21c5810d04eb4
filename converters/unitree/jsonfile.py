"""Reading data.json: whole, or cut off by a crash, as the streaming writer leaves it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wdsmix.errors import DataError

__all__ = ["Recording", "parse_recording", "read_recording"]

_MAX_BYTES = 2 << 30
_SPACE = re.compile(r"[ \t\r\n]*")
_NEXT_ITEM = re.compile(r'\{\s*"idx"\s*:')


@dataclass(kw_only=True, slots=True)
class Recording:
    """What a data.json holds."""

    items: list[Any] = field(default_factory=list)
    """Of ``data``."""
    head: Mapping[str, Any] = field(default_factory=dict)
    """All other keys: ``info``, ``text``, ``result`` ..."""
    recovered: bool = False
    """Whether the file is cut off and what is whole of it was taken."""


def read_recording(path: Path) -> Recording:
    """Reads a data.json.

    Raises:
        DataError: it can't be read, is no recording, or is damaged before its end.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES:
            raise DataError("too large", expected=f"at most {_MAX_BYTES} bytes", found=size)
        raw = path.read_bytes()
    except OSError as error:
        raise DataError(f"can't be read: {error.strerror}") from error
    if not raw.strip(b"\0 \r\n\t"):
        raise DataError("data.json is empty", found=f"{len(raw)} bytes")
    if raw.startswith(b"version https://git-lfs"):
        raise DataError("a Git LFS pointer, not the file", hint="fetch it with `git lfs pull`")
    return parse_recording(raw)


def parse_recording(raw: bytes) -> Recording:
    """Parses the bytes of a data.json.

    Raises:
        DataError: it is no recording, or is damaged before its end.
    """
    raw = raw.rstrip(b"\0 \r\n\t")
    cut = False
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if error.start < len(raw) - 3:
            raise DataError("not UTF-8 text", where=f"byte {error.start}") from error
        text, cut = raw[: error.start].decode("utf-8-sig"), True
    try:
        whole = None if cut else json.loads(text)
    except RecursionError as error:
        raise DataError("nested too deeply") from error
    except ValueError:
        whole = None
    if whole is None:
        return _recovered(text)
    if not isinstance(whole, dict):
        raise DataError("not a recording", expected="an object with data", found=type(whole).__name__)
    return _checked({key: value for key, value in whole.items() if key != "data"}, whole.get("data"), recovered=False)


def _checked(head: dict[str, Any], items: object, *, recovered: bool) -> Recording:
    if not isinstance(items, list):
        raise DataError("no list of frames", where="data", found=", ".join(map(str, head)) or "nothing")
    return Recording(items=items, head=head, recovered=recovered)


def _recovered(text: str) -> Recording:
    """What is whole of a text that breaks off.

    Raises:
        DataError: it does not start like a recording, or what is broken is not its end.
    """
    decoder = json.JSONDecoder()
    head: dict[str, Any] = {}
    try:
        at = _expect(text, _skip(text, 0), "{")
        while True:
            at = _skip(text, at)
            key, at = decoder.raw_decode(text, at)
            at = _skip(text, _expect(text, _skip(text, at), ":"))
            if key == "data":
                break
            head[str(key)], at = decoder.raw_decode(text, at)
            at = _expect(text, _skip(text, at), ",")
        at = _expect(text, at, "[")
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"not valid JSON, and cut off before its first frame: {_why(error)}", where="data.json"
        ) from error
    items: list[Any] = []
    first = place = at
    try:
        while True:
            place = _skip(text, at)
            if text[place : place + 1] == "]":
                return _checked(head, items, recovered=True)
            item, at = decoder.raw_decode(text, place)
            items.append(item)
            place = at = _skip(text, at)
            if text[at : at + 1] == ",":
                at += 1
            elif text[at : at + 1] not in ("]", ""):
                raise ValueError("neither a comma nor the end of the list")
            elif not text[at : at + 1]:
                return _checked(head, items, recovered=True)
    except RecursionError as error:
        raise DataError("nested too deeply", where=f"frame {len(items)}") from error
    except ValueError as error:
        usual = (place - first) / max(1, len(items))
        if _NEXT_ITEM.search(text, place + 1) or (items and len(text) - place > 4 * usual + 4096):
            raise DataError(
                f"damaged in the middle, not cut off: {_why(error)}", where=f"data.json, frame {len(items)}"
            ) from error
    return _checked(head, items, recovered=True)


def _why(error: Exception) -> str:
    return "a number of thousands of digits" if "digits" in str(error) else str(error)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _expect(text: str, at: int, sign: str) -> int:
    if text[at : at + 1] != sign:
        raise ValueError(f"expected {sign!r} at character {at}")
    return at + 1
