from __future__ import annotations

from pathlib import Path

import pytest
from helpers.fault_proxy import FaultProxy
from helpers.s3_server import S3Server
from helpers.sets import toy_set

from wdsmix.cli import main


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    toy_set(tmp_path / "toy")
    return tmp_path / "toy"


@pytest.fixture
def url(toy: Path, proxy: FaultProxy, server: S3Server) -> str:
    """The toy set, pushed; the proxy's log is empty."""
    url = f"s3://{server.bucket()}/toy"
    assert main(["push", str(toy), url, "--quiet"]) == 0
    proxy.log.clear()
    return url
