"""The fault of one file or episode, tagged with the check that finds it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from wdsmix.errors import DataError

__all__ = ["CHECKS", "Hdf5Error", "library_errors", "no_memory"]

CHECKS: dict[str, str] = {
    "opens": "file opens",
    "names": "names without gaps",
    "fields": "fields complete",
    "lengths": "first dimensions equal",
    "vectors": "action and state rows equal",
    "images": "images decodable",
    "strings": "strings readable",
    "finite": "values finite",
    "safe": "nothing leads outside the file",
    "rate": "rate known",
}
"""Check -> its line in the table of ``wdsmix check``."""


class Hdf5Error(DataError):
    """A fault of the data with the check it fails (a key of `CHECKS`)."""

    def __init__(self, message: str, *, check: str = "fields", **places: str | None) -> None:
        super().__init__(message, **places)
        self.check = check


def no_memory(error: BaseException) -> bool:
    """Whether a read failed for want of memory, which HDF5 tells like any other failure."""
    return isinstance(error, MemoryError) or "allocation failed" in str(error)


@contextmanager
def library_errors(path: object, where: str | None, *, check: str = "opens") -> Iterator[None]:
    """Turns what h5py raises over damaged bytes into a `Hdf5Error` that names the place.

    Raises:
        Hdf5Error: anything h5py raised inside the block.
    """
    try:
        yield
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        hint = None
        damage = ("past end of allocation", "truncated", "checksum", "filter returned failure")
        if any(sign in text for sign in damage):
            hint = "the file is damaged: copy or download it again and compare its size or hash"
        raise Hdf5Error(f"HDF5 can't read it: {text}", path=str(path), where=where, check=check, hint=hint) from error
