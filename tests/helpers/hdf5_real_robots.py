"""Independent writers: real frames and states laid into the HDF5 files that recorders of real robots write.

Each writer returns what a converter must give back: ``state`` and ``action`` (float64 [T, D]), ``views`` (slot -> uint8
[T, H, W, 3], upright RGB), ``keys`` (slot -> name of the camera), ``task``. None of them uses the converter's code.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

FRAMES = 12


@dataclass(frozen=True, kw_only=True)
class Real:
    """A run of frames of a real recording."""

    front: np.ndarray
    """uint8 [T, 84, 84, 3], upright RGB."""
    hand: np.ndarray
    joints: np.ndarray
    """float64 [T, 7]."""
    command: np.ndarray
    """float64 [T, 7]."""

    def __len__(self) -> int:
        return len(self.front)

    def cut(self, frames: int) -> Real:
        """The first frames."""
        return Real(
            front=self.front[:frames],
            hand=self.hand[:frames],
            joints=self.joints[:frames],
            command=self.command[:frames],
        )


@dataclass(kw_only=True)
class Written:
    """What must come back."""

    state: np.ndarray
    action: np.ndarray
    views: dict[str, np.ndarray]
    keys: dict[str, str]
    task: str = ""
    fps: float = 0.0
    order: str = "rgb"
    pairing: str = "same row"
    extras: Mapping[str, object] = field(default_factory=dict)


def real_frames(samples: Path, demo: str = "demo_0", start: int = 10, frames: int = FRAMES) -> Real:
    """Frames of the robomimic sample, by h5py."""
    path = samples / "hdf5/robomimic_lift_images/test_first3.hdf5"
    rows = slice(start, start + frames)
    with h5py.File(path, "r", locking=False) as file:
        demo_group = file[f"data/{demo}"]
        return Real(
            front=demo_group["obs/agentview_image"][rows],
            hand=demo_group["obs/robot0_eye_in_hand_image"][rows],
            joints=demo_group["obs/robot0_joint_pos"][rows],
            command=demo_group["actions"][rows],
        )


def jpeg(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def opencv_jpeg(rgb: np.ndarray) -> bytes:
    """What OpenCV's encoder makes of an RGB array: it takes the first channel for blue."""
    return jpeg(rgb[..., ::-1])


def padded(encoded: Sequence[bytes], length: int = 0) -> np.ndarray:
    length = length or max(map(len, encoded))
    rows = np.zeros((len(encoded), length), np.uint8)
    for row, data in enumerate(encoded):
        rows[row, : len(data)] = np.frombuffer(data, np.uint8)
    return rows


def vlen(group: h5py.Group, name: str, rows: Sequence[bytes]) -> None:
    dataset = group.create_dataset(name, (len(rows),), dtype=h5py.vlen_dtype(np.uint8))
    for index, data in enumerate(rows):
        dataset[index] = np.frombuffer(data, np.uint8)


def two_arms(real: Real) -> tuple[np.ndarray, np.ndarray]:
    """float32 [T, 14] twice: the arm and its mirror image, as state and as command."""
    state = np.hstack([real.joints, -real.joints]).astype(np.float32)
    return state, np.hstack([real.command, real.command * 0.5]).astype(np.float32)


def _aloha_group(file: h5py.File, state: np.ndarray, action: np.ndarray) -> h5py.Group:
    observations = file.create_group("observations")
    for name, values in (("qpos", state), ("qvel", state * 0), ("effort", state * 0 + 1)):
        observations.create_dataset(name, data=values, dtype="f4")
    file.create_dataset("action", data=action, dtype="f4")
    return observations.create_group("images")


def act_sim(path: Path, real: Real) -> Written:
    """tonyzhaozh/act: raw pictures."""
    state, action = two_arms(real)
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = True
        images = _aloha_group(file, state, action)
        images.create_dataset("top", data=real.front, chunks=(1, *real.front.shape[1:]))
    return Written(state=state, action=action, views={"cam0": real.front}, keys={"cam0": "top"}, fps=50)


