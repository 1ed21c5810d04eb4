"""EpisodeIndex: columns without Python objects, strings on demand."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import INDEX_SCHEMA
from wdsmix.shards.files import file_entry
from wdsmix.shards.index import EpisodeIndex, table_bytes

EPISODES, PER_SHARD = 200_000, 20


def big_table() -> pa.Table:
    number = np.arange(EPISODES)
    shard = number // PER_SHARD
    names = pa.array([f"train-{k:05d}" for k in range(EPISODES // PER_SHARD)])
    return pa.Table.from_arrays(
        [
            pa.array(number.astype(np.uint32)),
            names.take(pa.array(shard)),
            pa.array((number % PER_SHARD * 100).astype(np.uint32)),
            pa.array(np.full(EPISODES, 100, np.uint32)),
            pa.array((number % PER_SHARD * 5_000_000).astype(np.uint64)),
            pa.array(np.full(EPISODES, 5_000_000, np.uint64)),
            pa.array(np.where(shard % 10 == 9, "val", "train").tolist()),
            pa.array([["pick", "place"]] * EPISODES),
            pa.array([f"chunk{k}.hdf5" for k in shard]),
            pa.array([f"demo_{k}" for k in number % PER_SHARD]),
            pa.array(np.full(EPISODES, 3.3)),
            pa.array([f'{{"score":{k % 7}}}' for k in number]),
        ],
        schema=INDEX_SCHEMA,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("index") / "index.parquet"
    made.write_bytes(table_bytes(big_table()))
    return made


SHARDS = [f"train-{k:05d}" for k in range(EPISODES // PER_SHARD)]


def test_opening_is_quick_and_small(path: Path) -> None:
    entry = file_entry(path)
    EpisodeIndex.open(path, entry, SHARDS)  # imports and caches
    tracemalloc.start()
    try:
        start = time.process_time()
        index = EpisodeIndex.open(path, entry, SHARDS)
        seconds = time.process_time() - start
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(index) == EPISODES
    assert seconds < 2  # 0.1 s where nothing else runs
    assert held < 100 * EPISODES
    assert index.ends[-1] == 100 * EPISODES


def test_columns_and_strings(path: Path) -> None:
    index = EpisodeIndex.open(path, file_entry(path), SHARDS, episodes=EPISODES)
    assert np.array_equal(index.episode, np.arange(EPISODES))
    assert np.array_equal(index.shard, np.arange(EPISODES) // PER_SHARD)
    assert index.splits == ["train", "val"]
    assert np.array_equal(index.split, (np.arange(EPISODES) // PER_SHARD % 10 == 9).astype(np.int8))
    assert index.source(123_456) == ("chunk6172.hdf5", "demo_16")
    assert index.find("chunk6172.hdf5/demo_16") == 123_456
    assert index.find(123_456) == 123_456
    assert index.tasks(9) == ["pick", "place"]
    assert index.extras(9) == {"score": 2}
    assert index.duration(9) == 3.3
    with pytest.raises(ConfigError, match="more than one"):
        index.find("demo_16")
    with pytest.raises(ValueError, match="read-only"):
        index.frames[0] = 7


def test_chosen_shards_keep_their_numbers_and_their_strings(path: Path) -> None:
    index = EpisodeIndex.open(path, file_entry(path), SHARDS, {"train-00007", "train-09999"})
    assert len(index) == 2 * PER_SHARD
    assert set(index.shard.tolist()) == {7, 9999}
    assert index.source(0) == ("chunk7.hdf5", "demo_0")
    assert index.source(2 * PER_SHARD - 1) == ("chunk9999.hdf5", "demo_19")
    assert index.find("chunk9999.hdf5/demo_0") == PER_SHARD


def test_the_count_of_the_manifest_is_checked_before_anything_is_read(path: Path) -> None:
    with pytest.raises(DataError, match=f"expected {EPISODES + 1}, found {EPISODES}"):
        EpisodeIndex.open(path, file_entry(path), SHARDS, episodes=EPISODES + 1)


def test_the_same_table_gives_the_same_bytes(path: Path) -> None:
    assert table_bytes(big_table().slice(0, 1000)) == table_bytes(big_table().slice(0, 1000))
