"""Whether a shard set is whole: `verify` asks all the questions of a level and reports every fault it finds.

``list`` compares names and sizes; ``quick`` also reads the small files (index, frame tables, statistics) and all
cross references; ``full`` reads every byte, decodes every picture and recomputes what can be recomputed. Damage ends
in faults, never in exceptions. Shards are checked in parallel, each in flat memory.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import multiprocessing
import queue
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import FORMAT_VERSION, FieldStats, Manifest, Stats, canonical_json, digest_of, read_model
from wdsmix.shards.faults import CHECKS, LEVELS, Faults, Level
from wdsmix.shards.frames import FrameTable
from wdsmix.shards.receipt import EpisodeRow
from wdsmix.shards.verify_manifest import (
    check_folder,
    check_manifest,
    is_adopted,
    load_manifest,
    not_fetched,
    shard_files,
)
from wdsmix.shards.verify_remote import check_remote_tar, staged
from wdsmix.shards.verify_shard import ShardTotals, check_checksum, check_tar
from wdsmix.shards.verify_tables import check_frames, check_index, open_frames
from wdsmix.stats import FieldAccumulator
from wdsmix.store import Store, is_url

__all__ = ["Report", "verify"]

Tick = Callable[[int], None]
_STATS = "stats.json"
_CLOSE = 1e-12
_INLINE_BYTES = 64 << 20
"""Less than this is checked sooner than processes start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What `verify` found."""

    path: str
    level: Level
    name: str
    digest: str
    """Version of the set; empty where the manifest is unreadable."""
    faults: Faults
    asked: frozenset[str]
    """Kinds of the checks that were made; the others belong to a higher level or had nothing to work on."""
    names: tuple[str, ...] = ()
    """Files of the set."""
    left_out: tuple[str, ...] = ()
    """Shards that were never fetched to the folder: nothing was asked of them."""

    @property
    def paths(self) -> dict[str, str]:
        """File -> ``=`` no fault, ``-`` missing, ``+`` no file of the set, ``.`` never fetched, ``*`` other faults."""
        found = dict.fromkeys(["manifest.json", *self.names], "=")
        found.update((name, ".") for shard in self.left_out for name in shard_files(shard))
        for file, kinds in self.faults.files.items():
            if file:
                found[file] = "-" if "missing" in kinds else "+" if kinds <= {"extra", "leftover"} else "*"
        return dict(sorted(found.items()))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return self.faults.total == 0

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        counts, examined = self.faults.counts, self.faults.examined
        return {
            "path": self.path,
            "name": self.name,
            "digest": self.digest,
            "level": self.level,
            "ok": self.ok,
            "faults": self.faults.total,
            "checks": [
                {
                    "kind": check.kind,
                    "title": check.title,
                    "asked": check.kind in self.asked,
                    "examined": examined[check.kind],
                    "unit": check.unit,
                    "faults": counts[check.kind],
                }
                for check in CHECKS
                if check.kind != "store" or check.kind in self.asked
            ],
            "not_fetched": list(self.left_out),
            "paths": self.paths,
            "details": [fault.to_json() for fault in self.faults],
        }


@dataclass(frozen=True, slots=True)
class ShardJob:
    """The check of one shard, as a worker process gets it."""

    folder: Path
    shard: str
    manifest: Manifest
    rows: list[EpisodeRow] | None
    present: frozenset[str]
    full: bool
    limit: int
    tar_bytes: int | None
    """Size of its tar; None: missing."""
    remote: Store | None = None
    """Where its files are, if not in the folder."""


@dataclass(slots=True)
class ShardResult:
    """What the check of one shard gives back."""

    faults: Faults
    totals: ShardTotals = field(default_factory=ShardTotals)
    vectors: dict[str, int] | None = None
    """Vector -> frames that have it; None where the frame table is unreadable."""
    stats: dict[str, FieldAccumulator] | None = None
    """Recomputed; None where it can't be done."""


