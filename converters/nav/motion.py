"""Poses to vectors: state [x, y, yaw], action [dx, dy, dyaw] in the body frame, and how far apart frames are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.episode import Float32Array, VectorSpec
from wdsmix.errors import DataError

__all__ = ["ACTION", "KNOWN_SPACING", "STATE", "Spacing", "check_poses", "pose_vectors", "steps", "wrapped"]

Float64Array = npt.NDArray[np.float64]

STATE = VectorSpec(names=("x", "y", "yaw"), units=("m", "m", "rad"), kinds=("absolute", "absolute", "absolute"))
ACTION = VectorSpec(
    names=("dx", "dy", "dyaw"),
    units=("m", "m", "rad"),
    # steps in a frame that turns with the robot can't be added up: see --stride
    kinds=("delta_rotation", "delta_rotation", "delta_rotation"),
)

KNOWN_SPACING = {
    "recon": 0.25,
    "go_stanford": 0.12,
    "go_stanford2": 0.12,
    "go_stanford4": 0.12,
    "cory_hall": 0.06,
    "tartan_drive": 0.72,
    "sacson": 0.255,
    "scand": 0.38,
    "seattle": 0.35,
    "racer": 0.38,
    "carla_intvns": 1.39,
    "carla_cil": 1.27,
    "carla": 1.59,
    "humanw": 0.12,
    "youtube": 0.12,
    "bdd": 0.12,
    "frodobots": 0.25,
}
"""``metric_waypoint_spacing`` of the field's data_config.yaml, in m, by name of the dataset."""

_FAR = 1e7


def wrapped(angles: Float64Array) -> Float64Array:
    """The same angles within [-pi, pi)."""
    result: Float64Array = (angles + np.pi) % (2 * np.pi) - np.pi
    return result


def check_poses(positions: Float64Array, yaws: Float64Array) -> None:
    """Refuses what can't be poses.

    Raises:
        DataError: a value is not finite, or absurdly far.
    """
    for name, values in (("position", positions), ("yaw", yaws)):
        flat = values.reshape(len(values), -1)
        bad = np.argwhere(~np.isfinite(flat))
        if len(bad):
            raise DataError(
                "not finite",
                where=f"{name} row {int(bad[0][0])}",
                found=str(flat[tuple(bad[0])]) + (f" ({len(bad):,} values in all)" if len(bad) > 1 else ""),
            )
        if len(flat) and np.abs(flat).max() > _FAR:
            raise DataError("no pose", where=name, expected=f"at most {_FAR:g}", found=f"{np.abs(flat).max():g}")


def pose_vectors(positions: Float64Array, yaws: Float64Array) -> dict[str, Float32Array]:
    """State and action of a trajectory.

    Args:
        positions: float64 [T, 2] in m, in a frame that does not move.
        yaws: float64 [T] in rad, counter-clockwise, wrapped or not.

    Returns:
        ``state`` float32 [T, 3]: position as it is, yaw unwrapped; ``action`` float32 [T, 3]: the step to the next
        frame in the frame of this one (x forward, y left), yaw wrapped to [-pi, pi); zeros in the last row.
    """
    turned = np.unwrap(yaws)
    delta = np.zeros((len(positions), 3))
    if len(positions) > 1:
        delta[:-1, :2] = _into_body(np.diff(positions, axis=0), turned[:-1])
        delta[:-1, 2] = wrapped(np.diff(turned))
    state = np.concatenate([positions, turned[:, None]], axis=1)
    return {"state": state.astype(np.float32), "action": delta.astype(np.float32)}


def _into_body(steps: Float64Array, yaws: Float64Array) -> Float64Array:
    cos, sin = np.cos(yaws), np.sin(yaws)
    return np.stack([cos * steps[:, 0] + sin * steps[:, 1], cos * steps[:, 1] - sin * steps[:, 0]], axis=1)


def steps(positions: Float64Array) -> Float64Array:
    """float64 [T - 1]: distances between consecutive frames, in m."""
    result: Float64Array = np.linalg.norm(np.diff(positions, axis=0), axis=1)
    return result


@dataclass(kw_only=True, slots=True)
class Spacing:
    """Mean distance between consecutive stored frames, over a whole source."""

    count: int = 0
    total: float = 0.0

    def add(self, distances: Iterable[float]) -> None:
        """Counts the steps of one trajectory."""
        values = np.fromiter(distances, np.float64)
        self.count += len(values)
        self.total += float(values.sum())

    @property
    def mean(self) -> float:
        """In m; 0 where nothing moved."""
        return self.total / self.count if self.count else 0.0