def mobile_aloha(path: Path, real: Real) -> Written:
    """mobile-aloha: one padded size for all cameras, red and blue swapped, a base."""
    state, action = two_arms(real)
    cameras = {"cam_high": real.front, "cam_left_wrist": real.hand, "cam_right_wrist": real.hand[:, :, ::-1]}
    with h5py.File(path, "w") as file:
        file.attrs["sim"], file.attrs["compress"] = False, True
        images = _aloha_group(file, state, action)
        rows = {name: [opencv_jpeg(view) for view in views] for name, views in cameras.items()}
        longest = max(len(data) for encoded in rows.values() for data in encoded)
        for name, encoded in rows.items():
            images.create_dataset(name, data=padded(encoded, longest), chunks=(1, longest))
        file["compress_len"] = np.array([[len(data) for data in encoded] for encoded in rows.values()], np.float32)
        file.create_dataset("base_action", data=real.command[:, :2], dtype="f4")
    slots = dict(zip(("cam0", "cam1", "cam2"), cameras, strict=True))
    return Written(
        state=state,
        action=action,
        views={slot: cameras[key] for slot, key in slots.items()},
        keys=slots,
        fps=50,
        order="bgr",
    )


def act_plus_plus(path: Path, real: Real) -> Written:
    """act-plus-plus: a padded size a camera, depth left raw, compress_len of the file before it was cut, no ``sim``."""
    state, action = two_arms(real)
    cameras = {"cam_high": real.front, "cam_left_wrist": real.hand}
    with h5py.File(path, "w") as file:
        file.attrs["compress"] = True
        images = _aloha_group(file, state, action)
        for name, views in cameras.items():
            images.create_dataset(name, data=padded([opencv_jpeg(view) for view in views]))
        images.create_dataset("cam_high_depth", data=np.zeros((len(real), 84, 84), np.uint16))
        file["compress_len"] = np.full((2, len(real) + 88), 31_337, np.float32)
    slots = {"cam0": "cam_high", "cam1": "cam_left_wrist"}
    views = {slot: cameras[key] for slot, key in slots.items()}
    return Written(state=state, action=action, views=views, keys=slots, fps=50, order="bgr")


def cobot_magic(path: Path, real: Real) -> Written:
    """AgileX Cobot Magic: raw pictures, depth in a group of its own, a base that stands still."""
    state, action = two_arms(real)
    with h5py.File(path, "w") as file:
        file.attrs["sim"], file.attrs["compress"] = False, False
        images = _aloha_group(file, state, action)
        images.create_dataset("cam_high", data=real.front, chunks=(1, 84, 84, 3))
        file.create_dataset("observations/images_depth/cam_high", data=np.ones((len(real), 84, 84), np.uint16))
        file.create_dataset("base_action", data=np.zeros((len(real), 2)), dtype="f4")
    return Written(state=state, action=action, views={"cam0": real.front}, keys={"cam0": "cam_high"}, fps=30)


RDT = {
    "instruction": "Pick up the red cube.",
    "simplified_instruction": ["Lift cube.", "Take it."],
    "expanded_instruction": ["With the right arm, take the red cube from the table."],
}


def rdt(path: Path, real: Real) -> Written:
    """RDT: a JPEG an element (fixed strings), the instruction beside it."""
    state, action = two_arms(real)
    with h5py.File(path, "w") as file:
        images = _aloha_group(file, state, action)
        encoded = [opencv_jpeg(view) for view in real.front]
        images.create_dataset("cam_high", data=np.array(encoded, f"S{max(map(len, encoded))}"))
        vlen(images, "cam_right_wrist", [opencv_jpeg(view) for view in real.hand])
    (path.parent / "expanded_instruction_gpt-4-turbo.json").write_text(json.dumps(RDT))
    return Written(
        state=state,
        action=action,
        views={"cam0": real.front, "cam1": real.hand},
        keys={"cam0": "cam_high", "cam1": "cam_right_wrist"},
        task="Pick up the red cube.",
        fps=25,
        order="bgr",
    )


def unitree_h5(path: Path, real: Real) -> Written:
    """unitree_lerobot's HDF5: raw RGB behind gzip, the instruction in the file, and one a row."""
    state, action = two_arms(real)
    half = len(real) // 2
    steps = ["reach for the cube"] * half + ["lift it"] * (len(real) - half)
    with h5py.File(path, "w") as file:
        images = _aloha_group(file, state, action)
        for name, views in (("cam_high", real.front), ("cam_left_wrist", real.hand)):
            images.create_dataset(name, data=views, compression="gzip")
        file["language_raw"] = "lift the cube"
        file["is_edited"] = np.zeros(1, np.uint8)
        file.create_dataset("substep_reasonings", data=np.array(steps, object), dtype=h5py.string_dtype())
    return Written(
        state=state,
        action=action,
        views={"cam0": real.front, "cam1": real.hand},
        keys={"cam0": "cam_high", "cam1": "cam_left_wrist"},
        task="lift the cube",
        fps=30,
        extras={"substep": steps},
    )


