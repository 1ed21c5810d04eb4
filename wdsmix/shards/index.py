"""index.parquet: one row per episode, as numpy columns; strings are read only when asked for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence, Set
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import INDEX_SCHEMA, FileEntry
from wdsmix.shards.frames import ARROW_ERRORS, check_crc, map_file
from wdsmix.shards.receipt import EpisodeRow

__all__ = ["EpisodeIndex", "index_bytes", "table_bytes"]

Int64Array = npt.NDArray[np.int64]

_NUMBERS = ("episode", "first_row", "frames", "offset", "length")
_TEXTS = ("tasks", "source_file", "source_episode", "duration", "extras")
_ROW_GROUP = 1 << 16


def index_bytes(rows: Sequence[EpisodeRow]) -> bytes:
    """The file's bytes, for rows in order of shard and offset."""
    columns = [pa.array([getattr(row, field.name) for row in rows], type=field.type) for field in INDEX_SCHEMA]
    return table_bytes(pa.Table.from_arrays(columns, schema=INDEX_SCHEMA))


def table_bytes(table: pa.Table) -> bytes:
    """The file's bytes, for a table of `INDEX_SCHEMA`."""
    sink = pa.BufferOutputStream()
    # every option that shapes the bytes is named here: defaults move between versions of pyarrow
    pq.write_table(
        table,
        sink,
        version="2.6",
        row_group_size=_ROW_GROUP,
        use_dictionary=["shard", "split", "source_file", "extras", "tasks.list.element"],
        compression="zstd",
        compression_level=3,
        write_statistics=True,
        data_page_size=1 << 20,
        data_page_version="1.0",
        dictionary_pagesize_limit=1 << 20,
        write_batch_size=1024,
        store_schema=True,
        use_compliant_nested_type=True,
        write_page_index=False,
        write_page_checksum=False,
    )
    return bytes(sink.getvalue())


