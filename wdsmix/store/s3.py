"""``s3://`` by boto3: Amazon S3 and all that speaks like it. One client per process.

Credentials, profile, region and endpoint come from where AWS tools look for them; ``WDSMIX_S3_ENDPOINT_URL`` names an
endpoint for wdsmix alone, and ``WDSMIX_S3_UNSIGNED=1`` reads public buckets without credentials.
"""

from __future__ import annotations

import base64
import os
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from wdsmix.errors import ConfigError
from wdsmix.store.base import Body, MissingObjectError, ObjectInfo, PreconditionError, Store, TransientError, md5
from wdsmix.store.retry import StoreOptions
from wdsmix.store.s3_direct import DirectGets
from wdsmix.store.s3_errors import mapped

__all__ = ["S3Store"]


class _Client(NamedTuple):
    boto3: Any
    direct: DirectGets


_clients: dict[tuple[Any, ...], _Client] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # a thread of the parent may have held it
    _clients.clear()


os.register_at_fork(after_in_child=_after_fork)
_CHOICES = (
    "WDSMIX_S3_ENDPOINT_URL",
    "WDSMIX_S3_UNSIGNED",
    "AWS_PROFILE",
    "AWS_DEFAULT_PROFILE",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_ACCESS_KEY_ID",
    "AWS_CA_BUNDLE",
)


def _client(options: StoreOptions) -> _Client:
    """The client of this process for these options and the environment as it is."""
    secret = hash((os.environ.get("AWS_SECRET_ACCESS_KEY"), os.environ.get("AWS_SESSION_TOKEN")))
    key = (options, secret, *(os.environ.get(name) for name in _CHOICES))
    with _lock:
        if key not in _clients:
            made = _connect(options)
            _clients[key] = _Client(made, DirectGets(made, options.read_timeout, options.connections))
        return _clients[key]


def _connect(options: StoreOptions) -> Any:
    try:
        import boto3
        from botocore import UNSIGNED
        from botocore.config import Config
    except ImportError as error:
        raise ConfigError("s3:// needs boto3", hint="pip install 'wdsmix[s3]'") from error
    more = {"signature_version": UNSIGNED} if os.environ.get("WDSMIX_S3_UNSIGNED") else {}
    config = Config(
        retries={"mode": "standard", "total_max_attempts": 1},  # ours count tries without progress, and are shown
        connect_timeout=options.connect_timeout,
        read_timeout=options.read_timeout,
        tcp_keepalive=True,
        max_pool_connections=options.connections,
        # Uploads carry Content-MD5, which every server knows; what is read is checked against the manifest.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        **more,
    )
    with mapped("", ""):
        endpoint = os.environ.get("WDSMIX_S3_ENDPOINT_URL") or None
        if endpoint is not None and (urlsplit(endpoint).scheme not in ("http", "https") or "@" in endpoint):
            raise ConfigError("not an http(s) URL without user and password", where="WDSMIX_S3_ENDPOINT_URL")
        return boto3.session.Session().client("s3", endpoint_url=endpoint, config=config)


class _S3Body(Body):
    def __init__(self, stream: Any, info: ObjectInfo, start: int, where: str) -> None:
        self.info, self.start = info, start
        self._stream, self._where = stream, where

    def read(self, amount: int) -> bytes:
        with mapped(self._where, "GET"):
            data: bytes = self._stream.read(amount)
        return data

    def close(self) -> None:
        self._stream.close()


class _DirectBody(_S3Body):
    def readinto(self, buffer: memoryview) -> int:
        with mapped(self._where, "GET"):
            count: int = self._stream.readinto(buffer)
        return count


