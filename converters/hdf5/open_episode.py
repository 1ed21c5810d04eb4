"""Opening one episode: vectors read and checked, pictures left to lazy streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from wdsmix.converters.hdf5.beside import open_beside
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.images import Hdf5Images
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, Part
from wdsmix.converters.hdf5.measure import Measured, measure, row_map
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.pairing import layout_of
from wdsmix.converters.hdf5.safe import Tree

from wdsmix.episode import Camera, Episode, EpisodeRef, Float32Array, ImageStream

__all__ = ["open_episode"]


def open_episode(
    path: Path,
    ref: EpisodeRef,
    dialect: Dialect,
    options: Hdf5Options,
    *,
    known: FileFacts | None,
    slots: Mapping[str, str],
    gripper: bool,
) -> Episode:
    """Opens the episode that a reference names.

    Args:
        path: The file.
        ref: From the scan.
        dialect: Of the file.
        options: Of the family.
        known: What holds for the file, from its scan; None: found out again.
        slots: Slot -> key of the cameras.
        gripper: Whether the gripper is part of the state.

    Returns:
        The episode; closing it closes its file.

    Raises:
        Hdf5Error: it is bad.
    """
    tree = Tree(path)
    closers: list[Callable[[], None]] = [tree.close]
    notes: dict[str, str] = {}
    try:
        facts = known or (dialect.facts(tree, options) if dialect.facts else FileFacts(fps=options.fps, fps_from=""))
        group = str(ref.locator["group"])
        layout = layout_of(dialect, tree, group, options, facts)
        found = measure(tree, group, layout, options)
        vectors = {name: _vector(tree, parts, found) for name, parts in _parts(layout, found, gripper).items()}
        if found.keep is not None:
            vectors = {name: np.ascontiguousarray(values[found.keep]) for name, values in vectors.items()}
        images: dict[str, ImageStream] = {}
        cameras: dict[str, Camera] = {}
        for slot, key in slots.items():
            camera = layout.cameras.get(key)
            if camera is None:
                raise Hdf5Error("the camera has gone since the scan", path=str(path), where=key)
            index = row_map(found.rows[camera.path, camera.start], found.frames, found.resample, camera.start)
            if camera.video or camera.names is not None:
                every = np.arange(found.frames, dtype=np.int64) if index is None else index
                exact = options.on_length_mismatch not in ("truncate", "index-resample") and layout.slack in (None, 0)
                images[slot], close, note = open_beside(tree, camera, every, exact=exact)
                closers += [close] if close else []
                notes |= {slot: note} if note else {}
            else:
                images[slot] = Hdf5Images(tree, camera.path, row_map=index, size=options.raw_size)
            cameras[slot] = Camera(key=key, order=camera.order, flip=camera.flip)
    except BaseException:
        _close(closers)
        raise
    extras: dict[str, object] = dict(layout.extras)
    if layout.task_zh:
        extras["task_zh"] = layout.task_zh
    if layout.score is not None:
        extras["score"] = layout.score
    if layout.success is not None:
        extras["success"] = layout.success
    if notes:
        extras["frame_mapping"] = notes
    keep = found.keep
    if keep is not None:
        extras["rows_left_out"] = found.frames - len(keep)
    picked = range(found.frames) if keep is None else keep.tolist()
    return Episode(
        fps=facts.fps,
        vectors=vectors,
        images=images,
        cameras=cameras,
        tasks=(layout.task,),
        timestamps=None if keep is None else keep / facts.fps,
        extras=extras,
        frame_extras={name: [values[k] for k in picked] for name, values in layout.frame_extras.items()},
        rows=keep,
        close=partial(_close, closers),
    )


def _close(closers: Sequence[Callable[[], None]]) -> None:
    for close in closers:
        close()


def _parts(layout: EpisodeLayout, found: Measured, gripper: bool) -> dict[str, Sequence[Part]]:
    parts: dict[str, Sequence[Part]] = {
        "state": [*layout.state, *(layout.gripper if gripper else ())],
        "action": layout.action,
    }
    parts.update({name: [layout.optional[name]] for name in found.optional})
    return parts


def _vector(tree: Tree, parts: Sequence[Part], found: Measured) -> Float32Array:
    """Reads a vector: float32 [T, D], finite.

    Raises:
        Hdf5Error: it can't be read, or holds NaN or infinity; names the row and the dimension.
    """
    columns = []
    for part in parts:
        rows = found.rows[part.path, part.start]
        if part.rows is None:
            values = tree.read_vector(part.path, part.start, part.start + rows)
        else:
            values = tree.read_vector(part.path)[np.asarray(part.rows[part.start : part.start + rows], np.int64)]
        values = values.reshape(len(values), -1)
        index = row_map(rows, found.frames, found.resample)
        values = values[: found.frames] if index is None else values[index]
        with np.errstate(over="ignore", invalid="ignore"):
            column = values.astype(np.float32)
        bad = np.argwhere(~np.isfinite(column))
        if len(bad):
            row, dimension = (int(number) for number in bad[0])
            raise Hdf5Error(
                "not finite",
                path=str(tree.path),
                where=f"{part.path} row {part.start + row} dimension {dimension}",
                check="finite",
                expected="a finite float32",
                found=str(values[row, dimension]) + (f" ({len(bad)} values in all)" if len(bad) > 1 else ""),
            )
        columns.append(column)
    return np.ascontiguousarray(np.concatenate(columns, axis=1))
