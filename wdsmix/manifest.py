"""The on-disk contract of a shard set: pydantic models of manifest.json and stats.json, and the table schemas.

::

    <set>/
      manifest.json             written last; its sha256 is the set's version
      stats.json                per-source statistics over the train split
      index.parquet             one row per episode (INDEX_SCHEMA)
      train-00000.tar           frames, as consecutive members {episode:06d}_{frame:06d}.NAME
      train-00000.frames.arrow  one row per frame of that shard (frames_schema)

JSON files are canonical: sorted keys, one space of indentation (stats.json: none), no NaN, a newline at the end.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from wdsmix.errors import DataError

__all__ = [
    "FORMAT_VERSION",
    "FRAME_COLUMNS",
    "INDEX_SCHEMA",
    "CameraEntry",
    "Dropped",
    "FieldStats",
    "FileEntry",
    "Histogram",
    "Manifest",
    "Stats",
    "VectorEntry",
    "canonical_json",
    "check_seal",
    "digest_of",
    "frames_schema",
    "read_model",
    "sealed",
]

FORMAT_VERSION = 1

INDEX_SCHEMA = pa.schema(
    [
        pa.field("episode", pa.uint32(), nullable=False),  # its number in the plan
        pa.field("shard", pa.string(), nullable=False),  # "train-00000" (no suffix)
        pa.field("first_row", pa.uint32(), nullable=False),  # its first row in the shard's frames.arrow
        pa.field("frames", pa.uint32(), nullable=False),
        pa.field("offset", pa.uint64(), nullable=False),  # its bytes in the tar, first header included
        pa.field("length", pa.uint64(), nullable=False),
        pa.field("split", pa.string(), nullable=False),
        pa.field("tasks", pa.list_(pa.string()), nullable=False),
        pa.field("source_file", pa.string(), nullable=False),
        pa.field("source_episode", pa.string(), nullable=False),
        pa.field("duration", pa.float64(), nullable=False),  # s, last timestamp - first + one frame
        pa.field("extras", pa.string(), nullable=False),  # JSON object of facts of the whole episode
    ]
)
"""index.parquet: rows in order of shard (manifest.shards), within a shard in order of offset."""

FRAME_COLUMNS = [
    pa.field("offset", pa.uint64(), nullable=False),  # of the frame's first header in the tar
    pa.field("length", pa.uint32(), nullable=False),  # headers, payloads and padding
    pa.field("crc32c", pa.uint32(), nullable=False),  # over exactly those bytes
    pa.field("episode", pa.uint32(), nullable=False),
    pa.field("frame", pa.uint32(), nullable=False),
    pa.field("timestamp", pa.float64(), nullable=False),  # s
    pa.field("task", pa.uint32(), nullable=False),  # into the JSON list under schema metadata key b"tasks"
]


def frames_schema(vectors: dict[str, int], tasks: list[str]) -> pa.Schema:
    """Schema of a shard's frames.arrow (Arrow IPC file, one record batch, uncompressed, memory-mappable).

    Args:
        vectors: name -> width; each becomes a column ``vector:NAME``, fixed_size_list<float32>[width], null where
            the frame's episode lacks it (its values are then zeros).
        tasks: the shard's task table; the ``task`` column indexes it.
    """
    columns = [pa.field(f"vector:{name}", pa.list_(pa.float32(), width)) for name, width in vectors.items()]
    return pa.schema(
        FRAME_COLUMNS + columns,
        metadata={
            b"wdsmix": str(FORMAT_VERSION).encode(),
            b"tasks": json.dumps(tasks, ensure_ascii=False).encode(),
        },
    )


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_ModelT = TypeVar("_ModelT", bound=BaseModel)
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class FileEntry(_Model):
    """One file of the set."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    bytes: Annotated[int, Field(ge=0)]
    sha256: Sha256
    crc32c: Annotated[int, Field(ge=0, lt=2**32)]


class CameraEntry(_Model):
    """One camera slot."""

    key: str
    """The source's name of it."""
    member: str
    """Suffix of its members after the sample key's dot, such as ``cam0.jpg``."""
    kind: Literal["rgb", "depth"] = "rgb"
    encoding: str
    """``jpeg``, ``png``, ...; of every picture of this slot."""
    sizes: list[tuple[int, int]]
    """Distinct (width, height) pairs, in ascending order."""
    frames: int
    """How many frames have it."""
    passthrough: int = 0
    """How many pictures kept the source's own bytes."""


