"""The source: HDF5 files of any known dialect, each by its own."""

from __future__ import annotations

import json
import os
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from wdsmix.converters.hdf5.dialects import all_dialects
from wdsmix.converters.hdf5.faults import CHECKS
from wdsmix.converters.hdf5.files import Found, confined, find_files, fingerprint
from wdsmix.converters.hdf5.layout import REFUSED_CAMERA, FileFacts
from wdsmix.converters.hdf5.numbering import gaps
from wdsmix.converters.hdf5.open_episode import open_episode
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.pairing import pairing_words
from wdsmix.converters.hdf5.scan import EpisodeScan, FileScan, scan_file, scan_files
from wdsmix.converters.hdf5.slots import default_slots, match_camera
from wdsmix.converters.slots import natural_key

from wdsmix.episode import Camera, DimensionKind, Episode, EpisodeRef, SourceInfo, VectorSpec
from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.texts import printable

__all__ = ["Hdf5Source"]

_MAX_WARNINGS = 50
_MAX_FACTS = 20


class Hdf5Source:
    """A file or a folder of files (a `wdsmix.converters.base.Source`). Pickles; holds no open file.

    Args:
        path: File or folder.
        options: Of the family.
        workers: Processes that scan.
        quiet: No progress bar.
        isolate: Scan in child processes, which a crafted file may crash; False: in this one.
    """

    def __init__(
        self, path: Path, options: Hdf5Options, *, workers: int = 0, quiet: bool = True, isolate: bool = True
    ) -> None:
        self._path = path
        self._options = options
        self._workers = workers or min(8, len(os.sched_getaffinity(0)))
        self._quiet = quiet
        self._isolate = isolate
        self._found: Found | None = None
        self._scans: dict[str, FileScan] | None = None
        self._fps = 0.0
        self._slots: dict[str, dict[str, str]] = {}
        self._refs: list[EpisodeRef] = []
        self._warnings: list[str] = []

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        if self._scans is not None:  # a worker needs what holds for a file, not what was measured of its episodes
            state["_scans"] = {
                file: FileScan(
                    dialect=scan.dialect, fps=scan.fps, fps_from=scan.fps_from, task=scan.task, beside=scan.beside
                )
                for file, scan in self._scans.items()
            }
            state["_refs"] = []
        return state

    @property
    def libraries(self) -> tuple[str, ...]:
        """Packages whose versions belong in the manifest."""
        videos = any(name.lower().endswith(".mp4") for name in self._beside())
        return ("h5py", "av") if videos else ("h5py",)

    @property
    def path(self) -> Path:
        """The file or folder that is read."""
        return self._path

    @property
    def files(self) -> Found:
        """The files of the source."""
        if self._found is None:
            self._found = find_files(self._path)
        return self._found

    def inputs(self) -> list[Path]:
        """The files that are read: those of the source, and those beside them that the scan looked for.

        Raises:
            ConflictError: one of them changed while it was scanned.
        """
        found = self.files
        files = [found.root / file for file in found.files if file not in found.faults]
        before = {path: _stamp(path) for path in files} if self._scans is None else {}
        self.episodes()
        changed = [path for path, stamp in before.items() if _stamp(path) != stamp]
        if changed:
            raise ConflictError("the source changed while it was scanned", path=changed[0], hint="start again")
        return files + [path for path in map(found.root.joinpath, self._beside()) if path.is_file()]

    def _beside(self) -> list[str]:
        """Names, below or beside the root, of the further files that were looked for."""
        self.episodes()
        scans = (self._scans or {}).items()
        return sorted({posixpath.normpath(f"{file}/../{name}") for file, scan in scans for name in scan.beside})

    def arguments(self) -> Mapping[str, object]:
        """The options of the family."""
        return self._options.arguments()

    def fingerprint(self) -> str:
        """Hash over names, sizes and some content of the files."""
        return fingerprint(self.files, self._beside())

    def episodes(self) -> list[EpisodeRef]:
        """All episodes of all files, in natural order.

        Raises:
            ConfigError: an option fits none of the files.
            DataError: no file at all; unequal lengths under ``--on-length-mismatch error``; no file of a known
                structure.
        """
        if self._scans is None:
            self._scans = self._scan()
            self._check_fatal(self._scans)
            self._warnings = [*self.files.warnings, *_gather_warnings(self._scans), *gaps(self._scans)]
            self._slots = {dialect: self._assign(dialect, scans) for dialect, scans in _by_dialect(self._scans).items()}
            self._fps = self._rate(self._scans)
            self._refs = self._build(self._scans)
        return list(self._refs)

    def _scan(self) -> dict[str, FileScan]:
        from wdsmix.progress import Progress

        found = self.files
        good = [file for file in found.files if file not in found.faults]
        if not self._isolate:
            scans = {file: scan_file(found.root, file, self._options) for file in good}
        elif len(good) < 2 or self._quiet:
            scans = scan_files(found.root, good, self._options, workers=self._workers)
        else:
            with Progress(len(good), "files", "scan") as bar:
                scans = scan_files(
                    found.root, good, self._options, workers=self._workers, advance=lambda: bar.advance(1)
                )
        refused = {file: FileScan(fault=fault, check="safe") for file, fault in found.faults.items()}
        return {file: scans.get(file) or refused[file] for file in found.files}

    def _check_fatal(self, scans: Mapping[str, FileScan]) -> None:
        for file, scan in scans.items():
            if scan.config:
                raise ConfigError(scan.fault or "", path=file)
            for episode in scan.episodes:
                if self._options.on_length_mismatch == "error" and episode.check in ("lengths", "vectors"):
                    raise DataError(episode.fault or "", path=file, where=episode.group)
        if all(scan.unknown for scan in scans.values()):
            file, scan = next(iter(scans.items()))
            raise DataError(scan.fault or "", path=file)

    def _assign(self, dialect: str, scans: Mapping[str, FileScan]) -> dict[str, str]:
        """Slot -> key for the files of one dialect."""
        paths: dict[str, str] = {}
        for scan in scans.values():
            for episode in scan.episodes:
                if episode.fault is None:
                    paths.update({key: entry[0] for key, entry in episode.cameras.items()})
        if not self._options.cameras:
            return {key: key for key in paths} if dialect == "mapping" else default_slots(list(paths))
        slots = {slot: match_camera(wanted, paths) for slot, wanted in self._options.cameras.items()}
        absent = [self._options.cameras[slot] for slot, key in slots.items() if key is None]
        if absent and paths:
            there = ", ".join(sorted(paths, key=natural_key))
            raise ConfigError("no such camera", where="--camera", expected=f"one of: {there}", found=", ".join(absent))
        return {slot: key for slot, key in slots.items() if key is not None}

    def _rate(self, scans: Mapping[str, FileScan]) -> float:
        """The rate of the most frames."""
        frames: Counter[float] = Counter()
        for scan in scans.values():
            for episode in scan.episodes:
                if episode.fault is None:
                    frames[scan.fps] += episode.frames
        return frames.most_common(1)[0][0] if frames else self._options.fps or 30.0

    def _gripper(self, dialect: str, scans: Mapping[str, FileScan]) -> bool:
        """Whether the gripper goes to the state of a dialect's episodes."""
        if self._options.gripper != "auto":
            return self._options.gripper == "append"
        good = [episode for scan in scans.values() for episode in scan.episodes if episode.fault is None]
        widths = {episode.widths.get("gripper", 0) for episode in good}
        if len(widths) > 1:
            self._warnings.append(
                f"some {dialect} episodes have no gripper or one of another width, so that it is left out of the "
                "state; --gripper append takes it and drops the others"
            )
        return not self._options.state and len(widths) == 1 and 0 not in widths

    def _build(self, scans: Mapping[str, FileScan]) -> list[EpisodeRef]:
        gripper = {dialect: self._gripper(dialect, group) for dialect, group in _by_dialect(scans).items()}
        refs = []
        for file, scan in scans.items():
            if scan.fault is not None:
                refs.append(EpisodeRef(id="", file=file, frames=0, fault=_line(scan), fault_kind="file"))
                continue
            refs += [self._ref(file, scan, episode, gripper[scan.dialect]) for episode in scan.episodes]
        return refs

    def _ref(self, file: str, scan: FileScan, episode: EpisodeScan, gripper: bool) -> EpisodeRef:
        name = episode.group.strip("/")
        unique = name.removeprefix("data/") or Path(file).stem
        if episode.fault is not None:
            return EpisodeRef(
                id=unique, file=file, frames=0, fault=episode.fault, fault_kind=episode.fault_kind, split=episode.split
            )
        if abs(scan.fps - self._fps) > 1e-3 * self._fps:
            rates = f"recorded at {scan.fps:g} frames/s, most of the source at {self._fps:g}"
            fault = f"{rates}: convert it apart, or give --fps"
            return EpisodeRef(id=unique, file=file, frames=0, fault=fault, split=episode.split)
        widths = {name: width for name, width in episode.widths.items() if name != "gripper"}
        if gripper:
            widths["state"] += episode.widths.get("gripper", 0)
        slots = {slot: key for slot, key in self._slots[scan.dialect].items() if key in episode.cameras}
        return EpisodeRef(
            id=unique,
            file=file,
            frames=episode.frames,
            vectors=widths,
            cameras=tuple(slots),
            split=episode.split,
            locator={
                "group": episode.group,
                "dialect": scan.dialect,
                "cameras": json.dumps(slots, ensure_ascii=False),
                "gripper": int(gripper),
            },
        )

    def describe(self) -> SourceInfo:
        """Rate, cameras, names and kinds of the dimensions, from what most frames have."""
        self.episodes()
        scans = self._scans or {}
        frames: Counter[str] = Counter()
        for scan in scans.values():
            frames[scan.dialect] += sum(episode.frames for episode in scan.episodes if episode.fault is None)
        dialects = sorted(name for name, count in frames.items() if count)
        dialect = frames.most_common(1)[0][0] if dialects else ""
        cameras, kept = self._describe_cameras(scans, dialects)
        robots = Counter(scan.embodiment for scan in scans.values() if scan.embodiment)
        origins = sorted({scan.fps_from for scan in scans.values() if scan.dialect and scan.fault is None})
        known = [all_dialects()[name].limits for name in dialects]
        chosen = {"state": self._options.state, "action": self._options.action}
        limits = {
            vector: max(one[vector] for one in known)
            for vector, keys in chosen.items()
            if known and not keys and all(vector in one for one in known)
        }
        flat = self.files.root if self._path.is_dir() else Path(self.files.files[0])
        return SourceInfo(
            name=flat.resolve().name if self._path.is_dir() else flat.stem,
            kind="hdf5/" + ("+".join(dialects) or "none"),
            fps=self._fps,
            embodiment=robots.most_common(1)[0][0] if robots else "",
            vectors=self._describe_vectors(scans, dialect),
            cameras=cameras,
            details={
                "dialects": dialects,
                "fps_from": origins,
                "pairing": pairing_words([all_dialects()[name] for name in dialects], self._options),
                "cameras": kept,
                "on_length_mismatch": self._options.on_length_mismatch,
                **({"limits": limits} if limits else {}),
                **_gather_facts(scans),
            },
            warnings=_capped(self._warnings),
        )

    def _describe_cameras(
        self, scans: Mapping[str, FileScan], dialects: Sequence[str]
    ) -> tuple[dict[str, Camera], dict[str, object]]:
        cameras: dict[str, Camera] = {}
        kept: dict[str, object] = {}
        for dialect in dialects:
            ways: dict[str, set[tuple[str, str]]] = {}
            for scan in scans.values():
                for episode in scan.episodes if scan.dialect == dialect else ():
                    for key, (_, order, flip) in episode.cameras.items():
                        ways.setdefault(key, set()).add((order, flip))
            for slot, key in self._slots[dialect].items():
                first = sorted(ways.get(key, {("rgb", "none")}))
                known = cameras.get(slot)
                cameras[slot] = Camera(
                    key=key if known is None or known.key == key else f"{known.key}|{key}",
                    order=cast("object", first[0][0]),  # type: ignore[arg-type]
                    flip=cast("object", first[0][1]),  # type: ignore[arg-type]
                )
                kept[f"{dialect}:{slot}"] = {"key": key, "order_flip": [list(way) for way in first]}
        return dict(sorted(cameras.items(), key=lambda item: natural_key(item[0]))), kept

    def _describe_vectors(self, scans: Mapping[str, FileScan], dialect: str) -> dict[str, VectorSpec]:
        common: dict[str, Counter[tuple[tuple[str, ...], tuple[str, ...]]]] = {}
        appended = {ref.file for ref in self._refs if ref.locator.get("gripper")}
        for file, scan in scans.items():
            if scan.dialect != dialect:
                continue
            gripper = file in appended
            for episode in scan.episodes:
                if episode.fault is not None:
                    continue
                for vector, names in episode.names.items():
                    if vector == "gripper":
                        continue
                    extra = tuple(episode.names.get("gripper", ())) if vector == "state" and gripper else ()
                    kinds = () if vector == "action" and self._options.action else tuple(scan.kinds.get(vector, ()))
                    common.setdefault(vector, Counter())[(*names, *extra), kinds] += episode.frames
        specs = {}
        for vector, counter in common.items():
            names, kinds = counter.most_common(1)[0][0]
            if len({entry[1] for entry in counter}) > 1 or len(kinds) != len(names):
                kinds = ()
            specs[vector] = VectorSpec(names=names, kinds=cast("tuple[DimensionKind, ...]", kinds))
        return specs

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one episode.

        Raises:
            DataError: it is bad.
        """
        if ref.fault is not None:
            raise DataError(ref.fault, path=ref.file, where=ref.id)
        path = confined(self.files.root, ref.file)
        scan = (self._scans or {}).get(ref.file)
        dialect = all_dialects()[str(ref.locator["dialect"])]
        known = FileFacts(fps=scan.fps, fps_from=scan.fps_from, task=scan.task) if scan and scan.fps else None
        return open_episode(
            path,
            ref,
            dialect,
            self._options,
            known=known,
            slots=json.loads(str(ref.locator["cameras"])),
            gripper=bool(ref.locator["gripper"]),
        )

    def findings(self) -> list[tuple[str, str, str]]:
        """What ``wdsmix check`` should list beside the episodes' own faults: (check, subject, text)."""
        self.episodes()
        scans = self._scans or {}
        found = [(CHECKS["names"], "", text) for text in gaps(scans)]
        for file, scan in scans.items():
            if scan.fault is not None:
                found.append((CHECKS.get(scan.check, CHECKS["opens"]), file, scan.fault))
            if scan.fps_from == "default":
                found.append((CHECKS["rate"], file, f"not in the file; {scan.fps:g} frames/s assumed"))
            for episode in scan.episodes:
                subject = f"{file}{episode.group if episode.group != '/' else ''}"
                if episode.fault is not None and episode.fault_kind != "filter":
                    found.append((CHECKS.get(episode.check, CHECKS["fields"]), subject, episode.fault))
                found += [
                    (CHECKS["strings"], subject, text)
                    for text in episode.warnings
                    if "Latin-1" in text or text.startswith(REFUSED_CAMERA)
                ]
        return found

    def checks(self) -> Sequence[str]:
        """The lines of the table of ``wdsmix check``, in order."""
        return list(CHECKS.values())


