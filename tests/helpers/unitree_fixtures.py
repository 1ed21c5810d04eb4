"""Independent writers of Unitree recordings: plain json code that does what each generation of the recorder did."""

from __future__ import annotations

import argparse
import copy
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from helpers.nav_fixtures import jpeg
from wdsmix.converters import unitree
from wdsmix.converters.base import Source
from wdsmix.converters.options import add_mapping_options

PLACEHOLDER = "Pick up the red cup on the table."
GENERATIONS = ("oct2024", "dec2024", "v1.0", "jul2025", "v1.1", "v1.3")


def motion(count: int, width: int, seed: int) -> np.ndarray:
    """Smooth joints: float64 [T, D]."""
    rng = np.random.default_rng(seed)
    t = np.arange(count)[:, None]
    return np.sin(t / rng.uniform(8, 20, width) + rng.uniform(0, 6, width)) * rng.uniform(0.2, 1, width)


def part(numbers) -> dict:
    return {"qpos": [float(n) for n in numbers], "qvel": [], "torque": []}


def make_items(
    count: int,
    *,
    generation: str = "v1.0",
    cameras: int = 3,
    ee: int = 7,
    seed: int = 0,
    lag: int = 3,
    first: int = 0,
) -> tuple[list[dict], dict[str, np.ndarray]]:
    """Frames, and the state and action they hold, arms then hands."""
    width = 14 + 2 * ee
    action = motion(count + lag, width, seed)
    state, action = action[:count], action[lag : lag + count]  # the state trails
    hand = "hand" if generation in ("oct2024", "dec2024") else "ee"
    items = []
    for k in range(count):
        blocks = []
        for values in (state[k], action[k]):
            block = {
                "left_arm": part(values[:7]),
                "right_arm": part(values[7:14]),
                f"left_{hand}": part(values[14 : 14 + ee]),
                f"right_{hand}": part(values[14 + ee :]),
            }
            if generation == "dec2024":
                block["body"] = None
            elif generation in ("v1.0",):
                block["body"] = {}
            elif generation == "jul2025":
                block["body"] = {"qpos": []}
            blocks.append(block)
        if generation in ("v1.1", "v1.3"):
            blocks[0]["body"] = {"qpos": [0.01 * k] * 29}
            blocks[1]["body"] = {"qpos": [0.1, 0.0, 0.01 * k]}
        item = {
            "idx": first + k,
            "colors": {f"color_{c}": f"colors/{first + k:06d}_color_{c}.jpg" for c in range(cameras)},
            "depths": {},
            "states": blocks[0],
            "actions": blocks[1],
            "tactiles": None,
            "audios": None,
        }
        if generation == "oct2024":
            item["depths"] = {"depth_0": f"depths/{first + k:06d}_depth_0.png"}
        elif generation == "dec2024":
            item["depths"] = {"depth_0": f"depths/{first + k:06d}_depth_0.jpg"}
        if generation == "jul2025":
            item["sim_state"] = json.dumps({"init": [1, 2, 3]})
        items.append(item)
    return items, {"state": state, "action": action}


def info(fps: float = 30.0, generation: str = "v1.0") -> dict:
    hand = "hand" if generation in ("oct2024", "dec2024") else "ee"
    left = ["ShoulderPitch", "ShoulderRoll", "ShoulderYaw", "Elbow", "WristRoll", "WristPitch", "Wristyaw"]
    return {
        "version": "1.0.0",
        "date": "" if generation == "oct2024" else "2025-06-03",
        "author": "unitree",
        "image": {"width": 640, "height": 480, "fps": fps},
        "depth": {"width": 640, "height": 480, "fps": fps},
        "joint_names": {"left_arm": [f"kLeft{n}" for n in left], f"left_{hand}": [], "right_arm": [], "body": []},
        "tactile_names": {},
    }


def write_pictures(folder: Path, items: list[dict], *, seed: int = 0, skip: tuple = ()) -> dict[str, bytes]:
    """Pictures of all paths; returns path -> bytes."""
    written = {}
    for k, item in enumerate(items):
        for c, path in enumerate(item["colors"].values()):
            if path is None or path in skip:
                continue
            data = jpeg(seed * 997 + 31 * k + c)
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
            written[path] = data
    return written


