"""The files of a dataset by their names below its root, whether they lie on disk or on the hub."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from wdsmix.errors import ConfigError, DataError

__all__ = ["LocalTree", "Tree", "filled", "tree_from"]

_SAMPLE = 4 << 10
_META_BYTES = 64 << 20
_VARIABLE = re.compile(r"\{(\w+)(?::(0?\d{0,2}d?))?\}")


class Tree(Protocol):
    """Files by name (``/`` between parts). Pickles."""

    @property
    def name(self) -> str:
        """Short name of the dataset."""
        ...

    @property
    def path(self) -> Path | None:
        """The folder on disk that must not be written into."""
        ...

    @property
    def remote(self) -> bool:
        """Whether files have to be fetched, so that only needed ones are opened."""
        ...

    def names(self) -> Mapping[str, int]:
        """Name -> bytes, of all files."""
        ...

    def open_path(self, name: str) -> Path:
        """Where a file can be opened; fetched first where need be.

        Raises:
            DataError: there is no such file.
            StorageError: it can't be fetched.
        """
        ...

    def release(self, name: str, *, keep: bool = False) -> None:
        """Called when a video or data file is done with, for now; with ``keep`` it is wanted again soon."""
        ...

    def fingerprint(self) -> str:
        """Changes when the files do."""
        ...

    def facts(self) -> Mapping[str, object]:
        """Where it came from, for the manifest; no path of this machine."""
        ...

    def warnings(self) -> list[str]:
        """What the user should know of where it came from."""
        ...


class LocalTree:
    """A folder. Links are followed: the hub's cache is made of them.

    Args:
        root: The folder that holds ``meta``.

    Raises:
        DataError: there is no such folder.
    """

    remote = False

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise DataError("no such folder", path=root, expected="a folder that holds meta/info.json")
        self._root = root
        self._names: dict[str, int] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_names": None}

    @property
    def name(self) -> str:
        """The folder's name."""
        return self._root.resolve().name

    @property
    def path(self) -> Path:
        """The folder."""
        return self._root

    def names(self) -> Mapping[str, int]:
        """Name -> bytes of all files but hidden ones."""
        if self._names is None:
            found: dict[str, int] = {}
            seen: set[str] = set()
            for folder, folders, files in os.walk(self._root, followlinks=True):
                real = os.path.realpath(folder)
                if real in seen:  # a link that leads back
                    folders.clear()
                    continue
                seen.add(real)
                folders[:] = sorted(name for name in folders if not name.startswith("."))
                for file in files:
                    path = Path(folder, file)
                    if not file.startswith(".") and path.is_file():
                        found[path.relative_to(self._root).as_posix()] = path.stat().st_size
            self._names = found
        return self._names

    def open_path(self, name: str) -> Path:
        """The file's path."""
        return self._root / name

    def release(self, name: str, *, keep: bool = False) -> None:
        """Nothing: it is the user's file."""

    def fingerprint(self) -> str:
        """sha256 over names and sizes, all of ``meta``, and both ends of the other files."""
        total = hashlib.sha256()
        for name, size in sorted(self.names().items()):
            total.update(f"{name}\0{size}\0".encode("utf-8", "surrogateescape"))
            try:
                with (self._root / name).open("rb") as file:
                    if name.startswith("meta/") and size <= _META_BYTES:
                        total.update(file.read())
                    elif name.endswith((".parquet", ".mp4")):
                        total.update(file.read(_SAMPLE))
                        file.seek(max(0, size - _SAMPLE))
                        total.update(file.read(_SAMPLE))
            except OSError as error:
                total.update(f"unreadable {error.errno}".encode())
        return total.hexdigest()

    def facts(self) -> Mapping[str, object]:
        """Nothing."""
        return {}

    def warnings(self) -> list[str]:
        """None."""
        return []


def filled(template: str, values: Mapping[str, int | str]) -> str | None:
    """A path template of info.json with its variables filled in; None where it names one that is not known.

    The template is data of a stranger, so it is never given to `str.format`.
    """
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        given = values.get(match[1])
        if given is None or (match[2] and isinstance(given, str)):
            missing = True
            return ""
        return format(given, match[2] or "")

    text = _VARIABLE.sub(value, template)
    return None if missing or "{" in text or "}" in text else text


def tree_from(args: argparse.Namespace) -> Tree:
    """The tree that the arguments name.

    Raises:
        ConfigError: they contradict each other.
        DataError: there is no such folder.
        StorageError: the hub can't be reached.
    """
    text = str(args.src)
    match = re.fullmatch(r"hf:/{1,2}([^/@]+/[^/@]+)(?:@(.+))?", text)
    if match is None and not args.repo_id:
        for option, value in (("--revision", args.revision), ("--cache-dir", args.cache_dir)):
            if value:
                raise ConfigError("only with a repository of the hub", where=option, found=value)
        if args.evict_videos:
            raise ConfigError("only with a repository of the hub: local videos are yours", where="--evict-videos")
        return LocalTree(Path(args.src))
    from wdsmix.converters.lerobot.hub import HubTree

    if match is not None:
        if args.repo_id or (match[2] and args.revision):
            raise ConfigError("given twice", where="--repo-id" if args.repo_id else "--revision", found=text)
        return HubTree(
            match[1],
            match[2] or args.revision,
            cache_dir=args.cache_dir and Path(args.cache_dir),
            evict=args.evict_videos,
        )
    if args.cache_dir:
        raise ConfigError("with --repo-id, SRC is the folder that keeps the files", where="--cache-dir")
    return HubTree(args.repo_id, args.revision, folder=Path(args.src), evict=args.evict_videos)
