from __future__ import annotations

import pytest

from wdsmix.errors import ConfigError
from wdsmix.mixture.padding import padded_width


def test_widths() -> None:
    assert padded_width("state", {"a": 7, "b": 14}, {"state": 32}) == 32
    assert padded_width("state", {"a": 7, "b": 14}, {}) == 14
    assert padded_width("state", {"a": 7, "b": 14}, {"state": 14}) == 14
    assert padded_width("state", {}, {}) == 0
    assert padded_width("state", {}, {"state": 8}) == 8
    with pytest.raises(ConfigError, match=r"state of source 'b' is wider.*expected 14 or more, found 13"):
        padded_width("state", {"a": 7, "b": 14}, {"state": 13})