def write_json(folder: Path, items: list, *, text: object = None, streamed: bool = False, **head) -> Path:
    """data.json, whole or as the streaming writer leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    text = {"goal": "stack the blocks", "desc": "two blocks", "steps": "1. take"} if text is None else text
    top = {"info": head.pop("info", info()), "text": text, **head}
    path = folder / "data.json"
    if streamed:  # header first, then frames one by one
        pieces = [json.dumps(top, indent=4, ensure_ascii=False)[:-2] + ',\n    "data": [\n']
        pieces += [",\n".join(json.dumps(item, indent=4, ensure_ascii=False) for item in items), "\n]}"]
        path.write_text("".join(pieces), encoding="utf-8")
    else:
        path.write_text(json.dumps({**top, "data": items}, indent=4, ensure_ascii=False), encoding="utf-8")
    return path


def write_raw(
    folder: Path, count: int = 20, *, generation: str = "v1.0", fps: float = 30.0, seed: int = 0, **how
) -> dict:
    """One recording; returns what it holds."""
    text = how.pop("text", None)
    items, vectors = make_items(count, generation=generation, seed=seed, **how)
    pictures = write_pictures(folder, items, seed=seed)
    write_json(folder, items, text=text, streamed=generation == "v1.3", info=info(fps, generation))
    return {"items": items, "pictures": pictures, **vectors}


def edited(items: list[dict]) -> list[dict]:
    return copy.deepcopy(items)


def open_unitree(src: Path, *options: str) -> Source:
    """The source that `wdsmix convert unitree` would open."""
    parser = argparse.ArgumentParser()
    parser.add_argument("src", type=Path)
    unitree.configure(parser)
    add_mapping_options(parser)
    parser.add_argument("--allow-no-camera", action="store_true")
    return unitree.source(parser.parse_args([str(src), *options]))


def read_all(source: Source, ref) -> tuple[object, dict[str, np.ndarray], dict[str, list[bytes]]]:
    """The episode (closed), copies of its vectors, its pictures."""
    with source.read(ref) as episode:
        pictures = {slot: list(stream.read(episode.rows)) for slot, stream in episode.images.items()}
        return episode, {name: values.copy() for name, values in episode.vectors.items()}, pictures


def write_published(
    root: Path, columns: dict[str, list[np.ndarray]], *, robot: str, names: dict | None = None, meta: bool = True
) -> None:
    """A LeRobot v2.1 dataset without videos: one parquet an episode, columns float32."""
    episodes = len(next(iter(columns.values())))
    features = {}
    for key, values in columns.items():
        width = values[0].shape[1] if values[0].ndim == 2 else 1
        features[key] = {"dtype": "float32", "shape": [width], "names": (names or {}).get(key)}
    for episode in range(episodes):
        table = {}
        for key, values in columns.items():
            rows = values[episode].astype(np.float32)
            kind = pa.list_(pa.float32(), rows.shape[1]) if rows.ndim == 2 else pa.float32()
            table[key] = pa.array(rows.tolist(), kind)
        count = len(rows)
        table["timestamp"] = pa.array((np.arange(count) / 30).astype(np.float32))
        table["frame_index"] = pa.array(np.arange(count))
        table["episode_index"] = pa.array(np.full(count, episode))
        table["index"] = pa.array(np.arange(count))
        table["task_index"] = pa.array(np.zeros(count, np.int64))
        path = root / "data" / "chunk-000" / f"episode_{episode:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), path)
    if meta:
        (root / "meta").mkdir()
        declared = {
            "codebase_version": "v2.1",
            "robot_type": robot,
            "fps": 30,
            "features": features,
            "total_episodes": episodes,
            "data_path": "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
        }
        (root / "meta" / "info.json").write_text(json.dumps(declared))
        lines = [
            json.dumps({"episode_index": e, "tasks": ["stack"], "length": len(next(iter(columns.values()))[e])})
            for e in range(episodes)
        ]
        (root / "meta" / "episodes.jsonl").write_text("\n".join(lines) + "\n")
        (root / "meta" / "tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "stack"}) + "\n")
