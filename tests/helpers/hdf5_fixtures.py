"""Independent writers: plain h5py code that lays frames into the layouts that recorders and exporters write."""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
from PIL import Image
from wdsmix.converters import hdf5
from wdsmix.converters.base import Source
from wdsmix.converters.hdf5.options import options_from
from wdsmix.converters.hdf5.reader import Hdf5Source
from wdsmix.converters.options import add_mapping_options

STORAGES = ("vlen", "padded", "fixed", "opaque", "int8", "group", "raw", "raw_chw")
ENCODED = ("vlen", "padded", "fixed", "opaque", "int8", "group")


def pictures(count: int, *, seed: int = 0, width: int = 64, height: int = 48) -> np.ndarray:
    """uint8 [T, H, W, 3]: smooth, coloured, upright (bright above), different in each frame."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float32)
    frames = []
    for t in range(count):
        red = 200 - 140 * y / height + 20 * np.sin((x + 3 * t + seed) / 9)
        green = 60 + 80 * x / width + 0 * y
        blue = 30 + 20 * np.cos((y + 2 * t + 5 * seed) / 7)
        frames.append(np.stack([red, green, blue], -1))
    return np.clip(np.array(frames), 0, 255).astype(np.uint8)


def jpeg(picture: np.ndarray, quality: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


def write_camera(group: h5py.Group, name: str, frames: np.ndarray | Sequence[bytes], storage: str) -> list[bytes]:
    """Writes a camera in one storage class; returns the encoded pictures (empty for raw)."""
    if storage == "raw":
        group.create_dataset(name, data=frames, chunks=(1, *frames.shape[1:]))
        return []
    if storage == "raw_chw":
        group.create_dataset(name, data=np.ascontiguousarray(frames.transpose(0, 3, 1, 2)))
        return []
    encoded = [frame if isinstance(frame, bytes) else jpeg(frame) for frame in frames]
    longest = max(len(data) for data in encoded) + 7
    padded = np.zeros((len(encoded), longest), np.uint8)
    for row, data in enumerate(encoded):
        padded[row, : len(data)] = np.frombuffer(data, np.uint8)
    if storage == "vlen":
        dataset = group.create_dataset(name, (len(encoded),), dtype=h5py.vlen_dtype(np.uint8))
        for row, data in enumerate(encoded):
            dataset[row] = np.frombuffer(data, np.uint8)
    elif storage == "padded":
        group.create_dataset(name, data=padded, chunks=(1, longest), compression="gzip")
    elif storage == "int8":
        group.create_dataset(name, data=padded.view(np.int8))
    elif storage == "fixed":
        group.create_dataset(name, data=np.array(encoded, dtype=f"S{longest}"))
    elif storage == "opaque":
        group.create_dataset(name, data=padded.reshape(-1).view(f"V{longest}"))
    elif storage == "group":
        inner = group.create_group(name)
        for row, data in enumerate(encoded):
            inner.create_dataset(str(row), data=np.void(data))
    else:
        raise ValueError(storage)
    return encoded


def vectors(count: int, width: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, width)) * 0.3


def write_platform(
    path: Path,
    *,
    episodes: Sequence[int] = (1, 2),
    frames: int = 12,
    storage: str = "vlen",
    gripper: bool = True,
    cameras: Sequence[str] = ("camera_01", "camera_02"),
    seed: int = 0,
    attrs: bool = True,
) -> dict[str, dict[str, object]]:
    """A chunk of the platform's export; returns what was written, by episode."""
    written: dict[str, dict[str, object]] = {}
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        file.create_group("meta")
        for number in episodes:
            name = f"episode_{number:03d}"
            group = data.create_group(name)
            state = vectors(frames, 7, seed * 100 + number).astype(np.float32)
            action = vectors(frames, 6, seed * 100 + number + 50).astype(np.float32)
            entry: dict[str, object] = {"state": state, "action": action}
            group["observation.state"], group["action"] = state, action
            if gripper:
                grip = vectors(frames, 2, seed * 100 + number + 77).astype(np.float32)
                group["observation.gripper"] = grip
                entry["gripper"] = grip
            for index, camera in enumerate(cameras):
                views = pictures(frames, seed=number * 7 + index * 3 + seed)
                entry[f"pixels:{camera}"] = views
                entry[f"jpeg:{camera}"] = write_camera(group, f"observation.images.{camera}", views, storage)
            if attrs:
                group.attrs["task"] = f"put block {number} into the box"
                group.attrs["task_zh"] = f"把积木{number}放进盒子"
                group.attrs["score"] = 0.5 + 0.1 * number
            written[name] = entry
    return written


