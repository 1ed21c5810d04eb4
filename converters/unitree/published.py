"""Published Unitree sets: LeRobot datasets with vectors, split keys or whole-body columns, read by that family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from wdsmix.converters.lerobot.columns import column_width, flat_numbers, is_numeric
from wdsmix.converters.lerobot.dataset import LeRobotSource
from wdsmix.converters.lerobot.info import DEFAULT_COLUMNS, read_json
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.lerobot.roles import VectorRole
from wdsmix.converters.lerobot.tables import open_parquet
from wdsmix.converters.lerobot.tree import LocalTree, Tree
from wdsmix.converters.relation import Relation, relate
from wdsmix.converters.unitree.tables import flat_names, part_names

from wdsmix.episode import Episode, EpisodeRef, SourceInfo, VectorSpec
from wdsmix.errors import ConfigError, DataError

__all__ = ["BareTree", "PublishedSource", "SPLIT_KEYS", "open_published"]

SPLIT_KEYS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "split": {
        "state": ("left_arm", "right_arm", "left_gripper", "right_gripper", "left_hand", "right_hand"),
        "action": ("left_arm", "right_arm", "left_gripper", "right_gripper", "left_hand", "right_hand"),
    },
    "whole_body": {
        "state": ("lower_body", "left_arm", "right_arm", "hand_state"),
        "action": ("lower_body", "left_arm", "right_arm", "hand_cmd"),
    },
    "whole_body_joints": {
        "state": ("robot_q_current", "hand_state"),
        "action": ("robot_q_desired", "hand_cmd"),
    },
}
"""Family -> vector -> columns joined by default, in this order, as far as they are there (without their prefix)."""

_PREFIXES = {"split": ("observation.", "action."), "whole": ("observation.state.", "action.")}
_RELATED = 24
_FPS = 30.0


def open_published(tree: Tree, options: LeRobotOptions, robot: str) -> PublishedSource:
    """Opens a published set, choosing the columns of its family.

    Args:
        tree: Its files.
        options: Of the LeRobot family; ``state`` and ``action`` given there are taken.
        robot: Robot type that the user names; empty: the one declared.

    Raises:
        DataError: there are videos, but no rows.
    """
    names = tree.names()
    if not any(name.endswith(".parquet") for name in names) and any(name.endswith(".mp4") for name in names):
        raise DataError(
            "videos only: its parquet files, which hold states and actions, were not published",
            path=tree.path or tree.name,
            expected="data/**/*.parquet",
            found=f"{sum(name.endswith('.mp4') for name in names)} videos",
        )
    columns = _columns(tree)
    family, chosen = _family(columns)
    options = dataclasses.replace(
        options,
        state=options.state or tuple(key for key in chosen.get("state", ()) if key in columns),
        action=options.action or tuple(key for key in chosen.get("action", ()) if key in columns),
    )
    return PublishedSource(LeRobotSource(tree, options), tree, family=family, robot=robot)


def _columns(tree: Tree) -> list[str]:
    """Declared features; the schema of a data file where nothing is declared."""
    if isinstance(tree, BareTree):
        return list(tree.widths)
    if "meta/info.json" not in tree.names():
        return []
    try:
        raw = read_json(tree, "meta/info.json")
    except DataError:
        return []  # the LeRobot family says what is wrong with it
    features = raw.get("features") if isinstance(raw, dict) else None
    return list(features) if isinstance(features, dict) else []


def _family(columns: Sequence[str]) -> tuple[str, dict[str, list[str]]]:
    """Name of the family, and vector -> columns to join."""
    if "observation.state" in columns:
        return "vector", {}
    if "observation.left_arm" in columns or "observation.right_arm" in columns:
        prefixes, of = _PREFIXES["split"], "split"
    elif any(column.startswith("observation.state.") for column in columns):
        prefixes = _PREFIXES["whole"]
        of = "whole_body_joints" if "observation.state.robot_q_current" in columns else "whole_body"
        if of == "whole_body" and "observation.state.lower_body" not in columns:
            legs = ("left_leg", "right_leg", "waist")
            keys = {
                vector: [prefix + part for part in (*legs, *SPLIT_KEYS[of][vector][1:])]
                for vector, prefix in zip(("state", "action"), prefixes, strict=True)
            }
            return of, keys
    else:
        return "vector", {}
    keys = {
        vector: [prefix + part for part in SPLIT_KEYS[of][vector]]
        for vector, prefix in zip(("state", "action"), prefixes, strict=True)
    }
    return of, keys


class BareTree:
    """Parquet files of a LeRobot layout that came without ``meta`` (a `wdsmix.converters.lerobot.tree.Tree`).

    What info.json would declare is read off the first file's columns.

    Args:
        root: Folder of the files, or one of them.

    Raises:
        DataError: none of them has the columns of a recording.
    """

    remote = False

    def __init__(self, root: Path) -> None:
        if root.is_file():
            self._inner, files = LocalTree(root.parent), [root.name]
        else:
            self._inner = LocalTree(root)
            files = [name for name in self._inner.names() if name.endswith(".parquet")]
        self._path = root
        self._real = {name if name.startswith("data/") else f"data/{name}": name for name in sorted(files)}
        self.widths = self._measured()

    def _measured(self) -> dict[str, int]:
        for name in self._real:
            try:
                opened = open_parquet(self, name)
            except DataError:
                continue
            try:
                schema = opened.schema_arrow
                if not any(key.startswith(("observation.", "action")) for key in schema.names):
                    continue
                numeric = [key for key in schema.names if is_numeric(schema.field(key).type)]
                batch = next(opened.iter_batches(1, columns=numeric), None)
                return {
                    key: column_width(batch.column(batch.schema.names.index(key))) if batch is not None else 1
                    for key in numeric
                }
            except (pa.ArrowException, OSError, ValueError):
                continue
            finally:
                opened.close()
        raise DataError(
            "no recording",
            path=self._path,
            expected="meta/info.json, data.json, or parquet files with columns observation.* and action.*",
        )

    def info(self, robot: str, fps: float) -> dict[str, object]:
        """What info.json would declare."""
        features = {}
        for key, width in self.widths.items():
            if key in DEFAULT_COLUMNS:
                continue
            bare = key.removeprefix("observation.").removeprefix("action.")
            given = part_names(bare, width, robot) if bare.endswith("_arm") else ()
            names = given or ((key,) if width == 1 else tuple(f"{bare}_{k}" for k in range(width)))
            features[key] = {"dtype": "float32", "shape": [width], "names": list(names)}
        return {"codebase_version": "v2.1", "robot_type": robot, "fps": fps or _FPS, "features": features}

    def real(self, name: str) -> str:
        """The name on disk."""
        return self._real.get(name, name)

    @property
    def name(self) -> str:
        """Short name."""
        return self._path.resolve().name if self._path.is_dir() else self._path.stem

    @property
    def path(self) -> Path:
        """The folder or file."""
        return self._path

    def names(self) -> Mapping[str, int]:
        """Names by which the LeRobot family finds them; ``meta/info.json`` is there in name only."""
        sizes = self._inner.names()
        return {"meta/info.json": 0, **{name: sizes.get(real, 0) for name, real in self._real.items()}}

    def open_path(self, name: str) -> Path:
        """The file's path."""
        return self._inner.open_path(self.real(name))

    def release(self, name: str, *, keep: bool = False) -> None:
        """Nothing: it is the user's file."""

    def fingerprint(self) -> str:
        """Of the files."""
        return self._inner.fingerprint()

    def facts(self) -> Mapping[str, object]:
        """That nothing was declared."""
        return {"declared_by": "nothing: columns read off the files"}

    def warnings(self) -> list[str]:
        """That nothing was declared."""
        return ["no meta/info.json: columns are read off the files"]


