"""The source: navigation data of one layout."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
from wdsmix.converters.isolate import Isolated
from wdsmix.converters.nav import vamos
from wdsmix.converters.nav.detect import LAYOUTS, detect
from wdsmix.converters.nav.layout import Scan
from wdsmix.converters.nav.motion import KNOWN_SPACING, Spacing
from wdsmix.converters.nav.options import NavOptions
from wdsmix.converters.nav.splits import read_splits
from wdsmix.converters.slots import assign_slots, named_camera, natural_key

from wdsmix.episode import Camera, Episode, EpisodeRef, SourceInfo
from wdsmix.errors import ConfigError, DataError
from wdsmix.texts import counted

__all__ = ["NavSource"]

_MAX_WARNINGS = 50
_RATIO = (0.5, 2.0)


class NavSource:
    """Navigation data (a `wdsmix.converters.base.Source`). Pickles; holds no open file.

    Args:
        path: Folder, or one file.
        options: Of the family.
        splits: Trajectory -> split, where a list is given.
        quiet: No progress bar.
    """

    def __init__(self, path: Path, options: NavOptions, *, splits: Path | None = None, quiet: bool = True) -> None:
        if not path.exists():
            raise DataError("no such file or folder", path=path)
        self._given = path
        self._options = options
        self._quiet = quiet
        self._root = path if path.is_dir() else path.resolve().parent
        self._splits = None if splits is None else read_splits(splits, self.name)
        self._found: tuple[str, list[str]] | None = None
        self._scans: list[Scan] | None = None
        self._fps = 0.0
        self._slots: dict[str, str] = {}

    def __getstate__(self) -> dict[str, object]:
        state = self.__dict__.copy()
        if self._scans is not None:
            state.update(_scans=[], _splits=None)
        return state

    @property
    def path(self) -> Path:
        """The file or folder that is read."""
        return self._given

    @property
    def name(self) -> str:
        """Short name of the dataset."""
        return self._given.resolve().name if self._given.is_dir() else self._given.stem

    @property
    def libraries(self) -> tuple[str, ...]:
        """Packages whose versions belong in the manifest."""
        return tuple(self._layout().LIBRARIES)

    def _files(self) -> list[str]:
        if self._found is None:
            if self._given.is_file():
                own = [self._given.resolve().name]
                layout = next((l for l, test in _SINGLE if test(self._given)), None)
                if layout is None:
                    raise DataError("no layout that is known", path=self._given, expected="a RECON or VAMOS file")
                self._found = layout.NAME, own
            else:
                layout, files = detect(self._root)
                self._found = layout.NAME, files
        return self._found[1]

    def _layout(self) -> ModuleType:
        self._files()
        name = self._found[0] if self._found else ""
        return next(layout for layout in LAYOUTS if name == layout.NAME)

    def arguments(self) -> Mapping[str, object]:
        """The options of the family; of the split its digest."""
        given = None
        if self._splits is not None:
            given = hashlib.sha256(repr(sorted(self._splits.items())).encode()).hexdigest()[:16]
        return {**self._options.arguments(), "splits": given}

    def fingerprint(self) -> str:
        """Hash over names and sizes of all files, and what is small of their content."""
        total = hashlib.sha256()
        for file in self._files():
            total.update(file.encode("utf-8", "surrogateescape") + b"\0")
            total.update(self._layout().fingerprint(self._root, file))
        return total.hexdigest()

    def inputs(self) -> list[Path]:
        """All files that are read."""
        found: list[Path] = []
        for file in self._files():
            path = self._root / file
            if path.is_dir():
                found += sorted(own for own in path.rglob("*") if own.is_file())
            else:
                found.append(path)
        return found

    def _check_options(self, layout: ModuleType) -> None:
        """Refuses options that this layout has no use for.

        Raises:
            ConfigError: one is given.
        """
        given = self._options
        useless = {"--path-points": given.path_points != 5, "--task": bool(given.tasks)}
        if not layout.POSES:
            useless = {"--stride": given.stride != 1, "--spacing": bool(given.spacing), "--strict": given.strict}
        for option, there in useless.items():
            if there:
                raise ConfigError(f"has no meaning for the layout {layout.NAME}", where=option)

    def _scan(self) -> list[Scan]:
        from wdsmix.progress import Progress

        if self._scans is None:
            self._check_options(self._layout())
            layout, files, scans = self._layout(), self._files(), []
            with Progress(len(files), "trajectories", "scan", quiet=self._quiet or len(files) < 50) as bar:
                for found in self._scanned(layout, files):
                    scans += found
                    bar.advance(1)
            self._scans = scans
            self._fps = self._rate(scans)
            self._slots = self._assign(scans)
        return self._scans

    def _scanned(self, layout: ModuleType, files: Sequence[str]) -> Iterator[list[Scan]]:
        """Each file's trajectories; files of HDF5 are looked at in a process that they may crash."""
        if "h5py" not in layout.LIBRARIES:
            for file in files:
                yield layout.scan(self._root, file, self._options)
            return
        with Isolated() as child:
            for file in files:
                try:
                    yield child.call(layout.scan, self._root, file, self._options)
                except DataError as error:
                    yield [Scan(id=Path(file).stem, file=file, fault=error.message, fault_kind="file")]

    def _rate(self, scans: Sequence[Scan]) -> float:
        """Frames per second of what is stored."""
        layout = self._layout()
        if self._options.fps:
            return self._options.fps / self._options.stride
        measured = [scan.rate for scan in scans if scan.rate]
        if measured:
            return float(np.round(np.median(measured), 1)) or 1.0
        return float(layout.RATE / (self._options.stride if layout.POSES else 1))

    def _assign(self, scans: Sequence[Scan]) -> dict[str, str]:
        keys = sorted({key for scan in scans if scan.fault is None for key in scan.cameras}, key=natural_key)
        if not self._options.cameras:
            first = keys[:1]  # of a stereo pair the left one: there is no wrist
            return assign_slots(first, primary=lambda _: 0, wrist=lambda _: False)
        slots = {}
        for slot, wanted in self._options.cameras.items():
            key = named_camera(wanted, keys)
            if key is None and keys:
                raise ConfigError(
                    "no such camera", where="--camera", expected=f"one of: {', '.join(keys)}", found=wanted
                )
            if key is not None:
                slots[slot] = key
        return slots

    def episodes(self) -> list[EpisodeRef]:
        """All trajectories, in natural order.

        Raises:
            ConfigError: an option does not fit.
            DataError: no layout that is known.
        """
        return [self._ref(scan) for scan in self._scan()]

    def _ref(self, scan: Scan) -> EpisodeRef:
        split = scan.split if self._splits is None else self._splits.get(scan.id)
        file = self.name if scan.file == "." else scan.file
        if scan.fault is not None:
            return EpisodeRef(
                id=scan.id, file=file, frames=0, split=split, fault=scan.fault, fault_kind=scan.fault_kind
            )
        return EpisodeRef(
            id=scan.id,
            file=file,
            frames=scan.frames,
            vectors=dict(scan.vectors),
            cameras=tuple(slot for slot, key in self._slots.items() if key in scan.cameras),
            split=split,
            locator={**scan.locator, "file": scan.file},
        )

    def describe(self) -> SourceInfo:
        """Rate, vectors, spacing, and what should be known."""
        scans = self._scan()
        layout = self._layout()
        good = [scan for scan in scans if scan.fault is None]
        warnings: list[str] = []
        report: dict[str, str] = {}
        details: dict[str, object] = {"layout": layout.NAME, "report": report}
        if layout.POSES:
            details["navigation"] = self._spacing(good, report, warnings)
            details["rate"] = self._told_rate(good, report, warnings)
            details["pictures"] = _pictures(good, report, warnings)
        else:
            details["rows"] = "each is one picture and its future path, an episode of one frame"
            details["path"] = {"points": self._options.path_points, "resampled": "at equal distances, ends included"}
        warnings += _notes(good)
        warnings += self._told_splits(scans)
        specs = dict(layout.SPECS) if layout.POSES else vamos.specs(self._options.path_points)
        return SourceInfo(
            name=self.name,
            kind=f"nav/{layout.NAME}",
            fps=self._fps,
            embodiment={"recon": "jackal", "frodobots": "frodobots"}.get(layout.NAME, ""),
            vectors=specs,
            cameras={slot: Camera(key=key) for slot, key in self._slots.items()},
            details=details,
            warnings=tuple(warnings[:_MAX_WARNINGS]),
        )

    def _spacing(self, good: Sequence[Scan], report: dict[str, str], warnings: list[str]) -> dict[str, object]:
        spacing = Spacing()
        for scan in good:
            if scan.steps is not None:
                spacing.add(scan.steps)
        stride = self._options.stride
        named = KNOWN_SPACING.get(self.name.lower())
        asked, origin = self._options.spacing, "--spacing"
        if not asked and named is not None:
            asked, origin = named, "the field's data_config.yaml, by the dataset's name"
        measured = spacing.mean
        if asked:
            asked *= stride
        if asked and measured and not _RATIO[0] <= asked / measured <= _RATIO[1]:
            warnings.append(
                f"spacing {asked:g} m ({origin}) is {asked / measured:.2g} times the measured {measured:.4g} m between "
                "stored frames: waypoints are divided by it"
            )
        if not asked and not measured:
            warnings.append("nothing moves: no spacing could be measured; give --spacing")
        taken = asked or measured
        report["spacing"] = f"{taken:.4g} m a frame ({origin if asked else 'measured'}), measured {measured:.4g} m"
        return {
            "form": "body_steps",
            "spacing": taken,
            "spacing_from": origin if asked else "measured",
            "measured_spacing": measured,
            "stride": stride,
        }

    def _told_rate(self, good: Sequence[Scan], report: dict[str, str], warnings: list[str]) -> dict[str, object]:
        measured = [scan.rate for scan in good if scan.rate]
        median = float(np.median(measured)) if measured else None
        if self._options.fps:
            origin = "--fps"
            if median and abs(self._options.fps / self._options.stride - median) > 0.1 * median:
                warnings.append(f"--fps {self._options.fps:g} was given, {median:.3g} frames/s were measured")
        elif median:
            origin = "measured"
        else:
            origin = "default"
            warnings.append(
                f"these files hold no times: {self._fps:g} frames/s are assumed; --fps tells the rate of the recording"
            )
        report["rate"] = f"{self._fps:g} frames/s ({origin})"
        return {"taken": self._fps, "from": origin, "measured": None if median is None else round(median, 4)}

    def _told_splits(self, scans: Sequence[Scan]) -> list[str]:
        if self._splits is None:
            return []
        there = {scan.id for scan in scans}
        absent = [name for name in self._splits if name not in there]
        outside = [name for name in sorted(there, key=natural_key) if name not in self._splits]
        told = []
        if absent:
            told.append(f"{len(absent)} of {len(self._splits)} names of the split have no folder, such as {absent[0]}")
        if outside:
            told.append(
                f"{counted(len(outside), 'trajectory is', 'trajectories are')} in no list of the split, "
                f"such as {outside[0]}"
            )
        return told

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one trajectory.

        Raises:
            DataError: it is bad.
        """
        if ref.fault is not None:
            raise DataError(ref.fault, path=ref.file, where=ref.id)
        opened = self._layout().read(self._root, str(ref.locator["file"]), ref.locator, self._options)
        images = {slot: opened.images[key] for slot, key in self._slots.items() if key in opened.images}
        return Episode(
            fps=self._fps,
            vectors=opened.vectors,
            images=images,
            cameras={slot: Camera(key=self._slots[slot]) for slot in images},
            tasks=(opened.task,),
            timestamps=opened.timestamps,
            extras=opened.extras,
            rows=opened.rows,
            close=opened.close,
        )


def _pictures(good: Sequence[Scan], report: dict[str, str], warnings: list[str]) -> dict[str, object]:
    frames, same = sum(scan.frames for scan in good), sum(scan.repeats for scan in good)
    left_out = sum(scan.left_out for scan in good)
    report["pictures"] = f"{same} of {frames} repeat the one before; {counted(left_out, 'frame')} left out"
    if frames and same > 0.05 * frames:
        warnings.append(
            f"{same} of {frames} pictures repeat the one before: recorded faster than the camera gives them; "
            "--stride takes fewer"
        )
    return {"frames": frames, "repeats": same, "left_out": left_out}


def _notes(good: Sequence[Scan]) -> list[str]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for scan in good:
        for note in scan.notes:
            counts[note] += 1
            first.setdefault(note, scan.id)
    return [f"{first[note]}: {note}" + (f" ({count} such)" if count > 1 else "") for note, count in counts.items()]


def _is_recon(path: Path) -> bool:
    from wdsmix.converters.nav import recon

    if path.suffix not in (".hdf5", ".h5"):
        return False
    with Isolated() as child:
        try:
            return child.call(recon.is_recon, path)
        except DataError:
            return False


def _is_vamos(path: Path) -> bool:
    return path.suffix == ".parquet" and vamos.is_vamos(path)


_SINGLE = tuple(
    (layout, test)
    for layout in LAYOUTS
    for test in ({"recon": _is_recon, "vamos": _is_vamos}.get(layout.NAME),)
    if test is not None
)
