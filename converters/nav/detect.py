"""Which layout a source has; what is known and not read is refused by its name."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from wdsmix.converters.nav import frodobots, gnm, recon, vamos

from wdsmix.errors import DataError

__all__ = ["LAYOUTS", "detect"]

LAYOUTS: tuple[ModuleType, ...] = (gnm, frodobots, recon, vamos)

_DEPTH = 3
_NAMES = 4000
_WHAT = "GNM/ViNT/NoMaD folders, RECON HDF5 files, VAMOS parquet files or FrodoBots rides"

_Names = list[str]


def _ends(*suffixes: str) -> Callable[[_Names], bool]:
    return lambda names: any(name.endswith(suffixes) for name in names)


def _like(pattern: str) -> Callable[[_Names], bool]:
    return lambda names: any(re.search(pattern, name) for name in names)


_KNOWN: tuple[tuple[str, str, Callable[[_Names], bool]], ...] = (
    ("a LeRobot dataset", "use `wdsmix convert lerobot`", _like(r"(^|/)meta/info\.json$")),
    ("FrodoBots-7K (a zarr cache)", "its LeRobot part can be read by `wdsmix convert lerobot`", _like(r"\.zarr(/|$)")),
    ("ROS bags", "bring them to GNM folders first (process_bags.py of visualnav-transformer)", _ends(".bag", ".db3")),
    ("an RLDS dataset", "take the original recordings instead", _like(r"\.tfrecord|dataset_info\.json$")),
    (
        "LeLaN (object poses beside pictures)",
        "it holds no robot poses",
        _like(r"(^|/)pickle(_nomad)?/\d+\.pkl$"),
    ),
    ("BDD as OmniVLA uses it", "it holds no robot poses", _like(r"(^|/)gps\.json$")),
    ("CAST trajectories (npz)", "their arrays are pickled objects, which are never loaded", _like(r"traj_\d+\.npz$")),
    (
        "CityWalker (videos and poses of a camera)",
        "its poses have no scale",
        _like(r"(^|/)(poses|pose_label)/[^/]*\.txt$"),
    ),
    ("NaVILA (pictures and annotations.json)", "it holds no poses", _like(r"(^|/)annotations\.json$")),
    (
        "TartanDrive in KITTI form",
        "it has no traj_data.pkl; take the bags through process_bags.py",
        _like(r"(image_left_color|gridmap|rgb_map|cmd)/[^/]*(\.npy|\.png)$"),
    ),
    ("a Unitree recording", "use `wdsmix convert unitree`", _like(r"(^|/)data\.json$")),
    (
        "a topomap: pictures without poses",
        "it is a map for the robot to follow, not data to train on",
        _like(r"(^|/)\d+\.png$"),
    ),
)


def detect(root: Path) -> tuple[ModuleType, list[str]]:
    """The layout of a source, and its trajectories (or files of them).

    Raises:
        DataError: none that is known, or one that is known and not read; says which.
    """
    found = {layout: files for layout in LAYOUTS if (files := layout.find(root))}
    if len(found) > 1:
        shown = ", ".join(f"{len(files)} of {layout.NAME}" for layout, files in found.items())
        raise DataError("two layouts in one source", path=root, found=shown, hint="convert them one by one")
    if found:
        return next(iter(found.items()))
    names = _names(root)
    if not names:
        raise DataError("an empty folder", path=root, expected=_WHAT)
    for what, hint, test in _KNOWN:
        if test(names):
            raise DataError(f"{what} is not read by this family", path=root, expected=_WHAT, hint=hint)
    if any(gnm.has_pictures(root / name) for name in _folders(root)):
        raise DataError("numbered pictures without traj_data.pkl: no poses", path=root, expected=_WHAT, found=names[0])
    raise DataError("no layout that is known", path=root, expected=_WHAT, found=", ".join(names[:6]))


def _folders(root: Path) -> list[str]:
    return [".", *(entry.name for entry in os.scandir(root) if entry.is_dir())]


def _names(root: Path) -> list[str]:
    """The first names below the root."""
    names: list[str] = []
    for folder, folders, files in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        folders[:] = [] if len(here.parts) >= _DEPTH else sorted(folders)
        names += [(here / name).as_posix() for name in [*sorted(files)[:200], *(f for f in folders if "." in f)]]
        if len(names) > _NAMES:
            break
    return names
