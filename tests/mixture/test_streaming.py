"""Mixtures of sets in a store: the batches of local ones, to the byte, over a failing network; fetched once a node."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import pickle
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from helpers.batches import assert_same
from helpers.fault_proxy import Fault, FaultProxy
from helpers.mixtures import make_set
from helpers.s3_server import S3Server
from helpers.streaming import Flaky, WorkerEnvironment, copy_up, digest, fetched_ratio, read_rank
from torch.utils.data import DataLoader

from wdsmix import EvaluationDataset, MixtureDataset
from wdsmix.cli import main
from wdsmix.errors import ConflictError, DataError
from wdsmix.manifest import digest_of
from wdsmix.mixture import assemble
from wdsmix.store import cached
from wdsmix.store.cache import open_cache

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

STEPS = 30
multiprocessing.set_forkserver_preload(["torch", "wdsmix.mixture.loader", "boto3"])  # once, not in each worker


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three sets of many small shards."""
    folder = tmp_path_factory.mktemp("stored")
    for number, name in enumerate("abc"):
        make_set(
            folder / name,
            episodes=[30, 20, 25, 5 + number, 40, 30],
            splits=["train"] * 5 + ["val"],
            size=(96, 96),
            embodiment="arm",
            episodes_per_shard=1 + number % 2,
            distinct_pictures=40,
        )
    return folder


def _mixture(folders: Path) -> dict[str, Any]:
    return {
        "seed": 1,
        "sources": [{"name": name, "shards": str(folders / name), "weight": 1.0} for name in "abc"],
        "sample": {"history": 2, "action_chunk": 3, "extras": ["timestamp"], "goal": {"max_offset": 5}},
        "streams": 4,
        "window": 64,
        "block_bytes": 20_000,
    }


@pytest.fixture
def local(folders: Path) -> dict[str, Any]:
    return _mixture(folders)


@pytest.fixture(scope="session")
def expected(folders: Path) -> list[dict[str, Any]]:
    """Batches of eight of the local sets."""
    return list(islice(MixtureDataset(_mixture(folders), 8, num_threads=1), STEPS))


@pytest.fixture
def flaky(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Flaky]:
    """2 % of requests fail."""
    with Flaky(server.url) as found:
        server.use(monkeypatch, found.url)
        yield found


_uploaded: dict[tuple[str, Path, str], str] = {}


def remote(
    local: dict[str, Any], server: S3Server, folders: Path, cache: Path, names: str = "bc", *, fresh: bool = False
) -> dict[str, Any]:
    """Some sets of the mixture in a bucket: the first pushed, the others copied up; anew where a test changes them."""
    bucket = _uploaded.get((server.url, folders, names))
    if bucket is None or fresh:
        bucket = server.bucket()
        assert main(["push", str(folders / names[0]), f"s3://{bucket}/{names[0]}", "--quiet"]) == 0
        for name in names[1:]:
            copy_up(server.client, folders / name, bucket, name)
        if not fresh:
            _uploaded[server.url, folders, names] = bucket
    data = copy.deepcopy(local)
    data["cache_dir"] = str(cache)
    for source in data["sources"]:
        if source["name"] in names:
            source["shards"] = f"s3://{bucket}/{source['name']}"
    return data


@pytest.mark.parametrize(
    ("workers", "method"),
    [(0, None), (2, "fork"), (4, "fork"), (2, "forkserver"), (1, "spawn")],
)
def test_batches_are_those_of_local_sets_and_bytes_come_once(
    workers: int,
    method: str | None,
    local: dict,
    folders: Path,
    expected: list,
    server: S3Server,
    flaky: Flaky,
    tmp_path: Path,
) -> None:
    data = remote(local, server, folders, tmp_path / "cache")
    flaky.log.clear()
    dataset = MixtureDataset(data, 8, num_threads=2)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        multiprocessing_context=method,
        worker_init_fn=WorkerEnvironment(server.environment(flaky.url)),
    )
    for found, wanted in zip(islice(loader if workers else dataset, STEPS), expected, strict=True):
        assert_same(found, wanted)
    assert fetched_ratio(flaky) <= 1.1
    assert any(entry.fault for entry in flaky.log)
    metrics = dataset.metrics()
    assert 0 < metrics["bytes_fetched"] <= sum(entry.sent for entry in flaky.log)
    assert 0 <= metrics["cache_hits"] <= 1
    assert dataset.state_dict(cursor=found["cursor"]) == expected[-1]["cursor"]  # workers may be further already


def test_ranks_on_a_node_share_what_they_fetch(
    local: dict, folders: Path, server: S3Server, flaky: Flaky, tmp_path: Path
) -> None:
    expected = [
        [digest(batch) for batch in islice(MixtureDataset(local, 4, rank, 2, num_threads=1), STEPS)]
        for rank in range(2)
    ]
    data = remote(local, server, folders, tmp_path / "cache")
    flaky.log.clear()
    jobs = [(data, 4, rank, 2, STEPS, server.environment(flaky.url)) for rank in range(2)]
    with multiprocessing.get_context("forkserver").Pool(2) as pool:
        assert pool.map(read_rank, jobs, chunksize=1) == expected
    assert fetched_ratio(flaky) <= 1.1


