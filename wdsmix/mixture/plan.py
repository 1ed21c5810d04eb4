"""Plan: what a mixture will do, told from its sets' manifests, statistics and indexes alone."""

from __future__ import annotations

from dataclasses import dataclass

from wdsmix.mixture.catalog import Catalog, OpenSource
from wdsmix.mixture.decode import RESIZE_FILTER
from wdsmix.mixture.waypoints import action_mode
from wdsmix.store.cache import open_cache, usable

__all__ = ["SourcePlan", "plan_sources", "plan_summary"]


@dataclass(frozen=True, kw_only=True, slots=True)
class SourcePlan:
    """One source of a mixture."""

    name: str
    set: str
    """Name of the set and the first 12 digits of its version."""
    split: str
    embodiment: str
    embodiment_id: int
    weight: float
    share: float
    """Of the samples, 0 to 1."""
    episodes: int
    frames: int
    epochs: float
    """Passes over its frames in the asked number of samples."""
    dims: dict[str, int]
    """Vector -> own width."""
    pictures: dict[str, list[str]]
    """Camera of the batch -> sizes as stored; empty where the source lacks it."""
    normalize: dict[str, str]
    """Vector -> mode, with the norm group where there is one."""
    masked: dict[str, list[int]]
    """Vector -> dimensions without spread: always 0, mask False."""
    ranged: dict[str, list[int]]
    """Vector -> dimensions where q01_q99 takes minimum and maximum instead."""
    frame_bytes: float
    """Mean bytes of a frame in the tar."""
    hz: float
    """Frames per second."""
    live_bytes: int
    """About what the order keeps in play: two windows of frames, at most the whole source."""
    remote: bool
    """Whether the set lies in a store, so that what is in play should fit into the cache."""


def plan_sources(catalog: Catalog, samples: int) -> list[SourcePlan]:
    """Plans ``samples`` samples, source by source."""
    total = sum(source.config.weight for source in catalog.sources)
    return [_plan(catalog, source, samples, source.config.weight / total) for source in catalog.sources]


def _plan(catalog: Catalog, source: OpenSource, samples: int, share: float) -> SourcePlan:
    frames = int(source.frames.sum())
    size = int(source.order.lengths.sum())
    scales = {name: scales[source.id] for name, scales in catalog.scales.items()}
    modes = {}
    for name, scale in scales.items():
        how = source.config.normalize.get(name, catalog.config.sample.normalize.get(name))
        if name == "action":
            how = action_mode(source.config, catalog.config.sample)
        if scale is not None:
            mode = "none" if how is None else how.mode
            grouped = mode != "none" and source.config.norm_group
            modes[name] = f"{mode} ({source.config.norm_group})" if grouped else mode
    return SourcePlan(
        name=source.name,
        set=f"{source.set.manifest.name} {source.set.digest[:12]}",
        split=source.config.split,
        embodiment=source.embodiment,
        embodiment_id=source.embodiment_id,
        weight=source.config.weight,
        share=share,
        episodes=len(source.frames),
        frames=frames,
        epochs=samples * share / frames,
        dims={name: source.widths[name] for name in catalog.layout.dims if name in source.widths},
        pictures={
            slot: [f"{width}x{height}" for width, height in source.sizes.get(slot, ())]
            for slot in catalog.layout.cameras
        },
        normalize=modes,
        masked={
            name: (~s.live).nonzero()[0].tolist() for name, s in scales.items() if s is not None and not s.live.all()
        },
        ranged={name: s.ranged.nonzero()[0].tolist() for name, s in scales.items() if s is not None and s.ranged.any()},
        hz=source.set.manifest.hz,
        frame_bytes=size / frames,
        live_bytes=source.live_bytes(catalog.config.window),
        remote=source.set.counts is not None,
    )


def plan_summary(catalog: Catalog, samples: int) -> dict[str, object]:
    """What holds for all sources: the sample's layout and the order's options (JSON types)."""
    layout, config = catalog.layout, catalog.config
    wanted = (layout.width, layout.height)
    remote = any(source.set.counts is not None for source in catalog.sources)
    stored = {size for source in catalog.sources for slot in layout.cameras for size in source.sizes.get(slot, ())}
    return {
        "seed": config.seed,
        "streams": config.streams,
        "window": config.window,
        "block_bytes": config.block_bytes,
        "cache_room": usable(open_cache(config.cache_folder, config.cache_limit).room()) if remote else None,
        "samples": samples,
        "cameras": list(layout.cameras),
        "picture": [layout.height, layout.width],
        "resize": RESIZE_FILTER if stored - {wanted} else "none needed",
        "observation_offsets": list(layout.offsets),
        "action_chunk": layout.chunk,
        "dims": dict(layout.dims),
        "reward_done": list(layout.scalars),
        "extras": list(layout.extras),
    }
