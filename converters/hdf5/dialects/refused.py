"""Structures that are recognised so as to be refused with a reason, never to be taken for something else."""

from __future__ import annotations

from collections.abc import Callable

from wdsmix.converters.hdf5.dialects.robomimic import demo_groups
from wdsmix.converters.hdf5.layout import Dialect, EpisodeLayout, FileFacts, find_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.strings import attribute, clean_text, json_object, number, text

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


def _demo(tree: Tree, episode: str) -> bool:
    return episode.startswith("/data/") and tree.dataset(join(episode, "actions")) is not None


def _libero(tree: Tree, episode: str) -> bool:
    data = tree.group("/data")
    marks = ("problem_info", "bddl_file_name")
    return _demo(tree, episode) and (
        (data is not None and any(name in data.attrs for name in marks))
        or tree.get(join(episode, "obs/agentview_rgb")) is not None
    )


def _isaaclab(tree: Tree, episode: str) -> bool:
    data = tree.group("/data")
    env, _ = json_object(attribute(data, "env_args") if data is not None else None)
    return _demo(tree, episode) and (
        tree.group(join(episode, "initial_state")) is not None or number(env.get("type")) == 2
    )


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


def _grouped(prefix: str, *children: str) -> Callable[[Tree, str], bool]:
    def matches(tree: Tree, episode: str) -> bool:
        names = [name for name in tree.child_groups("/") if name.startswith(prefix)]
        return bool(names) and all(tree.get(join(names[0], child)) is not None for child in children)

    return matches


def _maniskill_raw(tree: Tree, episode: str) -> bool:
    return _grouped("traj_", "actions")(tree, episode) and not _grouped("traj_", "obs")(tree, episode)


_LATER = "known, but not converted yet; describe it with --mapping FILE.yaml"


def _refused(name: str, rank: int, summary: str, matches: Callable[[Tree, str], bool], refusal: str) -> Dialect:
    return Dialect(name=name, rank=rank, summary=summary, matches=matches, groups=_no_groups, refusal=refusal)


DIALECTS = [
    _refused("libero", 20, "LIBERO", _libero, f"LIBERO: {_LATER} (flip: vertical where the pictures are upside down)"),
    _refused("isaaclab", 30, "Isaac Lab, LeIsaac", _isaaclab, f"Isaac Lab: {_LATER}"),
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
    _refused(
        "maniskill-raw",
        129,
        "ManiSkill trajectories without observations",
        _maniskill_raw,
        "raw ManiSkill trajectories hold no observations (obs_mode none), hence no images; replay them: "
        "python -m mani_skill.trajectory.replay_trajectory --obs-mode rgb --save-traj",
    ),
    _refused("maniskill", 130, "ManiSkill", _grouped("traj_", "actions", "obs"), f"ManiSkill: {_LATER}"),
    _refused("minari", 131, "Minari", _grouped("episode_", "observations", "actions"), f"Minari: {_LATER}"),
    _refused("robohive", 132, "RoboHive", _grouped("Trial", "actions"), f"RoboHive: {_LATER}"),
    _refused(
        "d4rl",
        140,
        "D4RL",
        _root("observations", "actions", "rewards"),
        "D4RL: flat rows of states, actions and rewards; it holds no images",
    ),
]
