"""Structures that are recognised so as to be refused with a reason, never to be taken for something else."""

from __future__ import annotations

from wdsmix.converters.hdf5.dialects.robomimic import demo_groups
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, find_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, clean_text, text

__all__ = ["DIALECTS"]


def _robosuite(tree: Tree, episode: str) -> bool:
    return (
        episode.startswith("/data/")
        and tree.get(join(episode, "states")) is not None
        and tree.get(join(episode, "obs")) is None
    )


def _robosuite_facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    data = tree.group("/data")
    name, _ = text(attribute(data, "env") if data is not None else None)
    warnings = () if options.fps else ("robosuite raw files hold no rate: 20 frames/s assumed; give --fps to set it",)
    return FileFacts(
        fps=options.fps or 20.0,
        fps_from="--fps" if options.fps else "default",
        task=clean_text(name or ""),
        warnings=warnings,
    )


def _robosuite_layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    return EpisodeLayout(
        state=find_parts(tree, group, options.state or ("states",), what="state"),
        action=find_parts(tree, group, options.action or ("actions",), what="action"),
        task=options.instruction or facts.task,
    )


DIALECTS = [
    Dialect(
        name="robosuite-raw",
        rank=50,
        summary="robosuite demonstrations before rendering: states, no obs",
        matches=_robosuite,
        groups=demo_groups,
        facts=_robosuite_facts,
        layout=_robosuite_layout,
        refusal="raw robosuite demonstrations hold no images; they need simulator replay: robomimic's "
        "dataset_states_to_obs.py renders them (or --allow-no-camera, for states and actions alone)",
        state="states",
        action="actions",
        cameras="none",
        rate="20, with a warning",
    ),
]
