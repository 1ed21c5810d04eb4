"""Real demonstrations re-laid, by plain h5py code, into the layouts of simulators and of offline-RL suites."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
from helpers.hdf5_fixtures import jpeg, pictures, vectors


@dataclass(frozen=True, kw_only=True)
class Demo:
    """One demonstration, in time: observation t, then action t."""

    front: np.ndarray
    wrist: np.ndarray
    pos: np.ndarray
    quat: np.ndarray
    gripper: np.ndarray
    joints: np.ndarray
    speeds: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    dones: np.ndarray

    def __len__(self) -> int:
        return len(self.actions)

    def state(self, *names: str) -> np.ndarray:
        return np.hstack([getattr(self, name) for name in names]).astype(np.float32)


def lift(samples: Path, rows: int = 8) -> list[Demo]:
    """The first rows of the three real demonstrations; the last one of each is a success."""
    demos = []
    with h5py.File(samples / "hdf5/robomimic_lift_images/test_first3.hdf5", "r", locking=False) as file:
        for name in ("demo_0", "demo_1", "demo_8"):
            group = file[f"data/{name}"]
            obs = {key: values[:rows] for key, values in group["obs"].items()}
            demos.append(
                Demo(
                    front=obs["agentview_image"],
                    wrist=obs["robot0_eye_in_hand_image"],
                    pos=obs["robot0_eef_pos"],
                    quat=obs["robot0_eef_quat"],
                    gripper=obs["robot0_gripper_qpos"],
                    joints=obs["robot0_joint_pos"],
                    speeds=obs["robot0_joint_vel"],
                    actions=group["actions"][:rows],
                    rewards=np.linspace(0, 1, rows),
                    dones=np.eye(1, rows, rows - 1, dtype=bool)[0],
                )
            )
    return demos


def made(count: int = 3, rows: int = 8) -> list[Demo]:
    """Invented demonstrations, for what needs no real frames."""
    demos = []
    for seed in range(count):
        widths = {"pos": 3, "quat": 4, "gripper": 2, "joints": 7, "speeds": 7, "actions": 7}
        streams = {name: vectors(rows, width, 10 * seed + k) for k, (name, width) in enumerate(widths.items())}
        views = {name: pictures(rows, seed=seed + k, width=84, height=84) for k, name in enumerate(("front", "wrist"))}
        ends = np.eye(1, rows, rows - 1, dtype=bool)[0]
        demos.append(Demo(**streams, **views, rewards=np.linspace(0, 1, rows), dones=ends))
    return demos


ENV = {
    "env_name": "Lift",
    "type": 1,
    "env_kwargs": {"control_freq": 20, "robots": ["Panda"], "controller_configs": {"type": "OSC_POSE"}},
}


def write_mimicgen(path: Path, demos: Sequence[Demo], env: dict[str, object] | None = None) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(env or ENV)
        data.attrs["total"] = sum(map(len, demos))
        for number, demo in enumerate(demos):
            group = data.create_group(f"demo_{number}")
            group.attrs["model_file"] = "<mujoco/>"
            group["actions"] = demo.actions
            group["rewards"], group["dones"] = demo.rewards, demo.dones.astype(np.int64)
            group["states"] = np.zeros((len(demo), 32))
            group["obs/agentview_image"], group["obs/robot0_eye_in_hand_image"] = demo.front, demo.wrist
            group["obs/robot0_eef_pos"], group["obs/robot0_eef_quat"] = demo.pos, demo.quat
            group["obs/robot0_gripper_qpos"] = demo.gripper
            group["datagen_info/eef_pose"] = np.zeros((len(demo), 4, 4))
            group["datagen_info/subtask_term_signals/grasp"] = np.zeros(len(demo), np.int64)
            group["src_demo_inds"] = np.arange(3)


def write_robocasa(path: Path, demos: Sequence[Demo], more_states: int = 50) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({**ENV, "env_name": "CloseDrawer"})
        for number, demo in enumerate(demos, 1):
            group = data.create_group(f"demo_{number}")
            group.attrs["ep_meta"] = json.dumps({"lang": f"close drawer {number}", "layout_id": 3})
            group["actions"], group["states"] = demo.actions, np.zeros((len(demo) + more_states, 32))
            group["obs/robot0_agentview_left_image"] = demo.front
            group["obs/robot0_agentview_right_image"] = demo.front[:, :, ::-1]
            group["obs/robot0_eye_in_hand_image"] = demo.wrist
            group["obs/robot0_eef_pos"], group["obs/robot0_eef_quat"] = demo.pos, demo.quat
            group["obs/robot0_gripper_qpos"] = demo.gripper


def write_libero(
    path: Path,
    demos: Sequence[Demo],
    *,
    attributes: bool = True,
    convention: str = "opengl",
    language: object = "pick up the cube",
) -> None:
    """As LIBERO's released files: pictures upside down, the observation stored after its action.

    So row t holds action t and observation t+1; the last observation is repeated, as nothing follows it.
    """
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        if attributes:
            data.attrs["problem_info"] = json.dumps({"problem_name": "x", "language_instruction": language})
            data.attrs["bddl_file_name"] = "bddl_files/x.bddl"
            data.attrs["macros_image_convention"] = convention
            data.attrs["env_args"] = json.dumps({**ENV, "env_name": "Libero_Tabletop_Manipulation"})
            data.attrs["num_demos"], data.attrs["total"] = len(demos), 9999
        for number, demo in enumerate(demos):
            after = np.minimum(np.arange(len(demo)) + 1, len(demo) - 1)
            group = data.create_group(f"demo_{number}")
            group["actions"] = demo.actions
            group["rewards"] = group["dones"] = demo.dones.astype(np.uint8)
            group["robot_states"] = np.hstack([demo.gripper, demo.pos, demo.quat])[after]
            group["states"] = np.zeros((len(demo), 47))
            obs = group.create_group("obs")
            turn = slice(None, None, -1) if convention == "opengl" else slice(None)
            obs["agentview_rgb"], obs["eye_in_hand_rgb"] = demo.front[after][:, turn], demo.wrist[after][:, turn]
            obs["agentview_depth"] = np.ones((len(demo), 84, 84, 1), np.float32)
            obs["gripper_states"], obs["joint_states"] = demo.gripper[after], demo.joints[after]
            obs["ee_pos"], obs["ee_ori"] = demo.pos[after], demo.quat[after][:, :3]
            obs["ee_states"] = np.hstack([demo.pos, demo.quat[:, :3]])[after]


def write_isaac(
    path: Path,
    demos: Sequence[Demo],
    *,
    name: str = "Isaac-Stack-Cube-Franka-IK-Rel-v0",
    success: Sequence[bool | None] = (True, True, True),
    nested: str = "",
    compression: str | None = "gzip",
) -> None:
    """As Isaac Lab's recorder: ``obs/actions`` a row late, ``states`` a row early, joints relative to the default."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": name, "type": 2})
        for number, demo in enumerate(demos):
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"], group.attrs["seed"] = len(demo), 42
            if success[number] is not None:
                group.attrs["success"] = np.bool_(success[number])
            after = np.minimum(np.arange(len(demo)) + 1, len(demo) - 1)
            late = np.vstack([np.zeros((1, 7)), demo.actions[:-1]])
            streams = {
                "actions": demo.actions.astype(np.float32),
                f"obs/{nested}actions": late.astype(np.float32),
                f"obs/{nested}joint_pos": (demo.joints - demo.joints[0]).astype(np.float32),
                f"obs/{nested}eef_pos": demo.pos.astype(np.float32),
                f"obs/{nested}table_cam": demo.front,
                f"obs/{nested}wrist_cam": demo.wrist,
                f"obs/{nested}table_cam_depth": np.ones((len(demo), 84, 84, 1), np.float32),
                f"obs/{nested}semantic_segmentation": np.ones((len(demo), 84, 84, 4), np.uint8),
                "obs/datagen_info/eef_pose/franka": np.zeros((len(demo), 4, 4), np.float32),
                "obs/datagen_info/subtask_term_signals/grasp": np.zeros(len(demo), bool),
                "states/articulation/robot/joint_position": demo.joints[after].astype(np.float32),
                "states/rigid_object/cube/root_pose": np.zeros((len(demo), 7), np.float32),
                "initial_state/articulation/robot/joint_position": demo.joints[:1].astype(np.float32),
            }
            for key, values in streams.items():
                shape = (None, *values.shape[1:])
                chunks = (100, *values.shape[1:])
                group.create_dataset(key, data=values, maxshape=shape, chunks=chunks, compression=compression)


