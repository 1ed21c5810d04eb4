"""Receipt: what is known of a shard once it is written; all that finishing a set needs, without reading a tar."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

from wdsmix.manifest import Dropped, FileEntry

__all__ = ["CameraCount", "EpisodeRow", "ShardReceipt"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class EpisodeRow(_Model):
    """One row of index.parquet."""

    episode: int
    shard: str
    first_row: int
    frames: int
    offset: int
    length: int
    split: str
    tasks: list[str]
    source_file: str
    source_episode: str
    duration: float
    extras: str


class CameraCount(_Model):
    """What a shard holds of one camera slot."""

    frames: int = 0
    sizes: list[tuple[int, int]] = []
    """Distinct (width, height), ascending."""
    passthrough: int = 0


class ShardReceipt(_Model):
    """One finished shard. Its JSON (``model_dump_json``, ``model_validate_json``) gives it back exactly."""

    shard: str
    split: str
    files: list[FileEntry]
    """The tar and the frame table."""
    episodes: list[EpisodeRow]
    cameras: dict[str, CameraCount]
    """Every slot of the set."""
    vectors: dict[str, int]
    """Every vector of the set: frames that have it."""
    stats: dict[str, Any]
    """Vector -> `wdsmix.stats.FieldAccumulator.to_json`; of train shards only, and of vectors with frames only."""
    dropped: list[Dropped] = []
