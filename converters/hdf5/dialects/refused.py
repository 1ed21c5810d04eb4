"""Structures that are recognised so as to be refused with a reason, never to be taken for something else."""

from __future__ import annotations

from collections.abc import Callable

from wdsmix.converters.hdf5.dialects.robomimic import demo_groups
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, find_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, clean_text, text

__all__ = ["DIALECTS"]


def _root(*rules: str) -> Callable[[Tree, str], bool]:
    """A rule over the root: every one of the paths is there; ``*`` stands for any one child."""

    def matches(tree: Tree, episode: str) -> bool:
        return all(_there(tree, "/", rule.split("/")) for rule in rules)

    return matches


def _there(tree: Tree, place: str, parts: list[str]) -> bool:
    if not parts:
        return tree.get(place) is not None
    if parts[0] == "*":
        return any(_there(tree, join(place, name), parts[1:]) for name in tree.children(place)[:16])
    return tree.get(join(place, parts[0])) is not None and _there(tree, join(place, parts[0]), parts[1:])


def _no_groups(tree: Tree, options: Hdf5Options) -> list[str]:
    return []


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


_LATER = "known, but not converted yet; describe it with --mapping FILE.yaml"


def _refused(name: str, rank: int, summary: str, matches: Callable[[Tree, str], bool], refusal: str) -> Dialect:
    return Dialect(name=name, rank=rank, summary=summary, matches=matches, groups=_no_groups, refusal=refusal)


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
    _refused("robotwin", 60, "RoboTwin 1.0", _root("vision/*/colors", "state", "action"), f"RoboTwin: {_LATER}"),
    _refused(
        "robotwin-legacy",
        70,
        "RoboTwin 2.0 before August 2026",
        _root("joint_action", "observation/*/rgb"),
        f"RoboTwin: {_LATER} (order: bgr, action_shift: 1)",
    ),
    _refused("robomind", 80, "RoboMIND", _root("observations/rgb_images"), f"RoboMIND: {_LATER}"),
    _refused("agilex", 100, "AgileX data_tools", _root("camera/color", "arm/jointStatePosition"), f"AgileX: {_LATER}"),
    _refused(
        "droid",
        110,
        "DROID raw",
        _root("observation/robot_state", "action/joint_position"),
        "DROID raw: the images lie in MP4 files beside it, which are not read yet",
    ),
    _refused(
        "agibot",
        120,
        "AgiBot World",
        _root("state/joint", "action/joint"),
        "AgiBot World: the images lie in MP4 files beside it, which are not read yet",
    ),
]
