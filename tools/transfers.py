"""What the push, fetch and gc commands share: options, progress, sizes, symbols."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING

from wdsmix.texts import counted

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["SYMBOLS", "ahead", "configure_transfer", "show_files", "show_retries", "size"]

SYMBOLS = {"new": "+", "partial": "~", "same": "=", "differs": "*", "extra": "?"}
"""One a path: what a plan says of it."""


def configure_transfer(parser: argparse.ArgumentParser) -> None:
    """Adds the options that push and fetch share."""
    parser.add_argument("--jobs", type=int, default=8, metavar="N", help="requests at a time (8)")
    parser.add_argument(
        "--bandwidth-limit", default="0", metavar="RATE", help="bytes per second at most, such as 50M (0: no limit)"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be done, and do nothing")
    parser.add_argument("--json", action="store_true", help="print the result as JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")


def ahead(stack: ExitStack, total: int, label: str, quiet: bool) -> Callable[[int, int], None]:
    """A progress display for bytes and retries."""
    from wdsmix.progress import Progress

    shown = stack.enter_context(Progress(total, "bytes", label, quiet=quiet))
    return lambda amount, retries: shown.advance(amount, **({"retries": retries} if retries else {}))


def size(amount: float) -> str:
    """Bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1000
    return f"{amount:.1f} TB"


def show_files(console: Console, files: Mapping[str, str]) -> None:
    """One line a file: symbol and name; then what the symbols mean."""
    from wdsmix.tools.console import plain

    for name, kind in files.items():
        console.print(f"{SYMBOLS[kind]} {plain(name)}")
    kinds = list(files.values())
    console.print(", ".join(f"{SYMBOLS[kind]} {kinds.count(kind)} {kind}" for kind in SYMBOLS if kind in kinds))


def show_retries(console: Console, counts: Mapping[str, int]) -> None:
    """Failed tries that later ones made good."""
    from wdsmix.tools.console import plain

    for message, times in counts.items():
        console.print(f"retried {counted(times, 'time')}: {plain(message)}")
