"""One raw episode: data.json and the pictures it names, brought to rows that have everything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from wdsmix.converters.loose import inside, picture_fault, repeats
from wdsmix.converters.slots import natural_key
from wdsmix.converters.unitree.columns import Columns, chosen, columns_of, rest_of, tag
from wdsmix.converters.unitree.jsonfile import read_recording
from wdsmix.converters.unitree.options import UnitreeOptions

from wdsmix.episode import Float32Array
from wdsmix.errors import DataError

__all__ = ["RawEpisode", "load_episode"]

_SWAPPED = {"left_ee": "right_ee", "right_ee": "left_ee"}
_LONG_TEXT = 4000
_LONG_NAME = 64
_MOST_CAMERAS = 16
_MOST_IDX = 1 << 31


@dataclass(kw_only=True, slots=True)
class RawEpisode:
    """What one recording holds."""

    rows: npt.NDArray[np.int64]
    """int64 [T]: the items that are kept."""
    idx: list[int]
    """``idx`` of every item."""
    vectors: Mapping[str, Float32Array]
    parts: Mapping[str, Sequence[str]]
    """Vector -> tags of the parts that make it up."""
    widths: Mapping[str, Sequence[int]]
    """Vector -> widths of these parts."""
    files: Mapping[str, list[str]]
    """Camera -> file of every item (empty where it has none)."""
    fps: float
    """Asked for in data.json; 0 where it says none."""
    measured_fps: float = 0.0
    task: str = ""
    extras: Mapping[str, object] = field(default_factory=dict)
    recovered: bool = False
    gaps: int = 0
    """Numbers missing between the first ``idx`` and the last."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Cause -> frames left out."""
    repeated: Mapping[str, int] = field(default_factory=dict)
    """Camera -> pictures that repeat the one before."""
    all_repeated: int = 0
    """Frames all of whose pictures repeat the ones before."""
    traits: Sequence[str] = ()
    """What tells the writer's generation."""
    notes: Sequence[str] = ()
    joint_names: Mapping[str, Sequence[str]] = field(default_factory=dict)


def load_episode(folder: Path, file: str, options: UnitreeOptions) -> RawEpisode:
    """Reads data.json and looks at the ends of every picture.

    Args:
        folder: Of the episode.
        file: Name of the JSON file in it.
        options: Of the family.

    Raises:
        DataError: the episode is bad.
    """
    found = read_recording(folder / file)
    items, idx = _ordered(found.items)
    head = found.head
    info = _object(head.get("info"))
    states, actions = columns_of(items, "states", idx), columns_of(items, "actions", idx)
    states, actions = _swap(states, actions, options)
    vectors, parts, widths = _vectors(states, actions, options)
    cameras = _cameras(folder, items, options)
    good, left_out = _complete(folder, cameras, len(items), idx, options)
    if not good.any() and cameras and options.allow_no_camera and left_out.pop("absent", 0):
        cameras, good = {}, np.ones(len(items), np.bool_)
    left_out.pop("absent", None)
    rows = np.flatnonzero(good)
    same = {key: repeats([folder / names[k] for k in rows.tolist()]) for key, names in cameras.items()}
    frozen = np.logical_and.reduce(list(same.values())) if same else np.zeros(len(rows), np.bool_)
    if options.dedupe and frozen.any():
        left_out["repeated pictures"] = int(frozen.sum())
        rows = rows[~frozen]
    task, extras = _texts(head, options)
    return RawEpisode(
        rows=rows,
        idx=idx,
        vectors={name: np.ascontiguousarray(values[rows], np.float32) for name, values in vectors.items()},
        parts=parts,
        widths=widths,
        files=cameras,
        fps=_fps(info),
        measured_fps=_measured(items),
        task=task,
        extras=extras,
        recovered=found.recovered,
        gaps=idx[-1] - idx[0] + 1 - len(idx),
        left_out=left_out,
        repeated={key: int(values.sum()) for key, values in same.items()},
        all_repeated=int(frozen.sum()),
        traits=_traits(items, head),
        notes=_notes(states, actions, items, head, options),
        joint_names=_joint_names(info),
    )


def _ordered(items: Sequence[Any]) -> tuple[list[Mapping[str, Any]], list[int]]:
    """Items by their own number.

    Raises:
        DataError: there are none, one is no object, or two have one number.
    """
    if not items:
        raise DataError("no frames: data is empty")
    for k, item in enumerate(items):
        if not isinstance(item, dict):
            raise DataError("a frame is no object", where=f"data[{k}]", found=type(item).__name__)
    given = [item.get("idx") for item in items]
    if any(type(number) is not int for number in given):
        given = list(range(len(items)))
    odd = next((number for number in given if not 0 <= number < _MOST_IDX), None)
    if odd is not None:
        raise DataError("no frame has such a number", where="idx", expected=f"0 to {_MOST_IDX}", found=f"{odd:.3g}")
    order = sorted(range(len(items)), key=lambda k: given[k])
    idx = [given[k] for k in order]
    twice = next((a for a, b in pairwise(idx) if a == b), None)
    if twice is not None:
        raise DataError("two frames of one number", where=f"idx {twice}")
    return [items[k] for k in order], idx


