"""Damaged and malicious shard sets: `DataError` naming the file, never a crash, never wrong data in silence."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers.damage import seal
from helpers.sets import VECTORS, toy_set

from wdsmix.errors import ConfigError, DataError, WdsmixError
from wdsmix.manifest import INDEX_SCHEMA
from wdsmix.shards.files import file_entry
from wdsmix.shards.reader import ShardSet

SHARD = "train-00000"


@pytest.fixture
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(_pristine(tmp_path_factory), tmp_path / "set"))


_MADE: list[Path] = []


def _pristine(factory: pytest.TempPathFactory) -> Path:
    if not _MADE:
        path = factory.mktemp("pristine")
        toy_set(path)
        _MADE.append(path)
    return _MADE[0]


def read_all(folder: Path) -> None:
    opened = ShardSet(folder)
    _ = opened.stats
    for i in range(len(opened)):
        opened.frame(i)
    for i in range(len(opened.index)):
        opened.index.source(i)
        opened.index.tasks(i)
        opened.index.extras(i)


def refused(folder: Path, name: str, message: str = "") -> DataError:
    with pytest.raises(DataError, match=message or None) as caught:
        read_all(folder)
    assert name in str(caught.value.path)
    return caught.value


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = folder / "manifest.json"
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(seal(value))


def bless(folder: Path, name: str) -> None:
    """Makes the manifest agree with a forged file: what an attacker would do."""
    entry = file_entry(folder / name).model_dump()

    def change(manifest: dict[str, Any]) -> None:
        manifest["files"] = [entry if old["name"] == name else old for old in manifest["files"]]

    edit_manifest(folder, change)


FILES = ("index.parquet", "stats.json", f"{SHARD}.tar", f"{SHARD}.frames.arrow")


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    refused(folder, name, "missing")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("keep", [0, 1, 500, -1])
def test_a_cut_file_is_named(folder: Path, name: str, keep: int) -> None:
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:keep])
    refused(folder, name, "not as long")


@pytest.mark.parametrize("name", FILES)
def test_one_flipped_bit_is_seen(folder: Path, name: str) -> None:
    data = (folder / name).read_bytes()
    for place in np.random.default_rng(0).integers(0, len(data) - 1100, 12):
        changed = bytearray(data)
        changed[place] ^= 1 << int(place % 8)
        (folder / name).write_bytes(bytes(changed))
        error = refused(folder, name, "checksum")
        if name.endswith(".tar"):
            assert error.where is not None
            assert error.where.startswith("offset ")
            assert "sample 00000" in error.where
            assert error.expected is not None
            assert error.found is not None


def test_a_folder_in_place_of_a_file_and_a_file_that_can_not_be_read(folder: Path) -> None:
    (folder / f"{SHARD}.tar").unlink()
    (folder / f"{SHARD}.tar").mkdir()
    refused(folder, f"{SHARD}.tar")


def test_an_unfinished_set_says_so(folder: Path, tmp_path: Path) -> None:
    (folder / "manifest.json").unlink()
    error = refused(folder, "set", "not finished: no manifest.json")
    assert error.hint is not None
    with pytest.raises(ConfigError, match="no such folder"):
        ShardSet(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match="no such folder"):
        ShardSet(folder / "stats.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"format": "wdsmix"}', "\ud800", "[" * 100_000, '"x"'])
def test_a_manifest_that_is_none(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    refused(folder, "manifest.json", "not a valid manifest")


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        *parents, last = path.split(".")
        place: Any = manifest
        for key in parents:
            place = place[int(key)] if isinstance(place, list) else place[key]
        place[int(last) if isinstance(place, list) else last] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("format_version", 2), "unknown format version"),
        (_set("format", "other"), "not a valid"),
        (_set("files.0.name", "../evil"), "not a valid"),
        (_set("files.0.name", "/etc/passwd"), "not a valid"),
        (_set("files.0.name", "a\n"), "not a valid"),
        (_set("files.0.bytes", -1), "not a valid"),
        (_set("files.0.sha256", "zz"), "not a valid"),
        (_set("files", []), "does not list"),
        (_set("shards", ["../../etc/x", "train-00001", "val-00000"]), "does not list"),
        (_set("shards", ["train-00000", "train-00000", "val-00000"]), "twice"),
        (_set("shards", ["train-00000"]), "not list"),
        (_set("shards", ["val-00000", "train-00001", "train-00000"]), "order of the shards"),
        (_set("counts.episodes", 6), "episodes"),
        (_set("counts.frames", 21), "frames"),
        (_set("vectors.state.width", 4), "columns"),
        (_set("vectors.state.width", 2**40), "frame table|columns"),
        (_set("vectors.extra", {"width": 1, "member": "extra.npy", "frames": 0}), "columns"),
        (_set("surprise", 1), "not a valid"),
    ],
)
def test_a_manifest_that_lies(folder: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    edit_manifest(folder, change)
    with pytest.raises(DataError, match=message):
        read_all(folder)


def forge_frames(folder: Path, change: Callable[[dict[str, Any]], None], schema: pa.Schema | None = None) -> None:
    path = folder / f"{SHARD}.frames.arrow"
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    columns = {name: table[name].combine_chunks() for name in table.schema.names}
    change(columns)
    schema = schema or pa.schema(
        [
            pa.field(n, a.type, table.schema.field(n).nullable if n in table.schema.names else True)
            for n, a in columns.items()
        ],
        metadata=table.schema.metadata,
    )
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(list(columns.values()), schema=schema))
    bless(folder, path.name)


def _row(name: str, row: int, value: int) -> Callable[[dict[str, Any]], None]:
    def change(columns: dict[str, Any]) -> None:
        values = columns[name].to_numpy(zero_copy_only=False).copy()
        values[row] = value
        columns[name] = pa.array(values, columns[name].type)

    return change


def _drop(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda columns: columns.pop(name)


def _shorten(columns: dict[str, Any]) -> None:
    columns.update({name: array[:-1] for name, array in columns.items()})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_row("offset", 3, 2**64 - 1), "outside of the tar"),
        (_row("offset", 6, 10**9), "outside of the tar"),
        (_row("length", 6, 2**32 - 1), "outside of the tar"),
        (_row("length", 6, 10**6), "outside of the tar"),
        (_row("task", 2, 1000), "task"),
        (_row("offset", 0, 512), "differ in where"),
        (_row("length", 3, 512), "differ in where"),
        (_row("crc32c", 2, 0), "checksum"),
        (_row("offset", 2, 512), "checksum"),
        (_drop("crc32c"), "columns"),
        (_drop("vector:state"), "columns"),
        (_shorten, "rows"),
    ],
)
def test_a_frame_table_that_lies(folder: Path, change: Callable[[dict[str, Any]], None], message: str) -> None:
    forge_frames(folder, change)
    with pytest.raises(DataError, match=message) as caught:
        read_all(folder)
    assert SHARD in str(caught.value.path)


def test_a_frame_table_with_nulls_other_types_or_another_version(folder: Path) -> None:
    pristine = (folder / f"{SHARD}.frames.arrow").read_bytes()

    def forged(change: Callable[[dict[str, Any]], None], message: str) -> None:
        (folder / f"{SHARD}.frames.arrow").write_bytes(pristine)
        forge_frames(folder, change)
        refused(folder, f"{SHARD}.frames.arrow", message)

    forged(lambda c: c.update(frame=pa.array([0, None, 2, 3, 0, 1, 2], pa.uint32())), "null")
    forged(lambda c: c.update(frame=c["frame"].cast(pa.int64())), "columns")
    inner = pa.array([None] + [0.0] * 20, pa.float32())
    forged(lambda c: c.update({"vector:state": pa.FixedSizeListArray.from_arrays(inner, 3)}), "missing values")
    wide = pa.FixedSizeListArray.from_arrays(pa.array([0.0] * 28, pa.float32()), 4)
    forged(lambda c: c.update({"vector:state": wide}), "columns")
    (folder / f"{SHARD}.frames.arrow").write_bytes(b"ARROW1\0\0" + bytes(200) + b"ARROW1")
    bless(folder, f"{SHARD}.frames.arrow")
    refused(folder, f"{SHARD}.frames.arrow", "not a readable frame table")


@pytest.mark.parametrize("metadata", [{}, {b"wdsmix": b"9", b"tasks": b"[]"}, {b"wdsmix": b"1", b"tasks": b"{"}])
def test_a_frame_table_without_its_notes(folder: Path, metadata: dict[bytes, bytes]) -> None:
    path = folder / f"{SHARD}.frames.arrow"
    with pa.OSFile(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
    forge_frames(folder, lambda columns: None, batch.schema.with_metadata(metadata))
    refused(folder, path.name)


def forge_index(folder: Path, change: Callable[[list[dict[str, Any]]], None], schema: pa.Schema = INDEX_SCHEMA) -> None:
    path = folder / "index.parquet"
    rows = pq.read_table(path).to_pylist()
    change(rows)
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), path)
    bless(folder, path.name)


def _cell(row: int, name: str, value: object) -> Callable[[list[dict[str, Any]]], None]:
    return lambda rows: rows[row].update({name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_cell(0, "shard", "../evil"), "does not list"),
        (_cell(0, "shard", "val-00000"), "order of the shards"),
        (_cell(1, "first_row", 5), "differ in rows"),
        (_cell(1, "frames", 400), "frames"),
        (_cell(1, "offset", 2**63), "out of range"),
        (_cell(1, "offset", 512), "differ in where"),
        (_cell(1, "length", 512), "differ in where"),
        (_cell(1, "extras", "{"), "not JSON"),
        (_cell(1, "extras", "[]"), "not a JSON object"),
        (lambda rows: rows.pop(), "episodes"),
        (lambda rows: rows.clear(), "episodes"),
    ],
)
def test_an_index_that_lies(folder: Path, change: Callable[[list[dict[str, Any]]], None], message: str) -> None:
    forge_index(folder, change)
    with pytest.raises(DataError, match=message):
        read_all(folder)


def test_an_index_of_other_columns_or_no_parquet(folder: Path) -> None:
    narrow = pa.schema([field for field in INDEX_SCHEMA if field.name != "extras"])
    forge_index(folder, lambda rows: [row.pop("extras") for row in rows] and None, narrow)
    refused(folder, "index.parquet", "not the columns")
    for noise in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", os.urandom(3000)):
        (folder / "index.parquet").write_bytes(noise)
        bless(folder, "index.parquet")
        refused(folder, "index.parquet", "not a readable episode index")


def test_nulls_in_the_index(folder: Path) -> None:
    loose = pa.schema([pa.field(field.name, field.type) for field in INDEX_SCHEMA])
    forge_index(folder, _cell(2, "frames", None), loose)
    refused(folder, "index.parquet")


@pytest.mark.parametrize("text", ["", "{", '{"split": "train"}', '{"split": "train", "fields": {"state": {}}}'])
def test_statistics_that_are_none(folder: Path, text: str) -> None:
    (folder / "stats.json").write_text(text)
    bless(folder, "stats.json")
    refused(folder, "stats.json", "not a valid stats")


def test_a_frame_whose_members_are_not_one_sample(folder: Path) -> None:
    tar, table = folder / f"{SHARD}.tar", f"{SHARD}.frames.arrow"
    data = bytearray(tar.read_bytes())
    shard = ShardSet(folder).shard(0)
    first = int(shard.length[0])

    def forge(old: bytes, new: bytes) -> None:
        changed = bytearray(data)
        place = changed.index(old)
        changed[place : place + len(old)] = new
        header = place // 512 * 512
        changed[header + 148 : header + 156] = b" " * 8
        changed[header + 148 : header + 156] = b"%06o\0 " % sum(changed[header : header + 512])
        tar.write_bytes(bytes(changed))
        bless(folder, tar.name)
        crc = google_crc32c.value(bytes(changed[:first]))
        forge_frames(folder, _row("crc32c", 0, crc))

    forge(b"000000_000000.state.npy", b"000000_000009.state.npy")
    error = refused(folder, tar.name, "not the members of one sample")
    assert error.where is not None
    assert "sample 000000_000000" in error.where
    forge(b"000000_000000.cam1.jpg", b"000000_000000.cam0.jpg")
    refused(folder, tar.name, "not the members of one sample")
    forge(b"000000_000000.json", b"000000_000000.jso\0")
    assert ShardSet(folder).frame(0).extras == {}
    assert table in {entry.name for entry in ShardSet(folder).manifest.files}


FUZZ = """
import sys
from pathlib import Path
import numpy as np
from wdsmix.errors import DataError
from wdsmix.shards.files import file_entry
from wdsmix.shards.frames import read_frames
from wdsmix.shards.index import EpisodeIndex
source, work, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
data = source.read_bytes()
rng = np.random.default_rng(seed)
VECTORS = {"state": 3, "action": 2, "reward": 1, "text_emb": 4}
refused = 0
for _ in range(int(sys.argv[4])):
    changed = np.frombuffer(data, np.uint8).copy()
    for _ in range(int(rng.integers(1, 6))):
        kind, place = rng.integers(3), rng.integers(len(changed))
        if kind == 0:
            changed[place] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            changed[place : place + 8] = rng.choice([0, 255, 127, 128])
        else:
            changed[place : place + 4] = np.frombuffer(rng.bytes(len(changed[place : place + 4])), np.uint8)
    work.write_bytes(changed.tobytes())
    try:
        if source.name.endswith(".arrow"):
            table = read_frames(work, file_entry(work), VECTORS, verify=False)
            sum(float(np.nansum(part)) for part in table.vectors.values())
            sum(int(part.astype(np.int64).sum()) for part in table.columns.values() if part.dtype.kind == "u")
        else:
            index = EpisodeIndex.open(work, file_entry(work), ["train-00000", "train-00001", "val-00000"])
            for i in range(len(index)):
                index.source(i), index.tasks(i), index.extras(i), index.duration(i)
    except DataError as error:
        assert error.path == str(work), error
        refused += 1
sys.stdout.write(f"{refused}")
"""


@pytest.mark.parametrize("name", [f"{SHARD}.frames.arrow", "index.parquet"])
def test_random_damage_behind_valid_checksums_never_crashes(folder: Path, tmp_path: Path, name: str) -> None:
    # in a process of its own: what this guards against is a crash of the interpreter
    script = tmp_path / "fuzz.py"
    script.write_text(FUZZ)
    done = subprocess.run(
        [sys.executable, str(script), str(folder / name), str(tmp_path / name), "7", "300"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > 50
    assert set(VECTORS) == {"state", "action", "reward", "text_emb"}


def test_every_error_is_ours(folder: Path) -> None:
    """Cuts every file short in turn, at several places, and blesses the result."""
    pristine = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name in FILES:
        for share in (0.0, 0.3, 0.7, 0.99):
            for other, data in pristine.items():
                (folder / other).write_bytes(data)
            (folder / name).write_bytes(pristine[name][: int(len(pristine[name]) * share)])
            bless(folder, name)
            with pytest.raises(WdsmixError):
                read_all(folder)
