"""Instructions that do not lie in the episode: files of instructions, and placeholders of ``--instruction``."""

from __future__ import annotations

import csv
import fnmatch
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from wdsmix.converters.hdf5.strings import clean_text, decode

from wdsmix.errors import ConfigError

__all__ = ["filled", "load_instructions", "named_instruction", "one_text"]

_MAX_BYTES = 256 << 20
_KEYS = ("task", "key", "path", "episode", "file", "name")
_DEPTH = 16


def one_text(value: object, keys: Sequence[str] = (), *, depth: int = _DEPTH) -> str:
    """The first text in a JSON value: a text, a list of such, or an object by the first of ``keys`` that it has.

    Args:
        value: The JSON value.
        keys: Of objects.
        depth: Lists in lists that are looked into.
    """
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list) and depth:
        return next((found for item in value if (found := one_text(item, keys, depth=depth - 1))), "")
    if isinstance(value, dict) and depth:
        return next((found for key in keys if (found := one_text(value.get(key), depth=depth - 1))), "")
    return ""


def load_instructions(path: Path) -> dict[str, str]:
    """Reads a file of instructions: JSON ``{key: text}``, or CSV with a column ``instruction`` and one of keys.

    Raises:
        ConfigError: absent, over-long, or of no known form.
    """
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError("file of instructions too large", path=path, expected=f"at most {_MAX_BYTES} bytes")
        plain, _ = decode(path.read_bytes().removeprefix(b"\xef\xbb\xbf"))
    except OSError as error:
        raise ConfigError(f"can't read the instructions: {error.strerror}", path=path) from error
    if plain.lstrip().startswith("{"):
        try:
            given: dict[str, object] = json.loads(plain)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not valid JSON: {error}", path=path) from error
        keys = ("instruction", "language_instruction1", "language_instruction", "task")
        found = {str(key): one_text(value, keys) for key, value in given.items()}
    else:
        try:
            rows = list(csv.DictReader(io.StringIO(plain)))
        except csv.Error as error:
            raise ConfigError(f"not CSV: {error}", path=path) from error
        columns = list(rows[0]) if rows else []
        key = next((name for name in _KEYS if name in columns), None)
        if key is None or "instruction" not in columns:
            raise ConfigError(
                "no instructions",
                path=path,
                expected=f"JSON {{key: text}}, or CSV with the columns instruction and one of {', '.join(_KEYS)}",
                found=", ".join(map(str, columns)) or "nothing",
            )
        found = {str(row[key]): clean_text(str(row["instruction"] or "")) for row in rows}
    found = {key: value for key, value in found.items() if key and value}
    if not found:
        raise ConfigError("no instructions", path=path)
    return found


def named_instruction(known: Mapping[str, str], path: Path, also: Sequence[str] = ()) -> str:
    """The instruction of an episode: by its own names, its file's, the folders' above it, else by a pattern.

    Args:
        known: From `load_instructions`.
        path: The file.
        also: Further names of the episode.
    """
    for key in (*also, path.name, path.stem, *(folder.name for folder in path.absolute().parents)):
        if key and key in known:
            return known[key]
    full = path.absolute().as_posix()
    return next((text for key, text in known.items() if any(c in key for c in "*?[") and _fits(full, key)), "")


def _fits(path: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(path, pattern if pattern.startswith("/") else f"*/{pattern}")


def filled(text: str, path: PurePath) -> str:
    """A text with ``{folder}`` and ``{file}`` filled in: names, with spaces for underscores."""
    if "{" not in text:
        return text
    words = {"{folder}": path.parent.name, "{file}": path.stem}
    for place, name in words.items():
        text = text.replace(place, name.replace("_", " "))
    return clean_text(text)
