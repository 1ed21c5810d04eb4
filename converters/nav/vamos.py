"""VAMOS parquet: a row is one picture and its whole future path, not a frame of a recording."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from wdsmix.converters.loose import ends_of, refuse_link
from wdsmix.converters.nav.layout import Opened, Scan
from wdsmix.converters.nav.options import NavOptions
from wdsmix.converters.slots import natural_key

from wdsmix.episode import DimensionKind, Image, VectorSpec
from wdsmix.errors import DataError
from wdsmix.imaging import sniff

__all__ = ["CAMERA", "LIBRARIES", "NAME", "POSES", "RATE", "SPECS", "find", "fingerprint", "read", "resampled", "scan"]

NAME = "vamos"
RATE = 1.0
"""Rows are no frames of a recording, so that they have no rate."""
POSES = False
SPECS: Mapping[str, VectorSpec] = {}
LIBRARIES: tuple[str, ...] = ()
CAMERA = "image"

_PATH = "trajectory_3d"
_MARKS = frozenset({_PATH, "trajectory_2d"})
_TEXTS = ("lang_goal", "text")
_FACTS = ("horizon", "curvature", "camera_params")
_DEPTH = 3
_BATCH = 64
_LONG_FACT = 4000
_FAR = 1e6
_KIND: DimensionKind = "absolute"


def find(root: Path) -> list[str]:
    """Parquet files, if one of them has a column of paths."""
    files: list[str] = []
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        folders[:] = [] if len(here.parts) >= _DEPTH else [name for name in folders if not name.startswith(".")]
        files += [(here / name).as_posix() for name in names if name.endswith(".parquet")]
    files.sort(key=natural_key)
    return files if any(is_vamos(root / file) for file in files[:20]) else []


def is_vamos(path: Path) -> bool:
    """Whether a file has a picture and a path a row."""
    try:
        return path.is_file() and _MARKS & set(pq.read_schema(path).names) != set()
    except (pa.ArrowException, OSError, ValueError):
        return False


def specs(points: int) -> dict[str, VectorSpec]:
    """Names of the path's numbers."""
    names = tuple(f"{axis}_{k + 1}" for k in range(points) for axis in "xy")
    count = 2 * points
    return {"action": VectorSpec(names=names, units=("m",) * count, kinds=(_KIND,) * count)}


def resampled(path: npt.NDArray[np.float64], points: int) -> npt.NDArray[np.float64]:
    """Points at equal distances along a path, its first and last among them (its last alone if one is asked for).

    Args:
        path: float64 [N, 2], N of 2 or more.
        points: K.

    Returns:
        float64 [K, 2].
    """
    along = np.concatenate([[0.0], np.cumsum(np.linalg.norm(np.diff(path, axis=0), axis=1))])
    at = np.linspace(0.0, along[-1], points) if points > 1 else along[-1:]
    return np.stack([np.interp(at, along, path[:, axis]) for axis in range(2)], axis=1)


def scan(root: Path, file: str, options: NavOptions) -> list[Scan]:
    """Looks at every row but its picture."""
    match = re.match(r"(train|validation|val|test)[-_.]", Path(file).name)
    split = {"validation": "val"}.get(match[1], match[1]) if match else None
    made: list[Scan] = []
    stem = Path(file).stem
    try:
        refuse_link(root, root / file)
        for row, values in _rows(root / file):
            one = Scan(id=f"{stem}_{row:06d}", file=file, split=split, locator={"row": row})
            made.append(one)
            try:
                text = _text(values)
                if options.tasks and not any(task.lower() in text.lower() for task in options.tasks):
                    one.fault, one.fault_kind = f"text {text[:80]!r} is not wanted (--task)", "filter"
                    continue
                _path(values, options.path_points)
                one.frames, one.cameras = 1, (CAMERA,)
                one.vectors = {"action": 2 * options.path_points}
            except DataError as error:
                one.fault = str(DataError(error.message, expected=error.expected, found=error.found))
    except DataError as error:
        return [Scan(id="", file=file, fault=str(DataError(error.message, found=error.found)), fault_kind="file")]
    return made