def verify(
    path: str | Path,
    *,
    level: Level = "quick",
    jobs: int = 1,
    limit: int = 20,
    digest: str = "",
    progress: Callable[[int], Callable[[int], None]] | None = None,
) -> Report:
    """Checks a set.

    Args:
        path: The set's folder or URL.
        level: How deep to look.
        jobs: Processes for the shards.
        limit: Faults of each kind to keep; all are counted.
        digest: Version the set must have, or its first digits; a manifest can't vouch for itself.
        progress: Called once with the number of frames; what it returns is told how many more were done.

    Raises:
        ConfigError: there is no such folder, or no such level.
        StorageError: the store can't be reached or refuses.
    """
    if is_url(path):
        from wdsmix.shards.verify_url import verify_url

        return verify_url(str(path), level=level, jobs=jobs, limit=limit, digest=digest, progress=progress)
    folder = Path(path)
    if level not in LEVELS:
        raise ConfigError("unknown level", where="--level", expected=" | ".join(LEVELS), found=level)
    if not folder.is_dir():
        raise ConfigError("no such folder", path=folder)
    faults = Faults(limit)
    manifest = load_manifest(folder, faults, digest)
    asked = {"manifest", *(["digest"] if digest else [])}
    if manifest is None:
        return Report(path=str(path), level=level, name="", digest="", faults=faults, asked=frozenset(asked))
    left_out = not_fetched(folder, manifest)
    present = check_folder(folder, manifest, faults, left_out)
    check_manifest(manifest, faults)
    levels = LEVELS[: LEVELS.index(level) + 1]
    asked |= {check.kind for check in CHECKS if check.level in levels and check.kind not in ("digest", "store")}
    if level in ("quick", "full"):
        check_contents(folder, manifest, present, level == "full", max(jobs, 1), faults, progress, left_out=left_out)
        asked -= {"counts"} if left_out else set()  # they are of all shards
    return Report(
        path=str(path),
        level=level,
        name=manifest.name,
        digest=digest_of((folder / "manifest.json").read_bytes()),
        faults=faults,
        asked=frozenset(asked),
        names=tuple(entry.name for entry in manifest.files),
        left_out=tuple(shard for shard in manifest.shards if shard in left_out),
    )


def check_contents(
    folder: Path,
    manifest: Manifest,
    present: set[str],
    full: bool,
    jobs: int,
    faults: Faults,
    progress: Callable[[int], Tick] | None,
    *,
    remote: tuple[Store, Mapping[str, int]] | None = None,
    left_out: Set[str] = frozenset(),
) -> None:
    """The quick and full levels.

    Args:
        folder: Where index and statistics are; and the shards, unless they are remote.
        manifest: The set's.
        present: Names of the files that are there.
        full: Whether to read everything.
        jobs: Processes.
        faults: Collects what is wrong.
        progress: As `verify` takes it.
        remote: Where the shards are, and the sizes of its objects.
        left_out: Shards to ask nothing of; then nothing is asked of the sums over all shards either.
    """

    def size(tar: str) -> int | None:
        if tar not in present:
            return None
        return (folder / tar).stat().st_size if remote is None else remote[1][tar]

    entries = {entry.name: entry for entry in manifest.files}
    for name in ("index.parquet", _STATS):
        if name in present:
            check_checksum(folder, entries[name], faults)
    stats = read_stats(folder, manifest, faults) if _STATS in present else None
    index = check_index(folder, manifest, faults) if "index.parquet" in present else None
    work = [
        ShardJob(
            folder,
            shard,
            manifest,
            None if index is None else index[shard],
            frozenset(present),
            full,
            faults.limit,
            size(shard_files(shard)[0]),
            None if remote is None else remote[0],
        )
        for shard in dict.fromkeys(manifest.shards)
        if shard not in left_out
    ]
    frames = manifest.counts.frames
    if left_out and index is not None:
        frames = sum(row.frames for job in work for row in job.rows or ())
    tick = progress(frames) if progress else _silent
    alone = jobs == 1 or len(work) < 2 or _bytes(manifest, full) < _INLINE_BYTES
    results = [_shard(job, tick) for job in work] if alone else _pooled(work, jobs, tick)
    for result in results:
        faults.merge(result.faults)
    if left_out:
        return
    check_counts(manifest, results, full, faults)
    if full and stats is not None and all(result.stats is not None for result in results):
        check_stats(manifest, stats, results, faults)


def _bytes(manifest: Manifest, full: bool) -> int:
    return sum(entry.bytes for entry in manifest.files if full or not entry.name.endswith(".tar"))


def _silent(frames: int) -> None:
    """No progress."""