def write_maniskill(
    path: Path,
    demos: Sequence[Demo],
    *,
    version: int = 3,
    mode: str = "pd_ee_delta_pose",
    success: Sequence[bool | None] = (True, False, True),
    sidecar: bool = True,
    rate: float | None = None,
) -> None:
    """As ManiSkill's replay: one observation more than actions; the third demonstration's number is 10."""
    numbers = [0, 1, 10][: len(demos)]
    with h5py.File(path, "w", track_order=True) as file:
        for number, demo, fine in reversed(list(zip(numbers, demos, success, strict=False))):
            group = file.create_group(f"traj_{number}", track_order=True)
            count = len(demo) - 1  # the last observation is the one after the last action
            group["actions"] = demo.actions[:count].astype(np.float32)
            group["rewards"] = demo.rewards[:count].astype(np.float32)
            group["terminated"] = group["truncated"] = np.eye(1, count, count - 1, dtype=bool)[0]
            if fine is not None:
                group["success"] = np.eye(1, count, count - 1, dtype=bool)[0] & fine
            group["obs/agent/qpos"], group["obs/agent/qvel"] = demo.joints, demo.speeds
            group["obs/extra/tcp_pose"] = np.hstack([demo.pos, demo.quat])
            for camera, views in (("base_camera", demo.front), ("hand_camera", demo.wrist)):
                if version == 3:
                    place, alpha = f"obs/sensor_data/{camera}", []
                else:
                    place, alpha = f"obs/image/{camera}", [np.full((*views.shape[:3], 1), 255, np.uint8)]
                pixels = np.concatenate([views, *alpha], -1)
                group.create_dataset(f"{place}/rgb", data=pixels, compression="gzip", compression_opts=5)
                group[f"{place}/depth"] = np.ones((*views.shape[:3], 1), np.int16)
            if version == 3:
                group["env_states/actors/cube"] = np.zeros((len(demo), 13), np.float32)
                group["env_states/articulations/panda"] = np.ones((len(demo), 31), np.float32)
            else:
                group["env_states"] = np.zeros((len(demo), 44), np.float32)
    kwargs: dict[str, object] = {"obs_mode": "rgb", "control_mode": mode, "robot_uids": "panda"}
    if rate:
        kwargs["sim_config"] = {"control_freq": rate}
    record = {
        "env_info": {"env_id": "PickCube-v1", "env_kwargs": kwargs, "max_episode_steps": None},
        "episodes": [
            {"episode_id": number, "episode_seed": 7 + number, "control_mode": mode, "elapsed_steps": len(demo) - 1}
            | ({} if fine is None else {"success": fine})
            for number, demo, fine in zip(numbers, demos, success, strict=False)
        ],
    }
    if sidecar:
        path.with_suffix(".json").write_text(json.dumps(record))


