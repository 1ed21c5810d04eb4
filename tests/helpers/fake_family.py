"""The fake source behind the real command: ``python -m helpers.fake_family convert fake SRC OUT --episodes 9 ...``."""

from __future__ import annotations

import argparse
import sys

from helpers.fake_source import FakeSource, many
from wdsmix.converters import options

from wdsmix.cli import main as wdsmix_main

HELP = "Episodes made of nothing."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--episodes", type=int, default=6)
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--slow", type=float, default=0.0)
    parser.add_argument("--does", action="append", default=[], metavar="N=WHAT")


def source(args: argparse.Namespace) -> FakeSource:
    changes = {f"e{number}": what for number, what in (text.split("=", 1) for text in args.does)}
    return FakeSource(many(args.episodes, frames=args.frames, **changes), slow=args.slow, path=str(args.src))


def main(argv: list[str] | None = None) -> int:
    families = {"fake": sys.modules[__name__], "gone": ImportError("no module named nowhere")}
    before = options.load_families
    options.load_families = lambda: families  # type: ignore[assignment]
    try:
        return wdsmix_main(argv)
    finally:
        options.load_families = before


if __name__ == "__main__":
    sys.modules["helpers.fake_family"] = sys.modules[__name__]
    sys.exit(main())


__all__ = ["HELP", "configure", "main", "options", "source"]