def _swap(states: Columns, actions: Columns, options: UnitreeOptions) -> tuple[Columns, Columns]:
    made = []
    for name, columns in (("state", states), ("action", actions)):
        swap = options.swap_hands in (name, "both")
        made.append({(_SWAPPED.get(part, part), of): columns[part, of] for part, of in columns} if swap else columns)
    return made[0], made[1]


def _vectors(
    states: Columns, actions: Columns, options: UnitreeOptions
) -> tuple[dict[str, npt.NDArray[np.float64]], dict[str, list[str]], dict[str, list[int]]]:
    vectors: dict[str, npt.NDArray[np.float64]] = {}
    parts: dict[str, list[str]] = {}
    widths: dict[str, list[int]] = {}
    for name, columns, wanted, prefix in (
        ("state", states, options.state, ""),
        ("action", actions, options.action, "action_"),
    ):
        keys = chosen(columns, wanted, f"--{name}")
        groups = {name: keys, **{of: [key] for of, key in rest_of(columns, keys, prefix).items()}}
        for of, members in groups.items():
            vectors[of] = np.concatenate([columns[key] for key in members], axis=1)
            parts[of] = [tag(key) for key in members]
            widths[of] = [columns[key].shape[1] for key in members]
    for name, values in vectors.items():
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, column = (int(number) for number in bad[0])
            raise DataError("not finite", where=f"{name} frame {row} dimension {column}", found=values[row, column])
        if np.abs(values).max() > np.finfo(np.float32).max:
            raise DataError("a number beyond float32", where=name)
    return vectors, parts, widths


def _cameras(folder: Path, items: Sequence[Mapping[str, Any]], options: UnitreeOptions) -> dict[str, list[str]]:
    """Camera -> file of each item; empty where an item names none.

    Raises:
        DataError: a path leaves the folder.
    """
    found: dict[str, list[str]] = {}
    seen: dict[str, tuple[int, str]] = {}
    shared: tuple[int, str, str] | None = None
    known: set[str] = set()
    blocks = ("colors", "depths") if options.depth else ("colors",)
    for k, item in enumerate(items):
        for block in blocks:
            named = item.get(block)
            for key, path in named.items() if isinstance(named, dict) else ():
                if not isinstance(path, str) or not path:
                    continue
                inside(folder, path, known)
                first = seen.setdefault(path, (k, str(key)))
                if first[0] == k and first[1] != str(key):
                    shared = shared or (k, first[1], str(key))
                found.setdefault(str(key), [""] * len(items))[k] = path.replace("\\", "/")
                if len(found) > _MOST_CAMERAS:
                    raise DataError("too many cameras", expected=f"at most {_MOST_CAMERAS}")
    if shared is not None:
        raise DataError("one picture for two cameras", where=f"data[{shared[0]}]", found=f"{shared[1]} and {shared[2]}")
    if options.cameras:
        wanted = set(options.cameras.values())
        found = {key: names for key, names in found.items() if key in wanted}
    if options.depth:
        for key, names in found.items():
            if key.startswith("depth") and any(name.lower().endswith((".jpg", ".jpeg")) for name in names):
                raise DataError(
                    f"{key} was saved as JPEG, 8 bits and lossy: no distances", hint="convert without --depth"
                )
    return dict(sorted(found.items(), key=lambda pair: natural_key(pair[0])))


def _complete(
    folder: Path, cameras: Mapping[str, list[str]], count: int, idx: Sequence[int], options: UnitreeOptions
) -> tuple[npt.NDArray[np.bool_], dict[str, int]]:
    """Which items have all their pictures, bool [T], and how many lack one, by cause.

    Raises:
        DataError: one lacks a picture and ``missing`` is ``fail``, or all do.
    """
    good = np.ones(count, np.bool_)
    causes: dict[str, int] = {}
    first = ""
    missing = 0
    for k in range(count):
        for key, names in cameras.items():
            fault = picture_fault(folder / names[k]) if names[k] else "not named"
            if not fault:
                continue
            missing += "missing" in fault
            cause = f"{key}: {'no picture' if fault in ('not named', 'the file is missing') else 'a bad picture'}"
            causes[cause] = causes.get(cause, 0) + 1
            first = first or f"{names[k] or key} at idx {idx[k]}: {fault}"
            good[k] = False
            break
    if first and options.missing == "fail":
        raise DataError(f"{int((~good).sum())} of {count} frames lack a picture, the first: {first}")
    if not good.any():
        if options.allow_no_camera and missing == count:
            return good, {"absent": count}
        raise DataError(
            f"its pictures are absent: none of {count} frames has all of them, the first: {first}",
            hint="fetch the colors folder too, or name the cameras that are there with --camera",
        )
    return good, causes


def _fps(info: Mapping[str, Any]) -> float:
    image = info.get("image")
    value = image.get("fps") if isinstance(image, dict) else None
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value <= 10_000:
        return float(value)
    return 0.0


