"""The small pieces: backoff, rates, parts, journals, locks."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
from pathlib import Path

import pytest

from wdsmix.errors import ConfigError, ConflictError
from wdsmix.manifest import FileEntry
from wdsmix.store import Retries, StoreOptions, TransientError
from wdsmix.store.download import PartFile
from wdsmix.store.transfer import Throttle, exclusive, parse_rate, run_all
from wdsmix.store.upload import Journal, etag_of, part_size

FAST = StoreOptions(pause=0.0, pause_limit=0.0)


def test_options_from_the_environment() -> None:
    assert StoreOptions.from_environment({}) == StoreOptions()
    found = StoreOptions.from_environment({"WDSMIX_STORE_TRIES": "3", "WDSMIX_STORE_TIMEOUT": "2.5"})
    assert (found.tries, found.read_timeout) == (3, 2.5)
    for wrong in ({"WDSMIX_STORE_TRIES": "many"}, {"WDSMIX_STORE_TRIES": "0"}, {"WDSMIX_STORE_TIMEOUT": "-1"}):
        with pytest.raises(ConfigError):
            StoreOptions.from_environment(wrong)
    with pytest.raises(ConfigError) as caught:
        StoreOptions.from_environment({"WDSMIX_STORE_TIMEOUT": "soon", "WDSMIX_STORE_TRIES": "3"})
    assert (caught.value.where, caught.value.found) == ("WDSMIX_STORE_TIMEOUT", "soon")


def test_pauses_are_full_jitter_and_bounded() -> None:
    retries = Retries(StoreOptions(tries=30, pause=0.5, pause_limit=4.0))
    limits: list[float] = []
    retries.jitter = lambda limit: limits.append(limit) or 0.0  # type: ignore[method-assign, func-returns-value]
    backoff = retries.backoff()
    for _ in range(6):
        backoff.failed(TransientError("busy"))
    backoff.progress()
    backoff.failed(TransientError("busy"))
    assert limits == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0, 0.5]
    assert retries.counts == {"busy": 7}
    drawn = [Retries(StoreOptions()).jitter(1.0) for _ in range(50)]
    assert 0 <= min(drawn) < 0.3 < 0.7 < max(drawn) <= 1


def test_call_gives_up_after_so_many_tries() -> None:
    calls = 0

    def request() -> int:
        nonlocal calls
        calls += 1
        if calls < 8:
            raise TransientError("busy")
        return 7

    assert Retries(FAST).call(request) == 7
    calls = -1
    with pytest.raises(TransientError, match="busy, 8 tries in a row"):
        Retries(FAST).call(request)


def test_a_failure_stops_the_others() -> None:
    retries = Retries(StoreOptions(pause=1000.0, pause_limit=1000.0))

    def busy() -> None:
        raise TransientError("busy")

    def broken() -> None:
        raise ConflictError("broken")

    with pytest.raises(ConflictError):  # not after 1000 s
        run_all([lambda: retries.call(busy), lambda: retries.call(busy), broken], 3, retries)
    assert run_all([lambda k=k: k * k for k in range(20)], 3) == [k * k for k in range(20)]


@pytest.mark.parametrize(
    ("text", "rate"),
    [("0", 0), ("", 0), ("50M", 50e6), ("50 MB/s".replace(" ", ""), 50e6), ("1.5g", 1.5e9), ("800k", 8e5)],
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["fast", "-1", "nan", "inf", "5T"])
def test_no_rates(text: str) -> None:
    with pytest.raises(ConfigError, match="not a rate"):
        parse_rate(text)


def test_throttle() -> None:
    now, slept = 0.0, []

    def sleep(seconds: float) -> None:
        nonlocal now
        slept.append(seconds)
        now += seconds

    throttle = Throttle(100.0, clock=lambda: now, sleep=sleep)
    for _ in range(5):
        throttle.take(50)
    assert now == pytest.approx(2.0)  # the first passes at once
    now += 10
    throttle.take(50)
    assert now == pytest.approx(12.0)  # what was not used is not saved up
    Throttle(0.0, sleep=sleep).take(10**12)
    assert len(slept) == 4


@pytest.mark.parametrize(
    ("size", "wanted"), [(1, 16 << 20), (160 << 30, 17 << 20), (10_000 * (16 << 20), 16 << 20), (5 << 40, 525 << 20)]
)
def test_part_sizes(size: int, wanted: int) -> None:
    assert part_size(size) == wanted
    assert -(-size // part_size(size)) <= 10_000


def test_etag_of_parts() -> None:
    digests = [hashlib.md5(b"a" * 5).digest(), hashlib.md5(b"b").digest()]
    assert etag_of(digests) == hashlib.md5(digests[0] + digests[1]).hexdigest() + "-2"


def test_an_upload_journal_survives(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j.json")
    journal.begin("a.tar", {"upload_id": "1"})
    journal.begin("b.tar", {"upload_id": "2"})
    journal.end("a.tar")
    assert Journal(tmp_path / "j.json").uploads == {"b.tar": {"upload_id": "2"}}
    journal.end("b.tar")
    assert not (tmp_path / "j.json").exists()
    for text in ("", "[]", '{"uploads": 3}', '{"uploads": {"a": 1}}', "{"):
        (tmp_path / "j.json").write_text(text)
        assert Journal(tmp_path / "j.json").uploads == {}


def entry(size: int, sha256: str = "0" * 64) -> FileEntry:
    return FileEntry(name="x.tar", bytes=size, sha256=sha256, crc32c=0)


def test_a_part_file_survives(tmp_path: Path) -> None:
    part = PartFile(tmp_path / "x.tar", entry(1000), size=300)
    assert part.ranges == 4
    assert part.bounds(3) == (900, 1000)
    part.begin('"one"')
    part.finished(0)
    part.finished(3)
    again = PartFile(tmp_path / "x.tar", entry(1000), size=300)
    assert (again.done, again.etag, again.kept) == ({0, 3}, '"one"', 400)
    with part.journal.open("a") as file:
        file.write("2")  # cut off while it was written: could have been 20
    torn = PartFile(tmp_path / "x.tar", entry(1000), size=300)
    assert torn.done == {0, 3}
    torn.finished(1)
    assert PartFile(tmp_path / "x.tar", entry(1000), size=300).done == {0, 1, 3}
    again.begin('"two"')
    assert PartFile(tmp_path / "x.tar", entry(1000), size=300).done == set()


@pytest.mark.parametrize("spoil", ["size", "sha256", "range", "journal", "beyond", "part"])
def test_a_part_file_of_something_else_starts_anew(tmp_path: Path, spoil: str) -> None:
    part = PartFile(tmp_path / "x.tar", entry(1000), size=300)
    part.begin('"one"')
    part.finished(1)
    wanted, size = entry(1000), 300
    if spoil == "size":
        wanted = entry(1001)
    elif spoil == "sha256":
        wanted = entry(1000, "1" * 64)
    elif spoil == "range":
        size = 200
    elif spoil == "journal":
        part.journal.write_bytes(b"\xff{}")
    elif spoil == "beyond":
        part.finished(7)
    else:
        part.part.write_bytes(b"short")
    found = PartFile(tmp_path / "x.tar", wanted, size=size)
    assert (found.done, found.etag) == (set(), "")


def _hold(path: Path, ready: object, go: object) -> None:
    with exclusive(path, "is at it"):
        ready.set()  # type: ignore[attr-defined]
        go.wait(30)  # type: ignore[attr-defined]


def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    context = multiprocessing.get_context("fork")
    ready, go = context.Event(), context.Event()
    child = context.Process(target=_hold, args=(path, ready, go))
    child.start()
    assert ready.wait(30)
    with pytest.raises(ConflictError, match="another process is at it"), exclusive(path, "is at it"):
        pass
    child.kill()
    child.join()
    with exclusive(path, "is at it"):
        assert json.dumps(path.exists()) == "true"
    assert not path.exists()
