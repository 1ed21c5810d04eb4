"""The node's cache: locks that end with their process, what is given up first, what killed processes leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.sets import toy_set
from helpers.stored import heavy_set

from wdsmix.errors import ConfigError
from wdsmix.manifest import Manifest, digest_of, read_model
from wdsmix.store.cache import Cache, open_cache
from wdsmix.store.cached import CachedSet
from wdsmix.store.local import LocalStore
from wdsmix.store.locks import FileLocks
from wdsmix.store.table import CHUNK, REGION, Table

HOLD = """
import sys
from pathlib import Path
from wdsmix.store.locks import FileLocks
locks = FileLocks(Path(sys.argv[1]))
print(locks.take(int(sys.argv[3]), 5, shared=sys.argv[2] == "shared"), flush=True)
sys.stdin.read()
"""


def holder(path: Path, how: str, first: int = 10, can: bool = True) -> subprocess.Popen[str]:
    """A process that has locked five bytes, if it can."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how, str(first)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == f"{can}\n"
    return child


def test_locks_end_with_their_process(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path / "file")
    with holder(tmp_path / "file", "alone") as child:
        assert not locks.take(12)
        assert not locks.take(14, 3, shared=True)
        assert locks.take(15)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert locks.take(10, 5)
    locks.drop(10, 5)
    with holder(tmp_path / "file", "shared") as child:
        assert locks.take(12, shared=True)
        assert not locks.take(12)
        child.kill()
    assert locks.is_current()
    (tmp_path / "file").unlink()
    assert not locks.is_current()


