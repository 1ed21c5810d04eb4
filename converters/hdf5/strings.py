"""Strings and numbers from attributes and scalar datasets, in any storage that writers use."""

from __future__ import annotations

import json
import math
import unicodedata

import h5py
import numpy as np
from wdsmix.converters.hdf5.faults import no_memory

__all__ = [
    "MAX_ATTRIBUTE_BYTES",
    "attribute",
    "clean_text",
    "decode",
    "json_object",
    "number",
    "text",
]

MAX_ATTRIBUTE_BYTES = 16 << 20
"""An attribute above this size is not read."""


def decode(data: bytes) -> tuple[str, bool]:
    """Decodes UTF-8, else GB18030, else Latin-1.

    Returns:
        The text, and whether it is doubtful (Latin-1 accepts anything).
    """
    for encoding in ("utf-8", "gb18030"):
        try:
            return data.decode(encoding), False
        except UnicodeDecodeError:
            continue
    return data.decode("latin-1"), True


def clean_text(value: str) -> str:
    """One line: NFC, without control characters, surrounding quotes and needless whitespace."""
    value = "".join(" " if unicodedata.category(char) in ("Cc", "Cs") else char for char in value)
    value = " ".join(unicodedata.normalize("NFC", value).split())
    while len(value) >= 2 and value[0] == value[-1] and value[0] in "\"'":
        value = value[1:-1].strip()
    return value


def text(value: object) -> tuple[str | None, bool]:
    """The text of an attribute's or scalar dataset's value.

    Args:
        value: str, bytes, a numpy scalar or array of them, `h5py.Empty`, a list; several are joined by a space.

    Returns:
        The cleaned text (None: there is none) and whether its encoding is doubtful.
    """
    if value is None or isinstance(value, h5py.Empty):
        return None, False
    if isinstance(value, str):
        raw = value.encode("utf-8", "surrogateescape")
        plain, doubtful = decode(raw) if any("\ud800" <= char <= "\udfff" for char in value) else (value, False)
        return clean_text(plain) or None, doubtful
    if isinstance(value, (bytes, bytearray)):
        plain, doubtful = decode(bytes(value).rstrip(b"\0"))
        return clean_text(plain) or None, doubtful
    if isinstance(value, np.void):
        return text(value.tobytes())
    if isinstance(value, np.ndarray):
        if value.dtype == np.uint8 and value.ndim == 1:
            return text(value.tobytes())
        if value.dtype.kind not in "SUOV":
            return None, False
        value = value.reshape(-1).tolist()
    if isinstance(value, (list, tuple)):
        parts = [text(item) for item in value]
        joined = " ".join(part for part, _ in parts if part)
        return joined or None, any(flag for _, flag in parts)
    return None, False


def number(value: object) -> float | None:
    """The finite number in a value: int, float, bool, a string of one, a one-element array; else None."""
    if isinstance(value, np.ndarray):
        if value.size != 1:
            return None
        value = value.reshape(-1)[0]
    if isinstance(value, (str, bytes, np.bytes_)):
        plain, _ = text(value)
        try:
            value = float(plain or "")
        except ValueError:
            return None
    if isinstance(value, (int, float, np.integer, np.floating, np.bool_)):
        try:
            result = float(value)
        except OverflowError:  # an integer of hundreds of digits
            return None
        return result if math.isfinite(result) else None
    return None


def attribute(owner: h5py.HLObject, name: str) -> object:
    """An attribute's value; None where it is absent, over-long, or can't be read.

    Raises:
        MemoryError: its texts, which can share their bytes, are more than memory holds.
    """
    try:
        if name not in owner.attrs:
            return None
        identifier = owner.attrs.get_id(name)
        if identifier.get_storage_size() > MAX_ATTRIBUTE_BYTES:
            return None
        try:
            return owner.attrs[name]
        except UnicodeDecodeError:
            return _raw_string(identifier)
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        if no_memory(error):
            raise MemoryError from error
        return None


def _raw_string(identifier: h5py.h5a.AttrID) -> object:
    """Bytes of a string attribute whose declared encoding is wrong."""
    target = np.empty(identifier.shape, dtype=h5py.string_dtype("ascii") if identifier.dtype.kind == "O" else None)
    identifier.read(target)
    return target.reshape(-1).tolist()


def json_object(value: object) -> tuple[dict[str, object], str | None]:
    """The JSON object in an attribute.

    Returns:
        The object (empty where there is none) and what is wrong with it, or None.
    """
    plain = value
    if not isinstance(plain, (str, bytes)):
        plain, _ = text(value)
    if plain is None:
        return {}, None
    try:
        parsed = json.loads(plain)
    except (ValueError, RecursionError) as error:
        return {}, f"not valid JSON ({error})"
    if isinstance(parsed, list) and len(parsed) == 1:
        parsed = parsed[0]
    if not isinstance(parsed, dict):
        return {}, f"JSON of a {type(parsed).__name__}, not of an object"
    return parsed, None
