"""Which family reads what lies in a folder, told from names alone: a hint where another one was asked."""

from __future__ import annotations

import argparse
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from wdsmix.errors import DataError

__all__ = ["likely_family", "right_family_named"]

_DEPTH = 3
_NAMES = 4000
_NAMES_A_FOLDER = 200


def _like(pattern: str) -> Callable[[list[str]], str | None]:
    match = re.compile(pattern, re.IGNORECASE).search
    return lambda names: next((name for name in names if match(name)), None)


_MARKS: tuple[tuple[str, Callable[[list[str]], str | None]], ...] = (
    ("lerobot", _like(r"(^|/)meta/info\.json$")),
    ("parquet-shards", _like(r"(^|/)shards/shard-[^/]*\.parquet$")),
    ("unitree", _like(r"(^|/)data\.json$")),
    ("nav", _like(r"(^|/)(traj_data\.pkl|front_camera_timestamps[^/]*\.csv)$")),
    ("hdf5", _like(r"\.(hdf5|h5|hdf|he5)$")),
)
"""Family -> a name that nothing else has; the first that is found counts."""


def likely_family(root: Path) -> tuple[str, str] | None:
    """The family that a source is of, and the name that tells; None where none does.

    Looks at no more than a few thousand names, three folders down, and opens nothing.
    """
    names = [root.name] if root.is_file() else list(_names(root))
    return next(((family, name) for family, mark in _MARKS if (name := mark(names)) is not None), None)


def _names(root: Path) -> Iterator[str]:
    """The first names below a folder, those near to it first."""
    left, folders = _NAMES, deque([""])
    while folders and left > 0:
        folder = folders.popleft()
        try:
            with os.scandir(root / folder) as entries:
                for _, entry in zip(range(min(left, _NAMES_A_FOLDER)), entries, strict=False):
                    left -= 1
                    name = f"{folder}{entry.name}"
                    if not entry.is_dir(follow_symlinks=False):
                        yield name
                    elif name.count("/") < _DEPTH and not entry.name.startswith("."):
                        folders.append(f"{name}/")
        except OSError:
            continue


@contextmanager
def right_family_named(args: argparse.Namespace) -> Iterator[None]:
    """Where a family finds nothing that it knows in a source, says which one would.

    Args:
        args: ``family`` that was asked, and ``src`` that it was given: absent of a family that can't be imported.
    """
    try:
        yield
    except DataError as error:
        if error.hint is None and error.path == str(args.src) and (found := likely_family(args.src)):
            other, name = found
            if other != args.family:
                error.hint = f"the family {other} reads such a source ({name})"
        raise
