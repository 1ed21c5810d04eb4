"""GETs that go around boto3, by TLS and by proxies."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.tiny_s3 import DATA, Request, TinyS3, check, error, reader

from wdsmix.errors import StorageError
from wdsmix.store import StoreOptions

pytestmark = pytest.mark.usefixtures("bare")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Key and certificate of 127.0.0.1, signed by itself."""
    pytest.importorskip("cryptography")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture(params=["TLSv1_2", "TLSv1_3"])
def tiny(request: pytest.FixtureRequest, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[TinyS3]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    context.minimum_version = context.maximum_version = ssl.TLSVersion[request.param]
    with TinyS3(context=context) as server:
        monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        yield server


def test_ranges_go_over_one_connection(tiny: TinyS3, asked: list[bytes]) -> None:
    found = reader()
    check(found, 30)
    assert tiny.connections <= 2
    assert len(asked) == 28
    assert found.store.retries.count == 0


def test_many_threads(tiny: TinyS3, asked: list[bytes]) -> None:
    found = reader()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: check(found, 40, seed), range(8)))
    assert found.store.retries.count == 0
    assert tiny.connections <= 16
    assert len(asked) >= 8 * 38


@pytest.mark.parametrize("word", ["no word", "a last word"])
def test_a_stale_line_costs_nothing(tiny: TinyS3, asked: list[bytes], word: str) -> None:
    found = reader()
    check(found, 3)
    del asked[:]
    for _ in range(5):
        if word == "no word":
            tiny.hang_up()
        else:
            for link in tiny.links:
                link.settimeout(0.1)
                with contextlib.suppress(OSError):
                    link.unwrap()
            tiny.hang_up()
        time.sleep(0.05)
        check(found, 3)
    assert len(asked) == 10  # none of them was asked in vain
    assert found.store.retries.count == 0


def test_a_body_that_is_cut_off(tiny: TinyS3) -> None:
    def cut(request: Request) -> bytes:
        start, stop = request.span(len(DATA))
        if stop - start < 100_000:
            return request.good()
        request.link.sendall(request.good()[:-50_000])
        return b""

    found = reader()
    check(found, 3)
    tiny.answer = cut
    assert found.read(0, 200_000) == DATA[:200_000]
    assert 1 <= found.store.retries.count <= 3
    check(found, 3)


def test_a_body_that_stops_counts_as_far_as_it_came(tiny: TinyS3) -> None:
    """Each answer brings a little and goes silent: there is progress, so there is no end of tries."""

    def some(request: Request) -> bytes:
        answer = request.good()
        start, stop = request.span(len(DATA))
        if stop - start > 20_000:
            request.link.sendall(answer[: len(answer) - (stop - start) + 20_000])
            time.sleep(0.5)
            return b""
        return answer

    found = reader(options=StoreOptions(pause=0.001, pause_limit=0.01, read_timeout=0.2, tries=2))
    check(found, 3)
    buffer = bytearray(100_000)
    tiny.answer = some
    with contextlib.suppress(StorageError):  # by way of boto3, what came in pieces is lost
        found.readinto(memoryview(buffer), 0)
    assert bytes(buffer[:20_000]) == DATA[:20_000]


def test_more_than_was_asked_for_is_not_the_next_answer(tiny: TinyS3) -> None:
    evil = b'HTTP/1.1 206 P\r\nContent-Length: 9\r\nETag: "one"\r\nContent-Range: bytes 0-8/256000\r\n\r\nevil evil'
    found = reader()
    check(found, 3)
    tiny.answer = lambda request: request.good() + evil
    for _ in range(10):
        assert found.read(0, 9) == DATA[:9]
        assert found.read(9, 99_000) == DATA[9:99_000]
    assert found.store.retries.count == 0


def test_errors(tiny: TinyS3, asked: list[bytes]) -> None:
    found = reader()
    check(found, 3)
    answers = [error(503, "SlowDown"), error(403, "ExpiredToken"), error(500)]
    tiny.answer = lambda request: answers.pop() if answers else request.good()
    check(found, 5)
    assert found.store.retries.count == 2


def test_a_certificate_of_somebody_else(tiny: TinyS3, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE")
    with pytest.raises(StorageError, match="certificate can't be trusted"):
        reader().read(0, 1)


def test_forked_children_have_connections_of_their_own(tiny: TinyS3) -> None:
    found = reader()
    check(found, 5)
    children = []
    for k in (1, 2):
        child = os.fork()
        if not child:
            code = 1
            try:
                check(found, 50, k)
                code = 2 if found.store.retries.count else 0
            finally:
                os._exit(code)
        children.append(child)
    check(found, 50)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]
    check(found, 5)
    assert found.store.retries.count == 0


# --- proxies ----------------------------------------------------------------------------------------------------------


def test_a_proxy_is_not_gone_around(asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with TinyS3() as proxy:  # the proxy itself answers: nobody else knows the host
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.setenv("WDSMIX_S3_ENDPOINT_URL", "http://s3.invalid:1234")
        found = reader()
        check(found, 10)
        assert asked == []
        assert {request.target for request in proxy.log} == {"http://s3.invalid:1234/bucket/set/x"}
        assert proxy.connections <= 2
        assert found.store.retries.count == 0


def test_a_proxy_of_tls_is_not_gone_around(tiny: TinyS3, asked: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    def tunnel(request: Request) -> bytes:
        host, _, port = request.target.partition(":")
        with socket.create_connection((host, int(port))) as further:
            request.link.sendall(b"HTTP/1.1 200 Connected\r\n\r\n")
            back = threading.Thread(target=_copy, args=(further, request.link), daemon=True)
            back.start()
            _copy(request.link, further)
            back.join()
        return b""

    with TinyS3(answer=tunnel) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.setenv("https_proxy", proxy.url)
        found = reader()
        check(found, 10)
        assert asked == []
        assert {request.target for request in proxy.log} == {f"127.0.0.1:{tiny.port}"}
        assert tiny.connections == proxy.connections <= 2
        assert found.store.retries.count == 0


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
