"""RoboHive: trials of one file, with their times.

::

    Trial0
    ├─ actions (T, A), observations (T, D), rewards (T,), done (T,), time (T,)
    └─ env_infos
       ├─ obs_dict/<key> (T, ...)
       └─ visual_dict/rgb:<camera>:<size>:<encoder> (T, H, W, 3)

The recorder writes a last row without an action (not a number): it is left out.
"""

from __future__ import annotations

import re

import numpy as np
from wdsmix.converters.hdf5.dialects.robomimic import rewards_and_dones
from wdsmix.converters.hdf5.faults import Hdf5Error
from wdsmix.converters.hdf5.layout import CameraPart, Dialect, EpisodeLayout, FileFacts
from wdsmix.converters.hdf5.mapping import FASTEST, SLOWEST
from wdsmix.converters.hdf5.nested import nested_cameras, nested_parts
from wdsmix.converters.hdf5.options import Hdf5Options
from wdsmix.converters.hdf5.rules import any_shows, assumed_rate, rows_of
from wdsmix.converters.hdf5.safe import Tree, join

__all__ = ["DIALECTS"]

_FPS = 25.0
_TIMES = ("time", "env_infos/time", "env_infos/obs_dict/time")


def _trials(tree: Tree, options: Hdf5Options | None = None) -> list[str]:
    return [join(name) for name in tree.child_groups("/") if re.fullmatch(r"Trial\d+", name)]


def _matches(tree: Tree, episode: str) -> bool:
    return episode == "/" and any_shows(_trials(tree), lambda name: tree.dataset(join(name, "actions")) is not None)


def _rate(tree: Tree, group: str) -> float | None:
    """Rows per second by the median of the steps between the times of a trial."""
    for name in _TIMES:
        path = join(group, name)
        dataset = tree.dataset(path)
        if dataset is None or dataset.dtype.kind not in "fiu" or not dataset.shape or dataset.shape[0] < 2:
            continue
        times = tree.read_vector(path).reshape(dataset.shape[0], -1)[:, 0].astype(np.float64)
        step = float(np.median(np.diff(times)))
        if step > 0 and SLOWEST <= 1 / step <= FASTEST:
            return round(1 / step, 2)
    return None


def _facts(tree: Tree, options: Hdf5Options) -> FileFacts:
    for name in _trials(tree)[:16] if not options.fps else ():
        try:
            rate = _rate(tree, name)
        except Hdf5Error:
            continue  # a fault of that trial, told with it
        if rate:
            return FileFacts(fps=rate, fps_from="file")
    return assumed_rate(options, _FPS, "RoboHive trials whose times do not advance")


def _cameras(tree: Tree, group: str, options: Hdf5Options) -> tuple[dict[str, CameraPart], list[str]]:
    cameras: dict[str, CameraPart] = {}
    warnings: list[str] = []
    for base in ("env_infos/visual_dict", "env_infos/obs_dict"):
        found, notes = nested_cameras(tree, join(group, base), options)
        warnings += notes
        for key, camera in found.items():
            kind, _, rest = key.partition(":")
            cameras.setdefault(rest.split(":")[0] if kind == "rgb" and rest else key, camera)
    return cameras, warnings


def _layout(tree: Tree, group: str, options: Hdf5Options, facts: FileFacts) -> EpisodeLayout:
    action = nested_parts(tree, group, options.action or ("actions",), "", what="action")
    dataset, rows = tree.dataset(action[0].path), rows_of(tree, action[0].path)
    frames = None
    if dataset is not None and rows and dataset.dtype.kind == "f":
        last = tree.read_vector(action[0].path, rows - 1, rows)
        frames = rows - 1 if np.isnan(last.astype(np.float64)).all() else None
    cameras, warnings = _cameras(tree, group, options)
    return EpisodeLayout(
        state=nested_parts(tree, group, options.state or ("observations",), "env_infos/obs_dict", what="state"),
        action=action,
        optional=rewards_and_dones(tree, group, done="done"),
        cameras=cameras,
        frames=frames,
        task=options.instruction or facts.task,
        warnings=warnings,
    )


DIALECTS = [
    Dialect(
        name="robohive",
        rank=132,
        summary="RoboHive: Trial<i>/{actions, observations, rewards, done, time, env_infos}",
        matches=_matches,
        groups=_trials,
        facts=_facts,
        layout=_layout,
        state="observations",
        action="actions",
        cameras="env_infos/visual_dict/rgb:*",
        rate="from time, else 25 with a warning",
    )
]
