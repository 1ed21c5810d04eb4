"""The ``wdsmix`` command: finds its subcommands by entry point, maps errors to exit codes.

Exit codes: 0 fine, 1 the data are at fault, 2 usage or configuration, 3 refused or conflict,
4 authentication or network, 130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NoReturn, Protocol, cast

from wdsmix import __version__
from wdsmix.errors import WdsmixError
from wdsmix.texts import printable, tolerant_streams

__all__ = ["Command", "HelpFormatter", "main"]


class Command(Protocol):
    """A module behind the entry-point group ``wdsmix.commands``; light to import."""

    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None:
        """Adds its options."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Does the work; returns the exit code."""
        ...


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps to the terminal what begins a line after a full stop; paragraphs with indented lines stay as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        wrapper = textwrap.TextWrapper(width, break_on_hyphens=False, break_long_words=False)
        parts = []
        for part in text.strip("\n").split("\n\n"):
            whole = re.sub(r"(?<![.:])\n", " ", part)
            parts.append(part if re.search(r"^ ", part, re.M) else "\n".join(map(wrapper.fill, whole.splitlines())))
        return "\n\n".join(parts)


class _Parser(argparse.ArgumentParser):
    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:  # type: ignore[override]
        found, unknown = super().parse_known_args(args, namespace)
        if unknown and self._subparsers is None:  # told by the command that they were given to
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, 1)
            self.error(f"unrecognized arguments: {' '.join(unknown)}" + (f" (do you mean {near[0]}?)" if near else ""))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: error: {message}; see `{self.prog} --help`\n")


def _commands() -> dict[str, EntryPoint]:
    return {point.name: point for point in sorted(entry_points(group="wdsmix.commands"), key=lambda p: p.name)}


def _parser(names: Sequence[str], points: dict[str, EntryPoint]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="wdsmix",
        description="Robot datasets to WebDataset shards, and weighted mixtures of shards to PyTorch.",
        epilog="Exit codes: 0 fine, 1 the data are at fault, 2 usage or configuration, 3 refused or conflict, "
        "4 authentication or network, 130 interrupted.",
        formatter_class=HelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"wdsmix {__version__}")
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        command = cast("Command", points[name].load())
        sub = subparsers.add_parser(
            name,
            help=command.HELP.splitlines()[0],
            description=command.HELP,
            formatter_class=HelpFormatter,
        )
        command.configure(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    tolerant_streams()
    argv = list(sys.argv[1:] if argv is None else argv)
    points = _commands()
    chosen = next((word for word in argv if not word.startswith("-")), None)
    parser = _parser([chosen] if chosen in points else list(points), points)
    try:
        args = parser.parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or 0)
    try:
        return int(args.run(args))
    except WdsmixError as error:
        if args.debug:
            raise
        sys.stderr.write(f"wdsmix: error: {printable(str(error), lines=True)}\n")
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except KeyboardInterrupt:
        sys.stderr.write("wdsmix: interrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
