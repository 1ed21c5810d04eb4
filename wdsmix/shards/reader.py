"""ShardSet: a finished shard set, opened for random access."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.manifest import FORMAT_VERSION, FileEntry, Manifest, Stats, check_seal, digest_of, read_model
from wdsmix.shards.frames import check_crc, map_file
from wdsmix.shards.index import EpisodeIndex
from wdsmix.shards.remote import CacheOptions, RemoteSet, locate, open_remote
from wdsmix.shards.shardfile import EpisodeRows, ShardFile
from wdsmix.store.opening import UrlPath, is_url

if TYPE_CHECKING:
    import webdataset

    from wdsmix.shards.episodes import EpisodeData, EpisodeDataset
    from wdsmix.store.cached import Counts

__all__ = ["Frame", "ShardFile", "ShardSet"]

_OPEN_SHARDS = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One frame, decoded."""

    row: int
    """Its place in the set: 0 to ``len(set) - 1``."""
    key: str
    """Sample key."""
    episode: int
    frame: int
    timestamp: float
    """s."""
    task: str
    split: str
    images: Mapping[str, npt.NDArray[Any]]
    """Slot -> uint8 [H, W, 3], RGB (depth: uint16 [H, W], mm); a camera that the frame lacks has no entry."""
    vectors: Mapping[str, npt.NDArray[np.float32]]
    """Name -> float32 [D]; a vector that the frame lacks has no entry."""
    extras: Mapping[str, Any]
    """All further facts in the frame's JSON member; of an adopted tar's that is no object, the value as ``json``."""

    @property
    def state(self) -> npt.NDArray[np.float32] | None:
        """float32 [Ds]."""
        return self.vectors.get("state")

    @property
    def action(self) -> npt.NDArray[np.float32] | None:
        """float32 [Da]."""
        return self.vectors.get("action")


