"""Pictures: sniffing, decoding, resizing, encoding, and the one rule of what keeps its bytes.

A JPEG *passes through* (the bytes in the tar are the source's bytes, cut after the last end-of-image marker) when it
is a baseline 8-bit JPEG of three components, needs no other colour order, flip or size, and a strict decode of all its
data succeeds. Its quality and chroma subsampling are then the source's. Everything else is decoded, turned, resized and
encoded once; also progressive JPEG, which takes three times as long to decode each time training reads it.

EXIF orientation is never applied: cameras of robots do not turn, and training must see what the recorder saw.
No picture beyond `MAX_PIXELS` is decoded: the size is read from the header before any memory is taken.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import simplejpeg
from PIL import Image as PilImage

from wdsmix.episode import Camera, Image
from wdsmix.errors import DataError

__all__ = [
    "MAX_PIXELS",
    "Buffer",
    "JpegHeader",
    "PictureOptions",
    "Prepared",
    "decode_depth",
    "decode_rgb",
    "encode_depth",
    "encode_jpeg",
    "jpeg_header",
    "jpeg_size",
    "picture_size",
    "prepare",
    "resize",
    "sniff",
    "trim_jpeg",
]

Buffer: TypeAlias = "bytes | bytearray | npt.NDArray[np.uint8]"
"""Encoded bytes; arrays are one-dimensional and contiguous (a view into a memory map will do)."""
Pixels: TypeAlias = npt.NDArray[np.uint8]
ResizeMode: TypeAlias = Literal["squash", "fit", "crop"]

MAX_PIXELS = 178_956_970
"""Pillow's limit against decompression bombs: 0.5 GB of RGB."""

_JPEG, _PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_SOF = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_SAMPLING = {(1, 1): "444", (2, 1): "422", (2, 2): "420", (1, 2): "440", (4, 1): "411"}