def _stamp(path: Path) -> tuple[int, int] | None:
    """Size and time of a file; None where it can't be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime_ns


def _line(scan: FileScan) -> str:
    """A file's fault on one line."""
    text = scan.fault or ""
    if scan.unknown:
        tree = text.partition("; describe it with")[0]
        names = [line.strip() for line in tree.splitlines()[1:] if line.startswith("    ")]
        return "unknown structure: " + "; ".join(names[:8]) + "; see `wdsmix check hdf5` on that file alone"
    return text


def _by_dialect(scans: Mapping[str, FileScan]) -> dict[str, dict[str, FileScan]]:
    groups: dict[str, dict[str, FileScan]] = {}
    for file, scan in scans.items():
        groups.setdefault(scan.dialect, {})[file] = scan
    return groups


def _gather_facts(scans: Mapping[str, FileScan]) -> dict[str, object]:
    """What the files tell of themselves: ``{"facts": {name: values}}``; empty where they tell nothing."""
    facts: dict[str, dict[str, None]] = {}
    for scan in scans.values():
        for name, value in scan.details.items():
            if value not in ("", None):
                facts.setdefault(name, {})[str(value)] = None
    return (
        {"facts": {name: sorted(values, key=natural_key)[:_MAX_FACTS] for name, values in facts.items()}}
        if facts
        else {}
    )


def _gather_warnings(scans: Mapping[str, FileScan]) -> list[str]:
    places: dict[str, list[str]] = {}
    for file, scan in scans.items():
        texts = dict.fromkeys(scan.warnings)
        for episode in scan.episodes:
            texts.update(dict.fromkeys(episode.warnings))
        for text in texts:
            places.setdefault(text, []).append(file)
    return [
        f"{printable(files[0])}: {text}"
        if len(files) == 1
        else f"{text} ({len(files)} files, the first: {printable(files[0])})"
        for text, files in places.items()
    ]


def _capped(warnings: Sequence[str]) -> tuple[str, ...]:
    if len(warnings) <= _MAX_WARNINGS:
        return tuple(warnings)
    return (*warnings[:_MAX_WARNINGS], f"and {len(warnings) - _MAX_WARNINGS} more warnings")