def write_minari(folder: Path, demos: Sequence[Demo], *, pictures: str = "vlen", newer: bool = True) -> Path:
    """A data set of Minari: one observation more than actions, pictures as JPEG rows or raw; returns its file."""
    place = folder / "data"
    place.mkdir(parents=True)
    spec = json.dumps({"id": "FetchPickAndPlace-v4", "kwargs": {}})
    with h5py.File(place / "main_data.hdf5", "w", track_order=True) as file:
        if not newer:
            file.attrs["env_spec"], file.attrs["dataset_id"] = spec, "fetch/pick-v0"
        for number, demo in enumerate(demos):
            group = file.create_group(f"episode_{number}")
            count = len(demo) - 1
            group.attrs["id"], group.attrs["seed"], group.attrs["total_steps"] = number, 1, count
            group["actions"] = demo.actions[:count].astype(np.float32)
            group["rewards"] = demo.rewards[:count]
            group["terminations"] = np.eye(1, count, count - 1, dtype=bool)[0]
            group["truncations"] = np.zeros(count, bool)
            group["infos/success"] = np.zeros(len(demo), bool)
            if pictures == "none":
                group["observations"] = np.hstack([demo.joints, demo.pos])
                continue
            group["observations/robot/_index_0"] = demo.joints
            group["observations/robot/_index_1"] = demo.pos
            encoded = [jpeg(view, 95) for view in demo.front]
            if pictures == "vlen":
                rows = group.create_dataset("observations/camera", (len(demo),), dtype=h5py.vlen_dtype(np.uint8))
                for row, data in enumerate(encoded):
                    rows[row] = np.frombuffer(data, np.uint8)
            elif pictures == "equal":  # all JPEGs as long as the longest: a plain two-dimensional array
                longest = max(map(len, encoded))
                plain = [np.frombuffer(data.ljust(longest, b"\0"), np.uint8) for data in encoded]
                group["observations/camera"] = np.stack(plain)
            else:
                group["observations/camera"] = demo.front
    if newer:
        (place / "metadata.json").write_text(json.dumps({"dataset_id": "fetch/pick-v0", "env_spec": spec}))
    return place / "main_data.hdf5"


