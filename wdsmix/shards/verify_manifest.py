"""Checks of a set's folder and of what its manifest says about itself: nothing here opens a shard."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Set
from pathlib import Path

from wdsmix.errors import DataError
from wdsmix.manifest import FORMAT_VERSION, Manifest, canonical_json, check_seal, digest_of, read_model
from wdsmix.shards.faults import Faults
from wdsmix.store.fetch import STAMPS

__all__ = ["check_folder", "check_manifest", "is_adopted", "load_manifest", "not_fetched", "shard_files"]

MANIFEST = "manifest.json"
SIDE_FILES = ("index.parquet", "stats.json")
_SLOT = re.compile(r"cam(0|[1-9][0-9]*)")


def is_adopted(manifest: Manifest) -> bool:
    """Whether the tars were written by something else and only indexed by us: naming and headers are then free."""
    return bool(manifest.details.get("adopted"))


def shard_files(shard: str) -> tuple[str, str]:
    """Names of a shard's two files."""
    return f"{shard}.tar", f"{shard}.frames.arrow"


def load_manifest(folder: Path, faults: Faults, digest: str) -> Manifest | None:
    """Reads manifest.json; None if that can't be done, which is then a fault."""
    faults.saw("manifest")
    path = folder / MANIFEST
    try:
        data = path.read_bytes()
        manifest = read_model(Manifest, data, path)
        spelling = canonical_json(manifest)
    except FileNotFoundError:
        faults.add("manifest", MANIFEST, "there is none: not a shard set, or not finished")
        return None
    except (OSError, DataError, ValueError, RecursionError) as error:
        faults.add_error("manifest", MANIFEST, error)
        return None
    if spelling != data:
        at = next((i for i, (a, b) in enumerate(zip(spelling, data, strict=False)) if a != b), len(spelling))
        faults.add(
            "manifest", MANIFEST, "not in the canonical spelling: changed after it was written", where=f"byte {at}"
        )
    else:
        try:
            check_seal(manifest, MANIFEST)
        except DataError as error:
            faults.add_error("manifest", MANIFEST, error)
    if digest:
        faults.saw("digest")
        if not digest_of(data).startswith(digest.lower()):
            faults.add("digest", MANIFEST, "another version of the set", expected=digest, found=digest_of(data))
    return manifest


