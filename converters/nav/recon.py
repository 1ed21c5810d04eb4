"""RECON HDF5 files: one a trajectory, JPEGs in fixed-length rows, the Jackal's odometry beside them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.images import Hdf5Images, survey
from wdsmix.converters.hdf5.safe import Tree
from wdsmix.converters.isolate import Isolated
from wdsmix.converters.loose import ends_of, refuse_link
from wdsmix.converters.nav.layout import Opened, Scan
from wdsmix.converters.nav.motion import ACTION, STATE, check_poses, pose_vectors, steps
from wdsmix.converters.nav.options import NavOptions
from wdsmix.converters.slots import natural_key

from wdsmix.episode import ImageStream, VectorSpec
from wdsmix.errors import DataError

__all__ = ["LIBRARIES", "NAME", "POSES", "RATE", "SPECS", "find", "fingerprint", "read", "scan"]

NAME = "recon"
RATE = 4.0
SPECS = {
    "state": STATE,
    "action": ACTION,
    "command": VectorSpec(
        names=("linear_velocity", "angular_velocity"), units=("m/s", "rad/s"), kinds=("absolute", "absolute")
    ),
}
POSES = True
LIBRARIES = ("h5py",)

_CAMERAS = ("rgb_left", "rgb_right")
_SUFFIXES = (".hdf5", ".h5")
_TOLERANCE = 2
_DEPTH = 3
_LOOKED_AT = 20


def find(root: Path) -> list[str]:
    """HDF5 files, if one of the first that can be read holds the Jackal's odometry."""
    files: list[str] = []
    for folder, folders, names in os.walk(root, followlinks=False):
        here = Path(folder).relative_to(root)
        folders[:] = [] if len(here.parts) >= _DEPTH else [name for name in folders if not name.startswith(".")]
        files += [(here / name).as_posix() for name in names if name.endswith(_SUFFIXES)]
    files.sort(key=natural_key)
    if not files:
        return []
    with Isolated() as child:
        return files if any(_is_recon(child, root / file) for file in files[:_LOOKED_AT]) else []


def _is_recon(child: Isolated, path: Path) -> bool:
    try:
        return path.is_file() and child.call(is_recon, path)
    except DataError:
        return False


def is_recon(path: Path) -> bool:
    """Whether a file is one of RECON's."""
    try:
        with Tree(path) as tree:
            return tree.dataset("jackal/position") is not None and tree.dataset("jackal/yaw") is not None
    except Hdf5Error:
        return False


def scan(root: Path, file: str, options: NavOptions) -> list[Scan]:
    """Reads the odometry of one file, and how many pictures it has."""
    made = Scan(id=Path(file).stem, file=file)
    try:
        refuse_link(root, root / file)
        with Tree(root / file) as tree:
            if tree.dataset("jackal/position") is None:
                raise DataError("no RECON file", expected="jackal/position", found=_names(tree))
            count, positions, _, command, made.left_out = _load(tree, options)
            made.cameras = tuple(key for key in _CAMERAS if tree.dataset(f"images/{key}") is not None)
        kept = np.arange(0, count, options.stride)
        if len(kept) < 2:
            raise DataError("too short", expected="2 frames or more", found=len(kept))
        made.frames, made.steps = len(kept), steps(positions[kept])
        made.vectors = {"state": 3, "action": 3, **({"command": 2} if command is not None else {})}
    except DataError as error:
        made.fault = str(
            DataError(error.message, where=error.where, expected=error.expected, found=error.found, hint=error.hint)
        )
        made.fault_kind = "file" if getattr(error, "check", "") == "opens" else "episode"
        made.left_out = 0
    return [made]


def _names(tree: Tree) -> str:
    return ", ".join(line.strip().split("  ")[0] for line in tree.lines(6))


def _load(
    tree: Tree, options: NavOptions
) -> tuple[int, npt.NDArray[np.float64], npt.NDArray[np.float64], npt.NDArray[np.float32] | None, int]:
    """Frames that all streams have, positions, yaws, command, and how many rows one stream has more.

    Raises:
        DataError: a stream is missing, or the lengths differ too much.
    """
    positions = np.asarray(tree.read_vector("jackal/position"), np.float64)
    yaws = np.asarray(tree.read_vector("jackal/yaw"), np.float64)
    if positions.ndim != 2 or positions.shape[1] < 2:
        raise DataError("not positions", where="jackal/position", expected="[T, 2 or 3]", found=list(positions.shape))
    yaws = yaws.reshape(len(yaws), -1)[:, 0]
    lengths = {"positions": len(positions), "yaws": len(yaws)}
    for key in _CAMERAS:
        if tree.dataset(f"images/{key}") is not None:
            lengths[key] = survey(tree, f"images/{key}").rows
    if len(lengths) == 2:
        raise DataError("no pictures", expected="images/rgb_left", found=_names(tree))
    count, spread = min(lengths.values()), max(lengths.values()) - min(lengths.values())
    if spread > (0 if options.strict else _TOLERANCE):
        raise DataError(
            "lengths differ",
            expected="equal ones" if options.strict else f"at most {_TOLERANCE} apart",
            found=", ".join(f"{length} {name}" for name, length in lengths.items()),
        )
    positions, yaws = positions[:count, :2], yaws[:count]
    check_poses(positions, yaws)
    return count, positions, yaws, _command(tree, count), spread


def _command(tree: Tree, count: int) -> npt.NDArray[np.float32] | None:
    """float32 [T, 2]: commanded linear and angular velocity, where they are whole."""
    columns = []
    for name in ("linear_velocity", "angular_velocity"):
        if tree.dataset(f"commands/{name}") is None:
            return None
        values = np.asarray(tree.read_vector(f"commands/{name}"), np.float64)
        values = values.reshape(len(values), -1)
        if len(values) < count or values.shape[1] != 1 or not np.isfinite(values).all():
            return None
        columns.append(values[:count, 0])
    return np.stack(columns, axis=1).astype(np.float32)


def read(root: Path, file: str, locator: Mapping[str, str | int], options: NavOptions) -> Opened:
    """Opens one file."""
    tree = Tree(root / file)
    try:
        count, positions, yaws, command, _ = _load(tree, options)
        kept = np.arange(0, count, options.stride)
        vectors = pose_vectors(positions[kept], yaws[kept])
        if command is not None:
            vectors["command"] = np.ascontiguousarray(command[kept])
        images: dict[str, ImageStream] = {
            key: Hdf5Images(tree, f"images/{key}", row_map=None, size=None)
            for key in _CAMERAS
            if tree.dataset(f"images/{key}") is not None
        }
    except BaseException:
        tree.close()
        raise
    return Opened(vectors=vectors, images=images, rows=kept, task=options.instruction, close=tree.close)


def fingerprint(root: Path, file: str) -> bytes:
    """Name, size and both ends."""
    return ends_of(root, file)
