"""Photographs that packages ship, and video-like sequences made of them.

A sequence is a camera that pans, zooms and turns over a photograph while a cut-out of another one moves in front of
it, the light drifts and the sensor adds a little noise: 640x480, then area-averaged to the stored size. Natural
images matter: on noise or flat colours a JPEG decoder runs at another speed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFilter

__all__ = ["WIDTH", "HEIGHT", "photographs", "sequence"]

Pixels = npt.NDArray[np.uint8]

WIDTH, HEIGHT = 640, 480
_NOISE = 2.5
_FILES = (
    ("skimage", "data", ("astronaut.png", "chelsea.png", "coffee.png", "motorcycle_left.png", "rocket.jpg")),
    ("sklearn", "datasets/images", ("china.jpg", "flower.jpg")),
    ("matplotlib", "mpl-data/sample_data", ("grace_hopper.jpg",)),
)


def _folder(package: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


@cache
def photographs() -> tuple[Image.Image, ...]:
    """Every photograph found, RGB, with mirrored borders to turn and pan into.

    Raises:
        FileNotFoundError: fewer than five; the packages of the extra ``bench`` are missing.
    """
    found = []
    for package, inside, names in _FILES:
        folder = _folder(package)
        paths = [] if folder is None else [folder / inside / name for name in names]
        found += [_framed(path) for path in paths if path.is_file()]
    if len(found) < 5:
        raise FileNotFoundError(f"only {len(found)} photographs: install the extra 'bench'")
    return tuple(found)


def _framed(path: Path) -> Image.Image:
    with Image.open(path) as picture:
        plain = picture.convert("RGB")
    scale = 480 / min(plain.size)
    plain = plain.resize((round(plain.width * scale), round(plain.height * scale)), Image.Resampling.LANCZOS)
    margin = 200
    pixels = np.pad(np.asarray(plain), ((margin, margin), (margin, margin), (0, 0)), mode="symmetric")
    return Image.fromarray(pixels)


@cache
def _noise() -> npt.NDArray[np.int16]:
    rng = np.random.default_rng(7)
    return np.round(rng.normal(0, _NOISE, (HEIGHT + 64, WIDTH + 64, 3))).astype(np.int16)


def _path(rng: np.random.Generator, frames: int, reach: float) -> npt.NDArray[np.float64]:
    """A smooth path that starts anywhere in +-reach: two slow sines. float64 [frames]."""
    time = np.arange(frames) / 30
    slow, fast = rng.uniform(0.05, 0.15), rng.uniform(0.2, 0.45)
    phase = rng.uniform(0, 2 * np.pi, 2)
    return reach * (
        0.75 * np.sin(2 * np.pi * slow * time + phase[0]) + 0.25 * np.sin(2 * np.pi * fast * time + phase[1])
    )


def sequence(seed: tuple[int, ...], frames: int, size: int, *, reach: float = 1.0) -> Iterator[Pixels]:
    """Yields the frames of a sequence.

    Args:
        seed: Same seed, same frames.
        frames: How many.
        size: Side of the stored square.
        reach: How far the camera moves; more for one on a wrist.

    Yields:
        uint8 [size, size, 3], RGB.
    """
    rng = np.random.default_rng(seed)
    photos = photographs()
    scene = photos[sum(seed) % len(photos)]
    other = photos[(sum(seed) + int(rng.integers(1, len(photos)))) % len(photos)]
    zoom = 1.25 + 0.25 * _path(rng, frames, reach)
    angle = np.deg2rad(8) * _path(rng, frames, reach)
    centre_x = scene.width / 2 + (scene.width / 2 - 420) * _path(rng, frames, 1.0)
    centre_y = scene.height / 2 + 70 * _path(rng, frames, reach)
    light = 1 + 0.08 * _path(rng, frames, 1.0)
    object_x = WIDTH / 2 + 200 * _path(rng, frames, 1.0)
    object_y = HEIGHT / 2 + 140 * _path(rng, frames, 1.0)
    cut, mask = _cutout(other, rng)
    for t in range(frames):
        cosine, sine = np.cos(angle[t]) / zoom[t], np.sin(angle[t]) / zoom[t]
        x, y = WIDTH / 2, HEIGHT / 2
        matrix = (
            cosine, -sine, centre_x[t] - cosine * x + sine * y,
            sine, cosine, centre_y[t] - sine * x - cosine * y,
        )  # fmt: skip
        picture = scene.transform((WIDTH, HEIGHT), Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
        picture.paste(cut, (int(object_x[t]) - cut.width // 2, int(object_y[t]) - cut.height // 2), mask)
        top, left = rng.integers(0, 64, 2)
        noise = _noise()[top : top + HEIGHT, left : left + WIDTH]
        pixels = _lit(np.asarray(picture), light[t]) + noise
        sensor = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        yield np.asarray(sensor.resize((size, size), Image.Resampling.BOX))


def _lit(pixels: Pixels, light: float) -> npt.NDArray[np.int16]:
    table = np.round(np.arange(256) * light).astype(np.int16)
    return table[pixels]


def _cutout(photo: Image.Image, rng: np.random.Generator) -> tuple[Image.Image, Image.Image]:
    width, height = (int(side) for side in rng.integers(110, 190, 2))
    left = int(rng.integers(200, photo.width - 200 - width))
    top = int(rng.integers(200, photo.height - 200 - height))
    mask = Image.new("L", (width, height))
    ImageDraw.Draw(mask).ellipse((4, 4, width - 5, height - 5), fill=255)
    return photo.crop((left, top, left + width, top + height)), mask.filter(ImageFilter.GaussianBlur(2))
