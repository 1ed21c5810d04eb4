"""Tar by hand against the standard library, GNU tar and webdataset's naming rule."""

from __future__ import annotations

import io
import mmap
import shutil
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from webdataset.tariterators import base_plus_ext

from wdsmix.errors import DataError
from wdsmix.shards.tario import BLOCK, END, iter_members, padding, split_name, ustar_header

NAMES = st.text("abcXYZ019._-/é任", min_size=1, max_size=60).filter(
    lambda n: not n.endswith("/") and not n.startswith("/") and "//" not in n
)


def our_tar(files: list[tuple[str, bytes]]) -> bytes:
    return b"".join(ustar_header(name, len(data)) + data + padding(len(data)) for name, data in files) + END


def std_tar(files: list[tuple[str, bytes]], form: int, **headers: dict[str, str]) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w", format=form, **headers) as tar:
        for name, data in files:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return sink.getvalue()


def read(data: bytes, **options: object) -> list[tuple[str, bytes]]:
    return [(m.name, bytes(data[m.data : m.data + m.size])) for m in iter_members(data, expect_end=True, **options)]


@settings(max_examples=150)
@given(NAMES, st.integers(0, 8**11 - 1))
def test_header_is_byte_for_byte_what_tarfile_writes(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    theirs = info.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    # tarfile writes "0000000" for the devices of a file since 3.13 and zeros before; both are the same to a reader
    ours = bytearray(ustar_header(name, size))
    if theirs[329:345] != ours[329:345]:
        ours[329:345] = theirs[329:345]
        ours[148:156] = b"%06o\0 " % (sum(ours[:148]) + sum(ours[156:]) + 256)
    assert bytes(ours) == theirs


@pytest.mark.parametrize("length", [99, 100, 101, 150, 255])
def test_long_names_use_the_prefix_as_tarfile_does(length: int) -> None:
    name = "/".join(["d" * 30] * 9)[: length - 8] + "/x12.jpg"
    name = name.replace("//", "/d")
    data = our_tar([(name, b"abc")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == [name]
    assert read(data) == [(name, b"abc")]


@pytest.mark.parametrize(
    ("name", "size"), [("x" * 101, 1), ("a/" + "y" * 200, 1), ("", 0), ("a\0b", 1), ("a", -1), ("a", 8**11)]
)
def test_what_ustar_cannot_hold_is_refused(name: str, size: int) -> None:
    with pytest.raises(ValueError):
        ustar_header(name, size)


@settings(max_examples=60)
@given(
    st.lists(st.tuples(NAMES, st.binary(max_size=1100)), max_size=6),
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
)
def test_reads_what_tarfile_writes(files: list[tuple[str, bytes]], form: int) -> None:
    data = std_tar(files, form)
    assert read(data) == files
    members = list(iter_members(data, expect_end=True))
    assert [m.start for m in members] == [0, *(m.end for m in members[:-1])][: len(members)]
    with tarfile.open(fileobj=io.BytesIO(our_tar(files))) as tar:
        assert [(i.name, tar.extractfile(i).read()) for i in tar.getmembers()] == files  # type: ignore[union-attr]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_extension_headers_give_long_names_and_belong_to_their_member(form: int) -> None:
    files = [("a.jpg", b"1"), ("é" * 70 + "/" + "n" * 180 + ".cam0.jpg", b"22"), ("b.jpg", b"333")]
    data = std_tar(files, form)
    assert read(data) == files
    first, long, last = iter_members(data)
    assert (long.start, last.start) == (first.end, long.end)
    assert long.data > long.start + BLOCK
    (alone,) = iter_members(data, long.start, long.end)
    assert alone.name == files[1][0]


def test_pax_records_override_name_and_size_and_global_ones_hold_for_all() -> None:
    data = std_tar([("a", b"1"), ("b", b"2")], tarfile.PAX_FORMAT, pax_headers={"comment": "x" * 900})
    assert read(data) == [("a", b"1"), ("b", b"2")]
    record = b"19 size=0000000003\n"
    extended = _with(ustar_header("h", len(record)), kind=b"x") + record + padding(len(record))
    assert read(extended + ustar_header("a", 0) + b"abc" + padding(3) + END) == [("a", b"abc")]


def test_folders_are_passed_over_and_large_sizes_in_base_256_are_understood() -> None:
    folder = _with(ustar_header("d/", 0), kind=b"5")
    big = bytearray(ustar_header("a", 3))
    big[124:136] = b"\x80" + (3).to_bytes(11, "big")
    assert read(folder + bytes(_checked(big)) + b"abc" + padding(3) + END) == [("a", b"abc")]


def test_old_v7_headers_are_understood() -> None:
    old = bytearray(ustar_header("a.txt", 2))
    old[156:157] = b"\0"
    old[257:345] = bytes(88)
    assert read(bytes(_checked(old)) + b"hi" + padding(2) + END) == [("a.txt", b"hi")]


def _checked(header: bytearray) -> bytearray:
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return header


def _with(header: bytes, kind: bytes) -> bytes:
    changed = bytearray(header)
    changed[156:157] = kind
    return bytes(_checked(changed))


@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview, lambda b: np.frombuffer(b, np.uint8)])
def test_any_buffer_and_any_range(wrap: object) -> None:
    data = our_tar([(f"k{i}.txt", bytes(i * 300)) for i in range(5)])
    members = list(iter_members(wrap(data), expect_end=True))  # type: ignore[operator]
    assert [m.name for m in members] == [f"k{i}.txt" for i in range(5)]
    inner = list(iter_members(wrap(data), members[1].start, members[3].end))  # type: ignore[operator]
    assert inner == members[1:4]
    assert list(iter_members(wrap(data), 0, 0)) == []  # type: ignore[operator]
    with pytest.raises(ValueError, match="outside"):
        list(iter_members(wrap(data), 0, len(data) + 1))  # type: ignore[operator]


def test_a_memory_map_is_let_go_of(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    path.write_bytes(our_tar([("a.txt", b"x")]))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert [m.name for m in iter_members(mapped)] == ["a.txt"]  # leaving closes the map: no view may be left


@given(st.text("ab./", max_size=12))
def test_names_split_as_webdataset_splits_them(name: str) -> None:
    key, suffix = base_plus_ext(name)
    assert split_name(name) == ((name, "") if key is None else (key, suffix))


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar command")
def test_the_tar_command_lists_and_extracts(tmp_path: Path) -> None:
    files = [(f"00000{i}_000000.{s}", f"{i}{s}".encode() * 200) for i in range(3) for s in ("cam0.jpg", "json")]
    path = tmp_path / "a.tar"
    path.write_bytes(our_tar(files))
    listed = subprocess.run(["tar", "tf", str(path)], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == [name for name, _ in files]
    assert not listed.stderr
    subprocess.run(["tar", "xf", str(path), "-C", str(tmp_path)], check=True)
    assert all((tmp_path / name).read_bytes() == data for name, data in files)


def test_end_marker_padded_to_a_record_is_fine_and_other_data_is_not() -> None:
    data = our_tar([("a", b"x")])
    assert read(data + bytes(10240)) == [("a", b"x")]
    with pytest.raises(DataError, match="data after it"):
        read(data + our_tar([("b", b"y")]))