def write_robohive(path: Path, demos: Sequence[Demo], *, step: float = 0.08, last: bool = True) -> None:
    """Trials of RoboHive; ``last``: with a last row that has an observation and no action."""
    with h5py.File(path, "w") as file:
        for number, demo in enumerate(demos):
            group = file.create_group(f"Trial{number}")
            actions = demo.actions.copy()
            if last:
                actions[-1] = np.nan
            options = {"compression": "gzip"}
            group.create_dataset("actions", data=actions, **options)
            group.create_dataset("observations", data=np.hstack([demo.joints, demo.pos]), **options)
            group.create_dataset("rewards", data=demo.rewards, **options)
            group.create_dataset("done", data=demo.dones, **options)
            group.create_dataset("time", data=3.0 + step * np.arange(len(demo)), **options)
            group.create_dataset("env_infos/obs_dict/qp", data=demo.joints, **options)
            visual = "env_infos/visual_dict"
            group.create_dataset(f"{visual}/rgb:top_cam:84x84:2d", data=demo.front, **options)
            group.create_dataset(f"{visual}/rgb:wrist_cam:84x84:2d", data=demo.wrist, **options)
            group.create_dataset(f"{visual}/d:top_cam:84x84:2d", data=np.ones((len(demo), 84, 84)), **options)


def write_d4rl(path: Path, demos: Sequence[Demo], *, timeouts: bool = True, following: bool = False) -> None:
    """All rows one after the other; episodes end by success, by timeout, and with the file."""
    ends = np.concatenate([np.eye(1, len(demo), len(demo) - 1, dtype=bool)[0] for demo in demos])
    which = np.repeat(np.arange(len(demos)), [len(demo) for demo in demos])
    rows = np.concatenate([demo.state("joints", "pos") for demo in demos])
    with h5py.File(path, "w") as file:
        file.create_dataset("observations", data=rows, compression="gzip", chunks=(5, rows.shape[1]))
        file["actions"] = np.concatenate([demo.actions for demo in demos]).astype(np.float32)
        file["rewards"] = np.concatenate([demo.rewards for demo in demos]).astype(np.float32)
        file["terminals"] = ends & (which == 0)
        file["infos/qpos"] = np.zeros((len(rows), 3))
        if timeouts:
            file["timeouts"] = ends & (which == 1)
        if following:
            after = np.concatenate(
                [np.vstack([demo.state("joints", "pos")[1:], np.full((1, 10), 9)]) for demo in demos]
            )
            file["next_observations"] = after.astype(np.float32)
