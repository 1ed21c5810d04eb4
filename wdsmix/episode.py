"""Episode: what a converter yields and a shard holds.

An *episode* is one recording of one attempt; a *frame* is one time step of it: at most one picture per camera
and one row of each vector. A *slot* (``cam0`` primary, ``cam1`` wrist, ``cam2`` ...) is the name a camera has in
every shard set, whatever its source calls it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = [
    "Camera",
    "Episode",
    "EpisodeRef",
    "Float32Array",
    "Image",
    "ImageStream",
    "SizedStream",
    "SourceInfo",
    "VectorSpec",
]

Float32Array: TypeAlias = npt.NDArray[np.float32]
Image: TypeAlias = "bytes | npt.NDArray[np.uint8]"
"""One picture: encoded bytes (JPEG, PNG, WebP), or uint8 [H, W, 3] pixels, channels in the camera's ``order``."""

DimensionKind: TypeAlias = Literal["absolute", "delta", "delta_rotation", "unknown"]
"""How a dimension behaves when frames are skipped: absolute values are sampled, deltas are summed, and rotation
deltas (axis-angle, Euler) can be neither, so that a stride over them is refused."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRef:
    """One episode before it is read: what the plan needs, from metadata alone."""

    id: str
    """The source's own name of it; unique within the source."""
    file: str
    """Its file or folder, relative to the source, ``/`` between parts; the unit of ``--split-by file``."""
    frames: int
    """Frames at the source's native rate, as the metadata say; decides the shard, never trusted beyond that."""
    vectors: Mapping[str, int] = field(default_factory=dict)
    """Vector name -> width, as far as the metadata tell (``state``, ``action``, ``reward``, ``done``, further)."""
    cameras: Sequence[str] = ()
    """Slots it has pictures for."""
    split: str | None = None
    """The split the source publishes for it (``--split-by source``)."""
    fault: str | None = None
    """Why it can't be converted, in words a user can act on; None for a good one."""
    fault_kind: Literal["file", "episode", "filter"] = "episode"
    """What the fault concerns: a whole unreadable file, this episode, or a filter that the user asked for."""
    locator: Mapping[str, str | int] = field(default_factory=dict)
    """What ``read`` needs to find it again (JSON types only)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Camera:
    """How to look at what an `ImageStream` yields."""

    key: str
    """The source's name of the camera."""
    order: Literal["rgb", "bgr"] = "rgb"
    """Channel order of the pixels, or of what a plain decode of the encoded bytes gives."""
    flip: Literal["none", "vertical", "rot180"] = "none"
    """What undoes the source's orientation."""
    kind: Literal["rgb", "depth"] = "rgb"
    """``depth`` streams yield uint16 [H, W] millimetres or 16-bit PNG bytes."""


class ImageStream(Protocol):
    """The pictures of one camera of one episode, read lazily and in order."""

    def read(self, rows: npt.NDArray[np.int64]) -> Iterator[Image]:
        """Yields one picture for each of ``rows`` (strictly increasing native frame numbers).

        Raises:
            DataError: a picture is missing or can't be read; the episode is then dropped by policy.
        """
        ...


@runtime_checkable
class SizedStream(ImageStream, Protocol):
    """A stream that can scale its pictures while it decodes them, which is cheaper than afterwards."""

    def at_size(self, size: int) -> ImageStream:
        """The same pictures, as pixels stretched to a square of side ``size``."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorSpec:
    """What the dimensions of a vector mean."""

    names: tuple[str, ...] = ()
    """One name a dimension, or empty where the source tells none."""
    units: tuple[str, ...] = ()
    """One unit a dimension, or empty."""
    kinds: tuple[DimensionKind, ...] = ()
    """One kind a dimension, or empty for unknown (sampled like absolute ones)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SourceInfo:
    """What holds for a whole source; goes into the manifest."""

    name: str
    """Short name, such as the folder's."""
    kind: str
    """Family and dialect, such as ``hdf5/robomimic``."""
    fps: float
    """Native frames per second."""
    embodiment: str = ""
    """Robot name; empty where the source tells none (the runner then takes ``--embodiment`` or the name)."""
    licence: str = ""
    vectors: Mapping[str, VectorSpec] = field(default_factory=dict)
    cameras: Mapping[str, Camera] = field(default_factory=dict)
    """Slot -> camera."""
    details: Mapping[str, object] = field(default_factory=dict)
    """Further facts for the manifest (JSON types): colour order, flip, pairing, where the rate came from."""
    warnings: Sequence[str] = ()
    """What the user should know; shown once and kept in the manifest."""


@dataclass(kw_only=True, slots=True)
class Episode:
    """One episode, opened: vectors in memory, pictures lazy. A context manager: leaving it closes its files."""

    fps: float
    vectors: Mapping[str, Float32Array]
    """Name -> float32 [T, D], C-contiguous; all with the same T. ``reward`` and ``done`` have D = 1."""
    images: Mapping[str, ImageStream]
    """Slot -> pictures; a camera that this episode lacks has no entry."""
    cameras: Mapping[str, Camera]
    tasks: Sequence[str] = ("",)
    task_index: npt.NDArray[np.int32] | None = None
    """int32 [T] into ``tasks``; None: all frames have the first."""
    timestamps: npt.NDArray[np.float64] | None = None
    """float64 [T] seconds; None: frame / fps."""
    extras: Mapping[str, object] = field(default_factory=dict)
    """Facts of the whole episode (JSON types), such as ``task_zh`` and ``score``."""
    frame_extras: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """Facts of each frame: name -> T values (JSON types)."""
    rows: npt.NDArray[np.int64] | None = None
    """int64 [T] native frame numbers to ask the image streams for, where frames were left out; None: 0..T-1."""
    close: Callable[[], None] | None = None

    def __enter__(self) -> Episode:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.close is not None:
            self.close()

    def __len__(self) -> int:
        lengths = {name: len(array) for name, array in self.vectors.items()}
        if not lengths:
            raise ValueError("an episode needs at least one vector to know its length")
        if len(set(lengths.values())) != 1:
            raise ValueError(f"vectors of one episode differ in length: {lengths}")
        return next(iter(lengths.values()))
