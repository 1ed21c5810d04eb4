"""Opening one episode: vectors read and checked, pictures left to lazy streams."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from wdsmix.converters.lerobot.cameras import CameraRole
from wdsmix.converters.lerobot.columns import bad_cells, flat_numbers, integers, plain
from wdsmix.converters.lerobot.index import Place, scan_file
from wdsmix.converters.lerobot.pictures import CellPictures, VideoPictures
from wdsmix.converters.lerobot.positions import Segment, frame_numbers
from wdsmix.converters.lerobot.roles import Roles, VectorRole
from wdsmix.converters.lerobot.rows import RowsPool
from wdsmix.converters.lerobot.tables import clean_task
from wdsmix.converters.lerobot.tree import Tree
from wdsmix.converters.lerobot.videos import Videos

from wdsmix.episode import Camera, Episode, Float32Array, ImageStream
from wdsmix.errors import DataError
from wdsmix.texts import counted

__all__ = ["EpisodeReader", "Filmed", "Opening"]

_ROWS = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Filmed:
    """Where the pictures of one camera of an episode are in a video."""

    file: str
    segment: Segment | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Opening:
    """What is needed to open one episode."""

    episode: int
    place: Place | None
    """None: to be found in ``search``, in this order (files that are not here yet)."""
    search: Sequence[str]
    length: int
    """By the metadata."""
    tasks: Sequence[str]
    """By the metadata."""
    filmed: Mapping[str, Filmed]
    """Video key -> where."""


@dataclass(kw_only=True, slots=True)
class EpisodeReader:
    """Opens episodes; keeps the files of the last one open, so that the next one goes on in them."""

    tree: Tree
    fps: float
    roles: Roles
    slots: Mapping[str, CameraRole]
    tasks: Mapping[int, str]
    subtasks: Mapping[int, str]
    video_mismatch: Literal["nearest", "drop"]
    bad_rows: Literal["episode", "row"]
    rows: RowsPool = field(default_factory=RowsPool)
    videos: Videos = field(init=False)
    _scanned: dict[str, dict[int, Place]] = field(default_factory=dict)
    _data: str = ""
    """The data file that the last episode was in."""

    def __post_init__(self) -> None:
        self.videos = Videos(self.tree)

    def open(self, opening: Opening) -> Episode:
        """Opens one episode.

        Raises:
            DataError: it is bad.
        """
        place = opening.place or self._find(opening)
        if self._data not in ("", place.file):
            self.tree.release(self._data, keep=not any(role.store == "cell" for role in self.slots.values()))
        self._data = place.file
        reader = self.rows.reader("rows", self.tree, place.file, self.roles.columns, batch=_ROWS)
        table = reader.table(place.start, place.stop)
        order, index = self._order(table, opening, place)
        if order is not None:
            table = table.take(pa.array(order))
        stamps = _stamps(table)
        vectors, bad = self._vectors(table, place)
        images, cameras, told = self._images(opening, place, table.num_rows, stamps, order, index)
        tasks, task_index = self._tasks(table, opening)
        extras: dict[str, object] = {"frame_mapping": told} if told else {}
        kept: npt.NDArray[np.int64] | None = None
        frame_extras = self._extras(table)
        if bad.any():
            kept = np.flatnonzero(~bad)
            if not len(kept):
                raise DataError("all rows have values that are null, ragged or not finite", path=place.file)
            extras["rows_left_out"] = int(bad.sum())
            vectors = {name: np.ascontiguousarray(values[kept]) for name, values in vectors.items()}
            frame_extras = {name: [values[row] for row in kept.tolist()] for name, values in frame_extras.items()}
            task_index = None if task_index is None else task_index[kept]
            times = np.arange(table.num_rows) / self.fps if stamps is None else stamps
            stamps = times[kept]
        return Episode(
            fps=self.fps,
            vectors=vectors,
            images=images,
            cameras=cameras,
            tasks=tasks,
            task_index=task_index,
            timestamps=stamps,
            extras=extras,
            frame_extras=frame_extras,
            rows=kept,
        )

    def close(self) -> None:
        """Closes all files."""
        self.rows.close()
        self.videos.close()
        if self._data:
            self.tree.release(self._data, keep=not any(role.store == "cell" for role in self.slots.values()))
            self._data = ""

    def _find(self, opening: Opening) -> Place:
        for file in opening.search:
            if file not in self._scanned:
                try:
                    runs = scan_file(self.tree, file, opening.episode if len(opening.search) == 1 else None)
                except DataError:
                    if file == opening.search[-1]:
                        raise
                    runs = []
                self._scanned[file] = {e: Place(file=file, start=a, stop=b) for e, a, b in runs}
                if opening.episode not in self._scanned[file]:
                    self.tree.release(file, keep=True)
            if opening.episode in self._scanned[file]:
                return self._scanned[file][opening.episode]
        raise DataError(
            "its rows are in none of the data files",
            where=f"episode_index {opening.episode}",
            found=", ".join(opening.search[:3]) or "no data file",
        )

    def _order(
        self, table: pa.Table, opening: Opening, place: Place
    ) -> tuple[npt.NDArray[np.int64] | None, npt.NDArray[np.int64] | None]:
        """What ``frame_index`` tells.

        Returns:
            Row of each frame where rows are out of order, and the numbers where some are missing; else None.
        """
        rows = table.num_rows
        if "episode_index" in table.column_names:
            own = integers(table.column("episode_index"), key="episode_index")
            if (own != opening.episode).any():
                found = sorted(set(own.tolist()))[:3]
                raise DataError("rows of another episode", path=place.file, expected=opening.episode, found=found)
        if "frame_index" not in table.column_names or not rows:
            return None, None
        try:
            numbers = integers(table.column("frame_index"), key="frame_index")
        except DataError:
            return None, None
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        if (ordered != np.arange(rows)).any():
            return None, ordered if (numbers == ordered).all() else None
        return (None if (order == np.arange(rows)).all() else order.astype(np.int64)), None

    def _vectors(self, table: pa.Table, place: Place) -> tuple[dict[str, Float32Array], npt.NDArray[np.bool_]]:
        bad = np.zeros(table.num_rows, bool)
        vectors: dict[str, Float32Array] = {}
        for name, role in self.roles.vectors.items():
            values = self._vector(table, role, place)
            wrong = bad_cells(values)
            if wrong.any() and self.bad_rows == "episode":
                row = int(np.flatnonzero(wrong)[0])
                column = next((p.column for p in role.parts if len(role.parts) == 1), name)
                raise DataError(
                    f"{counted(int(wrong.sum()), 'row has', 'rows have')} values that are null, ragged or not finite",
                    path=place.file,
                    where=f"{column} row {row}",
                    expected=f"{role.width} finite numbers",
                    found=str(table.column(role.parts[0].column)[row].as_py())[:80],
                    hint="--bad-rows row leaves out such rows only",
                )
            bad |= wrong
            vectors[name] = values
        return vectors, bad

    def _vector(self, table: pa.Table, role: VectorRole, place: Place) -> Float32Array:
        parts = []
        for part in role.parts:
            if part.column not in table.column_names:
                raise DataError("a column is missing", path=place.file, where=part.column)
            values = flat_numbers(table.column(part.column), part.width, key=part.column)
            parts.append(values[:, part.start : part.stop])
        joined = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return np.ascontiguousarray(joined, dtype=np.float32)

    def _images(
        self,
        opening: Opening,
        place: Place,
        rows: int,
        stamps: npt.NDArray[np.float64] | None,
        order: npt.NDArray[np.int64] | None,
        index: npt.NDArray[np.int64] | None,
    ) -> tuple[dict[str, ImageStream], dict[str, Camera], dict[str, str]]:
        images: dict[str, ImageStream] = {}
        cameras: dict[str, Camera] = {}
        told: dict[str, str] = {}
        for slot, role in self.slots.items():
            if role.store == "cell":
                images[slot] = CellPictures(
                    tree=self.tree, pool=self.rows, role=role, place=place, episode=opening.episode, order=order
                )
                cameras[slot] = role.camera
                continue
            filmed = opening.filmed.get(role.key)
            if filmed is None:
                continue
            with self.videos.borrowed(role.key, filmed.file) as reader:
                try:
                    numbers, note = frame_numbers(
                        rows,
                        reader.frames,
                        rate=float(reader.facts.rate or self.fps),
                        segment=filmed.segment,
                        stamps=stamps,
                        policy=self.video_mismatch,
                        index=index,
                    )
                except DataError as error:
                    error.where = role.key
                    raise
            if note:
                told[slot] = note
            images[slot] = VideoPictures(
                videos=self.videos, key=role.key, file=filmed.file, numbers=numbers, depth=role.depth
            )
            cameras[slot] = role.camera
        return images, cameras, told

    def _tasks(self, table: pa.Table, opening: Opening) -> tuple[list[str], npt.NDArray[np.int32] | None]:
        """The tasks of the episode, and which of them each frame has."""
        column = "task_index" if "task_index" in table.column_names else self.roles.task_column
        if not column or column not in table.column_names:
            return [opening.tasks[0] if opening.tasks else ""], None
        values = table.column(column)
        if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
            texts = [clean_task(text) for text in values.to_pylist()]
        else:
            numbers = integers(values, key=column)
            known = {number: self.tasks.get(number) for number in set(numbers.tolist())}
            if None in known.values() and len(known) == 1 and len(opening.tasks) == 1:
                known = dict.fromkeys(known, opening.tasks[0])
            texts = [known[number] or "" for number in numbers.tolist()]
        names = list(dict.fromkeys(texts)) or [""]
        if len(names) == 1:
            return names, None
        place = {name: k for k, name in enumerate(names)}
        return names, np.array([place[text] for text in texts], dtype=np.int32)

    def _extras(self, table: pa.Table) -> dict[str, list[object]]:
        extras: dict[str, list[object]] = {}
        for key in self.roles.extras:
            if key not in table.column_names:
                continue
            values = [plain(value) for value in table.column(key).to_pylist()]
            names = self.subtasks if key == "subtask_index" else self.tasks if key.startswith("annotation.") else {}
            if names:
                values = [names.get(value, value) if isinstance(value, int) else value for value in values]
            extras[key] = values
        return extras


def _stamps(table: pa.Table) -> npt.NDArray[np.float64] | None:
    """float64 [T] time stamps in seconds; None where they are absent or not all finite."""
    if "timestamp" not in table.column_names:
        return None
    column = table.column("timestamp")
    if pa.types.is_timestamp(column.type) or pa.types.is_duration(column.type):
        unit = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[column.type.unit]
        stamps = column.cast(pa.int64()).to_numpy().astype(np.float64) * unit
    else:
        try:
            stamps = _numbers(column)
        except DataError:
            return None
    return stamps if len(stamps) == table.num_rows and np.isfinite(stamps).all() else None


def _numbers(column: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type):
        return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)
    return flat_numbers(column, 1, key="timestamp")[:, 0].astype(np.float64)
