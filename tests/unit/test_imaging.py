"""Pictures: what passes through, what is re-encoded, and what is refused."""

from __future__ import annotations

import io
import struct
import zlib
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from wdsmix.episode import Camera
from wdsmix.errors import DataError
from wdsmix.imaging import (
    MAX_PIXELS,
    decode_depth,
    decode_rgb,
    encode_depth,
    encode_jpeg,
    jpeg_header,
    jpeg_size,
    picture_size,
    prepare,
    resize,
    sniff,
    trim_jpeg,
)


@dataclass(frozen=True)
class Options:
    image_size: int = 0
    resize: str = "squash"
    quality: int = 92
    subsampling: str = "444"


PLAIN = Camera(key="front")


def smooth(width: int = 64, height: int = 48, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC))


def saved(pixels: np.ndarray, kind: str, mode: str = "RGB", **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(buffer, kind, **options)
    return buffer.getvalue()


def by_pillow(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)


def off(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(int) - b.astype(int)).mean())


@pytest.mark.parametrize(("kind", "name"), [("JPEG", "jpeg"), ("PNG", "png"), ("WEBP", "webp"), ("BMP", None)])
def test_sniff_and_size(kind, name):
    data = saved(smooth(), kind)
    assert sniff(data) == name
    if name:
        assert picture_size(data) == (64, 48)
    else:
        with pytest.raises(DataError, match="starting 42 4d"):
            decode_rgb(data)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_header_tells_size_and_subsampling(subsampling):
    assert jpeg_size(encode_jpeg(smooth(), 90, subsampling)) == (64, 48, 3, subsampling)


def test_header_of_odd_kinds():
    assert jpeg_size(saved(smooth(), "JPEG", "L")) == (64, 48, 1, "gray")
    assert jpeg_size(saved(smooth(), "JPEG", "CMYK"))[2] == 4
    assert not jpeg_header(saved(smooth(), "JPEG", progressive=True)).baseline
    with_exif = saved(smooth(), "JPEG", exif=b"Exif\0\0" + b"x" * 40_000, comment=b"\xff\xc0\xff\xd9")
    assert jpeg_size(with_exif)[:2] == (64, 48)


@pytest.mark.parametrize(
    ("kind", "mode", "options"),
    [
        ("JPEG", "RGB", {"quality": 95}),
        ("JPEG", "RGB", {"progressive": True}),
        ("JPEG", "L", {}),
        ("JPEG", "CMYK", {}),
        ("PNG", "RGB", {}),
        ("PNG", "RGBA", {}),
        ("PNG", "P", {}),
        ("PNG", "L", {}),
        ("WEBP", "RGB", {"lossless": True}),
    ],
)
def test_decode_equals_pillow(kind, mode, options):
    data = saved(smooth(), kind, mode, **options)
    pixels = decode_rgb(data)
    assert pixels.dtype == np.uint8
    assert pixels.shape == (48, 64, 3)
    assert off(pixels, by_pillow(data)) < 0.5
    assert (decode_rgb(data, order="bgr") == pixels[:, :, ::-1]).all()
    out = np.empty((48, 64, 3), np.uint8)
    assert decode_rgb(np.frombuffer(data, np.uint8), out=out) is out
    assert (out == pixels).all()
    with pytest.raises(DataError, match="another size"):
        decode_rgb(data, out=np.empty((48, 63, 3), np.uint8))


def test_exif_never_rotates():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(smooth(), "JPEG", exif=exif)
    assert decode_rgb(data).shape == (48, 64, 3)
    kept, _, size, passthrough = prepare(data, PLAIN, Options())
    assert (kept, size, passthrough) == (data, (64, 48), True)


def test_trim():
    data = encode_jpeg(smooth())
    assert trim_jpeg(data + bytes(100)) == data
    assert trim_jpeg(np.frombuffer(data + b"\xff" * 5, np.uint8)) == data
    with pytest.raises(DataError, match="cut off"):
        trim_jpeg(data[:-1])


