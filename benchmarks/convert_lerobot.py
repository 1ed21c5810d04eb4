"""Conversion of a LeRobot video set against the sum of its parts: decode, resize, encode, each alone in the same run.

    python -m benchmarks.convert_lerobot [--codec h264|av1] [--frames 600] [--size 256] [--rounds 5]

One process, one thread. All figures are CPU time a frame; the ratio (parts / whole) holds on a busy machine too,
because parts and whole take turns. What the parts leave out is the tar, its checksums, vectors and the runner.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import simplejpeg
from av.video.reformatter import Interpolation, VideoReformatter
from PIL import Image
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.lerobot.dataset import LeRobotSource
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.lerobot.tree import LocalTree
from wdsmix.converters.plan import Planning
from wdsmix.converters.store_episode import Layout
from wdsmix.converters.worker import Setup, ShardJob, convert_shard

from benchmarks.photos import photographs

WIDTH, HEIGHT, FPS = 640, 480, 30
KEY = "observation.images.front"
CODECS = {
    "h264": ("libx264", {"g": "250", "preset": "veryfast", "crf": "23"}),
    "h264-g2": ("libx264", {"g": "2", "preset": "veryfast", "crf": "23"}),
    "av1": ("libsvtav1", {"g": "2", "crf": "30", "preset": "12", "svtav1-params": "lp=1"}),
}
SCALING = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
HELD = 64


def picture(number: int) -> np.ndarray:
    """uint8 [480, 640, 3]: a camera that pans over a photograph, with a little noise."""
    rng = np.random.default_rng(number)
    try:
        photo = photographs()[0]
    except FileNotFoundError:
        coarse = np.random.default_rng(0).integers(0, 255, (60, 80, 3), dtype=np.uint8)
        photo = Image.fromarray(coarse).resize((1280, 960), Image.Resampling.BICUBIC)
    left, top = int(60 + 50 * np.sin(number / 40)), int(60 + 50 * np.cos(number / 55))
    pixels = np.asarray(photo.crop((left, top, left + WIDTH, top + HEIGHT)), dtype=np.int16)
    return np.clip(pixels + rng.normal(0, 2, pixels.shape), 0, 255).astype(np.uint8)


def write_dataset(root: Path, codec: str, frames: int, episodes: int) -> Path:
    """A v3.0 set: one video, one data file; returns the video."""
    name, options = CODECS[codec]
    video = root / f"videos/{KEY}/chunk-000/file-000.mp4"
    video.parent.mkdir(parents=True)
    with av.open(str(video), "w") as container:
        stream = container.add_stream(name, rate=Fraction(FPS), options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for number in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
        container.mux(stream.encode())
    length = frames // episodes
    rows = []
    for episode in range(episodes):
        start = episode * length / FPS
        rows.append(
            {
                "episode_index": episode,
                "tasks": ["pick"],
                "length": length,
                f"videos/{KEY}/chunk_index": 0,
                f"videos/{KEY}/file_index": 0,
                f"videos/{KEY}/from_timestamp": start,
                f"videos/{KEY}/to_timestamp": start + length / FPS,
            }
        )
    numbers = np.arange(length * episodes)
    flat = pa.array(np.random.default_rng(1).random(len(numbers) * 14, dtype=np.float32))
    table = pa.table(
        {
            "observation.state": pa.FixedSizeListArray.from_arrays(flat, 14),
            "action": pa.FixedSizeListArray.from_arrays(flat, 14),
            "timestamp": pa.array((numbers % length) / FPS, pa.float32()),
            "frame_index": numbers % length,
            "episode_index": numbers // length,
            "task_index": np.zeros(len(numbers), np.int64),
        }
    )
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    pq.write_table(table, root / "data/chunk-000/file-000.parquet")
    pq.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0], "task": ["pick"]}), root / "meta/tasks.parquet")
    number = {"dtype": "float32", "shape": [14], "names": None}
    camera = {"dtype": "video", "shape": [HEIGHT, WIDTH, 3], "names": None}
    info = {
        "codebase_version": "v3.0",
        "fps": FPS,
        "features": {"observation.state": number, "action": number, KEY: camera},
    }
    (root / "meta/info.json").write_text(json.dumps(info))
    return video


def decode(video: Path) -> int:
    """Every frame, no colour conversion."""
    with av.open(str(video)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return sum(1 for _ in container.decode(video=0))


def held(video: Path, count: int) -> list[av.VideoFrame]:
    """The first decoded frames."""
    frames = []
    with av.open(str(video)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        for frame in container.decode(video=0):
            frames.append(frame)
            if len(frames) == count:
                break
    return frames


class _Silent:
    behind = drops = 0

    def send(self, *args: object, **more: object) -> None:
        """Nothing is told."""

    def at(self, *args: object, **more: object) -> None:
        """Nothing is told."""


def prepared(root: Path, options: ConvertOptions, out: Path) -> Callable[[], int]:
    """The conversion as a worker runs it, planned already; gives the frames written."""
    source = LeRobotSource(LocalTree(root), LeRobotOptions())
    planning = Planning.of(source, options)
    (out / ".work").mkdir(parents=True)
    setup = Setup(source=source, folder=str(out), layout=Layout.of(planning.plan), options=options)

    def run() -> int:
        written = 0
        for shard in planning.plan.shards:
            refs = tuple(planning.refs[episode.number] for episode in shard.episodes)
            receipt = convert_shard(setup, ShardJob(shard=shard, refs=refs), _Silent())
            written += sum(row.frames for row in receipt.episodes)
        return written

    return run


def cpu(work: Callable[[], object]) -> float:
    """CPU seconds of this process, all its threads."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(codec: str, frames: int, size: int, rounds: int, folder: Path) -> dict[str, float | str | int]:
    """CPU microseconds a frame of the parts and of the whole, medians of the rounds."""
    video = write_dataset(folder / "robot", codec, frames, episodes=6)
    reformatter = VideoReformatter()
    some = held(video, min(HELD, frames))

    def scale(frame: av.VideoFrame) -> av.VideoFrame:
        return reformatter.reformat(frame, width=size, height=size, format="rgb24", interpolation=SCALING, threads=1)

    small = [scale(frame).to_ndarray() for frame in some]
    found: dict[str, list[float]] = {"decode": [], "resize": [], "encode": [], "whole": [], "ratio": []}
    for number in range(rounds):
        run = prepared(folder / "robot", ConvertOptions(image_size=size), folder / f"set{number}")
        times = {
            "decode": cpu(lambda: decode(video)) / frames,
            "resize": cpu(lambda: [scale(frame) for frame in some]) / len(some),
            "encode": cpu(
                lambda: [simplejpeg.encode_jpeg(p, quality=92, colorsubsampling="444", fastdct=False) for p in small]
            )
            / len(some),
            "whole": cpu(run) / (frames // 6 * 6),
        }
        for name, seconds in times.items():
            found[name].append(seconds * 1e6)
        found["ratio"].append((times["decode"] + times["resize"] + times["encode"]) / times["whole"])
    medians = {name: round(statistics.median(values), 3 if name == "ratio" else 0) for name, values in found.items()}
    return {"codec": codec, "frames": frames, "size": size, "rounds": rounds, **medians}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and writes one line of JSON a codec."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--codec", choices=[*CODECS, "all"], default="all")
    parser.add_argument("--frames", type=int, default=600)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(arguments)
    for codec in CODECS if args.codec == "all" else [args.codec]:
        with tempfile.TemporaryDirectory() as folder:
            result = measure(codec, args.frames, args.size, args.rounds, Path(folder))
        rate = 1e6 / float(result["whole"])
        sys.stdout.write(json.dumps({**result, "frames_per_cpu_second": round(rate)}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
