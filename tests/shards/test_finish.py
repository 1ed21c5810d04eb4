"""Finishing a set: counts, order, statistics, and that the manifest comes last."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.sets import header, toy_episode, toy_set, write_shard

from wdsmix.errors import ConflictError, DataError
from wdsmix.manifest import INDEX_SCHEMA, Dropped, Manifest, Stats
from wdsmix.shards.finish import finish_set, shard_order
from wdsmix.shards.receipt import ShardReceipt


def receipts_of(folder: Path) -> list[ShardReceipt]:
    return [
        write_shard(folder, "train-00000", "train", [toy_episode(0, 4), toy_episode(1, 3)]),
        write_shard(folder, "train-00001", "train", [toy_episode(2, 5), toy_episode(4, 2, cameras=("cam0",))]),
        write_shard(folder, "val-00000", "val", [toy_episode(5, 6)]),
    ]


def test_counts_files_and_layout(tmp_path: Path) -> None:
    drop = Dropped(episode=3, source_file="f", source_episode="e", kind="episode", reason="no state")
    late = drop.model_copy(update={"episode": 7})
    receipts = receipts_of(tmp_path)
    receipts[2] = receipts[2].model_copy(update={"dropped": [drop]})
    manifest = finish_set(tmp_path, receipts, header(dropped=[late.model_dump()], warnings=["w"]))
    assert manifest == Manifest.model_validate_json((tmp_path / "manifest.json").read_bytes())
    assert manifest.counts.model_dump() == {"episodes": 5, "frames": 20, "shards": 3}
    assert {split: c.model_dump() for split, c in manifest.splits.items()} == {
        "train": {"episodes": 4, "frames": 14, "shards": 2},
        "val": {"episodes": 1, "frames": 6, "shards": 1},
    }
    assert manifest.shards == ["train-00000", "train-00001", "val-00000"]
    assert [d.episode for d in manifest.dropped] == [3, 7]
    assert (manifest.cameras["cam0"].frames, manifest.cameras["cam1"].frames) == (20, 18)
    assert manifest.cameras["cam1"].sizes == [(16, 12)]
    assert {name: v.frames for name, v in manifest.vectors.items()} == {
        "state": 20,
        "action": 20,
        "reward": 20,
        "text_emb": 0,
    }
    assert manifest.vectors["text_emb"].member == "text_emb.npy"
    on_disk = sorted(path.name for path in tmp_path.iterdir() if path.name != "manifest.json")
    assert [entry.name for entry in manifest.files] == on_disk
    for entry in manifest.files:
        data = (tmp_path / entry.name).read_bytes()
        assert (entry.bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert entry.crc32c == google_crc32c.value(data)


def test_order_of_receipts_does_not_matter(tmp_path: Path) -> None:
    receipts = receipts_of(tmp_path)
    finish_set(tmp_path, receipts, header())
    names = ("manifest.json", "index.parquet", "stats.json")
    first = {name: (tmp_path / name).read_bytes() for name in names}
    finish_set(tmp_path, [ShardReceipt.model_validate_json(r.model_dump_json()) for r in receipts[::-1]], header())
    assert {name: (tmp_path / name).read_bytes() for name in names} == first


def test_shards_sort_by_split_and_number() -> None:
    names = [("val-00000", "val"), ("train-100000", "train"), ("train-99999", "train"), ("a-1", "test"), ("x", "extra")]
    assert [n for n, _ in sorted(names, key=lambda pair: shard_order(*pair))] == [
        "train-99999",
        "train-100000",
        "val-00000",
        "x",
        "a-1",
    ]


def test_index_holds_one_row_per_episode(tmp_path: Path) -> None:
    toy_set(tmp_path)
    table = pq.read_table(tmp_path / "index.parquet")
    assert table.schema.equals(INDEX_SCHEMA)
    rows = table.to_pylist()
    assert [(r["episode"], r["shard"], r["first_row"], r["frames"], r["split"]) for r in rows] == [
        (0, "train-00000", 0, 4, "train"),
        (1, "train-00000", 4, 3, "train"),
        (2, "train-00001", 0, 5, "train"),
        (4, "train-00001", 5, 2, "train"),
        (5, "val-00000", 0, 6, "val"),
    ]
    assert [r["tasks"] for r in rows] == [["task 0"], ["task 1"], ["task 0"], ["task 0"], ["task 1"]]
    assert [(r["source_file"], r["source_episode"]) for r in rows][2] == ("file0.hdf5", "demo_2")
    assert rows[2]["duration"] == 0.5
    assert json.loads(rows[2]["extras"]) == {"score": 2.0, "task_zh": "任务", "note": ""}
    for row in rows:
        with pa.OSFile(str(tmp_path / f"{row['shard']}.frames.arrow")) as file:
            frames = pa.ipc.open_file(file).read_all().slice(row["first_row"], row["frames"])
        assert set(frames["episode"].to_pylist()) == {row["episode"]}
        assert frames["offset"][0].as_py() == row["offset"]
        assert sum(frames["length"].to_pylist()) == row["length"]


def test_stats_are_those_of_numpy_over_the_train_rows(tmp_path: Path) -> None:
    toy_set(tmp_path)
    stats = Stats.model_validate_json((tmp_path / "stats.json").read_bytes())
    assert (stats.split, set(stats.fields)) == ("train", {"state", "action", "reward"})
    for name in stats.fields:
        rows = np.concatenate([toy_episode(n, k)["vectors"][name] for n, k in ((0, 4), (1, 3), (2, 5), (4, 2))])
        rows, found = rows.astype(np.float64), stats.fields[name]
        assert found.count == 14
        np.testing.assert_allclose(found.mean, rows.mean(0), rtol=1e-9)
        np.testing.assert_allclose(found.std, rows.std(0), rtol=1e-9)
        assert (found.min, found.max) == (rows.min(0).tolist(), rows.max(0).tolist())
        np.testing.assert_allclose(found.q01, np.quantile(rows, 0.01, axis=0), rtol=2e-3)
        np.testing.assert_allclose(found.q99, np.quantile(rows, 0.99, axis=0), rtol=2e-3)


def test_a_set_without_episodes_and_one_without_train_frames(tmp_path: Path) -> None:
    empty = write_shard(tmp_path, "train-00000", "train", [])
    manifest = finish_set(tmp_path, [empty], header())
    assert manifest.counts.model_dump() == {"episodes": 0, "frames": 0, "shards": 1}
    assert pq.read_table(tmp_path / "index.parquet").num_rows == 0
    only_val = write_shard(tmp_path, "val-00000", "val", [toy_episode(1, 2)])
    finish_set(tmp_path, [empty, only_val], header())
    assert Stats.model_validate_json((tmp_path / "stats.json").read_bytes()).fields == {}


def test_the_manifest_comes_last_and_nothing_is_left_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    receipts = receipts_of(tmp_path)
    named: list[str] = []
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        named.append(Path(target).name)
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    finish_set(tmp_path, receipts, header())
    assert named == ["index.parquet", "stats.json", "manifest.json"]
    assert not list(tmp_path.glob("*.partial"))


def test_what_does_not_fit_together_is_refused(tmp_path: Path) -> None:
    receipts = receipts_of(tmp_path)

    def refused(receipts: list[ShardReceipt], error: type[Exception], message: str, **more: Any) -> None:
        with pytest.raises(error, match=message):
            finish_set(tmp_path, receipts, header(**more))
        assert not (tmp_path / "manifest.json").exists()

    refused([*receipts, receipts[0]], ConflictError, "same shard")
    twice = receipts[2].model_copy(update={"episodes": receipts[0].episodes})
    refused([receipts[0], twice], ConflictError, "episode 0 is in two shards")
    refused(receipts, DataError, "not be valid", hz="fast")
    with (tmp_path / "train-00001.tar").open("ab") as file:
        file.write(b"x")
    refused(receipts, DataError, "train-00001.tar")
    (tmp_path / "train-00001.tar").unlink()
    refused(receipts, DataError, "no file")
