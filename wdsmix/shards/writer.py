"""ShardWriter: writes one shard, episode by episode, each whole or not at all.

The tar and its frame table grow under partial names and appear together at `ShardWriter.close`: frame table first, tar
last, so that a tar under its final name is always complete. The bytes depend on nothing but the arguments.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

import google_crc32c
import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.manifest import Dropped, FileEntry
from wdsmix.shards.files import PARTIAL, file_entry, fsync_file, fsync_folder
from wdsmix.shards.frames import write_frames
from wdsmix.shards.receipt import CameraCount, EpisodeRow, ShardReceipt
from wdsmix.shards.tario import END, padding, ustar_header
from wdsmix.stats import FieldAccumulator, check_finite

__all__ = ["Picture", "ShardReceipt", "ShardWriter", "member_order", "npy_header"]

_FIRST = ("state", "action", "reward", "done")
_RESERVED = frozenset({"episode", "frame", "timestamp", "task"})
_MAX_FRAME = 2**32 - 1
_COLUMNS: dict[str, npt.DTypeLike] = {
    "offset": np.uint64,
    "length": np.uint32,
    "crc32c": np.uint32,
    "timestamp": np.float64,
    "task": np.uint32,
}
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


class Picture(NamedTuple):
    """Encoded bytes of one picture, and what the manifest counts about it."""

    data: bytes
    size: tuple[int, int] | None = None
    """(width, height); None: read from its header."""
    passthrough: bool = False
    """Whether these are the source's own bytes."""


def member_order(vectors: Iterable[str]) -> list[str]:
    """Order of the vectors of a frame in the tar: state, action, reward, done, then the others by name."""
    names = set(vectors)
    return [name for name in _FIRST if name in names] + sorted(names - set(_FIRST))


