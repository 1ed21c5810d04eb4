"""Text from data on its way to a person: nothing in it may command a terminal, break a line, or hide what it says."""

from __future__ import annotations

import codecs
import sys
import unicodedata

__all__ = ["counted", "encodable", "printable", "tolerant_streams"]

_HANDLER = "wdsmix.spelled"


def counted(number: int, unit: str, units: str = "") -> str:
    """How many of what: ``1 shard``, ``2,000 shards``; with its verb where both forms are given: ``2 shards are``."""
    return f"{number:,} {unit if number == 1 else units or f'{unit}s'}"


def printable(text: str, *, lines: bool = False) -> str:
    r"""The text with all that is not printable spelled out, such as ``\x1b``, ``\n``, ``\u202e``, ``\udcff``.

    That is: control characters (C0 and C1), format characters (those that reorder text among them), line and
    paragraph separators, broken encoding, private and unassigned ones. Spaces of other widths stay.

    Args:
        text: Anything.
        lines: Whether line breaks stay: for messages of several lines, never for names.
    """
    if text.isprintable():
        return text
    return "".join(
        char
        if char.isprintable() or (lines and char == "\n") or unicodedata.category(char) == "Zs"
        else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def encodable(text: str) -> str:
    """The text with what UTF-8 can't hold spelled out: bytes of a name that is not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def tolerant_streams() -> None:
    r"""Lets stdout and stderr spell out what their encoding lacks (``\u2713``), the way JSON does, and never raise."""
    codecs.register_error(_HANDLER, _spell)
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)  # absent where something stands in for the stream
        if reconfigure is not None:
            reconfigure(errors=_HANDLER)


def _spell(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[k : k + 2].hex()}" for k in range(0, len(units), 2)), error.end
