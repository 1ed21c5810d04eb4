"""Frames of a video by their number: streamed, positional, decoded once.

The *number* of a frame is its place in presentation order, counted from 0. It comes from the packets' time stamps, all
of which are read (not decoded) when a file is opened; so it does not depend on the frame rate, on rounding, or on where
decoding started. A reader keeps its decoder open between calls: the next frames of the same file cost neither a seek
nor a frame decoded twice. It seeks only when the wanted frame lies behind, or beyond a key frame some way ahead, and
then to the last key frame before the wanted one.

Needs PyAV (extra ``lerobot``). One thread a decoder: conversions run in one process a core.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from wdsmix.errors import ConfigError, DataError
from wdsmix.imaging import MAX_PIXELS

if TYPE_CHECKING:
    import av

__all__ = ["VideoFacts", "VideoPool", "VideoReader", "lfs_pointer", "load_av", "probe"]

_SKIP_AHEAD = 24
"""Frames; a seek to a key frame nearer than this costs more than decoding up to it."""

_SCALING = 0x2 | 0x2000 | 0x40000 | 0x80000
"""Of libswscale: bilinear, chroma at full resolution, exact rounding, the same bits on every processor. As a number, as
PyAV before 18 does not name them all."""

Form = Literal["rgb", "grey16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFacts:
    """What the header of a video says, and what its pixel format implies."""

    codec: str
    """Of the stream, such as ``av1`` or ``h264``; never the decoder's name."""
    pixel_format: str
    width: int
    height: int
    rate: Fraction | None
    """Mean frames per second; None where the header tells none."""
    frames: int
    """Frames by the header; 0 where it tells none."""
    duration: float
    """Seconds by the header; 0 where it tells none."""

    @property
    def grey16(self) -> bool:
        """Whether it has one channel of more than 8 bits: the way metric depth is stored."""
        return self.pixel_format.startswith("gray") and self.pixel_format not in ("gray", "gray8")