class PublishedSource:
    """A published set (a `wdsmix.converters.base.Source`): the LeRobot source, with names and checks of the robot.

    Args:
        inner: The LeRobot source.
        tree: Its files.
        family: ``vector``, ``split``, ``whole_body`` or ``whole_body_joints``.
        robot: Robot type that the user names.
    """

    libraries = ("av",)

    def __init__(self, inner: LeRobotSource, tree: Tree, *, family: str, robot: str) -> None:
        self._inner = inner
        self._tree = tree
        self._family = family
        self._robot = robot
        self._info: SourceInfo | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_info": None}

    @property
    def path(self) -> str | None:
        """The folder on disk."""
        return self._inner.path

    def arguments(self) -> Mapping[str, object]:
        """The options of the LeRobot family, and the robot."""
        return {**self._inner.arguments(), "robot": self._robot}

    def fingerprint(self) -> str:
        """Of the files."""
        return self._inner.fingerprint()

    def inputs(self) -> list[Path]:
        """All files that are read, where they are here."""
        own = getattr(self._inner, "inputs", None)
        if self._tree.remote:
            return []
        return list(own()) if callable(own) else [self._tree.open_path(name) for name in self._tree.names()]

    def episodes(self) -> list[EpisodeRef]:
        """As the LeRobot family finds them."""
        refs = self._inner.episodes()
        if isinstance(self._tree, BareTree):
            refs = [dataclasses.replace(ref, file=self._tree.real(ref.file)) for ref in refs]
        return refs

    def read(self, ref: EpisodeRef) -> Episode:
        """Opens one episode.

        Raises:
            DataError: it is bad.
        """
        return self._inner.read(ref)

    def close(self) -> None:
        """Closes what reading left open."""
        self._inner.close()

    def describe(self) -> SourceInfo:
        """As the LeRobot family tells it, with the names of the robot, and how action and state belong together."""
        if self._info is None:
            info = self._inner.describe()
            warnings = list(info.warnings)
            robot = self._robot or info.embodiment
            vectors = {
                name: self._named(name, spec, robot, warnings) if name in ("state", "action") else spec
                for name, spec in info.vectors.items()
            }
            facts, told, text = self._relation(
                {name: vectors[name].names for name in ("state", "action") if name in vectors}, info.fps
            )
            self._info = dataclasses.replace(
                info,
                kind=f"unitree/{self._family}-{info.kind.partition('/')[2]}",
                embodiment=robot,
                vectors=vectors,
                details={**info.details, "relation": facts, "report": {"action to state": text}},
                warnings=(*warnings, *told),
            )
        return self._info

    def _named(self, name: str, spec: VectorSpec, robot: str, warnings: list[str]) -> VectorSpec:
        """Checks declared names against the robot's; fills them in where only numbers were declared."""
        expected = flat_names(robot)
        if expected is None or self._family != "vector":
            return spec
        if len(expected) != len(spec.names):
            warnings.append(f"{name}: {robot} has {len(expected)} joints, {len(spec.names)} are stored; they are taken")
            return spec
        if all(text == f"dim_{k}" for k, text in enumerate(spec.names)):
            return dataclasses.replace(spec, names=expected)
        if _plain(spec.names) != _plain(expected):
            first = next(
                k for k, pair in enumerate(zip(_plain(spec.names), _plain(expected), strict=True)) if len(set(pair)) > 1
            )
            warnings.append(
                f"{name}: names are not those of {robot}, from dimension {first} on ({spec.names[first]}, not "
                f"{expected[first]}): another order than in other sets; the declared ones are kept"
            )
        return spec

    def _relation(self, names: Mapping[str, Sequence[str]], fps: float) -> tuple[dict[str, object], list[str], str]:
        found = self._inner.survey
        roles = found.roles.vectors
        if self._tree.remote or not {"state", "action"} <= set(roles):
            return {}, [], "not measured"
        relation = Relation()
        episodes = list(found.index.places)
        for episode in episodes[:: max(1, len(episodes) // _RELATED)][:_RELATED]:
            place = found.index.places[episode]
            try:
                state, action = (
                    _joined(self._tree, place.file, roles[n], place.start, place.stop) for n in ("state", "action")
                )
            except (DataError, pa.ArrowException, OSError, ValueError, KeyError):
                continue  # it is dropped with its reason when it is read
            if len(state) > 1 and np.isfinite(state).all() and np.isfinite(action).all():
                relation.episodes.append(relate(state, action))
        if not relation.episodes:
            return {}, [], "not measured"
        return relation.facts(names, fps)


def _joined(tree: Tree, file: str, role: VectorRole, start: int, stop: int) -> np.ndarray:
    opened: pq.ParquetFile = open_parquet(tree, file)
    try:
        table = opened.read(columns=list(dict.fromkeys(part.column for part in role.parts))).slice(start, stop - start)
    finally:
        opened.close()
    return np.concatenate(
        [flat_numbers(table.column(p.column), p.width, key=p.column)[:, p.start : p.stop] for p in role.parts], axis=1
    )


def _plain(names: Sequence[str]) -> list[str]:
    """Names without what spellings of one joint differ in."""
    return [
        name.lower().rsplit(".", 1)[-1].replace("z1_dual_", "").replace("_", "").removesuffix("joint") for name in names
    ]


def check_only_raw(given: Mapping[str, object]) -> None:
    """Refuses options of raw recordings with a published set.

    Raises:
        ConfigError: one is given.
    """
    for option, value in given.items():
        if value:
            raise ConfigError("only with raw recordings (data.json), not with a published set", where=option)