def not_fetched(folder: Path, manifest: Manifest) -> frozenset[str]:
    """Shards that were never asked for, of a folder to which ``wdsmix fetch`` brought others.

    A fetch notes what it brought. A shard of which anything is noted, or there, is one that should be whole.
    """
    try:
        noted = json.loads((folder / STAMPS).read_bytes())["files"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return frozenset()
    if not isinstance(noted, dict) or not noted:
        return frozenset()
    return frozenset(
        shard
        for shard in manifest.shards
        if not any(name in noted or (folder / name).exists() for name in shard_files(shard))
    )


def check_folder(folder: Path, manifest: Manifest, faults: Faults, left_out: Set[str] = frozenset()) -> set[str]:
    """Compares names and sizes; returns the names of the files that are there (links count as their target).

    Args:
        folder: The set's.
        manifest: Its manifest.
        faults: Collects what is wrong.
        left_out: Shards that need not be there.
    """
    elsewhere = {name for shard in left_out for name in shard_files(shard)}
    wanted = {entry.name: entry.bytes for entry in manifest.files if entry.name not in elsewhere}
    present: set[str] = set()
    for name, size in wanted.items():
        faults.saw("missing")
        path = folder / name
        if not path.is_file():
            faults.add("missing", name, "the file is missing", expected=f"{size} bytes")
            continue
        present.add(name)
        faults.saw("size")
        if (found := path.stat().st_size) != size:
            faults.add("size", name, "wrong size", expected=f"{size} bytes", found=f"{found} bytes")
    for path in sorted(folder.iterdir()):
        faults.saw("extra")
        if path.name in wanted or path.name == MANIFEST:
            continue
        if path.name == ".work" or path.name.endswith(".partial"):
            faults.add("leftover", path.name, "left over from work that did not finish")
        elif not path.name.startswith(".") and (not is_adopted(manifest) or path.suffix in (".tar", ".arrow")):
            faults.add("extra", path.name, "not a file of the set")
    faults.saw("leftover", len(list(folder.glob("*.partial"))) + (folder / ".work").exists())
    return present


def check_manifest(manifest: Manifest, faults: Faults) -> None:
    """Checks the manifest against itself."""

    def fault(where: str, message: str, expected: object = None, found: object = None) -> None:
        faults.add("manifest", MANIFEST, message, where=where, expected=expected, found=found)

    if manifest.format_version != FORMAT_VERSION:
        fault("format_version", "unknown version", FORMAT_VERSION, manifest.format_version)
    for field in ("hz", "source_fps"):
        value = getattr(manifest, field)
        if not (math.isfinite(value) and value > 0):
            fault(field, "not a rate", "more than 0", value)
    for field in ("source_fingerprint", "plan_digest", "name", "kind", "converter"):
        if not getattr(manifest, field):
            fault(field, "empty")
    names = [entry.name for entry in manifest.files]
    if names != sorted(set(names)):
        fault("files", "not sorted by name without repetition")
    if len(set(manifest.shards)) != len(manifest.shards):
        fault("shards", "a name occurs twice")
    wanted = {*SIDE_FILES, *(name for shard in manifest.shards for name in shard_files(shard))}
    for name in sorted(wanted - set(names)):
        fault("files", f"{name} is not listed")
    for name in sorted(set(names) - wanted):
        fault("files", f"{name} is listed, but belongs to no shard")
    _check_counts(manifest, faults)
    _check_cameras(manifest, faults)
    _check_vectors(manifest, faults)
    twice = [number for number, times in Counter(drop.episode for drop in manifest.dropped).items() if times > 1]
    if twice:
        fault("dropped", "an episode was dropped twice", found=twice[:5])


def _check_counts(manifest: Manifest, faults: Faults) -> None:
    for field in ("episodes", "frames", "shards"):
        values = [getattr(counts, field) for counts in manifest.splits.values()]
        total = getattr(manifest.counts, field)
        if sum(values) != total or min([*values, total]) < 0:
            faults.add(
                "manifest", MANIFEST, "splits do not add up", where=f"counts.{field}", expected=sum(values), found=total
            )
    if manifest.counts.shards != len(manifest.shards):
        faults.add(
            "manifest",
            MANIFEST,
            "not the number of shards",
            where="counts.shards",
            expected=len(manifest.shards),
            found=manifest.counts.shards,
        )


def _check_cameras(manifest: Manifest, faults: Faults) -> None:
    members = [camera.member for camera in manifest.cameras.values()]
    members += [vector.member for vector in manifest.vectors.values()]
    for member in sorted({member for member in members if members.count(member) > 1}):
        faults.add("manifest", MANIFEST, f"two entries have the member {member}", where="cameras, vectors")
    for slot, camera in manifest.cameras.items():
        where = f"cameras.{slot}"
        if not _SLOT.fullmatch(slot):
            faults.add("manifest", MANIFEST, "not a slot name", where=where, expected="cam0, cam1, ...", found=slot)
        if not 0 <= camera.frames <= manifest.counts.frames or not 0 <= camera.passthrough <= camera.frames:
            faults.add(
                "manifest", MANIFEST, "impossible counts", where=where, found=f"{camera.frames}, {camera.passthrough}"
            )
        sizes = camera.sizes
        if sizes != sorted(set(sizes)) or any(w < 1 or h < 1 for w, h in sizes) or bool(sizes) != (camera.frames > 0):
            faults.add("manifest", MANIFEST, "impossible sizes", where=where, found=sizes[:5])


def _check_vectors(manifest: Manifest, faults: Faults) -> None:
    for name, vector in manifest.vectors.items():
        for field in ("names", "units", "kinds"):
            found = len(getattr(vector, field))
            if found not in (0, vector.width):
                faults.add(
                    "manifest",
                    MANIFEST,
                    "not one entry a dimension",
                    where=f"vectors.{name}.{field}",
                    expected=vector.width,
                    found=found,
                )
        if not 0 <= vector.frames <= manifest.counts.frames:
            faults.add("manifest", MANIFEST, "impossible count", where=f"vectors.{name}.frames", found=vector.frames)
