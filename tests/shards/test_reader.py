"""ShardSet: random access equals what was written, and what stock readers give."""

from __future__ import annotations

import io
import json
import multiprocessing
import pickle
import shutil
import subprocess
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import simplejpeg
import webdataset as wds
from helpers.sets import CAMERAS, header, picture, toy_episode, toy_set, write_shard

import wdsmix
from wdsmix.errors import ConfigError, ConflictError, DataError
from wdsmix.imaging import encode_depth
from wdsmix.shards.finish import finish_set
from wdsmix.shards.reader import ShardSet
from wdsmix.shards.writer import Picture

EPISODES = ((0, 4), (1, 3), (2, 5), (4, 2), (5, 6))
ONLY_CAM0 = {4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("toy")
    toy_set(path)
    return path


@pytest.fixture(scope="module")
def written() -> list[dict[str, Any]]:
    """What went in, one entry a frame."""
    rows = []
    for number, length in EPISODES:
        cameras = ("cam0",) if number in ONLY_CAM0 else ("cam0", "cam1")
        fields = toy_episode(number, length, cameras=cameras)
        for t, pictures in enumerate(fields["frames"]):
            rows.append(
                {
                    "key": f"{number:06d}_{t:06d}",
                    "pictures": pictures,
                    "vectors": {name: part[t] for name, part in fields["vectors"].items()},
                    "timestamp": t / 10.0,
                    "task": f"task {number % 2}",
                    "score": float(number),
                }
            )
    return rows


def test_every_frame_equals_what_was_written(folder: Path, written: list[dict[str, Any]]) -> None:
    opened = wdsmix.ShardSet(folder)
    assert len(opened) == len(written) == 20
    for i, row in enumerate(written):
        frame = opened.frame(i)
        assert (frame.row, frame.key, frame.timestamp, frame.task) == (i, row["key"], row["timestamp"], row["task"])
        assert frame.split == ("val" if i >= 14 else "train")
        assert f"{frame.episode:06d}_{frame.frame:06d}" == frame.key
        assert set(frame.vectors) == set(row["vectors"])
        for name, values in row["vectors"].items():
            assert frame.vectors[name].dtype == np.float32
            assert np.array_equal(frame.vectors[name], values)
        assert frame.state is not None
        assert frame.action is not None
        assert list(frame.images) == list(row["pictures"])
        for slot, data in row["pictures"].items():
            assert np.array_equal(frame.images[slot], simplejpeg.decode_jpeg(data))
        assert frame.extras == {"score": row["score"], "task_zh": "任务"}
    assert opened[-1].key == opened.frame(19).key == "000005_000005"
    assert [frame.key for frame in opened] == [row["key"] for row in written]
    for i in (20, -21):
        with pytest.raises(IndexError):
            opened.frame(i)


def test_stock_webdataset_reads_every_sample(folder: Path, written: list[dict[str, Any]]) -> None:
    urls = [str(folder / f"{shard}.tar") for shard in ShardSet(folder).manifest.shards]
    samples = list(wds.WebDataset(urls, shardshuffle=False).decode())
    assert [sample["__key__"] for sample in samples] == [row["key"] for row in written]
    for sample, row in zip(samples, written, strict=True):
        for name, values in row["vectors"].items():
            assert np.array_equal(sample[f"{name}.npy"], values)
        assert "text_emb.npy" not in sample
        assert ("cam1.jpg" in sample) == ("cam1" in row["pictures"])
        assert sample["json"] == {
            "episode": int(row["key"][:6]),
            "frame": int(row["key"][7:]),
            "timestamp": row["timestamp"],
            "task": row["task"],
            "score": row["score"],
            "task_zh": "任务",
        }
    raw = list(wds.WebDataset(urls, shardshuffle=False))
    assert all(s["cam0.jpg"] == row["pictures"]["cam0"] for s, row in zip(raw, written, strict=True))
    brace = list(wds.WebDataset(str(folder / "train-{00000..00001}.tar"), shardshuffle=False))
    assert [s["__key__"] for s in brace] == [row["key"] for row in written[:14]]


def test_stock_tarfile_reads_every_member(folder: Path, written: list[dict[str, Any]]) -> None:
    opened = ShardSet(folder)
    i = 0
    for k, name in enumerate(opened.manifest.shards):
        with tarfile.open(folder / f"{name}.tar") as tar:
            theirs = [(info.name, tar.extractfile(info).read()) for info in tar]  # type: ignore[union-attr]
        shard = opened.shard(k)
        ours = [
            (f"{shard.key(row)}.{suffix}", bytes(data))
            for row in range(len(shard))
            for suffix, data in shard.members(row).items()
        ]
        assert ours == theirs
        for row in range(len(shard)):
            state = np.load(io.BytesIO(bytes(shard.members(row, verify=False)["state.npy"])))
            assert np.array_equal(state, shard.vectors["state"][row])
            assert np.array_equal(state, written[i]["vectors"]["state"])
            i += 1


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command")
def test_the_tar_command_reads_a_set(folder: Path, written: list[dict[str, Any]]) -> None:
    names = [folder / f"{name}.tar" for name in ShardSet(folder).manifest.shards]
    done = [subprocess.run(["tar", "tf", str(name)], capture_output=True, text=True, check=True) for name in names]
    assert not any(run.stderr for run in done)
    listed = [line for run in done for line in run.stdout.split()]
    assert list(dict.fromkeys(line.split(".")[0] for line in listed)) == [row["key"] for row in written]
    assert len(listed) == sum(len(row["pictures"]) + len(row["vectors"]) + 1 for row in written)


def test_shards_are_views_that_can_not_be_written_to(folder: Path) -> None:
    shard = ShardSet(folder).shard(0)
    assert shard.tar.dtype == np.uint8
    assert len(shard.tar) == (folder / "train-00000.tar").stat().st_size
    assert (shard.offset.dtype, shard.length.dtype, shard.crc32c.dtype) == (np.uint64, np.uint32, np.uint32)
    assert shard.vectors["state"].shape == (7, 3)
    assert shard.present["text_emb"].tolist() == [False] * 7
    assert shard.present["state"].all()
    assert not shard.vectors["text_emb"].any()
    members = shard.members(2)
    for array in (shard.tar, shard.offset, shard.timestamp, *shard.vectors.values(), members["cam0.jpg"]):
        assert not array.flags.writeable
        assert array.base is not None
    assert np.shares_memory(members["cam0.jpg"], shard.tar)


def test_index_columns(folder: Path) -> None:
    index = ShardSet(folder).index
    assert index.splits == ["train", "val"]
    assert index.episode.tolist() == [0, 1, 2, 4, 5]
    assert index.shard.tolist() == [0, 0, 1, 1, 2]
    assert index.frames.tolist() == [4, 3, 5, 2, 6]
    assert index.ends.tolist() == [4, 7, 12, 14, 20]
    assert index.split.tolist() == [0, 0, 0, 0, 1]
    assert (index.shard.dtype, index.split.dtype, index.offset.dtype) == (np.int32, np.int8, np.int64)
    assert index.source(3) == ("file1.hdf5", "demo_1")
    assert index.tasks(1) == ["task 1"]
    assert index.extras(2)["score"] == 2.0
    assert index.duration(2) == 0.5


def test_episodes_by_number_and_by_name(folder: Path) -> None:
    opened = ShardSet(folder)
    assert opened.episode(4).source_episode == "demo_1"
    assert opened.episode("file1.hdf5/demo_1").episode == 4
    assert opened.episode("file0.hdf5/demo_1").episode == 1
    assert opened.episode("demo_0").episode == 0
    for key in (3, "demo_9", "file9.hdf5/demo_1", ""):
        with pytest.raises(ConfigError, match="no such episode"):
            opened.episode(key)
    with pytest.raises(ConfigError, match="more than one") as caught:
        opened.episode("demo_2")
    assert "file0.hdf5/demo_2" in str(caught.value)


def test_whole_episodes(folder: Path, written: list[dict[str, Any]]) -> None:
    opened = ShardSet(folder)
    dataset = opened.episodes()
    assert [len(opened.episodes(split)) for split in (None, "train", "val")] == [5, 4, 1]
    with pytest.raises(ConfigError, match="no such split"):
        opened.episodes("test")
    i = 0
    for data, (number, length) in zip(dataset, EPISODES, strict=True):
        assert (data.episode, len(data)) == (number, length)
        assert data.task == [f"task {number % 2}"] * length
        assert (data.task_zh, data.score) == ("任务", float(number))
        assert data.timestamps.tolist() == [t / 10 for t in range(length)]
        assert set(data.vectors) == {"state", "action", "reward"}
        assert set(data.images) == ({"cam0"} if number in ONLY_CAM0 else {"cam0", "cam1"})
        for t in range(length):
            row = written[i]
            assert data.state is not None
            assert data.action is not None
            assert np.array_equal(data.state[t], row["vectors"]["state"])
            assert np.array_equal(data.action[t], row["vectors"]["action"])
            for slot, encoded in row["pictures"].items():
                assert data.image_mask[slot][t]
                assert np.array_equal(data.images[slot][t], simplejpeg.decode_jpeg(encoded))
            i += 1
    assert opened.episodes("val")[0].split == "val"
    with pytest.raises(IndexError):
        dataset[5]


def test_missing_pictures_depth_and_tasks_that_change(tmp_path: Path) -> None:
    depth = np.arange(12 * 16, dtype=np.uint16).reshape(12, 16) * 300
    frames = [
        {"cam0": picture(1), "cam1": Picture(encode_depth(depth), (16, 12))},
        {},
        {"cam0": picture(2)},
    ]
    fields = toy_episode(
        0, 3, frames=frames, tasks=["a", "b"], task_index=np.array([1, 0, 1], np.int32), frame_extras={"n": [5, 6, 7]}
    )
    cameras = {"cam0": "cam0.jpg", "cam1": "cam1.png"}
    receipt = write_shard(tmp_path, "train-00000", "train", [fields], cameras=cameras)
    fields = header(cameras=cameras)
    fields["cameras"]["cam1"].update(kind="depth", encoding="png")
    finish_set(tmp_path, [receipt], fields)
    opened = ShardSet(tmp_path)
    data = opened.episode(0)
    assert data.task == ["b", "a", "b"]
    assert data.image_mask["cam0"].tolist() == [True, False, True]
    assert not data.images["cam0"][1].any()
    assert data.images["cam1"].dtype == np.uint16
    assert np.array_equal(data.images["cam1"][0], depth)
    assert [opened.frame(i).extras["n"] for i in range(3)] == [5, 6, 7]
    assert set(opened.frame(0).images) == {"cam0", "cam1"}
    assert opened.frame(1).images == {}


def test_pictures_of_several_sizes_in_an_episode_are_an_error_of_whole_episodes_only(tmp_path: Path) -> None:
    frames = [{"cam0": picture(1)}, {"cam0": picture(1, 8, 8)}]
    finish_set(tmp_path, [write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 2, frames=frames)])], header())
    opened = ShardSet(tmp_path)
    assert opened.frame(1).images["cam0"].shape == (8, 8, 3)
    with pytest.raises(DataError, match="differ in size") as caught:
        opened.episode(0)
    assert caught.value.where is not None
    assert "000000_000001, cam0" in caught.value.where


