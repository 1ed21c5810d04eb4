"""More raw sources for the demo: a LeRobot dataset with videos, Unitree recordings, and a navigation dataset."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, ImageDraw
from wdsmix.tools.demo_data import Pixels, draw, gripper_path, jpeg, shifted

__all__ = ["write_lerobot", "write_navigation", "write_unitree"]

Float64Array = npt.NDArray[np.float64]

_LAG = 3
_PILLARS = ((3.0, 1.5, "#b2302a"), (5.0, -1.2, "#2d5a8c"), (7.5, 0.4, "#3f7d4e"), (4.0, -3.0, "#c9a227"))


def write_lerobot(root: Path, *, episodes: int, frames: int, size: int) -> None:
    """A LeRobot v2.1 dataset: one parquet and two H.264 videos an episode.

    Raises:
        ConfigError: PyAV is not installed.
    """
    rng = np.random.default_rng(4)
    lines = []
    for episode in range(episodes):
        poses, block = gripper_path(rng, frames)
        state = np.concatenate([poses, np.sin(poses * 2)], axis=1).astype(np.float32)
        data = root / "data" / "chunk-000" / f"episode_{episode:06d}.parquet"
        data.parent.mkdir(parents=True, exist_ok=True)
        whole = pa.array(range(frames), pa.int64())
        columns = {
            "observation.state": pa.array(list(state), pa.list_(pa.float32(), 6)),
            "action": pa.array(list(shifted(state)), pa.list_(pa.float32(), 6)),
            "timestamp": pa.array((np.arange(frames) / 20).astype(np.float32)),
            "frame_index": whole,
            "episode_index": pa.array([episode] * frames, pa.int64()),
            "index": whole,
            "task_index": pa.array([0] * frames, pa.int64()),
        }
        pq.write_table(pa.table(columns), data)
        for camera, wrist in (("front", False), ("wrist", True)):
            video = root / "videos" / "chunk-000" / f"observation.images.{camera}" / f"episode_{episode:06d}.mp4"
            _write_video(video, [draw(pose, block, size, wrist) for pose in poses], rate=20)
        lines.append(json.dumps({"episode_index": episode, "tasks": ["lift the red block"], "length": frames}))
    vector = {"dtype": "float32", "shape": [6], "names": [f"joint_{k}" for k in range(6)]}
    picture = {"dtype": "video", "shape": [size, size, 3], "names": ["height", "width", "channel"]}
    info = {
        "codebase_version": "v2.1",
        "robot_type": "so100",
        "fps": 20,
        "total_episodes": episodes,
        "total_frames": episodes * frames,
        "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        "video_path": "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
        "features": {
            "observation.state": vector,
            "action": vector,
            "observation.images.front": picture,
            "observation.images.wrist": picture,
        },
    }
    (root / "meta").mkdir()
    (root / "meta" / "info.json").write_text(json.dumps(info, indent=1))
    (root / "meta" / "episodes.jsonl").write_text("\n".join(lines) + "\n")
    (root / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "lift the red block"}) + "\n")


def _write_video(path: Path, pictures: Sequence[Pixels], *, rate: int) -> None:
    from wdsmix.converters.video import load_av

    av = load_av()
    path.parent.mkdir(parents=True, exist_ok=True)
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.height, stream.width = pictures[0].shape[:2]
        stream.pix_fmt = "yuv420p"
        stream.bit_rate = 2_000_000
        stream.codec_context.thread_count = 1  # the same bytes on any number of cores
        for picture in pictures:
            for packet in stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in stream.encode(None):
            container.mux(packet)


def write_unitree(root: Path, *, episodes: int, frames: int, size: int) -> None:
    """Raw recordings of a G1 with two grippers, three cameras; the last one was cut off by a crash."""
    rng = np.random.default_rng(5)
    for episode in range(episodes):
        poses, block = gripper_path(rng, frames + _LAG)
        joints = np.concatenate([np.sin(poses * (k + 1)) for k in range(5)], axis=1)[:, :14]
        commanded = np.concatenate([joints, 5 * poses[:, 2:], 5 * poses[:, 2:] * 0.5], axis=1)
        folder = root / f"episode_{episode:04d}"
        (folder / "colors").mkdir(parents=True)
        items = []
        for k in range(frames):
            colors = {f"color_{camera}": f"colors/{k:06d}_color_{camera}.jpg" for camera in range(3)}
            for camera, name in enumerate(colors.values()):
                pose = poses[k] + [0.02 * camera, 0, 0]
                (folder / name).write_bytes(jpeg(draw(pose, block, size, wrist=camera > 0)).tobytes())
            items.append(
                {
                    "idx": k,
                    "colors": colors,
                    "depths": {},
                    "states": _parts(commanded[k]),
                    "actions": _parts(commanded[k + _LAG]),
                    "tactiles": None,
                    "audios": None,
                }
            )
        head = {
            "info": {"version": "1.0.0", "author": "unitree", "image": {"width": size, "height": size, "fps": 30.0}},
            "text": {"goal": "lift the red block", "desc": "", "steps": ""},
        }
        text = json.dumps(head)[:-1] + ', "data": [\n' + ",\n".join(map(json.dumps, items)) + "\n]}"
        (folder / "data.json").write_text(text[:-400] if episode == episodes - 1 else text)


def _parts(numbers: Float64Array) -> dict[str, object]:
    cuts = {"left_arm": (0, 7), "right_arm": (7, 14), "left_ee": (14, 15), "right_ee": (15, 16)}
    return {part: {"qpos": numbers[a:b].tolist(), "qvel": [], "torque": []} for part, (a, b) in cuts.items()}


def write_navigation(root: Path, splits: Path, *, trajectories: int, frames: int, size: int) -> None:
    """GNM folders of drives among pillars, with a published split; one has a picture more than poses."""
    rng = np.random.default_rng(6)
    for number in range(trajectories):
        position, yaw = _drive(rng, frames)
        folder = root / f"drive_{number}"
        folder.mkdir(parents=True)
        for k in range(frames):
            (folder / f"{k}.jpg").write_bytes(jpeg(_view(position[k], yaw[k], size)).tobytes())
        if number == 0:
            (folder / f"{frames}.jpg").write_bytes(jpeg(_view(position[-1], yaw[-1], size)).tobytes())
        poses = {"position": position.tolist(), "yaw": yaw.tolist()}
        (folder / "traj_data.pkl").write_bytes(pickle.dumps(poses, protocol=4))
    held_out = trajectories - max(1, trajectories // 4)
    for split, numbers in (("train", range(held_out)), ("test", range(held_out, trajectories))):
        (splits / split).mkdir(parents=True)
        (splits / split / "traj_names.txt").write_text("".join(f"drive_{number}\n" for number in numbers))


def _drive(rng: np.random.Generator, frames: int) -> tuple[Float64Array, Float64Array]:
    """A drive towards the red pillar, steered by where it is seen: positions [T, 2] in m, headings [T] in rad."""
    x, y, _ = _PILLARS[0]
    at, heading = rng.uniform([-4.0, -1.5], [-2.5, 1.5]), float(rng.uniform(-0.7, 0.7))
    heading += math.atan2(y - at[1], x - at[0])
    position, yaw = np.zeros((frames, 2)), np.zeros(frames)
    for k in range(frames):
        position[k], yaw[k] = at, heading
        bearing = math.atan2(y - at[1], x - at[0]) - heading
        heading += 0.12 * bearing + float(rng.normal(0, 0.004))
        at = at + 0.12 * np.array([math.cos(heading), math.sin(heading)])
    return position, yaw


def _view(position: Float64Array, yaw: float, size: int) -> Pixels:
    """What a camera on the robot sees: floor, sky, pillars."""
    width, height = size * 4 // 3, size
    image = Image.new("RGB", (width, height), (188, 202, 214))
    canvas = ImageDraw.Draw(image)
    canvas.rectangle((0, height // 2, width, height), fill=(128, 120, 108))
    seen = []
    for x, y, colour in _PILLARS:
        dx, dy = x - float(position[0]), y - float(position[1])
        ahead, left = (
            math.cos(yaw) * dx + math.sin(yaw) * dy,
            math.cos(yaw) * dy - math.sin(yaw) * dx,
        )
        if ahead > 0.2:
            seen.append((ahead, left, colour))
    for ahead, left, colour in sorted(seen, reverse=True):
        middle, half, tall = width / 2 - left / ahead * width / 2, 0.25 / ahead * width / 2, 0.9 / ahead * height / 2
        box = (middle - half, height / 2 - tall, middle + half, height / 2 + 0.4 / ahead * height / 2)
        canvas.rectangle(box, fill=colour)
    return np.asarray(image)
