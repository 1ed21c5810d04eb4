"""What obstore says is told by words that can't stand in a name or a port."""

from __future__ import annotations

import pytest

from wdsmix.errors import DataError
from wdsmix.store.base import TransientError
from wdsmix.store.obstores import _translate


@pytest.mark.parametrize(
    "said",
    [
        "error sending request for url (http://127.0.0.1:41623/bucket/x): connection refused",
        "Server returned non-2xx status code: 503 Service Unavailable: http://host/test-4160f2/x",
    ],
)
def test_digits_of_a_name_or_port_are_no_status(said: str) -> None:
    assert isinstance(_translate(RuntimeError(said), "gs://bucket/x"), TransientError)


def test_a_range_past_the_end() -> None:
    said = "Server returned non-2xx status code: 416 Range Not Satisfiable: "
    assert isinstance(_translate(RuntimeError(said), "gs://bucket/x"), DataError)
