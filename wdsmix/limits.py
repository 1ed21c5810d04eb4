"""How much of a thing one episode may bring: far above what data hold, far below what exhausts a machine."""

from __future__ import annotations

from wdsmix.errors import DataError

__all__ = ["MAX_EXTRAS_BYTES", "MAX_TASK_BYTES", "MAX_VECTOR_WIDTH", "check_size"]

MAX_TASK_BYTES = 4096
"""UTF-8 bytes of one task text: it is in the JSON of each of its frames."""

MAX_EXTRAS_BYTES = 64 << 10
"""Bytes of JSON of an episode's extras, which each of its frames repeats; a frame's JSON may have twice as many."""

MAX_VECTOR_WIDTH = 65_536
"""Dimensions of one vector."""


def check_size(what: str, text: str, most: int, *, where: str | None = None) -> None:
    """Refuses a text that is too long.

    Raises:
        DataError: it has more than ``most`` UTF-8 bytes.
    """
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise DataError(f"{what} is too long", where=where, expected=f"at most {most} bytes", found=f"{size} bytes")