def write_robomimic(
    path: Path, *, demos: Sequence[int] = (0, 1, 10), frames: int = 9, env_args: object = None, masks: bool = True
) -> dict[str, dict[str, np.ndarray]]:
    """A robomimic image set."""
    written = {}
    env = env_args or {
        "env_name": "Lift",
        "type": 1,
        "env_kwargs": {"control_freq": 20, "robots": ["Panda"], "controller_configs": {"type": "OSC_POSE"}},
    }
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = env if isinstance(env, str) else json.dumps(env)
        for number in demos:
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"] = frames
            entry = {
                "actions": np.clip(vectors(frames, 7, number), -1, 1),
                "robot0_eef_pos": vectors(frames, 3, number + 1),
                "robot0_eef_quat": vectors(frames, 4, number + 2),
                "robot0_gripper_qpos": vectors(frames, 2, number + 3),
                "agentview_image": pictures(frames, seed=number, width=84, height=84),
                "robot0_eye_in_hand_image": pictures(frames, seed=number + 5, width=84, height=84),
            }
            group["actions"] = entry["actions"]
            group["rewards"] = np.eye(1, frames, frames - 1)[0]
            group["dones"] = np.eye(1, frames, frames - 1, dtype=np.int64)[0]
            group["states"] = vectors(frames + 3, 32, number)
            for key in list(entry)[1:]:
                group[f"obs/{key}"] = entry[key]
            written[f"demo_{number}"] = entry
        if masks:
            file["mask/train"] = np.array([f"demo_{n}".encode() for n in demos[:-1]])
            file["mask/valid"] = np.array([f"demo_{n}".encode() for n in demos[-1:]])
    return written


def write_aloha(path: Path, *, frames: int = 10, storage: str = "raw", swapped: bool = True) -> dict[str, object]:
    """One ALOHA episode; ``swapped`` hands RGB to an encoder that expects BGR, as the recorders do."""
    views = {name: pictures(frames, seed=k) for k, name in enumerate(("cam_low", "cam_left_wrist", "cam_high"))}
    qpos, action = vectors(frames, 14, 1).astype(np.float32), vectors(frames, 14, 2).astype(np.float32)
    with h5py.File(path, "w") as file:
        file.attrs["sim"] = False
        file.attrs["compress"] = storage != "raw"
        file["action"], file["observations/qpos"] = action, qpos
        file["observations/qvel"] = vectors(frames, 14, 3).astype(np.float32)
        file["base_action"] = vectors(frames, 2, 4).astype(np.float32)
        images = file.create_group("observations/images")
        for name, frames_of in views.items():
            shown = frames_of[..., ::-1] if swapped and storage != "raw" else frames_of
            write_camera(images, name, np.ascontiguousarray(shown), storage)
        if storage != "raw":
            file["compress_len"] = np.full((3, frames + 40), 999_999, np.float32)  # stale, as cut files have it
    return {"views": views, "qpos": qpos, "action": action}


def open_source(path: Path | str, *argv: str, isolate: bool = False) -> Hdf5Source:
    """The family's source, through its own options; scans in this process unless ``isolate``."""
    parser = argparse.ArgumentParser()
    hdf5.configure(parser)
    add_mapping_options(parser)
    parser.add_argument("--allow-no-camera", action="store_true")
    return Hdf5Source(Path(path), options_from(parser.parse_args(argv)), workers=2, isolate=isolate)


def read_all(source: Source, ref: object) -> tuple[dict[str, np.ndarray], dict[str, list]]:
    """Vectors and pictures of an episode."""
    with source.read(ref) as episode:
        rows = np.arange(len(episode))
        return dict(episode.vectors), {slot: list(stream.read(rows)) for slot, stream in episode.images.items()}


def rgb(picture: bytes | np.ndarray) -> np.ndarray:
    """Pixels by Pillow."""
    if isinstance(picture, bytes):
        return np.asarray(Image.open(io.BytesIO(picture)).convert("RGB"))
    return picture
