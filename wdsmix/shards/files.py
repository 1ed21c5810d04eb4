"""Files that appear whole or not at all, and what the manifest says of each."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import google_crc32c

from wdsmix.manifest import FileEntry

__all__ = ["PARTIAL", "file_entry", "fsync_file", "fsync_folder", "publish", "write_at", "write_atomic"]

PARTIAL = ".partial"
"""Suffix of a file that is being written."""

_CHUNK = 1 << 20


def fsync_folder(folder: Path) -> None:
    """Makes renames in a folder last through a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def fsync_file(path: Path) -> None:
    """Makes a file's bytes last through a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_at(handle: int, data: bytes | memoryview, at: int) -> None:
    """Writes all of some bytes at an offset of an open file: a single call may write less."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(handle, rest, at)
        rest, at = rest[written:], at + written


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that ``path`` never holds anything but all of ``data`` or what was there before."""
    partial = path.with_name(path.name + PARTIAL)
    with partial.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    publish(partial, path)


def publish(partial: Path, path: Path) -> None:
    """Gives a file that is complete and synced its final name."""
    partial.replace(path)
    fsync_folder(path.parent)


def file_entry(path: Path, name: str | None = None) -> FileEntry:
    """Hashes a file.

    Args:
        path: The file.
        name: Its name in the manifest; None: its own.
    """
    sha, crc, size = hashlib.sha256(), 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            sha.update(chunk)
            crc = google_crc32c.extend(crc, chunk)
            size += len(chunk)
    return FileEntry(name=name or path.name, bytes=size, sha256=sha.hexdigest(), crc32c=crc)