def test_evaluation_and_resuming_equal_those_of_local_sets(
    local: dict, folders: Path, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache")
    for workers in (0, 2):
        found = EvaluationDataset(data, 7, num_threads=2)
        loader = DataLoader(found, batch_size=None, num_workers=workers) if workers else found
        wanted = EvaluationDataset(local, 7, num_threads=1)
        for one, other in zip(loader, wanted, strict=True):
            assert_same(one, other)
    first = MixtureDataset(local, 8)
    state = [*islice(first, 11)][-1]["cursor"]
    expected = list(islice(first, 10))
    again = MixtureDataset(data, 4, num_threads=2)
    again.load_state_dict(json.loads(json.dumps(state)))
    smaller = MixtureDataset(local, 4)
    smaller.load_state_dict(state)
    for found, wanted in zip(islice(again, 20), smaller, strict=False):
        assert_same(found, wanted)
    same = MixtureDataset(data, 8)
    same.load_state_dict(state)
    for found, wanted in zip(islice(same, 10), expected, strict=True):
        assert_same(found, wanted)


def test_a_second_run_reads_the_cache(
    local: dict, folders: Path, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache")
    [*islice(MixtureDataset(data, 8), STEPS)]
    first = sum(entry.sent for entry in proxy.log)
    time.sleep(0.2)  # for what is on its way
    proxy.log.clear()
    dataset = MixtureDataset(data, 8)
    [*islice(dataset, STEPS)]
    tars = [entry for entry in proxy.log if entry.path.endswith(".tar")]
    assert sum(entry.sent for entry in tars) < first / 10
    assert dataset.metrics()["cache_hits"] > 0.9


def test_a_flipped_byte_is_read_again_and_named_if_it_stays(
    local: dict, folders: Path, expected: list, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache", "c")
    proxy.faults.append(Fault(kind="flip", times=1, after=3000, path=".tar"))
    for found, wanted in zip(islice(MixtureDataset(data, 8), STEPS), expected, strict=True):
        assert_same(found, wanted)
    assert sum(entry.fault == "flip" for entry in proxy.log) == 1

    proxy.faults.append(Fault(kind="flip", times=10**6, after=100, path="/train-00001.tar"))
    data["cache_dir"] = str(tmp_path / "other")
    proxy.log.clear()
    with pytest.raises(DataError) as caught:
        [*islice(MixtureDataset(data, 8), 3 * STEPS)]
    assert caught.value.path.startswith("s3://")
    assert caught.value.path.endswith("/train-00001.tar")
    assert "set 'c'" in caught.value.where
    assert "byte" in caught.value.where
    assert "key " in caught.value.where
    assert "crc32c" in caught.value.expected
    assert len(caught.value.found) == 8
    ranges = [entry.range for entry in proxy.seen("GET", "/train-00001.tar")]
    assert len(ranges) == len(set(ranges))  # a block, and once more the frame alone

    data["on_error"] = "skip"
    data["cache_dir"] = str(tmp_path / "third")
    dataset = MixtureDataset(data, 8)
    [*islice(dataset, STEPS)]
    assert dataset.metrics()["replaced"] > 0


def test_damage_on_the_disk_is_mended_from_the_store(
    local: dict, folders: Path, expected: list, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache")
    [*islice(MixtureDataset(data, 8), STEPS)]
    for path in (tmp_path / "cache").glob("*/*.sparse"):
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            file.write(bytes(20_000))
    for found, wanted in zip(islice(MixtureDataset(data, 8), STEPS), expected, strict=True):
        assert_same(found, wanted)


def test_what_is_well_again_is_read_again(
    local: dict,
    folders: Path,
    expected: list,
    server: S3Server,
    proxy: FaultProxy,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A frame was given up while it was decoded, twice, and is there again when its checksum is looked at."""
    data = remote(local, server, folders, tmp_path / "cache", "abc")
    decode = assemble.decode_frame
    seen: list[int] = []

    def too_late(frame: Any, crc32c: int, *arguments: Any, **options: Any) -> None:
        seen.append(crc32c)
        if len(seen) >= 40 and seen[39:].count(crc32c) <= 2 and crc32c == seen[39]:
            raise DataError("not a JPEG, PNG or WebP picture")
        decode(frame, crc32c, *arguments, **options)

    monkeypatch.setattr(assemble, "decode_frame", too_late)
    for found, wanted in zip(islice(MixtureDataset(data, 8, num_threads=1), STEPS), expected, strict=True):
        assert_same(found, wanted)
    assert seen[39:].count(seen[39]) > 2


def test_a_swapped_object_is_an_error_that_names_both(
    local: dict, folders: Path, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache", fresh=True)
    data["read_ahead"] = 1
    data["block_bytes"] = 70_000
    data["sources"] = data["sources"][2:]
    data["window"] = 8
    dataset = iter(MixtureDataset(data, 2, num_threads=1))
    next(dataset)
    bucket = data["sources"][0]["shards"].removeprefix("s3://").partition("/")[0]
    for name in ("train-00000.tar", "train-00001.tar", "train-00002.tar"):
        body = bytearray((folders / "c" / name).read_bytes())
        body[-1] ^= 1
        server.client.put_object(Bucket=bucket, Key=f"c/{name}", Body=bytes(body))
    with pytest.raises(ConflictError, match="replaced") as caught:
        [*islice(dataset, 100)]
    assert "ETag" in caught.value.expected
    assert caught.value.found


def test_a_new_version_does_not_disturb(
    local: dict, folders: Path, expected: list, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache", "b", fresh=True)
    dataset = MixtureDataset(data, 8)
    frozen = pickle.dumps(dataset)
    url = data["sources"][1]["shards"]
    assert main(["push", str(folders / "c"), url, "--quiet"]) == 0
    streams = iter(dataset), iter(pickle.loads(frozen))  # as a worker that starts late
    found = [[next(stream)] for stream in streams]
    assert main(["push", str(folders / "a"), url, "--quiet"]) == 0
    for stream, batches in zip(streams, found, strict=True):
        batches += islice(stream, STEPS - 1)
        for one, other in zip(batches, expected, strict=True):
            assert_same(one, other)
    with pytest.raises(ConflictError, match="'b' was set"):
        MixtureDataset(data, 8).load_state_dict(expected[-1]["cursor"])
    version = f"v-{digest_of((folders / 'b' / 'manifest.json').read_bytes())[:12]}"
    data["sources"][1]["shards"] = f"{url}/{version}"
    MixtureDataset(data, 8).load_state_dict(expected[-1]["cursor"])


def _read_for_ever(data: dict, environment: dict[str, str]) -> None:
    os.environ.update(environment)
    for _ in MixtureDataset(data, 8):
        pass


def test_a_killed_reader_leaves_nothing_behind(
    local: dict, folders: Path, expected: list, server: S3Server, proxy: FaultProxy, tmp_path: Path
) -> None:
    data = remote(local, server, folders, tmp_path / "cache")
    proxy.rate = 100_000
    proxy.log.clear()
    child = multiprocessing.get_context("forkserver").Process(
        target=_read_for_ever, args=(data, server.environment(proxy.url))
    )
    child.start()
    end = time.monotonic() + 60
    while not any(0 < entry.sent < 60_000 for entry in proxy.seen("GET", ".tar")) and time.monotonic() < end:
        time.sleep(0.02)
    child.kill()
    child.join()
    proxy.rate = 0
    started = time.monotonic()
    for found, wanted in zip(islice(MixtureDataset(data, 8), STEPS), expected, strict=True):
        assert_same(found, wanted)
    assert time.monotonic() - started < cached._PATIENCE / 2
    for folder in (tmp_path / "cache").iterdir():
        if folder.is_dir():
            whole = [path for path in folder.iterdir() if path.suffix in (".json", ".parquet", ".arrow")]
            name = json.loads((folder / "manifest.json").read_bytes())["name"]
            assert all(path.read_bytes() == (folders / name / path.name).read_bytes() for path in whole)


def test_the_limit_of_the_cache_is_kept(
    server: S3Server, proxy: FaultProxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached, "_KEPT", 0.02)
    monkeypatch.setattr(cached, "_MOMENT", 0.02)
    make_set(tmp_path / "many", episodes=[30] * 24, size=(96, 96), episodes_per_shard=1, distinct_pictures=40)
    total = sum(path.stat().st_size for path in (tmp_path / "many").iterdir())
    bucket = server.bucket()
    copy_up(server.client, tmp_path / "many", bucket, "many")
    local = {
        "sources": [{"name": "many", "shards": str(tmp_path / "many"), "weight": 1.0}],
        "streams": 1,
        "window": 16,
        "block_bytes": 200_000,
    }
    data = copy.deepcopy(local) | {"cache_dir": str(tmp_path / "cache"), "cache_limit": total * 6 // 10}
    data["sources"][0]["shards"] = f"s3://{bucket}/many"
    cache = open_cache(tmp_path / "cache")
    held = []
    steps = 3 * 24 * 30 // 8
    expected = MixtureDataset(local, 8)
    for found, wanted in zip(islice(MixtureDataset(data, 8, num_threads=1), steps), expected, strict=False):
        assert_same(found, wanted)
        held.append(cache.usage())
        time.sleep(0.01)
    assert max(held) <= total * 6 // 10
    sent = sum(entry.sent for entry in proxy.seen("GET", ".tar"))
    assert total < sent < 2.6 * total  # of three epochs, something was still there