def load_av() -> Any:
    """PyAV.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import av
    except ImportError as error:
        raise ConfigError("videos need PyAV", hint="pip install 'wdsmix[lerobot]'") from error
    av.logging.set_level(av.logging.PANIC)  # faults come as exceptions and flags; FFmpeg's own lines name no file
    return av


def lfs_pointer(path: Path) -> bool:
    """Whether a file is the placeholder that Git LFS leaves for one that was not fetched."""
    with path.open("rb") as file:
        return file.read(40).startswith(b"version https://git-lfs")


def probe(path: Path) -> VideoFacts:
    """Reads a video's header.

    Raises:
        DataError: it can't be opened or holds no video.
    """
    with _opened(path) as container:
        return _facts(container.streams.video[0])


def _opened(path: Path) -> Any:
    av = load_av()
    if not path.is_file():
        raise DataError("no such video", path=path)
    try:
        container = av.open(str(path))
    except (av.error.FFmpegError, ValueError) as error:
        if lfs_pointer(path):
            raise DataError(
                "is a Git LFS pointer, not a video", path=path, hint="fetch it with `git lfs pull`"
            ) from error
        raise DataError(
            f"video does not open: {_text(error)}", path=path, found=f"{path.stat().st_size} bytes"
        ) from error
    if not container.streams.video:
        container.close()
        raise DataError("holds no video stream", path=path)
    stream = container.streams.video[0]
    if stream.width * stream.height > MAX_PIXELS:
        container.close()
        raise DataError("video too large", path=path, expected=f"at most {MAX_PIXELS} pixels")
    stream.codec_context.thread_count = 1
    return container


def _facts(stream: Any) -> VideoFacts:
    # read while the container is open: afterwards these attributes are garbage
    names = {"libdav1d": "av1", "libaom-av1": "av1", "libvpx-vp9": "vp9", "libvpx": "vp8"}
    duration = 0.0 if stream.duration is None else float(stream.duration * stream.time_base)
    return VideoFacts(
        codec=names.get(stream.codec_context.name, stream.codec_context.name),
        pixel_format=stream.pix_fmt or "",
        width=int(stream.width),
        height=int(stream.height),
        rate=Fraction(stream.average_rate) if stream.average_rate else None,
        frames=int(stream.frames or 0),
        duration=duration,
    )


def _text(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)


class VideoReader:
    """One video, open. A context manager; one stream of `read` at a time.

    Args:
        path: The file.

    Raises:
        DataError: it can't be opened, or its packets can't be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._av = load_av()
        self._container = _opened(path)
        self._stream = self._container.streams.video[0]
        self.facts = _facts(self._stream)
        self._number: dict[int, int] = {}
        self._keys = np.empty(0, np.int64)
        self._key_stamps: list[int] = []
        self.seeks = 0
        """How often it had to seek."""
        self.decoded = 0
        """Frames decoded, wanted or not."""
        self._decoder: Iterator[Any] | None = None
        self._next = 0
        self._last: tuple[int, Any] | None = None
        self._damaged: int | None = None
        """A frame that was concealed, as long as those decoded are predicted from it."""
        try:
            self._index()
        except BaseException:
            self._container.close()
            raise
        self._reformatter = self._av.video.reformatter.VideoReformatter()
        self._busy = False

    @property
    def frames(self) -> int:
        """Frames it holds, counted."""
        return len(self._number)

    @property
    def busy(self) -> bool:
        """Whether a `read` is under way."""
        return self._busy

    def _index(self) -> None:
        stamps: list[int] = []
        keys: list[int] = []
        bare = hidden = 0
        try:
            for packet in self._container.demux(self._stream):
                if not packet.size:
                    continue
                if getattr(packet, "is_discard", False):  # cut away by the file's own edit list
                    hidden += 1
                    continue
                stamp = packet.pts
                if stamp is None:
                    bare += 1
                    continue
                stamps.append(stamp)
                if packet.is_keyframe:
                    keys.append(stamp)
        except self._av.error.FFmpegError as error:
            raise self._bad(f"video is damaged: {_text(error)}", where=f"packet {len(stamps)}") from error
        if len(stamps) + bare + hidden < self.facts.frames:
            raise self._bad(
                "video is cut off",
                expected=f"{self.facts.frames} frames by its header",
                found=f"{len(stamps) + bare + hidden} in {self.path.stat().st_size} bytes",
            )
        self._number = {stamp: number for number, stamp in enumerate(sorted(stamps))}
        if len(self._number) != len(stamps) or (bare and not stamps):
            raise self._bad(
                "frames have no time stamps of their own",
                found=f"{bare} without, {len(stamps) - len(self._number)} twice, of {bare + len(stamps)}",
            )
        self._key_stamps = sorted(keys)
        self._keys = np.array([self._number[stamp] for stamp in self._key_stamps], np.int64)
        self._decoder = None
        self._next, self._last = 0, None
        if stamps and not self._start():
            self._rewind()

    def _start(self) -> bool:
        """Brings the open file back to its first frame; False where that does not work."""
        try:
            self._container.seek(min(self._number), stream=self._stream, backward=True)
            self._decoder = self._container.decode(self._stream)
            self._next = -1
            position, frame = self._decode(0)
        except (DataError, self._av.error.FFmpegError):
            return False
        if position:
            return False
        self._give_back(position, frame)
        return True

    def _give_back(self, position: int, frame: Any) -> None:
        """The next frame to be decoded is this one, decoded already."""
        self._decoder, self._next = _again(frame, self._decoder), position
        self.decoded -= 1

    def _bad(self, message: str, **facts: Any) -> DataError:
        return DataError(message, path=self.path, **facts)

    def _rewind(self) -> None:
        self._container.close()
        self._container = _opened(self.path)
        self._stream = self._container.streams.video[0]
        self._decoder, self._last, self._damaged = None, None, None
        self._next = 0

    def read(
        self, numbers: Sequence[int] | npt.NDArray[np.int64], *, size: int = 0, form: Form = "rgb"
    ) -> Iterator[Any]:
        """Yields frames.

        Args:
            numbers: Which, in ascending order; one that comes twice is decoded once.
            size: Side of the square that colour frames are scaled to (swscale's antialiased bilinear, chroma at full
                resolution); 0 keeps their size.
            form: ``rgb`` or ``grey16``.

        Yields:
            uint8 [H, W, 3], or uint16 [H, W]: the codes of a grey video of more than 8 bits.

        Raises:
            DataError: a frame is not there or can't be decoded.
        """
        wanted = np.asarray(numbers, dtype=np.int64)
        if len(wanted) and not 0 <= wanted.min() <= wanted.max() < self.frames:
            raise self._bad(
                "the video has no such frame",
                expected=f"0 to {self.frames - 1}",
                found=f"{wanted.min()} to {wanted.max()}",
            )
        if self._busy:
            raise RuntimeError("this reader is in use")
        self._busy = True
        try:
            pixels: Any = None
            before = -1
            for number in wanted.tolist():
                if number != before:
                    pixels = self._pixels(self._frame(number), size, form)
                    before = number
                yield pixels
        finally:
            self._busy = False

    def _frame(self, number: int) -> Any:
        if self._last is not None and self._last[0] == number:
            return self._last[1]
        if number != self._next:
            place = int(np.searchsorted(self._keys, number, side="right")) - 1
            key = int(self._keys[place]) if place >= 0 else 0
            if number < self._next or key >= self._next + _SKIP_AHEAD:
                self._seek(number, place)
        while True:
            position, frame = self._decode(number)
            if position > number:
                raise self._bad("a frame does not decode", where=f"frame {number}")
            if position == number:
                self._last = (number, frame)
                return frame

    def _seek(self, number: int, place: int) -> None:
        """Brings the decoder before a frame: by the nearest key frame, else an earlier one, else the start."""
        self.seeks += 1
        for back in range(place, max(-1, place - 4), -1):
            if self._keys[back] == 0:
                break
            try:
                self._container.seek(self._key_stamps[back], stream=self._stream, backward=True)
                self._decoder = self._container.decode(self._stream)
                self._next, self._last, self._damaged = -1, None, None
                position, frame = self._decode(number)
            except (DataError, self._av.error.FFmpegError):
                continue
            if position <= number:
                self._give_back(position, frame)
                return
        self._rewind()

    def _decode(self, number: int) -> tuple[int, Any]:
        if self._decoder is None:
            self._decoder = self._container.decode(self._stream)
        try:
            for frame in self._decoder:
                self.decoded += 1
                position = self._number.get(frame.pts) if frame.pts is not None else None
                if position is None or position < self._next:
                    continue
                if getattr(frame, "is_corrupt", False):
                    self._damaged = position
                elif self._damaged is not None and frame.key_frame:
                    self._damaged = None
                if position == number and self._damaged is not None:
                    damage = "" if position == self._damaged else f", which is made from frame {self._damaged}"
                    raise self._bad("a frame is damaged", where=f"frame {number}{damage}")
                self._next = position + 1
                return position, frame
        except self._av.error.FFmpegError as error:
            self._decoder, self._next = None, self.frames + _SKIP_AHEAD
            raise self._bad(f"a frame does not decode: {_text(error)}", where=f"frame {number}") from error
        self._decoder, self._next = None, self.frames + _SKIP_AHEAD  # only a seek brings it back to life
        raise self._bad("the video ends early", where=f"frame {number}", expected=f"{self.frames} frames")

    def _pixels(self, frame: Any, size: int, form: Form) -> npt.NDArray[Any]:
        if form == "grey16":
            if not frame.format.name.startswith("gray1"):
                raise self._bad("no depth codes", expected="gray10le to gray16le", found=frame.format.name)
            return _plane(frame, np.dtype("<u2"), 1)[:, :, 0]
        if size and (frame.width, frame.height) != (size, size):
            scaled = self._reformat(frame, width=size, height=size, interpolation=_SCALING)
        else:
            scaled = self._reformat(frame)
        return _plane(scaled, np.dtype(np.uint8), 3)

    def _reformat(self, frame: Any, **how: Any) -> Any:
        try:
            return self._reformatter.reformat(frame, format="rgb24", threads=1, **how)
        except TypeError:  # PyAV before 17 has one thread only
            pass
        try:
            return self._reformatter.reformat(frame, format="rgb24", **how)
        except KeyError:  # PyAV before 15 knows no flags
            return self._reformatter.reformat(frame, format="rgb24", **{**how, "interpolation": "BILINEAR"})

    def close(self) -> None:
        """Closes the file."""
        self._decoder = self._last = None
        self._container.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _again(frame: av.VideoFrame, rest: Iterator[Any] | None) -> Iterator[Any]:
    yield frame
    yield from rest or ()


