"""The videos that a process has open, fetched when they are needed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wdsmix.converters.lerobot.tree import Tree
from wdsmix.converters.video import VideoPool, VideoReader

from wdsmix.errors import DataError

__all__ = ["Videos"]


class Videos:
    """One open video a camera; the one before is released when a camera goes on to another file."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._pool = VideoPool()
        self._files: dict[str, str] = {}

    @contextmanager
    def borrowed(self, key: str, file: str) -> Iterator[VideoReader]:
        """The reader of a camera's file, for as long as the context.

        Raises:
            DataError: it can't be opened or read.
        """
        before = self._files.get(key)
        try:
            reader, own = self._pool.reader(key, self._tree.open_path(file))
        except DataError as error:
            _name(error, file)
            raise
        if before is not None and before != file and not own:
            self._tree.release(before)
        if not own:
            self._files[key] = file
        try:
            yield reader
        except DataError as error:
            _name(error, file)
            raise
        finally:
            if own:
                reader.close()

    def close(self) -> None:
        """Closes and releases all."""
        self._pool.close()
        for file in self._files.values():
            self._tree.release(file)
        self._files.clear()


def _name(error: DataError, file: str) -> None:
    """Names the video as a place in the episode, whose own file is that of its rows."""
    error.path = None
    error.where = f"{file}, {error.where}" if error.where else file