def _shard(job: ShardJob, tick: Tick) -> ShardResult:
    """Checks one shard; anything unforeseen becomes a fault of it."""
    result = ShardResult(Faults(job.limit))
    tar, arrow = shard_files(job.shard)
    try:
        if job.remote is None:
            _check_shard(job, job.folder, result, tick)
        else:
            with staged(job.remote, [arrow] if arrow in job.present else []) as folder:
                _check_shard(job, folder, result, tick)
    except (OSError, MemoryError) as error:
        result.faults.add_error("checksum", tar, error)
    return result


def _check_shard(job: ShardJob, folder: Path, result: ShardResult, tick: Tick) -> None:
    tar, arrow = shard_files(job.shard)
    entries = {entry.name: entry for entry in job.manifest.files}
    faults = result.faults
    table: FrameTable | None = None
    if arrow in job.present:
        check_checksum(folder, entries[arrow], faults)
        table = open_frames(folder, entries[arrow], job.manifest, faults)
    if table is not None:
        check_frames(job.shard, table, job.rows, job.tar_bytes, is_adopted(job.manifest), faults)
        result.vectors = {name: int(present.sum()) for name, present in table.present.items()}
        result.stats = _recomputed(table, job.rows, job.manifest) if job.full else None
    if job.full and tar in job.present and job.remote is not None:
        result.totals = check_remote_tar(job.remote, entries[tar], job.manifest, table, faults, tick)
    elif job.full and tar in job.present:
        check_checksum(folder, entries[tar], faults)
        result.totals = check_tar(folder, job.shard, job.manifest, table, faults, tick)
    elif table is not None:
        tick(len(table))


def _recomputed(
    table: FrameTable, rows: Sequence[EpisodeRow] | None, manifest: Manifest
) -> dict[str, FieldAccumulator] | None:
    """Statistics of a shard as the writer makes them: one partial an episode, merged in order."""
    if rows is None:
        return None
    made = {name: FieldAccumulator(entry.width) for name, entry in manifest.vectors.items()}
    try:
        for row in rows:
            if row.split != "train":
                continue
            part = slice(row.first_row, row.first_row + row.frames)
            for name, whole in made.items():
                values = table.vectors[name][part][table.present[name][part]]
                if len(values):
                    whole.merge(FieldAccumulator.of(values))
    except (DataError, ValueError):
        return None  # not finite: a fault already
    return made


# --- processes --------------------------------------------------------------------------------------------------------

_ticks: Any = None


def _start_worker(ticks: Any) -> None:
    global _ticks
    _ticks = ticks


def _in_worker(job: ShardJob) -> ShardResult:
    return _shard(job, _ticks.put)


def _pooled(work: Sequence[ShardJob], jobs: int, tick: Tick) -> list[ShardResult]:
    """Runs jobs in processes; one that dies (a decoder crashed on hostile bytes) is a fault of its shard alone."""
    results: dict[int, ShardResult] = {}
    _pool(work, range(len(work)), min(jobs, len(work)), tick, results)
    for number in range(len(work)):
        if number not in results:  # the pool broke: each of the rest gets one of its own
            _pool(work, [number], 1, tick, results)
        if number not in results:
            results[number] = ShardResult(Faults(work[number].limit))
            message = "the process that checked it died: its bytes crash a decoder, or memory ran out"
            results[number].faults.add("header", f"{work[number].shard}.tar", message)
    return [results[number] for number in range(len(work))]


def _pool(
    work: Sequence[ShardJob], numbers: Sequence[int], jobs: int, tick: Tick, results: dict[int, ShardResult]
) -> None:
    context = multiprocessing.get_context("spawn")
    ticks = context.Queue()
    with concurrent.futures.ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start_worker, initargs=(ticks,)
    ) as pool:
        pending = {}
        for number in numbers:
            with contextlib.suppress(BrokenProcessPool):
                pending[pool.submit(_in_worker, work[number])] = number
        while pending:
            done, _ = concurrent.futures.wait(pending, timeout=0.2, return_when=concurrent.futures.FIRST_COMPLETED)
            _drain(ticks, tick)
            for future in done:
                number = pending.pop(future)
                with contextlib.suppress(BrokenProcessPool):
                    results[number] = future.result()
    _drain(ticks, tick)  # the workers are gone: nothing more comes


def _drain(ticks: Any, tick: Tick) -> None:
    try:
        while True:
            tick(ticks.get_nowait())
    except queue.Empty:
        return