class PictureOptions(Protocol):
    """The options of a conversion that concern pictures (see `wdsmix.ConvertOptions`)."""

    @property
    def image_size(self) -> int:
        """Side of the square; 0 keeps the size."""
        ...

    @property
    def resize(self) -> ResizeMode:
        """How a picture becomes square."""
        ...

    @property
    def quality(self) -> int:
        """JPEG quality, 1 to 100."""
        ...

    @property
    def subsampling(self) -> Literal["444", "420"]:
        """Chroma subsampling of what is encoded."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class JpegHeader:
    """What a JPEG says of itself before its first scan."""

    width: int
    height: int
    components: int
    subsampling: str
    """``444``, ``422``, ``420``, ``440``, ``411``, ``gray`` or ``other``."""
    baseline: bool
    """Sequential, Huffman-coded, 8 bits a sample: what every decoder takes at full speed."""


def sniff(data: Buffer) -> Literal["jpeg", "png", "webp"] | None:
    """The kind of encoded picture by its first bytes, or None."""
    head = bytes(data[:12])
    if head.startswith(_JPEG):
        return "jpeg"
    if head.startswith(_PNG):
        return "png"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "webp"
    return None


def trim_jpeg(data: Buffer) -> bytes:
    """Cuts a JPEG after its last end-of-image marker: fixed-width storage pads it with zeros.

    Raises:
        DataError: there is no such marker.
    """
    raw = data if isinstance(data, bytes) else bytes(data)
    end = raw.rfind(b"\xff\xd9")
    if end < 0:
        raise DataError("JPEG is cut off: it has no end-of-image marker", found=f"{len(raw)} bytes")
    return raw[: end + 2]


def jpeg_header(data: Buffer) -> JpegHeader:
    """Reads a JPEG's frame header without decoding.

    Raises:
        DataError: not a JPEG, or cut off before its frame header.
    """
    if sniff(data) != "jpeg":
        raise DataError("not a JPEG", found=_shown(data))
    position, size = 2, len(data)
    while position + 4 <= size:
        if data[position] != 0xFF:
            break
        marker = int(data[position + 1])
        if marker == 0xFF:  # fill byte
            position += 1
            continue
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:
            position += 2
            continue
        length = int(data[position + 2]) << 8 | int(data[position + 3])
        if marker in _SOF:
            return _frame_header(marker, bytes(data[position + 4 : position + 2 + length]))
        if marker in (0xDA, 0xD9) or length < 2:
            break
        position += 2 + length
    raise DataError("JPEG has no frame header", where=f"byte {position}", found=f"{size} bytes")


def _frame_header(marker: int, body: bytes) -> JpegHeader:
    if len(body) < 6 or len(body) < 6 + 3 * body[5]:
        raise DataError("JPEG frame header is cut off", found=f"{len(body)} bytes")
    components = body[5]
    factors = [(body[7 + 3 * k] >> 4, body[7 + 3 * k] & 15) for k in range(components)]
    subsampling = "gray" if components == 1 else "other"
    if components == 3 and factors[1] == factors[2] and 0 not in factors[1]:
        (h, v), (ch, cv) = factors[0], factors[1]
        if h % ch == 0 and v % cv == 0:
            subsampling = _SAMPLING.get((h // ch, v // cv), "other")
    return JpegHeader(
        width=body[3] << 8 | body[4],
        height=body[1] << 8 | body[2],
        components=components,
        subsampling=subsampling,
        baseline=marker in (0xC0, 0xC1) and body[0] == 8,
    )


def jpeg_size(data: Buffer) -> tuple[int, int, int, str]:
    """(width, height, components, subsampling) of a JPEG, from its header.

    Raises:
        DataError: not a JPEG, or cut off before its frame header.
    """
    header = jpeg_header(data)
    return header.width, header.height, header.components, header.subsampling


def picture_size(data: Buffer) -> tuple[int, int]:
    """(width, height) of an encoded picture, from its header.

    Raises:
        DataError: not a JPEG, PNG or WebP, or cut off before its size.
    """
    if sniff(data) == "jpeg":
        return jpeg_size(data)[:2]
    with _opened(data) as picture:
        return picture.size


def decode_rgb(data: Buffer, *, order: Literal["rgb", "bgr"] = "rgb", out: Pixels | None = None) -> Pixels:
    """Decodes one picture.

    Args:
        data: JPEG, PNG or WebP bytes.
        order: Channel order that a plain decode of ``data`` gives; ``bgr`` pictures are swapped, so that the result is
            RGB either way.
        out: uint8 [H, W, 3], C-contiguous, to decode into.

    Returns:
        uint8 [H, W, 3], RGB; ``out`` where given.

    Raises:
        DataError: not a picture, damaged (also where a lenient decoder would only warn), larger than `MAX_PIXELS`, or
            of another size than ``out``.
    """
    if sniff(data) == "jpeg":
        try:
            height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        except ValueError:
            colours = None  # an unusual subsampling: Pillow knows more of them
        if colours in ("YCbCr", "RGB", "Gray"):
            _check_size(width, height, out)
            try:
                pixels: Pixels = simplejpeg.decode_jpeg(
                    data, colorspace=order.upper(), fastdct=False, fastupsample=False, buffer=out
                )
            except ValueError as error:
                raise DataError(f"JPEG does not decode: {error}", found=_shown(data)) from error
            return pixels if out is None else out
    with _opened(data) as picture:
        _check_size(*picture.size, out)
        if picture.mode.startswith(("I", "F")):
            raise DataError("picture has no 8-bit channels", expected="8-bit RGB", found=f"mode {picture.mode}")
        pixels = np.array(_loaded(picture).convert("RGB"))
    if order == "bgr":
        pixels = np.ascontiguousarray(pixels[:, :, ::-1])
    if out is None:
        return pixels
    out[...] = pixels
    return out


def _check_size(width: int, height: int, out: npt.NDArray[Any] | None) -> None:
    if width < 1 or height < 1 or width * height > MAX_PIXELS:
        raise DataError("picture too large", expected=f"at most {MAX_PIXELS} pixels", found=f"{width}x{height}")
    if out is not None and out.shape[:2] != (height, width):
        raise DataError("picture of another size", expected=f"{out.shape[1]}x{out.shape[0]}", found=f"{width}x{height}")


def _shown(data: Buffer) -> str:
    return f"{len(data)} bytes starting {bytes(data[:8]).hex(' ') or 'with nothing'}"


def _opened(data: Buffer) -> PilImage.Image:
    if sniff(data) == "webp" and len(data) < (whole := 8 + int.from_bytes(data[4:8], "little")):
        # Pillow decodes it all the same.
        raise DataError("the WebP picture is cut off", expected=f"{whole} bytes", found=f"{len(data)} bytes")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return PilImage.open(io.BytesIO(bytes(data)), formats=("JPEG", "PNG", "WEBP"))
    except PilImage.DecompressionBombError as error:
        raise DataError("picture too large", expected=f"at most {MAX_PIXELS} pixels", found=str(error)) from error
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError("not a JPEG, PNG or WebP picture", found=_shown(data)) from error


def _loaded(picture: PilImage.Image) -> PilImage.Image:
    try:
        picture.load()
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"{picture.format} does not decode: {error}") from error
    return picture


def encode_jpeg(pixels: Pixels, quality: int = 92, subsampling: str = "444") -> bytes:
    """Encodes uint8 [H, W, 3] RGB pixels as baseline JPEG, with the accurate transform."""
    array = np.ascontiguousarray(pixels)
    data: bytes = simplejpeg.encode_jpeg(
        array, quality=quality, colorspace="RGB", colorsubsampling=subsampling, fastdct=False
    )
    return data


def resize(pixels: npt.NDArray[Any], size: int, mode: ResizeMode = "squash") -> npt.NDArray[Any]:
    """Brings pixels to a square of side ``size``; 0 keeps them.

    Args:
        pixels: uint8 [H, W, 3] (Pillow's BILINEAR, which antialiases) or uint16 [H, W] (nearest: depths must not mix).
        size: Side in pixels.
        mode: ``squash`` stretches each axis; ``fit`` keeps the aspect and adds black bars; ``crop`` takes the largest
            centred square.

    Returns:
        The same dtype, [size, size, ...].
    """
    height, width = pixels.shape[:2]
    if size == 0 or (width, height) == (size, size):
        return pixels
    if mode == "crop":
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        pixels = pixels[top : top + side, left : left + side]
        height = width = side
    wanted = (size, size)
    if mode == "fit":
        scale = size / max(width, height)
        wanted = (max(1, round(width * scale)), max(1, round(height * scale)))
    scaled = pixels if wanted == (width, height) else _scaled(pixels, wanted)
    if wanted == (size, size):
        return scaled
    left, top = (size - wanted[0]) // 2, (size - wanted[1]) // 2
    framed = np.zeros((size, size, *pixels.shape[2:]), pixels.dtype)
    framed[top : top + wanted[1], left : left + wanted[0]] = scaled
    return framed


def _scaled(pixels: npt.NDArray[Any], wanted: tuple[int, int]) -> npt.NDArray[Any]:
    if pixels.ndim == 2:
        rows = ((np.arange(wanted[1]) * 2 + 1) * pixels.shape[0]) // (2 * wanted[1])
        columns = ((np.arange(wanted[0]) * 2 + 1) * pixels.shape[1]) // (2 * wanted[0])
        picked: npt.NDArray[Any] = pixels[rows[:, None], columns]
        return picked
    picture = PilImage.fromarray(np.ascontiguousarray(pixels))
    scaled: Pixels = np.asarray(picture.resize(wanted, PilImage.Resampling.BILINEAR), dtype=np.uint8)
    return scaled


def decode_depth(data: Buffer) -> npt.NDArray[np.uint16]:
    """Decodes a 16-bit grey PNG to uint16 [H, W].

    Raises:
        DataError: not one, damaged, or too large.
    """
    with _opened(data) as picture:
        _check_size(*picture.size, None)
        if picture.format != "PNG" or not picture.mode.startswith("I"):
            raise DataError(
                "depth picture of the wrong kind",
                expected="16-bit grey PNG",
                found=f"{picture.format} mode {picture.mode}",
            )
        return np.array(_loaded(picture)).astype(np.uint16)


def encode_depth(pixels: npt.NDArray[np.uint16]) -> bytes:
    """Encodes uint16 [H, W] as 16-bit grey PNG."""
    buffer = io.BytesIO()
    PilImage.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


Prepared: TypeAlias = tuple[bytes, Literal["jpeg", "png"], tuple[int, int], bool]
"""(bytes, encoding, (width, height), whether the source's own bytes were kept)."""


def prepare(image: Image | npt.NDArray[np.uint16], camera: Camera, options: PictureOptions) -> Prepared:
    """Turns what an image stream yields into what a shard stores.

    Args:
        image: Encoded bytes, uint8 [H, W, 3] pixels, or for depth cameras uint16 [H, W] or 16-bit PNG bytes.
        camera: Channel order and flip to undo.
        options: Size, resize mode, quality, subsampling.

    Returns:
        JPEG for colour and 16-bit PNG for depth, upright, RGB, of the wanted size.

    Raises:
        DataError: not a picture, damaged, too large, or of another dtype or shape than the camera's kind says.
    """
    if camera.kind == "depth":
        return _prepare_depth(image, camera, options)
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise DataError(
                "pixels of the wrong kind", expected="uint8 [H, W, 3]", found=f"{image.dtype} {list(image.shape)}"
            )
        _check_size(image.shape[1], image.shape[0], None)
        pixels: npt.NDArray[Any] = image[:, :, ::-1] if camera.order == "bgr" else image
    else:
        kept = _passed_through(image, camera, options)
        if kept is not None:
            return kept
        pixels = decode_rgb(image, order=camera.order)
    pixels = resize(_upright(pixels, camera), options.image_size, options.resize)
    data = encode_jpeg(pixels, options.quality, options.subsampling)
    return data, "jpeg", (pixels.shape[1], pixels.shape[0]), False


def _passed_through(data: bytes, camera: Camera, options: PictureOptions) -> Prepared | None:
    if sniff(data) != "jpeg" or camera.order != "rgb" or camera.flip != "none":
        return None
    header = jpeg_header(data)
    width, height = header.width, header.height
    if not header.baseline or header.components != 3 or header.subsampling == "other":
        return None
    if options.image_size not in (0, width) or options.image_size not in (0, height):
        return None
    _check_size(width, height, None)
    kept = trim_jpeg(data)
    try:  # grey output skips the colour transforms; the entropy-coded data of all components is checked all the same
        simplejpeg.decode_jpeg(kept, colorspace="GRAY", fastdct=False, fastupsample=False)
    except ValueError as error:
        raise DataError(f"JPEG does not decode: {error}", found=_shown(data)) from error
    return kept, "jpeg", (width, height), True


def _upright(pixels: npt.NDArray[Any], camera: Camera) -> npt.NDArray[Any]:
    if camera.flip == "vertical":
        return pixels[::-1]
    if camera.flip == "rot180":
        return pixels[::-1, ::-1]
    return pixels


def _prepare_depth(
    image: bytes | npt.NDArray[np.uint8] | npt.NDArray[np.uint16], camera: Camera, options: PictureOptions
) -> Prepared:
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint16 or image.ndim != 2:
            raise DataError(
                "depth of the wrong kind", expected="uint16 [H, W]", found=f"{image.dtype} {list(image.shape)}"
            )
        _check_size(image.shape[1], image.shape[0], None)
        pixels: npt.NDArray[Any] = image
        encoded = None
    else:
        pixels = decode_depth(image)
        end = image.rfind(b"IEND")
        encoded = image[: end + 8] if end >= 0 else None
    size = (pixels.shape[1], pixels.shape[0])
    right_size = options.image_size in (0, size[0]) and options.image_size in (0, size[1])
    if encoded is not None and camera.flip == "none" and right_size:
        return encoded, "png", size, True
    pixels = resize(_upright(pixels, camera), options.image_size, options.resize)
    return encode_depth(pixels.astype(np.uint16, copy=False)), "png", (pixels.shape[1], pixels.shape[0]), False
