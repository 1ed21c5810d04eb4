"""Parquet shards of an earlier builder: ``shards/shard-*.parquet`` with JPEG bytes beside ``frames-part*.parquet``.

Pictures (columns ``cam0``, ``cam1`` ...) lie by ``episode_index`` and ``frame_index`` in the shards, state, action and
task in the frames files; rates and task texts in JSON files a part. An episode may cross from one shard into the next.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wdsmix.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from wdsmix.converters.base import Source
    from wdsmix.converters.lerobot.rows import RowsPool
    from wdsmix.converters.lerobot.tree import LocalTree

    from wdsmix.episode import Episode, EpisodeRef, Image, SourceInfo

__all__ = ["HELP", "ParquetShardsSource", "configure", "source"]

HELP = """Parquet shards of an earlier builder: shards/shard-*.parquet and frames-part*.parquet.

SRC is the folder that holds both. The JPEG bytes of cam0, cam1 ... are passed through where --image-size allows; state,
action and task_index come from the frames files, task texts from tasks-part*.json, the rate from manifest-part*.json.
"""

_RATES = ("hz", "target_hz", "output_hz", "fps")
_BATCH = 16


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the options of the family."""
    group = parser.add_argument_group("parquet shards")
    group.add_argument("--fps", type=float, metavar="N", help="frames per second (default: manifest-part*.json)")


