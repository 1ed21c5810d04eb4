"""DROID before its conversion: trajectory.h5 and the MP4 files of its cameras; one file is one episode.

::

    trajectory.h5
        observation/robot_state/{joint_positions (T, 7), gripper_position (T,), cartesian_position (T, 6), ...}
        observation/controller_info/movement_enabled, observation/timestamp/skip_action (T,)
        observation/camera_type/<serial> (T,)     0: the hand's camera, else one beside the robot
        action/{joint_position (T, 7), gripper_position (T,), joint_velocity, cartesian_velocity, ...}
    recordings/MP4/<serial>.mp4
    metadata_<uuid>.json                          current_task, serial numbers of the cameras, success

Rows in which the operator did not move the robot are left out, and the pictures with them.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from wdsmix.converters.hdf5.beside import video_names
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import (
    CameraPart,
    Dialect,
    EpisodeLayout,
    FileFacts,
    find_parts,
    refused_camera,
)
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import (
    absolute,
    assumed_rate,
    clock_warning,
    one_episode,
    root_has,
    rows_of,
    wanted_cameras,
)
from wdsmix.converters.hdf5.safe import Tree, join
from wdsmix.converters.hdf5.sidecar import read_beside
from wdsmix.converters.hdf5.strings import attribute, number, text
from wdsmix.converters.loose import listing

__all__ = ["DIALECTS"]

_FPS = 15.0
_VIDEOS = "recordings/MP4"
_STATE = ("joint_positions", "gripper_position")
_ACTION = ("joint_position", "gripper_position")
_TYPES = "/observation/camera_type"
_ROLES = {"wrist_cam_serial": "wrist", "ext1_cam_serial": "exterior_1", "ext2_cam_serial": "exterior_2"}


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    kinds = () if options.action else absolute(tree, find_parts(tree, "/", _ACTION, ("action",)))
    clock = "/observation/timestamp/control/step_start"
    warnings = [] if options.fps else clock_warning(tree, clock, 1e-3, _FPS)
    return assumed_rate(options, _FPS, "DROID files", kinds=kinds, warnings=warnings)


def _metadata(tree: Tree) -> tuple[Mapping[str, object], list[str]]:
    """The metadata beside the file, else the root's attributes, and warnings."""
    names = [name for name in listing(tree.path.parent) if name.startswith("metadata_") and name.endswith(".json")]
    warnings = []
    for name in names[:1]:
        found, wrong = read_beside(tree, name)
        if isinstance(found, dict):
            return found, []
        warnings += [wrong or f"{name} holds no object"]
    keys = (*_ROLES, "current_task", "success", "uuid")
    return {key: value for key in keys if (value := attribute(tree.file, key)) is not None}, warnings


def _roles(tree: Tree, about: Mapping[str, object]) -> dict[str, str]:
    """Serial number -> role of a camera."""
    told = {str(text(about.get(key))[0] or ""): role for key, role in _ROLES.items()}
    found = {serial: role for serial, role in told.items() if serial}
    exterior = [role for role in _ROLES.values() if role != "wrist" and role not in found.values()]
    for serial in tree.children(_TYPES):
        if serial in found:
            continue
        if _is_hand(tree, serial) and "wrist" not in found.values():
            found[serial] = "wrist"
        elif exterior:
            found[serial] = exterior.pop(0)
        else:
            found[serial] = f"camera_{len(found) + 1}"
    return found


def _is_hand(tree: Tree, serial: str) -> bool:
    path = join(_TYPES, serial)
    try:
        dataset = tree.dataset(path)
        if dataset is None or dataset.shape is None:
            return False
        return not tree.read_vector(path).any()
    except Hdf5Error:
        return False


def _cameras(tree: Tree, options: Hdf5Options, about: Mapping[str, object]) -> tuple[dict[str, CameraPart], list[str]]:
    roles = _roles(tree, about)
    there = {name.rsplit("/", 1)[-1][:-4]: name for name in video_names(tree, _VIDEOS)}
    if not roles:  # nothing says whose the videos are
        roles = {serial: serial for serial in there if not serial.endswith("-stereo")}
    found: dict[str, CameraPart] = {}
    warnings: list[str] = []
    for serial, role in roles.items():
        if refused := refused_camera(serial):
            warnings += refused
            continue
        video = there.get(serial, f"{_VIDEOS}/{serial}.mp4")
        if "/" in serial or (serial not in there and options.allow_no_camera):
            warnings.append(f"{role}: its video is missing")
            continue
        order, flip = options.jpeg_order or "rgb", options.image_flip or "none"
        found[role] = CameraPart(path=join(_VIDEOS, serial), order=order, flip=flip, video=video)
    if not found and not options.allow_no_camera:
        raise Hdf5Error(
            "its videos are missing",
            path=str(tree.path),
            check="images",
            expected=f"MP4 files in {_VIDEOS}",
            hint="SVO recordings alone are not read (or --allow-no-camera, for states and actions alone)",
        )
    return wanted_cameras(options, found), warnings


def _moved(tree: Tree, frames: int) -> tuple[npt.NDArray[np.int64] | None, list[str]]:
    """The rows in which the robot is moved (None: all), and warnings."""
    keep = np.ones(frames, np.bool_)
    warnings = []
    for path, wanted in (
        ("/observation/controller_info/movement_enabled", True),
        ("/observation/timestamp/skip_action", False),
    ):
        count = rows_of(tree, path)
        if not count:
            continue
        if count != frames:
            warnings.append(f"{path} has other than the action's rows; not used")
            continue
        keep &= tree.read_vector(path).reshape(frames, -1)[:, 0].astype(np.bool_) == wanted
    if keep.all():
        return None, warnings
    return np.flatnonzero(keep), [*warnings, "rows without movement (movement_enabled, skip_action) are left out"]


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    about, wrong = _metadata(tree)
    bases = ("observation/robot_state", "observation", "")
    state = find_parts(tree, "/", options.state or _STATE, bases, what="state")
    action = find_parts(tree, "/", options.action or _ACTION, ("action", ""), what="action")
    keep, left_out = _moved(tree, rows_of(tree, action[0].path))
    cameras, warnings = _cameras(tree, options, about)
    success = number(about.get("success"))
    uuid = text(about.get("uuid"))[0]
    return EpisodeLayout(
        state=state,
        action=action,
        cameras=cameras,
        keep=None if keep is None else keep.tolist(),
        task=text(about.get("current_task"))[0] or options.instruction,
        success=None if success is None else bool(success),
        extras={"uuid": uuid} if uuid else {},
        warnings=[*wrong, *left_out, *warnings],
    )


DIALECTS = [
    Dialect(
        name="droid",
        rank=110,
        summary="DROID raw: observation/robot_state, action/joint_position, recordings/MP4/<serial>.mp4",
        matches=root_has("observation/robot_state", "action/joint_position"),
        groups=one_episode,
        facts=_facts,
        layout=_layout,
        state="joint_positions, gripper_position (of observation/robot_state)",
        action="joint_position, gripper_position (of action)",
        cameras="recordings/MP4/*.mp4: exterior_1, wrist, exterior_2",
        rate="15, with a warning",
    )
]
