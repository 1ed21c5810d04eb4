"""Failure reports of other loaders (issue numbers of their trackers) that no other test of this folder is about."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.lerobot_fixtures import Made, change_episodes, check_all, opened, shown, stored, write_lines
from wdsmix.converters.base import ConvertOptions
from wdsmix.converters.lerobot.dataset import LeRobotSource
from wdsmix.converters.lerobot.options import LeRobotOptions
from wdsmix.converters.lerobot.tree import LocalTree
from wdsmix.converters.run import convert

from wdsmix.cli import main
from wdsmix.errors import DataError


def test_episodes_in_order_of_their_number(tmp_path):
    """unitree_lerobot#41: 300, 0, 1 ... by file listing."""
    made = Made(layout=2, lengths=tuple(3 + k % 3 for k in range(12)), cameras=("observation.images.front",))
    root = made.write(tmp_path / "robot")
    lines = (root / "meta/episodes.jsonl").read_text().splitlines()
    (root / "meta/episodes.jsonl").write_text("\n".join([lines[7], lines[11], *lines[:7], *lines[8:11]]))
    source = check_all(made, root)
    assert [ref.id for ref in source.episodes()] == [f"episode_{k:06d}" for k in range(12)]


def test_a_merge_that_points_to_the_wrong_video(tmp_path):
    """lerobot#2627, #2328: the episode is dropped by name, the others stay."""
    made = Made(lengths=(20, 20, 8), per_video=2, cameras=("observation.images.front",))
    root = made.write(tmp_path / "robot")

    def wrong(rows):
        rows[1]["videos/observation.images.front/file_index"] = 1
        rows[1]["videos/observation.images.front/from_timestamp"] = 1.0
        rows[1]["videos/observation.images.front/to_timestamp"] = 2.0

    change_episodes(root, wrong)
    source, refs = opened(root)
    assert shown(source.read(refs[0])) == [(0, k, 0) for k in range(20)]
    with pytest.raises(DataError, match=r"front/chunk-000/file-001\.mp4|observation\.images\.front") as said:
        source.read(refs[1])
    assert "ends before the episode" in str(said.value)
    assert shown(source.read(refs[2])) == [(2, k, 0) for k in range(8)]


def test_an_episode_without_rows(tmp_path):
    """refiner#193: 0 frames, silently."""
    made = Made(layout=2)
    root = made.write(tmp_path / "robot")
    path = root / "data/chunk-000/episode_000001.parquet"
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    _, refs = opened(root)
    assert refs[0].fault is None
    assert refs[1].fault is not None or refs[1].frames == 0


def test_every_video_file_of_a_set(tmp_path):
    """lerobot#3080, #4524, PR#4027: with more than one file, frames of the wrong one."""
    made = Made(lengths=(5, 7, 6, 4, 8, 5, 9), per_video=1, per_data=3)
    check_all(made, made.write(tmp_path / "robot"))


def test_reading_in_any_order(tmp_path):
    made = Made(lengths=(8, 9, 10, 7, 8), per_video=3, per_data=2)
    source, refs = opened(made.write(tmp_path / "robot"))
    for number in (3, 0, 4, 1, 1, 2, 0):
        episode = source.read(refs[number])
        assert shown(episode, "cam1") == [(number, k, 1) for k in range(made.lengths[number])]
        assert np.array_equal(episode.vectors["state"], made.state_of(number))


def test_two_episodes_at_once(tmp_path):
    made = Made(lengths=(8, 9))
    source, refs = opened(made.write(tmp_path / "robot"))
    streams = [source.read(ref).images["cam0"].read(np.arange(8)) for ref in refs]
    from helpers.lerobot_fixtures import identity

    for k in range(8):
        assert [identity(next(stream)) for stream in streams] == [(0, k, 0), (1, k, 0)]


