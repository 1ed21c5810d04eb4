"""One long episode of large raw pictures, each made when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from wdsmix.episode import Camera, Episode, EpisodeRef, SourceInfo

SIDE = 428


@dataclass(frozen=True)
class BigStream:
    def read(self, rows: np.ndarray) -> Iterator[np.ndarray]:
        base = (np.arange(SIDE * SIDE * 3).reshape(SIDE, SIDE, 3) // 977 % 251).astype(np.uint8)
        for row in rows.tolist():
            yield base ^ (row % 7)


@dataclass(frozen=True)
class BigSource:
    frames: int

    def describe(self) -> SourceInfo:
        return SourceInfo(name="big", kind="big", fps=30, cameras={"cam0": Camera(key="x")})

    def arguments(self) -> Mapping[str, object]:
        return {}

    def fingerprint(self) -> str:
        return "0"

    def episodes(self) -> list[EpisodeRef]:
        return [EpisodeRef(id="e", file="f", frames=self.frames, vectors={"action": 2}, cameras=("cam0",))]

    def read(self, ref: EpisodeRef) -> Episode:
        return Episode(
            fps=30,
            vectors={"action": np.zeros((self.frames, 2), np.float32)},
            images={"cam0": BigStream()},
            cameras={"cam0": Camera(key="x")},
        )
