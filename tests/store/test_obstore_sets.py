"""Pushing and fetching by obstore, as to Google and Azure: no multipart of ours, checksums as attributes."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.s3_server import S3Server
from helpers.sets import toy_set
from helpers.store_fixtures import S3_BY_OBSTORE
from helpers.stored import files_of

from wdsmix.errors import ConflictError
from wdsmix.shards.faults import Faults
from wdsmix.shards.verify_url import _check_heads
from wdsmix.store.fetch import FetchOptions, fetch
from wdsmix.store.obstores import ObstoreStore
from wdsmix.store.push import PushOptions, plan_push, push
from wdsmix.store.versions import resolve


def test_there_and_back(tmp_path: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore")
    moto.use(monkeypatch)
    for name, value in {**S3_BY_OBSTORE, "AWS_ENDPOINT_URL": moto.url}.items():
        monkeypatch.setenv(name, value)
    toy, bucket = tmp_path / "toy", moto.bucket()
    toy_set(toy)
    store = ObstoreStore(f"s3://{bucket}/toy")
    assert push(toy, store, PushOptions(jobs=2)).files_sent == 8
    assert push(toy, store, PushOptions(jobs=2)).files_sent == 0
    version = resolve(store)
    version.store.delete("manifest.json")  # as if it had been killed before the end
    version.store.delete(".pushed.json")
    assert set(plan_push(toy, store).files.values()) == {"same"}
    assert push(toy, store, PushOptions(jobs=2)).files_same == 8
    faults = Faults()
    _check_heads(version.store, version.manifest, {e.name: e.bytes for e in version.manifest.files}, faults)
    assert (faults.total, faults.examined["store"]) == (0, 8)
    assert fetch(store, tmp_path / "out", FetchOptions(jobs=2)).files_received == 8
    assert files_of(tmp_path / "out") == files_of(toy)
    version.store.delete("manifest.json")
    version.store.put("stats.json", b"x" * (toy / "stats.json").stat().st_size)
    with pytest.raises(ConflictError, match="other bytes"):
        push(toy, store, PushOptions(jobs=2))