def source(args: argparse.Namespace) -> Source:
    """Opens ``args.src``.

    Raises:
        ConfigError: an option is bad.
        DataError: no such folder.
    """
    if args.fps is not None and not 0 < args.fps <= 10_000:
        raise ConfigError("bad value", where="--fps", expected="a rate in frames per second", found=args.fps)
    return ParquetShardsSource(
        Path(args.src),
        fps=args.fps or 0.0,
        cameras=getattr(args, "camera", None) or {},
        state=getattr(args, "state", None) or ["state"],
        action=getattr(args, "action", None) or ["action"],
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Rows of an episode in one file."""

    file: str
    start: int
    stop: int


@dataclass(kw_only=True, slots=True)
class _Found:
    """What the folder holds."""

    pictures: dict[int, list[Piece]] = field(default_factory=dict)
    frames: dict[int, list[Piece]] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    tasks: dict[str, dict[int, str]] = field(default_factory=dict)
    """Frames file -> task index -> text; indices are a part's own."""
    facts: dict[str, Any] = field(default_factory=dict)
    """Of all manifest-part*.json, the first one's value winning."""
    columns: list[str] = field(default_factory=list)
    """Of the shards."""
    widths: dict[str, int] = field(default_factory=dict)
    """Of the columns of numbers in the frames files."""
    warnings: list[str] = field(default_factory=list)


class ParquetShardsSource:
    """A folder of parquet shards (a `wdsmix.converters.base.Source`). Pickles; holds no open file then.

    Args:
        path: The folder.
        fps: Frames per second; 0: as the manifest says.
        cameras: Slot -> column; empty: ``cam0``, ``cam1`` ... as they are.
        state: Columns of the state.
        action: Columns of the action.

    Raises:
        DataError: no such folder.
    """

    def __init__(
        self,
        path: Path,
        *,
        fps: float = 0.0,
        cameras: Mapping[str, str] | None = None,
        state: Sequence[str] = ("state",),
        action: Sequence[str] = ("action",),
    ) -> None:
        from wdsmix.converters.lerobot.tree import LocalTree

        self._tree: LocalTree = LocalTree(path)
        self._fps = fps
        self._cameras = dict(cameras or {})
        self._keys = {"state": list(state), "action": list(action)}
        self._found: _Found | None = None
        self._pool: RowsPool | None = None

    def __getstate__(self) -> dict[str, object]:
        slim = None if self._found is None else replace(self._found, pictures={}, frames={})  # the refs have them
        return {**self.__dict__, "_pool": None, "_found": slim}

    @property
    def path(self) -> str:
        """The folder."""
        return str(self._tree.path)

    def arguments(self) -> Mapping[str, object]:
        """The options of the family."""
        return {"fps": float(self._fps), "cameras": self._cameras, **self._keys}

    def fingerprint(self) -> str:
        """Hash over names, sizes, and both ends of the files."""
        return self._tree.fingerprint()

    @property
    def found(self) -> _Found:
        """What the folder holds."""
        if self._found is None:
            self._found = _scan(self._tree)
        return self._found

    def _slots(self) -> dict[str, str]:
        slots = self._cameras or {name: name for name in self.found.columns if re.fullmatch(r"cam\d+", name)}
        for slot, column in slots.items():
            if column not in self.found.columns:
                raise ConfigError(
                    "no such column of the shards",
                    where=f"--camera {slot}",
                    expected=f"one of: {', '.join(self.found.columns)}",
                    found=column,
                )
        return slots

    def _widths(self) -> dict[str, int]:
        widths = {}
        for name, keys in self._keys.items():
            missing = [key for key in keys if not self.found.widths.get(key)]
            if missing and keys != [name]:
                raise ConfigError("no such column of numbers", where=f"--{name}", found=", ".join(missing))
            if not missing:
                widths[name] = sum(self.found.widths[key] for key in keys)
        if not widths:
            raise DataError("the frames files hold neither a state nor an action", path=self.path)
        return widths

    def episodes(self) -> list[EpisodeRef]:
        """All episodes of shards and frames files, by ``episode_index``.

        Raises:
            DataError: no shards or frames files are there.
        """
        import json
        from dataclasses import asdict

        from wdsmix.episode import EpisodeRef

        found, refs = self.found, []
        widths, slots = self._widths(), self._slots()
        for file, reason in found.broken.items():
            refs.append(EpisodeRef(id=file, file=file, frames=0, fault=reason, fault_kind="file"))
        for episode in sorted({*found.pictures, *found.frames}):
            pictures, frames = found.pictures.get(episode, []), found.frames.get(episode, [])
            counts = [sum(piece.stop - piece.start for piece in pieces) for pieces in (pictures, frames)]
            fault = None
            if counts[0] != counts[1]:
                fault = f"its shards hold {counts[0]} frames, its frames files {counts[1]}"
            refs.append(
                EpisodeRef(
                    id=f"episode_{episode:06d}",
                    file=(pictures or frames)[0].file,
                    frames=counts[1],
                    vectors=widths,
                    cameras=tuple(slots),
                    fault=fault,
                    locator={
                        "episode": episode,
                        "pictures": json.dumps([asdict(piece) for piece in pictures]),
                        "frames": json.dumps([asdict(piece) for piece in frames]),
                    },
                )
            )
        return refs

    def describe(self) -> SourceInfo:
        """What the parts' manifests tell.

        Raises:
            ConfigError: no rate is known.
        """
        from wdsmix.episode import Camera, SourceInfo

        facts = self.found.facts
        return SourceInfo(
            name=str(facts.get("name") or facts.get("repo_id") or Path(self.path).resolve().name).rsplit("/", 1)[-1],
            kind="parquet-shards",
            fps=self._rate(),
            embodiment=str(facts.get("embodiment") or facts.get("robot_type") or ""),
            licence=str(facts.get("licence") or facts.get("license") or ""),
            cameras={slot: Camera(key=column) for slot, column in self._slots().items()},
            details={
                "columns": self._keys,
                "builder": {k: v for k, v in facts.items() if not isinstance(v, (list, dict))},
            },
            warnings=tuple(self.found.warnings),
        )

    def _rate(self) -> float:
        if self._fps:
            return self._fps
        for key in _RATES:
            value = self.found.facts.get(key)
            if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 10_000:
                return float(value)
        raise ConfigError(
            "no manifest-part*.json tells the rate", path=self.path, expected=" or ".join(_RATES), hint="give --fps"
        )

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one episode.

        Raises:
            DataError: it is bad.
        """
        import json

        import numpy as np
        from wdsmix.converters.lerobot.columns import bad_cells, flat_numbers, integers
        from wdsmix.converters.lerobot.rows import RowsPool

        from wdsmix.episode import Camera, Episode

        if ref.fault is not None:
            raise DataError(ref.fault, path=ref.file, where=ref.id)
        self._pool = self._pool or RowsPool()
        pieces = [Piece(**piece) for piece in json.loads(str(ref.locator["frames"]))]
        table, texts = self._table(pieces)
        pictures = [Piece(**piece) for piece in json.loads(str(ref.locator["pictures"]))]
        if "frame_index" in table.column_names:
            numbers = integers(table.column("frame_index"), key="frame_index")
            if (np.diff(numbers) <= 0).any():
                raise DataError("frames are not in order", path=pieces[0].file, where="frame_index")
            self._check_pairs(numbers, pictures)
        vectors = {}
        for name in ref.vectors:
            parts = [flat_numbers(table.column(k), self.found.widths[k], key=k) for k in self._keys[name]]
            values = np.ascontiguousarray(np.concatenate(parts, axis=1))
            bad = bad_cells(values)
            if bad.any():
                raise DataError(
                    "null, ragged or not finite", path=pieces[0].file, where=f"{name} row {int(bad.argmax())}"
                )
            vectors[name] = values
        names = list(dict.fromkeys(texts)) or [""]
        place = {text: k for k, text in enumerate(names)}
        slots = self._slots()
        return Episode(
            fps=self._rate(),
            vectors=vectors,
            images={
                slot: _Pictures(tree=self._tree, pool=self._pool, column=column, pieces=pictures)
                for slot, column in slots.items()
            },
            cameras={slot: Camera(key=column) for slot, column in slots.items()},
            tasks=names,
            task_index=np.array([place[text] for text in texts], np.int32) if len(names) > 1 else None,
        )

    def _check_pairs(self, numbers: npt.NDArray[np.int64], pictures: Sequence[Piece]) -> None:
        """Makes sure that the shards' frames are those of the frames file, in the same order."""
        import numpy as np
        from wdsmix.converters.lerobot.columns import integers

        at = 0
        for piece in pictures:
            if self._pool is None:
                raise RuntimeError("not open")
            reader = self._pool.reader("numbers", self._tree, piece.file, ["frame_index"], batch=4096)
            table = reader.table(piece.start, piece.stop)
            if "frame_index" in table.column_names:
                own = integers(table.column("frame_index"), key="frame_index")
                if not np.array_equal(own, numbers[at : at + len(own)]):
                    raise DataError("frames are not those of the frames file", path=piece.file, where="frame_index")
            at += piece.stop - piece.start

    def _table(self, pieces: Sequence[Piece]) -> tuple[Any, list[str]]:
        """The rows of an episode's pieces, and the task of each."""
        import pyarrow as pa
        from wdsmix.converters.lerobot.columns import integers

        wanted = ["frame_index", "task_index", *(key for keys in self._keys.values() for key in keys)]
        tables, texts = [], []
        for piece in pieces:
            if self._pool is None:
                raise RuntimeError("not open")
            reader = self._pool.reader("frames", self._tree, piece.file, wanted, batch=1024)
            table = reader.table(piece.start, piece.stop)
            tables.append(table)
            tasks = self.found.tasks.get(piece.file, {})
            if "task_index" in table.column_names:
                texts += [tasks.get(n, "") for n in integers(table.column("task_index"), key="task_index").tolist()]
            else:
                texts += [""] * table.num_rows
        return pa.concat_tables(tables), texts


@dataclass(frozen=True, kw_only=True)
class _Pictures:
    """The pictures of one camera of one episode."""

    tree: LocalTree
    pool: RowsPool
    column: str
    pieces: Sequence[Piece]

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields JPEG bytes.

        Raises:
            DataError: a cell is empty, or the shard can't be read.
        """
        wanted = rows.tolist()
        at = before = 0
        for piece in self.pieces:
            length = piece.stop - piece.start
            mine = [row - before for row in wanted[at:] if row - before < length]
            if mine:
                reader = self.pool.reader(self.column, self.tree, piece.file, [self.column], batch=_BATCH)
                yield from self._cells(reader.read(piece.start + mine[0], piece.start + mine[-1] + 1), piece, mine)
            at += len(mine)
            before += length

    def _cells(self, batches: Iterator[Any], piece: Piece, mine: Sequence[int]) -> Iterator[bytes]:
        first, k = mine[0], 0
        for batch in batches:
            column = batch.column(batch.schema.names.index(self.column))
            while k < len(mine) and mine[k] < first + batch.num_rows:
                data = column[mine[k] - first].as_py()
                if isinstance(data, dict):
                    data = data.get("bytes")
                if not isinstance(data, bytes) or not data:
                    row = piece.start + mine[k]
                    raise DataError("no picture in the cell", path=piece.file, where=f"{self.column} row {row}")
                yield data
                k += 1
            first += batch.num_rows


def _scan(tree: LocalTree) -> _Found:
    from wdsmix.converters.lerobot.index import scan_file
    from wdsmix.converters.slots import natural_key

    names = sorted(tree.names(), key=natural_key)
    shards = [name for name in names if re.fullmatch(r"(shards/)?shard-[^/]*\.parquet", name)]
    frames = [name for name in names if re.fullmatch(r"frames-part[^/]*\.parquet", name)]
    if not shards or not frames:
        raise DataError(
            "no parquet shards",
            path=tree.path,
            expected="shards/shard-*.parquet and frames-part*.parquet",
            found=", ".join(names[:8]) or "nothing",
        )
    found = _Found()
    for files, places in ((shards, found.pictures), (frames, found.frames)):
        for file in files:
            try:
                for episode, start, stop in scan_file(tree, file):
                    places.setdefault(episode, []).append(Piece(file=file, start=start, stop=stop))
            except DataError as error:
                where = f"{error.where}: " if error.where else ""
                found.broken[file] = f"{where}{error.message}"
    _read_texts(tree, frames, found)
    _read_columns(tree, shards, frames, found)
    return found


def _read_texts(tree: LocalTree, frames: Sequence[str], found: _Found) -> None:
    from wdsmix.converters.lerobot.info import read_json

    for file in frames:
        part = file[len("frames-") : -len(".parquet")]
        name = f"tasks-{part}.json"
        if name in tree.names():
            found.tasks[file] = _tasks(read_json(tree, name))
        else:
            found.warnings.append(f"{name} is missing: tasks of that part are empty")
        name = f"manifest-{part}.json"
        if name in tree.names():
            facts = read_json(tree, name)
            found.facts = {**(facts if isinstance(facts, dict) else {}), **found.facts}


def _tasks(raw: object) -> dict[int, str]:
    """Task index -> text, of a list of texts or of rows, or of an object one way round or the other."""
    from wdsmix.converters.lerobot.tables import clean_task

    if isinstance(raw, dict) and isinstance(raw.get("tasks"), (list, dict)):
        raw = raw["tasks"]
    found: dict[int, str] = {}
    if isinstance(raw, list):
        for place, row in enumerate(raw):
            if isinstance(row, dict):
                index = row.get("task_index", row.get("index"))
                found[int(place if index is None else index)] = clean_task(row.get("task", row.get("text", "")))
            else:
                found[place] = clean_task(row)
    for key, value in raw.items() if isinstance(raw, dict) else ():
        if isinstance(value, int):
            found[value] = clean_task(key)
        elif str(key).isdigit():
            found[int(key)] = clean_task(value)
    return found


def _read_columns(tree: LocalTree, shards: Sequence[str], frames: Sequence[str], found: _Found) -> None:
    from wdsmix.converters.lerobot.columns import column_width, is_numeric, is_picture
    from wdsmix.converters.lerobot.tables import open_parquet

    for file in shards:
        if file not in found.broken:
            opened = open_parquet(tree, file)
            found.columns = [item.name for item in opened.schema_arrow if is_picture(item.type)]
            opened.close()
            break
    for file in frames:
        if file in found.broken:
            continue
        opened = open_parquet(tree, file)
        names = [item.name for item in opened.schema_arrow if is_numeric(item.type)]
        batch = next(opened.iter_batches(1, columns=names), None)
        opened.close()
        if batch is not None:
            found.widths = {name: column_width(batch.column(k)) for k, name in enumerate(batch.schema.names)}
            break
