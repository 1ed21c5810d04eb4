"""ShardWriter: writes one shard, episode by episode, each whole or not at all.

The tar and its frame table grow under partial names and appear together at `ShardWriter.close`: frame table first, tar
last, so that a tar under its final name is always complete. The bytes depend on nothing but the arguments.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import Dropped, FileEntry
from wdsmix.shards.content import EpisodeBlock, FrameTexts, Picture, PictureCount
from wdsmix.shards.files import PARTIAL, file_entry, fsync_file, fsync_folder
from wdsmix.shards.frames import write_frames
from wdsmix.shards.members import HeaderTemplate, VectorMembers
from wdsmix.shards.receipt import EpisodeRow, ShardReceipt
from wdsmix.shards.tario import END, padding
from wdsmix.stats import FieldAccumulator

__all__ = ["Picture", "ShardReceipt", "ShardWriter", "member_order", "npy_header"]

_FIRST = ("state", "action", "reward", "done")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")
_MEMBER = re.compile(r"[a-z0-9_][a-z0-9_-]*(\.[a-z0-9_-]+)*")
_MAX_FRAME = 2**32 - 1
_WRITE_BYTES = 1 << 18
"""Bytes gathered before they go to the file and into its hash."""
_COLUMNS: dict[str, npt.DTypeLike] = {
    "offset": np.uint64,
    "length": np.uint32,
    "crc32c": np.uint32,
    "timestamp": np.float64,
    "task": np.uint32,
}


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

    Raises:
        ConfigError: a name can't be a suffix of a member, or two members of a frame would have the same name.
    """

    def __init__(
        self, folder: Path, shard: str, *, vectors: Mapping[str, int], cameras: Mapping[str, str], split: str
    ) -> None:
        _check_names(vectors, cameras)
        self.folder = Path(folder)
        self.shard = shard
        self.split = split
        self._widths = {name: vectors[name] for name in member_order(vectors)}
        self._heads = {name: npy_header(width) for name, width in self._widths.items()}
        self._cameras = dict(sorted(cameras.items(), key=lambda item: _natural(item[0])))
        self._tar_path = self.folder / f"{shard}.tar"
        self._frames_path = self.folder / f"{shard}.frames.arrow"
        self._headers = {slot: HeaderTemplate(f".{suffix}") for slot, suffix in self._cameras.items()}
        self._text_header = HeaderTemplate(".json")
        self._tar = _partial(self._tar_path).open("wb", buffering=0)
        self._offset = 0
        self._sha = hashlib.sha256()
        self._crc = 0
        self._tasks: dict[str, int] = {}
        self._blocks: list[EpisodeBlock] = []
        self._rows = 0
        self._episodes: list[EpisodeRow] = []
        self._counts = {slot: PictureCount() for slot in self._cameras}
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
        block = EpisodeBlock.checked(episode, timestamps, vectors, self._widths, tasks, task_index)
        _check_text(*tasks, source_file, source_episode)
        texts = FrameTexts(extras or {}, frame_extras or {}, len(block))
        parts = {name: FieldAccumulator.of(rows) for name, rows in block.vectors.items()}
        start, sha, crc = self._offset, self._sha.copy(), self._crc
        counts = {slot: PictureCount() for slot in self._cameras}
        try:
            self._write_frames(block, iter(frames), texts, list(tasks), counts)
        except BaseException:
            self._tar.truncate(start)
            self._tar.seek(start)
            self._offset, self._sha, self._crc = start, sha, crc
            raise
        used = list(dict.fromkeys(block.task.tolist()))
        numbers = np.zeros(len(tasks), dtype=np.uint32)
        for number in used:
            numbers[number] = self._tasks.setdefault(tasks[number], len(self._tasks))
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
        block.task = numbers[block.task]
        self._blocks.append(block)
        self._rows += len(block)
        for slot, count in counts.items():
            self._counts[slot].add(count)
        for name, part in parts.items():
            self._stats[name].merge(part)

    def _write_frames(
        self,
        block: EpisodeBlock,
        frames: Iterator[Mapping[str, bytes | Picture]],
        texts: FrameTexts,
        tasks: list[str],
        counts: dict[str, PictureCount],
    ) -> None:
        vectors = VectorMembers(
            block.episode,
            {name: block.vectors[name] for name in self._widths if name in block.vectors},
            self._heads,
        )
        timestamps, chosen = block.timestamp.tolist(), block.task.tolist()
        headers, text_header = self._headers, self._text_header
        pending: list[bytes] = []
        start, offset = self._offset, self._offset
        for number in range(len(block)):
            pictures = next(frames, None)
            if pictures is None:
                raise DataError("the pictures end early", expected=f"{len(block)} frames", found=number)
            stem = b"%06d_%06d" % (block.episode, number)
            stem_sum = sum(stem)
            pieces: list[bytes | memoryview] = []
            found = 0
            for slot, header in headers.items():
                picture = pictures.get(slot)
                if picture is None:
                    continue
                data = picture.data if isinstance(picture, Picture) else picture
                found += 1
                counts[slot].see(picture, slot, number)
                pieces += (header.of(stem, stem_sum, len(data)), data, padding(len(data)))
            if found != len(pictures):
                raise DataError(
                    "a camera that the set does not have",
                    where=f"frame {number}",
                    expected=f"some of {', '.join(self._cameras) or 'none'}",
                    found=", ".join(map(str, pictures)),
                )
            pieces.append(vectors.of(number))
            data = texts.of(block.episode, number, timestamps[number], tasks[chosen[number]])
            pieces += (text_header.of(stem, stem_sum, len(data)), data, padding(len(data)))
            whole = b"".join(pieces)
            if len(whole) > _MAX_FRAME:
                raise DataError("a frame is too large", where=f"frame {number}", found=f"{len(whole)} bytes")
            block.offset[number] = offset
            block.length[number] = len(whole)
            block.crc32c[number] = google_crc32c.value(whole)
            offset += len(whole)
            pending.append(whole)
            if offset - start >= _WRITE_BYTES:
                self._put(b"".join(pending))
                pending.clear()
                start = offset
        if next(frames, None) is not None:
            raise DataError("more pictures than rows", expected=f"{len(block)} frames")
        self._put(b"".join(pending))

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


def _check_names(vectors: Mapping[str, int], cameras: Mapping[str, str]) -> None:
    for name, width in vectors.items():
        if not _NAME.fullmatch(name) or width < 1:
            raise ConfigError(
                "not a vector that a shard can hold",
                where=name,
                expected="letters, digits, _ and -, and a width of 1 or more",
                found=f"{name!r}, width {width}",
            )
    # webdataset lowers the case of suffixes: what differs by case alone would collide in its samples
    members = [f"{name}.npy".lower() for name in vectors] + [member.lower() for member in cameras.values()] + ["json"]
    for member in members:
        if not _MEMBER.fullmatch(member) or members.count(member) > 1:
            raise ConfigError("a member's name is not usable, or used twice", where=member, found=", ".join(members))


def _check_text(*texts: str) -> None:
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError("a text is not valid Unicode", found=ascii(text)) from error


def _natural(slot: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", slot)]


def _partial(path: Path) -> Path:
    return path.with_name(path.name + PARTIAL)