def fastumi(path: Path, real: Real, *, arms: int = 2) -> Written:
    """FastUMI: position, quaternion and clamp as state and action; pictures as OpenCV reads a video."""
    states, views, keys = [], {}, {}
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        for arm in range(arms):
            pose = np.hstack([real.joints + arm, real.command[:, 6:]]).astype(np.float32)
            pictures = real.hand if arm else real.front
            group = file.create_group(f"robot_{arm}") if arms > 1 else file
            group["observations/qpos"], group["action"] = pose, pose
            group.create_dataset(
                "observations/images/front", data=pictures[..., ::-1], compression="gzip", compression_opts=4
            )
            states.append(pose)
            views[f"cam{arm}"], keys[f"cam{arm}"] = pictures, f"robot_{arm}_front" if arms > 1 else "front"
    both = np.hstack(states)
    return Written(state=both, action=both, views=views, keys=keys, fps=20, order="bgr")


def fastumi_single(path: Path, real: Real) -> Written:
    return fastumi(path, real, arms=1)


def television(path: Path, real: Real) -> Written:
    """Open-TeleVision, post-processed: channels first, dots in the names."""
    state = np.hstack([real.joints] * 4)[:, :26].astype(np.float32)
    action = np.hstack([real.command] * 4).astype(np.float32)
    with h5py.File(path, "w") as file:
        file["observation.image.left"] = np.ascontiguousarray(real.front.transpose(0, 3, 1, 2))
        file["observation.image.right"] = np.ascontiguousarray(real.hand.transpose(0, 3, 1, 2))
        file["observation.state"], file["qpos_action"] = state, action
        file["cmds"] = np.zeros((len(real), 48), np.float32)
        file["ee_action"] = np.zeros((len(real), 26), np.float32)
        file.attrs["sim"], file.attrs["init_action"] = False, np.zeros(48, np.float32)
    return Written(
        state=state,
        action=action,
        views={"cam0": real.front, "cam1": real.hand},
        keys={"cam0": "left", "cam1": "right"},
        fps=60,
    )


def robotwin_legacy(path: Path, real: Real) -> Written:
    """RoboTwin's pkl2hdf5: joints alone, the action to be the next row's; instructions in a folder beside."""
    arm, grip = real.joints[:, :6], real.command[:, 6]
    joints = {"left_arm": arm, "left_gripper": grip, "right_arm": arm * 2, "right_gripper": grip * 2}
    vector = np.hstack([arm, grip[:, None], arm * 2, grip[:, None] * 2])
    path = path.parent / "data/episode3.hdf5"
    path.parent.mkdir()
    with h5py.File(path, "w") as file:
        for name, values in {**joints, "vector": vector}.items():
            file[f"joint_action/{name}"] = values
        file["endpose/left_endpose"] = real.joints
        file["pointcloud"] = np.zeros((len(real), 0))
        for name, pictures in (("head_camera", real.front), ("left_camera", real.hand)):
            encoded = [opencv_jpeg(view) for view in pictures]
            file[f"observation/{name}/rgb"] = np.array(encoded, f"S{max(map(len, encoded))}")
            file[f"observation/{name}/intrinsic_cv"] = np.zeros((len(real), 3, 3))
    lines = path.parent.parent / "instructions/episode3.json"
    lines.parent.mkdir()
    lines.write_text(json.dumps({"seen": ["Lift the cube.", "Take the cube."], "unseen": ["Raise the block."]}))
    return Written(
        state=vector[:-1],
        action=vector[1:],
        views={"cam0": real.front[:-1], "cam1": real.hand[:-1]},
        keys={"cam0": "head", "cam1": "left"},
        task="Lift the cube.",
        fps=250 / 15,
        order="bgr",
        pairing="action of the next row",
    )


