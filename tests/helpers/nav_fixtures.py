"""Independent writers of navigation data: plain pickle, h5py, pyarrow and csv code, as the field's processors write."""

from __future__ import annotations

import argparse
import io
import pickle
from collections.abc import Sequence
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from wdsmix.converters import nav
from wdsmix.converters.base import Source
from wdsmix.converters.options import add_mapping_options


def jpeg(seed: int, width: int = 48, height: int = 36) -> bytes:
    """A smooth picture that differs with every seed."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    pixels = np.stack([120 + 90 * np.sin(x / 9 + seed), 100 + 2 * y + 0 * x, 80 + 60 * np.cos(y / 5 - seed)], -1)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def walk(count: int, seed: int = 0, step: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """A drive that turns several times: positions [T, 2] and unwrapped yaws [T]."""
    rng = np.random.default_rng(seed)
    yaw = np.cumsum(rng.uniform(-0.2, 0.5, count)) + rng.uniform(-3, 3)
    moves = step * rng.uniform(0.5, 1.5, (count, 1)) * np.stack([np.cos(yaw), np.sin(yaw)], 1)
    return np.cumsum(moves, 0) + rng.normal(size=2) * 5, yaw


def boxed(values: np.ndarray, *, arrays: bool = False) -> np.ndarray:
    """An array of objects: numpy scalars, or arrays of shape (1,)."""
    out = np.empty(values.shape, object)
    for place in np.ndindex(values.shape):
        out[place] = np.array([values[place]]) if arrays else np.float64(values[place])
    return out


POSITIONS = {
    "array": lambda p: p,
    "objects": boxed,
    "list": lambda p: p.tolist(),
    "three": lambda p: np.c_[p, np.ones(len(p))],
    "fortran": np.asfortranarray,
    "big_endian": lambda p: p.astype(">f8"),
}
YAWS = {
    "array": lambda y: y,
    "column": lambda y: y[:, None],
    "objects": lambda y: boxed(y, arrays=True),
    "list": lambda y: y.tolist(),
    "wrapped": lambda y: (y + np.pi) % (2 * np.pi) - np.pi,
}


def write_gnm(
    folder: Path,
    count: int = 12,
    *,
    seed: int = 0,
    position: str = "array",
    yaw: str = "array",
    protocol: int = 4,
    key: str = "position",
    pictures: int | None = None,
    extra: dict | None = None,
) -> dict:
    """One trajectory folder."""
    folder.mkdir(parents=True)
    positions, yaws = walk(count, seed)
    data = {key: POSITIONS[position](positions), "yaw": YAWS[yaw](yaws), **(extra or {})}
    (folder / "traj_data.pkl").write_bytes(pickle.dumps(data, protocol=protocol))
    names = [jpeg(seed * 1000 + k) for k in range(count if pictures is None else pictures)]
    for k, data_ in enumerate(names):
        (folder / f"{k}.jpg").write_bytes(data_)
    return {"position": positions, "yaw": yaws, "jpeg": names}


def write_recon(path: Path, count: int = 10, *, seed: int = 0, column_yaw: bool = False, right: bool = True) -> dict:
    """One RECON file."""
    positions, yaws = walk(count, seed)
    left = [jpeg(seed * 77 + k, 64, 48) for k in range(count)]
    with h5py.File(path, "w") as file:
        longest = max(map(len, left))
        file["images/rgb_left"] = np.array(left, dtype=f"S{longest}")
        if right:
            other = [jpeg(seed * 77 + 500 + k, 64, 48) for k in range(count)]
            file["images/rgb_right"] = np.array(other, dtype=f"S{max(map(len, other))}")
        file["images/thermal"] = np.zeros((count, 32, 32))
        file["jackal/position"] = np.c_[positions, np.full(count, 0.1)]
        file["jackal/yaw"] = yaws[:, None] if column_yaw else yaws
        command = np.random.default_rng(seed).normal(size=(count, 2))
        file["commands/linear_velocity"] = command[:, :1]
        file["commands/angular_velocity"] = command[:, 1:]
        file["collision/any"] = np.zeros(count, bool)
    return {"position": positions, "yaw": yaws, "left": left, "command": command}


def write_vamos(path: Path, rows: Sequence[dict]) -> None:
    """A VAMOS parquet file of rows as they are given."""
    point2, point3 = pa.list_(pa.list_(pa.int64())), pa.list_(pa.list_(pa.float64()))
    kinds = {
        "image": pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
        "text": pa.string(),
        "trajectory_3d": point3,
        "trajectory_2d": point2,
        "horizon": pa.int64(),
        "camera_params": pa.string(),
        "curvature": pa.float64(),
    }
    columns = {name: pa.array([row.get(name) for row in rows], kind) for name, kind in kinds.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, row_group_size=50)


def open_nav(src: Path, *options: str) -> Source:
    """The source that `wdsmix convert nav` would open."""
    parser = argparse.ArgumentParser()
    parser.add_argument("src", type=Path)
    nav.configure(parser)
    add_mapping_options(parser)
    return nav.source(parser.parse_args([str(src), *options]))


def body_steps(positions: np.ndarray, yaws: np.ndarray) -> np.ndarray:
    """[dx, dy, dyaw] by complex numbers, one step after the other; the last row is zeros."""
    out = np.zeros((len(positions), 3))
    for t in range(len(positions) - 1):
        ahead = complex(*(positions[t + 1] - positions[t])) * np.exp(-1j * yaws[t])
        turn = np.angle(np.exp(1j * (yaws[t + 1] - yaws[t])))
        out[t] = [ahead.real, ahead.imag, turn]
    return out
