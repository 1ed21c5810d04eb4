"""Locks on the bytes of a file, by process, that end with the process, however it ends.

POSIX record locks: a forked child inherits none, a killed holder leaves none. They have one trap: closing *any* handle
of the file drops all locks that the process holds on it. So a file is opened once in a process, and stays open.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
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
        code = _set(self.handle, fcntl.F_RDLCK if shared else fcntl.F_WRLCK, first, count)
        if code and code not in _BUSY:
            raise ConfigError(
                f"the file system has no locks: {os.strerror(code)}",
                path=self.path,
                hint="cache_dir (or WDSMIX_CACHE_DIR) names a folder on a disk of this machine",
            )
        return not code

    def drop(self, first: int, count: int = 1) -> None:
        """Lets go of bytes; of those not held, too."""
        _set(self.handle, fcntl.F_UNLCK, first, count)

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


def _portable_set(handle: int, kind: int, first: int, count: int) -> int:
    """Changes a lock, never waiting; 0 or an errno."""
    how = {fcntl.F_RDLCK: fcntl.LOCK_SH | fcntl.LOCK_NB, fcntl.F_WRLCK: fcntl.LOCK_EX | fcntl.LOCK_NB}
    try:
        fcntl.lockf(handle, how.get(kind, fcntl.LOCK_UN), count, first, os.SEEK_SET)
    except OSError as error:
        return error.errno or errno.EIO
    return 0


class _Flock(ctypes.Structure):
    """``struct flock`` of Linux where a pointer has 64 bits, whatever the C library."""

    _fields_ = (
        ("l_type", ctypes.c_short),
        ("l_whence", ctypes.c_short),
        ("l_start", ctypes.c_int64),
        ("l_len", ctypes.c_int64),
        ("l_pid", ctypes.c_int),
    )


def _quick_set(handle: int, kind: int, first: int, count: int) -> int:
    """The same by way of PyDLL, which keeps the interpreter's lock.

    These calls are short, and Python's own gives the interpreter to threads that decode, each time for longer than the
    call takes.
    """
    wanted = _Flock(kind, os.SEEK_SET, first, count, 0)
    while _fcntl(handle, fcntl.F_SETLK, ctypes.byref(wanted)):
        code = ctypes.get_errno()
        if code != errno.EINTR:  # network file systems wait for an answer
            return code
    return 0


if sys.platform == "linux" and ctypes.sizeof(ctypes.c_void_p) == 8:
    _fcntl = ctypes.PyDLL(None, use_errno=True).fcntl
    _set = _quick_set
else:
    _set = _portable_set
