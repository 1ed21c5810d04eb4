"""Catalog: the shard sets of a mixture, opened, checked against each other, and the layout of a sample they agree on.

A *source* is one set (or some shards of it) with a weight; its *rows* number the frames of its split, episode by
episode, in index order. The *layout* is the shape of everything in a batch but the batch dimension.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

import numpy as np
import numpy.typing as npt
from braceexpand import UnbalancedBracesError, braceexpand  # type: ignore[attr-defined]

from wdsmix.errors import ConfigError, ConflictError, DataError, WdsmixError
from wdsmix.mixture.config import CORE_VECTORS, GoalConfig, MixtureConfig, SourceConfig
from wdsmix.mixture.explain import did_you_mean
from wdsmix.mixture.groups import check_peers, stats_of
from wdsmix.mixture.normalize import Normalizer, Scale, scale_of
from wdsmix.mixture.order import MixtureOrder, SourceFrames
from wdsmix.mixture.padding import padded_width
from wdsmix.mixture.waypoints import Waypoints, action_mode, open_waypoints
from wdsmix.shards.reader import ShardSet
from wdsmix.stats import merge_stats
from wdsmix.store.opening import UrlPath, is_url

__all__ = ["Catalog", "Layout", "OpenSource", "open_catalog", "reopen_catalog"]

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenSource:
    """One source: a set, the episodes chosen of it, and where each row lies."""

    id: int
    """Its place in the configuration."""
    config: SourceConfig
    set: ShardSet
    embodiment: str
    embodiment_id: int
    widths: Mapping[str, int]
    """Vector name -> width in the batch, before padding."""
    members: Mapping[str, str]
    """Camera slot -> member suffix, such as ``cam0.jpg``; colour cameras only."""
    sizes: Mapping[str, Sequence[tuple[int, int]]]
    """Camera slot -> distinct (width, height) of its pictures."""
    number: Int64Array
    """int64 [E]: episode numbers."""
    frames: Int64Array
    """int64 [E]: frames of each episode."""
    ends: Int64Array
    """int64 [E]: cumulative frames: episode e has rows ``ends[e] - frames[e]`` to ``ends[e] - 1``."""
    shard: npt.NDArray[np.int32]
    """int32 [E]: shard of each, as `ShardSet.shard` counts."""
    first_row: Int64Array
    """int64 [E]: row of each episode's first frame in its shard's frames.arrow."""
    order: SourceFrames
    """As the order sees it."""
    waypoints: Waypoints | None = None
    """How its actions become waypoints, where that is asked."""

    @property
    def name(self) -> str:
        """Its name in the mixture."""
        return self.config.name

    def live_bytes(self, window: int) -> int:
        """About what the order keeps in play: two windows of frames, at most the whole source."""
        size = int(self.order.lengths.sum())
        return min(size, round(2 * window * size / int(self.frames.sum())))


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Shape of a sample."""

    cameras: tuple[str, ...]
    """Slots, in batch order."""
    height: int
    width: int
    resizes: bool
    """Whether pictures of other sizes are brought to this one."""
    offsets: tuple[int, ...]
    """T observation offsets."""
    chunk: int
    """K actions."""
    dims: Mapping[str, int]
    """Padded width of ``state``, ``action`` and the further vectors, in this order."""
    scalars: tuple[str, ...]
    """``reward`` and ``done``, where asked."""
    extras: tuple[str, ...]
    goal: GoalConfig | None = None
    marks: tuple[str, ...] = ()
    """``replaced`` and ``valid``, where a batch has them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Catalog:
    """An opened mixture."""

    config: MixtureConfig
    sources: tuple[OpenSource, ...]
    layout: Layout
    scales: Mapping[str, Sequence[Scale | None]]
    """Vector name -> one scale a source, None where it lacks the vector."""

    def new_order(self) -> MixtureOrder:
        """The order of its samples, at the start."""
        config = self.config
        return MixtureOrder(
            [source.order for source in self.sources],
            seed=config.seed,
            streams=config.streams,
            window=config.window,
            block_bytes=config.block_bytes,
        )

    def normalizers(self) -> dict[str, Normalizer]:
        """One normalizer a vector."""
        return {name: Normalizer(self.scales[name], width) for name, width in self.layout.dims.items()}


def open_catalog(config: MixtureConfig, digests: Mapping[str, str] | None = None) -> Catalog:
    """Opens the sets of a mixture and settles the layout of its samples.

    Reads manifests, statistics and indexes; no shard.

    Args:
        config: The mixture.
        digests: Source name -> digest of its set; None: sets in stores are of the version that latest.json names now.

    Raises:
        ConfigError: the sets don't fit the configuration or each other.
        DataError: a set is missing or damaged.
    """
    try:
        sources = tuple(_open(place, config, digests or {}) for place in range(len(config.sources)))
        return Catalog(config=config, sources=sources, layout=_layout(config, sources), scales=_scales(config, sources))
    except ConfigError as error:
        if error.path is None and config.path is not None:
            error.path = str(config.path)
        raise


def reopen_catalog(config: MixtureConfig, digests: Mapping[str, str]) -> Catalog:
    """Opens a mixture again in another process.

    Args:
        config: The mixture.
        digests: Source name -> digest when it was opened first.

    Raises:
        ConflictError: a set changed meanwhile.
    """
    sets = {name: digest.partition("/")[0] for name, digest in digests.items()}
    catalog = open_catalog(config, {s.name: sets[s.name] for s in config.sources if is_url(s.shards)})
    for source in catalog.sources:
        if source.order.digest != digests[source.name]:
            raise ConflictError(
                "the set changed since the dataset was made",
                path=source.set.path,
                where=f"source {source.name!r}",
                expected=digests[source.name],
                found=source.order.digest,
            )
    return catalog


def _open(place: int, config: MixtureConfig, digests: Mapping[str, str]) -> OpenSource:
    source = config.sources[place]
    where = f"source {source.name!r}"
    folder, shards = _locate(source, config.folder)
    try:
        opened = ShardSet(
            folder,
            shards=shards,
            digest=digests.get(source.name),
            cache_dir=config.cache_folder,
            cache_limit=config.cache_limit,
        )
    except WdsmixError as error:
        error.where = f"{where}: {error.where}" if error.where else where
        raise
    index, manifest = opened.index, opened.manifest
    if source.split not in index.splits:
        raise ConfigError(
            f"the set has no split {source.split!r}",
            where=f"{where}: split",
            expected=f"one of {', '.join(index.splits)}",
            found=source.split,
            hint=f"its folder is {folder}",
        )
    in_split = np.asarray(index.split) == index.splits.index(source.split)
    if shards is not None and not in_split.all():
        others = sorted({index.splits[code] for code in np.unique(index.split[~in_split])})
        raise ConfigError(
            "the pattern names shards of another split",
            where=f"{where}: shards",
            expected=f"shards of {source.split}",
            found=", ".join(others),
            hint="one pattern, one split: set split or narrow the pattern",
        )
    (chosen,) = np.nonzero(in_split & (np.asarray(index.frames) > 0))
    if not len(chosen):
        raise ConfigError(f"no frames in split {source.split!r}", where=where, hint=f"its folder is {folder}")
    frames = np.asarray(index.frames)[chosen].astype(np.int64)
    shard = np.asarray(index.shard)[chosen].astype(np.int32)
    embodiment = source.embodiment or manifest.embodiment
    waypoints = open_waypoints(source, config.sample, manifest)
    widths = {name: vector.width for name, vector in manifest.vectors.items()}
    if waypoints is not None:
        widths["action"] = waypoints.width
    rgb = {slot: camera for slot, camera in manifest.cameras.items() if camera.kind == "rgb"}
    return OpenSource(
        id=place,
        config=source,
        set=opened,
        embodiment=embodiment,
        embodiment_id=_embodiment_id(embodiment, source, config),
        widths=widths,
        members={slot: camera.member for slot, camera in rgb.items()},
        sizes={slot: [(w, h) for w, h in camera.sizes] for slot, camera in rgb.items()},
        number=np.asarray(index.episode)[chosen].astype(np.int64),
        frames=frames,
        ends=np.cumsum(frames),
        shard=shard,
        first_row=np.asarray(index.first_row)[chosen].astype(np.int64),
        order=SourceFrames(
            name=source.name,
            weight=source.weight,
            frames=frames,
            lengths=np.asarray(index.length)[chosen].astype(np.int64),
            offsets=np.asarray(index.offset)[chosen].astype(np.int64),
            shards=shard,
            digest=_digest(opened.digest, source.split, shards),
        ),
        waypoints=waypoints,
    )


def _locate(source: SourceConfig, base: Path) -> tuple[PurePath, list[str] | None]:
    """Folder or URL of a source's set, and the shards named by a pattern (None: all)."""
    where = f"source {source.name!r}: shards"
    kind = UrlPath if is_url(source.shards) else Path
    text = source.shards if kind is UrlPath else str(base / Path(source.shards).expanduser())
    if "{" not in text and not text.endswith(".tar"):
        return kind(text), None
    try:
        paths = [kind(part) for part in braceexpand(text)]
    except UnbalancedBracesError as error:
        raise ConfigError("unbalanced braces", where=where, found=source.shards) from error
    folders = sorted({str(path.parent) for path in paths})
    if len(folders) > 1:
        raise ConfigError(
            "a pattern stays within one set",
            where=where,
            expected="one folder",
            found=f"{len(folders)} folders, {folders[0]} and {folders[1]} among them",
            hint="name each set as a source of its own",
        )
    wrong = [path.name for path in paths if path.suffix != ".tar"]
    if wrong:
        raise ConfigError("a pattern names tars", where=where, expected="names that end in .tar", found=wrong[0])
    return kind(folders[0]), list(dict.fromkeys(path.stem for path in paths))


