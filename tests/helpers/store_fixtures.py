"""Servers for tests of stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.fault_proxy import FaultProxy
from helpers.s3_server import S3Server, start_moto


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    pytest.importorskip("moto.server")
    server, found = start_moto()
    yield found
    server.stop()


@pytest.fixture
def s3(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """moto, named by the environment."""
    moto.use(monkeypatch)
    return moto


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.bucket()


@pytest.fixture
def proxy(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A fault proxy before moto, named by the environment."""
    with FaultProxy(moto.url) as found:
        moto.use(monkeypatch, found.url)
        yield found
