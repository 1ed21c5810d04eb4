"""Parquet shards of an earlier builder."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_fixtures import fixed, jpeg, picture, shown, stored, write_json
from wdsmix.converters.parquet_shards import ParquetShardsSource, _tasks

from wdsmix.cli import main
from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import Manifest

LENGTHS = (6, 9, 5, 7)


def values(episode: int, width: int) -> np.ndarray:
    return np.random.default_rng([episode, width]).standard_normal((LENGTHS[episode], width)).astype(np.float32)


def write(root, *, per_shard: int = 8, hz: object = 10):
    """Two parts; task indices are each part's own; an episode crosses from shard to shard."""
    rows = [(e, f) for e, length in enumerate(LENGTHS) for f in range(length)]
    (root / "shards").mkdir(parents=True)
    for number, first in enumerate(range(0, len(rows), per_shard)):
        some = rows[first : first + per_shard]
        table = pa.table(
            {
                "episode_index": [e for e, _ in some],
                "frame_index": [f for _, f in some],
                "cam0": pa.array([jpeg(picture(e, f, 0)) for e, f in some], pa.binary()),
                "cam1": pa.array([jpeg(picture(e, f, 1)) for e, f in some], pa.binary()),
            }
        )
        pq.write_table(table, root / f"shards/shard-{number:05d}.parquet")
    for part, episodes in enumerate(((0, 1), (2, 3))):
        table = pa.table(
            {
                "episode_index": [e for e in episodes for _ in range(LENGTHS[e])],
                "frame_index": [f for e in episodes for f in range(LENGTHS[e])],
                "state": fixed(np.concatenate([values(e, 4) for e in episodes])),
                "action": pa.array(np.concatenate([values(e, 3) for e in episodes]).tolist()),
                "task_index": [k for k, e in enumerate(episodes) for _ in range(LENGTHS[e])],
            }
        )
        pq.write_table(table, root / f"frames-part{part}.parquet")
        write_json(root / f"tasks-part{part}.json", {f"task {e}": k for k, e in enumerate(episodes)})
        write_json(root / f"stats-part{part}.json", {})
        write_json(root / f"manifest-part{part}.json", {"repo_id": "lab/robot", "hz": hz, "fps": 30, "part": part})
    return root


def test_bytes_pass_through(tmp_path):
    root = write(tmp_path / "built")
    out = tmp_path / "set"
    command = [
        "convert",
        "parquet-shards",
        str(root),
        str(out),
        "--quiet",
        "--workers",
        "2",
        "--frames-per-shard",
        "12",
    ]
    assert main(command) == 0
    manifest = Manifest.model_validate_json((out / "manifest.json").read_bytes())
    assert (manifest.kind, manifest.name, manifest.hz) == ("parquet-shards", "robot", 10)
    assert manifest.counts.frames == sum(LENGTHS)
    assert manifest.cameras["cam0"].passthrough == sum(LENGTHS)
    frames = stored(out)
    for episode, length in enumerate(LENGTHS):
        for frame in range(length):
            one = frames[episode, frame]
            for number, slot in enumerate(("cam0", "cam1")):
                assert one.raw[f"{slot}.jpg"] == jpeg(picture(episode, frame, number))
            assert np.array_equal(one.vectors["state"], values(episode, 4)[frame])
            assert np.array_equal(one.vectors["action"], values(episode, 3)[frame])
            assert one.meta["task"] == f"task {episode}"
            assert one.meta["timestamp"] == pytest.approx(frame / 10)


def test_wanted_rows_over_the_border_of_a_shard(tmp_path):
    source = ParquetShardsSource(write(tmp_path / "built", per_shard=4))
    refs = source.episodes()
    copy = pickle.loads(pickle.dumps(source))
    for rows in ([0, 3, 8], [2], [7, 8]):
        assert shown(copy.read(refs[1]), "cam1", rows) == [(1, k, 1) for k in rows]


def test_counts_that_differ(tmp_path):
    root = write(tmp_path / "built")
    path = root / "frames-part1.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    refs = ParquetShardsSource(root).episodes()
    assert [ref.fault for ref in refs] == [None, None, "its shards hold 5 frames, its frames files 4", None]


def test_frames_that_are_not_those_of_the_pictures(tmp_path):
    root = write(tmp_path / "built")
    path = root / "frames-part1.parquet"
    table = pq.read_table(path)
    numbers = table.column("frame_index").to_pylist()
    numbers[4] = 5
    pq.write_table(table.set_column(1, "frame_index", pa.array(numbers)), path)
    source = ParquetShardsSource(root)
    with pytest.raises(DataError, match=r"shard-0000\d\.parquet: frame_index: frames are not those of the frames file"):
        source.read(source.episodes()[2])


def test_a_broken_shard_is_named(tmp_path):
    root = write(tmp_path / "built")
    path = root / "shards/shard-00001.parquet"
    path.write_bytes(path.read_bytes()[:500])
    refs = ParquetShardsSource(root).episodes()
    assert refs[0].fault_kind == "file"
    assert "no footer" in refs[0].fault
    assert [ref.fault is None for ref in refs[1:]] == [True, False, False, True]


def test_rates(tmp_path):
    root = write(tmp_path / "native", hz=0)
    assert ParquetShardsSource(root).describe().fps == 30
    assert ParquetShardsSource(root, fps=15).describe().fps == 15
    for part in (0, 1):
        (root / f"manifest-part{part}.json").unlink()
    with pytest.raises(ConfigError, match="--fps"):
        ParquetShardsSource(root).describe()


def test_columns_can_be_chosen(tmp_path):
    source = ParquetShardsSource(write(tmp_path / "built"), cameras={"cam0": "cam1"}, state=["action", "state"])
    refs = source.episodes()
    assert refs[0].vectors == {"state": 7, "action": 3}
    episode = source.read(refs[3])
    assert shown(episode, "cam0") == [(3, k, 1) for k in range(7)]
    assert np.array_equal(episode.vectors["state"], np.concatenate([values(3, 3), values(3, 4)], axis=1))
    with pytest.raises(ConfigError, match="--camera cam0"):
        ParquetShardsSource(tmp_path / "built", cameras={"cam0": "cam7"}).episodes()


def test_a_folder_that_is_none(tmp_path):
    with pytest.raises(DataError, match="no parquet shards"):
        ParquetShardsSource(tmp_path).episodes()


@pytest.mark.parametrize(
    "raw",
    [
        ["a", "b"],
        {"0": "a", "1": "b"},
        {"a": 0, "b": 1},
        [{"task_index": 1, "task": "b"}, {"task_index": 0, "task": "a"}],
        {"tasks": ["a", "b"]},
    ],
)
def test_task_texts_in_every_spelling(raw):
    assert _tasks(raw) == {0: "a", 1: "b"}