class ShardSet:
    """A finished shard set. Opening reads manifest and index; shards are mapped when first touched.

    Safe to use from many threads, to fork and to pickle: a copy opens its files again when first used, and refuses a
    set that changed meanwhile.

    Of a set in a store, latest.json is followed once: object and copies stay on that version. Its small files and the
    ranges of its tars that are read go to this node's disk cache.

    Args:
        path: Folder or URL of the set (``s3://``, ``gs://``, ``az://``, ``http(s)://``), or a brace pattern of its tars
            such as ``sets/lift/train-{00000..00003}.tar``.
        shards: Names of shards to look at, in any order; None: all, or those of the pattern. Rows, episodes and
            ``len`` count only these.
        digest: The version that it must be; None: any.
        cache_dir: Folder of the cache; None: what WDSMIX_CACHE_DIR names, else one below /var/tmp.
        cache_limit: Bytes that the cache may take; None: half of what is free or taken by it.

    Attributes:
        path: Its folder, or the URL of its version.

    Raises:
        DataError: not a finished set, or damaged.
        ConfigError: a shard that the set does not have, or not a pattern of one folder's tars.
        StorageError: the store can't be reached or refuses.
    """

    def __init__(
        self,
        path: str | PurePath,
        *,
        shards: Sequence[str] | None = None,
        digest: str | None = None,
        cache_dir: str | Path | None = None,
        cache_limit: int | None = None,
    ) -> None:
        self.path, pattern = _locate(path)
        names = pattern if shards is None else shards
        self._chosen = None if names is None else frozenset(names)
        self._digest: str | None = digest
        self._cache: CacheOptions = cache_dir, cache_limit
        self._reset()
        self._load()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._remote: RemoteSet | None = None
        self._manifest: Manifest | None = None
        self._index: EpisodeIndex | None = None
        self._stats: Stats | None = None
        self._files: dict[str, FileEntry] = {}
        self._bounds: npt.NDArray[np.int64] = np.zeros(0, np.int64)
        self._shards: OrderedDict[int, ShardFile] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        path = self.path.absolute() if isinstance(self.path, Path) else self.path
        return {"path": path, "chosen": self._chosen, "digest": self._digest, "cache": self._cache}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.path, self._chosen, self._digest = state["path"], state["chosen"], state["digest"]
        self._cache = state["cache"]
        self._reset()

    def __enter__(self) -> ShardSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"ShardSet({str(self.path)!r}, {len(self)} frames in {len(self.index)} episodes)"

    def __len__(self) -> int:
        ends = self.index.ends
        return int(ends[-1]) if len(ends) else 0

    def __getitem__(self, i: int) -> Frame:
        return self.frame(i)

    def __iter__(self) -> Iterator[Frame]:
        return (self.frame(i) for i in range(len(self)))

    def _guard(self) -> threading.RLock:
        if os.getpid() != self._pid:  # forked: another thread of the parent may have held the lock
            self._lock = threading.RLock()  # before the pid: whoever sees the new pid must see the new lock
            self._pid = os.getpid()
        return self._lock

    def _load(self) -> tuple[Manifest, EpisodeIndex]:
        if self._manifest is not None and self._index is not None:
            return self._manifest, self._index
        with self._guard():
            if self._manifest is None or self._index is None:
                manifest, digest = self._open()
                if self._digest is not None and digest != self._digest:
                    raise ConflictError(
                        "the set has changed since it was opened",
                        path=self.path,
                        expected=f"digest {self._digest[:12]}",
                        found=digest[:12],
                    )
                files = {entry.name: entry for entry in manifest.files}
                for name in ("index.parquet", "stats.json"):
                    if name not in files:
                        raise DataError("the manifest does not list the file", path=self.path / name)
                if len(set(manifest.shards)) != len(manifest.shards) or len(files) != len(manifest.files):
                    raise DataError("the manifest lists a name twice", path=self.path / "manifest.json")
                unknown = sorted((self._chosen or frozenset()).difference(manifest.shards))
                if unknown:
                    raise ConfigError(
                        "the set has no such shard",
                        path=self.path,
                        expected=_span(manifest.shards),
                        found=unknown[0],
                    )
                index = EpisodeIndex(
                    self.path / "index.parquet",
                    self._read("index.parquet", files["index.parquet"]),
                    manifest.shards,
                    self._chosen,
                    manifest.counts.episodes,
                )
                if self._chosen is None and int(index.frames.sum()) != manifest.counts.frames:
                    raise DataError(
                        "not as many frames as the manifest says",
                        path=self.path / "index.parquet",
                        expected=manifest.counts.frames,
                        found=int(index.frames.sum()),
                    )
                if len(index) and int(np.diff(index.shard).min(initial=0)) < 0:
                    raise DataError("index.parquet is not in the order of the shards", path=self.path)
                self._bounds = np.searchsorted(index.shard, np.arange(len(manifest.shards) + 1))
                self._digest, self._files = digest, files
                self._manifest, self._index = manifest, index
            return self._manifest, self._index

    def _open(self) -> tuple[Manifest, str]:
        """Manifest and digest; settles where the set lies."""
        if not isinstance(self.path, Path):
            found = open_remote(str(self.path), self._digest, self._cache)
            if isinstance(found, RemoteSet):
                self._remote, self.path = found, found.path
                return found.manifest, found.digest
            self.path = found
        return _read_manifest(self.path)

    def _read(self, name: str, entry: FileEntry) -> pa.Buffer:
        """A small file, mapped and checked."""
        with self._named():
            path = Path(self.path) / name if self._remote is None else self._remote.file(name)
            data = map_file(path, entry)
            check_crc(path, data, entry)
            return data

    def _named(self) -> contextlib.AbstractContextManager[None]:
        """Errors inside name the set, wherever the bytes come from."""
        return contextlib.nullcontext() if self._remote is None else self._remote.named()

    @property
    def manifest(self) -> Manifest:
        """What the set is."""
        return self._load()[0]

    @property
    def index(self) -> EpisodeIndex:
        """Its episodes (of the chosen shards)."""
        return self._load()[1]

    @property
    def digest(self) -> str:
        """Its version: sha256 of manifest.json."""
        self._load()
        return self._digest or ""

    @property
    def counts(self) -> Counts | None:
        """What this process fetched and read of sets in stores; None for a set on a disk."""
        self._load()
        return None if self._remote is None else self._remote.counts

    @property
    def splits(self) -> list[str]:
        """Splits that occur, as ``index.split`` counts them."""
        return self.index.splits

    @property
    def stats(self) -> Stats:
        """Its statistics over the train split; of the whole set, whatever shards were chosen.

        Raises:
            DataError: stats.json is missing or damaged.
        """
        self._load()
        if self._stats is None:
            data = self._read("stats.json", self._files["stats.json"])
            self._stats = read_model(Stats, data.to_pybytes(), self.path / "stats.json")
        return self._stats

    def is_open(self, k: int) -> bool:
        """Whether a shard is open, so that `shard` asks nothing of a store."""
        return k in self._shards

    def shard(self, k: int) -> ShardFile:
        """Opens a shard; the last few hundred stay mapped.

        Args:
            k: Its position in ``manifest.shards``.

        Raises:
            DataError: its files are missing or damaged, or disagree with the index.
        """
        found = self._shards.get(k)
        if found is not None:  # the common case, without locks
            with contextlib.suppress(KeyError):  # another thread has just closed it
                self._shards.move_to_end(k)
            return found
        manifest, index = self._load()
        if not 0 <= k < len(manifest.shards):
            raise IndexError(f"shard {k} of {len(manifest.shards)}")
        if self._chosen is not None and manifest.shards[k] not in self._chosen:
            raise IndexError(f"shard {manifest.shards[k]} was not chosen")
        remote = self._remote
        if remote is not None and k not in self._shards:  # before the lock: others may open other shards meanwhile
            remote.file(f"{manifest.shards[k]}.frames.arrow")
        with self._guard(), self._named():
            found = self._shards.get(k)
            if found is not None:
                self._shards.move_to_end(k)
                return found
            first, stop = self._bounds[k : k + 2].tolist()
            opened = ShardFile(
                Path(self.path) if remote is None else remote.folder,
                manifest.shards[k],
                self._files,
                {name: vector.width for name, vector in manifest.vectors.items()},
                EpisodeRows(
                    index.first_row[first:stop],
                    index.frames[first:stop],
                    index.offset[first:stop],
                    index.length[first:stop],
                ),
                remote=None if remote is None else remote.tar(k),
            )
            self._shards[k] = opened
            while len(self._shards) > _OPEN_SHARDS:
                self._shards.popitem(last=False)
            return opened

    def locate(self, i: int) -> tuple[int, int, int]:
        """Where a frame is.

        Args:
            i: 0 to ``len(self) - 1``, or negative from the end.

        Returns:
            Position of its episode in the index, its shard, and its row in that shard.
        """
        index = self.index
        total = len(self)
        if not -total <= i < total:
            raise IndexError(f"frame {i} of {total}")
        i += total if i < 0 else 0
        e = int(np.searchsorted(index.ends, i, side="right"))
        row = int(index.first_row[e]) + i - int(index.ends[e] - index.frames[e])
        return e, int(index.shard[e]), row

    def frame(self, i: int) -> Frame:
        """Reads and decodes one frame.

        Args:
            i: 0 to ``len(self) - 1`` in index order, or negative from the end.

        Raises:
            DataError: damaged.
            IndexError: there is no such frame.
        """
        from wdsmix.shards.episodes import decode_picture, decoding

        e, k, row = self.locate(i)
        shard = self.shard(k)
        key, members = shard.sample(row)
        images = {}
        for slot, camera in self.manifest.cameras.items():
            data = members.get(camera.member)
            if data is not None:
                with decoding(shard, row, slot):
                    images[slot] = decode_picture(data, camera.kind)
        index = self.index
        return Frame(
            row=i % len(self),
            key=key,
            episode=int(index.episode[e]),
            frame=int(shard.frame[row]),
            timestamp=float(shard.timestamp[row]),
            task=shard.tasks[int(shard.task[row])],
            split=index.splits[int(index.split[e])],
            images=images,
            vectors={name: rows[row] for name, rows in shard.vectors.items() if shard.present[name][row]},
            extras=_extras(shard, row, members.get("json")),
        )

    def episode(self, key: int | str) -> EpisodeData:
        """Reads and decodes a whole episode.

        Args:
            key: Its number, or ``source_file/source_episode``, or ``source_episode`` alone where that is unique.

        Raises:
            ConfigError: there is none, or more than one.
            DataError: damaged.
        """
        from wdsmix.shards.episodes import read_episode

        return read_episode(self, self.index.find(key))

    def episodes(self, split: str | None = None) -> EpisodeDataset:
        """Whole episodes as a map-style dataset.

        Args:
            split: Only these; None: all.

        Raises:
            ConfigError: the set has no such split.
        """
        from wdsmix.shards.episodes import EpisodeDataset

        return EpisodeDataset(self, split)

    def webdataset(self, split: str | None = None, **options: Any) -> webdataset.WebDataset:
        """The set's tars as a `webdataset.WebDataset`: one sample a frame, encoded members by suffix.

        For pipelines that are there already. Such a reader checks no checksum, and sees neither statistics nor index.

        Args:
            split: Only its shards; None: all.
            options: For `webdataset.WebDataset`; ``shardshuffle`` is False where it is not given.

        Raises:
            ConfigError: the set has no such split.
        """
        from wdsmix.shards.stock import open_webdataset

        return open_webdataset(self, split, options)

    def close(self) -> None:
        """Lets go of the shards; arrays handed out stay valid. Using the set again opens them again."""
        with self._guard():
            self._shards.clear()


