"""A source made of nothing: episodes whose every value follows from their number, and faults on demand."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from wdsmix.episode import Camera, Episode, EpisodeRef, SourceInfo, VectorSpec
from wdsmix.errors import DataError
from wdsmix.imaging import encode_jpeg


@dataclass(frozen=True)
class FakeEpisode:
    """One episode; ``does`` says what goes wrong with it."""

    id: str
    file: str = "a.fake"
    frames: int = 10
    does: str = ""
    """Nothing if empty; "bad" (read raises), "key" (a KeyError), "picture" (a damaged one at frame 3), "short" and
    "long" (too few, too many pictures), "nan", "unnamed" (a vector that the metadata do not have), "enospc", "memory",
    "endless" (takes an hour); at frame 3, in the reading process: "segv", "abort", "bus", "kill" (signals), "exit", and
    "once:PATH:SIGNAL" (a signal, the first time only)."""
    fault: str | None = None
    fault_kind: str = "episode"
    split: str | None = None
    state: int = 7
    cameras: tuple[str, ...] = ("cam0", "cam1")
    reward: bool = False


def picture(number: int, frame: int, slot: str, size: tuple[int, int] = (48, 32)) -> np.ndarray:
    """uint8 [H, W, 3]: smooth, and different for each frame."""
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 4 + frame * 7, y * 5 + number * 11, (x + y) * 2 + len(slot) * int(slot[-1]) * 13], -1)
    return (base % 200 + 20).astype(np.uint8)


def vector(number: int, frames: int, width: int, name: str) -> np.ndarray:
    """float32 [T, D]."""
    seed = int.from_bytes(hashlib.sha256(f"{name}{number}".encode()).digest()[:4], "big")
    return np.random.default_rng(seed).standard_normal((frames, width)).astype(np.float32)


@dataclass(frozen=True)
class FakeStream:
    """Pictures: cam0 gives JPEG bytes, the others pixels."""

    number: int
    slot: str
    episode: FakeEpisode
    slow: float = 0.0

    def read(self, rows: np.ndarray) -> Iterator[bytes | np.ndarray]:
        for frame in rows.tolist():
            if self.slow:
                time.sleep(self.slow)
            if frame == 3 and self.slot == self.episode.cameras[0]:
                self._misbehave()
            if self.episode.does == "short" and frame == rows[-1]:
                return
            pixels = picture(self.number, frame, self.slot)
            data = encode_jpeg(pixels, 90, "420") if self.slot == "cam0" else pixels
            if self.episode.does == "picture" and frame == 3 and self.slot == "cam0":
                data = data[: len(data) // 2] + b"\xff\xd9"
            yield data
        if self.episode.does == "long":
            yield picture(self.number, 0, self.slot)

    def _misbehave(self) -> None:
        does = self.episode.does
        if does.startswith("once:"):
            _, path, name = does.split(":")
            if not Path(path).exists():
                Path(path).touch()
                os.kill(os.getpid(), signal.Signals[name])
                time.sleep(10)
        number = {"segv": signal.SIGSEGV, "abort": signal.SIGABRT, "kill": signal.SIGKILL, "bus": signal.SIGBUS}.get(
            does
        )
        if number is not None:
            os.kill(os.getpid(), number)
            time.sleep(10)
        if does == "exit":
            os._exit(3)
        if does == "enospc":
            raise OSError(28, "No space left on device")
        if does == "memory":
            raise MemoryError


@dataclass(frozen=True)
class FakeSource:
    """See the module."""

    made: Sequence[FakeEpisode]
    fps: float = 30.0
    slow: float = 0.0
    path: str | None = None
    kinds: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    args: Mapping[str, object] = field(default_factory=dict)
    salt: str = ""
    size_by_bytes: int = 0
    stamped: bool = False

    def describe(self) -> SourceInfo:
        slots = sorted({slot for episode in self.made for slot in episode.cameras})
        return SourceInfo(
            name="fake",
            kind="fake/plain",
            fps=self.fps,
            embodiment="robot",
            licence="CC0-1.0",
            vectors={name: VectorSpec(kinds=kinds) for name, kinds in self.kinds.items()},
            cameras={slot: Camera(key=f"key_{slot}") for slot in slots},
            details={"made": True},
        )

    def arguments(self) -> Mapping[str, object]:
        return dict(self.args)

    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self.made, self.fps, self.salt)).encode()).hexdigest()

    def episodes(self) -> list[EpisodeRef]:
        return [
            EpisodeRef(
                id=episode.id,
                file=episode.file,
                frames=episode.frames,
                vectors={"state": episode.state, "action": 4} | ({"reward": 1, "done": 1} if episode.reward else {}),
                cameras=episode.cameras,
                split=episode.split,
                fault=episode.fault,
                fault_kind=episode.fault_kind,
                locator={"number": number},
            )
            for number, episode in enumerate(self.made)
        ]

    def read(self, ref: EpisodeRef) -> Episode:
        number = int(ref.locator["number"])
        made = self.made[number]
        if made.does == "bad":
            raise DataError("its bytes are bad", path=f"{self.path}/{made.file}", where="obs", expected=1, found=2)
        if made.does == "key":
            raise KeyError("obs")
        if made.does == "endless":
            time.sleep(3600)
        vectors = {
            "state": vector(number, made.frames, made.state, "state"),
            "action": vector(number, made.frames, 4, "action"),
        }
        if made.does == "nan":
            vectors["state"][2, 1] = np.nan
        if made.does == "unnamed":
            vectors["force"] = vectors["action"]
        if made.reward:
            vectors["reward"] = np.arange(made.frames, dtype=np.float32)[:, None]
            vectors["done"] = (np.arange(made.frames) == made.frames - 2).astype(np.float32)[:, None]
        return Episode(
            fps=self.fps,
            vectors=vectors,
            images={slot: FakeStream(number, slot, made, self.slow) for slot in made.cameras},
            cameras=self.describe().cameras,
            tasks=[f"task {number % 2}", "then this"],
            task_index=(np.arange(made.frames) >= made.frames // 2).astype(np.int32),
            timestamps=np.arange(made.frames) / self.fps + 5 if self.stamped else None,
            extras={"score": number},
            frame_extras={"phase": [f"p{k}" for k in range(made.frames)]},
        )


def many(count: int, *, frames: int = 12, files: int = 3, **changes: str) -> list[FakeEpisode]:
    """``count`` good episodes of differing length in some files; ``changes``: e3="bad" makes episode 3 bad."""
    return [
        FakeEpisode(
            id=f"ep{number}",
            file=f"f{number % files}.fake",
            frames=frames + number % 5,
            does=changes.get(f"e{number}", ""),
        )
        for number in range(count)
    ]


@dataclass(frozen=True)
class FiledSource(FakeSource):
    """A fake source that names files it never opens."""

    def inputs(self) -> list[Path]:
        return sorted(Path(str(self.path)).glob("*.bin"))