class S3Store(Store):
    """A bucket and prefix."""

    multipart = True

    def __init__(self, url: str, options: StoreOptions | None = None, retries: Any = None) -> None:
        super().__init__(url, options, retries)
        parts = urlsplit(self.url)
        self.bucket = parts.netloc
        self.prefix = self.url.partition("://")[2].partition("/")[2]
        self._made: tuple[int, _Client] | None = None

    @property
    def identity(self) -> str:
        """Endpoint and URL."""
        endpoint = urlsplit(self._client.meta.endpoint_url)
        return f"{endpoint.scheme}://{endpoint.hostname}:{endpoint.port or ''}{endpoint.path} {self.url}"

    def _clients(self) -> _Client:
        """Those of this process, as the environment was when the store was first used in it."""
        made = self._made
        if made is None or made[0] != os.getpid():
            made = self._made = os.getpid(), _client(self.options)
        return made[1]

    @property
    def _client(self) -> Any:
        return self._clients().boto3

    def _name(self, key: str) -> str:
        return f"{self.prefix}/{key}" if self.prefix else key

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self._name(key)}

    def body(self, key: str, start: int = 0, stop: int | None = None, etag: str = "") -> _S3Body:
        """One GetObject; see `Store.body`."""
        wanted: dict[str, str] = {}
        if start or stop is not None:
            wanted["Range"] = f"bytes={start}-" if stop is None else f"bytes={start}-{stop - 1}"
        if etag:
            wanted["IfMatch"] = etag
        where, name, direct = self.where(key), self._name(key), self._clients().direct
        facts: Mapping[str, Any]
        kind: type[_S3Body] = _DirectBody
        with mapped(where, "GET"):
            found = direct.again(self.bucket, name, where, **wanted)
            if found is not None:
                headers, stream = found
                span, length = headers.get("content-range", ""), headers.get("content-length", "")
                facts = {"ETag": headers.get("etag", "")}
            else:
                kind, facts = _S3Body, direct.first(self.bucket, name, **wanted)
                span, length, stream = facts.get("ContentRange", ""), facts.get("ContentLength", ""), facts["Body"]
        try:
            first, size = _span(span, str(length))
            return kind(stream, _info(key, size, facts), first, where)
        except BaseException:
            stream.close()
            raise

    def _head(self, key: str) -> ObjectInfo:
        with mapped(self.where(key), "HEAD"):
            answer = self._client.head_object(**self._at(key), ChecksumMode="ENABLED")
        return _info(key, int(answer["ContentLength"]), answer)

    def _page(self, prefix: str, page: str) -> tuple[Sequence[ObjectInfo], str | None]:
        more = {"ContinuationToken": page} if page else {}
        with mapped(self.where(prefix), "LIST"):
            answer = self._client.list_objects_v2(Bucket=self.bucket, Prefix=self._name(prefix), **more)
        cut = len(self._name(""))
        found = [
            ObjectInfo(
                key=item["Key"][cut:],
                size=int(item["Size"]),
                etag=item.get("ETag", ""),
                modified=item["LastModified"].timestamp(),
            )
            for item in answer.get("Contents", ())
        ]
        return found, answer["NextContinuationToken"] if answer.get("IsTruncated") else None

    def _put(self, key: str, data: bytes, if_match: str | None, if_absent: bool, metadata: Mapping[str, str]) -> str:
        more: dict[str, Any] = {"Metadata": dict(metadata)} if metadata else {}
        if if_absent:
            more["IfNoneMatch"] = "*"
        spellings = [None] if if_match is None else [if_match, if_match.strip('"')]  # Ceph compares without quotes
        for last, spelling in enumerate(spellings, 1 - len(spellings)):
            if spelling is not None:
                more["IfMatch"] = spelling
            try:
                with mapped(self.where(key), "PUT"):
                    answer = self._client.put_object(**self._at(key), Body=data, ContentMD5=_b64(md5(data)), **more)
                return str(answer.get("ETag", ""))
            except PreconditionError:
                if last == 0:
                    raise
        raise PreconditionError("the object is another version", path=self.where(key))

    def _delete(self, key: str) -> None:
        with mapped(self.where(key), "DELETE"):
            self._client.delete_object(**self._at(key))

    # --- multipart uploads --------------------------------------------------------------------------------------------

    def create_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        """Begins a multipart upload; returns its id."""

        def request() -> str:
            with mapped(self.where(key), "POST"):
                answer = self._client.create_multipart_upload(**self._at(key), Metadata=dict(metadata))
            return str(answer["UploadId"])

        return self.retries.call(request)

    def upload_part(self, key: str, upload: str, number: int, data: bytes | bytearray, digest: bytes) -> str:
        """Sends one part; returns its ETag.

        Args:
            key: Its key.
            upload: Id of the upload.
            number: From 1.
            data: Its bytes; a bytearray goes out without another copy.
            digest: Their MD5, which the server compares.
        """

        def request() -> str:
            with mapped(self.where(key), "PUT"):
                answer = self._client.upload_part(
                    **self._at(key), UploadId=upload, PartNumber=number, Body=data, ContentMD5=_b64(digest)
                )
            return str(answer["ETag"])

        return self.retries.call(request)

    def list_parts(self, key: str, upload: str) -> dict[int, tuple[int, str]]:
        """Parts that the store has: number -> size and ETag.

        Raises:
            MissingObjectError: there is no such upload.
        """
        found: dict[int, tuple[int, str]] = {}
        marker = 0
        while True:

            def request(marker: int = marker) -> Any:
                with mapped(self.where(key), "LIST"):
                    return self._client.list_parts(**self._at(key), UploadId=upload, PartNumberMarker=marker)

            answer = self.retries.call(request)
            for part in answer.get("Parts", ()):
                found[int(part["PartNumber"])] = (int(part["Size"]), str(part["ETag"]))
            if not answer.get("IsTruncated"):
                return found
            marker = int(answer["NextPartNumberMarker"])

    def complete_upload(self, key: str, upload: str, etags: Sequence[str]) -> str:
        """Makes the object of its parts; returns its ETag, empty where the answer got lost on the way."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        tries = 0

        def request() -> str:
            nonlocal tries
            tries += 1
            try:
                with mapped(self.where(key), "POST"):
                    answer = self._client.complete_multipart_upload(
                        **self._at(key), UploadId=upload, MultipartUpload={"Parts": parts}
                    )
            except MissingObjectError:
                if tries > 1:  # a try that seemed to fail has done it: whoever verifies will see
                    return ""
                raise
            return str(answer.get("ETag", ""))

        return self.retries.call(request)

    def abort_upload(self, key: str, upload: str) -> None:
        """Throws an unfinished upload away; none there is fine."""

        def request() -> None:
            try:
                with mapped(self.where(key), "DELETE"):
                    self._client.abort_multipart_upload(**self._at(key), UploadId=upload)
            except MissingObjectError:
                return

        self.retries.call(request)

    def uploads(self) -> Sequence[tuple[str, str]]:
        """Unfinished uploads below the prefix, of anybody: (key, id)."""
        found: list[tuple[str, str]] = []
        more: dict[str, str] = {}
        prefix = self._name("")
        while True:

            def request(more: Mapping[str, str] = more) -> Any:
                with mapped(self.url, "LIST"):
                    return self._client.list_multipart_uploads(Bucket=self.bucket, Prefix=prefix, **more)

            answer = self.retries.call(request)
            found += [(item["Key"][len(prefix) :], item["UploadId"]) for item in answer.get("Uploads", ())]
            if not answer.get("IsTruncated"):
                return found
            more = {"KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer.get("NextUploadIdMarker", "")}


def _span(content_range: str, length: str) -> tuple[int, int]:
    """First byte of an answer, and size of the whole object (-1: it does not tell)."""
    if not content_range:
        return 0, int(length) if length.isdigit() else -1
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", content_range)
    return (int(found[1]), int(found[2])) if found else (0, -1)


def _info(key: str, size: int, answer: Mapping[str, Any]) -> ObjectInfo:
    crc = answer.get("ChecksumCRC32C")
    whole = answer.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT"
    if size < 0:
        raise TransientError("the answer does not tell the object's size", path=key)
    return ObjectInfo(
        key=key,
        size=size,
        etag=answer.get("ETag", ""),
        modified=answer["LastModified"].timestamp() if "LastModified" in answer else 0.0,
        metadata={name.lower(): value for name, value in answer.get("Metadata", {}).items()},
        crc32c=int.from_bytes(base64.b64decode(crc), "big") if crc and whole and "-" not in crc else None,
    )


def _b64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
