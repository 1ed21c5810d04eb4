"""LeRobot datasets written by hand with pyarrow and PyAV; each picture says which frame it is."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.tars import samples_of
from PIL import Image

av = pytest.importorskip("av", reason="needs the extra lerobot")
os.environ.setdefault("SVT_LOG", "0")

SIDE = 64
_BITS = 16


def picture(episode: int, frame: int, camera: int = 0, size: tuple[int, int] = (SIDE, SIDE)) -> np.ndarray:
    """uint8 [H, W, 3]: a 4x4 board of dark and light fields that spell the number, with some colour."""
    number = (camera << 15) | (episode << 9) | frame
    bits = np.array([(number >> k) & 1 for k in range(_BITS)], np.uint8).reshape(4, 4)
    width, height = size
    rows, columns = np.arange(height) * 4 // height, np.arange(width) * 4 // width
    board = np.where(bits[rows[:, None], columns[None, :]], 200, 50).astype(np.int16)
    tint = np.stack([board + 10, board, board - 10], -1)
    return np.clip(tint, 0, 255).astype(np.uint8)


def identity(pixels: np.ndarray) -> tuple[int, int, int]:
    """(episode, frame, camera) that a picture spells, whatever its size."""
    height, width = pixels.shape[:2]
    rows = (np.arange(4) * 2 + 1) * height // 8
    columns = (np.arange(4) * 2 + 1) * width // 8
    bits = pixels[rows][:, columns].mean(axis=2).reshape(-1) > 125
    number = sum(int(bit) << k for k, bit in enumerate(bits))
    return (number >> 9) & 63, number & 511, number >> 15


def write_video(
    path: Path,
    frames: Sequence[np.ndarray],
    *,
    fps: float | Fraction = 20,
    codec: str = "libx264",
    options: Mapping[str, str] | None = None,
    pixel_format: str = "yuv420p",
    first: int = 0,
    stamps: Sequence[int] | None = None,
    audio: bool = False,
    faststart: bool = False,
) -> None:
    """Encodes frames: uint8 [H, W, 3], or uint16 [H, W] for grey formats. ``first``: number of the first time stamp."""
    usual = {
        "libx264": {"g": "10", "bf": "2", "crf": "12"},
        "libsvtav1": {"g": "2", "crf": "20", "preset": "8", "svtav1-params": "lp=1"},
        "libx265": {"x265-params": "log-level=none:keyint=8:pools=1"},
        "mpeg4": {"g": "12", "qscale": "2"},
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    rate = Fraction(fps).limit_denominator(100_000)
    with av.open(str(path), "w", options={"movflags": "faststart"} if faststart else {}) as container:
        stream = container.add_stream(codec, rate=rate, options=dict(options or usual.get(codec, {})))
        stream.height, stream.width = frames[0].shape[:2]
        stream.pix_fmt = pixel_format
        if codec == "mpeg4":
            stream.codec_context.qmin = stream.codec_context.qmax = 2
        sound = container.add_stream("aac", rate=8000) if audio else None
        for number, pixels in enumerate(frames):
            if pixels.dtype == np.uint16:
                frame = av.VideoFrame(pixels.shape[1], pixels.shape[0], pixel_format)
                plane = frame.planes[0]
                padded = np.zeros((pixels.shape[0], plane.line_size // 2), "<u2")
                padded[:, : pixels.shape[1]] = pixels
                plane.update(padded.tobytes())
            else:
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = (number if stamps is None else stamps[number]) + first
            frame.time_base = 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
        if sound is not None:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
            silence.sample_rate, silence.pts = 8000, 0
            container.mux(sound.encode(silence))
            container.mux(sound.encode())


def full_decode(path: Path) -> list[np.ndarray]:
    """All frames as rgb24, the plain way."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def jpeg(pixels: np.ndarray, quality: int = 90) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=quality, subsampling=0)
    return buffer.getvalue()


