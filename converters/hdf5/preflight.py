"""Opening a file: what it is before libhdf5 sees it, and what libhdf5's refusals mean."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import h5py
from wdsmix.converters.hdf5.faults import Hdf5Error

__all__ = ["SIGNATURE", "find_signature", "open_file", "preflight"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_LFS = b"version https://git-lfs"
_ARCHIVES = [
    (0, b"\x1f\x8b", "gzip"),
    (0, b"PK\x03\x04", "zip"),
    (0, b"PK\x05\x06", "zip"),
    (0, b"\xfd7zXZ\x00", "xz"),
    (0, b"BZh", "bzip2"),
    (0, b"\x28\xb5\x2f\xfd", "zstd"),
    (0, b"7z\xbc\xaf\x27\x1c", "7z"),
    (257, b"ustar", "tar"),
]
_SMALLEST = 512


def find_signature(path: Path) -> int | None:
    """Byte offset of the HDF5 signature: 0, or 512, 1024, 2048 ... behind a user block; None: there is none."""
    size = path.stat().st_size
    with path.open("rb") as file:
        offset = 0
        while offset + len(SIGNATURE) <= size:
            file.seek(offset)
            if file.read(len(SIGNATURE)) == SIGNATURE:
                return offset
            offset = 512 if offset == 0 else offset * 2
    return None


def preflight(path: Path) -> None:
    """Says what a file is when it is not HDF5.

    Raises:
        Hdf5Error: not a regular file, unreadable, empty, a Git LFS pointer, an archive, or something else.
    """
    name = str(path)
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Hdf5Error("not a regular file", path=name, check="opens")
        if status.st_size == 0:
            raise Hdf5Error("empty file", path=name, check="opens", expected="an HDF5 file", found="0 bytes")
        with path.open("rb") as file:
            head = file.read(512)
        if head.startswith(_LFS):
            found = re.search(rb"^size (\d+)", head, re.MULTILINE)
            real = f" to {int(found[1])} bytes" if found else ""
            raise Hdf5Error(
                "a Git LFS pointer, not the data",
                path=name,
                check="opens",
                expected="an HDF5 file",
                found=f"a {status.st_size}-byte pointer{real}",
                hint="fetch the data with `git lfs pull`",
            )
        if find_signature(path) is not None:
            return
    except OSError as error:
        raise Hdf5Error(f"can't be opened: {error.strerror or error}", path=name, check="opens") from error
    for offset, magic, kind in _ARCHIVES:
        if head[offset : offset + len(magic)] == magic:
            raise Hdf5Error(
                "an archive",
                path=name,
                check="opens",
                expected="an HDF5 file",
                found=f"{kind} ({status.st_size} bytes)",
                hint="extract it first",
            )
    raise Hdf5Error(
        "not an HDF5 file",
        path=name,
        check="opens",
        expected=f"the HDF5 signature {SIGNATURE[:4]!r}",
        found=f"{head[:8]!r} at byte 0 of {status.st_size}",
    )


def open_file(path: Path) -> h5py.File:
    """Opens a file for reading, without locks (the data are finished, and network file systems refuse locks).

    Raises:
        Hdf5Error: it can't be opened, with the reason and what to do.
    """
    preflight(path)
    _register_filters()
    try:
        return h5py.File(str(path), "r", locking=False)
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise _explain(path, " ".join(str(error).split())) from error


def _explain(path: Path, text: str) -> Hdf5Error:
    size = path.stat().st_size
    cut = re.search(r"eof = (\d+).*stored_eof = (\d+)", text)
    if size < _SMALLEST and find_signature(path) is not None:
        return Hdf5Error(
            "header only: the recorder saved nothing or was killed at its start",
            path=str(path),
            check="opens",
            expected=f"{cut[2]} bytes" if cut else "a whole HDF5 file",
            found=f"{size} bytes",
        )
    if cut:
        return Hdf5Error(
            f"truncated file: {cut[1]} of {cut[2]} bytes are there",
            path=str(path),
            check="opens",
            hint="copy or download it again",
        )
    if "h5clear" in text:
        return Hdf5Error(
            "its writer did not close it (killed, or still writing)",
            path=str(path),
            check="opens",
            hint="if no program writes it any more: make a copy, run `h5clear -s COPY`, and check what it holds",
        )
    if "don't match" in text:
        return Hdf5Error(
            "already open in this process with other settings",
            path=str(path),
            check="opens",
            hint="close it, or open it with h5py.File(path, locking=False)",
        )
    if "lock" in text:
        return Hdf5Error(f"locked by another program: {text}", path=str(path), check="opens")
    return Hdf5Error(f"HDF5 can't open it ({size} bytes): {text}", path=str(path), check="opens")


def _register_filters() -> None:
    try:
        import hdf5plugin  # noqa: F401  (optional: registers further filters when imported)
    except ImportError:
        return
