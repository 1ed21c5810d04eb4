"""How much of a thing one episode may bring: far above what data hold, far below what exhausts a machine."""

from __future__ import annotations

__all__ = ["MAX_EXTRAS_BYTES", "MAX_TASK_BYTES", "MAX_VECTOR_WIDTH"]

MAX_TASK_BYTES = 4096
"""UTF-8 bytes of one task text: it is in the JSON of each of its frames."""

MAX_EXTRAS_BYTES = 64 << 10
"""Bytes of JSON of an episode's extras, and of the extras of one frame."""

MAX_VECTOR_WIDTH = 65_536
"""Dimensions of one vector."""
