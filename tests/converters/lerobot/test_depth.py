"""Depth cameras: left out unless asked for, then millimetres."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from helpers.lerobot_fixtures import Made, opened, picture, write_video
from PIL import Image
from wdsmix.converters.lerobot.cameras import DepthCode
from wdsmix.converters.lerobot.pictures import depth_table

from wdsmix.errors import DataError
from wdsmix.imaging import decode_depth

KEY = "observation.images.depth"
FRONT = "observation.images.front"


def codes(frame: int) -> np.ndarray:
    """uint16 [48, 64] 12-bit codes."""
    ramp = np.linspace(0, 4000, 64).astype(np.uint16)
    return np.broadcast_to(ramp + frame * 9, (48, 64)).astype(np.uint16)


def feature(**details: object) -> dict[str, object]:
    return {"dtype": "video", "shape": [48, 64, 1], "names": ["height", "width", "channel"], "info": details}


def dataset(root, **details: object):
    made = Made(layout=2, lengths=(5, 4), cameras=(FRONT,), features={KEY: feature(**details)})
    made.write(root)
    lossless = {"x265-params": "lossless=1:log-level=none:pools=1"}
    for episode, length in enumerate(made.lengths):
        path = root / f"videos/chunk-000/{KEY}/episode_{episode:06d}.mp4"
        write_video(path, [codes(k) for k in range(length)], codec="libx265", options=lossless, pixel_format="gray12le")
    return root


SETTINGS = {
    "is_depth_map": True,
    "video.depth_min": 0.01,
    "video.depth_max": 10.0,
    "video.shift": 3.5,
    "video.use_log": True,
    "depth_unit": "mm",
}


def test_skipped_with_a_word(tmp_path):
    source, refs = opened(dataset(tmp_path / "robot", **SETTINGS))
    assert refs[0].cameras == ("cam0",)
    assert source.describe().cameras["cam0"].key == FRONT
    assert f"depth is left out: {KEY}; --depth keeps it" in source.describe().warnings


def test_kept_as_millimetres(tmp_path):
    source, refs = opened(dataset(tmp_path / "robot", **SETTINGS), depth=True)
    assert source.describe().cameras["cam1"].kind == "depth"
    images = list(source.read(refs[0]).images["cam1"].read(np.arange(5)))
    low, high = np.log(0.01 + 3.5), np.log(10.0 + 3.5)
    for frame, data in enumerate(images):
        metres = np.exp(codes(frame) / 4095 * (high - low) + low) - 3.5
        millimetres = decode_depth(data)
        assert millimetres.dtype == np.uint16
        assert np.abs(millimetres - metres * 1000).max() <= 0.5


@pytest.mark.parametrize("name", ["is_depth_map", "video.is_depth_map"])
def test_every_flag(tmp_path, name):
    settings = {key: value for key, value in SETTINGS.items() if key != "is_depth_map"}
    _, refs = opened(dataset(tmp_path / "robot", **{**settings, name: True}))
    assert refs[0].cameras == ("cam0",)


def test_linear_codes():
    table = depth_table(DepthCode(near=0.5, far=4.5, log=False))
    assert table[0] == 500
    assert table[4095] == 4500
    assert abs(int(table[2048]) - 2500) <= 1


def test_old_eight_bit_depth_is_for_looking_at(tmp_path):
    made = Made(layout=2, lengths=(5,), cameras=(FRONT,), features={KEY: feature(**{"video.is_depth_map": True})})
    root = made.write(tmp_path / "robot")
    write_video(root / f"videos/chunk-000/{KEY}/episode_000000.mp4", [picture(0, k) for k in range(5)])
    assert opened(root)[1][0].cameras == ("cam0",)
    source, refs = opened(root, depth=True)
    assert source.describe().cameras["cam1"].kind == "rgb"
    assert next(iter(source.read(refs[0]).images["cam1"].read(np.array([0])))).shape == (64, 64, 3)


def test_a_colour_video_that_is_said_to_be_depth(tmp_path):
    root = dataset(tmp_path / "robot", **SETTINGS)
    write_video(root / f"videos/chunk-000/{KEY}/episode_000000.mp4", [picture(0, k) for k in range(5)])
    source, refs = opened(root, depth=True)
    with pytest.raises(DataError, match="no depth codes"):
        list(source.read(refs[0]).images["cam1"].read(np.arange(5)))


@pytest.mark.parametrize("kind", ["png", "tiff-mm", "tiff-m"])
def test_cells(tmp_path, kind):
    millimetres = (np.arange(48 * 64).reshape(48, 64) % 5000).astype(np.uint16)

    def cell(frame: int) -> bytes:
        buffer = io.BytesIO()
        if kind == "png":
            Image.fromarray(millimetres + frame).save(buffer, "PNG")
        else:
            values = (millimetres + frame).astype(np.float32) / (1000 if kind == "tiff-m" else 1)
            Image.fromarray(values).save(buffer, "TIFF")
        return buffer.getvalue()

    column = {"dtype": "image", "shape": [48, 64, 1], "info": {"is_depth_map": True, "depth_unit": kind[5:] or "mm"}}
    made = Made(
        layout=2,
        lengths=(3,),
        cameras=(FRONT,),
        images=True,
        features={KEY: column},
        columns=lambda episode, length: {KEY: pa.array([{"bytes": cell(k), "path": None} for k in range(length)])},
    )
    source, refs = opened(made.write(tmp_path / "robot"), depth=True)
    images = list(source.read(refs[0]).images["cam1"].read(np.arange(3)))
    for frame, data in enumerate(images):
        assert np.abs(decode_depth(data).astype(int) - (millimetres + frame)).max() <= (kind == "tiff-m")