def _digest(digest: str, split: str, shards: list[str] | None) -> str:
    if shards is None:
        return f"{digest}/{split}"
    return f"{digest}/{split}/{hashlib.sha256(' '.join(sorted(shards)).encode()).hexdigest()[:16]}"


def _embodiment_id(name: str, source: SourceConfig, config: MixtureConfig) -> int:
    if not config.embodiments:
        return 0  # a second embodiment among the sources is refused in _layout
    if name not in config.embodiments:
        raise ConfigError(
            f"unknown embodiment {name!r} of source {source.name!r}",
            where="embodiments",
            hint=f"{did_you_mean(name, config.embodiments)}; give it an id of its own, or set the source's embodiment",
        )
    return config.embodiments[name]


def _layout(config: MixtureConfig, sources: Sequence[OpenSource]) -> Layout:
    sample = config.sample
    robots = sorted({source.embodiment for source in sources})
    if len(robots) > 1 and not config.embodiments:
        raise ConfigError(
            "the sources hold more than one embodiment, and their ids are never inferred",
            where="embodiments",
            expected="a mapping of names to ids",
            found=", ".join(robots),
        )
    known = sorted({name for source in sources for name in source.widths})
    for name in (*sample.further, *(flag for flag in ("reward", "done") if getattr(sample, flag))):
        if name not in known:
            raise ConfigError(
                f"no source has a vector {name!r}",
                where="sample",
                hint=did_you_mean(name, [other for other in known if other not in CORE_VECTORS or other == name]),
            )
    dims = {
        name: padded_width(
            name, {source.name: source.widths[name] for source in sources if name in source.widths}, sample.pad_to
        )
        for name in ("state", "action", *sample.further)
    }
    cameras = _cameras(config, sources)
    height, width, resizes = _picture_size(sample.image_size, cameras, sources)
    return Layout(
        cameras=cameras,
        height=height,
        width=width,
        resizes=resizes,
        offsets=sample.offsets,
        chunk=sample.action_chunk,
        dims=dims,
        scalars=tuple(flag for flag in ("reward", "done") if getattr(sample, flag)),
        extras=tuple(sample.extras),
        goal=sample.goal,
        marks=("replaced",) if config.on_error == "skip" else (),
    )


