"""Sets that are damaged after they were finished: the loader says what and where, and never goes on silently."""

from __future__ import annotations

import shutil
from itertools import islice
from pathlib import Path

import google_crc32c
import numpy as np
import pytest
from helpers.batches import assert_same
from helpers.mixtures import make_set
from torch.utils.data import DataLoader

from wdsmix import MixtureDataset, ShardSet
from wdsmix.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_set(tmp_path / "lift", episodes=[4, 3], cameras=["cam0", "cam1"])
    return tmp_path / "lift"


def dataset(folder: Path, **more: object) -> MixtureDataset:
    data = {
        "sources": [{"name": "robot", "shards": str(folder), "weight": 1}],
        "sample": {"cameras": ["cam0", "cam1"], **more},
    }
    return MixtureDataset(data, 7, num_threads=2)


def flip(path: Path, place: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= bit
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("part", ["header", "picture", "padding", "json"])
def test_one_flipped_bit(folder: Path, part: str) -> None:
    shard = ShardSet(folder).shard(0)
    row = 5  # episode 1, frame 1
    start, length = int(shard.offset[row]), int(shard.length[row])
    del shard
    flip(
        folder / "train-00000.tar",
        start + {"header": 20, "picture": 700, "padding": length - 1, "json": length - 500}[part],
    )
    with pytest.raises(DataError) as caught:
        next(iter(dataset(folder)))
    text = str(caught.value)
    for word in ("train-00000.tar", "'robot'", "'lift'", f"byte {start}", "000001_000001", "expected crc32c"):
        assert word in text
    assert caught.value.expected is not None
    assert caught.value.found is not None


def test_a_worker_hands_the_error_on(folder: Path) -> None:
    start = int(ShardSet(folder).shard(0).offset[2])
    flip(folder / "train-00000.tar", start + 700)
    stream = iter(DataLoader(dataset(folder), batch_size=None, num_workers=1))
    with pytest.raises(DataError, match="000000_000002"):
        next(stream)
    stream._shutdown_workers()  # torch waits five seconds for each where an exception still holds the iterator


def test_the_position_stays_before_a_batch_that_failed(folder: Path) -> None:
    good = folder.rename(folder.parent / "good")
    expected = list(islice(dataset(good), 20))
    shutil.copytree(good, folder)
    damaged = dataset(folder)
    stream = iter(damaged)
    found = [next(stream)]
    tar = folder / "train-00000.tar"
    whole = tar.read_bytes()
    places = (np.asarray(ShardSet(folder).shard(0).offset) + 700).tolist()
    with tar.open("r+b") as file:  # in place: the loader has it mapped
        for place in places:
            file.seek(place)
            file.write(bytes([whole[place] ^ 255]))
    with pytest.raises(DataError):  # some batches were built ahead and are good
        found.extend(stream)
    assert len(found) < 8
    assert damaged.state_dict() == found[-1]["cursor"]
    with tar.open("r+b") as file:
        file.write(whole)
    found += islice(damaged, 20 - len(found))
    for a, b in zip(found, expected, strict=True):
        assert_same(a, b, but=["cursor"])


def test_a_picture_that_was_never_one(tmp_path: Path) -> None:
    def broken(pixels: np.ndarray) -> bytes:
        import simplejpeg

        return simplejpeg.encode_jpeg(pixels)[:-40]

    make_set(tmp_path / "lift", episodes=[2], encode=broken)
    data = {"sources": [{"name": "robot", "shards": str(tmp_path / "lift"), "weight": 1}]}
    with pytest.raises(DataError) as caught:
        next(iter(MixtureDataset(data, 2)))
    for word in ("does not decode", "000000_00000", "'robot'", "train-00000.tar"):
        assert word in str(caught.value)


@pytest.mark.parametrize("cut", [1, 1024, 5000])
def test_a_cut_shard(folder: Path, cut: int) -> None:
    tar = folder / "train-00000.tar"
    tar.write_bytes(tar.read_bytes()[:-cut])
    with pytest.raises(DataError, match=r"train-00000\.tar"):
        next(iter(dataset(folder)))


def test_a_missing_shard(folder: Path) -> None:
    (folder / "train-00000.tar").unlink()
    with pytest.raises(DataError, match=r"train-00000\.tar"):
        next(iter(dataset(folder)))


def test_a_frame_whose_members_lie_about_their_size(folder: Path) -> None:
    """Checksums vouch for transport only: a hostile writer can make them fit, and must not get out of its frame."""
    opened = ShardSet(folder)
    shard = opened.shard(0)
    start, length = int(shard.offset[0]), int(shard.length[0])
    tar = bytearray(shard.tar.tobytes())
    tar[start + 124 : start + 136] = b"77777777777\0"
    frame = np.frombuffer(bytes(tar[start : start + length]), np.uint8)
    from wdsmix.mixture.decode import check_frame, find_pictures

    check_frame(frame, google_crc32c.value(frame))
    with pytest.raises(DataError, match="cut inside a member"):
        find_pictures(frame, {b"cam0.jpg": (0, True), b"cam1.jpg": (1, True)})


def test_extras_of_a_damaged_frame(folder: Path) -> None:
    shard = ShardSet(folder).shard(0)
    start, length = int(shard.offset[1]), int(shard.length[1])
    del shard
    flip(folder / "train-00000.tar", start + length - 500)
    one = dataset(folder, cameras=[], extras=["timestamp"])
    with pytest.raises(DataError, match="000000_000001"):
        next(iter(one))
