from __future__ import annotations

from pathlib import Path

import pytest
from helpers.sets import toy_set


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    toy_set(tmp_path / "toy")
    return tmp_path / "toy"