def _cameras(config: MixtureConfig, sources: Sequence[OpenSource]) -> tuple[str, ...]:
    known = sorted({slot for source in sources for slot in source.members}, key=lambda slot: (len(slot), slot))
    if config.sample.cameras is None:
        return tuple(known)
    for slot in config.sample.cameras:
        if slot not in known:
            raise ConfigError(
                f"no source has a colour camera {slot!r}", where="sample.cameras", hint=did_you_mean(slot, known)
            )
    return tuple(config.sample.cameras)


def _picture_size(wanted: int, cameras: Sequence[str], sources: Sequence[OpenSource]) -> tuple[int, int, bool]:
    """Height and width of the pictures in a batch, and whether others are resized."""
    sizes: dict[tuple[int, int], str] = {}
    for source in sources:
        for slot in cameras:
            for size in source.sizes.get(slot, ()):
                sizes.setdefault(size, f"{source.name}/{slot}")
    if wanted:
        return wanted, wanted, True
    if len(sizes) > 1:
        found = ", ".join(f"{w}x{h} in {place}" for (w, h), place in sorted(sizes.items()))
        raise ConfigError(
            "pictures differ in size",
            where="sample.image_size",
            expected="the side that all pictures are to be brought to",
            found=found,
        )
    width, height = next(iter(sizes), (0, 0))
    return height, width, False


