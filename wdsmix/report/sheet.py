"""Contact sheet: the first, middle and last frame of a few episodes, every camera, as one picture."""

from __future__ import annotations

import io
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from wdsmix.errors import ConfigError
from wdsmix.report.moments import moments
from wdsmix.shards.files import write_atomic
from wdsmix.shards.reader import Frame, ShardSet
from wdsmix.texts import counted

__all__ = [
    "PICTURE_KINDS",
    "SheetHead",
    "SheetRow",
    "camera_text",
    "contact_sheet",
    "draw_sheet",
    "frame_picture",
    "settings_text",
    "spread",
    "write_picture",
]

PICTURE_KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
"""Suffix of a file -> what Pillow calls it."""

_GAP, _CAPTION = 6, 22
_INK, _PAPER, _DIM, _ABSENT = (28, 30, 34), (250, 250, 248), (120, 122, 126), (226, 226, 222)
_MOMENTS = ("first", "middle", "last")
_FLIPS = {"none": "as it lies", "vertical": "turned over vertically", "rot180": "turned by 180°"}
_FONTS = ("NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "DejaVuSans.ttf")  # the first knows Chinese

Font = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class SheetRow:
    """One episode on a sheet."""

    caption: str
    """Its task."""
    origin: str
    """Which it is."""
    pictures: Mapping[str, Sequence[npt.NDArray[Any] | None]]
    """Slot -> pictures of its `moments`: uint8 [H, W, 3] or uint16 [H, W], None where there is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SheetHead:
    """What stands above the pictures."""

    title: str
    settings: str
    """How the source was read: rate, pairing of action and observation."""
    cameras: Mapping[str, tuple[str, str]]
    """Slot -> its key, and size, colour order and orientation."""
    sizes: Sequence[tuple[int, int]] = ()
    """(width, height) of the pictures, for the shape of the cells."""


def contact_sheet(opened: ShardSet, *, episodes: int = 6, cell: int = 160) -> Image.Image:
    """Draws the sheet of a set.

    Args:
        opened: The set.
        episodes: Rows, spread evenly over the set.
        cell: Width of a picture, in pixels.

    Raises:
        DataError: a frame is damaged.
    """
    manifest = opened.manifest
    head = SheetHead(
        title=f"{manifest.name}  {opened.digest[:12]}  {counted(manifest.counts.frames, 'frame')}, {manifest.hz:g} Hz",
        settings=settings_text(manifest.kind, manifest.source_fps, manifest.hz, manifest.details),
        cameras={
            slot: (camera.key, camera_text(slot, camera.sizes, manifest.details))
            for slot, camera in manifest.cameras.items()
        },
        sizes=[size for camera in manifest.cameras.values() for size in camera.sizes],
    )
    return draw_sheet(head, [_row(opened, e) for e in spread(len(opened.index), episodes)], cell=cell)


def spread(count: int, most: int) -> list[int]:
    """Up to ``most`` of ``count`` numbers, spread evenly."""
    return sorted(set(np.linspace(0, count - 1, min(most, count)).astype(int).tolist()))


def settings_text(kind: str, source_fps: float, hz: float, details: Mapping[str, object]) -> str:
    """How a source was read, on one line."""
    rate = f"{source_fps:g} frames/s" + (f", stored at {hz:g}" if hz != source_fps else "")
    told = [kind, rate]
    if isinstance(details.get("pairing"), str):
        told.append(f"action and observation: {details['pairing']}")
    return "  ·  ".join(told)


def camera_text(slot: str, sizes: Sequence[tuple[int, int]], details: Mapping[str, object]) -> str:
    """Size of a camera's pictures, and the colour order and orientation that were undone where any is told."""
    told = [", ".join(f"{width}x{height}" for width, height in sizes[:2]) + (" ..." if len(sizes) > 2 else "")]
    cameras = details.get("cameras")
    for name, known in cameras.items() if isinstance(cameras, dict) else ():
        ways = known.get("order_flip") if isinstance(known, dict) else None
        if str(name).rpartition(":")[2] == slot and isinstance(ways, list):
            told += [f"read as {order.upper()}, " + _FLIPS.get(flip, flip) for order, flip in ways]
    return "  ·  ".join(dict.fromkeys(text for text in told if text))


def draw_sheet(head: SheetHead, rows: Sequence[SheetRow], *, cell: int = 160) -> Image.Image:
    """Draws a sheet: one row an episode, three pictures a camera."""
    slots = list(head.cameras)
    height = min(max((round(cell * h / w) for w, h in head.sizes), default=cell), 2 * cell)
    columns = max(len(slots), 1) * len(_MOMENTS)
    group = _GAP
    width = _GAP + columns * (cell + _GAP) + (max(len(slots), 1) - 1) * group
    top = 5 * _CAPTION + _GAP
    row_height = 2 * _CAPTION + height + _GAP
    sheet = Image.new("RGB", (width, top + max(len(rows), 1) * row_height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    _text(draw, (_GAP, 4), head.title, _font(14), _INK, width - 2 * _GAP)
    _text(draw, (_GAP, _CAPTION + 4), head.settings, _font(12), _DIM, width - 2 * _GAP)
    for s, slot in enumerate(slots):
        key, how = head.cameras[slot]
        for m, moment in enumerate(_MOMENTS):
            x = _GAP + (s * len(_MOMENTS) + m) * (cell + _GAP) + s * group
            if m == 0:
                room = len(_MOMENTS) * (cell + _GAP) - _GAP
                _text(draw, (x, 2 * _CAPTION + 4), f"{slot}  {key}", _font(12), _INK, room)
                _text(draw, (x, 3 * _CAPTION + 4), how, _font(12), _DIM, room)
            _text(draw, (x, 4 * _CAPTION + 4), moment, _font(12), _DIM, cell)
    for r, row in enumerate(rows):
        y = top + r * row_height
        _text(draw, (_GAP, y + 3), row.caption, _font(13), _INK, width - 2 * _GAP)
        _text(draw, (_GAP, y + _CAPTION + 1), row.origin, _font(11), _DIM, width - 2 * _GAP)
        for s, slot in enumerate(slots):
            for m, pixels in enumerate(_columns(row.pictures.get(slot, ()))):
                x = _GAP + (s * len(_MOMENTS) + m) * (cell + _GAP) + s * group
                _paste(sheet, draw, pixels, (x, y + 2 * _CAPTION, cell, height))
    return sheet


def write_picture(picture: Image.Image, path: Path, option: str) -> None:
    """Writes a picture whole or not at all.

    Raises:
        ConfigError: no kind of picture by its name, or it can't be written; names the option.
    """
    kind = PICTURE_KINDS.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            "no kind of picture", path=path, where=option, expected=", ".join(PICTURE_KINDS), found=path.suffix
        )
    data = io.BytesIO()
    try:
        picture.save(data, kind)
        write_atomic(path, data.getvalue())
    except (OSError, ValueError) as error:
        raise ConfigError(f"can't write the picture: {error}", path=path, where=option) from error


def _row(opened: ShardSet, e: int) -> SheetRow:
    count = int(opened.index.frames[e])
    first = int(opened.index.ends[e]) - count
    frames = [opened.frame(first + t) for t in moments(count)]
    tasks, (file, episode) = opened.index.tasks(e), opened.index.source(e)
    more = f" (+{len(tasks) - 1} more)" if len(tasks) > 1 else ""
    origin = f"{file}/{episode}" if episode else file
    return SheetRow(
        caption=(frames[0].task or "no task") + more,
        origin=f"episode {frames[0].episode} · {frames[0].split} · {counted(count, 'frame')} · {origin}",
        pictures={slot: [frame.images.get(slot) for frame in frames] for slot in opened.manifest.cameras},
    )


def _columns(pictures: Sequence[npt.NDArray[Any] | None]) -> list[npt.NDArray[Any] | None]:
    """One a column: of an episode with fewer frames than columns, a frame stands in several."""
    last = len(_MOMENTS) - 1
    return [pictures[-(-m * (len(pictures) - 1) // last)] if pictures else None for m in range(last + 1)]


def frame_picture(frame: Frame) -> Image.Image:
    """All pictures of a frame side by side, at their own size.

    Raises:
        ValueError: it has none.
    """
    pictures = [Image.fromarray(_shown(pixels)) for pixels in frame.images.values()]
    if not pictures:
        raise ValueError("the frame has no picture")
    whole = Image.new("RGB", (sum(p.width for p in pictures), max(p.height for p in pictures)), _ABSENT)
    x = 0
    for picture in pictures:
        whole.paste(picture, (x, 0))
        x += picture.width
    return whole


def _paste(
    sheet: Image.Image, draw: ImageDraw.ImageDraw, pixels: npt.NDArray[Any] | None, box: tuple[int, int, int, int]
) -> None:
    x, y, width, height = box
    if pixels is None:
        draw.rectangle((x, y, x + width - 1, y + height - 1), fill=_ABSENT)
        _text(draw, (x + 6, y + height // 2 - 7), "no picture", _font(12), _DIM, width - 12)
        return
    picture = Image.fromarray(_shown(pixels))
    scale = min(width / picture.width, height / picture.height)
    size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
    method = Image.Resampling.NEAREST if scale > 2 else Image.Resampling.BILINEAR
    sheet.paste(picture.resize(size, method), (x + (width - size[0]) // 2, y + (height - size[1]) // 2))


def _shown(pixels: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """RGB as it is; depth stretched between its nearest and farthest valid value, nothing measured in black."""
    if pixels.dtype == np.uint8:
        return pixels
    valid = pixels[pixels > 0]
    low, high = (float(valid.min()), float(valid.max())) if valid.size else (0.0, 1.0)
    grey = np.clip((pixels.astype(np.float64) - low) / max(high - low, 1.0) * 205 + 50, 0, 255)
    grey[pixels == 0] = 0
    return np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)


def _font(size: int) -> Font:
    for name in _FONTS:
        try:
            return ImageFont.truetype(name, size)
        except OSError:
            continue
    return ImageFont.load_default(size)


def _text(
    draw: ImageDraw.ImageDraw, place: tuple[int, int], text: str, font: Font, ink: tuple[int, int, int], room: int
) -> None:
    """Writes one line, cut to the room there is."""
    text = " ".join(text.split())
    if draw.textlength(text, font=font) > room:
        fitting = bisect_left(
            range(len(text)), True, key=lambda k: draw.textlength(text[: k + 1] + "…", font=font) > room
        )
        text = text[:fitting] + "…"
    draw.text(place, text, font=font, fill=ink)
