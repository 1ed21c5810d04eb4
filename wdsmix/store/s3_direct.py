"""GETs that go around most of boto3, which costs a millisecond each: signed once, sent again for other ranges.

Range and If-Match are left out of what is signed: one signature serves all ranges of an object for some minutes.
boto3 makes and signs the first request of an object; what is kept of it goes out by boto3's own connections. An answer
that is neither bytes nor a plain error is left to boto3, which knows redirects and expired credentials.
"""

from __future__ import annotations

import re
import threading
import time
from typing import Any, NamedTuple

from wdsmix.store.s3_errors import answered

__all__ = ["DirectGets"]

_LASTS = 240.0  # s for which a signature is used; stores take them for five minutes at least
_MOST = 1 << 14  # objects
_UNSIGNED = ("Range", "If-Match")
_PLAIN = (404, 408, 412, 416, 429)


class _Signed(NamedTuple):
    since: float
    url: str
    headers: Any


class DirectGets:
    """The signed requests of one client. Thread-safe.

    Args:
        client: boto3's, for S3.
    """

    def __init__(self, client: Any) -> None:
        self._client = client
        self._signed: dict[tuple[str, str], _Signed] = {}
        self._here = threading.local()
        client.meta.events.register("before-sign.s3.GetObject", self._before_sign)
        client.meta.events.register("before-send.s3.GetObject", self._before_send)

    def _before_sign(self, request: Any, **_: Any) -> None:
        """Takes out what is not to be signed."""
        self._here.held = held = {name: request.headers[name] for name in _UNSIGNED if name in request.headers}
        for name in held:
            del request.headers[name]

    def _before_send(self, request: Any, **_: Any) -> None:
        """Keeps what was signed, and puts back what was taken out."""
        self._here.last = _Signed(time.monotonic(), request.url, request.headers.copy())
        for name, value in getattr(self._here, "held", {}).items():
            request.headers[name] = value

    def first(self, bucket: str, key: str, **wanted: str) -> Any:
        """GetObject by boto3; returns its answer."""
        answer = self._client.get_object(Bucket=bucket, Key=key, **wanted)
        if len(self._signed) >= _MOST:
            self._signed.clear()
        self._signed[bucket, key] = self._here.last
        return answer

    def again(self, bucket: str, key: str, where: str, **wanted: str) -> Any:
        """A response (with status_code, headers and raw) by a signature that is there; None: ask `first`.

        Args:
            bucket: Of the object.
            key: Of the object.
            where: Its URL, for errors.
            wanted: Range and IfMatch, as for boto3.

        Raises:
            WdsmixError: the answer is an error.
        """
        signed = self._signed.get((bucket, key))
        if signed is None or time.monotonic() - signed.since > _LASTS:
            return None
        from botocore.awsrequest import AWSPreparedRequest

        headers = signed.headers.copy()
        for name, value in wanted.items():
            headers["If-Match" if name == "IfMatch" else name] = value
        request = AWSPreparedRequest("GET", signed.url, headers, None, True)
        response = self._client._endpoint.http_session.send(request)
        status = response.status_code
        if status in (200, 206):
            return response
        found = re.search(rb"<Code>(\w+)</Code>", response.content)
        if status in _PLAIN or status >= 500:
            code = found[1].decode() if found else ""
            raise answered({"ResponseMetadata": {"HTTPStatusCode": status}, "Error": {"Code": code}}, where, "GET")
        self._signed.pop((bucket, key), None)
        return None