class EpisodeIndex:
    """The episodes of a set, or of some of its shards: one element of each column per episode, in index order.

    Attributes:
        episode: int64 [E], number in the plan.
        shard: int32 [E], position in the manifest's list of shards.
        first_row: int64 [E], row of the first frame in the shard's frame table.
        frames: int64 [E].
        offset: int64 [E], first byte in the tar.
        length: int64 [E], bytes in the tar.
        split: int8 [E], position in ``splits``.
        ends: int64 [E], cumulative frames: episode i has the set's rows ``ends[i] - frames[i]`` to ``ends[i] - 1``.
        splits: Names of the splits that occur, in order of first occurrence.
    """

    def __init__(
        self,
        path: PurePath,
        data: pa.Buffer,
        shards: Sequence[str],
        chosen: Set[str] | None = None,
        episodes: int | None = None,
    ) -> None:
        self._path = path
        self._data = data
        self._texts: dict[str, Any] = {}
        try:
            self._read(shards, chosen, episodes)
        except ARROW_ERRORS as error:
            raise DataError(f"not a readable episode index: {error}", path=path) from error

    @classmethod
    def open(
        cls,
        path: Path,
        entry: FileEntry,
        shards: Sequence[str],
        chosen: Set[str] | None = None,
        episodes: int | None = None,
    ) -> EpisodeIndex:
        """Reads the index of a set.

        Args:
            path: index.parquet.
            entry: What the manifest says of it.
            shards: The manifest's shards.
            chosen: Shards to keep; None: all.
            episodes: How many the manifest counts; None: not compared.

        Raises:
            DataError: missing, damaged, or not what the contract says.
        """
        data = map_file(path, entry)
        check_crc(path, data, entry)
        return cls(path, data, shards, chosen, episodes)

    def __len__(self) -> int:
        return len(self.episode)

    def _read(self, shards: Sequence[str], chosen: Set[str] | None, episodes: int | None) -> None:
        found = pq.read_schema(pa.BufferReader(self._data))
        if not found.equals(INDEX_SCHEMA, check_metadata=False):
            raise DataError(
                "not the columns of the contract",
                path=self._path,
                expected=", ".join(f"{f.name} {f.type}" for f in INDEX_SCHEMA),
                found=", ".join(f"{f.name} {f.type}" for f in found),
            )
        file = self._file()
        if episodes is not None and file.metadata.num_rows != episodes:
            raise DataError(
                "not as many episodes as the manifest says",
                path=self._path,
                expected=episodes,
                found=file.metadata.num_rows,
            )
        self._total = file.metadata.num_rows
        table = file.read(columns=[*_NUMBERS, "shard", "split"], use_threads=False).combine_chunks()
        table.validate(full=True)
        if table.num_rows != self._total or any(column.null_count for column in table.columns):
            raise DataError("a column has missing values", path=self._path)
        shard, used = _codes(table["shard"], list(shards))
        beyond = sorted(set(used).difference(shards))
        if beyond:
            raise DataError("a shard that the manifest does not list", path=self._path, found=beyond[0])
        split, self.splits = _codes(table["split"], None)
        if len(self.splits) > 127:
            raise DataError("too many splits", path=self._path, found=len(self.splits))
        numbers = {name: table[name].to_numpy().astype(np.int64) for name in _NUMBERS}
        self._rows: Int64Array | None = None
        if chosen is not None:
            keep = np.isin(shard, [k for k, name in enumerate(shards) if name in chosen])
            self._rows = np.flatnonzero(keep)
            shard, split = shard[keep], split[keep]
            numbers = {name: column[keep] for name, column in numbers.items()}
        self.episode: Int64Array = numbers["episode"]
        self.first_row: Int64Array = numbers["first_row"]
        self.frames: Int64Array = numbers["frames"]
        self.offset: Int64Array = numbers["offset"]
        self.length: Int64Array = numbers["length"]
        self.shard: npt.NDArray[np.int32] = shard.astype(np.int32)
        self.split: npt.NDArray[np.int8] = split.astype(np.int8)
        if len(self) and min(int(column.min()) for column in numbers.values()) < 0:
            raise DataError("a number is out of range", path=self._path)
        if len(self) and int(self.frames.max()) >= 2**32:
            raise DataError("a number is out of range", path=self._path)
        self.ends: Int64Array = np.cumsum(self.frames)
        for array in (*numbers.values(), self.shard, self.split, self.ends):
            array.flags.writeable = False

    def _file(self) -> pq.ParquetFile:
        return pq.ParquetFile(
            pa.BufferReader(self._data), read_dictionary=["shard", "split"], memory_map=False, pre_buffer=False
        )

    def _text(self, name: str) -> Any:
        if name not in self._texts:
            try:
                column = self._file().read(columns=[name], use_threads=False)[name]
                column.validate(full=True)
                nulls = column.null_count
                if name == "tasks":
                    nulls += sum(chunk.flatten().null_count for chunk in column.chunks)
                if nulls or len(column) != self._total:
                    raise DataError(
                        "a column has missing values",
                        path=self._path,
                        where=name,
                        expected=self._total,
                        found=len(column) - nulls,
                    )
                self._texts[name] = column if self._rows is None else column.take(pa.array(self._rows))
            except ARROW_ERRORS as error:
                raise DataError(f"not a readable episode index: {error}", path=self._path, where=name) from error
        return self._texts[name]

    def tasks(self, i: int) -> list[str]:
        """Task strings of the i-th episode, in order of first use."""
        return list(self._text("tasks")[i].as_py())

    def source(self, i: int) -> tuple[str, str]:
        """Source file of the i-th episode, and the source's name of it."""
        return self._text("source_file")[i].as_py(), self._text("source_episode")[i].as_py()

    def duration(self, i: int) -> float:
        """Seconds of the i-th episode."""
        return float(self._text("duration")[i].as_py())

    def extras(self, i: int) -> dict[str, Any]:
        """Facts of the whole i-th episode.

        Raises:
            DataError: not a JSON object.
        """
        try:
            value = json.loads(self._text("extras")[i].as_py())
        except (ValueError, RecursionError) as error:
            raise DataError("extras are not JSON", path=self._path, where=f"row {i}") from error
        if not isinstance(value, dict):
            raise DataError("extras are not a JSON object", path=self._path, where=f"row {i}")
        return value

    def find(self, key: int | str) -> int:
        """Position of an episode.

        Args:
            key: Its number, or ``source_file/source_episode``, or ``source_episode`` alone where that is unique.

        Raises:
            ConfigError: there is none, or more than one.
        """
        if isinstance(key, str):
            found = self._matches(key)
        else:
            found = np.flatnonzero(self.episode == key)
        if len(found) == 1:
            return int(found[0])
        if len(found):
            names = ["/".join(self.source(int(i))) for i in found[:3]]
            raise ConfigError(
                f"more than one episode is named {key!r}", path=self._path.parent, hint=f"say {' or '.join(names)}"
            )
        known = f"numbers {int(self.episode.min())} to {int(self.episode.max())}" if len(self) else "none"
        raise ConfigError(f"no such episode: {key!r}", path=self._path.parent, expected=known)

    def _matches(self, key: str) -> Int64Array:
        files, names = self._text("source_file"), self._text("source_episode")
        found = _where(pc.equal(names, key))
        for cut in (i for i, char in enumerate(key) if char == "/"):
            both = pc.and_(pc.equal(files, key[:cut]), pc.equal(names, key[cut + 1 :]))
            found = np.union1d(found, _where(both))
        return found


def _where(mask: Any) -> Int64Array:
    return np.flatnonzero(np.asarray(mask.to_numpy(zero_copy_only=False), dtype=bool)).astype(np.int64)


def _codes(column: Any, names: list[str] | None) -> tuple[Int64Array, list[str]]:
    """Position of each string in ``names``; in order of first occurrence where None. Also the strings that occur."""
    chunks = column.unify_dictionaries().chunks
    if not chunks:
        return np.empty(0, np.int64), []
    encoded = pa.concat_arrays(chunks)
    words: list[str] = encoded.dictionary.to_pylist()
    indices = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    occur = np.unique(indices, return_index=True)
    order = [words[int(occur[0][k])] for k in np.argsort(occur[1])]
    places: Mapping[str, int] = {name: k for k, name in enumerate(names if names is not None else order)}
    lookup = np.array([places.get(word, -1) for word in words], dtype=np.int64)
    return (lookup[indices] if len(words) else indices), order