def _measured(items: Sequence[Mapping[str, Any]]) -> float:
    """Frames per second by time stamps, which some forks write; 0 where there are none."""
    for key in ("timestamp", "timestamps", "time"):
        values = [item.get(key) for item in items]
        if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values):
            steps = np.diff(np.array(values, np.float64))
            middle = float(np.median(steps)) if len(steps) else 0.0
            for unit in (1.0, 1e-3, 1e-6, 1e-9):
                if 1e-4 < middle * unit < 10:
                    return 1 / (middle * unit)
    return 0.0


def _texts(head: Mapping[str, Any], options: UnitreeOptions) -> tuple[str, dict[str, object]]:
    text = head.get("text")
    told = text if isinstance(text, dict) else {"goal": text} if isinstance(text, str) else {}
    extras: dict[str, object] = {
        key: " ".join(told[key].split())[:_LONG_TEXT]
        for key in ("desc", "steps")
        if isinstance(told.get(key), str) and told[key].strip()
    }
    goal = " ".join(told["goal"].split()) if isinstance(told.get("goal"), str) else ""
    if options.instruction and goal:
        extras["goal"] = goal
    for key in ("result", "rewards", "success"):
        if isinstance(head.get(key), (str, bool, int)):
            extras[key] = head[key]
        elif isinstance(head.get(key), dict) and isinstance(head[key].get("success"), (bool, int)):
            extras["success"] = head[key]["success"]
    return options.instruction or goal, extras


def _traits(items: Sequence[Mapping[str, Any]], head: Mapping[str, Any]) -> list[str]:
    states = items[0].get("states")
    block = states if isinstance(states, dict) else {}
    info = _object(head.get("info"))
    traits = ["left_hand/right_hand" if "left_hand" in block else "left_ee/right_ee" if "left_ee" in block else ""]
    if "body" in block:
        body = block["body"]
        traits.append("body null" if body is None else "body empty" if not any(_listed(body)) else "body")
    traits.append("sim_state" if any("sim_state" in item for item in items[:3]) or "sim_state" in info else "")
    return [trait for trait in traits if trait]


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(body: object) -> list[bool]:
    return [bool(value) for value in body.values()] if isinstance(body, dict) else [bool(body)]


def _joint_names(info: Mapping[str, Any]) -> dict[str, list[str]]:
    given = info.get("joint_names")
    found = {}
    for part, names in given.items() if isinstance(given, dict) else ():
        if isinstance(names, list) and names and all(isinstance(name, str) for name in names):
            own = {"left_hand": "left_ee", "right_hand": "right_ee"}.get(str(part), str(part))
            found[own] = [name.replace("Wristyaw", "WristYaw")[:_LONG_NAME] for name in names]
    return found


def _notes(
    states: Columns,
    actions: Columns,
    items: Sequence[Mapping[str, Any]],
    head: Mapping[str, Any],
    options: UnitreeOptions,
) -> list[str]:
    notes = []
    left, right = states.get(("left_arm", "qpos")), states.get(("right_arm", "qpos"))
    if left is not None and right is not None:
        for shared in (4, 6):
            if min(left.shape[1], right.shape[1]) > shared and np.array_equal(left[:, -shared:], right[:, :shared]):
                notes.append(
                    f"the last {shared} joints of the left arm are the first {shared} of the right one: recorded from "
                    f"a robot with {14 - shared} arm joints (G1_23, H1), whose halves overlap"
                )
    for name, columns in (("state", states), ("action", actions)):
        hands = columns.get(("left_ee", "qpos")), columns.get(("right_ee", "qpos"))
        if hands[0] is not None and hands[1] is not None and len(hands[0]) > 1:
            moves = np.ptp(hands[0], axis=0).max() > 0
            if moves and np.array_equal(hands[0], hands[1]):
                notes.append(f"left and right hand of the {name} are equal in every frame: was one of them copied?")
    for part in ("left_ee", "right_ee"):
        seen, asked = states.get((part, "qpos")), actions.get((part, "qpos"))
        if seen is not None and asked is not None and np.abs(seen).max() > 50 and np.abs(asked).max() <= 1.5:
            notes.append(f"{part}: the state spans up to {np.abs(seen).max():g}, the action 0 to 1: unlike units")
    depths = [path for item in items[:1] for path in _values(item.get("depths")) if isinstance(path, str)]
    if any(path.lower().endswith((".jpg", ".jpeg")) for path in depths):
        notes.append("depth was saved as JPEG, 8 bits and lossy: it is left out, being no distances")
    elif depths and not options.depth:
        notes.append("depth is left out; --depth keeps it")
    for key in ("tactiles", "audios"):
        if any(_values(item.get(key)) for item in items[:1]):
            notes.append(f"{key} are left out")
    if any(item.get("sim_state") for item in items[:1]):
        notes.append("sim_state is left out")
    return notes


def _values(block: object) -> list[object]:
    return list(block.values()) if isinstance(block, dict) else list(block) if isinstance(block, list) else []
