"""The plan: all that decides the bytes of a set, written before the first of them.

Episodes of the source (refs, from metadata alone) -> layout (vector widths, camera slots) -> splits -> shards.
``plan.json`` is canonical JSON; its sha256 is the plan's digest. Two runs with equal plans write equal bytes, so that
finished shards of one can be kept by the other; any difference is refused and named.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from pydantic import BaseModel, ConfigDict
from wdsmix.converters.base import ConvertOptions, Source
from wdsmix.converters.rate import check_kinds, kept_frames, true_rate
from wdsmix.converters.reasons import scrub
from wdsmix.converters.splits import assign_splits

from wdsmix import __version__
from wdsmix.episode import EpisodeRef, SourceInfo, VectorSpec
from wdsmix.errors import ConfigError, DataError
from wdsmix.limits import MAX_VECTOR_WIDTH
from wdsmix.manifest import FORMAT_VERSION, Dropped, canonical_json
from wdsmix.texts import counted, encodable

__all__ = ["Plan", "PlannedCamera", "PlannedEpisode", "PlannedShard", "PlannedVector", "Planning", "differences"]

_LIBRARIES = ("numpy", "pillow", "pyarrow", "simplejpeg")
_RUN_OPTIONS = ("workers", "part", "on_bad", "extra")  # these change no byte; extra is spelled out on its own
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}")
_FIRST_VECTORS = ("state", "action", "reward", "done")


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class PlannedEpisode(_Model):
    """One episode that the set shall hold."""

    number: int
    file: str
    id: str
    frames: int
    """Stored frames, as the metadata promise."""


class PlannedShard(_Model):
    """One shard."""

    name: str
    split: str
    episodes: list[PlannedEpisode]

    @property
    def frames(self) -> int:
        """Planned frames of all its episodes."""
        return sum(episode.frames for episode in self.episodes)


class PlannedCamera(_Model):
    """One camera slot."""

    key: str
    kind: Literal["rgb", "depth"]
    order: Literal["rgb", "bgr"]
    flip: Literal["none", "vertical", "rot180"]

    @property
    def encoding(self) -> str:
        """``jpeg`` or ``png``."""
        return "png" if self.kind == "depth" else "jpeg"

    @property
    def suffix(self) -> str:
        """``jpg`` or ``png``: the end of its members."""
        return "png" if self.kind == "depth" else "jpg"


class PlannedVector(_Model):
    """One vector."""

    width: int
    names: list[str] = []
    units: list[str] = []
    kinds: list[Literal["absolute", "delta", "delta_rotation", "unknown"]] = []


class Plan(_Model):
    """plan.json."""

    format_version: int = FORMAT_VERSION
    name: str
    kind: str
    embodiment: str
    licence: str
    source_fps: float
    hz: float
    converter: str
    converter_version: str
    arguments: dict[str, object]
    libraries: dict[str, str]
    source_fingerprint: str
    cameras: dict[str, PlannedCamera]
    vectors: dict[str, PlannedVector]
    details: dict[str, object]
    warnings: list[str]
    dropped: list[Dropped]
    shards: list[PlannedShard]

    def to_bytes(self) -> bytes:
        """The bytes of plan.json."""
        return canonical_json(self)

    @property
    def digest(self) -> str:
        """sha256 of plan.json."""
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def header(self) -> dict[str, object]:
        """The fields of the manifest that the plan decides."""
        fields = {name: getattr(self, name) for name in type(self).model_fields if name not in ("shards", "cameras")}
        fields["vectors"] = {name: vector.model_dump() for name, vector in self.vectors.items()}
        fields["cameras"] = {
            slot: {
                "key": camera.key,
                "member": f"{slot}.{camera.suffix}",
                "kind": camera.kind,
                "encoding": camera.encoding,
            }
            for slot, camera in self.cameras.items()
        }
        return {**fields, "plan_digest": self.digest}

    def part(self, index: int, count: int) -> list[PlannedShard]:
        """The shards of one of ``count`` parts, in plan order.

        Whole shards, balanced by planned frames: longest first, each to the part with the least so far.
        """
        loads = [0] * count
        mine: set[str] = set()
        for shard in sorted(self.shards, key=lambda s: -s.frames):
            least = loads.index(min(loads))
            loads[least] += shard.frames
            if least == index:
                mine.add(shard.name)
        return [shard for shard in self.shards if shard.name in mine]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planning:
    """A plan together with what only this process needs."""

    plan: Plan
    refs: Mapping[int, EpisodeRef]
    """Episode number -> ref, of the planned episodes."""

    @classmethod
    def of(cls, source: Source, options: ConvertOptions) -> Planning:
        """Plans the conversion of a source.

        Raises:
            ConfigError: the options can't be met by this source.
            DataError: no episode is left, or one is bad and ``on_bad`` is ``fail``.
        """
        return _Planner(source, options).plan()


class _Planner:
    def __init__(self, source: Source, options: ConvertOptions) -> None:
        self.source = source
        self.options = options
        self.root = getattr(source, "path", None)
        self.dropped: dict[int, Dropped] = {}
        self.warnings: list[str] = []

    def plan(self) -> Planning:
        options = self.options
        refs = self.source.episodes()
        info = self.source.describe()
        if not info.fps > 0:
            raise ConfigError("source tells no frame rate", found=info.fps)
        self.warnings += [scrub(warning, self.root) for warning in info.warnings]
        self._check_unique(refs)
        good = self._good(refs)
        widths = self._widths(good)
        good = self._with_camera(good, info)
        good = self._first(good)
        widths = {name: width for name, width in widths.items() if any(name in ref.vectors for ref in good.values())}
        slots = sorted({slot for ref in good.values() for slot in ref.cameras}, key=_natural)
        self._check_names([*widths, *slots])
        if missing := [slot for slot in slots if slot not in info.cameras]:
            raise DataError("source does not describe a camera that its episodes have", where=missing[0])
        vectors = {name: self._vector(name, width, info) for name, width in widths.items()}
        rate = (info.fps, options.hz, options.hz_mode)
        check_kinds(
            {name: VectorSpec(names=tuple(v.names), kinds=tuple(v.kinds)) for name, v in vectors.items()}, *rate
        )
        self._warn_rate(info, vectors)
        if not good:
            raise self._nothing()
        splits, outside = assign_splits(good, options)
        for number, reason in outside.items():
            self._drop(number, good[number], "filter", reason)
        name = encodable(options.name or info.name)
        plan = Plan(
            name=name,
            kind=info.kind,
            embodiment=encodable(options.embodiment or info.embodiment or name),
            licence=encodable(options.licence or info.licence),
            source_fps=float(info.fps),
            hz=true_rate(*rate),
            converter=info.kind.partition("/")[0],
            converter_version=__version__,
            arguments=self._arguments(),
            libraries=_libraries(self.source),
            source_fingerprint=self.source.fingerprint(),
            cameras={
                slot: PlannedCamera(
                    key=encodable(info.cameras[slot].key),
                    kind=info.cameras[slot].kind,
                    order=info.cameras[slot].order,
                    flip=info.cameras[slot].flip,
                )
                for slot in slots
            },
            vectors=vectors,
            details=_plain(info.details),
            warnings=self.warnings,
            dropped=[self.dropped[number] for number in sorted(self.dropped)],
            shards=_shards(good, splits, rate, options.frames_per_shard),
        )
        return Planning(plan=plan, refs={number: good[number] for number in splits})

    def _drop(self, number: int, ref: EpisodeRef, kind: Literal["file", "episode", "filter"], reason: str) -> None:
        if self.options.on_bad == "fail" and kind != "filter":
            raise DataError(reason, path=ref.file, where=ref.id or None, hint="--on-bad drop would leave it out")
        self.dropped[number] = Dropped(
            episode=number,
            source_file=encodable(ref.file),
            source_episode=encodable(ref.id),
            kind=kind,
            reason=scrub(reason, self.root),
        )

    def _check_unique(self, refs: Sequence[EpisodeRef]) -> None:
        seen: set[tuple[str, str]] = set()
        for ref in refs:
            if (ref.file, ref.id) in seen:
                raise DataError("source lists an episode twice", path=ref.file, where=ref.id)
            seen.add((ref.file, ref.id))

    def _good(self, refs: Sequence[EpisodeRef]) -> dict[int, EpisodeRef]:
        good: dict[int, EpisodeRef] = {}
        for number, ref in enumerate(refs):
            if ref.fault is not None:
                self._drop(number, ref, ref.fault_kind, ref.fault)
            elif encodable(ref.file) != ref.file:
                self._drop(number, ref, "file", "refused: its name is not UTF-8; rename it")
            elif encodable(ref.id) != ref.id:
                self._drop(number, ref, "episode", "refused: its name is not UTF-8")
            elif wide := [name for name, width in ref.vectors.items() if width > MAX_VECTOR_WIDTH]:
                self._drop(
                    number,
                    ref,
                    "episode",
                    f"{wide[0]} has {ref.vectors[wide[0]]} dimensions, a set at most {MAX_VECTOR_WIDTH}",
                )
            elif ref.frames < 1:
                self._drop(number, ref, "episode", "it has no frames")
            else:
                good[number] = ref
        return good

    def _widths(self, good: dict[int, EpisodeRef]) -> dict[str, int]:
        """Width of each vector: that of the most frames (ties: first seen); episodes with another one are dropped."""
        names = sorted({name for ref in good.values() for name in ref.vectors}, key=_vector_order)
        widths: dict[str, int] = {}
        for name in names:
            frames: dict[int, int] = {}
            for ref in good.values():
                if name in ref.vectors:
                    frames[ref.vectors[name]] = frames.get(ref.vectors[name], 0) + ref.frames
            if not frames:  # all that had it are dropped by now
                continue
            widths[name] = max(frames, key=lambda width: frames[width])
            for number, ref in list(good.items()):
                width = ref.vectors.get(name, widths[name])
                if width != widths[name]:
                    self._drop(
                        number, ref, "episode", f"{name} has {counted(width, 'dimension')}, the set has {widths[name]}"
                    )
                    del good[number]
        return widths

    def _with_camera(self, good: dict[int, EpisodeRef], info: SourceInfo) -> dict[int, EpisodeRef]:
        if self.options.allow_no_camera or not good:
            return good
        if not any(ref.cameras for ref in good.values()):
            raise ConfigError(
                "no episode has a picture",
                path=info.name,
                hint="name the cameras with --camera, or pass --allow-no-camera to store vectors only",
            )
        for number, ref in list(good.items()):
            if not ref.cameras:
                self._drop(number, ref, "episode", "it has no camera (--allow-no-camera would keep it)")
                del good[number]
        return good

    def _first(self, good: dict[int, EpisodeRef]) -> dict[int, EpisodeRef]:
        limit = self.options.max_episodes
        if not limit or len(good) <= limit:
            return good
        kept = dict(list(good.items())[:limit])
        last = max(kept)
        self.dropped = {number: dropped for number, dropped in self.dropped.items() if number < last}
        return kept

    def _check_names(self, names: Sequence[str]) -> None:
        for name in names:
            if not _NAME.fullmatch(name) or name == "json":
                raise DataError(
                    "bad name of a vector or camera",
                    found=repr(name),
                    expected="up to 64 letters, digits, _ and -; not json",
                )
        if len(set(names)) != len(names):
            raise DataError(
                "a camera and a vector share a name", found=sorted({n for n in names if names.count(n) > 1})
            )

    def _vector(self, name: str, width: int, info: SourceInfo) -> PlannedVector:
        spec = info.vectors.get(name, VectorSpec())
        kept: dict[str, list[str]] = {}
        for field, values in (("names", spec.names), ("units", spec.units), ("kinds", spec.kinds)):
            if values and len(values) != width:
                many = counted(len(values), f"{field[:-1]} does", f"{field} do")
                self.warnings.append(f"{name}: {many} not fit its {counted(width, 'dimension')}; left out")
            elif values:
                kept[field] = [encodable(value) for value in values]
        said = self.options.action_kind
        if name == "action" and said:
            known = kept.get("kinds") or ["unknown"] * width
            kept["kinds"] = [said if kind == "unknown" else kind for kind in known]
        return PlannedVector.model_validate({"width": width, **kept})

    def _warn_rate(self, info: SourceInfo, vectors: Mapping[str, PlannedVector]) -> None:
        options = self.options
        rate = true_rate(info.fps, options.hz, options.hz_mode)
        if options.hz and abs(rate - options.hz) > 0.01 * options.hz:
            possible = options.hz <= info.fps and options.hz_mode == "stride"
            possible = possible and not any("delta_rotation" in spec.kinds for spec in info.vectors.values())
            other = "; --hz-mode nearest meets it" if possible else ""
            self.warnings.append(f"--hz {options.hz:g} of {info.fps:g} gives {rate:g} frames per second{other}")
        if rate != info.fps and "action" in vectors and not set(vectors["action"].kinds) - {"unknown"}:
            self.warnings.append(
                f"frames are left out ({info.fps:g} to {rate:g} per second) and the kind of action is unknown: "
                "it is sampled, which is right for absolute targets and wrong for deltas; say which with --action-kind"
            )

    def _arguments(self) -> dict[str, object]:
        options = self.options
        shaping = {
            name: getattr(options, name) for name in ConvertOptions.__dataclass_fields__ if name not in _RUN_OPTIONS
        }
        shaping |= {name: float(shaping[name]) for name in ("hz", "val_fraction")}
        return _plain({**shaping, "extra": options.extra, "source": self.source.arguments()})

    def _nothing(self) -> DataError:
        files = {dropped.source_file for dropped in self.dropped.values()}
        reasons: dict[str, list[str]] = {}
        for dropped in self.dropped.values():
            reasons.setdefault(dropped.reason, []).append(dropped.source_file)
        shown = "; ".join(
            f"{len(names)} x {reason}" + (f" (the first: {names[0]})" if len(files) > 1 else "")
            for reason, names in list(reasons.items())[:3]
        )
        return DataError(
            "no episode can be converted" + (f": {shown}" if shown else ""),
            path=files.pop() if len(files) == 1 else None,
            found=f"{counted(len(self.dropped), 'episode')}, all left out" if self.dropped else "no episode at all",
        )


def _shards(
    good: Mapping[int, EpisodeRef],
    splits: Mapping[int, str],
    rate: tuple[float, float, Literal["stride", "nearest"]],
    limit: int,
) -> list[PlannedShard]:
    shards: list[PlannedShard] = []
    names = sorted(set(splits.values()), key=lambda split: ({"train": 0, "val": 1}.get(split, 2), split))
    for split in names:
        groups: list[list[PlannedEpisode]] = []
        filled = 0
        for number, its in splits.items():
            if its != split:
                continue
            ref = good[number]
            episode = PlannedEpisode(number=number, file=ref.file, id=ref.id, frames=kept_frames(ref.frames, *rate))
            if not groups or filled + episode.frames > limit:
                groups.append([])
                filled = 0
            groups[-1].append(episode)
            filled += episode.frames
        shards += [PlannedShard(name=f"{split}-{k:05d}", split=split, episodes=group) for k, group in enumerate(groups)]
    return shards


def _natural(name: str) -> list[tuple[int, int, str]]:
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]


def _vector_order(name: str) -> tuple[int, str]:
    return (_FIRST_VECTORS.index(name) if name in _FIRST_VECTORS else len(_FIRST_VECTORS), name)


def _plain(value: Mapping[str, object]) -> dict[str, object]:
    """As JSON gives it back: tuples become lists, keys strings."""
    plain = _encodable(json.loads(json.dumps(value, allow_nan=False, default=dict)))
    return plain if isinstance(plain, dict) else {}


def _encodable(value: object) -> object:
    """With texts that UTF-8 can hold, wherever they are: what a source tells may come from names of any bytes."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, dict):
        return {encodable(str(key)): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _libraries(source: Source) -> dict[str, str]:
    names = {*_LIBRARIES, *getattr(source, "libraries", ())}
    found = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in sorted(names):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def differences(old: Mapping[str, object], new: Mapping[str, object], *, prefix: str = "") -> list[str]:
    """What differs between two plans (or the like keys of a manifest), each as ``name: old -> new``.

    Arguments come out as the options that set them, and come first.
    """
    found: list[str] = []
    for key in sorted({*old, *new}, key=lambda k: (k != "arguments", k)):
        was, now = old.get(key), new.get(key)
        if was == now:
            continue
        if isinstance(was, Mapping) and isinstance(now, Mapping):
            options = key == "arguments" or (prefix == "--" and key == "source")
            found += differences(was, now, prefix="--" if options else f"{prefix}{key}.")
        else:
            shown = f"{prefix}{key.replace('_', '-') if prefix == '--' else key}"
            found.append(f"{shown}: {_short(was)} -> {_short(now)}")
    return found


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