def test_some_shards_only(folder: Path) -> None:
    some = ShardSet(folder, shards=["val-00000", "train-00001"])
    assert len(some) == 13
    assert some.index.episode.tolist() == [2, 4, 5]
    assert some.index.source(1) == ("file1.hdf5", "demo_1")
    assert some.frame(0).key == "000002_000000"
    assert some.frame(12).key == "000005_000005"
    assert some.episode("file1.hdf5/demo_2").episode == 5
    assert len(some.episodes("train")) == 2
    with pytest.raises(ConfigError, match="no such episode"):
        some.episode(0)
    with pytest.raises(IndexError, match="not chosen"):
        some.shard(0)
    with pytest.raises(ConfigError, match="no such shard"):
        ShardSet(folder, shards=["train-00007"])
    assert len(ShardSet(folder, shards=[])) == 0


def test_brace_patterns_and_addresses(folder: Path, tmp_path: Path) -> None:
    assert len(ShardSet(f"{folder}/train-{{00000..00001}}.tar")) == 14
    assert len(ShardSet(folder / "val-00000.tar")) == 6
    for bad in (f"{folder}/train-{{00000..00001", f"{{{folder},{tmp_path}}}/a.tar", f"{folder}/{{a,b}}.txt"):
        with pytest.raises(ConfigError):
            ShardSet(bad)
    for bad in ("s4://bucket/set", "s3://user@bucket/set", "s3://bucket/{a,b}/x.tar"):
        with pytest.raises(ConfigError):
            ShardSet(bad)
    assert len(ShardSet(folder.as_uri())) == 20
    assert len(ShardSet(f"{folder.as_uri()}/train-{{00000..00001}}.tar")) == 14