def npy_header(width: int) -> bytes:
    """What ``np.save`` puts before float32 [width]."""
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({width},), }}"
    text += " " * (-(10 + len(text) + 1) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


class ShardWriter:
    """Writes ``<shard>.tar`` and ``<shard>.frames.arrow``.

    A context manager: leaving it without `close` removes the partial files.

    Args:
        folder: Folder of the set; must exist.
        shard: Name without suffix, such as ``train-00000``.
        vectors: Every vector of the set: name -> width.
        cameras: Every camera slot of the set: slot -> suffix of its members, such as ``cam0.jpg``.
        split: Split of the shard; ``train`` ones gather statistics.
    """

    def __init__(
        self, folder: Path, shard: str, *, vectors: Mapping[str, int], cameras: Mapping[str, str], split: str
    ) -> None:
        self.folder = Path(folder)
        self.shard = shard
        self.split = split
        self._widths = {name: vectors[name] for name in member_order(vectors)}
        self._heads = {name: npy_header(width) for name, width in self._widths.items()}
        self._cameras = dict(sorted(cameras.items(), key=lambda item: _natural(item[0])))
        self._tar_path = self.folder / f"{shard}.tar"
        self._frames_path = self.folder / f"{shard}.frames.arrow"
        self._tar = _partial(self._tar_path).open("wb", buffering=0)
        self._offset = 0
        self._sha = hashlib.sha256()
        self._crc = 0
        self._tasks: dict[str, int] = {}
        self._blocks: list[_Block] = []
        self._rows = 0
        self._episodes: list[EpisodeRow] = []
        self._counts = {slot: _Count() for slot in self._cameras}
        self._stats = {name: FieldAccumulator(width) for name, width in self._widths.items()}
        self._open = True

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    @property
    def frames(self) -> int:
        """Frames written so far."""
        return self._rows

    def write_episode(
        self,
        *,
        episode: int,
        frames: Iterable[Mapping[str, bytes | Picture]],
        vectors: Mapping[str, npt.NDArray[np.float32]],
        timestamps: npt.NDArray[np.float64],
        tasks: Sequence[str] = ("",),
        task_index: npt.NDArray[np.int32] | None = None,
        extras: Mapping[str, object] | None = None,
        frame_extras: Mapping[str, Sequence[object]] | None = None,
        source_file: str,
        source_episode: str,
        duration: float,
    ) -> None:
        """Adds one episode of T frames. Whatever is raised, the shard is then as it was before.

        Args:
            episode: Its number; above the one before.
            frames: T mappings, slot -> encoded picture; a camera that a frame lacks has no entry. Consumed lazily;
                what it raises goes on to the caller.
            vectors: Name -> float32 [T, D], finite; a vector that the episode lacks has no entry.
            timestamps: float64 [T], s.
            tasks: Task strings.
            task_index: int32 [T] into ``tasks``; None: all frames have the first.
            extras: Facts of the whole episode (JSON types).
            frame_extras: Name -> T values (JSON types).
            source_file: Where it came from, relative to the source.
            source_episode: The source's name of it.
            duration: s.

        Raises:
            DataError: counts, shapes or values are wrong, or a fact is not JSON.
        """
        if not self._open:
            raise ValueError(f"shard {self.shard} is closed")
        if self._episodes and episode <= self._episodes[-1].episode:
            raise ValueError(f"episode {episode} after {self._episodes[-1].episode}: numbers must ascend")
        block = _Block.checked(episode, timestamps, vectors, self._widths, tasks, task_index)
        texts = _Texts(extras or {}, frame_extras or {}, len(block))
        parts = {name: FieldAccumulator.of(rows) for name, rows in block.vectors.items()}
        start, sha, crc = self._offset, self._sha.copy(), self._crc
        counts = {slot: _Count() for slot in self._cameras}
        try:
            self._write_frames(block, iter(frames), texts, list(tasks), counts)
        except BaseException:
            self._tar.truncate(start)
            self._tar.seek(start)
            self._offset, self._sha, self._crc = start, sha, crc
            raise
        used = list(dict.fromkeys(block.task.tolist()))
        table = np.array([self._tasks.setdefault(task, len(self._tasks)) for task in tasks], dtype=np.uint32)
        self._episodes.append(
            EpisodeRow(
                episode=episode,
                shard=self.shard,
                first_row=self._rows,
                frames=len(block),
                offset=start,
                length=self._offset - start,
                split=self.split,
                tasks=list(dict.fromkeys(tasks[number] for number in used)),
                source_file=source_file,
                source_episode=source_episode,
                duration=duration,
                extras=texts.episode,
            )
        )
        block.task = table[block.task]
        self._blocks.append(block)
        self._rows += len(block)
        for slot, count in counts.items():
            self._counts[slot].add(count)
        for name, part in parts.items():
            self._stats[name].merge(part)

    def _write_frames(
        self,
        block: _Block,
        frames: Iterator[Mapping[str, bytes | Picture]],
        texts: _Texts,
        tasks: list[str],
        counts: dict[str, _Count],
    ) -> None:
        rows = [
            (f".{name}.npy", self._heads[name], block.vectors[name].tobytes(), 4 * self._widths[name])
            for name in self._widths
            if name in block.vectors
        ]
        timestamps, chosen = block.timestamp.tolist(), block.task.tolist()
        for number in range(len(block)):
            pictures = next(frames, None)
            if pictures is None:
                raise DataError("the pictures end early", expected=f"{len(block)} frames", found=number)
            stem = f"{block.episode:06d}_{number:06d}"
            pieces: list[bytes] = []
            found = 0
            for slot, suffix in self._cameras.items():
                picture = pictures.get(slot)
                if picture is None:
                    continue
                data = picture.data if isinstance(picture, Picture) else picture
                found += 1
                counts[slot].see(picture, slot, number)
                pieces += (ustar_header(f"{stem}.{suffix}", len(data)), data, padding(len(data)))
            if found != len(pictures):
                raise DataError(
                    "a camera that the set does not have",
                    where=f"frame {number}",
                    expected=f"some of {', '.join(self._cameras) or 'none'}",
                    found=", ".join(map(str, pictures)),
                )
            for suffix, head, data, width in rows:
                size = len(head) + width
                place = number * width
                pieces += (ustar_header(stem + suffix, size), head, data[place : place + width], padding(size))
            data = texts.of(block.episode, number, timestamps[number], tasks[chosen[number]])
            pieces += (ustar_header(stem + ".json", len(data)), data, padding(len(data)))
            whole = b"".join(pieces)
            if len(whole) > _MAX_FRAME:
                raise DataError("a frame is too large", where=f"frame {number}", found=f"{len(whole)} bytes")
            block.offset[number] = self._offset
            block.length[number] = len(whole)
            block.crc32c[number] = google_crc32c.value(whole)
            self._put(whole)
        if next(frames, None) is not None:
            raise DataError("more pictures than rows", expected=f"{len(block)} frames")

    def _put(self, data: bytes) -> None:
        written = self._tar.write(data)
        while written < len(data):  # a raw write may stop early, at signals and full disks
            written += self._tar.write(data[written:])
        self._sha.update(data)
        self._crc = google_crc32c.extend(self._crc, data)
        self._offset += len(data)

    def close(self, dropped: Sequence[Dropped] = ()) -> ShardReceipt:
        """Completes the shard and gives its files their names.

        Args:
            dropped: Episodes planned for this shard that it does not hold; kept in the receipt.
        """
        if not self._open:
            raise ValueError(f"shard {self.shard} is closed")
        self._put(END)
        os.fsync(self._tar.fileno())
        self._tar.close()
        self._write_table()
        tar = FileEntry(name=self._tar_path.name, bytes=self._offset, sha256=self._sha.hexdigest(), crc32c=self._crc)
        table = file_entry(_partial(self._frames_path), self._frames_path.name)
        fsync_file(_partial(self._frames_path))
        _partial(self._frames_path).replace(self._frames_path)
        _partial(self._tar_path).replace(self._tar_path)
        fsync_folder(self.folder)
        self._open = False
        keep = self.split == "train"
        return ShardReceipt(
            shard=self.shard,
            split=self.split,
            files=[table, tar],
            episodes=self._episodes,
            cameras={slot: count.model() for slot, count in self._counts.items()},
            vectors={name: self._frames_with(name) for name in self._widths},
            stats={name: part.to_json() for name, part in self._stats.items() if keep and part.count},
            dropped=list(dropped),
        )

    def abort(self) -> None:
        """Removes the partial files. Does nothing after `close`."""
        if self._open:
            self._open = False
            self._tar.close()
            for path in (self._tar_path, self._frames_path):
                _partial(path).unlink(missing_ok=True)

    def _frames_with(self, name: str) -> int:
        return sum(len(block) for block in self._blocks if name in block.vectors)

    def _write_table(self) -> None:
        blocks = self._blocks
        columns: dict[str, npt.NDArray[Any]] = {
            name: np.concatenate([np.empty(0, dtype), *(getattr(block, name) for block in blocks)])
            for name, dtype in _COLUMNS.items()
        }
        lengths = [len(block) for block in blocks]
        columns["episode"] = np.repeat(np.array([block.episode for block in blocks], dtype=np.uint32), lengths)
        columns["frame"] = np.concatenate([np.empty(0, np.uint32), *(np.arange(n, dtype=np.uint32) for n in lengths)])
        vectors, present = {}, {}
        for name, width in self._widths.items():
            rows = np.zeros((self._rows, width), dtype=np.float32)
            have = np.zeros(self._rows, dtype=np.bool_)
            place = 0
            for block in blocks:
                if name in block.vectors:
                    rows[place : place + len(block)] = block.vectors[name]
                    have[place : place + len(block)] = True
                place += len(block)
            vectors[name], present[name] = rows, have
        write_frames(_partial(self._frames_path), columns, vectors, present, list(self._tasks))


class _Block:
    """Rows of one episode."""

    __slots__ = ("crc32c", "episode", "length", "offset", "task", "timestamp", "vectors")

    def __init__(
        self,
        episode: int,
        timestamp: npt.NDArray[np.float64],
        task: npt.NDArray[np.uint32],
        vectors: dict[str, npt.NDArray[np.float32]],
    ) -> None:
        self.episode = episode
        self.timestamp = timestamp
        self.task = task
        self.vectors = vectors
        self.offset = np.zeros(len(timestamp), dtype=np.uint64)
        self.length = np.zeros(len(timestamp), dtype=np.uint32)
        self.crc32c = np.zeros(len(timestamp), dtype=np.uint32)

    def __len__(self) -> int:
        return len(self.timestamp)

    @classmethod
    def checked(
        cls,
        episode: int,
        timestamps: npt.NDArray[np.float64],
        vectors: Mapping[str, npt.NDArray[np.float32]],
        widths: Mapping[str, int],
        tasks: Sequence[str],
        task_index: npt.NDArray[np.int32] | None,
    ) -> _Block:
        times = np.array(timestamps, dtype=np.float64)
        if times.ndim != 1 or not len(times):
            raise DataError("an episode needs one timestamp a frame", found=f"shape {list(times.shape)}")
        if not np.isfinite(times).all():
            raise DataError("a timestamp is not finite", where=f"frame {int(np.argmin(np.isfinite(times)))}")
        kept = {}
        for name, rows in vectors.items():
            if name not in widths:
                raise DataError(
                    "a vector that the set does not have", where=name, expected=f"some of {', '.join(widths)}"
                )
            if rows.dtype != np.float32 or rows.shape != (len(times), widths[name]):
                raise DataError(
                    "a vector of the wrong shape",
                    where=name,
                    expected=f"float32 {[len(times), widths[name]]}",
                    found=f"{rows.dtype} {list(rows.shape)}",
                )
            try:
                check_finite(rows)
            except DataError as error:
                error.where = f"{name}, {error.where}"
                raise
            kept[name] = np.array(rows, order="C", copy=True)
        if task_index is None:
            chosen = np.zeros(len(times), dtype=np.int64)
        else:
            chosen = np.asarray(task_index, dtype=np.int64)
        if chosen.shape != times.shape or not tasks or chosen.min() < 0 or chosen.max() >= len(tasks):
            raise DataError(
                "task numbers outside of the tasks",
                expected=f"{len(times)} numbers below {len(tasks)}",
                found=f"{list(chosen.shape)} numbers from {chosen.min(initial=0)} to {chosen.max(initial=0)}",
            )
        return cls(episode, times, chosen.astype(np.uint32), kept)


class _Texts:
    """The JSON members of one episode."""

    def __init__(self, extras: Mapping[str, object], frame_extras: Mapping[str, Sequence[object]], frames: int) -> None:
        taken = _RESERVED.intersection(extras) | _RESERVED.intersection(frame_extras)
        if taken:
            raise DataError("a fact can't have the name of a field of every frame", found=", ".join(sorted(taken)))
        for name, values in frame_extras.items():
            if len(values) != frames:
                raise DataError("not one value a frame", where=name, expected=frames, found=len(values))
        self._base = {name: value for name, value in extras.items() if not _empty(value)}
        self._columns = dict(frame_extras)
        self.episode = self._text(dict(extras), "the episode")

    def of(self, episode: int, frame: int, timestamp: float, task: str) -> bytes:
        fields = {**self._base, "episode": episode, "frame": frame, "timestamp": timestamp, "task": task}
        for name, values in self._columns.items():
            fields[name] = values[frame]
        return self._text(fields, f"frame {frame}").encode()

    @staticmethod
    def _text(fields: dict[str, Any], where: str) -> str:
        try:
            text = _encode(fields)
            text.encode()
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"a fact is not JSON: {error}", where=where) from error
        return text


