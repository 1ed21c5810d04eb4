"""meta/info.json: a claim to be checked, in any of the spellings that writers use."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from wdsmix.converters.lerobot.tree import Tree
from wdsmix.converters.video import lfs_pointer

from wdsmix.errors import DataError

__all__ = ["DEFAULT_COLUMNS", "Feature", "Info", "read_info", "read_json"]

DEFAULT_COLUMNS = ("timestamp", "frame_index", "episode_index", "index", "task_index")

_MAX_JSON = 64 << 20

_DATA = {
    2: "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
    3: "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
}
_VIDEO = {
    2: "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
    3: "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Feature:
    """One declared feature."""

    key: str
    dtype: str
    width: int
    """Product of the declared shape."""
    names: tuple[str, ...]
    """Flattened; empty where none are told."""
    details: Mapping[str, object] = field(default_factory=dict)
    """``info`` or ``video_info``."""

    @property
    def camera(self) -> bool:
        """Whether it is declared as pictures."""
        return self.dtype in ("video", "image")

    @property
    def depth(self) -> bool:
        """Whether it is declared as depth."""
        return bool(self.details.get("is_depth_map") or self.details.get("video.is_depth_map"))


@dataclass(frozen=True, kw_only=True, slots=True)
class Info:
    """What info.json declares."""

    layout: Literal[2, 3]
    """2: an episode a file; 3: many. By the files that are there."""
    version: str
    robot: str
    fps: float
    """0 where none is declared."""
    data_path: str
    video_path: str
    chunks_size: int
    features: Mapping[str, Feature]
    splits: Mapping[str, tuple[int, int]]
    """Name -> (first, end) episode."""
    totals: Mapping[str, int]
    """``episodes``, ``frames``, ``tasks``, as far as declared."""
    warnings: Sequence[str]


def read_json(tree: Tree, name: str) -> object:
    """Parses a JSON file of the dataset.

    Raises:
        DataError: not there, empty, an LFS pointer, or no JSON.
    """
    path = tree.open_path(name)
    if not path.is_file():
        raise DataError("missing", path=name)
    if path.stat().st_size > _MAX_JSON:
        raise DataError("too large", path=name, expected=f"at most {_MAX_JSON} bytes", found=path.stat().st_size)
    data = path.read_bytes()
    if not data.strip(b"\0 \r\n\t"):
        raise DataError("is empty", path=name, found=f"{len(data)} bytes")
    if lfs_pointer(path):
        raise DataError("is a Git LFS pointer, not the file", path=name, hint="fetch it with `git lfs pull`")
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"not valid JSON: {error}", path=name) from error


def read_info(tree: Tree, override: Mapping[str, object]) -> Info:
    """Reads meta/info.json.

    Raises:
        DataError: no LeRobot dataset, one of version 1, or what is needed is missing; names the key.
    """
    names = tree.names()
    if "meta/info.json" not in names:
        old = [name for name in names if name == "meta_data/info.json" or name.startswith("data/train-")]
        if old:
            raise DataError(
                "a LeRobot v1 dataset, which is not read",
                path=old[0],
                hint="bring it to v2 with LeRobot's own converter first",
            )
        raise DataError(
            "no LeRobot dataset",
            path=tree.path or tree.name,
            expected="meta/info.json",
            found=", ".join(sorted({name.split("/")[0] for name in names})[:8]) or "nothing",
        )
    try:
        raw = read_json(tree, "meta/info.json")
    except DataError:
        if not override:
            raise
        raw = {}
    if not isinstance(raw, dict):
        raise DataError("not a JSON object", path="meta/info.json", found=type(raw).__name__)
    raw = {**raw, **override}
    if not raw.get("features"):
        raise DataError(
            "a key is missing",
            path="meta/info.json",
            where="features",
            found=", ".join(map(str, raw)) or "no key",
            hint="give what is missing with --info FILE.json",
        )
    return _info(raw, names)


def _info(raw: Mapping[str, object], names: Mapping[str, int]) -> Info:
    warnings: list[str] = []
    declared = str(raw.get("codebase_version") or "")
    layout = _layout(declared, names)
    if declared.lstrip("v").split(".")[0] != str(layout):
        warnings.append(f"info.json says version {declared or 'nothing'}, its files are those of v{layout}")
    features = raw["features"]
    if not isinstance(features, dict):
        raise DataError("not an object", path="meta/info.json", where="features", found=type(features).__name__)
    robot = str(raw.get("robot_type") or "")
    return Info(
        layout=layout,
        version=declared or f"v{layout}",
        robot="" if robot.lower() in ("unknown", "none", "null") else robot,
        fps=_rate(raw.get("fps")),
        data_path=str(raw.get("data_path") or _DATA[layout]),
        video_path=str(raw.get("video_path") or _VIDEO[layout]),
        chunks_size=int(_number(raw.get("chunks_size")) or 1000),
        features={str(key): _feature(str(key), value) for key, value in features.items() if isinstance(value, dict)},
        splits=_splits(raw.get("splits")),
        totals={
            what: int(number)
            for what in ("episodes", "frames", "tasks")
            if (number := _number(raw.get(f"total_{what}"))) is not None
        },
        warnings=warnings,
    )


def _layout(declared: str, names: Mapping[str, int]) -> Literal[2, 3]:
    """By the files: the version string is wrong in some sets."""
    if "meta/episodes.jsonl" in names:
        return 2
    if any(name.startswith("meta/episodes") and name.endswith(".parquet") for name in names):
        return 3
    if declared.lstrip("v").startswith("1"):
        raise DataError("a LeRobot v1 dataset, which is not read", path="meta/info.json", found=declared)
    if any("/episode_" in name and name.endswith(".parquet") for name in names):
        return 2
    return 3 if declared.lstrip("v").startswith("3") or "meta/tasks.parquet" in names else 2


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _rate(value: object) -> float:
    if isinstance(value, str) and "/" in value:
        top, _, bottom = value.partition("/")
        above, below = _number(top), _number(bottom)
        return above / below if above and below else 0.0
    return max(0.0, _number(value) or 0.0)


def _feature(key: str, raw: Mapping[str, object]) -> Feature:
    shape = raw.get("shape")
    sides = [int(_number(side) or 0) for side in shape] if isinstance(shape, (list, tuple)) else [1]
    details = raw.get("info") or raw.get("video_info") or {}
    return Feature(
        key=key,
        dtype=str(raw.get("dtype") or ""),
        width=math.prod(sides) if sides else 1,
        names=tuple(_names(raw.get("names"))),
        details=details if isinstance(details, dict) else {},
    )


def _names(value: object) -> list[str]:
    """Names in a list, a list in a list, or a dict of lists."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        if value and all(isinstance(item, (int, float)) for item in value.values()):  # {"joint_0": 0, ...}
            return [str(key) for key in value]
        return [name for item in value.values() for name in _names(item)]
    if isinstance(value, (list, tuple)):
        return [name for item in value for name in _names(item)]
    return []


def _splits(value: object) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for name, text in value.items() if isinstance(value, dict) else ():
        first, colon, end = str(text).partition(":")
        low, high = _number(first or "0"), _number(end)
        if colon and low is not None:
            found[str(name)] = (int(low), int(high) if high is not None else 1 << 62)
    return found