def robotwin(path: Path, real: Real) -> Written:
    """RoboTwin v1.0: state and action paired by the writer."""
    names = ("left_arm_joint_states", "left_ee_joint_states", "right_arm_joint_states", "right_ee_joint_states")
    arm, grip = real.joints[:, :6].astype(np.float32), real.command[:, 6:].astype(np.float32)
    joints = [arm, grip, arm * 2, grip * 2]
    with h5py.File(path, "w") as file:
        for name, values in zip(names, joints, strict=True):
            file[f"state/{name}"], file[f"action/{name}"] = values[:-1], values[1:]
        file["state/left_ee_poses"] = np.zeros((len(real) - 1, 7), np.float32)
        for name, pictures in (("cam_head", real.front), ("cam_left_wrist", real.hand)):
            encoded = [opencv_jpeg(view) for view in pictures[:-1]]
            file[f"vision/{name}/colors"] = np.array(encoded, f"S{max(map(len, encoded))}")
            file[f"vision/{name}/shape"] = np.array([84, 84, 3], np.int32)
        file["instructions"] = json.dumps(["lift the cube", "take it"])
        file["additional_info/frequency"] = np.int32(15)
        file["data_format_version"] = "v1.0"
        file.attrs["source_format"] = "RoboTwin"
    whole = np.hstack(joints)
    return Written(
        state=whole[:-1],
        action=whole[1:],
        views={"cam0": real.front[:-1], "cam1": real.hand[:-1]},
        keys={"cam0": "cam_head", "cam1": "cam_left_wrist"},
        task="lift the cube",
        fps=15,
        order="bgr",
    )


def _trajectory(path: Path, embodiment: str, split: str = "train") -> Path:
    folder = path.parent / embodiment / "lift/success_episodes" / split / "1014_144602/data"
    folder.mkdir(parents=True)
    return folder / "trajectory.hdf5"


def robomind_agilex(path: Path, real: Real) -> Written:
    """RoboMIND, two real arms: puppet and master, JPEGs as they should be."""
    with h5py.File(_trajectory(path, "h5_agilex_3rgb"), "w") as file:
        file.attrs["sim"], file.attrs["compress"] = False, True
        for side, sign in (("left", 1), ("right", -1)):
            file[f"puppet/joint_position_{side}"] = real.joints * sign
            file[f"master/joint_position_{side}"] = real.command * sign
            file[f"puppet/end_effector_{side}"] = real.joints[:, :6]
        images = file.create_group("observations/rgb_images")
        vlen(images, "camera_front", [jpeg(view) for view in real.front])
        vlen(images, "camera_left_wrist", [jpeg(view) for view in real.hand])
        vlen(file.create_group("observations/depth_images"), "camera_front", [b"\x89PNG\r\n\x1a\n"] * len(real))
        vlen(file, "language_raw", [b"lift the cube"])
    return Written(
        state=np.hstack([real.joints, -real.joints]),
        action=np.hstack([real.command, -real.command]),
        views={"cam0": real.front, "cam1": real.hand},
        keys={"cam0": "camera_front", "cam1": "camera_left_wrist"},
        task="lift the cube",
        fps=30,
        pairing="same row (of the next row where nothing is commanded)",
    )


def robomind_franka(path: Path, real: Real) -> Written:
    """RoboMIND's Franka: the same, but for swapped colours and one arm."""
    with h5py.File(_trajectory(path, "h5_franka_1rgb", "val"), "w") as file:
        file["puppet/joint_position"], file["master/joint_position"] = real.joints, real.command
        vlen(file.create_group("observations/rgb_images"), "camera_top", [opencv_jpeg(view) for view in real.front])
    return Written(
        state=real.joints,
        action=real.command,
        views={"cam0": real.front},
        keys={"cam0": "camera_top"},
        fps=30,
        order="bgr",
        pairing="same row (of the next row where nothing is commanded)",
    )


def robomind_sim(path: Path, real: Real) -> Written:
    """RoboMIND's simulation: states alone, and raw pixels in the storage of JPEGs."""
    with h5py.File(_trajectory(path, "h5_simulation"), "w") as file:
        file.attrs["sim"], file.attrs["compress"] = True, False
        file["franka/joint_position"] = real.joints
        images = file.create_group("observations/rgb_images")
        vlen(images, "camera_front_external", [view.tobytes() for view in real.front])
        vlen(images, "camera_handeye", [view.tobytes() for view in real.hand])
    return Written(
        state=real.joints[:-1],
        action=real.joints[1:],
        views={"cam0": real.front[:-1], "cam1": real.hand[:-1]},
        keys={"cam0": "camera_front_external", "cam1": "camera_handeye"},
        fps=30,
        pairing="same row (of the next row where nothing is commanded)",
    )


