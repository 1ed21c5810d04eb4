"""From a frame's bytes in a tar to pixels in a batch: check, find the members, decode, bring to size.

Pictures of another size than the batch's are brought to it on the host with Pillow's BILINEAR (which antialiases),
stretching each axis: `RESIZE_FILTER`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import google_crc32c
import numpy as np
import numpy.typing as npt
import simplejpeg

from wdsmix.errors import DataError
from wdsmix.imaging import decode_rgb, resize
from wdsmix.shards.tario import iter_members, split_name

__all__ = ["RESIZE_FILTER", "check_frame", "decode_frame", "decode_picture"]

RESIZE_FILTER = "Pillow BILINEAR, squash"

Pixels = npt.NDArray[np.uint8]


def check_frame(tar: Pixels, start: int, length: int, crc32c: int) -> Pixels:
    """Checks a frame's bytes, headers and padding included, and returns them as a view.

    Raises:
        DataError: they are cut off, or not the bytes that were written.
    """
    frame = tar[start : start + length]
    if len(frame) != length:
        raise DataError("the shard is cut off", expected=f"{start + length} bytes or more", found=f"{len(tar)} bytes")
    found = google_crc32c.value(frame)
    if found != crc32c:
        raise DataError("damaged frame", expected=f"crc32c {crc32c:08x}", found=f"{found:08x}")
    return frame


def decode_frame(
    frame: Pixels,
    slots: Mapping[str, tuple[int, bool]],
    images: Pixels,
    mask: npt.NDArray[np.bool_],
    *,
    may_resize: bool,
) -> None:
    """Decodes the pictures of one checked frame straight into a batch.

    Args:
        frame: uint8, the frame's bytes in the tar.
        slots: Member suffix -> (camera of the batch, whether its pictures are expected to have the batch's size).
        images: uint8 [cams, H, W, 3], filled; a camera without a member becomes zeros.
        mask: bool [cams], filled: which cameras the frame has.
        may_resize: Whether pictures of another size are resized; else they are an error.

    Raises:
        DataError: a picture does not decode.
    """
    left = len(slots)
    seen = 0
    if left:
        for suffix, start, size in _members(frame):
            found = slots.get(suffix)
            if found is None:
                continue
            camera, right_size = found
            decode_picture(frame[start : start + size], images[camera], right_size=right_size, may_resize=may_resize)
            seen |= 1 << camera
            left -= 1
            if not left:
                break
    for camera in range(len(mask)):
        there = bool(seen >> camera & 1)
        mask[camera] = there
        if not there:
            images[camera] = 0


def _members(frame: Pixels) -> Iterator[tuple[str, int, int]]:
    """Suffix, first byte and size of the members of a checked frame.

    Plain ustar headers without folders, which is all that is ever written here, are read with two slices; the first
    header of another kind hands over to the strict parser.
    """
    at, end = 0, len(frame)
    while at < end:
        header = frame[at : at + 157].tobytes()  # name at 0, size at 124, type at 156
        name, nul, _ = header[:100].partition(b"\0")
        digits = header[124:135]
        if not nul or b"/" in name or header[156:] != b"0" or not digits.isdigit() or not name.isascii():
            break
        start, size = at + 512, int(digits, 8)
        if start + size > end:
            break
        yield split_name(name.decode())[1], start, size
        at = start + (size + 511 & ~511)
    else:
        return
    for member in iter_members(frame, at, end, checksums=False):
        yield split_name(member.name)[1], member.data, member.size


def decode_picture(data: Pixels, row: Pixels, *, right_size: bool = True, may_resize: bool = False) -> None:
    """Decodes one picture into a row of a batch.

    Args:
        data: Encoded bytes.
        row: uint8 [H, W, 3], filled.
        right_size: Whether it is expected to have the row's size; saves a look at its header.
        may_resize: Whether a picture of another size is resized (the row is square then).

    Raises:
        DataError: it does not decode, or has another size and may not be resized.
    """
    if right_size:
        try:
            pixels = simplejpeg.decode_jpeg(data, "RGB", buffer=row)
        except ValueError:  # not a JPEG, damaged, or larger than the row: the careful way tells which
            pass
        else:
            if pixels.shape == row.shape:
                return
    pixels = decode_rgb(data)
    if pixels.shape != row.shape:
        height, width = row.shape[:2]
        if not may_resize:
            raise DataError(
                "a picture has another size than the manifest says",
                expected=f"{width}x{height}",
                found=f"{pixels.shape[1]}x{pixels.shape[0]}",
                hint="set sample.image_size",
            )
        pixels = resize(pixels, height)
    row[...] = pixels
