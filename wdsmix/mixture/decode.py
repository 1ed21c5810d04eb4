"""From a frame's bytes in a tar to pixels in a batch: find the members, decode, check, bring to size.

Pictures of another size than the batch's are brought to it on the host with Pillow's BILINEAR (which antialiases),
stretching each axis: `RESIZE_FILTER`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import google_crc32c
import numpy as np
import numpy.typing as npt
import simplejpeg

from wdsmix.errors import DataError
from wdsmix.imaging import decode_rgb, resize
from wdsmix.shards.tario import iter_members, split_name

__all__ = [
    "RESIZE_FILTER",
    "Found",
    "check_frame",
    "decode_frame",
    "decode_picture",
    "find_pictures",
    "frame_bytes",
    "reason",
]

RESIZE_FILTER = "Pillow BILINEAR, squash"

Pixels = npt.NDArray[np.uint8]


Found = list[tuple[int, bool, Pixels]]
"""Pictures of a frame: camera of the batch, whether the batch's size is expected, uint8 view of the encoded bytes."""


def frame_bytes(tar: Pixels, start: int, length: int) -> Pixels:
    """A frame's bytes, headers and padding included, as a view; not yet checked.

    Raises:
        DataError: they are cut off.
    """
    frame = tar[start : start + length]
    if len(frame) != length:
        raise DataError("the shard is cut off", expected=f"{start + length} bytes or more", found=f"{len(tar)} bytes")
    return frame


def check_frame(frame: Pixels, crc32c: int) -> None:
    """Checks a frame's bytes.

    Raises:
        DataError: they are not those that were written.
    """
    found = google_crc32c.value(frame)
    if found != crc32c:
        raise DataError("damaged frame", expected=f"crc32c {crc32c:08x}", found=f"{found:08x}")


def reason(frame: Pixels, crc32c: int, error: DataError) -> DataError:
    """Why a frame can't be used: that it is damaged, if it is, else the error that it led to."""
    try:
        check_frame(frame, crc32c)
    except DataError as damage:
        return damage
    return error


def find_pictures(frame: Pixels, slots: Mapping[bytes, tuple[int, bool]]) -> Found:
    """Where the pictures that are asked for lie in a frame, by its members' headers alone.

    Plain ustar headers without folders, which is all that is ever written here, are read with one slice; the first
    header of another kind hands over to the strict parser. The bytes need not be checked yet: nothing outside of the
    frame is ever pointed to.

    Args:
        frame: uint8, the frame's bytes in the tar.
        slots: Member suffix -> camera of the batch, and whether its pictures are expected to have the batch's size.

    Raises:
        DataError: not a tar.
    """
    found: Found = []
    left, at, end = len(slots), 0, len(frame)
    while left and at < end:
        header = frame[at : at + 157].tobytes()  # name at 0, size at 124, type at 156
        nul = header.find(0, 0, 101)
        digits = header[124:135]
        if not 0 < nul <= 100 or header[156:] != b"0" or b"/" in header[:nul] or not digits.isdigit():
            break
        start, size = at + 512, int(digits, 8)
        if start + size > end or not header[:nul].isascii():
            break
        dot = header.find(b".", 0, nul)
        slot = slots.get(header[dot + 1 : nul]) if dot > 0 else None
        if slot is not None:
            found.append((*slot, frame[start : start + size]))
            left -= 1
        at = start + (size + 511 & ~511)
    else:
        return found
    for member in iter_members(frame, at, end, checksums=False):
        slot = slots.get(split_name(member.name)[1].encode("utf-8", "surrogateescape"))
        if slot is not None:
            found.append((*slot, frame[member.data : member.data + member.size]))
            left -= 1
            if not left:
                break
    return found


def decode_frame(
    frame: Pixels, crc32c: int, pictures: Iterable[tuple[Pixels, Pixels, bool]], *, may_resize: bool
) -> None:
    """Decodes the pictures of one frame straight into a batch, and checks the frame.

    In this order, because the bytes are near once they were decoded: checking them first would wait for memory. What
    was decoded from damaged bytes does not leave, for this raises.

    Args:
        frame: uint8, the frame's bytes in the tar.
        crc32c: Theirs.
        pictures: Encoded bytes, row of the batch (uint8 [H, W, 3], filled), and whether they have the row's size.
        may_resize: Whether pictures of another size are resized; else they are an error.

    Raises:
        DataError: the frame is damaged, or a picture does not decode.
    """
    for data, row, right_size in pictures:
        try:
            decode_picture(data, row, right_size=right_size, may_resize=may_resize)
        except DataError as error:
            raise reason(frame, crc32c, error) from error
    check_frame(frame, crc32c)


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
