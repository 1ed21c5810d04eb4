"""Writes one episode of a source into a shard: rows thinned, pictures prepared, one frame of each camera at a time."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from wdsmix.converters.base import ConvertOptions, Source
from wdsmix.converters.plan import Plan
from wdsmix.converters.rate import kept_rows, thin_vector

from wdsmix.episode import Camera, Episode, EpisodeRef, Image, ImageStream, SizedStream
from wdsmix.errors import DataError, WdsmixError
from wdsmix.imaging import prepare
from wdsmix.shards.writer import Picture, ShardWriter

__all__ = ["Layout", "SourceTroubleError", "store_episode"]

_TROUBLE = frozenset({errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EDQUOT, errno.ESTALE})


class SourceTroubleError(WdsmixError):
    """The machine, not the data, kept an episode from being read; dropping it would make the set a matter of luck."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """What all episodes of a set share; a small extract of the plan, sent to every worker."""

    source_fps: float
    hz: float
    widths: Mapping[str, int]
    members: Mapping[str, str]
    """Slot -> suffix of its members."""
    depth: frozenset[str]
    """Slots that hold depth."""
    kinds: Mapping[str, tuple[str, ...]]

    @classmethod
    def of(cls, plan: Plan) -> Layout:
        """The layout of a plan."""
        return cls(
            source_fps=plan.source_fps,
            hz=plan.hz,
            widths={name: vector.width for name, vector in plan.vectors.items()},
            members={slot: f"{slot}.{camera.suffix}" for slot, camera in plan.cameras.items()},
            depth=frozenset(slot for slot, camera in plan.cameras.items() if camera.kind == "depth"),
            kinds={name: tuple(vector.kinds) for name, vector in plan.vectors.items()},
        )


def store_episode(
    source: Source,
    ref: EpisodeRef,
    number: int,
    writer: ShardWriter,
    layout: Layout,
    options: ConvertOptions,
    at_frame: Callable[[int], None],
) -> None:
    """Reads one episode and adds it to the shard, whole or not at all.

    Args:
        source: Where it is.
        ref: Which it is.
        number: Its number in the plan.
        writer: The shard.
        layout: What the set's episodes share.
        options: The conversion.
        at_frame: Called with the number of each frame before it is prepared.

    Raises:
        DataError: the episode is bad, whatever way the source found to say so.
        SourceTroubleError: the machine ran out of something while it was read.
        OSError: the shard can't be written.
    """
    with _as_data_error(ref):
        episode = source.read(ref)
    try:
        with _as_data_error(ref):
            frames = len(episode)
            _check(episode, ref, layout)
        rows = kept_rows(frames, episode.fps, options.hz, options.hz_mode)
        with _as_data_error(ref):
            vectors = {
                name: thin_vector(name, values, layout.kinds.get(name, ()), rows)
                for name, values in episode.vectors.items()
            }
            stamps = np.arange(frames) / episode.fps if episode.timestamps is None else episode.timestamps
            stamps = np.asarray(stamps, dtype=np.float64)[rows]
            task_index = None if episode.task_index is None else episode.task_index[rows]
            extras = {name: [values[row] for row in rows.tolist()] for name, values in episode.frame_extras.items()}
            native = rows if episode.rows is None else episode.rows[rows]
        writer.write_episode(
            episode=number,
            frames=_frames(episode, ref, native, options, at_frame),
            vectors=vectors,
            timestamps=stamps,
            tasks=list(episode.tasks),
            task_index=task_index,
            extras=episode.extras,
            frame_extras=extras,
            source_file=ref.file,
            source_episode=ref.id,
            duration=float(stamps[-1] - stamps[0]) + 1 / layout.hz,
        )
    finally:
        with _as_data_error(ref):
            episode.__exit__(None, None, None)


def _check(episode: Episode, ref: EpisodeRef, layout: Layout) -> None:
    frames = len(episode)
    if not frames:
        raise DataError("it has no frames")
    if abs(episode.fps - layout.source_fps) > 1e-3 * layout.source_fps:
        raise DataError("it has another frame rate than the set", expected=layout.source_fps, found=episode.fps)
    for what, promised, there, known in (
        ("vector", set(ref.vectors), set(episode.vectors), set(layout.widths)),
        ("camera", set(ref.cameras), set(episode.images), set(layout.members)),
    ):
        if missing := promised - there:
            raise DataError(f"a {what} that its metadata promise is missing", where=", ".join(sorted(missing)))
        if extra := there - known:
            raise DataError(f"a {what} that no metadata promised", where=", ".join(sorted(extra)))
    for slot in episode.images:
        if (episode.cameras[slot].kind == "depth") != (slot in layout.depth):
            raise DataError("camera is of another kind than in the set", where=slot, found=episode.cameras[slot].kind)
    per_frame = {name: len(values) for name, values in episode.frame_extras.items()}
    for name, values in (
        ("timestamps", episode.timestamps),
        ("task_index", episode.task_index),
        ("rows", episode.rows),
    ):
        if values is not None:
            per_frame[name] = len(values)
    for name, length in per_frame.items():
        if length != frames:
            raise DataError("not one value a frame", where=name, expected=frames, found=length)


def _frames(
    episode: Episode,
    ref: EpisodeRef,
    rows: npt.NDArray[np.int64],
    options: ConvertOptions,
    at_frame: Callable[[int], None],
) -> Iterator[Mapping[str, Picture]]:
    with _as_data_error(ref):
        streams = {
            slot: iter(_sized(stream, episode.cameras[slot], options).read(rows))
            for slot, stream in episode.images.items()
        }
    for frame in range(len(rows)):
        at_frame(frame)
        pictures = {}
        for slot, stream in streams.items():
            try:
                image: Image | None = next(stream, None)
                if image is None:
                    raise DataError("the pictures end early", expected=f"{len(rows)}", found=frame)
                data, _, size, kept = prepare(image, episode.cameras[slot], options)
            except Exception as error:
                _tell(error, ref, f"{slot}, frame {int(rows[frame])}")
            pictures[slot] = Picture(data, size, kept)
        yield pictures
    for slot, stream in streams.items():
        with _as_data_error(ref, slot):
            if next(stream, None) is not None:
                raise DataError("more pictures than were asked for", expected=len(rows))


def _sized(stream: ImageStream, camera: Camera, options: ConvertOptions) -> ImageStream:
    """Leaves the scaling to a stream that can do it while it decodes."""
    if options.image_size and options.resize == "squash" and camera.kind == "rgb" and isinstance(stream, SizedStream):
        return stream.at_size(options.image_size)
    return stream


@contextmanager
def _as_data_error(ref: EpisodeRef, where: str | None = None) -> Iterator[None]:
    """Whatever reading an episode raises is a fault of its data, unless the machine is to blame."""
    try:
        yield
    except Exception as error:
        _tell(error, ref, where)


def _tell(error: Exception, ref: EpisodeRef, where: str | None) -> NoReturn:
    """Raises an error of reading as what it is a fault of."""
    if (trouble := _trouble(error)) is not None:
        raise SourceTroubleError(
            f"reading episode {ref.id!r} failed: {trouble}",
            path=ref.file,
            where=where,
            hint="the cause is this machine, not the data: run the same command again to resume",
        ) from error
    if isinstance(error, WdsmixError):
        if isinstance(error, DataError) and error.where is None:
            error.where = where
        raise error
    raise DataError(f"{type(error).__name__}: {error}", where=where) from error


def _trouble(error: BaseException | None) -> BaseException | None:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in _TROUBLE):
            return error
        error = error.__cause__ or error.__context__
    return None
