"""A folder as a store: what is written appears whole or not at all."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wdsmix.errors import DataError, StorageError
from wdsmix.shards.files import fsync_file, fsync_folder
from wdsmix.store.base import Body, MissingObjectError, ObjectInfo, PreconditionError, Store

__all__ = ["LocalStore"]


class _FileBody(Body):
    def __init__(self, file: Any, info: ObjectInfo, start: int) -> None:
        self.info, self.start = info, start
        self._file = file

    def read(self, amount: int) -> bytes:
        data: bytes = self._file.read(amount)
        return data

    def readinto(self, buffer: memoryview) -> int:
        count: int = self._file.readinto(buffer)
        return count

    def close(self) -> None:
        self._file.close()


class LocalStore(Store):
    """A folder; keys are paths below it. The ETag of a file is its inode, size and time of change."""

    @property
    def folder(self) -> Path:
        """The folder."""
        return Path(self.url)

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") for part in key.split("/")):
            raise DataError("not a key", path=self.url, found=key)
        return self.folder / key

    def body(self, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> _FileBody:
        """Opens the file; see `Store.body`."""
        with self._mapped(key):
            file = self._path(key).open("rb")
            info = _info(key, os.fstat(file.fileno()))
            if etag and etag != info.etag:
                file.close()
                raise PreconditionError("the file has changed", path=self.where(key))
            file.seek(start)
        return _FileBody(file, info, start)

    def _head(self, key: str) -> ObjectInfo:
        with self._mapped(key):
            path = self._path(key)
            if path.is_dir():
                raise IsADirectoryError
            return _info(key, path.stat())

    def _page(self, prefix: str, page: str) -> tuple[Sequence[ObjectInfo], str | None]:
        found = []
        base = self.folder / prefix.rpartition("/")[0]
        with self._mapped(prefix):
            for folder, folders, names in os.walk(base, followlinks=True):
                folders.sort()
                for name in names:
                    path = Path(folder, name)
                    key = path.relative_to(self.folder).as_posix()
                    if key.startswith(prefix) and ".partial-" not in name and path.is_file():
                        found.append(_info(key, path.stat()))
        return sorted(found, key=lambda info: info.key.encode(errors="surrogateescape")), None

    def _put(self, key: str, data: bytes, if_match: str | None, if_absent: bool, metadata: Mapping[str, str]) -> str:
        with self._mapped(key), self._arriving(key) as partial:
            partial.write_bytes(data)
            return self._publish(key, partial, if_match, if_absent)

    def put_file(self, key: str, path: Path, *, metadata: Mapping[str, str] | None = None) -> str:
        """Copies a file."""
        with self._mapped(key), self._arriving(key) as partial:
            shutil.copyfile(path, partial)
            return self._publish(key, partial, None, False)

    @contextmanager
    def _arriving(self, key: str) -> Iterator[Path]:
        """A name to write to that goes away on failure."""
        path = self._path(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial-{secrets.token_hex(4)}")
        try:
            yield partial
        finally:
            partial.unlink(missing_ok=True)

    def _publish(self, key: str, partial: Path, if_match: str | None, if_absent: bool) -> str:
        path = self._path(key)
        fsync_file(partial)
        handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            found = _info(key, path.stat()).etag if path.exists() else None
            if (if_absent and found is not None) or (if_match is not None and found != if_match):
                raise PreconditionError("the file is there already, or has changed", path=self.where(key))
            partial.replace(path)
        finally:
            os.close(handle)
        fsync_folder(path.parent)
        return _info(key, path.stat()).etag

    def _delete(self, key: str) -> None:
        with self._mapped(key):
            path = self._path(key)
            path.unlink(missing_ok=True)
            for folder in path.parents:
                if folder == self.folder or not folder.is_relative_to(self.folder):
                    break
                try:
                    folder.rmdir()
                except OSError:
                    break

    @contextmanager
    def _mapped(self, key: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise MissingObjectError("there is no such file", path=self.where(key)) from error
        except OSError as error:
            raise StorageError(f"can't be read or written: {error.strerror}", path=self.where(key)) from error


def _info(key: str, found: os.stat_result) -> ObjectInfo:
    return ObjectInfo(
        key=key,
        size=found.st_size,
        etag=f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}",
        modified=found.st_mtime,
    )