def test_statistics_and_digest(folder: Path) -> None:
    opened = ShardSet(folder)
    assert opened.stats.fields["state"].count == 14
    assert opened.digest == wdsmix.manifest.digest_of((folder / "manifest.json").read_bytes())


def test_a_pickled_set_is_small_opens_lazily_and_works_from_anywhere(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder.parent)
    opened = ShardSet(folder.name)
    opened.frame(0)
    data = pickle.dumps(opened)
    assert len(data) < 1000
    monkeypatch.chdir(tmp_path)
    again = pickle.loads(data)
    assert again._manifest is None
    assert again.frame(3).key == "000000_000003"
    assert pickle.loads(pickle.dumps(again.episodes("val")))[0].episode == 5


def test_a_pickled_set_refuses_one_that_changed(tmp_path: Path) -> None:
    toy_set(tmp_path)
    data = pickle.dumps(ShardSet(tmp_path))
    finish_set(tmp_path, [write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 4)])], header())
    with pytest.raises(ConflictError, match="changed since"):
        len(pickle.loads(data))


def read_keys(opened: ShardSet, rows: list[int], sink: Any) -> None:
    sink.put([(opened.frame(i).key, float(opened.frame(i).vectors["state"].sum())) for i in rows])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_child_processes_can_read(folder: Path, method: str) -> None:
    opened = ShardSet(folder)
    rows = [0, 8, 19, 3]
    expected = [(opened.frame(i).key, float(opened.frame(i).vectors["state"].sum())) for i in rows]
    context = multiprocessing.get_context(method)
    sink = context.Queue()
    with opened._guard():  # as if another thread held it while we fork
        child = context.Process(target=read_keys, args=(opened, rows, sink))
        child.start()
        assert sink.get(timeout=60) == expected
    child.join(60)
    assert child.exitcode == 0