def test_the_same_camera_for_two_slots(tmp_path):
    made = Made(lengths=(6,))
    source, refs = opened(made.write(tmp_path / "robot"), cameras={"cam0": "front", "cam1": "front"})
    episode = source.read(refs[0])
    from helpers.lerobot_fixtures import identity

    pairs = zip(*(stream.read(np.arange(6)) for stream in episode.images.values()), strict=True)
    assert [tuple(identity(p)[1] for p in pair) for pair in pairs] == [(k, k) for k in range(6)]


def test_files_are_opened_in_workers_only(tmp_path):
    """lerobot#2488: a decoder of the parent in forked workers."""
    import pickle

    made = Made()
    source, refs = opened(made.write(tmp_path / "robot"))
    source.read(refs[0])
    copy = pickle.loads(pickle.dumps(source))
    assert not copy._reader.videos._pool._open
    assert shown(copy.read(refs[2])) == [(2, k, 0) for k in range(7)]
    assert len(pickle.dumps(source)) < 20_000


def test_errors_are_counted_never_the_end(tmp_path):
    """lerobot PR#4237."""
    made = Made(layout=2, lengths=(30, 30, 30), cameras=("observation.images.front",))
    root = made.write(tmp_path / "robot")
    path = root / "videos/chunk-000/observation.images.front/episode_000001.mp4"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    out = tmp_path / "set"
    manifest = convert(LeRobotSource(LocalTree(root), LeRobotOptions()), out, ConvertOptions())
    assert manifest.counts.episodes == 2
    (drop,) = manifest.dropped
    assert drop.episode == 1
    assert "does not open" in drop.reason
    assert str(tmp_path) not in drop.reason
    assert {episode for episode, _ in stored(out)} == {0, 2}


def test_names_may_be_absent(tmp_path):
    """lerobot#3786."""
    nameless = {"dtype": "float32", "shape": [4], "names": None}
    made = Made(features={"observation.state": nameless, "action": None})
    check_all(made, made.write(tmp_path / "robot"))


def test_published_splits_become_splits(tmp_path):
    made = Made(layout=2, info={"splits": {"train": "0:2", "val": "2:3"}})
    root = made.write(tmp_path / "robot")
    command = [
        "convert",
        "lerobot",
        str(root),
        str(tmp_path / "set"),
        "--split-by",
        "source",
        "--quiet",
        "--workers",
        "1",
    ]
    assert main(command) == 0
    assert {path.name for path in (tmp_path / "set").glob("*.tar")} == {"train-00000.tar", "val-00000.tar"}


def test_all_options_of_the_earlier_builder(tmp_path):
    made = Made(lengths=(20, 21, 22))
    root = made.write(tmp_path / "robot")
    command = ["convert", "lerobot", str(root), str(tmp_path / "set"), "--quiet", "--workers", "1"]
    command += ["--hz", "10", "--image-size", "32", "--quality", "80", "--subsampling", "420", "--max-episodes", "2"]
    command += ["--camera", "cam0=observation.images.wrist", "--camera", "cam1=front", "--on-bad", "fail"]
    assert main([*command, "--frames-per-shard", "11"]) == 0
    frames = stored(tmp_path / "set")
    assert len(frames) == 10 + 11
    from helpers.lerobot_fixtures import identity

    assert identity(frames[1, 4].pictures["cam0"]) == (1, 8, 1)
    assert identity(frames[1, 4].pictures["cam1"]) == (1, 8, 0)
    assert frames[1, 4].pictures["cam0"].shape == (32, 32, 3)
    assert len(list((tmp_path / "set").glob("*.tar"))) == 2


def test_check_reads_a_dataset_too(tmp_path, capsys):
    made = Made(layout=2)
    root = made.write(tmp_path / "robot")
    assert main(["check", "lerobot", str(root)]) == 0
    write_lines(root / "meta/episodes.jsonl", [{"episode_index": k, "length": 9, "tasks": ["a"]} for k in range(4)])
    assert main(["check", "lerobot", str(root)]) == 1
    assert "no data file holds it" in capsys.readouterr().out
