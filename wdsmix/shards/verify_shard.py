"""The full check of one shard: every byte, every header, every member against the frame's record."""

from __future__ import annotations

import io
import json
import mmap
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import google_crc32c
import numpy as np
import numpy.typing as npt

from wdsmix.errors import DataError
from wdsmix.imaging import decode_depth, decode_rgb, sniff
from wdsmix.manifest import CameraEntry, FileEntry, Manifest
from wdsmix.shards.faults import Faults
from wdsmix.shards.files import file_entry
from wdsmix.shards.frames import FrameTable
from wdsmix.shards.npy import read_npy
from wdsmix.shards.samples import iter_samples
from wdsmix.shards.tario import BLOCK, END, Member, iter_members, padding, split_name, ustar_header
from wdsmix.shards.verify_manifest import is_adopted
from wdsmix.shards.verify_tables import frame_place
from wdsmix.shards.writer import member_order, npy_header

__all__ = ["ShardTotals", "TarBytes", "check_bytes", "check_checksum", "check_tar", "compare_checksums"]

_TICK = 32


class TarBytes(Protocol):
    """The bytes of a tar."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


@dataclass(slots=True)
class ShardTotals:
    """What the pictures of a shard add up to."""

    frames: Counter[str] = field(default_factory=Counter)
    """Camera slot -> pictures."""
    sizes: dict[str, set[tuple[int, int]]] = field(default_factory=dict)
    """Camera slot -> (width, height) pairs."""


def check_checksum(folder: Path, entry: FileEntry, faults: Faults) -> None:
    """Compares a file's sha256 and crc32c with the manifest's."""
    faults.saw("checksum")
    try:
        found = file_entry(folder / entry.name)
    except OSError as error:
        faults.add_error("checksum", entry.name, error)
        return
    compare_checksums(entry, found, faults)


def compare_checksums(entry: FileEntry, found: FileEntry, faults: Faults) -> None:
    """Compares what a file is with what the manifest says of it."""
    if found.sha256 != entry.sha256:
        faults.add("checksum", entry.name, "sha256 differs", expected=entry.sha256, found=found.sha256)
    if found.crc32c != entry.crc32c:
        faults.add(
            "checksum", entry.name, "crc32c differs", expected=f"{entry.crc32c:08x}", found=f"{found.crc32c:08x}"
        )


def check_tar(
    folder: Path, shard: str, manifest: Manifest, table: FrameTable | None, faults: Faults, tick: Callable[[int], None]
) -> ShardTotals:
    """Checks every frame of a shard's tar.

    Args:
        folder: The set's.
        shard: Name without suffix.
        manifest: The set's.
        table: The shard's frame table; None where it is unreadable: then only the tar itself is checked.
        faults: Collects what is wrong.
        tick: Told how many frames were done, now and then.
    """
    name = f"{shard}.tar"
    totals = ShardTotals()
    with (folder / name).open("rb") as file:
        size = file.seek(0, io.SEEK_END)
        if size == 0:
            faults.add("header", name, "the tar is empty", expected="at least the end marker", found="0 bytes")
            return totals
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            check_bytes(name, mapped, manifest, table, faults, totals, tick)
    return totals


def check_bytes(
    name: str,
    tar: TarBytes,
    manifest: Manifest,
    table: FrameTable | None,
    faults: Faults,
    totals: ShardTotals,
    tick: Callable[[int], None],
) -> None:
    """The same over bytes, in the order of the tar unless the set is adopted or has no ``table``."""
    # Copies, not views: nothing may hold on to a map when it closes.
    checker = _TarCheck(name, tar, manifest, table, faults, totals)
    if table is None or is_adopted(manifest):
        checker.walk()
    if table is not None:
        for row in range(len(table)):
            checker.frame(row)
            if row % _TICK == _TICK - 1:
                tick(_TICK)
        tick(len(table) % _TICK)
        checker.end()


class _TarCheck:
    """One tar under check."""

    def __init__(
        self,
        name: str,
        mapped: TarBytes,
        manifest: Manifest,
        table: FrameTable | None,
        faults: Faults,
        totals: ShardTotals,
    ) -> None:
        self.name, self.mapped, self.table = name, mapped, table
        self.faults, self.totals = faults, totals
        self.adopted = is_adopted(manifest)
        self.cameras = dict(sorted(manifest.cameras.items(), key=lambda item: (len(item[0]), item[0])))
        self.slots = {camera.member: slot for slot, camera in self.cameras.items()}
        self.vectors = {name: manifest.vectors[name] for name in member_order(manifest.vectors)}
        self.npy = {name: npy_header(entry.width) for name, entry in self.vectors.items()}

    def fault(self, kind: str, place: str, message: str, expected: object = None, found: object = None) -> None:
        self.faults.add(kind, self.name, message, where=place, expected=expected, found=found)

    def walk(self) -> None:
        """Parses the whole tar without its record, and compares the samples' borders where there is one."""
        borders = []
        try:
            if self.adopted:
                borders = [(sample.start, sample.end) for sample in iter_samples(self.mapped, path=self.name)]
            else:
                self.faults.saw("header", sum(1 for _ in iter_members(self.mapped, path=self.name, expect_end=True)))
        except DataError as error:
            self.faults.add_error("header", self.name, error)
            return
        if self.table is None or not self.adopted:
            return
        columns = self.table.columns
        starts, lengths = columns["offset"].tolist(), columns["length"].tolist()
        recorded = [(start, start + length) for start, length in zip(starts, lengths, strict=True)]
        if recorded != borders:
            first = next(
                (k for k, (a, b) in enumerate(zip(recorded, borders, strict=False)) if a != b),
                min(len(recorded), len(borders)),
            )
            self.fault(
                "members",
                f"row {first}",
                "the samples of the tar are not those of frames.arrow",
                f"{len(recorded)} samples",
                f"{len(borders)} samples",
            )

    def end(self) -> None:
        """After the last frame of our own tars there is the end marker and nothing more."""
        table = self.table
        if table is None or self.adopted:
            return
        stop = int(table.columns["offset"][-1]) + int(table.columns["length"][-1]) if len(table) else 0
        if self.mapped[stop:] != END:
            self.fault("header", f"byte {stop}", "not the end marker after the last frame", "1024 zero bytes")

    def frame(self, row: int) -> None:
        """Checks one frame."""
        table, faults = self.table, self.faults
        if table is None:
            return
        place = frame_place(table, row)
        start = int(table.columns["offset"][row])
        stop = start + int(table.columns["length"][row])
        faults.saw("crc")
        if stop > len(self.mapped):
            self.fault("crc", place, "the frame lies beyond the end of the tar", f"byte {stop}", len(self.mapped))
            return
        block = self.mapped[start:stop]
        crc, wanted = google_crc32c.value(block), int(table.columns["crc32c"][row])
        if crc != wanted:
            self.fault("crc", place, "crc32c differs", f"{wanted:08x}", f"{crc:08x}")
        try:
            members = list(iter_members(block, path=self.name))
        except DataError as error:
            offset = start + int((error.where or "byte 0").split()[1])
            self.fault("header", f"byte {offset}, row {row}", error.message, error.expected, error.found)
            return
        faults.saw("header", len(members))
        if not members or members[-1].end != len(block):
            at = start + (members[-1].end if members else 0)
            self.fault("header", f"byte {at}, row {row}", "zeros in place of a header")
        if not self.adopted:
            for member in members:
                self.plain(member, block, start, row)
        found = self.grouped(members, row, place)
        for suffix, member in found.items():
            data = block[member.data : member.data + member.size]
            if suffix in self.slots:
                self.picture(self.slots[suffix], data, f"{place}, {suffix}")
            elif suffix == "json":
                self.json(data, row, place)
        for name, entry in self.vectors.items():
            if entry.member in found and table.present[name][row]:
                member = found[entry.member]
                self.vector(name, block[member.data : member.data + member.size], table.vectors[name][row], place)

    def plain(self, member: Member, block: bytes, start: int, row: int) -> None:
        """Our own headers are plain ustar, to the byte, and padding is zero."""
        try:
            wanted = ustar_header(member.name, member.size)
        except (ValueError, UnicodeError):
            wanted = b""
        if member.start != member.data - BLOCK or block[member.data - BLOCK : member.data] != wanted:
            self.fault("header", f"byte {start + member.start}, row {row}", f"not the plain header of {member.name!r}")
        if block[member.data + member.size : member.end] != padding(member.size):
            self.fault("header", f"byte {start + member.data + member.size}, row {row}", "padding is not zero")

    def grouped(self, members: list[Member], row: int, place: str) -> dict[str, Member]:
        """The frame's members by suffix; faults where they are not those of the record."""
        table = self.table
        if table is None:
            return {}
        self.faults.saw("members")
        split = [split_name(member.name) for member in members]
        suffixes = [suffix for _, suffix in split]
        keys = {key for key, _ in split}
        wanted_key = f"{table.columns['episode'][row]:06d}_{table.columns['frame'][row]:06d}"
        if len(keys) > 1 if self.adopted else keys != {wanted_key}:
            wanted = "one key" if self.adopted else wanted_key
            self.fault("members", place, "wrong key", wanted, ", ".join(sorted(keys)[:4]))
        vectors = [entry.member for name, entry in self.vectors.items() if table.present[name][row]]
        absent = [entry.member for name, entry in self.vectors.items() if not table.present[name][row]]
        if self.adopted:
            good = set(vectors) <= set(suffixes) and not set(absent) & set(suffixes)
            wanted_members = vectors
        else:
            pictures = [camera.member for camera in self.cameras.values() if camera.member in suffixes]
            wanted_members = [*pictures, *vectors, "json"]
            good = suffixes == wanted_members
        if not good:
            self.fault("members", place, "not the members of its record", " ".join(wanted_members), " ".join(suffixes))
        return dict(zip(suffixes, members, strict=True))

    def vector(self, name: str, data: bytes, row: npt.NDArray[np.float32], place: str) -> None:
        """A vector member equals the frame's row, to the bit (after the cast to float32 for adopted ones)."""
        if data == self.npy[name] + row.tobytes():
            return
        where = f"{place}, {self.vectors[name].member}"
        try:
            array = read_npy(data)
        except DataError as error:
            self.faults.add_error("vector", self.name, error, where=where)
            return
        if self.adopted:
            if array.dtype.kind not in "fiub":
                self.fault("vector", where, "wrong dtype", "numbers", array.dtype)
                return
            with np.errstate(over="ignore"):
                array = array.astype(np.float32).reshape(-1)
        elif array.dtype != np.dtype("<f4"):
            self.fault("vector", where, "wrong dtype", "float32", array.dtype)
            return
        if array.shape != row.shape:
            self.fault("vector", where, "wrong shape", row.shape, array.shape)
            return
        if not np.isfinite(array).all():
            self.fault("vector", where, "holds NaN or infinity", found=array[~np.isfinite(array)][0])
        differs = np.flatnonzero(array.view(np.uint32) != row.view(np.uint32))
        if len(differs):
            at = int(differs[0])
            self.fault("vector", where, f"dimension {at} differs from frames.arrow", row[at], array[at])
        elif not self.adopted:
            self.fault("vector", where, "not in the plain .npy spelling")

    def json(self, data: bytes, row: int, place: str) -> None:
        """The sample's JSON says what the record says."""
        table = self.table
        if table is None:
            return
        self.faults.saw("json")
        try:
            value = json.loads(data.decode())
        except (ValueError, RecursionError) as error:
            self.faults.add_error("json", self.name, error, where=place)
            return
        if self.adopted:
            return
        if not isinstance(value, dict):
            self.fault("json", place, "not an object", found=type(value).__name__)
            return
        columns = table.columns
        task = int(columns["task"][row])
        wanted: dict[str, object] = {
            "episode": int(columns["episode"][row]),
            "frame": int(columns["frame"][row]),
            "timestamp": float(columns["timestamp"][row]),
        }
        if task < len(table.tasks):
            wanted["task"] = table.tasks[task]
        for key, expected in wanted.items():
            if value.get(key) != expected or isinstance(value.get(key), bool):
                self.fault("json", place, f"{key} differs from frames.arrow", repr(expected), repr(value.get(key)))

    def picture(self, slot: str, data: bytes, place: str) -> None:
        """A picture has the encoding the manifest tells and decodes to one of its sizes."""
        camera = self.cameras[slot]
        self.faults.saw("picture")
        self.totals.frames[slot] += 1
        encoding = sniff(data)
        if encoding != camera.encoding:
            self.fault("picture", place, "wrong encoding", camera.encoding, encoding or repr(data[:8]))
        try:
            height, width = _decoded(camera, data).shape[:2]
        except (DataError, ValueError, OSError, MemoryError) as error:
            self.faults.add_error("picture", self.name, error, where=place)
            return
        self.totals.sizes.setdefault(slot, set()).add((width, height))
        if (width, height) not in camera.sizes:
            self.fault("picture", place, "a size that the manifest does not list", camera.sizes, (width, height))


def _decoded(camera: CameraEntry, data: bytes) -> npt.NDArray[Any]:
    return decode_depth(data) if camera.kind == "depth" else decode_rgb(data)