# --- totals -----------------------------------------------------------------------------------------------------------


def read_stats(folder: Path, manifest: Manifest, faults: Faults) -> Stats | None:
    """Reads stats.json and compares its fields with the manifest's vectors."""
    try:
        data = (folder / _STATS).read_bytes()
        stats = read_model(Stats, data, folder / _STATS)
        spelling = canonical_json(stats)
    except (OSError, DataError, ValueError, RecursionError) as error:
        faults.add_error("stats", _STATS, error)
        return None
    if spelling != data:
        faults.add("stats", _STATS, "not in the canonical spelling: changed after it was written")
    if stats.format_version != FORMAT_VERSION or stats.split != "train":
        faults.add(
            "stats",
            _STATS,
            "unknown version or split",
            expected=f"{FORMAT_VERSION}, train",
            found=f"{stats.format_version}, {stats.split}",
        )
    for name in sorted(set(stats.fields) - set(manifest.vectors)):
        faults.add("stats", _STATS, "not a vector of the manifest", where=name)
    for name, found in stats.fields.items():
        faults.saw("stats")
        if name not in manifest.vectors:
            continue
        width = manifest.vectors[name].width
        for key in ("mean", "std", "min", "max", "q01", "q99", "histogram"):
            values = getattr(found, key)
            if len(values) != width:
                faults.add(
                    "stats",
                    _STATS,
                    "not one value a dimension",
                    where=f"{name}.{key}",
                    expected=width,
                    found=len(values),
                )
    return stats


def check_counts(manifest: Manifest, results: Sequence[ShardResult], full: bool, faults: Faults) -> None:
    """Frames per vector and camera, and the sizes of pictures, against the manifest."""

    def compare(where: str, expected: object, found: object) -> None:
        faults.saw("counts")
        if expected != found:
            message = "differs from what the shards hold"
            faults.add("counts", "manifest.json", message, where=where, expected=expected, found=found)

    if all(result.vectors is not None for result in results):
        for name, vector in manifest.vectors.items():
            total = sum((result.vectors or {}).get(name, 0) for result in results)
            compare(f"vectors.{name}.frames", vector.frames, total)
    if not full:
        return
    for slot, camera in manifest.cameras.items():
        compare(f"cameras.{slot}.frames", camera.frames, sum(result.totals.frames[slot] for result in results))
        sizes = set().union(*(result.totals.sizes.get(slot, set()) for result in results))
        compare(f"cameras.{slot}.sizes", sorted(camera.sizes), sorted(sizes))


def check_stats(manifest: Manifest, stats: Stats, results: Sequence[ShardResult], faults: Faults) -> None:
    """Recomputed statistics against stats.json."""
    for name, entry in manifest.vectors.items():
        whole = FieldAccumulator(entry.width)
        for result in results:
            if result.stats and name in result.stats:
                whole.merge(result.stats[name])
        claimed = stats.fields.get(name)
        if claimed is None or not whole.count:
            if whole.count or claimed is not None:
                found = "absent" if claimed is None else f"{claimed.count} rows"
                faults.add("stats", _STATS, "differs from the rows", where=name, expected=whole.count, found=found)
            continue
        _compare_stats(name, whole.finish(), claimed, faults)


def _compare_stats(name: str, wanted: FieldStats, found: FieldStats, faults: Faults) -> None:
    if wanted == found:
        return
    if wanted.count != found.count:
        faults.add(
            "stats", _STATS, "differs from the rows", where=f"{name}.count", expected=wanted.count, found=found.count
        )
    for key in ("mean", "std", "min", "max", "q01", "q99"):
        a, b = np.array(getattr(wanted, key)), np.array(getattr(found, key))
        if a.shape != b.shape:
            continue  # a fault already
        for d in np.flatnonzero(~(np.abs(a - b) <= _CLOSE * np.maximum(np.abs(a), 1.0))).tolist():
            faults.add("stats", _STATS, "differs from the rows", where=f"{name}.{key}[{d}]", expected=a[d], found=b[d])
    for dim, (mine, theirs) in enumerate(zip(wanted.histogram, found.histogram, strict=False)):
        if mine != theirs:
            faults.add("stats", _STATS, "differs from the rows", where=f"{name}.histogram[{dim}]")
