"""Fixtures that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers.store_fixtures import bucket, moto, proxy, rados, s3, server, url  # noqa: F401
from hypothesis import HealthCheck, settings

settings.register_profile("wdsmix", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("wdsmix")


def _samples_folder() -> Path | None:
    named = os.environ.get("WDSMIX_SAMPLES")
    candidates = [Path(named)] if named else []
    candidates.append(Path(__file__).resolve().parents[2] / "shared" / "samples")
    return next((folder for folder in candidates if folder.is_dir()), None)


@pytest.fixture(scope="session")
def samples() -> Path:
    """Folder of real sample files; never changed in place."""
    folder = _samples_folder()
    if folder is None:
        pytest.skip("no sample files: set WDSMIX_SAMPLES to their folder")
    return folder
