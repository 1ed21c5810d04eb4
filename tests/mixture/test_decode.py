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
from wdsmix.mixture.decode import check_frame, decode_frame, decode_picture
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


def test_a_frame_with_and_without_cameras() -> None:
    first, second = (simplejpeg.encode_jpeg(picture((20, 16), n), 92) for n in (1, 2))
    tar = frame(
        ("a.cam0.jpg", first), ("a.state.npy", b"x"), ("a.json", b"{}"), ("b.cam1.jpg", second), ("b.json", b"")
    )
    border = len(frame(("a.cam0.jpg", first), ("a.state.npy", b"x"), ("a.json", b"{}")))
    slots = {"cam0.jpg": (1, True), "cam1.jpg": (0, True)}
    images, mask = np.full((3, 16, 20, 3), 9, np.uint8), np.ones(3, bool)
    decode_frame(tar[:border], slots, images, mask, may_resize=False)
    assert mask.tolist() == [False, True, False]
    assert np.array_equal(images[1], simplejpeg.decode_jpeg(first, "RGB"))
    assert not images[0].any()
    assert not images[2].any()
    decode_frame(tar[border:], slots, images, mask, may_resize=False)
    assert mask.tolist() == [True, False, False]
    assert np.array_equal(images[0], simplejpeg.decode_jpeg(second, "RGB"))
    assert not images[1].any()


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
    images, mask = np.zeros((1, 16, 20, 3), np.uint8), np.zeros(1, bool)
    decode_frame(whole, {"cam0.jpg": (0, True)}, images, mask, may_resize=False)
    assert mask.all()
    assert np.array_equal(images[0], simplejpeg.decode_jpeg(data, "RGB"))


def test_checksum() -> None:
    tar = frame(("a.cam0.jpg", b"abc"))
    check_frame(tar, 0, len(tar), google_crc32c.value(tar.tobytes()))
    with pytest.raises(DataError, match=r"damaged frame \(expected crc32c 00000001, found [0-9a-f]{8}\)"):
        check_frame(tar, 0, len(tar), 1)
    with pytest.raises(DataError, match="cut off"):
        check_frame(tar, 512, len(tar), 1)