class VectorEntry(_Model):
    """One vector."""

    width: Annotated[int, Field(ge=1)]
    member: str
    """Suffix of its members, such as ``state.npy``."""
    frames: int
    """How many frames have it."""
    names: list[str] = []
    units: list[str] = []
    kinds: list[Literal["absolute", "delta", "delta_rotation", "unknown"]] = []


class Dropped(_Model):
    """One episode or file of the source that the set does not hold."""

    episode: int
    """Its number in the plan."""
    source_file: str
    source_episode: str
    kind: Literal["file", "episode", "filter"]
    reason: str


class Counts(_Model):
    """Totals of a set or of one split."""

    episodes: int
    frames: int
    shards: int


class Manifest(_Model):
    """manifest.json: what a set is. Never changes after conversion."""

    format: Literal["wdsmix"] = "wdsmix"
    format_version: int = FORMAT_VERSION
    name: str
    kind: str
    embodiment: str
    hz: float
    """Frames per second of the stored frames."""
    source_fps: float
    licence: str = ""
    cameras: dict[str, CameraEntry]
    vectors: dict[str, VectorEntry]
    counts: Counts
    splits: dict[str, Counts]
    shards: list[str]
    """Shard names without suffix, split by split, in order."""
    files: list[FileEntry]
    """Every file of the set but this one, sorted by name."""
    converter: str
    converter_version: str
    arguments: dict[str, object]
    """All that shaped the output; never paths of this machine, worker counts or parts."""
    libraries: dict[str, str]
    source_fingerprint: str
    plan_digest: str
    details: dict[str, object] = {}
    warnings: list[str] = []
    dropped: list[Dropped] = []
    checksum: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = ""
    """sha256 of this file as it would be with an empty checksum, so that damage to it shows (see `sealed`)."""


class Histogram(_Model):
    """Sparse log-linear histogram of one dimension (see wdsmix.stats): ascending bins and their counts."""

    bins: list[int]
    counts: list[int]


class FieldStats(_Model):
    """Statistics of one vector over the train split; one entry a dimension."""

    count: int
    mean: list[float]
    std: list[float]
    """Population standard deviation (ddof 0)."""
    min: list[float]
    max: list[float]
    q01: list[float]
    q99: list[float]
    histogram: list[Histogram]


class Stats(_Model):
    """stats.json."""

    format_version: int = FORMAT_VERSION
    split: str
    fields: dict[str, FieldStats]


def canonical_json(value: BaseModel | dict[str, Any]) -> bytes:
    """The one spelling of a JSON file of a set: sorted keys, one space of indentation (statistics: none), no NaN."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    layout: dict[str, Any] = {"separators": (",", ":")} if isinstance(value, Stats) else {"indent": 1}
    return (json.dumps(plain, sort_keys=True, ensure_ascii=False, allow_nan=False, **layout) + "\n").encode()


def sealed(manifest: Manifest) -> Manifest:
    """The manifest with the checksum of its other fields."""
    blank = manifest.model_copy(update={"checksum": ""})
    return manifest.model_copy(update={"checksum": hashlib.sha256(canonical_json(blank)).hexdigest()})


def check_seal(manifest: Manifest, path: str | PurePath) -> None:
    """Checks that a manifest says what it said when it was written.

    Raises:
        DataError: it does not.
    """
    try:
        expected = sealed(manifest).checksum
    except ValueError as error:  # NaN, half a surrogate pair
        raise DataError(f"can't be spelled canonically: {error}", path=path) from error
    if manifest.checksum != expected:
        raise DataError(
            "changed after it was written",
            path=path,
            where="checksum",
            expected=expected,
            found=manifest.checksum or "none",
        )


def digest_of(manifest_bytes: bytes) -> str:
    """sha256 of the manifest file's bytes: the version of the set."""
    return hashlib.sha256(manifest_bytes).hexdigest()


def read_model(kind: type[_ModelT], data: bytes, path: str | PurePath) -> _ModelT:
    """Parses a JSON file of a set.

    Raises:
        DataError: not JSON, or not what the contract says; names the key.
    """
    try:
        return kind.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise DataError(
            f"not a valid {kind.__name__.lower()}: {first['msg']}", path=path, where=where or None
        ) from error