def agilex_paths(path: Path, real: Real) -> Written:
    """AgileX data_tools with an index: rows are names of JPEG files in the episode's folder."""
    return _agilex(path, real, by_path=True)


def agilex_pixels(path: Path, real: Real) -> Written:
    """AgileX data_tools without an index: arrays as OpenCV reads files."""
    return _agilex(path, real, by_path=False)


def _agilex(path: Path, real: Real, *, by_path: bool) -> Written:
    folder = path.parent / "episode0"
    folder.mkdir()
    with h5py.File(folder / "data.hdf5", "w") as file:
        for name, pictures in (("front", real.front), ("left", real.hand)):
            if not by_path:
                file[f"camera/color/{name}"] = pictures[..., ::-1]
                continue
            place = folder / "camera/color" / name
            place.mkdir(parents=True)
            rows = []
            for k, view in enumerate(pictures):
                stamp = f"{1714000000 + k / 30:.6f}.jpg"
                (place / stamp).write_bytes(jpeg(view))
                rows.append(f"camera/color/{name}/{stamp}")
            file.create_dataset(f"camera/color/{name}", data=np.array(rows, object), dtype=h5py.string_dtype())
        for side, sign in (("Left", 1), ("Right", -1)):
            file[f"arm/jointStatePosition/puppet{side}"] = real.joints * sign
            file[f"arm/jointStatePosition/master{side}"] = real.command * sign
            file[f"arm/endPose/puppet{side}"] = real.joints
        file["timestamp"] = 1714000000 + np.arange(len(real)) / 30
        file["size"], file["instruction"] = len(real), "instructions.npy"
    np.save(folder / "instructions.npy", np.array(["lift the cube"]))
    return Written(
        state=np.hstack([real.joints, -real.joints]),
        action=np.hstack([real.command, -real.command]),
        views={"cam0": real.front, "cam1": real.hand},
        keys={"cam0": "front", "cam1": "left"},
        task="lift the cube",
        fps=30,
        order="rgb" if by_path else "bgr",
    )


def video(path: Path, frames: np.ndarray, *, fps: int = 30, faststart: bool = False) -> None:
    """H.264 in MP4 with B frames, chroma at full resolution."""
    from helpers.lerobot_fixtures import write_video

    options = {"g": "5", "bf": "2", "crf": "2"}
    write_video(path, list(frames), fps=fps, pixel_format="yuv444p", options=options, faststart=faststart)


