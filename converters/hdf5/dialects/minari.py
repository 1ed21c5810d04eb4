"""Minari: episodes of one file, with the observation after the last action.

::

    <dataset>/data/main_data.hdf5      metadata.json beside it, or attributes of the file: env_spec (JSON), dataset_id
    └─ episode_0                       attributes id, seed, total_steps
       ├─ observations                 (T+1, D), or a dictionary (tuples: _index_0, _index_1, ...) of any depth
       ├─ actions                      (T, A), or such a dictionary
       └─ rewards, terminations, truncations (T,), infos

Observations of image spaces are a JPEG a row: variable-length bytes, or (T+1, L) where all are equally long. A text in
the observations named mission, instruction, language or task is the task.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import h5py
from wdsmix.converters.hdf5.dialects.robomimic import rewards_and_dones
from wdsmix.converters.hdf5.faults import Hdf5Error, library_errors
from wdsmix.converters.hdf5.layout import CameraPart, Dialect, EpisodeLayout, FileFacts, Part
from wdsmix.converters.hdf5.nested import find_leaves, nested_cameras, nested_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import any_shows, assumed_rate, rows_of
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sidecar import read_beside
from wdsmix.converters.hdf5.strings import attribute, clean_text, json_object, text

from wdsmix.imaging import sniff

__all__ = ["DIALECTS"]

_FPS = 20.0
_LONGEST = 200
_TEXTS = ("mission", "instruction", "language", "task")


def _episodes(tree: Tree, options: Hdf5Options | None = None) -> list[str]:
    return [join(name) for name in tree.child_groups("/") if re.fullmatch(r"episode_\d+", name)]


def _matches(tree: Tree, episode: str) -> bool:
    wanted = ("observations", "actions")
    return episode == "/" and any_shows(
        _episodes(tree), lambda name: all(tree.get(join(name, key)) is not None for key in wanted)
    )


def _metadata(tree: Tree) -> tuple[Mapping[str, object], str | None]:
    """The metadata file's content, else the attributes of the same names."""
    found, wrong = read_beside(tree, "metadata.json")
    told = dict(found) if isinstance(found, dict) else {}
    root = tree.group("/")
    for name in ("dataset_id", "env_spec"):
        if name not in told and root is not None:
            told[name] = text(attribute(root, name))[0]
    return told, wrong


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    told, wrong = _metadata(tree)
    warnings = [wrong] if wrong else []
    spec = told.get("env_spec")
    env = spec if isinstance(spec, dict) else json_object(spec)[0]
    names = {"dataset_id": str(told.get("dataset_id") or ""), "env_id": str(env.get("id") or "")}
    return assumed_rate(
        options,
        _FPS,
        "Minari files",
        task=clean_text(names["env_id"] or names["dataset_id"]),
        warnings=warnings,
        details={name: value[:_LONGEST] for name, value in names.items()},
    )


def _holds_pictures(tree: Tree, path: str, dataset: h5py.Dataset) -> bool:
    """Whether rows of bytes are encoded pictures, by the first of them."""
    shape: tuple[int, ...] = dataset.shape or ()
    if len(shape) != 2 or dataset.dtype.kind not in "iu" or dataset.dtype.itemsize != 1 or shape[0] == 0:
        return False
    tree.check_stored(path, dataset)
    tree.check_inflated(path, dataset, 0, 1)
    with library_errors(tree.path, path):
        return sniff(dataset[0, :16].tobytes()) is not None


def _cameras(tree: Tree, group: str, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    base = join(group, "observations")
    cameras, warnings = nested_cameras(tree, base, options)
    for key, dataset in find_leaves(tree, base).items():
        path = join(base, key)
        if key not in cameras and _holds_pictures(tree, path, dataset):
            order, flip = options.jpeg_order or "rgb", options.image_flip or "none"
            cameras[key] = CameraPart(path=path, order=order, flip=flip)
    return {key or "observations": camera for key, camera in cameras.items()}, warnings


def _numeric(dataset: h5py.Dataset) -> bool:
    return dataset.dtype.kind in "fiub" and 1 <= len(dataset.shape or ()) <= 2


def _vector(tree: Tree, group: str, base: str, given: tuple[str, ...], skip: set[str], what: str) -> list[Part]:
    """The parts that the options name, else every numeric dataset of the space."""
    if given:
        return nested_parts(tree, group, given, base, what=what)
    root = join(group, base)
    leaves = {key: dataset for key, dataset in find_leaves(tree, root).items() if join(root, key) not in skip}
    parts = [Part(path=join(root, key), name=key or what) for key, dataset in leaves.items() if _numeric(dataset)]
    if not parts:
        raise Hdf5Error(
            f"no numbers for the {what}",
            path=str(tree.path),
            where=root,
            expected="a numeric dataset (T, D)",
            found=", ".join(list(leaves)[:30]) or "only pictures" if skip else "nothing",
            hint=f"name its keys with --{what} KEY,KEY",
        )
    return parts


def _instruction(tree: Tree, group: str) -> str:
    base = join(group, "observations")
    for key, dataset in find_leaves(tree, base).items():
        named = key.rsplit("/", 1)[-1].lower() in _TEXTS
        if named and len(dataset.shape or ()) == 1 and dataset.shape[0] and h5py.check_string_dtype(dataset.dtype):
            tree.check_stored(join(base, key), dataset)
            tree.check_inflated(join(base, key), dataset, 0, 1)
            with library_errors(tree.path, join(base, key)):
                return text(dataset[0])[0] or ""
    return ""


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    cameras, warnings = _cameras(tree, group, options)
    shown = {camera.path for camera in cameras.values()}
    action = _vector(tree, group, "actions", options.action, set(), "action")
    return EpisodeLayout(
        state=_vector(tree, group, "observations", options.state, shown, "state"),
        action=action,
        optional=rewards_and_dones(tree, group, done="terminations"),
        cameras=cameras,
        frames=rows_of(tree, action[0].path),
        task=_instruction(tree, group) or options.instruction or facts.task,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="minari",
        rank=131,
        summary="Minari: episode_<i>/{observations, actions, rewards, terminations, truncations}",
        matches=_matches,
        groups=_episodes,
        facts=_facts,
        layout=_layout,
        pairing="same row, the last observation left out",
        state="every numeric dataset of observations",
        action="every numeric dataset of actions",
        cameras="pictures anywhere in observations",
        rate="20, with a warning",
    )
]