def _plane(frame: Any, dtype: np.dtype[Any], channels: int) -> npt.NDArray[Any]:
    """The first plane as [H, W, C], without a copy where its rows are not padded."""
    plane = frame.planes[0]
    if plane.line_size == frame.width * channels * dtype.itemsize:
        return np.frombuffer(plane, dtype, frame.height * frame.width * channels).reshape(
            frame.height, frame.width, channels
        )
    rows = np.frombuffer(plane, dtype).reshape(-1, plane.line_size // dtype.itemsize)[: frame.height]
    tight = np.ascontiguousarray(rows[:, : frame.width * channels])
    return tight.reshape(frame.height, frame.width, channels)


class VideoPool:
    """The open videos of a process: one a camera, so that consecutive episodes of a file share its decoder."""

    def __init__(self) -> None:
        self._open: dict[str, VideoReader] = {}

    def reader(self, camera: str, path: Path) -> tuple[VideoReader, bool]:
        """The reader of a camera's file; the one it had before is closed when the file is another.

        Returns:
            The reader, and whether the caller must close it (the shared one is in use).
        """
        there = self._open.get(camera)
        if there is not None and there.busy:
            return VideoReader(path), True
        if there is not None and there.path != path:
            self._open.pop(camera).close()
            there = None
        if there is None:
            there = self._open[camera] = VideoReader(path)
        return there, False

    def drop(self, camera: str) -> None:
        """Closes a camera's file, after an error."""
        if camera in self._open:
            self._open.pop(camera).close()

    def close(self) -> None:
        """Closes all."""
        for camera in list(self._open):
            self.drop(camera)