def test_many_threads_share_a_set(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdsmix.shards.reader._OPEN_SHARDS", 1)  # every change of shard maps anew
    opened = ShardSet(folder)
    keys = [frame.key for frame in opened]
    faults: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            for i in np.random.default_rng(seed).permutation(20):
                assert opened.frame(int(i)).key == keys[i]
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert len(opened._shards) == 1


def test_no_file_stays_open_and_closing_keeps_what_was_handed_out(folder: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    with ShardSet(folder) as opened:
        state = opened.shard(0).vectors["state"]
        pixels = opened.shard(1).members(0)["cam0.jpg"]
        assert len(list(Path("/proc/self/fd").iterdir())) == before
    assert np.isfinite(state).all()
    assert bytes(pixels[:2]) == b"\xff\xd8"
    assert opened.frame(0).key == "000000_000000"


def test_a_set_of_empty_shards(tmp_path: Path) -> None:
    finish_set(tmp_path, [write_shard(tmp_path, "train-00000", "train", [])], header())
    opened = ShardSet(tmp_path)
    assert (len(opened), len(opened.episodes()), opened.splits) == (0, 0, [])
    shard = opened.shard(0)
    assert len(shard) == 0
    assert shard.vectors["state"].shape == (0, 3)
    with pytest.raises(IndexError):
        opened.frame(0)


def test_cameras_of_the_set_have_their_members(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_bytes())
    assert {slot: camera["member"] for slot, camera in manifest["cameras"].items()} == CAMERAS
