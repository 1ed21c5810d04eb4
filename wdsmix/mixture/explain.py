"""Turns what pydantic finds wrong with a configuration into one error that a user can act on."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from wdsmix.errors import ConfigError

__all__ = ["did_you_mean", "explain", "key_path"]

_EXPECTED = {
    "missing": "a value; the key is required",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "string_too_short": "text that is not empty",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping of names to values",
    "mapping_type": "a mapping of names to values",
    "model_type": "a mapping of keys to values",
    "model_attributes_type": "a mapping of keys to values",
}
_LIMITS = {
    "greater_than": ("gt", "more than {}"),
    "greater_than_equal": ("ge", "{} or more"),
    "less_than": ("lt", "less than {}"),
    "less_than_equal": ("le", "{} or less"),
    "too_short": ("min_length", "at least {} entries"),
}


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """A hint that names the nearest known word, or all of them where none is near."""
    words = list(known)
    near = difflib.get_close_matches(word, words, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"known: {', '.join(words)}" if words else None


def key_path(parts: Sequence[int | str]) -> str:
    """``("sources", 1, "weight")`` as ``sources[1].weight``."""
    text = ""
    for part in parts:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def explain(
    error: ValidationError, *, path: str | Path | None, known: Mapping[tuple[str, ...], Sequence[str]]
) -> ConfigError:
    """A configuration's first fault, in words: an unknown key before all else, for a misspelt one looks missing too.

    Args:
        error: What pydantic raised.
        path: The configuration's file.
        known: The keys each mapping may have, by its place; ``*`` stands for any entry of a list or mapping.
    """
    faults = error.errors(include_url=False)
    fault = next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
    message, expected, found, hint = _words(fault, known)
    if len(faults) > 1:
        more = f"{len(faults) - 1} more {'fault' if len(faults) == 2 else 'faults'} beside this one"
        hint = f"{hint}; {more}" if hint else more
    return ConfigError(
        message, path=path, where=key_path(fault["loc"]) or None, expected=expected, found=found, hint=hint
    )


def _words(
    fault: ErrorDetails, known: Mapping[tuple[str, ...], Sequence[str]]
) -> tuple[str, str | None, str | None, str | None]:
    """Message, expected, found and hint."""
    kind, context, found = fault["type"], fault.get("ctx", {}), _short(fault.get("input"))
    if kind == "extra_forbidden":
        return "unknown key", None, None, did_you_mean(str(fault["loc"][-1]), _known_at(fault["loc"][:-1], known))
    if kind == "missing":
        return "missing", _EXPECTED[kind], None, None
    if kind == "value_error":
        return str(context.get("error", "bad value")), None, None, None
    if kind in ("literal_error", "enum"):
        words = str(context.get("expected", "")).replace("'", "")
        choices = words.replace(" or ", ", ").split(", ")
        return "bad value", words, found, did_you_mean(str(fault.get("input")), choices)
    if kind in _LIMITS:
        key, text = _LIMITS[kind]
        return "bad value", text.format(context.get(key)), found, None
    return "bad value", _EXPECTED.get(kind), found, None


def _known_at(place: Sequence[int | str], known: Mapping[tuple[str, ...], Sequence[str]]) -> Sequence[str]:
    for pattern, keys in known.items():
        if len(pattern) == len(place) and all(p in ("*", q) for p, q in zip(pattern, place, strict=True)):
            return keys
    return ()


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
