"""Counter-based hashes and permutations: the same on every machine and in every release.

numpy.random is not used anywhere in the order of samples, because its streams may change between versions.
Everything here is splitmix64 (Steele, Lea, Flood 2014), a bijection of 64-bit integers.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["hash64", "key_of", "permutation", "shuffle_rows"]

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MUL1 = np.uint64(0xBF58476D1CE4E5B9)
_MUL2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def key_of(*parts: int | str) -> int:
    """A 64-bit key for a named stream of hashes; distinct parts give unrelated keys.

    Raises:
        TypeError: a part is neither int nor str.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts if _known(part))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _known(part: object) -> bool:
    if type(part) not in (int, str):
        raise TypeError(f"a key is made of int and str, not {type(part).__name__}")
    return True


def hash64(key: int, counters: npt.NDArray[np.int64]) -> npt.NDArray[np.uint64]:
    """uint64 hash of each counter (int64, any shape) under ``key``; distinct counters never collide."""
    x = (counters.astype(np.uint64) + np.uint64(1)) * _GAMMA + np.uint64(key)
    x ^= x >> _S30
    x *= _MUL1
    x ^= x >> _S27
    x *= _MUL2
    x ^= x >> _S31
    return x


def permutation(key: int, size: int) -> npt.NDArray[np.int64]:
    """int64 [size]: a permutation of range(size) chosen by ``key``."""
    return np.argsort(hash64(key, np.arange(size, dtype=np.int64)), kind="stable")


def shuffle_rows(
    key: int, first: int, widths: npt.NDArray[np.int64], *, columns: int, spacing: int
) -> npt.NDArray[np.int64]:
    """One permutation for each of several windows that differ in width.

    Args:
        key: Chooses the permutations.
        first: Number of the first window; window r of this call is counted as ``first + r``.
        widths: int64 [R], how many of the ``columns`` each window really has.
        columns: Width of the result, at most ``spacing``.
        spacing: Counters that each window has for itself.

    Returns:
        int64 [R, columns]: row r permutes range(widths[r]); what lies behind stays in place.
    """
    window = np.int64(first) + np.arange(len(widths), dtype=np.int64)[:, None]
    column = np.arange(columns, dtype=np.int64)[None, :]
    keys = hash64(key, window * np.int64(spacing) + column) >> np.uint64(1)
    keys = np.where(column < widths[:, None], keys, np.uint64(1) << np.uint64(63))
    return np.argsort(keys, axis=1, kind="stable")