class _Count:
    """What one camera slot has had."""

    __slots__ = ("frames", "passthrough", "sizes")

    def __init__(self) -> None:
        self.frames = 0
        self.passthrough = 0
        self.sizes: set[tuple[int, int]] = set()

    def see(self, picture: bytes | Picture, slot: str, frame: int) -> None:
        picture = picture if isinstance(picture, Picture) else Picture(picture)
        if not picture.data:
            _refuse("an empty picture", slot, frame)
        size = picture.size
        if size is None:
            size = _size_of(picture.data)
        self.frames += 1
        self.passthrough += picture.passthrough
        self.sizes.add(size)

    def add(self, other: _Count) -> None:
        self.frames += other.frames
        self.passthrough += other.passthrough
        self.sizes |= other.sizes

    def model(self) -> CameraCount:
        return CameraCount(frames=self.frames, sizes=sorted(self.sizes), passthrough=self.passthrough)


def _size_of(data: bytes) -> tuple[int, int]:
    from PIL import Image as PilImage

    from wdsmix.imaging import jpeg_size, sniff

    if sniff(data) == "jpeg":
        width, height, *_ = jpeg_size(data)
        return width, height
    try:
        with PilImage.open(io.BytesIO(data)) as picture:
            return picture.size
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError("not a picture", found=data[:8].hex(" ")) from error


def _refuse(message: str, slot: str, frame: int) -> NoReturn:
    raise DataError(message, where=f"{slot}, frame {frame}")


def _empty(value: object) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and not value)


def _natural(slot: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", slot)]


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)