def _columns(file: pq.ParquetFile) -> list[str]:
    names = file.schema_arrow.names
    if CAMERA not in names:
        raise DataError("no column of pictures", expected=CAMERA, found=", ".join(names[:8]))
    return [name for name in (_PATH, *_TEXTS, *_FACTS) if name in names]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Row number and values, without the pictures.

    Raises:
        DataError: the file can't be read.
    """
    row = 0
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(1024, columns=_columns(file)):
                yield from enumerate(batch.to_pylist(), row)
                row += batch.num_rows
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"parquet file is damaged: {' '.join(str(error).split())[:160]}") from error


@functools.lru_cache(maxsize=1)
def _block(path: Path, number: int) -> list[dict[str, Any]]:
    """The n-th 64 rows of a file, pictures too: episodes are read one after the other, and each is a row.

    Raises:
        DataError: the file can't be read.
    """
    first = number * _BATCH
    try:
        with pq.ParquetFile(path) as file:
            at, groups = 0, []
            for group in range(file.num_row_groups):
                count = file.metadata.row_group(group).num_rows
                if at + count <= first:
                    at += count
                    continue
                groups.append(group)
            rows: list[dict[str, Any]] = []
            for batch in file.iter_batches(_BATCH, row_groups=groups, columns=[*_columns(file), CAMERA]):
                if at + batch.num_rows > first:
                    start = max(0, first - at)
                    rows += batch.slice(start, first + _BATCH - at - start).to_pylist()
                at += batch.num_rows
                if at >= first + _BATCH:
                    break
            return rows
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise DataError(f"parquet file is damaged: {' '.join(str(error).split())[:160]}") from error


def _text(values: Mapping[str, Any]) -> str:
    return next((values[name] for name in _TEXTS if isinstance(values.get(name), str) and values[name]), "")


def _path(values: Mapping[str, Any], points: int) -> npt.NDArray[np.float32]:
    """float32 [1, 2 * points].

    Raises:
        DataError: no path in metres, or one that leads nowhere.
    """
    given = values.get(_PATH)
    if not given:
        raise DataError(f"no {_PATH}: its path is in pixels only", expected="a path in metres")
    try:
        path = np.array([[float(number) for number in point[:2]] for point in given], np.float64).reshape(-1, 2)
    except (TypeError, ValueError) as error:
        raise DataError(f"{_PATH} holds no points of two or three numbers") from error
    if not np.isfinite(path).all():
        raise DataError(f"{_PATH} is not finite")
    if len(path) and np.abs(path).max() > _FAR:
        raise DataError(f"{_PATH} is no path", expected=f"at most {_FAR:g} m", found=f"{np.abs(path).max():g}")
    if len(path) < 2:
        raise DataError("a path of one point", expected="2 points or more")
    if np.ptp(path, axis=0).max() < 1e-6:
        raise DataError("a path that does not move: a filler of a row for questions and answers")
    return resampled(path, points).reshape(1, -1).astype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class _One:
    """The picture of one row."""

    cell: object

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        data = self.cell.get("bytes") if isinstance(self.cell, dict) else self.cell
        if not isinstance(data, bytes) or sniff(data) is None:
            raise DataError("no picture in the cell", expected="a JPEG or PNG", found=type(data).__name__)
        for _ in rows:
            yield data


def read(root: Path, file: str, locator: Mapping[str, str | int], options: NavOptions) -> Opened:
    """Opens one row."""
    row = int(locator["row"])
    block = _block(root / file, row // _BATCH)
    if row % _BATCH >= len(block):
        raise DataError("the row is not there", where=f"row {row}")
    values = block[row % _BATCH]
    extras: dict[str, object] = {name: values[name] for name in ("horizon", "curvature") if values.get(name)}
    if isinstance(values.get("camera_params"), str) and len(values["camera_params"]) < _LONG_FACT:
        try:
            extras["camera_params"] = json.loads(values["camera_params"], parse_constant=str)
        except (ValueError, RecursionError):
            extras["camera_params"] = values["camera_params"]
    return Opened(
        vectors={"action": _path(values, options.path_points)},
        images={CAMERA: _One(cell=values.get("image"))},
        rows=np.zeros(1, np.int64),
        task=_text(values) or options.instruction,
        extras=extras,
    )


def fingerprint(root: Path, file: str) -> bytes:
    """Name, size and both ends."""
    return ends_of(root, file)