def _extras(shard: ShardFile, row: int, data: npt.NDArray[np.uint8] | None) -> dict[str, Any]:
    if data is None:
        return {}
    try:
        value = json.loads(data.tobytes())
    except (ValueError, RecursionError) as error:
        raise DataError("not JSON", path=shard.path, where=f"sample {shard.key(row)}, json") from error
    if not isinstance(value, dict):  # an adopted tar may hold anything
        return {"json": value}
    return {name: fact for name, fact in value.items() if name not in ("episode", "frame", "timestamp", "task")}


def _read_manifest(folder: Path) -> tuple[Manifest, str]:
    path = folder / "manifest.json"
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        if not folder.is_dir():
            raise ConfigError("no such folder", path=folder) from error
        raise DataError(
            "not finished: no manifest.json",
            path=folder,
            hint="run the conversion again to complete it, or index tars made elsewhere with `wdsmix index`",
        ) from error
    except OSError as error:
        raise DataError(f"can't be read: {error}", path=path) from error
    try:
        manifest = read_model(Manifest, data, path)
        version: object = manifest.format_version
    except DataError:
        version = _version(data)
        if version == FORMAT_VERSION:
            raise
    if version != FORMAT_VERSION:
        raise DataError(
            "unknown format version",
            path=path,
            expected=FORMAT_VERSION,
            found=version,
            hint="it was written by another release of wdsmix",
        )
    check_seal(manifest, path)
    return manifest, digest_of(data)


def _version(data: bytes) -> object:
    try:
        return json.loads(data)["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return FORMAT_VERSION


def _locate(path: str | PurePath) -> tuple[PurePath, list[str] | None]:
    """Folder or URL of a set, and the shards that a pattern names (None: all)."""
    if not is_url(path) and Path(path).is_dir():
        return Path(path), None
    folder, names = locate(str(path))
    return UrlPath(folder) if is_url(path) else Path(folder), names


def _span(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) < 4 else f"{names[0]} to {names[-1]}"
