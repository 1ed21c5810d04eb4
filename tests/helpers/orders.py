"""The order of samples written out naively, in plain Python integers and lists, as the docstrings define it."""

from __future__ import annotations

import hashlib
from fractions import Fraction

import numpy as np

from wdsmix.mixture.order import SourceFrames

MASK = 2**64 - 1


def mix(key: int, counter: int) -> int:
    x = ((counter + 1) * 0x9E3779B97F4A7C15 + key) & MASK
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & MASK
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & MASK
    return x ^ x >> 31


def key(*parts: int | str) -> int:
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def quota_sequence(weights: list[int], size: int) -> list[int]:
    """Earliest deadline first among sources that would not pass their upper quota, in fractions."""
    total = sum(weights)
    counts = [0] * len(weights)
    out = []
    for n in range(size):
        allowed = [s for s, w in enumerate(weights) if counts[s] < Fraction((n + 1) * w, total)]
        due = {s: -(-Fraction((counts[s] + 1) * total, weights[s]) // 1) for s in allowed}
        chosen = min(allowed, key=lambda s: (due[s], s))
        counts[chosen] += 1
        out.append(chosen)
    return out


def source_of(name: str, frames: list[int], *, weight: float = 1.0, frame_bytes: int = 1000) -> SourceFrames:
    counts = np.array(frames, dtype=np.int64)
    lengths = counts * frame_bytes
    return SourceFrames(
        name=name,
        weight=weight,
        frames=counts,
        lengths=lengths,
        offsets=np.cumsum(lengths) - lengths,
        shards=np.zeros(len(counts), dtype=np.int32),
        digest=f"digest of {name}",
    )


def blocks(frames: list[int], frame_bytes: int, block_bytes: int) -> list[list[int]]:
    """Rows of each block, for episodes that follow each other in one shard."""
    out: list[list[int]] = []
    row = offset = 0
    last: tuple[bool, int] | None = None  # (was one short piece, bin) of the block before
    for count in frames:
        length = count * frame_bytes
        pieces = min(max(1, (length + block_bytes // 2) // block_bytes), count)
        for piece in range(pieces):
            low, high = piece * count // pieces, (piece + 1) * count // pieces
            rows = list(range(row + low, row + high))
            now = (pieces == 1, offset // block_bytes)
            if pieces == 1 and last == now:
                out[-1] += rows
            else:
                out.append(rows)
            last = now
        row += count
        offset += length
    return out


def epoch_rows(
    name: str,
    frames: list[int],
    epoch: int,
    *,
    seed: int,
    streams: int,
    window: int,
    block_bytes: int,
    frame_bytes: int,
) -> list[int]:
    """All items of one epoch of one source."""
    cut = blocks(frames, frame_bytes, block_bytes)
    order = sorted(range(len(cut)), key=lambda b: mix(key(seed, name, "blocks", epoch), b))
    whole = [row for b in order for row in cut[b]]
    lengths = [len(whole[r::streams]) for r in range(streams)]
    width = max(1, window // streams)
    out: dict[int, int] = {}
    start = 0
    for r, length in enumerate(lengths):
        stream = whole[start : start + length]
        start += length
        first = _windowed(stream, r, streams, width, 0, key(seed, name, "first", epoch))
        second = _windowed(first, r, streams, width, width // 2, key(seed, name, "second", epoch))
        for position, row in enumerate(second):
            out[position * streams + r] = row
    return [out[i] for i in range(len(whole))]


def _windowed(stream: list[int], r: int, streams: int, width: int, shift: int, hash_key: int) -> list[int]:
    """Permutes each window; with a shift the windows' grid begins at ``shift - width``."""
    out: list[int] = []
    for number in range(len(stream) // width + 2):
        low = max(0, shift + (number - 1) * width) if shift else number * width
        high = shift + number * width if shift else low + width
        part = stream[low:high]
        keys = [mix(hash_key, (number * streams + r) * width + c) >> 1 for c in range(len(part))]
        out += [part[c] for c in sorted(range(len(part)), key=lambda c: keys[c])]
    return out
