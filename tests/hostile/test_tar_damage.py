"""Cut, flipped and malicious tars: never a silent loss, never an exception that is not ours."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wdsmix.errors import DataError
from wdsmix.shards.tario import BLOCK, END, Member, iter_members, padding, ustar_header

FILES = [(f"000000_00000{i}.cam0.jpg", bytes([65 + i]) * (700 * i)) for i in range(4)]
TAR = b"".join(ustar_header(name, len(data)) + data + padding(len(data)) for name, data in FILES) + END
MEMBERS = list(iter_members(TAR, expect_end=True))


def members(data: bytes) -> list[Member]:
    return list(iter_members(data, path="a.tar", expect_end=True))


@pytest.mark.parametrize("length", range(0, len(TAR), 100))
def test_a_cut_anywhere_is_seen(length: int) -> None:
    with pytest.raises(DataError, match="cut") as caught:
        members(TAR[:length])
    assert caught.value.path == "a.tar"
    assert caught.value.where is not None
    assert caught.value.where.startswith("byte ")


@pytest.mark.parametrize("border", [0, *(m.end for m in MEMBERS)])
def test_a_cut_at_a_member_border_is_seen(border: int) -> None:
    # webdataset reads half of the samples of such a shard and says nothing
    for length in {border, border + BLOCK} - {len(TAR)}:
        with pytest.raises(DataError, match="cut"):
            members(TAR[:length])


@given(st.sampled_from(MEMBERS), st.integers(0, BLOCK - 1), st.integers(0, 7))
def test_a_flipped_bit_in_a_header_is_seen(member: Member, place: int, bit: int) -> None:
    data = bytearray(TAR)
    data[member.start + place] ^= 1 << bit
    if 154 <= place < 156:  # the terminator of the checksum means nothing
        assert members(bytes(data)) == MEMBERS
        return
    with pytest.raises(DataError) as caught:
        members(bytes(data))
    assert caught.value.where == f"byte {member.start}"


def forged(change: Callable[[bytearray], None], body: bytes = b"") -> bytes:
    header = bytearray(ustar_header("a.txt", len(body)))
    change(header)
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + body + padding(len(body)) + END


def _field(start: int, value: bytes) -> Callable[[bytearray], None]:
    def change(header: bytearray) -> None:
        header[start : start + len(value)] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_field(124, b"77777777777\0"), "cut inside a member"),
        (_field(124, b"-0000000001\0"), "bad size"),
        (_field(124, b"0000000000_1"), "bad size"),
        (_field(124, b"00000000019\0"), "bad size"),
        (_field(124, b"\xff" * 12), "bad size"),
        (_field(124, b"\x80" + b"\x7f" * 11), "cut inside a member"),
        (_field(124, "٣".encode() * 6), "bad size"),
        (_field(156, b"1"), "neither a file nor a folder"),
        (_field(156, b"2"), "neither a file nor a folder"),
        (_field(156, b"3"), "neither a file nor a folder"),
        (_field(156, b"S"), "neither a file nor a folder"),
        (_field(156, b"x"), "no member"),
        (_field(156, b"L"), "no member"),
    ],
)
def test_forged_headers_are_refused(change: Callable[[bytearray], None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        members(forged(change))


@pytest.mark.parametrize(
    "record",
    [
        b"12 size=-10\n",
        b"99 path=a\n",
        b"0 path=a\n",
        b"-1 path=a\n",
        b"path=a\n",
        b"9 patha\n\n",
        b"11 path=ab ",
        b"25 size=99999999999999999\n",
        b"28 GNU.sparse.realsize=1000\n",
        b"\0" * 20,
        b"22 size=12345678901234567890\n",
    ],
)
def test_forged_pax_records_are_refused(record: bytes) -> None:
    header = forged(_field(156, b"x"), record)[: -len(END)]
    with pytest.raises(DataError):
        members(header + TAR)


def test_an_extension_header_can_not_ask_for_much_memory() -> None:
    with pytest.raises(DataError, match="too large"):
        members(forged(_field(156, b"x"), bytes(2 << 20)))


@given(st.binary(max_size=2000), st.integers(0, len(TAR) - 1))
def test_garbage_raises_our_error_or_nothing(noise: bytes, place: int) -> None:
    for data in (noise, TAR[:place] + noise, TAR[:place] + noise + TAR[place + len(noise) :]):
        for member in _tolerant(data):
            assert 0 <= member.start < member.data <= member.data + member.size <= member.end <= len(data)


def _tolerant(data: bytes) -> list[Member]:
    found: list[Member] = []
    with contextlib.suppress(DataError):
        found.extend(iter_members(data, expect_end=True))
    return found
