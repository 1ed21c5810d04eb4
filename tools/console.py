"""Text of data on a terminal: what a set says must not be taken for markup, nor for commands to the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from wdsmix.texts import printable

__all__ = ["plain", "result_console"]


def result_console() -> Console:
    """Where results go: as wide as the terminal, and wide enough for tables where there is none."""
    made = Console(highlight=False, soft_wrap=True)
    return made if made.is_terminal else Console(highlight=False, soft_wrap=True, width=140)


def plain(text: str) -> str:
    """The text with markup switched off and control characters (escape sequences, line ends) made visible."""
    return escape(printable(text))
