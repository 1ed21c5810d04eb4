"""What a resumed run keeps, held against the world: the source's files as first seen, and finished shards' bytes.

A fingerprint samples content, so that copies of a source are the same source; it can't see a change between its
samples. Size and time of last writing can, on one machine: they are kept in `.work` as long as a set is unfinished,
and never enter plan or manifest.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from wdsmix.converters.base import Source

from wdsmix.errors import ConflictError, DataError
from wdsmix.shards.files import file_entry
from wdsmix.shards.receipt import ShardReceipt

__all__ = ["Stamps", "differing", "stamps_of"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stamps:
    """Size and time of last writing of each file of a source."""

    root: str
    """The source's path, resolved: another copy of it has other times, and a file of stamps of its own."""
    files: Mapping[str, tuple[int, int]]
    """Name below the root -> (bytes, ns since the epoch)."""

    @property
    def name(self) -> str:
        """Name of their file in `.work`."""
        return f"source-{hashlib.sha256(self.root.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}.json"

    def to_bytes(self) -> bytes:
        """JSON."""
        return json.dumps({"root": self.root, "files": self.files}, indent=1, sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes, path: Path) -> Stamps:
        """The stamps in a file.

        Raises:
            DataError: damaged.
        """
        try:
            plain = json.loads(data)
            files = {str(name): (int(size), int(time)) for name, (size, time) in plain["files"].items()}
            return cls(root=str(plain["root"]), files=files)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise DataError(
                "the record of the source's files is damaged", path=path, hint="delete it, or start over"
            ) from error

    def check(self, now: Stamps, path: Path, folder: Path) -> None:
        """Makes sure that the files are still those seen first.

        Args:
            now: The stamps of now.
            path: The file these are kept in.
            folder: The unfinished set.

        Raises:
            ConflictError: one was written since, is gone, or is new; names it and both states.
        """
        changed = [name for name in sorted({*self.files, *now.files}) if self.files.get(name) != now.files.get(name)]
        if changed:
            name = changed[0]
            raise ConflictError(
                "the source changed since this conversion began, so that old and new data would be mixed"
                + (f" ({len(changed)} files; this is the first)" if len(changed) > 1 else ""),
                path=name,
                expected=_spelled(self.files.get(name)),
                found=_spelled(now.files.get(name)),
                hint=f"start over in a new folder, or delete {folder}; if you know that the content is the same "
                f"(copied or touched), delete {path} and give the same command again",
            )


def _spelled(stamp: tuple[int, int] | None) -> str:
    if stamp is None:
        return "no such file"
    size, time = stamp
    whole = datetime.fromtimestamp(time // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
    return f"{size} bytes, written {whole}.{time % 10**9:09d} UTC"


def stamps_of(source: Source) -> Stamps | None:
    """The stamps of a source that has ``path`` and ``inputs``; None: of another one."""
    inputs, path = getattr(source, "inputs", None), getattr(source, "path", None)
    if not callable(inputs) or path is None:
        return None
    root = Path(path).resolve()
    files: dict[str, tuple[int, int]] = {}
    for file in inputs():
        full = Path(file).resolve()
        name = full.relative_to(root).as_posix() if full != root and full.is_relative_to(root) else str(file)
        try:
            status = full.stat()
        except OSError:
            continue  # unreadable: a fault of the file, which the source tells
        files[name if full != root else full.name] = (status.st_size, status.st_mtime_ns)
    return Stamps(root=str(root), files=files)


def differing(folder: Path, receipts: Iterable[ShardReceipt], *, workers: int = 1) -> Iterator[tuple[str, str]]:
    """Reads the files of finished shards and compares them with their receipts.

    Yields:
        Of each shard, in order: its name, and what differs, or an empty text.
    """
    with ThreadPoolExecutor(workers) as pool:
        try:
            yield from pool.map(lambda receipt: (receipt.shard, _difference(folder, receipt)), receipts)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _difference(folder: Path, receipt: ShardReceipt) -> str:
    for entry in receipt.files:
        try:
            found = file_entry(folder / entry.name)
        except FileNotFoundError:
            return f"{entry.name} is gone"
        if (found.bytes, found.sha256) != (entry.bytes, entry.sha256):
            return f"{entry.name} is not what was written (expected sha256 {entry.sha256}, found {found.sha256})"
    return ""