@pytest.mark.parametrize("subsampling", ["444", "420", "422"])
def test_right_jpeg_passes_through_trimmed(subsampling):
    data = encode_jpeg(smooth(64, 64), 70, subsampling)
    for options in (Options(), Options(image_size=64), Options(image_size=64, resize="crop", quality=5)):
        assert prepare(data + bytes(33), PLAIN, options) == (data, "jpeg", (64, 64), True)


@pytest.mark.parametrize(
    ("data", "camera", "options"),
    [
        (encode_jpeg(smooth()), Camera(key="c", order="bgr"), Options()),
        (encode_jpeg(smooth()), Camera(key="c", flip="vertical"), Options()),
        (encode_jpeg(smooth()), Camera(key="c", flip="rot180"), Options()),
        (encode_jpeg(smooth()), PLAIN, Options(image_size=64)),
        (encode_jpeg(smooth()), PLAIN, Options(image_size=48)),
        (saved(smooth(), "JPEG", progressive=True), PLAIN, Options()),
        (saved(smooth(), "JPEG", "L"), PLAIN, Options()),
        (saved(smooth(), "JPEG", "CMYK"), PLAIN, Options()),
        (saved(smooth(), "PNG"), PLAIN, Options()),
        (saved(smooth(), "WEBP"), PLAIN, Options()),
    ],
)
def test_everything_else_becomes_baseline_jpeg(data, camera, options):
    made, encoding, size, passthrough = prepare(data, camera, options)
    side = options.image_size
    assert (encoding, size, passthrough) == ("jpeg", (side, side) if side else (64, 48), False)
    header = jpeg_header(made)
    assert (header.baseline, header.components, header.subsampling) == (True, 3, "444")
    want = by_pillow(data)
    want = want[:, :, ::-1] if camera.order == "bgr" else want
    want = {"none": want, "vertical": want[::-1], "rot180": want[::-1, ::-1]}[camera.flip]
    if side:
        want = np.asarray(Image.fromarray(want.astype(np.uint8)).resize((side, side), Image.Resampling.BILINEAR))
    assert off(decode_rgb(made), want) < 2


@pytest.mark.parametrize("order", ["rgb", "bgr"])
def test_pixels(order):
    pixels = smooth()
    made, *_ = prepare(pixels[:, :, ::-1] if order == "bgr" else pixels, Camera(key="c", order=order), Options())
    assert made == encode_jpeg(pixels)
    assert off(decode_rgb(made), pixels) < 2
    small, *_ = prepare(pixels, PLAIN, Options(subsampling="420", quality=50))
    assert jpeg_size(small)[3] == "420"
    assert len(small) < len(made)


@pytest.mark.parametrize("bad", [np.zeros((4, 4), np.uint8), np.zeros((4, 4, 4), np.uint8), np.zeros((4, 4, 3))])
def test_pixels_of_the_wrong_kind(bad):
    with pytest.raises(DataError, match="wrong kind"):
        prepare(bad, PLAIN, Options())


