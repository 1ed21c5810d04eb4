"""ShardWriter: what is in the tar, in which order, and that a failed episode leaves no trace."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pytest
from helpers.sets import CAMERAS, VECTORS, picture, toy_episode, write_shard

from wdsmix.errors import ConfigError, DataError
from wdsmix.manifest import Dropped, FileEntry, frames_schema
from wdsmix.shards.receipt import ShardReceipt
from wdsmix.shards.tario import END, iter_members
from wdsmix.shards.writer import Picture, ShardWriter, member_order, npy_header
from wdsmix.stats import FieldAccumulator


def writer(folder: Path, **more: Any) -> ShardWriter:
    fields: dict[str, Any] = {"vectors": VECTORS, "cameras": CAMERAS, "split": "train"}
    return ShardWriter(folder, "train-00000", **{**fields, **more})


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {info.name: tar.extractfile(info).read() for info in tar.getmembers()}  # type: ignore[union-attr]


def arrow(path: Path) -> pa.Table:
    with pa.OSFile(str(path)) as file:
        return pa.ipc.open_file(file).read_all()


@pytest.mark.parametrize("width", [1, 7, 14, 99, 100, 768, 12345])
def test_npy_header_is_what_numpy_writes(width: int) -> None:
    sink = io.BytesIO()
    np.save(sink, np.zeros(width, np.float32))
    assert npy_header(width) == sink.getvalue()[: -4 * width]


def test_member_order() -> None:
    assert member_order(["zeta", "done", "action", "alpha", "state", "reward"]) == [
        "state",
        "action",
        "reward",
        "done",
        "alpha",
        "zeta",
    ]


def test_members_of_a_frame_their_order_and_their_values(tmp_path: Path) -> None:
    cameras = {f"cam{i}": f"cam{i}.jpg" for i in (10, 2, 0)}
    pictures = {slot: picture(i) for i, slot in enumerate(("cam10", "cam0", "cam2"))}
    vectors = {"zeta": 2, "reward": 1, "state": 3, "action": 2, "done": 1}
    values = {name: np.arange(width, dtype=np.float32)[None] / 3 for name, width in vectors.items()}
    fields = toy_episode(
        7,
        1,
        frames=[pictures],
        vectors=values,
        timestamps=np.array([0.25]),
        tasks=["unused", "pick «it»"],
        task_index=np.array([1], np.int32),
        extras={"score": 0.0, "note": "", "tags": [], "ok": False, "none": None},
        frame_extras={"gripper": [None]},
    )
    write_shard(tmp_path, "train-00000", "train", [fields], vectors=vectors, cameras=cameras)
    found = contents(tmp_path / "train-00000.tar")
    assert list(found) == [
        f"000007_000000.{suffix}"
        for suffix in (
            "cam0.jpg",
            "cam2.jpg",
            "cam10.jpg",
            "state.npy",
            "action.npy",
            "reward.npy",
            "done.npy",
            "zeta.npy",
            "json",
        )
    ]
    for slot, data in pictures.items():
        assert found[f"000007_000000.{slot}.jpg"] == data
    for name, rows in values.items():
        sink = io.BytesIO()
        np.save(sink, rows[0])
        assert found[f"000007_000000.{name}.npy"] == sink.getvalue()
    assert found["000007_000000.json"].decode() == (
        '{"episode":7,"frame":0,"gripper":null,"ok":false,"score":0.0,"task":"pick «it»","timestamp":0.25}'
    )
    assert arrow(tmp_path / "train-00000.frames.arrow").schema.metadata[b"tasks"] == '["pick «it»"]'.encode()


def test_headers_are_plain_ustar_and_the_tar_ends_with_two_blocks(tmp_path: Path) -> None:
    write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 3)])
    with tarfile.open(tmp_path / "train-00000.tar") as tar:
        for info in tar.getmembers():
            assert (info.mtime, info.uid, info.gid, info.mode) == (0, 0, 0, 0o644)
            assert (info.uname, info.gname, info.pax_headers) == ("", "", {})
    data = (tmp_path / "train-00000.tar").read_bytes()
    last = list(iter_members(data, expect_end=True))[-1]
    assert data[last.end :] == END


def test_frame_table_and_receipt_tell_the_truth(tmp_path: Path) -> None:
    episodes = [toy_episode(3, 4), toy_episode(5, 2, cameras=("cam1",)), toy_episode(6, 3)]
    del episodes[1]["vectors"]["reward"]
    expected = [(fields["episode"], fields["vectors"], fields["timestamps"]) for fields in episodes]
    receipt = write_shard(tmp_path, "train-00000", "train", episodes)
    tar, table = tmp_path / "train-00000.tar", arrow(tmp_path / "train-00000.frames.arrow")
    data = tar.read_bytes()

    assert table.schema.equals(frames_schema({n: VECTORS[n] for n in member_order(VECTORS)}, ["task 1", "task 0"]))
    assert table["episode"].to_pylist() == [3] * 4 + [5] * 2 + [6] * 3
    assert table["frame"].to_pylist() == [0, 1, 2, 3, 0, 1, 0, 1, 2]
    assert table["task"].to_pylist() == [0] * 6 + [1] * 3
    assert table["timestamp"].to_pylist() == [t for _, _, times in expected for t in times]
    place = 0
    for row in table.select(["offset", "length", "crc32c", "episode", "frame"]).to_pylist():
        assert row["offset"] == place
        frame = data[place : place + row["length"]]
        assert google_crc32c.value(frame) == row["crc32c"]
        assert {m.name.split(".")[0] for m in iter_members(frame)} == {f"{row['episode']:06d}_{row['frame']:06d}"}
        place += row["length"]
    assert data[place:] == END
    assert table["vector:state"].to_pylist() == [r.tolist() for _, v, _ in expected for r in v["state"]]
    assert [r is None for r in table["vector:reward"].to_pylist()] == [False] * 4 + [True] * 2 + [False] * 3
    assert table["vector:text_emb"].null_count == 9

    for entry in receipt.files:
        raw = (tmp_path / entry.name).read_bytes()
        assert entry == FileEntry(
            name=entry.name, bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest(), crc32c=google_crc32c.value(raw)
        )
    assert [e.name for e in receipt.files] == ["train-00000.frames.arrow", "train-00000.tar"]
    assert [(r.episode, r.first_row, r.frames) for r in receipt.episodes] == [(3, 0, 4), (5, 4, 2), (6, 6, 3)]
    offsets = table["offset"].to_pylist()
    assert [r.offset for r in receipt.episodes] == [0, offsets[4], offsets[6]]
    assert [r.offset + r.length for r in receipt.episodes] == [offsets[4], offsets[6], place]
    assert receipt.episodes[0].tasks == ["task 1"]
    assert json.loads(receipt.episodes[0].extras) == {"score": 3.0, "task_zh": "任务", "note": ""}
    assert receipt.vectors == {"state": 9, "action": 9, "reward": 7, "text_emb": 0}
    assert {slot: count.model_dump() for slot, count in receipt.cameras.items()} == {
        "cam0": {"frames": 7, "sizes": [(16, 12)], "passthrough": 0},
        "cam1": {"frames": 9, "sizes": [(16, 12)], "passthrough": 0},
    }
    assert set(receipt.stats) == {"state", "action", "reward"}
    rows = np.concatenate([v["state"] for _, v, _ in expected]).astype(np.float64)
    stats = FieldAccumulator.from_json(receipt.stats["state"]).finish()
    np.testing.assert_allclose(stats.mean, rows.mean(0), rtol=1e-12)
    np.testing.assert_allclose(stats.std, rows.std(0), rtol=1e-12)


def test_validation_shards_gather_no_statistics(tmp_path: Path) -> None:
    assert write_shard(tmp_path, "val-00000", "val", [toy_episode(0, 2)]).stats == {}


def test_the_json_of_a_receipt_gives_it_back(tmp_path: Path) -> None:
    with writer(tmp_path) as made:
        made.write_episode(**toy_episode(0, 3))
        drop = Dropped(episode=1, source_file="a", source_episode="b", kind="episode", reason="no state")
        receipt = made.close([drop])
    back = ShardReceipt.model_validate_json(receipt.model_dump_json())
    assert back == receipt
    assert back.dropped == [drop]
    assert FieldAccumulator.from_json(back.stats["state"]).to_json() == receipt.stats["state"]


def test_pictures_carry_size_and_pass_through(tmp_path: Path) -> None:
    frames = [
        {"cam0": Picture(b"not looked at", (640, 480), True), "cam1": picture(1)},
        {"cam0": Picture(picture(2, 8, 8), None, True)},
    ]
    receipt = write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 2, frames=frames)])
    assert receipt.cameras["cam0"].model_dump() == {"frames": 2, "sizes": [(8, 8), (640, 480)], "passthrough": 2}
    assert receipt.cameras["cam1"].model_dump() == {"frames": 1, "sizes": [(16, 12)], "passthrough": 0}


class Boom(Exception):
    """Raised by a picture stream."""


def failing(frames: Iterator[Any], after: int, error: BaseException) -> Iterator[Any]:
    for number, frame in enumerate(frames):
        if number == after:
            raise error
        yield frame


def bad_rows(value: float) -> np.ndarray:
    rows = np.zeros((3, 3), np.float32)
    rows[1, 2] = value
    return rows


ROWS = {"state": np.zeros((3, 3), np.float32), "action": np.zeros((3, 2), np.float32)}
BAD: dict[str, tuple[dict[str, Any], type[BaseException], str]] = {
    "the stream raises": ({"frames": "boom"}, Boom, "lost"),
    "interrupted": ({"frames": "interrupt"}, KeyboardInterrupt, "lost"),
    "too few pictures": ({"frames": [{}, {}]}, DataError, "end early"),
    "too many pictures": ({"frames": [{}] * 4}, DataError, "more pictures"),
    "unknown camera": ({"frames": [{}, {"cam7": b"x"}, {}]}, DataError, "camera that the set does not have"),
    "empty picture": ({"frames": [{}, {"cam0": b""}, {}]}, DataError, "cam0, frame 1: an empty picture"),
    "not a picture": ({"frames": [{}, {"cam0": b"GIF?"}, {}]}, DataError, "cam0, frame 1"),
    "NaN": ({"vectors": {**ROWS, "state": bad_rows(np.nan)}}, DataError, "state, row 1, dimension 2"),
    "infinity": ({"vectors": {**ROWS, "state": bad_rows(np.inf)}}, DataError, "not finite"),
    "narrow": ({"vectors": {**ROWS, "state": np.zeros((3, 2), np.float32)}}, DataError, "wrong shape"),
    "short": ({"vectors": {**ROWS, "state": np.zeros((2, 3), np.float32)}}, DataError, "wrong shape"),
    "float64": ({"vectors": {**ROWS, "state": np.zeros((3, 3))}}, DataError, "wrong shape"),
    "unknown vector": ({"vectors": {**ROWS, "torque": ROWS["state"]}}, DataError, "vector that the set does not have"),
    "bad timestamp": ({"timestamps": np.array([0, np.nan, 1])}, DataError, "timestamp"),
    "no frames": ({"timestamps": np.zeros(0)}, DataError, "timestamp"),
    "task number": ({"task_index": np.array([0, 1, 0], np.int32)}, DataError, "task numbers"),
    "task count": ({"task_index": np.array([0, 0], np.int32)}, DataError, "task numbers"),
    "no task": ({"tasks": []}, DataError, "task numbers"),
    "task is bytes": ({"tasks": [b"pick"]}, DataError, "string"),
    "surrogate": ({"tasks": ["\ud800"]}, DataError, "Unicode"),
    "file name": ({"source_file": "\udcff.hdf5"}, DataError, "Unicode"),
    "extras": ({"extras": {"a": object()}}, DataError, "not JSON"),
    "extras NaN": ({"extras": {"a": float("nan")}}, DataError, "not JSON"),
    "extras name": ({"extras": {"task": "a"}}, DataError, "name of a field"),
    "frame extras": ({"frame_extras": {"a": [1, 2]}}, DataError, "not one value a frame"),
    "late frame extras": ({"frame_extras": {"a": [1, 2, {1, 2}]}}, DataError, "frame 2: a fact is not JSON"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_failed_episode_leaves_no_trace(tmp_path: Path, case: str) -> None:
    change, error, message = BAD[case]
    fields = toy_episode(1, 3, tasks=["only here"], vectors=ROWS)
    if change.get("frames") == "boom":
        change = {"frames": failing(fields["frames"], 2, Boom("lost"))}
    elif change.get("frames") == "interrupt":
        change = {"frames": failing(fields["frames"], 2, KeyboardInterrupt("lost"))}
    (tmp_path / "clean").mkdir()
    (tmp_path / "tried").mkdir()
    clean = write_shard(tmp_path / "clean", "train-00000", "train", [toy_episode(0, 2), toy_episode(2, 4)])
    with writer(tmp_path / "tried") as made:
        made.write_episode(**toy_episode(0, 2))
        with pytest.raises(error, match=message):
            made.write_episode(**{**fields, **change})
        made.write_episode(**toy_episode(2, 4))
        tried = made.close()
    assert tried == clean
    for entry in clean.files:
        assert (tmp_path / "tried" / entry.name).read_bytes() == (tmp_path / "clean" / entry.name).read_bytes()


def test_a_shard_without_episodes_is_an_empty_but_valid_tar(tmp_path: Path) -> None:
    with writer(tmp_path) as made:
        with pytest.raises(DataError):
            made.write_episode(**toy_episode(0, 2, frames=[]))
        receipt = made.close()
    assert (tmp_path / "train-00000.tar").read_bytes() == END
    assert contents(tmp_path / "train-00000.tar") == {}
    assert arrow(tmp_path / "train-00000.frames.arrow").num_rows == 0
    assert (receipt.episodes, receipt.stats) == ([], {})


def test_files_appear_only_when_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    renamed: list[str] = []
    original = Path.replace

    def replace(self: Path, target: Path) -> Path:
        renamed.append(Path(target).name)
        return original(self, target)

    monkeypatch.setattr(Path, "replace", replace)
    with writer(tmp_path) as made:
        made.write_episode(**toy_episode(0, 2))
        assert {p.name for p in tmp_path.iterdir()} == {"train-00000.tar.partial"}
        made.close()
        with pytest.raises(ValueError, match="closed"):
            made.close()
        with pytest.raises(ValueError, match="closed"):
            made.write_episode(**toy_episode(1, 2))
    assert renamed == ["train-00000.frames.arrow", "train-00000.tar"]
    assert {p.name for p in tmp_path.iterdir()} == set(renamed)


def test_leaving_without_close_removes_what_was_begun(tmp_path: Path) -> None:
    fields = toy_episode(0, 2)
    with pytest.raises(Boom), writer(tmp_path) as made:
        made.write_episode(**{**fields, "frames": failing(fields["frames"], 1, Boom("lost"))})
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_a_killed_writer_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "train-00000.tar.partial").write_bytes(b"x" * 100_000)
    (tmp_path / "train-00000.frames.arrow.partial").write_bytes(b"y" * 100_000)
    receipt = write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 1)])
    assert len(contents(tmp_path / "train-00000.tar")) == 6
    assert {p.name for p in tmp_path.iterdir()} == {entry.name for entry in receipt.files}


def test_short_writes_are_completed(tmp_path: Path) -> None:
    class Stingy(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data)[: 1 + len(data) // 3])

    plain = write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 2)])
    made = writer(tmp_path)
    made._tar.close()
    made._tar = Stingy(tmp_path / "train-00000.tar.partial", "wb")
    made.write_episode(**toy_episode(0, 2))
    assert made.close() == plain
    assert (tmp_path / "train-00000.tar").stat().st_size == plain.files[1].bytes


def test_episode_numbers_ascend_and_may_outgrow_six_digits(tmp_path: Path) -> None:
    with writer(tmp_path) as made:
        made.write_episode(**toy_episode(5, 1))
        with pytest.raises(ValueError, match="ascend"):
            made.write_episode(**toy_episode(5, 1))
        made.write_episode(**toy_episode(12345678, 1))
        made.close()
    assert "12345678_000000.json" in contents(tmp_path / "train-00000.tar")


@pytest.mark.parametrize(
    ("vectors", "cameras"),
    [
        ({"a.b": 1}, {}),
        ({"../x": 1}, {}),
        ({"": 1}, {}),
        ({"a": 0}, {}),
        ({"eef": 1, "EEF": 1}, {}),
        ({"state": 1}, {"cam0": "state.npy"}),
        ({}, {"cam0": "json"}),
        ({}, {"cam0": "x.jpg", "cam1": "x.jpg"}),
        ({}, {"cam0": "a/b.jpg"}),
        ({}, {"cam0": ".jpg"}),
    ],
)
def test_names_that_would_collide_or_escape_are_refused(
    tmp_path: Path, vectors: dict[str, int], cameras: dict[str, str]
) -> None:
    with pytest.raises(ConfigError):
        writer(tmp_path, vectors=vectors, cameras=cameras)
    assert list(tmp_path.iterdir()) == []


def test_rows_are_copied_at_once(tmp_path: Path) -> None:
    fields = toy_episode(0, 2)
    state = fields["vectors"]["state"].copy()
    with writer(tmp_path) as made:
        made.write_episode(**fields)
        fields["vectors"]["state"][:] = 9
        made.close()
    assert arrow(tmp_path / "train-00000.frames.arrow")["vector:state"].to_pylist() == state.tolist()


class FullDisk(io.FileIO):
    """Takes ``room`` bytes, then fails as a full disk does, in the middle of a write."""

    room = 2500

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self.room:
            super().write(bytes(data)[: self.room - self.tell()])
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


def test_a_full_disk_costs_the_episode_only(tmp_path: Path) -> None:
    (tmp_path / "clean").mkdir()
    clean = write_shard(tmp_path / "clean", "train-00000", "train", [toy_episode(0, 1), toy_episode(2, 1)])
    with writer(tmp_path) as made:
        made.write_episode(**toy_episode(0, 1))
        place = made._tar.tell()
        path = tmp_path / "train-00000.tar.partial"
        made._tar.close()
        made._tar = FullDisk(path, "r+b")
        made._tar.seek(place)
        made._tar.room = place + 2500
        with pytest.raises(OSError, match="No space"):
            made.write_episode(**toy_episode(1, 3))
        assert path.stat().st_size == place
        made._tar.room = 10**9
        made.write_episode(**toy_episode(2, 1))
        assert made.close() == clean


def test_everything_is_synced_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def synced(handle: int) -> None:
        events.append("sync " + Path(f"/proc/self/fd/{handle}").readlink().name)
        fsync(handle)

    def renamed(self: Path, target: Path) -> Path:
        events.append(f"name {Path(target).name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(Path, "replace", renamed)
    write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 1)])
    assert events == [
        "sync train-00000.tar.partial",
        "sync train-00000.frames.arrow.partial",
        "name train-00000.frames.arrow",
        "name train-00000.tar",
        f"sync {tmp_path.name}",
    ]


def test_a_crash_between_the_two_renames_leaves_no_tar(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Path.replace

    def renamed(self: Path, target: Path) -> Path:
        if Path(target).suffix == ".tar":
            raise Boom
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", renamed)
    with writer(tmp_path) as made:
        made.write_episode(**toy_episode(0, 1))
        with pytest.raises(Boom):
            made.close()
    assert [path.name for path in tmp_path.iterdir()] == ["train-00000.frames.arrow"]
    monkeypatch.undo()
    again = write_shard(tmp_path, "train-00000", "train", [toy_episode(0, 1)])
    assert {path.name for path in tmp_path.iterdir()} == {entry.name for entry in again.files}


def test_memory_stays_flat_however_long_the_episode(tmp_path: Path) -> None:
    length, size = 1500, 40_000

    def frames() -> Iterator[dict[str, Picture]]:
        for t in range(length):
            yield {"cam0": Picture(t.to_bytes(4, "big") * (size // 4), (64, 64))}

    fields = toy_episode(0, 1)
    rows = {name: np.zeros((length, VECTORS[name]), np.float32) for name in ("state", "action")}
    with writer(tmp_path) as made:
        tracemalloc.start()
        try:
            made.write_episode(**{**fields, "frames": frames(), "vectors": rows, "timestamps": np.arange(length) / 10})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert made.frames == length
        receipt = made.close()
    assert receipt.files[1].bytes > length * size
    assert peak < 3_000_000


def test_rollback_of_random_sequences(tmp_path: Path) -> None:
    """Whatever fails in between, the shard equals one that never saw it."""
    rng = np.random.default_rng(0)
    for case in range(6):
        lengths = rng.integers(1, 5, 6)
        fails = rng.random(6) < 0.5
        for name in ("clean", "tried"):
            (tmp_path / f"{name}{case}").mkdir()
        good = [toy_episode(n, int(k)) for n, k in enumerate(lengths) if not fails[n]]
        clean = write_shard(tmp_path / f"clean{case}", "train-00000", "train", good)
        with writer(tmp_path / f"tried{case}") as made:
            for n, k in enumerate(lengths):
                fields = toy_episode(n, int(k))
                if fails[n]:
                    fields["frames"] = failing(fields["frames"], int(rng.integers(k)), Boom("lost"))
                    with pytest.raises(Boom):
                        made.write_episode(**fields)
                else:
                    made.write_episode(**fields)
            assert made.close() == clean
