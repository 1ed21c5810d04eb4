"""What a picture's first bytes tell: its format and its size."""

from __future__ import annotations

import struct

__all__ = ["encoded_size", "raw_size", "sniff", "strip_padding"]

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
_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def sniff(head: bytes) -> str | None:
    """``jpeg``, ``png``, ``webp`` or None, from the first 12 bytes."""
    if head[:3] == b"\xff\xd8\xff":
        return "jpeg"
    if head[:4] == b"\x89PNG":
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return None


def raw_size(count: int) -> tuple[int, int] | None:
    """The (width, height) of a common camera with so many RGB bytes; None: none has."""
    return next((size for size in _COMMON if size[0] * size[1] * 3 == count), None)


def strip_padding(data: bytes, kind: str) -> bytes:
    """Cuts what follows the end of an encoded picture; a picture without its end stays as it is."""
    if kind == "webp":
        return data[: 8 + int.from_bytes(data[4:8], "little")]
    plain = data.rstrip(b"\0")
    if kind == "jpeg" and not plain.endswith(b"\xff\xd9"):
        end = plain.rfind(b"\xff\xd9")
        return plain[: end + 2] if end > 0 else plain
    return plain


def encoded_size(data: bytes) -> tuple[int, int] | None:
    """(width, height) from the header of a JPEG, PNG or WebP; None: damaged."""
    kind = sniff(data[:16])
    try:
        if kind == "png":
            return struct.unpack(">II", data[16:24])  # type: ignore[return-value]
        if kind == "webp":
            return _webp_size(data)
        return _jpeg_size(data) if kind == "jpeg" else None
    except (struct.error, IndexError):
        return None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _SOF:
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return (width, height) if width and height else None
        elif marker == 0x01 or 0xD0 <= marker <= 0xD7:
            at += 2
        elif marker in (0xD9, 0xDA):
            return None
        else:
            at += 2 + struct.unpack(">H", data[at + 2 : at + 4])[0]
    return None


def _webp_size(data: bytes) -> tuple[int, int] | None:
    chunk = data[12:16]
    if chunk == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if chunk == b"VP8L":
        bits = int.from_bytes(data[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if chunk == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    return None