@dataclass(frozen=True)
class Made:
    """A dataset to be written; change what a test is about with `dataclasses.replace` or the hooks."""

    lengths: tuple[int, ...] = (9, 12, 7)
    fps: float = 20.0
    cameras: tuple[str, ...] = ("observation.images.front", "observation.images.wrist")
    codec: str = "libx264"
    layout: int = 3
    version: str | None = None
    per_video: int = 100
    """Episodes a video (v3)."""
    per_data: int = 100
    """Episodes a data file (v3)."""
    images: bool = False
    """Pictures in the parquet instead of videos."""
    state: int = 4
    action: int = 3
    info: Mapping[str, object] = field(default_factory=dict)
    """Replaces keys of info.json; None removes one."""
    features: Mapping[str, object] = field(default_factory=dict)
    columns: Callable[[int, int], dict[str, object]] | None = None
    """(episode, length) -> more columns, or others."""
    film: Callable[[int, int], Sequence[tuple[int, int]]] | None = None
    """(episode, length) -> the (episode, frame) that its video shows, where they are not its rows."""
    data_template: str | None = None
    video_template: str | None = None
    tasks: tuple[str, ...] = ("pick it up", "put it down")

    def state_of(self, episode: int) -> np.ndarray:
        """float32 [T, state]."""
        return _values(1, episode, self.lengths[episode], self.state)

    def action_of(self, episode: int) -> np.ndarray:
        """float32 [T, action]."""
        return _values(2, episode, self.lengths[episode], self.action)

    def write(self, root: Path) -> Path:
        """Writes it; returns ``root``."""
        info = self._info()
        write_json(root / "meta/info.json", info)
        spans = {} if self.images else self._videos(root, info)
        where = self._data(root, info)
        (self._meta2 if self.layout == 2 else self._meta3)(root, where, spans)
        return root

    def _info(self) -> dict[str, object]:
        numbered = {"dtype": "int64", "shape": [1], "names": None}
        camera = {"shape": [SIDE, SIDE, 3], "names": ["height", "width", "channels"]}
        features: dict[str, object] = {
            "observation.state": {
                "dtype": "float32",
                "shape": [self.state],
                "names": [f"s{k}" for k in range(self.state)],
            },
            "action": {
                "dtype": "float32",
                "shape": [self.action],
                "names": {"motors": [f"a{k}" for k in range(self.action)]},
            },
            **{key: {"dtype": "image" if self.images else "video", **camera} for key in self.cameras},
            "timestamp": {"dtype": "float32", "shape": [1], "names": None},
            **dict.fromkeys(("frame_index", "episode_index", "index", "task_index"), numbered),
            **self.features,
        }
        usual = {
            2: (
                "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet",
                "videos/chunk-{episode_chunk:03d}/{video_key}/episode_{episode_index:06d}.mp4",
            ),
            3: (
                "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
                "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
            ),
        }
        info: dict[str, object] = {
            "codebase_version": self.version or {2: "v2.1", 3: "v3.0"}[self.layout],
            "robot_type": "so101",
            "total_episodes": len(self.lengths),
            "total_frames": sum(self.lengths),
            "total_tasks": len(self.tasks),
            "chunks_size": 1000,
            "fps": self.fps,
            "splits": {"train": f"0:{len(self.lengths)}"},
            "data_path": self.data_template or usual[self.layout][0],
            "video_path": self.video_template or usual[self.layout][1],
            "features": {key: value for key, value in features.items() if value is not None},
        }
        return {key: value for key, value in {**info, **self.info}.items() if value is not None}

    def _shown(self, episode: int) -> Sequence[tuple[int, int]]:
        length = self.lengths[episode]
        return self.film(episode, length) if self.film else [(episode, frame) for frame in range(length)]

    def _videos(self, root: Path, info: Mapping[str, object]) -> dict[tuple[str, int], tuple[int, float, float]]:
        """Writes the videos; (camera, episode) -> (file, from, to)."""
        spans = {}
        per = 1 if self.layout == 2 else self.per_video
        for number, key in enumerate(self.cameras):
            for file, first in enumerate(range(0, len(self.lengths), per)):
                frames: list[np.ndarray] = []
                for episode in range(first, min(first + per, len(self.lengths))):
                    shown = self._shown(episode)
                    start = len(frames) / self.fps
                    frames += [picture(e, f, number) for e, f in shown]
                    spans[key, episode] = (file, start, start + len(shown) / self.fps)
                template = str(info.get("video_path") or "videos/{video_key}/file-{file_index:03d}.mp4")
                name = template.format(
                    video_key=key,
                    episode_chunk=0,
                    chunk_index=0,
                    episode_index=first if self.layout == 2 else file,
                    file_index=file,
                )
                write_video(root / name, frames, fps=self.fps, codec=self.codec)
        return spans

    def table(self, episode: int) -> pa.Table:
        """The rows of an episode."""
        length = self.lengths[episode]
        before = sum(self.lengths[:episode])
        columns: dict[str, object] = {
            "observation.state": fixed(self.state_of(episode)),
            "action": fixed(self.action_of(episode)),
            "timestamp": pa.array(np.arange(length) / self.fps, pa.float32()),
            "frame_index": pa.array(range(length), pa.int64()),
            "episode_index": pa.array([episode] * length, pa.int64()),
            "index": pa.array(range(before, before + length), pa.int64()),
            "task_index": pa.array([episode % len(self.tasks)] * length, pa.int64()),
        }
        if self.images:
            for number, key in enumerate(self.cameras):
                cells = [
                    {"bytes": png(picture(episode, frame, number)), "path": f"frame-{frame:06d}.png"}
                    for frame in range(length)
                ]
                columns[key] = pa.array(cells, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
        if self.columns is not None:
            columns.update(self.columns(episode, length))
        return pa.table({key: value for key, value in columns.items() if value is not None})

    def _data(self, root: Path, info: Mapping[str, object]) -> dict[int, int]:
        """Writes the data files; episode -> file."""
        where = {}
        per = 1 if self.layout == 2 else self.per_data
        for file, first in enumerate(range(0, len(self.lengths), per)):
            episodes = range(first, min(first + per, len(self.lengths)))
            where.update(dict.fromkeys(episodes, file))
            name = str(info["data_path"]).format(episode_chunk=0, chunk_index=0, episode_index=first, file_index=file)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.concat_tables([self.table(episode) for episode in episodes]), root / name)
        return where

    def _meta2(self, root: Path, where: object, spans: object) -> None:
        episodes = [
            {"episode_index": k, "tasks": [self.tasks[k % len(self.tasks)]], "length": n}
            for k, n in enumerate(self.lengths)
        ]
        write_lines(root / "meta/episodes.jsonl", episodes)
        write_lines(root / "meta/tasks.jsonl", [{"task_index": k, "task": text} for k, text in enumerate(self.tasks)])

    def _meta3(
        self, root: Path, where: Mapping[int, int], spans: Mapping[tuple[str, int], tuple[int, float, float]]
    ) -> None:
        rows = []
        for episode, length in enumerate(self.lengths):
            row: dict[str, object] = {
                "episode_index": episode,
                "tasks": [self.tasks[episode % len(self.tasks)]],
                "length": length,
                "data/chunk_index": 0,
                "data/file_index": where[episode],
                "dataset_from_index": sum(self.lengths[:episode]),
                "dataset_to_index": sum(self.lengths[: episode + 1]),
            }
            for key in self.cameras if spans else ():
                file, start, stop = spans[key, episode]
                row |= {
                    f"videos/{key}/chunk_index": 0,
                    f"videos/{key}/file_index": file,
                    f"videos/{key}/from_timestamp": start,
                    f"videos/{key}/to_timestamp": stop,
                }
            row["stats/action/mean"] = [0.0] * self.action
            rows.append(row)
        write_rows(root / "meta/episodes/chunk-000/file-000.parquet", rows)
        table = pa.table({"task_index": pa.array(range(len(self.tasks)), pa.int64()), "task": pa.array(self.tasks)})
        pq.write_table(table, root / "meta/tasks.parquet")