@given(
    width=st.integers(1, 90), height=st.integers(1, 90), size=st.integers(1, 96), mode=st.sampled_from(["fit", "crop"])
)
def test_resize_keeps_the_aspect(width, height, size, mode):
    pixels = np.full((height, width, 3), 200, np.uint8)
    made = resize(pixels, size, mode)
    assert made.shape == (size, size, 3)
    lit = made[:, :, 0] > 0
    if mode == "crop":
        assert (made == 200).all()
    else:
        rows, columns = lit.any(1).sum(), lit.any(0).sum()
        assert max(rows, columns) == size
        scale = size / max(width, height)
        assert (columns, rows) == (max(1, round(width * scale)), max(1, round(height * scale)))
        first = lit.any(1).argmax()
        assert abs(int(first) - (size - rows) // 2) == 0


@pytest.mark.parametrize("shape", [(640, 480), (300, 200), (50, 70), (128, 128)])
def test_squash_is_pillows_bilinear(shape):
    pixels = smooth(*shape)
    want = np.asarray(Image.fromarray(pixels).resize((128, 128), Image.Resampling.BILINEAR))
    assert off(resize(pixels, 128), want) <= 1
    assert resize(pixels, 0) is pixels


def test_crop_takes_the_centre():
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 255
    assert (resize(pixels, 10, "crop") == 255).all()
    assert (resize(pixels, 5, "crop") == 255).all()


@given(cut=st.floats(0, 0.999), kind=st.sampled_from(["JPEG", "PNG", "WEBP", "prog"]), end=st.booleans())
def test_cut_pictures_are_refused(cut, kind, end):
    whole = saved(smooth(), "JPEG", progressive=True) if kind == "prog" else saved(smooth(), kind)
    data = whole[: int(len(whole) * cut)]
    if kind in ("JPEG", "prog") and int(len(whole) * cut) >= len(whole) - 2:
        return
    if end:
        data += b"\xff\xd9"
    if kind == "prog" and end:  # a cut between two scans, closed properly, is a valid picture of lower quality
        return
    if kind == "WEBP" and len(data) >= len(whole):  # its last bytes are changed, and WebP has no checksum
        return
    if kind == "PNG" and len(whole) - len(data) <= 12:  # the end chunk holds nothing
        return
    with pytest.raises(DataError):
        prepare(data, PLAIN, Options())


@given(
    data=st.binary(max_size=60), head=st.sampled_from([b"", b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"RIFF\0\0\0\0WEBP"])
)
def test_rubbish_is_refused(data, head):
    for camera in (PLAIN, Camera(key="d", kind="depth")):
        with pytest.raises(DataError):
            prepare(head + data, camera, Options())


def bomb(kind: str) -> bytes:
    if kind == "jpeg":
        data = bytearray(encode_jpeg(smooth()))
        at = data.index(b"\xff\xc0")
        data[at + 5 : at + 9] = struct.pack(">HH", 60_000, 60_000)
        return bytes(data)
    body = b"IHDR" + struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    head = struct.pack(">I", 13) + body + struct.pack(">I", zlib.crc32(body))
    rows = b"IDAT" + zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + head + struct.pack(">I", len(rows) - 4) + rows + struct.pack(">I", zlib.crc32(rows))


@pytest.mark.parametrize("kind", ["jpeg", "png"])
@pytest.mark.parametrize("camera", [PLAIN, Camera(key="c", flip="vertical"), Camera(key="d", kind="depth")])
def test_bombs_are_refused_before_memory_is_taken(kind, camera):
    with pytest.raises(DataError) as caught:
        prepare(bomb(kind), camera, Options())
    if camera.kind == "rgb" or kind == "png":
        assert str(MAX_PIXELS) in str(caught.value)


def test_depth():
    rng = np.random.default_rng(0)
    depth = rng.integers(0, 65536, (40, 30), dtype=np.uint16)
    camera = Camera(key="d", kind="depth")
    made, encoding, size, passthrough = prepare(depth, camera, Options())
    assert (encoding, size, passthrough) == ("png", (30, 40), False)
    assert (np.asarray(Image.open(io.BytesIO(made))).astype(np.uint16) == depth).all()
    assert prepare(made + bytes(9), camera, Options()) == (made, "png", (30, 40), True)
    half, _, size, _ = prepare(made, camera, Options(image_size=10))
    assert size == (10, 10)
    assert set(decode_depth(half).ravel().tolist()) <= set(depth.ravel().tolist())
    assert (decode_depth(half) == depth[2::4][:, 1::3]).all()
    flipped, *_ = prepare(encode_depth(depth), Camera(key="d", kind="depth", flip="vertical"), Options())
    assert (decode_depth(flipped) == depth[::-1]).all()
    framed, _, size, _ = prepare(depth, camera, Options(image_size=40, resize="fit"))
    assert size == (40, 40)
    assert (decode_depth(framed)[:, 5:35] == depth).all()
    for bad in (encode_jpeg(smooth()), saved(smooth(), "PNG"), depth.astype(np.int32), smooth()):
        with pytest.raises(DataError):
            prepare(bad, camera, Options())


def test_sixteen_bit_png_is_no_colour_picture():
    with pytest.raises(DataError, match="8-bit"):
        prepare(encode_depth(np.zeros((4, 4), np.uint16)), PLAIN, Options())
