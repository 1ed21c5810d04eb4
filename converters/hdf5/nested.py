"""Groups of groups: observations that are dictionaries of any depth."""

from __future__ import annotations

from collections.abc import Sequence

import h5py
import numpy as np
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import CameraPart, Part, refused_camera
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join

__all__ = ["find_leaves", "nested_cameras", "nested_parts"]

_MOST = 4096
_SHOWN = 30
_NO_COLOURS = ("depth", "segmentation", "distance_to", "normals", "motion_vectors", "position", "albedo", "pointcloud")
"""Words in the names of pictures that are not in colours."""


def find_leaves(tree: Tree, base: str) -> dict[str, h5py.Dataset]:
    """The datasets below a group, at any depth: relative path -> dataset, in natural order; ``""``: it is one itself.

    Raises:
        Hdf5Error: too many of them, or a link that is refused.
    """
    leaves: dict[str, h5py.Dataset] = {}
    seen: set[object] = set()

    def walk(path: str, relative: str) -> None:
        found = tree.get(path)
        if isinstance(found, h5py.Dataset):
            leaves[relative] = found
        elif found is not None:
            address = h5py.h5o.get_info(found.id).addr
            if address in seen:
                return
            seen.add(address)
            for name in tree.children(path):
                walk(join(path, name), f"{relative}/{name}".strip("/"))
        if len(leaves) > _MOST:
            raise Hdf5Error(
                "refused: too many datasets in one episode",
                path=str(tree.path),
                where=base,
                check="safe",
                expected=f"at most {_MOST}",
            )

    walk(base, "")
    return leaves


def _ends_with(path: str, key: str) -> bool:
    return f"/{path}".endswith("/" + key.strip("/"))


def nested_parts(tree: Tree, group: str, keys: Sequence[str], base: str, *, what: str, start: int = 0) -> list[Part]:
    """Finds the datasets of the given keys: below ``base``, below the episode, or by the end of their path.

    Args:
        tree: The open file.
        group: The episode.
        keys: Paths, or the last parts of them.
        base: Relative path of the observations.
        what: Name of the vector, for the message.
        start: Row of frame 0.

    Raises:
        Hdf5Error: one is missing, or two have that name; lists what is there.
    """
    root = join(group, base)
    leaves: dict[str, h5py.Dataset] = {}
    parts = []
    for key in keys:
        exact = next((path for path in (join(root, key), join(group, key)) if tree.dataset(path) is not None), None)
        if exact is None:
            leaves = leaves or find_leaves(tree, root)
        near = [path for path in leaves if _ends_with(path, key)]
        if exact is None and len(near) != 1:
            raise Hdf5Error(
                f"{what} {key!r} is {'missing' if not near else 'not unique'}",
                path=str(tree.path),
                where=group,
                expected=join(root, key),
                found=", ".join((near or list(leaves) or tree.children(group))[:_SHOWN]) or "nothing",
            )
        parts.append(Part(path=exact or join(root, near[0]), name=key.strip("/").rsplit("/", 1)[-1], start=start))
    return parts


def _in_colours(name: str, dataset: h5py.Dataset) -> bool:
    shape: tuple[int, ...] = dataset.shape or ()
    kind, bytes_each = str(dataset.dtype.kind), int(dataset.dtype.itemsize)
    if any(word in name.lower() for word in _NO_COLOURS):
        return False
    if kind == "O":
        inner = h5py.check_vlen_dtype(dataset.dtype) if h5py.check_string_dtype(dataset.dtype) is None else None
        return len(shape) == 1 and inner is not None and np.dtype(inner).itemsize == 1
    if len(shape) != 4:
        return False
    if kind == "f":
        return shape[3] == 3 or (shape[1] == 3 and shape[3] > 4)
    return kind in "iu" and bytes_each == 1 and (shape[3] in (3, 4) or (shape[1] in (3, 4) and shape[3] > 4))


def nested_cameras(
    tree: Tree, base: str, options: Hdf5Options, *, prefix: str = "", start: int = 0
) -> tuple[dict[str, CameraPart], list[str]]:
    """The colour pictures below a group, by shape; those that ``--camera`` names whatever their shape.

    Args:
        tree: The open file.
        base: Path of the observations.
        options: Of the family.
        prefix: Of the keys.
        start: Row of frame 0.

    Returns:
        Relative path -> camera, and warnings.
    """
    found: dict[str, CameraPart] = {}
    warnings: list[str] = []
    for relative, dataset in find_leaves(tree, base).items():
        wanted = any(_ends_with(join(base, relative), key) for key in options.cameras.values())
        if not wanted and not _in_colours(relative, dataset):
            continue
        key = prefix + relative
        if refused := [text for name in key.split("/") for text in refused_camera(name)]:
            warnings += refused
        else:
            order, flip = options.jpeg_order or "rgb", options.image_flip or "none"
            found[key] = CameraPart(path=join(base, relative), order=order, flip=flip, start=start)
    return found, warnings
