from __future__ import annotations

import io
import tarfile

import google_crc32c
import numpy as np
import pytest
import simplejpeg
from helpers.mixtures import picture
from PIL import Image

from wdsmix.errors import DataError
from wdsmix.mixture.decode import check_frame, decode_frame, decode_picture, find_pictures, frame_bytes
from wdsmix.shards.tario import padding, ustar_header


def saved(pixels: np.ndarray, kind: str, mode: str = "RGB") -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **({"quality": 92} if kind == "JPEG" else {}))
    return np.frombuffer(buffer.getvalue(), np.uint8)


def test_jpeg_straight_into_the_row() -> None:
    data = simplejpeg.encode_jpeg(picture((20, 16), 1), 92)
    row = np.full((16, 20, 3), 7, np.uint8)
    decode_picture(np.frombuffer(data, np.uint8), row)
    assert np.array_equal(row, simplejpeg.decode_jpeg(data, "RGB"))


@pytest.mark.parametrize(("kind", "mode"), [("PNG", "RGB"), ("PNG", "L"), ("JPEG", "L"), ("JPEG", "CMYK")])
def test_other_pictures(kind: str, mode: str) -> None:
    data = saved(picture((20, 16), 2), kind, mode)
    row = np.zeros((16, 20, 3), np.uint8)
    decode_picture(data, row)
    expected = np.asarray(Image.open(io.BytesIO(data.tobytes())).convert("RGB"))
    assert np.abs(row.astype(int) - expected).max() <= 2


@pytest.mark.parametrize("size", [(20, 16), (32, 32), (64, 64), (8, 8)])
@pytest.mark.parametrize("right_size", [True, False])
def test_resized_with_the_named_filter(size: tuple[int, int], right_size: bool) -> None:
    data = saved(picture(size, 3), "JPEG")
    row = np.zeros((32, 32, 3), np.uint8)
    decode_picture(data, row, right_size=right_size, may_resize=True)
    pixels = Image.fromarray(simplejpeg.decode_jpeg(data.tobytes(), "RGB"))
    assert np.array_equal(row, np.asarray(pixels.resize((32, 32), Image.Resampling.BILINEAR)))


@pytest.mark.parametrize("size", [(16, 20), (8, 8), (40, 40), (160, 2)])
def test_another_size_than_promised_is_an_error(size: tuple[int, int]) -> None:
    with pytest.raises(DataError, match=rf"expected 20x16, found {size[0]}x{size[1]}"):
        decode_picture(saved(picture(size, 3), "JPEG"), np.zeros((16, 20, 3), np.uint8))


@pytest.mark.parametrize("cut", [0, 3, 100, -2, -20])
def test_damaged_pictures(cut: int) -> None:
    data = saved(picture((20, 16), 3), "JPEG")[:cut]
    with pytest.raises(DataError):
        decode_picture(data, np.zeros((16, 20, 3), np.uint8))


def frame(*members: tuple[str, bytes]) -> np.ndarray:
    parts = [part for name, data in members for part in (ustar_header(name, len(data)), data, padding(len(data)))]
    return np.frombuffer(b"".join(parts), np.uint8)


def test_the_pictures_of_a_frame() -> None:
    first, second = (simplejpeg.encode_jpeg(picture((20, 16), n), 92) for n in (1, 2))
    whole = frame(("a.cam0.jpg", first), ("a.state.npy", b"x"), ("a.cam1.jpg", second), ("a.json", b"{}"))
    found = find_pictures(whole, {b"cam1.jpg": (0, False), b"cam0.jpg": (1, True), b"cam2.jpg": (2, True)})
    assert [(camera, right, data.tobytes()) for camera, right, data in found] == [(1, True, first), (0, False, second)]
    assert find_pictures(whole, {b"cam9.jpg": (0, True)}) == []
    assert find_pictures(frame((".cam0.jpg", first), ("jpg", first)), {b"cam0.jpg": (0, True), b"jpg": (1, True)}) == []


def test_decoded_into_the_batch_and_checked() -> None:
    data = simplejpeg.encode_jpeg(picture((20, 16), 1), 92)
    whole = frame(("a.cam0.jpg", data))
    ((_, _, view),) = find_pictures(whole, {b"cam0.jpg": (0, True)})
    row = np.zeros((16, 20, 3), np.uint8)
    checksum = google_crc32c.value(whole.tobytes())
    decode_frame(whole, checksum, [(view, row, True)], may_resize=False)
    assert np.array_equal(row, simplejpeg.decode_jpeg(data, "RGB"))
    with pytest.raises(DataError, match="damaged frame"):
        decode_frame(whole, checksum ^ 1, [(view, row, True)], may_resize=False)


def test_damage_is_the_reason_given_for_what_does_not_decode() -> None:
    whole = frame(("a.cam0.jpg", b"no picture"))
    ((_, _, view),) = find_pictures(whole, {b"cam0.jpg": (0, True)})
    row, checksum = np.zeros((16, 20, 3), np.uint8), google_crc32c.value(whole.tobytes())
    with pytest.raises(DataError, match="damaged frame"):
        decode_frame(whole, checksum ^ 1, [(view, row, True)], may_resize=False)
    with pytest.raises(DataError) as caught:
        decode_frame(whole, checksum, [(view, row, True)], may_resize=False)
    assert "damaged frame" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.cam0.jpg", "./dir.x/a.cam0.jpg", "é.cam0.jpg", "n" * 120 + ".cam0.jpg"])
@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_pictures_are_found_in_tars_of_any_writer(name: str, form: int) -> None:
    if form == tarfile.USTAR_FORMAT and (len(name) > 100 or not name.isascii()):
        return
    data = simplejpeg.encode_jpeg(picture((20, 16), 1), 92)
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=form) as tar:
        for member, content in ((name.replace("cam0", "cam1"), b"not asked for"), (name, data)):
            info = tarfile.TarInfo(member)
            info.size, info.mtime = len(content), 1.5
            tar.addfile(info, io.BytesIO(content))
    whole = np.frombuffer(file.getvalue(), np.uint8)[: tar.offset - 1024]
    ((camera, right_size, found),) = find_pictures(whole, {b"cam0.jpg": (0, True)})
    assert (camera, right_size) == (0, True)
    assert found.tobytes() == data


def test_checksum() -> None:
    tar = frame(("a.cam0.jpg", b"abc"))
    check_frame(tar, google_crc32c.value(tar.tobytes()))
    with pytest.raises(DataError, match=r"damaged frame \(expected crc32c 00000001, found [0-9a-f]{8}\)"):
        check_frame(tar, 1)
    assert frame_bytes(tar, 512, len(tar) - 512).tobytes() == tar[512:].tobytes()
    with pytest.raises(DataError, match="cut off"):
        frame_bytes(tar, 512, len(tar))
