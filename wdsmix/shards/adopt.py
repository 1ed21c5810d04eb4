"""Adopting foreign tars: any folder of WebDataset tars becomes a shard set, without touching a tar.

Two looks at each tar. The first parses all headers and tells which samples make an episode and what the members are;
from that follows one layout for the whole set. The second writes the frame tables; index, statistics and manifest
come last. Both run in processes, one tar each, in memory that grows with the frames of a tar, not with its pictures.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TypeVar

from wdsmix import __version__
from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.manifest import FORMAT_VERSION, Manifest, read_model
from wdsmix.shards.adopt_layout import AdoptOptions, Layout, decide_layout
from wdsmix.shards.adopt_scan import EpisodeRule, ShardScan, scan_shard
from wdsmix.shards.adopt_write import Adopted, ShardWork, adopt_shard
from wdsmix.shards.files import PARTIAL, publish
from wdsmix.shards.finish import finish_set, shard_order

__all__ = ["AdoptOptions", "adopt"]

_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SPLIT = re.compile(r"(train|val|test)[-_.]")
_INLINE_BYTES = 64 << 20

_In = TypeVar("_In")
_Out = TypeVar("_Out")


def adopt(
    folder: str | Path,
    options: AdoptOptions | None = None,
    *,
    progress: Callable[[str, int], Callable[[int], None]] | None = None,
) -> Manifest:
    """Writes frame tables, index, statistics and manifest beside the tars of a folder.

    Args:
        folder: Holds the tars; not searched below.
        options: How.
        progress: Called with what is being done and its number of tars; what it returns is told how many are done.

    Raises:
        ConfigError: an option is wrong, or names a member that no sample has.
        ConflictError: the folder is a shard set already, or holds files that would be overwritten.
        DataError: a tar is damaged or does not follow the naming; names tar and offset.
    """
    folder, options = Path(folder), options or AdoptOptions()
    tars = _tars(folder)
    _check_free(folder, tars, options.force)
    rule = EpisodeRule(options.episode_from)
    shards = sorted(tars, key=lambda shard: shard_order(shard, _split(shard, options)))
    paths = [folder / f"{shard}.tar" for shard in shards]
    jobs = options.jobs if sum(path.stat().st_size for path in paths) >= _INLINE_BYTES else 1
    tick = progress("scan", len(paths)) if progress else _silent
    scans = list(_mapped(partial(scan_shard, rule=rule), paths, jobs, tick))
    layout = decide_layout(scans, options)
    hz = _rate(scans, options, layout.warnings)
    numbers = _numbers(scans, rule, folder)
    _note_frames(scans, rule, layout.warnings)
    work = [
        ShardWork(
            folder=folder,
            shard=scan.shard,
            split=_split(scan.shard, options),
            rule=rule,
            spans=scan.spans,
            numbers=shard_numbers,
            cameras=layout.cameras,
            vectors=layout.vectors,
            hz=hz,
        )
        for scan, shard_numbers in zip(scans, numbers, strict=True)
    ]
    tick = progress("index", len(paths)) if progress else _silent
    try:
        parts = list(_mapped(adopt_shard, work, jobs, tick))
        header = _header(folder, options, layout, hz, parts)
    except BaseException:
        for shard in shards:
            (folder / f"{shard}.frames.arrow{PARTIAL}").unlink(missing_ok=True)
        raise
    _forget(folder, shards)
    for shard in shards:
        table = folder / f"{shard}.frames.arrow"
        publish(table.with_name(table.name + PARTIAL), table)
    return finish_set(folder, [part.receipt for part in parts], header)


def _silent(done: int) -> None:
    """No progress."""


def _mapped(
    function: Callable[[_In], _Out], items: Sequence[_In], jobs: int, tick: Callable[[int], None]
) -> Iterator[_Out]:
    """Results in order; in processes where there is enough to do."""
    if jobs == 1 or len(items) < 2:
        for item in items:
            yield function(item)
            tick(1)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(items)), mp_context=context) as pool:
        try:
            for result in pool.map(function, items):
                yield result
                tick(1)
        except BrokenProcessPool as error:
            raise DataError("a process that read the tars died", hint="--jobs 1 may tell which tar it was") from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


# --- the folder -------------------------------------------------------------------------------------------------------


def _tars(folder: Path) -> list[str]:
    if not folder.is_dir():
        raise ConfigError("no such folder", path=folder)
    names = sorted(path.name for path in folder.iterdir() if path.is_file())
    packed = [name for name in names if re.search(r"\.(tar\.\w+|tgz|tbz2?|txz)$", name) and not name.endswith(PARTIAL)]
    if packed:
        raise DataError(
            "compressed tars can't be indexed: their frames can't be reached directly",
            path=folder / packed[0],
            hint="decompress them first (gunzip)",
        )
    tars = [name for name in names if name.endswith(".tar")]
    if not tars:
        raise DataError("there is no tar in this folder", path=folder, expected="*.tar")
    for name in tars:
        if not _FILE.fullmatch(name):
            raise DataError("a name that a set can't list", path=folder / name, expected="letters, digits, . _ -")
    return [name.removesuffix(".tar") for name in tars]


def _check_free(folder: Path, shards: Sequence[str], force: bool) -> None:
    """Refuses to overwrite what this command did not write."""
    if (folder / ".work").exists():
        raise ConflictError("a conversion into this folder is not finished", path=folder / ".work")
    path = folder / "manifest.json"
    if path.exists():
        try:
            adopted = bool(read_model(Manifest, path.read_bytes(), path).details.get("adopted"))
        except DataError:
            adopted = False
        if not adopted:
            raise ConflictError(
                "the folder holds a manifest that was not made by index", path=path, hint="nothing was changed"
            )
        if not force:
            raise ConflictError("these tars are indexed already", path=path, hint="--force indexes them again")
    elif not force:
        for name in ("index.parquet", "stats.json", *(f"{shard}.frames.arrow" for shard in shards)):
            if (folder / name).exists():
                raise ConflictError(
                    "a file of this name is there, and no manifest that tells what it is",
                    path=folder / name,
                    hint="move it away, or overwrite it with --force (left over from an interrupted index)",
                )


def _forget(folder: Path, shards: Sequence[str]) -> None:
    """Ends the set that was indexed before: from here to the new manifest there is none."""
    path = folder / "manifest.json"
    if path.exists():
        for shard in set(read_model(Manifest, path.read_bytes(), path).shards) - set(shards):
            table = folder / f"{shard}.frames.arrow"
            if _FILE.fullmatch(table.name):
                table.unlink(missing_ok=True)
        path.unlink()


def _split(shard: str, options: AdoptOptions) -> str:
    if not options.split_from:
        match = _SPLIT.match(f"{shard}-")
        return match.group(1) if match else "train"
    match = re.search(options.split_from, shard)
    if match is None or not match.group(1):
        raise DataError(
            "the tar's name does not match the expression that tells the split",
            path=f"{shard}.tar",
            where="--split-from",
            expected=options.split_from,
        )
    return match.group(1)


# --- rate and numbers -------------------------------------------------------------------------------------------------


def _rate(scans: Sequence[ShardScan], options: AdoptOptions, warnings: list[str]) -> float:
    if options.hz:
        return options.hz
    steps = sorted(scan.step for scan in scans if scan.step > 0)
    if steps:
        hz = round(1 / steps[len(steps) // 2], 6)
        if hz > 0:
            warnings.append(f"no rate was given: {hz:g} frames per second by the samples' timestamps (--hz sets it)")
            return hz
    warnings.append("no rate was given: taken as 1 frame per second (--hz sets it)")
    return 1.0


def _numbers(scans: Sequence[ShardScan], rule: EpisodeRule, folder: Path) -> list[list[int]]:
    """A number for each span: its id where all ids are different whole numbers, else its position in the set."""
    ids: dict[str, tuple[str, str]] = {}
    for scan in scans:
        for span in scan.spans if rule.text else ():
            if span.id in ids:
                shard, place = ids[span.id]
                raise DataError(
                    f"episode {span.id} lies in two tars; it began in {shard}.tar at {place}",
                    path=folder / f"{scan.shard}.tar",
                    where=span.place,
                    hint="an episode must lie in one tar; if every tar counts anew, make the id unique",
                )
            ids[span.id] = (scan.shard, span.place)
    texts = [span.id for scan in scans for span in scan.spans]
    whole = [int(text) for text in texts if text.isascii() and text.isdecimal() and len(text) < 11]
    if not (rule.text and len(set(whole)) == len(texts) and max(whole, default=0) < 2**32):
        whole = list(range(len(texts)))
    queue = iter(whole)
    return [[next(queue) for _ in scan.spans] for scan in scans]


def _note_frames(scans: Sequence[ShardScan], rule: EpisodeRule, warnings: list[str]) -> None:
    if not sum(scan.samples for scan in scans):
        raise DataError("the tars hold no sample")
    if not rule.text:
        warnings.append("no rule for episodes was given: each sample is an episode of one frame (--episode-from)")
    partly = sum(1 for scan in scans for span in scan.spans if 0 < span.timed < span.frames)
    if partly:
        warnings.append(
            f"{partly} episodes have a timestamp in some samples only: frame numbers over the rate are used"
        )


# --- the manifest -----------------------------------------------------------------------------------------------------


def _header(
    folder: Path, options: AdoptOptions, layout: Layout, hz: float, parts: Sequence[Adopted]
) -> dict[str, object]:
    name = options.name or folder.resolve().name
    warnings = list(layout.warnings)
    rounded = sorted(set().union(*(part.rounded for part in parts)))
    if rounded:
        warnings.append(f"whole numbers beyond 2^24 were rounded to float32 in {', '.join(rounded)}")
    arguments = {
        "episode_from": options.episode_from,
        "split_from": options.split_from,
        "hz": options.hz,
        "cameras": dict(options.cameras),
        "vectors": dict(options.vectors),
    }
    tars = sorted((e.name, e.bytes, e.sha256) for part in parts for e in part.receipt.files if e.name.endswith(".tar"))
    fingerprint = _hash(tars)
    plan = {"arguments": arguments, "source": fingerprint, "name": name, "format": FORMAT_VERSION}
    return {
        "name": name,
        "kind": "webdataset",
        "embodiment": options.embodiment or name,
        "hz": hz,
        "source_fps": hz,
        "licence": options.licence,
        "cameras": _cameras(layout, parts),
        "vectors": {vector: {"width": width, "member": suffix} for vector, (suffix, width) in layout.vectors.items()},
        "converter": "index",
        "converter_version": __version__,
        "arguments": arguments,
        "libraries": {
            "python": platform.python_version(),
            **{package: version(package) for package in ("numpy", "pillow", "pyarrow")},
        },
        "source_fingerprint": fingerprint,
        "plan_digest": _hash(plan),
        "details": {"adopted": True, "ignored_members": layout.ignored},
        "warnings": warnings,
        "dropped": [],
    }


def _cameras(layout: Layout, parts: Sequence[Adopted]) -> dict[str, dict[str, str]]:
    made = {}
    for slot, suffix in layout.cameras.items():
        looks = [part.looks[slot] for part in parts if slot in part.looks]
        first = looks[0] if looks else ("jpeg", "rgb", "")
        for look in looks:
            if look[:2] != first[:2]:
                raise DataError(
                    f"pictures of two kinds under one suffix; the first is at {first[2]}",
                    path=look[2],
                    expected=" ".join(first[:2]),
                    found=" ".join(look[:2]),
                )
        made[slot] = {"key": suffix, "member": suffix, "encoding": first[0], "kind": first[1]}
    return made


def _hash(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).hexdigest()
