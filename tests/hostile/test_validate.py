"""Full validation finds every kind of damage, names kind and place, and never raises."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.ipc
import pytest
from helpers.damage import (
    dying_worker,
    edit_index,
    edit_manifest,
    edit_table,
    edit_tar,
    faults,
    flip,
    full,
    kinds,
    rehash,
    stats_json,
)
from helpers.sets import picture, toy_set
from hypothesis import given, settings
from hypothesis import strategies as st

from wdsmix.shards.faults import Faults
from wdsmix.shards.verify import verify


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "toy"
    toy_set(folder)
    return folder


@pytest.fixture
def toy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "toy"))


def _member(folder: Path, shard: str, name: str) -> tarfile.TarInfo:
    with tarfile.open(folder / f"{shard}.tar") as tar:
        return tar.getmember(name)


def _npy(values: list[float], dtype: str = "<f4") -> bytes:
    out = io.BytesIO()
    np.save(out, np.array(values, dtype))
    return out.getvalue()


def test_a_whole_set_has_no_faults(toy: Path) -> None:
    for level in ("list", "quick", "full"):
        report = verify(toy, level=level)
        assert report.ok, list(report.faults)
    assert report.faults.examined["picture"] == 38
    assert report.faults.examined["crc"] == 20
    assert report.faults.examined["header"] == 38 + 3 * 20 + 20  # pictures, vectors, JSON


def test_a_flipped_bit_in_a_picture(toy: Path) -> None:
    info = _member(toy, "train-00000", "000001_000002.cam1.jpg")
    flip(toy / "train-00000.tar", info.offset_data + info.size // 2, 3)
    report = full(toy)
    [crc] = faults(report, "crc")
    assert crc.file == "train-00000.tar"
    first = _member(toy, "train-00000", "000001_000002.cam0.jpg")
    assert crc.where == f"row 6, 000001_000002, byte {first.offset}"
    assert len(crc.expected) == len(crc.found) == 8
    assert {fault.file for fault in faults(report, "checksum")} == {"train-00000.tar"}
    assert "header" not in kinds(report)
    assert verify(toy).ok  # the quick level does not read tars


def test_a_flipped_bit_in_a_vector_member(toy: Path) -> None:
    info = _member(toy, "val-00000", "000005_000003.state.npy")
    flip(toy / "val-00000.tar", info.offset_data + info.size - 1, 7)
    report = full(toy)
    [vector] = faults(report, "vector")
    assert vector.where.startswith("row 3, 000005_000003, byte ")
    assert vector.where.endswith("state.npy")
    assert "dimension 2" in vector.message
    assert float(vector.expected) == -float(vector.found)  # plain numbers, no spelling of numpy's
    assert len(faults(report, "crc")) == 1


def test_values_in_faults_are_plain() -> None:
    collected = Faults()
    one = np.float32(-0.07)
    for value in (one, (one, np.int64(3)), [one], np.array([one]), np.array([1, 2]), (1,), ("a", np.bool_(True))):
        collected.add("vector", "f", "m", found=value)
    found = [fault.found for fault in collected]
    assert found == ["-0.07", "(-0.07, 3)", "[-0.07]", "[-0.07]", "[1, 2]", "(1,)", "('a', True)"]


@pytest.mark.parametrize("byte", [0, 105, 130, 140, 150, 156, 260, 400, 511])
def test_a_flipped_bit_in_a_header(toy: Path, byte: int) -> None:
    info = _member(toy, "train-00001", "000002_000001.action.npy")
    flip(toy / "train-00001.tar", info.offset_data - 512 + byte, 0)
    report = full(toy)
    [header] = faults(report, "header")
    assert header.file == "train-00001.tar"
    assert header.where == f"byte {info.offset}, row 1"
    assert [fault.where.split(",")[0] for fault in faults(report, "crc")] == ["row 1"]


def test_a_flipped_bit_in_padding_with_right_checksums(toy: Path) -> None:
    info = _member(toy, "train-00001", "000002_000000.json")
    edit_tar(toy, "train-00001", lambda members: None)
    assert full(toy).ok
    flip(toy / "train-00001.tar", info.offset_data + info.size)
    assert faults(full(toy), "header")[0].where == f"byte {info.offset_data + info.size}, row 0"


def test_a_flipped_bit_in_a_value_of_frames_arrow(toy: Path) -> None:
    path = toy / "train-00000.frames.arrow"
    value = pa_vectors(path, "state")[5]
    at = path.read_bytes().index(value.tobytes())
    flip(path, at + 4, 2)
    report = full(toy)
    assert faults(report, "checksum")[0].file == path.name
    [vector] = faults(report, "vector")
    assert vector.where.startswith("row 5, 000001_000001, byte ")
    assert "dimension 1 differs from frames.arrow" in vector.message
    assert "checksum" in kinds(verify(toy))


def pa_vectors(path: Path, name: str) -> np.ndarray:
    with pyarrow.ipc.open_file(path.read_bytes()) as reader:
        return np.array(reader.read_all().column(f"vector:{name}").to_pylist(), np.float32)


@pytest.mark.parametrize("cut", [1, 1024, 1500, 20000, None])
def test_a_truncated_tar(toy: Path, cut: int | None) -> None:
    path = toy / "train-00000.tar"
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size - cut] if cut else b"")
    report = full(toy)
    [fault] = faults(report, "size")
    assert (fault.file, fault.expected) == (path.name, f"{size} bytes")
    assert fault.found == f"{size - (cut or size)} bytes"
    assert {"checksum", "frames", "header" if cut != 20000 else "crc"} <= kinds(report)
    if cut == 20000:
        assert faults(report, "crc")[0].where.startswith("row ")
        assert "beyond the end" in faults(report, "crc")[0].message
    assert not verify(toy, level="list").ok


def test_a_tar_cut_at_a_member_border_with_right_checksums(toy: Path) -> None:
    path = toy / "train-00000.tar"
    border = _member(toy, "train-00000", "000001_000002.cam0.jpg").offset
    path.write_bytes(path.read_bytes()[:border])
    rehash(toy)
    report = verify(toy)
    [fault] = faults(report, "frames")
    assert fault.where.startswith("row 6, 000001_000002")
    assert {"crc", "frames"} <= kinds(full(toy))


@pytest.mark.parametrize("name", ["train-00001.tar", "train-00001.frames.arrow", "index.parquet", "stats.json"])
def test_a_missing_file(toy: Path, name: str) -> None:
    (toy / name).unlink()
    for level in ("list", "quick", "full"):
        report = verify(toy, level=level)
        assert [fault.file for fault in faults(report, "missing")] == [name]
    if name.endswith(".arrow"):
        assert faults(report, "crc") == []


def test_a_wrong_stats_file(toy: Path) -> None:
    path = toy / "stats.json"
    value = json.loads(path.read_bytes())
    value["fields"]["state"]["mean"][1] += 1e-6
    value["fields"]["action"]["histogram"][0]["counts"][0] += 1
    path.write_bytes(stats_json(value))
    assert {fault.file for fault in faults(verify(toy), "checksum")} == {"stats.json"}
    rehash(toy)
    assert verify(toy).ok
    report = full(toy)
    assert kinds(report) == {"stats"}
    assert {fault.where for fault in faults(report, "stats")} == {"state.mean[1]", "action.histogram[0]"}
    assert {fault.file for fault in faults(report, "stats")} == {"stats.json"}


def test_stats_of_other_rows(toy: Path) -> None:
    path = toy / "stats.json"
    value = json.loads(path.read_bytes())
    value["fields"]["other"] = value["fields"].pop("reward")
    path.write_bytes(stats_json(value))
    rehash(toy)
    assert {fault.where for fault in faults(full(toy), "stats")} == {"other", "reward"}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_state_that_is_not_finite_with_right_checksums(toy: Path, value: float) -> None:
    def spoil(members: list[tuple[str, bytes]]) -> None:
        k = [name for name, _ in members].index("000002_000003.state.npy")
        members[k] = (members[k][0], _npy([0.5, value, 0.25]))

    def row(vectors: dict[str, np.ndarray]) -> None:
        vectors["state"][3] = [0.5, value, 0.25]

    edit_tar(toy, "train-00001", spoil, row)
    report = full(toy)
    assert kinds(report) == {"vector"}
    assert {fault.file for fault in faults(report, "vector")} == {"train-00001.frames.arrow"}
    assert faults(report, "vector")[0].where.startswith("row 3, 000002_000003, byte ")
    assert "state" in faults(report, "vector")[0].message
    assert kinds(verify(toy)) == {"vector"}  # seen without reading the tar


def test_an_index_that_disagrees_with_the_tar(toy: Path) -> None:
    def shift(rows: list[dict]) -> None:
        rows[1]["offset"] += 512
        rows[1]["length"] -= 512

    edit_index(toy, shift)
    for level in ("quick", "full"):
        report = verify(toy, level=level)
        assert kinds(report) == {"index"}
        assert {fault.file for fault in faults(report, "index")} == {"index.parquet"}
        assert all("train-00000, episode 1" in fault.where for fault in faults(report, "index"))
        assert any("offset differs from train-00000.frames.arrow" in fault.message for fault in faults(report, "index"))


def test_index_and_table_agree_but_not_with_the_tar(toy: Path) -> None:
    def table(columns: dict[str, np.ndarray], *_: object) -> None:
        columns["length"][3] -= 512
        columns["offset"][4:] -= 512

    def rows(index: list[dict]) -> None:
        index[0]["length"] -= 512
        index[1]["offset"] -= 512

    edit_table(toy, "train-00000", table)
    edit_index(toy, rows)
    report = full(toy)
    assert "index" not in kinds(report)
    assert {"frames", "crc"} <= kinds(report)
    assert faults(report, "crc")[0].where.startswith("row 3,")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda rows: rows[0].update(frames=3), "rows"),
        (lambda rows: rows[0].update(first_row=1), "first_row"),
        (lambda rows: rows[0].update(shard="train-00007"), "no such shard"),
        (lambda rows: rows[0].update(split="val"), "split"),
        (lambda rows: rows[1].update(episode=0), "occurs twice"),
        (lambda rows: rows[0].update(tasks=[]), "no task"),
        (lambda rows: rows[0].update(tasks=["other"]), "tasks differs"),
        (lambda rows: rows[0].update(duration=float("nan")), "duration"),
        (lambda rows: rows[0].update(extras="[1]"), "extras"),
        (lambda rows: rows.reverse(), "order"),
        (lambda rows: rows.pop(), "differ"),
        (lambda rows: rows[3].update(episode=9), "episode of row 5 differs"),
    ],
)
def test_other_lies_in_the_index(toy: Path, change: object, word: str) -> None:
    edit_index(toy, change)  # type: ignore[arg-type]
    report = verify(toy)
    assert "index" in kinds(report)
    assert any(word in str(fault) for fault in report.faults), list(map(str, report.faults))


def test_a_dropped_episode_that_is_there(toy: Path) -> None:
    drop = {"episode": 2, "source_file": "a", "source_episode": "b", "kind": "episode", "reason": "bad"}
    edit_manifest(toy, lambda value: value["dropped"].append(drop))
    [fault] = faults(verify(toy), "index")
    assert "episode 2 is dropped" in fault.message


@pytest.mark.parametrize(
    ("change", "kind", "where"),
    [
        (lambda v: v["counts"].update(frames=21), "manifest", "counts.frames"),
        (lambda v: v["splits"]["val"].update(episodes=2), "manifest", "counts.episodes"),
        (lambda v: v.update(hz=0), "manifest", "hz"),
        (lambda v: v["shards"].pop(), "manifest", "files"),
        (lambda v: v["cameras"]["cam0"].update(frames=19), "counts", "cameras.cam0.frames"),
        (lambda v: v["cameras"]["cam0"].update(sizes=[[16, 12], [20, 20]]), "counts", "cameras.cam0.sizes"),
        (lambda v: v["cameras"]["cam1"].update(sizes=[[32, 32]]), "picture", "row 0, 000000_000000"),
        (lambda v: v["cameras"]["cam1"].update(encoding="png"), "picture", "row 0, 000000_000000"),
        (lambda v: v["vectors"]["reward"].update(frames=3), "counts", "vectors.reward.frames"),
        (lambda v: v["vectors"]["state"].update(width=4), "frames", ""),
        (lambda v: v["vectors"]["state"].update(names=["a"]), "manifest", "vectors.state.names"),
        (lambda v: v.update(format_version=2), "manifest", "format_version"),
    ],
)
def test_lies_in_the_manifest(toy: Path, change: object, kind: str, where: str) -> None:
    edit_manifest(toy, change)  # type: ignore[arg-type]
    found = faults(full(toy), kind)
    assert found
    assert any(where in fault.where for fault in found), list(map(str, found))


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100000, b'{"format": "wdsmix"}', b'{"a": NaN}', b"{}" * 10],
)
def test_a_manifest_that_is_none(toy: Path, data: bytes) -> None:
    (toy / "manifest.json").write_bytes(data)
    report = full(toy)
    assert kinds(report) == {"manifest"}
    assert [fault.file for fault in report.faults] == ["manifest.json"]
    (toy / "manifest.json").unlink()
    assert "not finished" in str(next(iter(full(toy).faults)))


@pytest.mark.parametrize("name", ["index.parquet", "stats.json", "val-00000.frames.arrow", "val-00000.tar"])
@pytest.mark.parametrize("data", [b"", b"x", b"ARROW1\0\0" * 20, b"PAR1" * 20, b"\0" * 4096])
def test_a_file_of_nonsense_with_right_checksums(toy: Path, name: str, data: bytes) -> None:
    (toy / name).write_bytes(data)
    rehash(toy)
    report = full(toy)
    assert not report.ok
    assert any(fault.file == name for fault in report.faults)


def _replace(name: str, data: bytes) -> object:
    def change(members: list[tuple[str, bytes]]) -> None:
        k = [found for found, _ in members].index(name)
        members[k] = (name, data)

    return change


@pytest.mark.parametrize(
    ("name", "data", "kind", "words"),
    [
        ("000000_000001.json", b"{}", "json", "episode differs"),
        ("000000_000001.json", b'{"episode":true', "json", "JSONDecodeError"),
        ("000000_000001.json", b"[" * 20000, "json", "RecursionError"),
        (
            "000000_000001.json",
            b'{"episode":0,"frame":2,"timestamp":0.1,"task":"task 0"}',
            "json",
            "frame differs from frames.arrow (expected 1, found 2)",
        ),
        (
            "000000_000001.json",
            b'{"episode":0,"frame":1,"timestamp":0.1,"task":"task 1"}',
            "json",
            "expected 'task 0', found 'task 1'",
        ),
        ("000000_000001.state.npy", _npy([1, 2, 3], "<f8"), "vector", "wrong dtype (expected float32, found float64)"),
        ("000000_000001.state.npy", _npy([1, 2]), "vector", "wrong shape (expected (3,), found (2,))"),
        ("000000_000001.state.npy", b"\x93NUMPY", "vector", "state.npy"),
        ("000000_000001.state.npy", np.array([1]).dumps(), "vector", "not a readable .npy"),
        ("000000_000001.state.npy", _npy([1, 2, 3], "O"), "vector", "pickled objects, which are never loaded"),
        ("000000_000001.state.npy", _npy([1, 2, 3])[:-1], "vector", "expected 12 bytes, found 11 bytes"),
        ("000000_000001.cam0.jpg", picture(1)[:-40], "picture", "cam0.jpg"),
        ("000000_000001.cam0.jpg", b"GIF89a", "picture", "wrong encoding (expected jpeg, found b'GIF89a')"),
        ("000000_000001.cam0.jpg", picture(1, 20, 12), "picture", "found (20, 12)"),
    ],
)
def test_a_member_that_is_not_what_it_claims(toy: Path, name: str, data: bytes, kind: str, words: str) -> None:
    edit_tar(toy, "train-00000", _replace(name, data))  # type: ignore[arg-type]
    report = full(toy)
    assert kinds(report) <= {kind, "counts"}
    assert all(fault.where.startswith("row 1, 000000_000001, byte ") for fault in faults(report, kind))
    assert any(words in str(fault) for fault in faults(report, kind)), list(map(str, faults(report, kind)))


def _rename(old: str, new: str) -> object:
    def change(members: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        return [(new if name == old else name, data) for name, data in members]

    return change


@pytest.mark.parametrize(
    "change",
    [
        _rename("000000_000001.action.npy", "000000_000002.action.npy"),
        _rename("000000_000001.action.npy", "000000_000001.velocity.npy"),
        _rename("000000_000001.cam1.jpg", "000000_000001.cam1.jpeg"),
        lambda members: [m for m in members if m[0] != "000000_000001.action.npy"],
        lambda members: [*members[:7], ("000000_000001.text_emb.npy", _npy([0, 0, 0, 0])), *members[7:]],
        lambda members: [*members[:6], members[7], members[6], *members[8:]],
    ],
)
def test_members_that_are_not_those_of_the_record(toy: Path, change: object) -> None:
    edit_tar(toy, "train-00000", change)  # type: ignore[arg-type]
    report = full(toy)
    found = faults(report, "members")
    assert found
    assert found[0].file == "train-00000.tar"
    assert found[0].where.startswith("row 1, 000000_000001, byte ")


def test_headers_that_are_valid_but_not_ours(toy: Path) -> None:
    def header(name: str, size: int) -> bytes:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = size, 7
        return info.tobuf(tarfile.USTAR_FORMAT)

    edit_tar(toy, "val-00000", lambda members: None, header=header)
    report = full(toy)
    assert kinds(report) == {"header"}
    assert report.faults.counts["header"] == 6 * 6
    assert len(faults(report, "header")) == 20  # the limit
    assert faults(report, "header")[0].where == "byte 0, row 0"


def test_bytes_after_the_end(toy: Path) -> None:
    edit_tar(toy, "val-00000", lambda members: None, end=bytes(1024) + b"more")
    report = full(toy)
    assert {"header", "frames"} == kinds(report)


def test_lies_in_a_frame_table(toy: Path) -> None:
    def change(columns: dict, vectors: dict, present: dict) -> None:
        columns["timestamp"][2] = np.nan
        columns["episode"][1] = 7
        columns["frame"][0] = 1
        columns["crc32c"][3] ^= 1
        present["reward"][0] = False
        vectors["reward"][0] = 1.0

    edit_table(toy, "train-00000", change)
    report = full(toy)
    assert {"frames", "index", "crc", "vector", "members", "json", "counts"} <= kinds(report)
    assert "timestamp is not finite" in str(faults(report, "frames")[0])
    assert [fault.where.split(",")[0] for fault in faults(report, "crc")] == ["row 3"]


def test_leftovers_and_foreign_files(toy: Path) -> None:
    (toy / ".work").mkdir()
    (toy / "train-00002.tar.partial").touch()
    (toy / "notes.txt").touch()
    (toy / ".hidden").touch()
    report = verify(toy, level="list")
    assert [fault.file for fault in faults(report, "leftover")] == [".work", "train-00002.tar.partial"]
    assert [fault.file for fault in faults(report, "extra")] == ["notes.txt"]


def test_names_that_leave_the_folder(toy: Path) -> None:
    (toy.parent / "out.tar").write_bytes(b"secret")
    edit_manifest(toy, lambda value: value["files"][0].update(name="../out.tar"))
    report = full(toy)
    assert kinds(report) == {"manifest"}
    toy_set(toy)
    edit_manifest(toy, lambda value: value["shards"].append("../out"))
    assert "manifest" in kinds(full(toy))


def test_processes_find_the_same(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = _member(toy, "train-00000", "000001_000002.cam1.jpg")
    flip(toy / "train-00000.tar", info.offset_data + 40, 1)
    flip(toy / "val-00000.frames.arrow", 2000, 1)
    done: list[int] = []
    alone = full(toy)
    monkeypatch.setattr("wdsmix.shards.verify._INLINE_BYTES", 0)
    together = full(toy, jobs=2, progress=lambda total: done.append)
    assert alone.to_json() == together.to_json()
    assert sum(done) >= 14


def test_a_process_that_dies_costs_its_shard_alone(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wdsmix.shards.verify._INLINE_BYTES", 0)
    monkeypatch.setattr("wdsmix.shards.verify._in_worker", dying_worker)
    report = full(toy, jobs=2)
    assert [fault.file for fault in faults(report, "header")] == ["train-00001.tar"]
    assert "died" in faults(report, "header")[0].message
    assert report.faults.examined["crc"] == 13  # of the other two shards


FILES = (
    "index.parquet",
    "stats.json",
    "train-00000.frames.arrow",
    "train-00001.frames.arrow",
    "val-00000.frames.arrow",
    "train-00000.tar",
    "train-00001.tar",
    "val-00000.tar",
)


@settings(max_examples=60)
@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_flipped_bit_is_found(whole: Path, name: str, place: float, bit: int) -> None:
    path = whole / name
    byte = int(place * path.stat().st_size)
    flip(path, byte, bit)
    try:
        report = full(whole)
    finally:
        flip(path, byte, bit)
    assert [fault.file for fault in faults(report, "checksum")] == [name, name]  # sha256 and crc32c


@settings(max_examples=60)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_any_flipped_bit_of_the_manifest_is_found(whole: Path, place: float, bit: int) -> None:
    path = whole / "manifest.json"
    byte = int(place * path.stat().st_size)
    flip(path, byte, bit)
    try:
        report = full(whole)
    finally:
        flip(path, byte, bit)
    assert not report.ok
    assert "manifest" in kinds(report)


@settings(max_examples=60)
@given(st.sampled_from(FILES), st.floats(0, 1, exclude_max=True), st.integers(0, 7))
def test_flipped_bits_with_right_checksums_never_raise(
    whole: Path, tmp_path_factory: pytest.TempPathFactory, name: str, place: float, bit: int
) -> None:
    folder = Path(shutil.copytree(whole, tmp_path_factory.mktemp("flip") / "toy"))
    path = folder / name
    flip(path, int(place * path.stat().st_size), bit)
    rehash(folder)
    report = full(folder)
    if name.endswith(".tar"):
        assert not report.ok  # a tar's bytes are covered by the frame table too
    shutil.rmtree(folder)
