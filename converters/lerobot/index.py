"""Where the rows of an episode are: by the rows' own ``episode_index``. File names and metadata are hints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from wdsmix.converters.lerobot.locate import Locator
from wdsmix.converters.lerobot.tables import EpisodeMeta, open_parquet
from wdsmix.converters.lerobot.tree import Tree

from wdsmix.errors import DataError
from wdsmix.texts import counted

__all__ = ["DataIndex", "Place", "scan_file"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Rows of one episode in a data file."""

    file: str
    start: int
    stop: int


@dataclass(kw_only=True, slots=True)
class DataIndex:
    """The episodes of all data files."""

    places: dict[int, Place] = field(default_factory=dict)
    broken: dict[str, str] = field(default_factory=dict)
    """File -> why it can't be read."""
    warnings: list[str] = field(default_factory=list)
    unordered: set[int] = field(default_factory=set)
    """Episodes whose rows are not one run: refused."""
    scattered: dict[int, str] = field(default_factory=dict)
    """Episodes whose rows are in several files -> which: refused."""
    _found: dict[int, list[Place]] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: Tree, locator: Locator, metas: Mapping[int, EpisodeMeta]) -> DataIndex:
        """Scans the data files (their footers, and one column where these do not tell)."""
        index = cls()
        files = locator.data_files
        hints: dict[str, set[int]] = {}
        for meta in metas.values():
            hints.setdefault(locator.data(meta) or "", set()).add(meta.index)
        named = {file: next(iter(of)) for file, of in hints.items() if len(of) == 1}
        strays = []

        def scan(file: str) -> list[tuple[int, int, int]] | DataError:
            try:
                return scan_file(tree, file, named.get(file))
            except DataError as error:
                return error

        with ThreadPoolExecutor(4) as threads:
            results = list(threads.map(scan, files))
        for file, result in zip(files, results, strict=True):
            if isinstance(result, DataError):
                if result.where == "episode_index" and not hints.get(file):
                    strays.append(file)
                else:
                    index.broken[file] = _reason(result)
                continue
            index._add(file, result)
        index._settle(hints, metas)
        if strays:
            index.warnings.append(
                f"{len(strays)} data files without episode_index are left out, the first: {strays[0]}"
            )
        return index

    def _add(self, file: str, runs: Sequence[tuple[int, int, int]]) -> None:
        for episode, start, stop in runs:
            there = self._found.setdefault(episode, [])
            if there and there[-1].file == file:
                self.unordered.add(episode)
            else:
                there.append(Place(file=file, start=start, stop=stop))

    def _settle(self, hints: Mapping[str, set[int]], metas: Mapping[int, EpisodeMeta]) -> None:
        """Chooses where several files hold an episode: copies of it, or pieces."""
        for episode, there in self._found.items():
            length = metas[episode].length if episode in metas else 0
            counts = [place.stop - place.start for place in there]
            hinted = [place for place in there if episode in hints.get(place.file, ())]
            whole = [place for place, count in zip(there, counts, strict=True) if count == length]
            best = next((place for place in hinted if place in whole), None) or (whole or hinted or there)[0]
            self.places[episode] = best
            if len(there) == 1:
                continue
            shown = ", ".join(
                f"{place.file} ({counted(count, 'row')})" for place, count in zip(there, counts, strict=True)
            )
            if not whole and (sum(counts) == length or len(set(counts)) > 1):
                self.scattered[episode] = shown
            else:
                self.warnings.append(f"episode {episode} is in several data files: {shown}; {best.file} is taken")
        self._found.clear()


def _reason(error: DataError) -> str:
    return str(DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint))


def scan_file(tree: Tree, file: str, named: int | None = None) -> list[tuple[int, int, int]]:
    """The runs of equal ``episode_index`` in a data file: (episode, first row, row after the last).

    Args:
        tree: The dataset.
        file: The data file.
        named: The episode that its name says; taken where the file has no such column.

    Raises:
        DataError: it can't be read, or has neither the column nor a name that tells.
    """
    opened = open_parquet(tree, file)
    try:
        names = opened.schema_arrow.names
        if "episode_index" not in names:
            if named is None:
                raise DataError("no such column", path=file, where="episode_index", found=", ".join(names[:8]))
            return [(named, 0, int(opened.metadata.num_rows))] if opened.metadata.num_rows else []
        return list(_from_footer(opened) or _from_column(opened, file))
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(f"parquet file is damaged: {error}", path=file) from error
    finally:
        opened.close()


def _from_footer(opened: pq.ParquetFile) -> list[tuple[int, int, int]] | None:
    """From the row groups' own statistics, where each group holds one episode."""
    meta = opened.metadata
    if not meta.num_row_groups:
        return None
    first = meta.row_group(0)
    place = next((k for k in range(first.num_columns) if first.column(k).path_in_schema == "episode_index"), None)
    runs: list[tuple[int, int, int]] = []
    row = 0
    for number in range(meta.num_row_groups if place is not None else 0):
        group = meta.row_group(number)
        stats = group.column(place).statistics
        if stats is None or not stats.has_min_max or stats.min != stats.max or stats.null_count:
            return None
        if not isinstance(stats.min, (int, float)) or stats.min != int(stats.min):
            return None
        episode, end = int(stats.min), row + int(group.num_rows)
        if runs and runs[-1][0] == episode:
            runs[-1] = (episode, runs[-1][1], end)
        else:
            runs.append((episode, row, end))
        row = end
    return runs or None


def _from_column(opened: pq.ParquetFile, file: str) -> Iterator[tuple[int, int, int]]:
    column = opened.read(columns=["episode_index"]).column("episode_index")
    if not len(column):
        return
    plain = pc.cast(column, pa.float64()).to_numpy()
    if not np.isfinite(plain).all():
        row = int(np.flatnonzero(~np.isfinite(plain))[0])
        raise DataError("an episode_index is missing", path=file, where=f"row {row}")
    cuts = np.flatnonzero(np.diff(plain)) + 1
    for start, stop in zip([0, *cuts.tolist()], [*cuts.tolist(), len(plain)], strict=True):
        yield int(plain[start]), start, stop
