"""The metadata tables: tasks and episodes, as JSONL (v2) or parquet (v3)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from wdsmix.converters.lerobot.info import Info
from wdsmix.converters.lerobot.tree import Tree
from wdsmix.converters.video import lfs_pointer

from wdsmix.errors import DataError

__all__ = ["EpisodeMeta", "Span", "clean_task", "open_parquet", "read_episodes", "read_subtasks", "read_tasks"]

_LINE_BYTES = 16 << 20
_VIDEO_COLUMN = re.compile(r"videos/(.+)/(chunk_index|file_index|from_timestamp|to_timestamp)")
_TENSOR = re.compile(r"""tf\.Tensor\(\s*b?(['"])(.*)\1.*\)""", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Where an episode lies in a video that holds many."""

    chunk: int
    file: int
    start: float | None
    """s, in the video."""
    stop: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeMeta:
    """What the metadata say of an episode."""

    index: int
    length: int
    """0 where they tell none."""
    tasks: tuple[str, ...] = ()
    chunk: int | None = None
    """Hints to its data file, which may be wrong."""
    file: int | None = None
    spans: Mapping[str, Span] = field(default_factory=dict)
    """Video key -> span (v3)."""


def clean_task(value: object) -> str:
    """A task's text: without the ``tf.Tensor(b'...')`` of some ports, on one line."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else "" if value is None else str(value)
    if match := _TENSOR.fullmatch(text.strip()):
        text = match[2]
    return " ".join(text.split())


def open_parquet(tree: Tree, name: str) -> pq.ParquetFile:
    """Opens a parquet file, memory-mapped.

    Raises:
        DataError: it has no footer, is an LFS pointer, or is damaged.
    """
    path = tree.open_path(name)
    if not path.is_file():
        raise DataError("missing", path=name)
    try:
        return pq.ParquetFile(path, memory_map=True, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError) as error:
        size = path.stat().st_size
        if size and lfs_pointer(path):
            raise DataError(
                "is a Git LFS pointer, not a parquet file", path=name, hint="fetch it with `git lfs pull`"
            ) from error
        if size < 12 or "magic bytes" in str(error) or "footer" in str(error).lower():
            raise DataError(
                "parquet file has no footer: its writer was ended before it was closed, or it is cut off",
                path=name,
                found=f"{size} bytes",
            ) from error
        raise DataError(f"parquet file is damaged: {error}", path=name) from error


def _read_columns(tree: Tree, name: str, wanted: re.Pattern[str]) -> list[tuple[str, pa.ChunkedArray]]:
    """Columns by position, for their names may come twice."""
    file = open_parquet(tree, name)
    try:
        names = [column for column in file.schema_arrow.names if wanted.fullmatch(column)]
        table = file.read(columns=list(dict.fromkeys(names)))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"parquet file is damaged: {error}", path=name) from error
    finally:
        file.close()
    return [
        (column, table.column(place)) for place, column in enumerate(table.column_names) if wanted.fullmatch(column)
    ]


def _lines(tree: Tree, name: str) -> Iterator[tuple[int, dict[str, object]]]:
    """Number and object of each line; lines that hold nothing are passed over."""
    path = tree.open_path(name)
    if not path.is_file():
        return
    if lfs_pointer(path):
        raise DataError("is a Git LFS pointer, not the file", path=name, hint="fetch it with `git lfs pull`")
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(_LINE_BYTES + 1):
            number += 1
            if len(raw) > _LINE_BYTES:
                raise DataError(
                    "line too long", path=name, where=f"line {number}", expected=f"at most {_LINE_BYTES} bytes"
                )
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8", "surrogateescape").strip(" \t\r\n\0")
            if not line:
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"not valid JSON: {error}", path=name, where=f"line {number}") from error
            if isinstance(value, dict):
                yield number, value


def _int(value: object) -> int | None:
    """An integer that may have become a float, NaN or None on the way."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if math.isfinite(value) and value == int(value) else None


def _float(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None


def read_tasks(tree: Tree) -> dict[int, str]:
    """Task index -> text; looked up by value, never by position.

    Raises:
        DataError: a table is there and can't be read.
    """
    names = tree.names()
    if "meta/tasks.jsonl" in names:
        found = {}
        for number, row in _lines(tree, "meta/tasks.jsonl"):
            index = _int(row.get("task_index"))
            if index is None:
                raise DataError("no task_index", path="meta/tasks.jsonl", where=f"line {number}")
            found[index] = clean_task(row.get("task"))
        return found
    if "meta/tasks.parquet" in names:
        columns = _read_columns(tree, "meta/tasks.parquet", re.compile(r".*"))
        numbers = next((column.to_pylist() for name, column in columns if name == "task_index"), None)
        texts = next((column for name, column in columns if name != "task_index" and _textual(column.type)), None)
        if numbers is None or texts is None:
            raise DataError(
                "no task table",
                path="meta/tasks.parquet",
                expected="task_index and a column of strings",
                found=", ".join(name for name, _ in columns),
            )
        pairs = zip(numbers, texts.to_pylist(), strict=True)
        return {index: clean_task(text) for number, text in pairs if (index := _int(number)) is not None}
    return {}


def _textual(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def read_episodes(tree: Tree, info: Info, warnings: list[str]) -> dict[int, EpisodeMeta]:
    """Episode index -> metadata, in ascending order; empty where there is no table.

    Raises:
        DataError: a table is there and can't be read.
    """
    found = _from_jsonl(tree, warnings) if info.layout == 2 else _from_parquet(tree, warnings)
    return dict(sorted(found.items()))


def _tasks(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        return (clean_task(value),)
    return tuple(clean_task(text) for text in value) if isinstance(value, (list, tuple)) else ()


def _from_jsonl(tree: Tree, warnings: list[str]) -> dict[int, EpisodeMeta]:
    found: dict[int, EpisodeMeta] = {}
    if "meta/episodes.jsonl" not in tree.names():
        return found
    for number, row in _lines(tree, "meta/episodes.jsonl"):
        index = _int(row.get("episode_index"))
        if index is None:
            raise DataError("no episode_index", path="meta/episodes.jsonl", where=f"line {number}")
        if index in found:
            warnings.append(f"meta/episodes.jsonl: episode {index} comes twice; its first line is taken")
            continue
        found[index] = EpisodeMeta(
            index=index, length=max(0, _int(row.get("length")) or 0), tasks=_tasks(row.get("tasks", row.get("task")))
        )
    return found


def _from_parquet(tree: Tree, warnings: list[str]) -> dict[int, EpisodeMeta]:
    found: dict[int, EpisodeMeta] = {}
    names = [
        name for name in tree.names() if re.fullmatch(r"meta/episodes(/.*)?\.parquet|meta/episodes/.*\.parquet", name)
    ]
    wanted = re.compile(r"(?!stats/|stats\.).*")
    for name in sorted(names):
        try:
            columns = _read_columns(tree, name, wanted)
        except DataError as error:
            warnings.append(f"{error}")
            continue
        rows = _rows(columns)
        for row in rows:
            index = _int(row.get("episode_index"))
            if index is None:
                warnings.append(f"{name}: a row without an episode_index is left out")
            elif index in found:
                warnings.append(f"{name}: episode {index} comes twice; the first is taken")
            else:
                found[index] = _episode(index, row)
    return found


def _rows(columns: Sequence[tuple[str, pa.ChunkedArray]]) -> Iterator[dict[str, object]]:
    values: dict[str, list[object]] = {}
    for name, column in columns:
        plain = re.sub(r"^(data|videos?)_(?=(chunk|file)_index$)", r"\1/", name)
        values.setdefault(plain, column.to_pylist())
    for place in range(len(next(iter(values.values()), []))):
        yield {name: column[place] for name, column in values.items()}


def _episode(index: int, row: Mapping[str, object]) -> EpisodeMeta:
    raw: dict[str, dict[str, object]] = {}
    for name, value in row.items():
        if match := _VIDEO_COLUMN.fullmatch(name):
            raw.setdefault(match[1], {})[match[2]] = value
    spans = {}
    for key, values in raw.items():
        chunk, file = _int(values.get("chunk_index")), _int(values.get("file_index"))
        if chunk is not None and file is not None:
            spans[key] = Span(
                chunk=chunk,
                file=file,
                start=_float(values.get("from_timestamp")),
                stop=_float(values.get("to_timestamp")),
            )
    return EpisodeMeta(
        index=index,
        length=max(0, _int(row.get("length")) or 0),
        tasks=_tasks(row.get("tasks", row.get("task"))),
        chunk=_int(row.get("data/chunk_index")),
        file=_int(row.get("data/file_index")),
        spans=spans,
    )


def read_subtasks(tree: Tree) -> dict[int, str]:
    """Subtask index -> text, where LeRobot 0.4.4 and 0.5 left such a table."""
    if "meta/subtasks.parquet" not in tree.names():
        return {}
    try:
        columns = _read_columns(tree, "meta/subtasks.parquet", re.compile(r".*"))
    except DataError:
        return {}
    none: list[object] = []
    numbers = next((column.to_pylist() for name, column in columns if name == "subtask_index"), none)
    texts = next((column.to_pylist() for _, column in columns if _textual(column.type)), none)
    return {
        k: clean_task(text) for number, text in zip(numbers, texts, strict=False) if (k := _int(number)) is not None
    }
