"""Waypoints: a navigation source's steps as the positions ahead, seen from the robot where it is now.

A navigation set stores the step to the next frame, [dx, dy, dyaw] in the frame of the robot. With ``action: waypoints``
a sample's action chunk becomes the poses ahead: K rows [x, y] or [x, y, cos, sin] in the frame of the sample's own pose
(x forward, y left), row k being the pose k + 1 waypoints on. What lies behind the end of the episode repeats its last
pose and is padding. This is what GNM, ViNT and NoMaD train on.

The scale is the set's own: positions are divided by the spacing of its frames (``normalize: {action: spacing}``, the
default), or all numbers are scaled by statistics of the waypoints themselves, computed when the mixture is opened.
Statistics of [dx, dy, dyaw] are never used for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError
from wdsmix.manifest import FieldStats, Manifest
from wdsmix.mixture.config import Normalization, SampleConfig, SourceConfig
from wdsmix.shards.reader import ShardFile, ShardSet
from wdsmix.stats import FieldAccumulator

__all__ = ["Waypoints", "action_mode", "open_waypoints", "poses_ahead", "waypoint_stats"]

Int64Array = npt.NDArray[np.int64]

_FORM = "body_steps"
_ROWS = 1 << 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Waypoints:
    """How the waypoints of a source are made."""

    count: int
    """K."""
    every: int
    """Frames from one to the next."""
    heading: bool
    """Whether cos and sin of the heading follow the position."""
    spacing: float
    """Metres from one frame to the next, by the set."""
    divided: bool
    """Whether positions are divided by ``spacing * every``."""

    @property
    def width(self) -> int:
        """Dimensions of one."""
        return 4 if self.heading else 2

    def padding(self, frame: Int64Array, length: Int64Array) -> npt.NDArray[np.bool_]:
        """Which waypoints lie behind the end: bool [N, K].

        Args:
            frame: int64 [N], frame of each sample in its episode.
            length: int64 [N], frames of the episode.
        """
        ahead = self.every * np.arange(1, self.count + 1, dtype=np.int64)
        return frame[:, None] + ahead > (length - 1)[:, None]

    def of(
        self, steps: npt.NDArray[np.float32], first_row: Int64Array, frame: Int64Array, length: Int64Array
    ) -> npt.NDArray[np.float64]:
        """The waypoints of some frames.

        Args:
            steps: float32 [R, 3], the actions of a shard.
            first_row: int64 [N], row of each episode's first frame there.
            frame: int64 [N].
            length: int64 [N].

        Returns:
            float64 [N, K, width].
        """
        poses = poses_ahead(steps, first_row, frame, length, count=self.count, every=self.every)
        if self.divided:
            poses[:, :, :2] /= self.spacing * self.every
        if not self.heading:
            return poses[:, :, :2]
        yaw = poses[:, :, 2:]
        return np.concatenate([poses[:, :, :2], np.cos(yaw), np.sin(yaw)], axis=2)


def poses_ahead(
    steps: npt.NDArray[np.float32],
    first_row: Int64Array,
    frame: Int64Array,
    length: Int64Array,
    *,
    count: int,
    every: int,
) -> npt.NDArray[np.float64]:
    """Follows steps from frame to frame, in float64.

    Args:
        steps: float32 [R, 3], [dx, dy, dyaw] to the next frame, in the frame of its own.
        first_row: int64 [N], row of each episode's first frame.
        frame: int64 [N], frame of each sample in its episode.
        length: int64 [N], frames of the episode.
        count: K.
        every: Frames from one pose to the next; the last whole one repeats behind the end.

    Returns:
        float64 [N, K, 3]: x, y and yaw after ``every``, 2 ``every`` ... frames, seen from the sample's frame.
    """
    size = len(frame)
    out = np.zeros((size, count, 3))
    x, y, yaw = np.zeros(size), np.zeros(size), np.zeros(size)
    last = length - 1
    for k in range(count):
        whole = frame + (k + 1) * every <= last
        for j in range(every):
            at = np.minimum(frame + k * every + j, last)
            step = np.where(whole[:, None], steps[first_row + at].astype(np.float64), 0.0)
            cos, sin = np.cos(yaw), np.sin(yaw)
            x += cos * step[:, 0] - sin * step[:, 1]
            y += sin * step[:, 0] + cos * step[:, 1]
            yaw += step[:, 2]
        out[:, k] = np.stack([x, y, yaw], axis=1)
    return out


def action_mode(source: SourceConfig, sample: SampleConfig) -> Normalization | None:
    """How the action of a source is scaled; None: not at all."""
    how = source.normalize.get("action", sample.normalize.get("action"))
    return Normalization(mode="spacing") if how is None and source.action is not None else how


def open_waypoints(source: SourceConfig, sample: SampleConfig, manifest: Manifest) -> Waypoints | None:
    """What a source's ``action: waypoints`` asks for; None where it asks for nothing.

    Raises:
        ConfigError: its set stores no steps to make them of.
    """
    asked = source.action
    if asked is None:
        return None
    where = f"source {source.name!r}: action"
    told = manifest.details.get("navigation")
    form = told.get("form") if isinstance(told, dict) else None
    entry = manifest.vectors.get("action")
    if form != _FORM or entry is None or entry.width != 3:
        raise ConfigError(
            "waypoints are made of a navigation set's steps",
            where=where,
            expected="a set of `wdsmix convert nav` with [dx, dy, dyaw] as its action",
            found=f"{manifest.kind}, action of {'no' if entry is None else entry.width} dimensions",
        )
    spacing = float(told["spacing"]) if isinstance(told, dict) and told.get("spacing") else 0.0
    how = action_mode(source, sample)
    divided = how is not None and how.mode == "spacing"
    if divided and not spacing > 0:
        raise ConfigError(
            "the set tells no spacing to divide by",
            where=where,
            hint="convert it with --spacing, or set normalize: {action: mean_std}",
        )
    return Waypoints(
        count=sample.action_chunk, every=asked.every, heading=asked.heading, spacing=spacing, divided=divided
    )


def waypoint_stats(opened: ShardSet, way: Waypoints) -> FieldStats | None:
    """Statistics of the waypoints over the train split, padding left out; None where there are none.

    Reads the actions of all train shards; float64 from the float32 values, like those of a conversion.
    """
    total: FieldAccumulator | None = None
    for shard, first_row, frames in _train_shards(opened):
        steps = shard.vectors["action"]
        rows = np.repeat(first_row, frames)
        lengths = np.repeat(frames, frames)
        number = np.arange(len(rows)) - np.repeat(np.cumsum(frames) - frames, frames)
        for start in range(0, len(rows), _ROWS):
            part = slice(start, start + _ROWS)
            made = way.of(steps, rows[part], number[part], lengths[part])
            real = made[~way.padding(number[part], lengths[part])]
            if len(real):
                own = FieldAccumulator.of(real.astype(np.float32))
                if total is None:
                    total = own
                else:
                    total.merge(own)
    return None if total is None else total.finish()


def _train_shards(opened: ShardSet) -> Iterator[tuple[ShardFile, Int64Array, Int64Array]]:
    """Each train shard with its episodes' first rows and frames."""
    index = opened.index
    if "train" not in index.splits:
        return
    train = np.asarray(index.split) == index.splits.index("train")
    shard = np.asarray(index.shard)
    for number in np.unique(shard[train]).tolist():
        mine = train & (shard == number)
        yield (
            opened.shard(number),
            np.asarray(index.first_row)[mine].astype(np.int64),
            np.asarray(index.frames)[mine].astype(np.int64),
        )