def test_a_forked_child_holds_no_locks(tmp_path: Path) -> None:
    locks = FileLocks(tmp_path / "file")
    assert locks.take(0)
    child = os.fork()
    if not child:
        os._exit(int(locks.take(0)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_table_tells_what_is_there(tmp_path: Path) -> None:
    table = Table(tmp_path / "table", [5, (1 << 21) + 1, 0, 1 << 16])
    assert 8 << REGION == 1 << 21
    assert table.first_chunk == [0, 1, 34, 34, 35]
    assert table.first_region == [0, 1, 10, 10, 11]
    assert [table.region_chunks(region) for region in (0, 1, 9, 10)] == [
        (0, 0, 1),
        (1, 1, 5),
        (1, 33, 34),
        (3, 34, 35),
    ]
    assert [table.tar_end(region) for region in (0, 1, 9, 10)] == [1, 10, 10, 11]
    table.set_etag(1, '"abc"')
    table.have[33] = 1
    again = Table(tmp_path / "table", table.sizes)
    assert [again.etag(k) for k in range(4)] == ["", '"abc"', "", ""]
    assert again.have.tolist() == [0] * 33 + [1, 0]
    table.set_etag(1, "x" * 1000)  # can't be kept
    assert again.etag(1) == '"abc"'


def opened(cache: Cache, folder: Path) -> CachedSet:
    """A set of the folder, as if it lay in a store."""
    data = (folder / "manifest.json").read_bytes()
    return cache.open(LocalStore(str(folder)), digest_of(data), data, read_model(Manifest, data, folder))


def test_ranges_files_and_regions(tmp_path: Path) -> None:
    heavy_set(tmp_path / "toy", [100_000, 200_000])
    cache = Cache(tmp_path / "cache", None)
    found = opened(cache, tmp_path / "toy")
    assert opened(cache, tmp_path / "toy") is found
    whole = np.fromfile(tmp_path / "toy" / "train-00001.tar", np.uint8)
    tar = found.tar(1)
    assert not tar.data.any()
    tar.touch(70_000, 70_001)
    size = 1 << 16
    there = np.zeros_like(whole)
    there[size : 2 * size] = whole[size : 2 * size]
    assert np.array_equal(tar.data, there)
    tar.touch(0, len(whole))
    assert np.array_equal(tar.data, whole)
    first, stop = found.table.first_region[1:3]
    assert found.give_up(first, stop) == 0  # it was read a moment ago
    assert np.array_equal(tar.data, whole)
    found.table.used[first:stop] -= 60
    assert found.give_up(first, stop) >= len(whole)
    assert not tar.data.any()
    tar.touch(0, len(whole))
    assert np.array_equal(tar.data, whole)
    assert found.file("stats.json").read_bytes() == (tmp_path / "toy" / "stats.json").read_bytes()
    assert cache.counts.take().fetched > 2 * len(whole)
    assert cache.counts.fetched == 0


def test_a_promise_is_waited_for_and_ends(tmp_path: Path) -> None:
    toy_set(tmp_path / "toy")
    found = opened(open_cache(tmp_path / "cache"), tmp_path / "toy")
    size = found.table.sizes[0]
    done = threading.Event()
    found.promise(0, 0, size)
    reader = threading.Thread(target=lambda: (found.tar(0).touch(0, 100), done.set()))
    reader.start()
    assert not done.wait(0.05)
    assert not found.table.have.any()  # it has not fetched on its own
    assert found.prefetch(0, 0, size)  # which keeps the promise
    assert done.wait(10)
    reader.join()
    found.table.have[:] = 0
    found.promise(0, 0, size)
    found.withdraw(0, 0, size)
    found.tar(0).touch(0, 100)
    assert found.table.have[0] == 1


def test_a_folder_is_one_cache_by_whatever_name(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "cache")
    assert open_cache(tmp_path / "link") is open_cache(tmp_path / "cache")


def test_sets_that_nobody_uses_go_first(tmp_path: Path) -> None:
    toy_set(tmp_path / "toy")
    old = Cache(tmp_path / "cache", None)
    unused = opened(old, tmp_path / "toy")
    unused.tar(0).touch(0, 1000)
    (old.folder / ".trash-x").mkdir()
    partial = unused.folder / ".stats.json.abc"
    partial.write_bytes(b"half")
    os.utime(partial, (0, 0))
    unused.table.locks.close()  # as if its process had ended
    cache = Cache(tmp_path / "cache", 1)
    cache.trim()
    assert not [entry for entry in cache.folder.iterdir() if entry.is_dir()]
    again = opened(cache, tmp_path / "toy")
    again.tar(0).touch(0, 1000)
    cache.trim()
    assert again.folder.is_dir()


def test_a_cache_that_can_not_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be made"):
        open_cache(tmp_path / "file" / "below")
    monkeypatch.setenv("WDSMIX_CACHE_DIR", str(tmp_path / "named"))
    assert open_cache().folder == tmp_path / "named"
    assert open_cache(limit=5) is open_cache()
    assert open_cache().limit == 5


def test_what_is_done_for_long_goes_first_and_only_if_nothing_beside_it_is_needed(tmp_path: Path) -> None:
    heavy_set(tmp_path / "toy", [2_000_000])
    cache = Cache(tmp_path / "cache", None)
    found = opened(cache, tmp_path / "toy")
    size, region = len(found.tar(0).data), 1 << REGION
    assert size > 3 * region
    assert found.prefetch(0, 0, size)
    found.table.used[:] = [50 - k for k in range(len(found.table.used))]

    def in_order() -> list[int]:
        ranks, regions = found.candidates()
        return regions[np.argsort(ranks, kind="stable")].tolist()

    order = in_order()
    assert order == list(reversed(range(len(found.table.used))))  # the eldest first
    found.finished(0, 0, region + region // 2)  # all of the first region, half of the second
    assert in_order() == [0, *order[:-1]]
    assert found.prefetch(0, 0, region)  # needed again: a new epoch
    assert in_order() == order
    found.finished(0, 0, region)
    assert found.give_up(0, 1) == region
    found.finished(0, 0, region)  # late: there is nothing any more
    assert not found.table.have[: region >> CHUNK].any()
    assert in_order() == order[:-1]


def test_what_is_read_now_is_not_given_up(tmp_path: Path) -> None:
    heavy_set(tmp_path / "toy", [600_000])
    found = opened(Cache(tmp_path / "cache", None), tmp_path / "toy")
    tar, size, used = found.tar(0), found.table.sizes[0], found.table.used
    tar.touch(0, size)
    used[:] -= 60
    found.until = 0.0  # some seconds later
    tar.touch(0, size)
    assert not len(found.candidates()[1])
    assert found.give_up(0, len(used)) == 0
    tar.finished(0, size)
    used[:] -= 60
    assert len(found.candidates()[1]) == len(used)
    tar.touch(0, size)  # by a process that is not done with it
    assert not len(found.candidates()[1])
    assert found.give_up(0, len(used)) == 0
    used[:] -= 60
    assert found.give_up(0, len(used)) >= size


def test_locks_that_can_not_be_had_leave_those_of_a_fetch(tmp_path: Path) -> None:
    heavy_set(tmp_path / "toy", [20_000_000])
    found = opened(Cache(tmp_path / "cache", None), tmp_path / "toy")
    size = found.table.sizes[0]
    assert size >> REGION > 70
    found._busy[10] = 1  # as by a thread that fetches
    assert found._hold(range(10, 11))
    with holder(found.folder / "table-1", "alone", 64) as other:  # gives up some behind
        found.finished(0, 0, size)
        assert not found._hold(range(5, 66))
        with holder(found.folder / "table-0", "alone", can=False) as eager:  # would give up what is being fetched
            eager.kill()
        other.kill()
    assert found._hold(range(5, 66))
    del found._busy[10]
    found._let_go(range(5, 66))
    with holder(found.folder / "table-0", "alone") as eager:
        eager.kill()
