"""Fixtures for GETs that go around boto3."""

from __future__ import annotations

import os

import pytest
from helpers.tiny_s3 import SECRET

from wdsmix.store.line import Answer, Line


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings for S3 but a user, and no proxies."""
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith(("AWS_", "WDSMIX_S3_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Requests that went over lines."""
    found: list[bytes] = []
    ask = Line.ask

    def noted(line: Line, request: bytes) -> Answer:
        found.append(request)
        return ask(line, request)

    monkeypatch.setattr(Line, "ask", noted)
    return found
