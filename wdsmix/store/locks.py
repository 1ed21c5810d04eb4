"""Locks on the bytes of a file, by process, that end with the process, however it ends.

POSIX record locks: a forked child inherits none, a killed holder leaves none. They have one trap: closing *any* handle
of the file drops all locks that the process holds on it. So a file is opened once in a process, and stays open.
"""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

from wdsmix.errors import ConfigError

__all__ = ["FileLocks"]

_BUSY = (errno.EACCES, errno.EAGAIN, errno.EDEADLK)


class FileLocks:
    """The locks of one file; threads of a process are not told apart.

    Args:
        path: The file; made where it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self, first: int, count: int = 1, *, shared: bool = False) -> bool:
        """Locks bytes ``first`` to ``first + count``, if no other process holds them; never waits.

        Raises:
            ConfigError: the file system has no locks.
        """
        try:
            fcntl.lockf(self.handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB, count, first)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise ConfigError(
                f"the file system has no locks: {error.strerror}",
                path=self.path,
                hint="cache_dir (or WDSMIX_CACHE_DIR) names a folder on a disk of this machine",
            ) from error
        return True

    def drop(self, first: int, count: int = 1) -> None:
        """Lets go of bytes; of those not held, too."""
        fcntl.lockf(self.handle, fcntl.LOCK_UN, count, first)

    def is_current(self) -> bool:
        """Whether the file is still the one under its name."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return False
        mine = os.fstat(self.handle)
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def close(self) -> None:
        """Closes the file, which ends all locks."""
        os.close(self.handle)
