"""The bytes of members that are alike from frame to frame, made with little work a frame.

Everything here gives the bytes that `ustar_header` and ``np.save`` would give, one member at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from wdsmix.shards.tario import BLOCK, HeaderTemplate, padding, ustar_header

__all__ = ["HeaderTemplate", "VectorMembers"]

_AT_ONCE = 256
"""Frames: bounds what is held of a long episode."""
_DIGITS = 6
"""Of a frame's number in a key; longer numbers make a name longer."""


class VectorMembers:
    """The vector members of an episode's frames, many frames at a time.

    Args:
        episode: Its number.
        vectors: Name -> float32 [T, D], in order of the members.
        heads: Name -> what ``np.save`` puts before a row.
    """

    def __init__(
        self, episode: int, vectors: Mapping[str, npt.NDArray[np.float32]], heads: Mapping[str, bytes]
    ) -> None:
        self._episode = episode
        self._vectors = vectors
        self._heads = heads
        self._first = self._end = self._size = 0
        self._bytes = memoryview(b"")

    def of(self, frame: int) -> memoryview:
        """All vector members of a frame, headers and padding included."""
        if not self._first <= frame < self._end:
            self._make(frame)
        place = (frame - self._first) * self._size
        return self._bytes[place : place + self._size]

    def _make(self, first: int) -> None:
        rows = min([_AT_ONCE, *(len(values) - first for values in self._vectors.values())])
        if first < 10**_DIGITS:
            rows = min(rows, 10**_DIGITS - first)
        else:  # the name has another length for each power of ten
            rows = 1
        blocks = [self._block(name, first, rows) for name in self._vectors]
        whole = np.concatenate(blocks, axis=1) if blocks else np.empty((rows, 0), np.uint8)
        self._first, self._end, self._size = first, first + rows, whole.shape[1]
        self._bytes = memoryview(whole.tobytes())

    def _block(self, name: str, first: int, rows: int) -> npt.NDArray[np.uint8]:
        """uint8 [rows, bytes of a member]."""
        head = self._heads[name]
        values = np.ascontiguousarray(self._vectors[name][first : first + rows], dtype="<f4").view(np.uint8)
        size = len(head) + values.shape[1]
        stem = f"{self._episode:06d}_"
        header = ustar_header(f"{stem}{first:06d}.{name}.npy", size)
        alike = np.frombuffer(header + head + bytes(values.shape[1]) + padding(size), np.uint8)
        block = np.tile(alike, (rows, 1))
        block[:, BLOCK + len(head) : BLOCK + size] = values
        if rows > 1:
            numbers = np.arange(first, first + rows)
            digits = numbers[:, None] // 10 ** np.arange(_DIGITS - 1, -1, -1) % 10
            block[:, len(stem) : len(stem) + _DIGITS] = digits + ord("0")
            sums = int(header[148:154], 8) + digits.sum(axis=1) - digits[0].sum()
            block[:, 148:154] = (sums[:, None] >> np.arange(15, -1, -3) & 7) + ord("0")
        return block