def _scales(config: MixtureConfig, sources: Sequence[OpenSource]) -> dict[str, list[Scale | None]]:
    return {
        name: [None if name not in source.widths else _scale(name, source, sources, config) for source in sources]
        for name in ("state", "action", *config.sample.further)
    }


def _scale(name: str, source: OpenSource, sources: Sequence[OpenSource], config: MixtureConfig) -> Scale:
    how = source.config.normalize.get(name, config.sample.normalize.get(name))
    if name == "action":
        how = action_mode(source.config, config.sample)
    if how is None or how.mode in ("none", "spacing"):  # waypoints are divided where they are made
        scale = Scale.identity(source.widths[name])
        return scale if how is None else replace(scale, bound=how.bound)
    group = source.config.norm_group
    peers = [other for other in sources if other is source or (group is not None and other.config.norm_group == group)]
    peers = [other for other in peers if name in other.widths]
    widths = {other.name: other.widths[name] for other in peers}
    if len(set(widths.values())) > 1:
        raise ConfigError(
            f"{name} differs in width within norm_group {group!r}",
            where=f"source {source.name!r}: norm_group",
            expected="one width",
            found=", ".join(f"{width} in {other}" for other, width in widths.items()),
        )
    check_peers(name, source, peers)
    fields = [stats_of(name, other) for other in peers]
    known = [field for field in fields if field is not None and field.count > 0]
    if not known:
        raise ConfigError(
            f"no statistics of {name!r} to normalise by",
            where=f"source {source.name!r}",
            hint=f"set normalize: {{{name}: none}} for it, or put it into a norm_group with a set that has them",
        )
    if any(len(field.mean) != source.widths[name] for field in known):
        raise DataError(
            f"statistics and vectors differ in the width of {name!r}",
            path=source.set.path / "stats.json",
            expected=source.widths[name],
            found=", ".join(str(len(field.mean)) for field in known),
        )
    return scale_of(known[0] if len(known) == 1 else merge_stats(known), how)
