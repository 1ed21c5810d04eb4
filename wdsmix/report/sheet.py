"""Contact sheet: the first, middle and last frame of a few episodes, every camera, as one picture."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from wdsmix.shards.reader import Frame, ShardSet

__all__ = ["contact_sheet", "frame_picture"]

_GAP, _CAPTION = 6, 22
_INK, _PAPER, _DIM, _ABSENT = (28, 30, 34), (250, 250, 248), (120, 122, 126), (226, 226, 222)
_MOMENTS = ("first", "middle", "last")
_FONTS = ("NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "DejaVuSans.ttf")  # the first knows Chinese

Font = Any


def contact_sheet(opened: ShardSet, *, episodes: int = 6, cell: int = 160) -> Image.Image:
    """Draws the sheet.

    Args:
        opened: The set.
        episodes: Rows, spread evenly over the set.
        cell: Width of a picture, in pixels.

    Raises:
        DataError: a frame is damaged.
    """
    slots = list(opened.manifest.cameras)
    chosen = sorted(set(np.linspace(0, len(opened.index) - 1, min(episodes, len(opened.index))).astype(int).tolist()))
    height = _cell_height(opened, cell)
    columns = max(len(slots), 1) * len(_MOMENTS)
    group = _GAP
    width = _GAP + columns * (cell + _GAP) + (max(len(slots), 1) - 1) * group
    top = 3 * _CAPTION + _GAP
    row_height = _CAPTION + height + _GAP
    sheet = Image.new("RGB", (width, top + max(len(chosen), 1) * row_height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    manifest = opened.manifest
    title = f"{manifest.name}  {opened.digest[:12]}  {manifest.counts.frames:,} frames, {manifest.hz:g} Hz"
    _text(draw, (_GAP, 4), title, _font(14), _INK, width - 2 * _GAP)
    for s, slot in enumerate(slots):
        for m, moment in enumerate(_MOMENTS):
            x = _GAP + (s * len(_MOMENTS) + m) * (cell + _GAP) + s * group
            if m == 0:
                room = len(_MOMENTS) * (cell + _GAP) - _GAP
                _text(draw, (x, _CAPTION + 4), f"{slot}  {manifest.cameras[slot].key}", _font(12), _INK, room)
            _text(draw, (x, 2 * _CAPTION + 4), moment, _font(12), _DIM, cell)
    for r, e in enumerate(chosen):
        y = top + r * row_height
        first = int(opened.index.ends[e] - opened.index.frames[e])
        count = int(opened.index.frames[e])
        frames = [opened.frame(first + t) for t in (0, (count - 1) // 2, count - 1)]
        _text(draw, (_GAP, y + 3), _caption(opened, e, frames[0]), _font(12), _INK, width - 2 * _GAP)
        for s, slot in enumerate(slots):
            for m, frame in enumerate(frames):
                x = _GAP + (s * len(_MOMENTS) + m) * (cell + _GAP) + s * group
                _paste(sheet, draw, frame.images.get(slot), (x, y + _CAPTION, cell, height))
    return sheet


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


def _caption(opened: ShardSet, e: int, frame: Frame) -> str:
    count = int(opened.index.frames[e])
    tasks = opened.index.tasks(e)
    more = f" (+{len(tasks) - 1} more)" if len(tasks) > 1 else ""
    return f"episode {frame.episode} · {frame.split} · {count:,} frames · {frame.task or 'no task'}{more}"


def _cell_height(opened: ShardSet, cell: int) -> int:
    shapes = [size for camera in opened.manifest.cameras.values() for size in camera.sizes]
    return min(max((round(cell * h / w) for w, h in shapes), default=cell), 2 * cell)


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
        while text and draw.textlength(text + "…", font=font) > room:
            text = text[:-1]
        text += "…"
    draw.text(place, text, font=font, fill=ink)
