"""The source: raw teleoperation recordings, an episode a folder."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from wdsmix.converters.loose import LoosePictures, refuse_link
from wdsmix.converters.relation import EpisodeRelation, Relation, relate
from wdsmix.converters.slots import assign_slots, named_camera, natural_key
from wdsmix.converters.unitree.find import PICTURE_FOLDERS, Place, find_places, fingerprint
from wdsmix.converters.unitree.options import UnitreeOptions
from wdsmix.converters.unitree.recording import RawEpisode, load_episode
from wdsmix.converters.unitree.report import Report
from wdsmix.converters.unitree.tables import part_names

from wdsmix.episode import Camera, DimensionKind, Episode, EpisodeRef, SourceInfo, VectorSpec
from wdsmix.errors import ConfigError, DataError

__all__ = ["RawSource", "Scan", "scan_place"]

_DEFAULT_FPS = 30.0
_PARALLEL_BYTES = 64 << 20
_MAX_WARNINGS = 50
_KIND: DimensionKind = "absolute"


@dataclass(kw_only=True, slots=True)
class Scan:
    """One recording, without its rows."""

    place: Place
    fault: str | None = None
    kind: str = "episode"
    frames: int = 0
    items: int = 0
    widths: Mapping[str, int] = field(default_factory=dict)
    parts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    part_widths: Mapping[str, Sequence[int]] = field(default_factory=dict)
    cameras: Sequence[str] = ()
    fps: float = 0.0
    relation: EpisodeRelation | None = None
    episode: RawEpisode | None = None
    """Its facts; rows and vectors are gone."""

    @property
    def signature(self) -> tuple[object, ...]:
        """What state and action are made of."""
        made = [(name, tuple(self.parts[name]), tuple(self.part_widths[name])) for name in ("state", "action")]
        return tuple(made)


def scan_place(place: Place, root: Path, options: UnitreeOptions) -> Scan:
    """Reads one recording for its facts."""
    scan = Scan(place=place)
    if place.failed and not options.keep_failed:
        scan.fault, scan.kind = "marked as FAILED by the recorder (--keep-failed takes it)", "filter"
        return scan
    if not place.file:
        scan.fault = "no data.json: the recorder stopped before it wrote any"
        return scan
    try:
        refuse_link(root, root / place.folder / place.file)
        found = load_episode(root / place.folder, place.file, options)
        if len(found.rows) < 2:
            raise DataError("too short", expected="2 frames or more", found=len(found.rows))
    except DataError as error:
        scan.fault = str(
            DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint)
        )
        return scan
    except OSError as error:
        scan.fault = f"can't be read: {error.strerror}"
        return scan
    scan.frames, scan.items = len(found.rows), len(found.idx)
    scan.widths = {name: values.shape[1] for name, values in found.vectors.items()}
    scan.parts, scan.part_widths, scan.cameras, scan.fps = found.parts, found.widths, tuple(found.files), found.fps
    scan.relation = relate(found.vectors["state"], found.vectors["action"])
    found.vectors, found.files, found.rows, found.idx = {}, {}, np.empty(0, np.int64), []
    scan.episode = found
    return scan


def _is_wrist(keys: Sequence[str], key: str) -> bool:
    """Whether a camera is one of a wrist: by its name, else by its place among ``color_k``."""
    low = key.lower()
    if any(word in low for word in ("wrist", "hand", "gripper")):
        return True
    numbered = sorted((k for k in keys if k.startswith("color_")), key=natural_key)
    return key in numbered and numbered.index(key) >= (2 if len(numbered) >= 4 else 1)


class RawSource:
    """Raw recordings (a `wdsmix.converters.base.Source`). Pickles; holds no open file.

    Args:
        path: Folder, or the JSON file of one episode.
        options: Of the family.
        workers: Processes that scan, where there is much to read.
        quiet: No progress bar.
    """

    libraries: tuple[str, ...] = ()

    def __init__(self, path: Path, options: UnitreeOptions, *, workers: int = 1, quiet: bool = True) -> None:
        self._given = path
        self._root = path if path.is_dir() else path.resolve().parent
        self._options = options
        self._workers = max(1, workers)
        self._quiet = quiet
        self._scans: list[Scan] | None = None
        self._fps = self._asked = 0.0
        self._slots: dict[str, str] = {}

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_scans": None if self._scans is None else []}

    @property
    def path(self) -> Path:
        """The folder or file that is read."""
        return self._given

    def _places(self) -> list[Place]:
        if self._given.is_file():
            return [Place(folder=".", file=self._given.resolve().name)]
        places = find_places(self._root)
        if not places:
            raise DataError("no episode", path=self._root, expected="folders that hold data.json")
        return places

    def arguments(self) -> Mapping[str, object]:
        """The options of the family."""
        return self._options.arguments()

    def fingerprint(self) -> str:
        """Hash over data.json files, and names and sizes of pictures."""
        return fingerprint(self._root, self._places())

    def inputs(self) -> list[Path]:
        """All files that are read."""
        found: list[Path] = []
        for place in self._places():
            folder = self._root / place.folder
            found += [folder / place.file] if place.file else []
            for inner in PICTURE_FOLDERS:
                if (folder / inner).is_dir():
                    found += sorted(own for own in (folder / inner).iterdir() if own.is_file())
        return found

    def _scan(self) -> list[Scan]:
        from wdsmix.progress import Progress

        if self._scans is None:
            places = self._places()
            scans = []
            with Progress(len(places), "episodes", "scan", quiet=self._quiet or len(places) < 20) as bar:
                for scan in self._scanned(places):
                    scans.append(scan)
                    bar.advance(1)
            self._settle(scans)
            self._scans = scans
        return self._scans

    def _scanned(self, places: Sequence[Place]) -> Iterator[Scan]:
        work = partial(scan_place, root=self._root, options=self._options)
        size = sum((self._root / p.folder / p.file).stat().st_size for p in places if self._exists(p))
        if self._workers == 1 or len(places) < 4 or size < _PARALLEL_BYTES:
            yield from map(work, places)
            return
        with ProcessPoolExecutor(self._workers, mp_context=multiprocessing.get_context("spawn")) as pool:
            yield from pool.map(work, places)

    def _exists(self, place: Place) -> bool:
        return bool(place.file) and os.path.exists(self._root / place.folder / place.file)  # noqa: PTH110 - a dangling link is no file

    def _settle(self, scans: Sequence[Scan]) -> None:
        """Rate, slots, and what most frames have; others become faults."""
        good = [scan for scan in scans if scan.fault is None]
        frames: Counter[float] = Counter()
        shapes: Counter[tuple[object, ...]] = Counter()
        for scan in good:
            frames[scan.fps] += scan.frames
            shapes[scan.signature] += scan.frames
        told = {rate: count for rate, count in frames.items() if rate}
        self._asked = max(told, key=lambda rate: told[rate]) if told else 0.0
        usual = shapes.most_common(1)[0][0] if shapes else ()
        for scan in good:
            if not self._options.fps and scan.fps and abs(scan.fps - self._asked) > 1e-3 * self._asked:
                scan.fault = (
                    f"recorded for {scan.fps:g} frames/s, most of the source for {self._asked:g}: convert it apart, or "
                    "give --fps"
                )
            elif scan.signature != usual:
                scan.fault = (
                    f"its vectors are made of {_spelled(scan.signature)}, most of the source's of {_spelled(usual)}"
                )
        self._fps = self._options.fps or self._asked or _DEFAULT_FPS
        if self._options.dedupe:
            kept = sum(scan.frames for scan in good)
            total = kept + sum(s.episode.left_out.get("repeated pictures", 0) for s in good if s.episode)
            self._fps = float(f"{self._fps * kept / total:.3g}") if total else self._fps
        self._slots = self._assign([scan for scan in good if scan.fault is None])

    def _assign(self, good: Sequence[Scan]) -> dict[str, str]:
        keys = sorted({key for scan in good for key in scan.cameras}, key=natural_key)
        colour = [key for key in keys if not key.startswith("depth")]
        if not self._options.cameras:
            slots = assign_slots(colour, primary=lambda key: int("head" not in key), wrist=partial(_is_wrist, colour))
            depth = [key for key in keys if key not in colour]
            return {**slots, **{f"cam{len(slots) + k}": key for k, key in enumerate(depth)}}
        slots = {}
        for slot, wanted in self._options.cameras.items():
            key = named_camera(wanted, keys)
            if key is None and good:
                there = ", ".join(keys) or "none of these episodes has a camera of these names"
                raise ConfigError("no such camera", where="--camera", expected=f"one of: {there}", found=wanted)
            if key is not None:
                slots[slot] = key
        return slots

    def episodes(self) -> list[EpisodeRef]:
        """All recordings, in natural order of their folders.

        Raises:
            ConfigError: an option does not fit.
            DataError: there is none.
        """
        return [self._ref(scan) for scan in self._scan()]

    def _ref(self, scan: Scan) -> EpisodeRef:
        name = (self._root / scan.place.folder).resolve().name
        file = name if scan.place.folder == "." else scan.place.folder
        if scan.fault is not None:
            kind: Literal["filter", "episode"] = "filter" if scan.kind == "filter" else "episode"
            return EpisodeRef(id=name, file=file, frames=0, fault=scan.fault, fault_kind=kind)
        return EpisodeRef(
            id=name,
            file=file,
            frames=scan.frames,
            vectors=dict(scan.widths),
            cameras=tuple(slot for slot, key in self._slots.items() if key in scan.cameras),
            locator={"folder": scan.place.folder, "file": scan.place.file},
        )

    def describe(self) -> SourceInfo:
        """Rate, vectors, cameras, and what the recordings tell of themselves."""
        scans = self._scan()
        good = [scan for scan in scans if scan.fault is None]
        vectors = self._specs(good)
        relation = Relation(episodes=[scan.relation for scan in good if scan.relation is not None])
        report = Report(
            options=self._options,
            fps=self._fps,
            asked=self._asked,
            names={name: vectors[name].names for name in ("state", "action") if name in vectors},
        )
        report.tell(
            [scan.episode for scan in good if scan.episode is not None],
            [(scan.place.folder, scan.frames, scan.items, scan.cameras) for scan in good],
            relation,
        )
        return SourceInfo(
            name=self._root.resolve().name if self._given.is_dir() else self._given.stem,
            kind="unitree/raw",
            fps=self._fps,
            embodiment=self._options.robot,
            vectors=vectors,
            cameras={slot: _camera(key) for slot, key in self._slots.items()},
            details=report.details,
            warnings=tuple(report.warnings[:_MAX_WARNINGS]),
        )

    def _specs(self, good: Sequence[Scan]) -> dict[str, VectorSpec]:
        specs: dict[str, VectorSpec] = {}
        for scan in good:
            for name in scan.widths:
                if name not in specs and scan.episode is not None:
                    specs[name] = self._spec(scan, scan.episode, name)
        return specs

    def _spec(self, scan: Scan, episode: RawEpisode, name: str) -> VectorSpec:
        names: list[str] = []
        units: list[str] = []
        for part, width in zip(scan.parts[name], scan.part_widths[name], strict=True):
            bare, _, of = part.partition(".")
            given = episode.joint_names.get(bare, ())
            own = tuple(given) if len(given) == width else part_names(bare, width, self._options.robot)
            names += [f"{text}.{of}" if of else text for text in own]
            unit = {"": "rad", "qvel": "rad/s", "torque": "Nm"}.get(of, "")
            turns = bare.endswith("_arm") or (bare.endswith("_ee") and width != 6) or bare == "waist"
            units += [unit if turns else ""] * width
        return VectorSpec(names=tuple(names), units=tuple(units), kinds=(_KIND,) * len(names))

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one recording.

        Raises:
            DataError: it is bad.
        """
        if ref.fault is not None:
            raise DataError(ref.fault, path=ref.file, where=ref.id)
        folder = self._root / str(ref.locator["folder"])
        found = load_episode(folder, str(ref.locator["file"]), self._options)
        slots = {slot: key for slot, key in self._slots.items() if key in found.files}
        idx = np.array(found.idx, np.int64)[found.rows]
        rate = self._options.fps or found.fps or self._asked or self._fps
        extras: dict[str, object] = dict(found.extras)
        if found.recovered:
            extras["recovered"] = True
        if left_out := sum(found.left_out.values()):
            extras["frames_left_out"] = left_out
        return Episode(
            fps=self._fps,
            vectors=found.vectors,
            images={slot: LoosePictures(folder=folder, names=found.files[key]) for slot, key in slots.items()},
            cameras={slot: _camera(key) for slot, key in slots.items()},
            tasks=(found.task,),
            timestamps=(idx - idx[0]) / rate,
            extras=extras,
            frame_extras={"idx": idx.tolist()},
            rows=found.rows,
        )


def _camera(key: str) -> Camera:
    return Camera(key=key, kind="depth" if key.startswith("depth") else "rgb")


def _spelled(signature: tuple[object, ...]) -> str:
    state = signature[0]
    if not isinstance(state, tuple):
        return "nothing"
    return " + ".join(f"{part} {width}" for part, width in zip(state[1], state[2], strict=True))