def _values(salt: int, episode: int, length: int, width: int) -> np.ndarray:
    return np.random.default_rng([salt, episode]).standard_normal((length, width)).astype(np.float32)


def fixed(values: np.ndarray) -> pa.Array:
    """float32 [T, D] as fixed-size lists."""
    flat = pa.array(np.ascontiguousarray(values).reshape(-1), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def write_json(path: Path, value: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def write_lines(path: Path, rows: Sequence[object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)


def change_info(root: Path, change: Callable[[dict], None]) -> None:
    """Edits info.json of a written dataset."""
    path = root / "meta/info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def change_episodes(root: Path, change: Callable[[list[dict]], list[dict] | None]) -> None:
    """Edits the rows of the only file in meta/episodes."""
    path = next((root / "meta/episodes").rglob("*.parquet"))
    rows = pq.read_table(path).to_pylist()
    write_rows(path, change(rows) or rows)


@dataclass(frozen=True)
class Stored:
    """A frame as a stranger reads it from the tars."""

    pictures: dict[str, np.ndarray]
    vectors: dict[str, np.ndarray]
    meta: dict
    raw: dict[str, bytes]


def stored(folder: Path) -> dict[tuple[int, int], Stored]:
    """(episode, frame) -> what the shards hold, by tarfile, numpy and Pillow alone."""
    found = {}
    for key, parts in samples_of(folder).items():
        episode, frame = (int(number) for number in key.split("_"))
        found[episode, frame] = Stored(
            pictures={
                name.rsplit(".", 1)[0]: np.asarray(Image.open(io.BytesIO(data)))
                for name, data in parts.items()
                if name.endswith((".jpg", ".png"))
            },
            vectors={
                name.rsplit(".", 1)[0]: np.load(io.BytesIO(data))
                for name, data in parts.items()
                if name.endswith(".npy")
            },
            meta=json.loads(parts["json"]),
            raw=parts,
        )
    return found


def opened(root: Path, **options: object):
    """A source on a dataset, and its refs."""
    from wdsmix.converters.lerobot.dataset import LeRobotSource
    from wdsmix.converters.lerobot.options import LeRobotOptions
    from wdsmix.converters.lerobot.tree import LocalTree

    source = LeRobotSource(LocalTree(root), LeRobotOptions(**options))
    return source, source.episodes()


def shown(episode: object, slot: str = "cam0", rows: Sequence[int] | None = None) -> list[tuple[int, int, int]]:
    """Which frames the pictures of an opened episode are."""
    from wdsmix.imaging import decode_rgb

    wanted = np.arange(len(episode)) if rows is None else np.asarray(rows)
    wanted = wanted if episode.rows is None else episode.rows[wanted]
    images = list(episode.images[slot].read(wanted))
    return [identity(image if isinstance(image, np.ndarray) else decode_rgb(image)) for image in images]


def check_all(made: Made, root: Path, **options: object):
    """Reads every episode and checks each row and each picture; returns the source."""
    source, refs = opened(root, **options)
    assert [ref.fault for ref in refs] == [None] * len(made.lengths)
    assert [ref.frames for ref in refs] == list(made.lengths)
    for number, ref in enumerate(refs):
        with source.read(ref) as episode:
            assert np.array_equal(episode.vectors["state"], made.state_of(number))
            assert np.array_equal(episode.vectors["action"], made.action_of(number))
            assert episode.tasks == [made.tasks[number % len(made.tasks)]]
            for camera, slot in enumerate(episode.images):
                assert shown(episode, slot) == [(number, frame, camera) for frame in range(made.lengths[number])]
    return source


__all__ = [
    "SIDE",
    "Made",
    "Stored",
    "av",
    "check_all",
    "change_episodes",
    "change_info",
    "fixed",
    "full_decode",
    "identity",
    "jpeg",
    "opened",
    "picture",
    "png",
    "replace",
    "shown",
    "stored",
    "write_json",
    "write_lines",
    "write_rows",
    "write_video",
]
