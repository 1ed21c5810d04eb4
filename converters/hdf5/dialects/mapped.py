"""Files described by a mapping file (``--mapping``)."""

from __future__ import annotations

import fnmatch

from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    Part,
    find_parts,
    read_text,
)
from wdsmix.converters.hdf5.mapping import Mapped
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import clean_text

__all__ = ["DIALECTS"]


def _mapping(options: Hdf5Options) -> Mapped:
    if options.mapping is None:
        raise Hdf5Error("no mapping file", where="--mapping")
    return options.mapping


def _matches(tree: Tree, episode: str) -> bool:
    return False  # never by structure: taken where --mapping is given


def _expand(tree: Tree, pattern: str) -> list[str]:
    places = ["/"]
    for piece in (part for part in pattern.split("/") if part):
        if any(char in piece for char in "*?["):
            places = [
                join(place, name)
                for place in places
                for name in tree.child_groups(place)
                if fnmatch.fnmatchcase(name, piece)
            ]
        else:
            places = [join(place, piece) for place in places if tree.get(join(place, piece)) is not None]
    return places


def _groups(tree: Tree, options: Hdf5Options) -> list[str]:
    wanted = _mapping(options).episodes
    found: dict[str, None] = {}
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        found.update(dict.fromkeys(_expand(tree, pattern)))
    return list(found)


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    if options.fps:
        return FileFacts(fps=options.fps, fps_from="--fps")
    return FileFacts(fps=_mapping(options).fps, fps_from="mapping")


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    mapped = _mapping(options)
    cameras = {}
    for slot, entry in mapped.cameras.items():
        path = entry if isinstance(entry, str) else entry.path
        order = options.jpeg_order or (mapped.order if isinstance(entry, str) else entry.order)
        flip = options.image_flip or (mapped.flip if isinstance(entry, str) else entry.flip)
        cameras[slot] = CameraPart(path=join(group, path), order=order, flip=flip)
    action = find_parts(tree, group, options.action or mapped.action, what="action")
    frames = None
    if mapped.action_shift:
        action = [Part(path=part.path, name=part.name, start=mapped.action_shift) for part in action]
        dataset = tree.dataset(action[0].path)
        frames = max(0, (dataset.shape[0] if dataset is not None and dataset.shape else 0) - mapped.action_shift)
    optional = {}
    for name, key in (("reward", mapped.reward), ("done", mapped.done)):
        if key is not None:
            optional[name] = find_parts(tree, group, [key], what=name)[0]
    if isinstance(mapped.task, str):
        task = clean_text(mapped.task)
    else:
        key = mapped.task.attr or mapped.task.dataset or ""
        task, _ = read_text(tree, group, key)
    return EpisodeLayout(
        state=find_parts(tree, group, options.state or mapped.state, what="state"),
        action=action,
        optional=optional,
        cameras=cameras,
        frames=frames,
        task=task or options.instruction,
    )


DIALECTS = [
    Dialect(
        name="mapping",
        rank=10_000,
        summary="any structure, described by --mapping FILE.yaml",
        matches=_matches,
        groups=_groups,
        facts=_facts,
        layout=_layout,
        state="of the mapping file",
        action="of the mapping file",
        cameras="of the mapping file",
        rate="of the mapping file",
    )
]
