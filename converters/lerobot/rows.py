"""Rows of a parquet file by number: streamed, and never decoded twice while a process goes on through a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
from wdsmix.converters.lerobot.tables import open_parquet
from wdsmix.converters.lerobot.tree import Tree

from wdsmix.errors import DataError

__all__ = ["ParquetRows", "RowsPool"]


class ParquetRows:
    """Some columns of a parquet file, read forward in small batches.

    Args:
        tree: The dataset.
        name: The file.
        columns: The columns; a name also fits what is nested in it only.
        batch: Rows decoded at a time: what is held in memory.

    Raises:
        DataError: it can't be opened.
    """

    def __init__(self, tree: Tree, name: str, columns: Sequence[str], *, batch: int) -> None:
        self.name = name
        self.columns = tuple(columns)
        self.batch = batch
        self._file = open_parquet(tree, name)
        self.rows = int(self._file.metadata.num_rows)
        groups = self._file.metadata.num_row_groups
        sizes = [int(self._file.metadata.row_group(group).num_rows) for group in range(groups)]
        self._starts = _running(sizes)
        self._batches: Iterator[pa.RecordBatch] | None = None
        self._held: pa.RecordBatch | None = None
        self._at = 0
        """Number of the first row of ``_held``, or of the batch that comes next."""
        self.restarts = 0

    def read(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yields the rows from ``start`` up to ``stop``, in batches.

        Raises:
            DataError: there are no such rows, or they can't be decoded.
        """
        if not 0 <= start <= stop <= self.rows:
            raise DataError("no such rows", path=self.name, expected=f"0 to {self.rows}", found=f"{start} to {stop}")
        group = max((k for k, first in enumerate(self._starts) if first <= start), default=0)
        if self._batches is None or start < self._at or self._starts[group] > self._at + 2 * self.batch:
            self._batches = self._file.iter_batches(
                self.batch, row_groups=list(range(group, len(self._starts))), columns=list(self.columns)
            )
            self._held, self._at = None, self._starts[group]
            self.restarts += 1
        while start < stop:
            batch = self._current()
            end = self._at + batch.num_rows
            if end > start:
                taken = min(stop, end)
                yield batch.slice(start - self._at, taken - start)
                start = taken
            if end <= start and start < self.rows:
                self._held, self._at = None, end

    def _current(self) -> pa.RecordBatch:
        if self._held is None:
            try:
                self._held = next(self._batches or iter(()), None)
            except (pa.ArrowException, OSError, ValueError) as error:
                self._batches = None
                raise DataError(f"parquet file is damaged: {error}", path=self.name, where=f"row {self._at}") from error
            if self._held is None:
                raise DataError("parquet file ends early", path=self.name, where=f"row {self._at}")
        return self._held

    def table(self, start: int, stop: int) -> pa.Table:
        """The rows from ``start`` up to ``stop``.

        Raises:
            DataError: there are no such rows, or they can't be decoded.
        """
        batches = list(self.read(start, stop))
        if not batches:
            return pa.table({})
        return pa.Table.from_batches(batches).combine_chunks()

    def close(self) -> None:
        """Closes the file."""
        self._batches = self._held = None
        self._file.close()


def _running(sizes: Sequence[int]) -> list[int]:
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size
    return starts


class RowsPool:
    """The open parquet readers of a process: one a purpose (the vectors, each camera)."""

    def __init__(self) -> None:
        self._open: dict[str, ParquetRows] = {}

    def reader(self, purpose: str, tree: Tree, name: str, columns: Sequence[str], *, batch: int) -> ParquetRows:
        """The reader of a purpose; the one it had before is closed when the file or the columns are others."""
        there = self._open.get(purpose)
        if there is not None and (there.name, there.columns) != (name, tuple(columns)):
            self._open.pop(purpose).close()
            there = None
        if there is None:
            there = self._open[purpose] = ParquetRows(tree, name, columns, batch=batch)
        return there

    def close(self) -> None:
        """Closes all."""
        for purpose in list(self._open):
            self._open.pop(purpose).close()
