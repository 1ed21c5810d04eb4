"""Where an encoded picture ends in its padded row, and how large a raw one is."""

from __future__ import annotations

from wdsmix.imaging import trim_jpeg

__all__ = ["raw_size", "strip_padding"]

_COMMON = [
    (640, 480),
    (1280, 720),
    (1920, 1080),
    (320, 240),
    (640, 360),
    (848, 480),
    (424, 240),
    (320, 180),
    (960, 540),
    (160, 120),
    (224, 224),
    (256, 256),
    (128, 128),
    (84, 84),
    (96, 96),
]
"""(width, height) of cameras in the field; 640x360 and 480x480 have as many bytes, the first is the likelier."""


def strip_padding(data: bytes, kind: str) -> bytes:
    """Cuts what follows the end of an encoded picture; a picture without its end stays as it is, to fail later."""
    if kind == "webp":
        return data[: 8 + int.from_bytes(data[4:8], "little")]
    plain = data.rstrip(b"\0")
    if kind == "jpeg" and not plain.endswith(b"\xff\xd9") and b"\xff\xd9" in plain:
        return trim_jpeg(plain)
    return plain


def raw_size(count: int) -> tuple[int, int] | None:
    """The (width, height) of a common camera with so many RGB bytes; None: none has."""
    return next((size for size in _COMMON if size[0] * size[1] * 3 == count), None)
