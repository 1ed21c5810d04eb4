"""GNM, ViNT and NoMaD folders: one a trajectory, numbered JPEGs beside ``traj_data.pkl``."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from wdsmix.converters.loose import LoosePictures, listing, picture_fault, refuse_link, repeats
from wdsmix.converters.nav.layout import Opened, Scan
from wdsmix.converters.nav.motion import ACTION, STATE, check_poses, pose_vectors, steps
from wdsmix.converters.nav.options import NavOptions
from wdsmix.converters.nav.pickles import read_poses
from wdsmix.converters.slots import natural_key

from wdsmix.errors import DataError

__all__ = ["CAMERA", "LIBRARIES", "NAME", "POSES", "RATE", "SPECS", "find", "fingerprint", "read", "scan"]

NAME = "gnm"
RATE = 4.0
SPECS = {"state": STATE, "action": ACTION}
POSES = True
LIBRARIES: tuple[str, ...] = ()
CAMERA = "image"
POSES_FILE = "traj_data.pkl"

_PICTURE = re.compile(r"(\d{1,9})\.jpe?g", re.IGNORECASE)
_TOPOMAP = re.compile(r"\d{1,9}\.png", re.IGNORECASE)
_DEPTH = 3
_TOLERANCE = 2


def find(root: Path) -> list[str]:
    """Folders that hold poses or numbered JPEGs; if there are some, also topomaps and empty folders beside them."""
    found: list[str] = []
    others: list[str] = []
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        depth = len(here.parts)
        folders[:] = [] if depth >= _DEPTH else [name for name in folders if not name.startswith(".")]
        if POSES_FILE in names or any(_PICTURE.fullmatch(name) for name in names):
            found.append(here.as_posix())
            folders.clear()
        elif any(_TOPOMAP.fullmatch(name) for name in names) or (depth and not names and not folders):
            others.append(here.as_posix())
    if not any((root / file / POSES_FILE).is_file() for file in found):
        return []
    return sorted([*found, *others], key=natural_key)


def has_pictures(folder: Path) -> bool:
    """Whether a folder holds numbered JPEGs."""
    return any(_PICTURE.fullmatch(name) for name in listing(folder))


def scan(root: Path, file: str, options: NavOptions) -> list[Scan]:
    """Counts pictures and poses of one folder."""
    folder = root / file
    made = Scan(id=folder.resolve().name, file=file, vectors={"state": 3, "action": 3}, cameras=(CAMERA,))
    try:
        names, positions, yaws, made.left_out = _load(root, folder, options)
        count = len(names)
        for k, name in enumerate(names):
            if fault := picture_fault(folder / name):
                raise DataError(f"bad picture {name}: {fault}", where=f"frame {k}")
        kept = np.arange(0, count, options.stride)
        if len(kept) < 2:
            raise DataError("too short", expected="2 frames or more", found=len(kept))
        made.frames = len(kept)
        made.steps = steps(positions[kept])
        made.repeats = int(repeats([folder / names[k] for k in kept.tolist()]).sum())
        made.notes = _notes(positions, yaws, made.left_out)
    except DataError as error:
        made.fault, made.left_out = _bare(error), 0
    except OSError as error:
        made.fault, made.left_out = f"can't be read: {error.strerror}", 0
    return [made]


def _bare(error: DataError) -> str:
    return str(DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint))


def _notes(positions: np.ndarray, yaws: np.ndarray, left_out: int) -> list[str]:
    notes = []
    if left_out:
        notes.append("pictures and poses differ in number by one or two; the longer is cut at its end")
    if len(yaws) and np.abs(yaws).max() > 60:
        notes.append("yaw beyond ten turns: are these radians?")
    far = steps(positions)
    if len(far) and far.max() > 10:
        notes.append("a step of more than 10 m between two frames")
    return notes


def _pictures(folder: Path) -> list[str]:
    """Names by number, which must run from 0 without a gap.

    Raises:
        DataError: they do not, or there are none.
    """
    numbered: dict[int, str] = {}
    other = 0
    for name in listing(folder):
        match = _PICTURE.fullmatch(name)
        if match is None:
            other += bool(_TOPOMAP.fullmatch(name))
            continue
        if int(match[1]) in numbered:
            raise DataError("two pictures of one number", found=f"{numbered[int(match[1])]} and {name}")
        numbered[int(match[1])] = name
    if not numbered:
        raise DataError("no pictures", expected="0.jpg, 1.jpg, ...", found=f"{other} PNG files" if other else None)
    gap = next((k for k in range(len(numbered)) if k not in numbered), None)
    if gap is not None:
        raise DataError("the pictures have a gap", expected=f"{gap}.jpg", found=f"{max(numbered)}.jpg as the last")
    return [numbered[k] for k in range(len(numbered))]


def _load(root: Path, folder: Path, options: NavOptions) -> tuple[list[str], np.ndarray, np.ndarray, int]:
    """Picture names, positions and yaws of the frames that all three have, and how many one of them has more.

    Raises:
        DataError: something is missing, or the lengths differ too much.
    """
    if not (folder / POSES_FILE).is_file():
        inside = listing(folder)
        if not inside:
            raise DataError("an empty folder: nothing was recorded, or the wrong topic was processed")
        if any(_TOPOMAP.fullmatch(name) for name in inside) and not any(_PICTURE.fullmatch(name) for name in inside):
            raise DataError(
                "a topomap, which holds no poses: nothing to train on", expected=POSES_FILE, found="PNGs only"
            )
        raise DataError(f"no {POSES_FILE}", found=f"{len(inside)} other files")
    names = _pictures(folder)
    for name in (POSES_FILE, *names):
        refuse_link(root, folder / name)
    positions, yaws, _ = read_poses(folder / POSES_FILE)
    lengths = {"pictures": len(names), "positions": len(positions), "yaws": len(yaws)}
    count, spread = min(lengths.values()), max(lengths.values()) - min(lengths.values())
    shown = ", ".join(f"{length} {name}" for name, length in lengths.items())
    if spread > (0 if options.strict else _TOLERANCE):
        raise DataError(
            "lengths differ",
            expected="equal ones" if options.strict else f"at most {_TOLERANCE} apart",
            found=shown,
        )
    positions, yaws = positions[:count], yaws[:count]
    check_poses(positions, yaws)
    return names[:count], positions, yaws, spread


def read(root: Path, file: str, locator: Mapping[str, str | int], options: NavOptions) -> Opened:
    """Opens one folder."""
    folder = root / file
    names, positions, yaws, _ = _load(root, folder, options)
    kept = np.arange(0, len(names), options.stride)
    return Opened(
        vectors=pose_vectors(positions[kept], yaws[kept]),
        images={CAMERA: LoosePictures(folder=folder, names=names)},
        rows=kept,
        task=options.instruction,
    )


def fingerprint(root: Path, file: str) -> bytes:
    """Hash over names and sizes, and all of the poses."""
    total = hashlib.sha256()
    folder = root / file
    for entry in sorted(os.scandir(folder), key=lambda item: item.name):
        if entry.is_file():
            total.update(f"{entry.name}\0{entry.stat().st_size}\0".encode("utf-8", "surrogateescape"))
    poses = folder / POSES_FILE
    if poses.is_file():
        with poses.open("rb") as stream:
            while block := stream.read(1 << 20):
                total.update(block)
    return total.digest()
