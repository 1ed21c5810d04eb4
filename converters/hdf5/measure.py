"""Measuring one episode from metadata: rows and widths of its streams, and how they line up."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.beside import camera_rows
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import CameraPart, EpisodeLayout, Part
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree

from wdsmix.texts import counted

__all__ = ["Measured", "measure", "row_map"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """One episode, measured."""

    frames: int
    widths: Mapping[str, int]
    """Vector -> dimensions; ``gripper`` apart from the state."""
    names: Mapping[str, Sequence[str]]
    """Vector -> a name for each dimension."""
    rows: Mapping[tuple[str, int], int]
    """Path and start of a stream -> the rows it has from there on."""
    cameras: Sequence[str]
    """Keys of the cameras that have pictures."""
    optional: Sequence[str]
    """Names of the optional vectors that hold data."""
    resample: bool = False
    """Whether streams of other lengths are stretched by index."""
    keep: npt.NDArray[np.int64] | None = None
    """int64: the frames that are taken; None: all."""
    warnings: Sequence[str] = field(default_factory=tuple)


def row_map(rows: int, frames: int, resample: bool, start: int = 0) -> npt.NDArray[np.int64] | None:
    """Frame -> row of a stream; None: the same.

    Args:
        rows: Rows the stream has from ``start`` on.
        frames: Frames of the episode.
        resample: Whether a stream of another length is stretched, by nearest index.
        start: Its row of frame 0.
    """
    index = np.arange(frames, dtype=np.int64)
    if resample and rows != frames:
        index = (index * (rows - 1) * 2 + (frames - 1)) // (2 * (frames - 1)) if frames > 1 else index * 0
    elif start == 0:
        return None
    return index + start


def _part(tree: Tree, part: Part) -> tuple[int, int]:
    """Rows from the start on, and width."""
    dataset = tree.dataset(part.path)
    if dataset is None:
        raise Hdf5Error("missing", path=str(tree.path), where=part.path)
    if dataset.shape is None or not dataset.shape:
        raise Hdf5Error("not an array", path=str(tree.path), where=part.path, found=str(dataset.shape))
    if dataset.dtype.kind not in "fiub":
        raise Hdf5Error("not numeric", path=str(tree.path), where=part.path, found=str(dataset.dtype))
    width = math.prod(dataset.shape[1:])
    _check_width(tree, part.path, width)
    tree.check_stored(part.path, dataset)
    if width == 0 and dataset.shape[0]:
        raise Hdf5Error("no dimensions", path=str(tree.path), where=part.path, found=str(dataset.shape))
    if part.rows is not None and len(part.rows) and not 0 <= min(part.rows) <= max(part.rows) < dataset.shape[0]:
        raise Hdf5Error(
            "too few rows",
            path=str(tree.path),
            where=part.path,
            check="lengths",
            expected=f"more than {max(part.rows)}",
            found=str(dataset.shape[0]),
        )
    return _rows(dataset.shape[0] if part.rows is None else len(part.rows), part), width


def _rows(stored: int, part: Part | CameraPart) -> int:
    """Rows of a stream from its start to its stop."""
    return max(0, (stored if part.stop is None else min(stored, part.stop)) - part.start)


def _check_width(tree: Tree, path: str, width: int) -> None:
    """Bounds a vector before a name is made for each of its dimensions."""
    if width > tree.budget.width:
        raise Hdf5Error(
            "refused: too many dimensions for a vector",
            path=str(tree.path),
            where=path,
            check="safe",
            expected=f"at most {tree.budget.width}",
            found=str(width),
        )


def measure(tree: Tree, group: str, layout: EpisodeLayout, options: Hdf5Options) -> Measured:
    """Measures an episode.

    Raises:
        Hdf5Error: a stream is missing, unwritten or of no known kind; the lengths differ and the policy drops such
            episodes; fewer than two frames.
    """
    rows: dict[tuple[str, int], int] = {}
    widths: dict[str, int] = {}
    names: dict[str, list[str]] = {}
    warnings: list[str] = []
    vectors: dict[str, Sequence[Part]] = {"state": layout.state, "action": layout.action}
    if layout.gripper and options.gripper != "ignore":
        vectors["gripper"] = layout.gripper
    for vector, parts in vectors.items():
        names[vector] = []
        for part in parts:
            rows[part.path, part.start], width = _part(tree, part)
            widths[vector] = widths.get(vector, 0) + width
            _check_width(tree, part.path, widths[vector])
            names[vector] += [f"{part.name}_{index}" for index in range(width)] if width != 1 else [part.name]
    present = []
    for vector, part in layout.optional.items():
        try:
            count, width = _part(tree, part)
        except Hdf5Error as fault:
            warnings.append(f"{vector} left out: {fault.message}")
            continue
        if count == 0 or width != 1:
            warnings.append(f"{vector} left out: {counted(count, 'row')} of {counted(width, 'dimension')}")
            continue
        rows[part.path, part.start], widths[vector] = count, 1
        present.append(vector)
    cameras = []
    filmed: dict[tuple[str, int], int | None] = {}
    for key, camera in layout.cameras.items():
        shown = camera_rows(tree, camera)
        if camera.video:
            filmed[camera.path, camera.start] = None if shown is None else _rows(shown, camera)
        else:
            rows[camera.path, camera.start] = _rows(shown or 0, camera)
        cameras.append(key)
    frames = _align(tree, group, rows, filmed, layout, options)
    spare = _slack(layout)  # what is left over on purpose is cut off, never stretched
    rows = {stream: frames if frames <= count <= frames + spare else count for stream, count in rows.items()}
    for stream, told in filmed.items():
        rows[stream] = frames if told is None or frames - 1 <= told <= frames + spare + 1 else told
    keep = None if layout.keep is None else np.array([k for k in layout.keep if k < frames], np.int64)
    taken = frames if keep is None else len(keep)
    if taken < 2:
        raise Hdf5Error("too short", path=str(tree.path), where=group, expected="2 frames or more", found=str(taken))
    return Measured(
        frames=frames,
        widths=widths,
        names=names,
        rows=rows,
        keep=keep,
        cameras=cameras,
        optional=present,
        resample=options.on_length_mismatch == "index-resample",
        warnings=warnings,
    )


def _slack(layout: EpisodeLayout) -> int:
    """Rows that streams may have beyond the frames: a dialect that pairs rows leaves some over on purpose."""
    return layout.slack if layout.slack is not None else int(layout.frames is not None)


def _align(
    tree: Tree,
    group: str,
    rows: Mapping[tuple[str, int], int],
    filmed: Mapping[tuple[str, int], int | None],
    layout: EpisodeLayout,
    options: Hdf5Options,
) -> int:
    """The frames of an episode whose streams have the given rows, and videos the given frames (None: not told).

    A video may have one frame less or more.
    """
    target = rows[layout.action[0].path, layout.action[0].start] if layout.frames is None else layout.frames
    slack = _slack(layout)
    videos = {stream: count for stream, count in filmed.items() if count is not None}
    if all(target <= count <= target + slack for count in rows.values()) and all(
        target - 1 <= count <= target + slack + 1 for count in videos.values()
    ):
        return target
    rows = {**rows, **videos}
    shown = ", ".join(f"{path.rsplit('/', 1)[-1]} {count}" for (path, _), count in rows.items())
    least, most = min(rows.values()), max(rows.values())
    if options.on_length_mismatch == "index-resample" and least > 0:
        return target
    if options.on_length_mismatch == "truncate" and most - least <= options.length_tolerance:
        return least
    vectors = {rows[part.path, part.start] for part in (*layout.state, *layout.action)}
    hints = {
        "drop": "--on-length-mismatch truncate cuts small differences, index-resample stretches by index",
        "truncate": f"they differ by {most - least}; --length-tolerance {options.length_tolerance} allows less",
    }
    raise Hdf5Error(
        "first dimensions differ",
        path=str(tree.path),
        where=group,
        check="vectors" if len(vectors) > 1 else "lengths",
        expected=f"{target} rows each",
        found=shown,
        hint=hints.get(options.on_length_mismatch),
    )