def agibot(path: Path, real: Real) -> Written:
    """AgiBot World: commands at some rows, one group never commanded, videos and task beside."""
    root, count = path.parent, len(real)
    place = root / "proprio_stats/327/648642"
    place.mkdir(parents=True)
    joints, grip = np.hstack([real.joints, -real.joints]), np.abs(real.joints[:, :2]) * 100
    head = real.joints[:, 3:5]
    commanded = np.array([0, 1, 2, 5, 6, *range(9, count)])
    with h5py.File(place / "proprio_stats.h5", "w") as file:
        file["timestamp"] = (1_700_000_000_000_000_000 + np.arange(count) * (10**9 // 30)).astype(np.int64)
        file["state/joint/position"], file["state/effector/position"] = joints, grip
        file["state/head/position"] = head
        file["state/end/position"] = np.zeros((count, 2, 3))
        file["state/robot/position"] = np.zeros((0, 3))
        file["state/waist/position"] = np.zeros((0, 2))
        file["action/joint/position"] = (joints * 3)[commanded]
        file["action/joint/index"] = commanded
        file["action/effector/position"] = np.hstack([real.command[:, 6:]] * 2)
        file["action/effector/index"] = np.arange(count)
        file["action/head/position"], file["action/head/index"] = np.zeros((0, 2)), np.zeros(0, np.int64)
        file["action/waist/position"] = np.zeros((0, 2))
    videos = root / "observations/327/648642/videos"
    video(videos / "head_color.mp4", real.front)
    video(videos / "hand_left_color.mp4", real.hand)
    entry = {
        "episode_id": 648642,
        "task_name": "Pickup items in the supermarket",
        "label_info": {
            "action_config": [
                {"start_frame": 0, "end_frame": 4, "action_text": "Reach for it."},
                {"start_frame": 4, "end_frame": 500, "action_text": "Lift it."},
            ]
        },
    }
    (root / "task_info").mkdir()
    (root / "task_info/task_327.json").write_text(json.dumps([{"episode_id": 1, "task_name": "other"}, entry]))
    held = joints * 3
    for frame in range(count):
        held[frame] = joints[max(row for row in commanded if row <= frame)] * 3
    following = np.vstack([head[1:], head[-1:]])
    return Written(
        state=np.hstack([joints, grip, head]),
        action=np.hstack([held, np.hstack([real.command[:, 6:]] * 2), following]),
        views={"cam0": real.front, "cam1": real.hand},
        keys={"cam0": "head", "cam1": "hand_left"},
        task="Pickup items in the supermarket",
        fps=30,
        extras={"substep": ["Reach for it."] * 4 + ["Lift it."] * (count - 4)},
    )


SKIPPED = (0, 4, 5)
"""Rows of the DROID recording in which the robot was not moved."""


def droid(path: Path, real: Real) -> Written:
    """DROID raw: rows to be left out, one video a frame short, resizable datasets."""
    folder, count = path.parent / "success/2023-07-07/Fri_Jul_7", len(real)
    folder.mkdir(parents=True)
    enabled, skip = np.ones(count, bool), np.zeros(count, bool)
    enabled[[0, 4]] = False
    skip[[4, 5]] = True
    with h5py.File(folder / "trajectory.h5", "w") as file:

        def put(name: str, values: np.ndarray) -> None:
            file.create_dataset(name, data=values, maxshape=(None, *values.shape[1:]), chunks=True)

        put("observation/robot_state/joint_positions", real.joints)
        put("observation/robot_state/gripper_position", real.command[:, 6])
        put("observation/robot_state/cartesian_position", real.joints[:, :6])
        put("observation/controller_info/movement_enabled", enabled)
        put("observation/timestamp/skip_action", skip)
        put("observation/timestamp/control/step_start", np.arange(count) * 67 + 1_688_000_000_000)
        for serial, kind in (("17225336", 0), ("23404442", 1), ("29838012", 2)):
            put(f"observation/camera_type/{serial}", np.full(count, kind))
        put("action/joint_position", real.command)
        put("action/gripper_position", real.command[:, 6] * 0.5)
        put("action/joint_velocity", real.command * 9)
        file.attrs["success"], file.attrs["current_task"] = True, "Move object into or out of container"
    videos = folder / "recordings/MP4"
    video(videos / "17225336.mp4", real.hand, fps=60)
    video(videos / "23404442.mp4", real.front, fps=60)
    video(videos / "29838012.mp4", real.front[:-1, :, ::-1], fps=60)
    video(videos / "23404442-stereo.mp4", real.hand, fps=60)
    kept = [row for row in range(count) if row not in SKIPPED]
    short = [min(row, count - 2) for row in kept]
    return Written(
        state=np.hstack([real.joints, real.command[:, 6:]])[kept],
        action=np.hstack([real.command, real.command[:, 6:] * 0.5])[kept],
        views={"cam0": real.front[kept], "cam1": real.hand[kept], "cam2": real.front[short][:, :, ::-1]},
        keys={"cam0": "exterior_1", "cam1": "wrist", "cam2": "exterior_2"},
        task="Move object into or out of container",
        fps=15,
    )


WRITERS = {
    "act-sim": (act_sim, "aloha"),
    "mobile-aloha": (mobile_aloha, "aloha"),
    "act-plus-plus": (act_plus_plus, "aloha"),
    "cobot-magic": (cobot_magic, "aloha"),
    "rdt": (rdt, "aloha"),
    "unitree-h5": (unitree_h5, "aloha"),
    "fastumi": (fastumi, "fastumi"),
    "fastumi-single": (fastumi_single, "fastumi"),
    "television": (television, "television"),
    "robotwin-legacy": (robotwin_legacy, "robotwin-legacy"),
    "robotwin": (robotwin, "robotwin"),
    "robomind-agilex": (robomind_agilex, "robomind"),
    "robomind-franka": (robomind_franka, "robomind"),
    "robomind-sim": (robomind_sim, "robomind"),
    "agilex-paths": (agilex_paths, "agilex"),
    "agilex-pixels": (agilex_pixels, "agilex"),
    "agibot": (agibot, "agibot"),
    "droid": (droid, "droid"),
}
"""Name -> writer (path of the file or of one in the folder to fill) and its dialect."""
