"""Small raw sources for the demo: drawn scenes, written with plain h5py in three layouts of the field.

The scene is a table seen from the front and from the wrist: a gripper goes to a block and lifts it. Pictures, states
and actions belong together, so that a policy can learn something from them.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

__all__ = ["Pixels", "draw", "gripper_path", "jpeg", "shifted", "write_aloha", "write_platform", "write_robomimic"]

Pixels = npt.NDArray[np.uint8]


def gripper_path(rng: np.random.Generator, frames: int) -> tuple[npt.NDArray[np.float64], float]:
    """Gripper positions [T, 3] (x, height, opening; all 0 to 1), and where the block lies."""
    block = float(rng.uniform(0.2, 0.8))
    start = np.array([rng.uniform(0.1, 0.9), 0.9, 1.0])
    stops = np.array([start, [block, 0.6, 1.0], [block, 0.15, 1.0], [block, 0.15, 0.2], [block, 0.8, 0.2]])
    times = np.linspace(0, len(stops) - 1, frames)
    eased = np.floor(times) + (1 - np.cos(np.pi * (times % 1))) / 2
    return np.stack([np.interp(eased, np.arange(len(stops)), column) for column in stops.T], axis=1), block


def draw(pose: npt.NDArray[np.float64], block: float, size: int, wrist: bool) -> Pixels:
    """The scene at a pose of `gripper_path`: uint8 [size, size, 3]."""
    x, height, opening = (float(value) for value in pose)
    image = Image.new("RGB", (size, size), (206, 201, 190))
    draw = ImageDraw.Draw(image)
    shift = x - 0.5 if wrist else 0.0
    zoom = 1.6 if wrist else 1.0

    def at(u: float, v: float) -> tuple[float, float]:
        return ((u - shift - 0.5) * zoom + 0.5) * size, ((0.9 - v * 0.75 - 0.5) * zoom + 0.5) * size

    draw.rectangle((0, min(at(0, 0.02)[1], size), size, size), fill=(139, 105, 78))
    held = opening < 0.35
    base = height - 0.05 if held else 0.05
    side = x if held else block
    draw.rectangle((*at(side - 0.06, base + 0.12), *at(side + 0.06, base - 0.02)), fill=(178, 48, 42))
    for sign in (-1, 1):
        finger = x + sign * (0.05 + 0.06 * opening)
        draw.rectangle((*at(finger - 0.015, height + 0.22), *at(finger + 0.015, height)), fill=(60, 64, 72))
    draw.rectangle((*at(x - 0.13, height + 0.27), *at(x + 0.13, height + 0.2)), fill=(45, 90, 140))
    draw.line((*at(x, height + 0.25), *at(x, 1.6)), fill=(90, 95, 100), width=max(2, size // 24))
    return np.asarray(image)


def jpeg(pixels: Pixels) -> npt.NDArray[np.uint8]:
    """Its JPEG bytes, uint8 [N]."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=92, subsampling=0)
    return np.frombuffer(buffer.getvalue(), dtype=np.uint8)


def shifted(rows: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    """Each row's next one; the last again."""
    return np.concatenate([rows[1:], rows[-1:]])


def write_robomimic(path: Path, *, episodes: int, frames: int, size: int) -> None:
    """One robomimic file: raw pictures, delta actions, a published split in ``mask/``."""
    rng = np.random.default_rng(1)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(
            {"env_name": "Lift", "type": 1, "env_kwargs": {"control_freq": 20, "robots": "Panda"}}
        )
        for number in range(episodes):
            poses, block = gripper_path(rng, frames)
            demo = data.create_group(f"demo_{number}")
            demo.attrs["num_samples"] = frames
            delta = np.zeros((frames, 7))
            delta[:, [0, 2]] = (shifted(poses) - poses)[:, :2] * 20
            delta[:, 6] = np.where(shifted(poses)[:, 2] < 0.5, 1.0, -1.0)
            demo["actions"] = delta
            demo["rewards"] = (poses[:, 1] > 0.7) * (poses[:, 2] < 0.3) * 1.0
            demo["dones"] = np.arange(frames) == frames - 1
            demo["obs/robot0_eef_pos"] = poses @ np.array([[1, 0, 0], [0, 0, 1], [0, 0, 0]])
            demo["obs/robot0_eef_quat"] = np.tile([1.0, 0.0, 0.0, 0.0], (frames, 1))
            demo["obs/robot0_gripper_qpos"] = poses[:, 2:] * [[0.04, -0.04]]
            demo["obs/agentview_image"] = np.stack([draw(pose, block, size, wrist=False) for pose in poses])
            demo["obs/robot0_eye_in_hand_image"] = np.stack([draw(pose, block, size, wrist=True) for pose in poses])
        names = [f"demo_{number}".encode() for number in range(episodes)]
        file["mask/train"] = np.array(names[: -(episodes // 4)])
        file["mask/valid"] = np.array(names[-(episodes // 4) :])


def write_platform(folder: Path, *, chunks: int, episodes: int, frames: int, size: int) -> None:
    """A platform export: several chunk files, JPEG in variable-length rows, a task in two languages, a score."""
    rng = np.random.default_rng(2)
    rows = h5py.vlen_dtype(np.uint8)
    for chunk in range(chunks):
        with h5py.File(folder / f"chunk_{chunk + 1:03d}.hdf5", "w") as file:
            file.create_group("meta")
            for number in range(episodes):
                length = frames + int(rng.integers(-8, 9))
                poses, block = gripper_path(rng, length)
                episode = file.create_group(f"data/episode_{number + 1:03d}")
                episode.attrs["task"] = "lift the red block"
                episode.attrs["task_zh"] = "拿起红色方块"
                episode.attrs["score"] = float(round(rng.uniform(3, 5), 1))
                joints = np.concatenate([poses, poses**2, np.sin(poses * 3), np.cos(poses * 3)], axis=1)
                episode["action"] = shifted(joints).astype(np.float32)
                episode["observation.state"] = joints.astype(np.float32)
                episode["observation.gripper"] = poses[:, 2:].astype(np.float32)
                for camera, wrist in (("camera_01", False), ("camera_02", True)):
                    column = episode.create_dataset(f"observation.images.{camera}", (length,), dtype=rows)
                    for row, pose in enumerate(poses):
                        column[row] = jpeg(draw(pose, block, size, wrist))


def write_aloha(folder: Path, *, episodes: int, frames: int, size: int) -> None:
    """ALOHA files, one an episode: zero-padded JPEG rows whose red and blue are swapped, as its recorder writes."""
    rng = np.random.default_rng(3)
    for number in range(episodes):
        poses, block = gripper_path(rng, frames)
        joints = np.concatenate([poses, poses[:, :1] * 0.5, poses**2, np.tile(poses, 2), poses[:, :1]], axis=1)[:, :14]
        with h5py.File(folder / f"episode_{number}.hdf5", "w") as file:
            file.attrs["sim"] = False
            file.attrs["compress"] = True
            file["action"] = shifted(joints).astype(np.float32)
            file["observations/qpos"] = joints.astype(np.float32)
            for camera, wrist in (("cam_high", False), ("cam_left_wrist", True)):
                pictures = [jpeg(draw(pose, block, size, wrist)[:, :, ::-1]) for pose in poses]
                padded = np.zeros((frames, max(map(len, pictures))), dtype=np.uint8)
                for row, picture in enumerate(pictures):
                    padded[row, : len(picture)] = picture
                file[f"observations/images/{camera}"] = padded
