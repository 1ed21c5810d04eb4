"""Servers for tests of stores."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.fault_proxy import FaultProxy
from helpers.s3_server import S3Server, connect, start_moto

from wdsmix.cli import main

S3_BY_OBSTORE = {"AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
"""What obstore needs beyond what boto3 takes."""


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    pytest.importorskip("moto.server")
    server, found = start_moto()
    yield found
    server.stop()


@pytest.fixture
def s3(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """A server, named by the environment."""
    server.use(monkeypatch)
    return server


@pytest.fixture
def url(toy: Path, proxy: FaultProxy, server: S3Server) -> str:
    """The set of the test's own fixture ``toy``, pushed; the proxy's log is empty."""
    found = f"s3://{server.bucket()}/toy"
    assert main(["push", str(toy), found, "--quiet"]) == 0
    proxy.log.clear()
    return found


@pytest.fixture
def bucket(s3: S3Server) -> str:
    return s3.bucket()


@pytest.fixture
def proxy(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A fault proxy before a server, named by the environment."""
    with FaultProxy(server.url) as found:
        server.use(monkeypatch, found.url)
        yield found


@pytest.fixture(scope="session")
def rados(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A Ceph object gateway of our own; takes a quarter of a minute to start."""
    missing = [name for name in ("radosgw", "ceph-mon", "ceph-osd", "radosgw-admin") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)} (Debian: radosgw ceph-mon ceph-osd ceph-common)")
    with tempfile.TemporaryDirectory(prefix="rgw-") as text:  # its sockets want short paths
        folder = Path(text)
        port = _free_ports(3)
        script = Path(__file__).with_name("radosgw.sh")
        try:
            done = subprocess.run(
                ["bash", script, folder, str(port)], capture_output=True, text=True, timeout=120, check=False
            )
            if done.returncode:
                pytest.fail(f"radosgw did not start: {done.stderr[-2000:]}")
            url = f"http://127.0.0.1:{port}"
            yield S3Server(url, "testkey", "testsecret", connect("s3", url, "testkey", "testsecret"), real=True)
        finally:
            for file in (folder / "run").glob("*.pid"):
                with contextlib.suppress(ProcessLookupError, ValueError):
                    os.kill(int(file.read_text()), signal.SIGKILL)
            time.sleep(0.5)


def _free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for first in range(20_000 + os.getpid() % 5000, 40_000, count):
        try:
            with contextlib.ExitStack() as stack:
                for port in range(first, first + count):
                    link = stack.enter_context(socket.socket())
                    link.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise OSError("no free ports")


@pytest.fixture(params=["moto", pytest.param("rados", marks=pytest.mark.s3real)])
def server(request: pytest.FixtureRequest) -> S3Server:
    """Each server there is: moto always, a real one with ``-m s3real``."""
    return request.getfixturevalue(request.param)
