"""Reading one object, whatever the connection does: of one version, resumed where it broke, checked for length."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from wdsmix.errors import ConflictError, DataError, StorageError
from wdsmix.store.base import Body, MissingObjectError, ObjectInfo, PreconditionError, Store, TransientError

__all__ = ["CHUNK", "ObjectReader"]

CHUNK = 1 << 18
"""Bytes asked of a connection at a time; a broken one loses at most so many."""
_PART = 8 << 20
_PIECE = 1 << 19
_here = threading.local()
_Piece = TypeVar("_Piece", bytes, memoryview)


class ObjectReader:
    """Reads one object of a store. Safe to share by threads once something has been read.

    The first answer fixes version and size; every later one must agree, so that no two versions are ever mixed.

    Args:
        store: Where.
        key: What.
        size: Bytes it must have, as the manifest says, so that its lack is damage; None: whatever it has.
        etag: Version it must be; empty: whichever comes first.
    """

    def __init__(self, store: Store, key: str, *, size: int | None = None, etag: str = "") -> None:
        self.store = store
        self.key = key
        self._size, self._listed = size, size is not None
        self._etag = etag
        self._info: ObjectInfo | None = None

    @property
    def info(self) -> ObjectInfo:
        """Size and version; asks the store if nothing was read yet."""
        if self._info is None:
            try:
                self._check(self.store.head(self.key))
            except MissingObjectError as error:
                if not self._listed:
                    raise
                raise self._missing() from error
        if self._info is None:
            raise StorageError("the store says nothing of the object", path=self.store.where(self.key))
        return self._info

    def _missing(self) -> DataError:
        return DataError(
            "the manifest lists the object, but it is not there",
            path=self.store.where(self.key),
            hint="push the set again; 'wdsmix validate URL' tells what it lacks",
        )

    def _check(self, info: ObjectInfo) -> None:
        path = self.store.where(self.key)
        if self._etag and info.etag and info.plain_etag != self._etag.partition("#")[0]:
            raise _replaced(path, self._etag, info.etag)
        if self._size is not None and info.size != self._size:
            raise DataError(
                "the object is not as long as it should be",
                path=path,
                expected=f"{self._size} bytes",
                found=f"{info.size} bytes",
            )
        self._etag, self._size = info.etag or self._etag, info.size
        if self._info is None:
            self._info = info

    def stream(self, start: int = 0, stop: int | None = None, chunk: int = CHUNK) -> Generator[bytes, None, None]:
        """Bytes ``start`` to ``stop`` (None: the end) in order, over one connection as long as it lasts.

        Raises:
            MissingObjectError: there is no such object.
            ConflictError: it was replaced while it was read.
            DataError: it is not as long as it should be.
            StorageError: the store can't be reached or refuses.
        """
        return self._received(start, stop, lambda body, left: body.read(min(chunk, left)))

    def pieces(self, start: int = 0, stop: int | None = None) -> Generator[memoryview, None, None]:
        """The same without fresh memory: each piece holds until this thread asks for another one, of any reader."""
        return self._received(start, stop, lambda body, left: _filled(body, _own_buffer()[:left]))

    def _received(
        self, start: int, stop: int | None, take: Callable[[Body, int], _Piece]
    ) -> Generator[_Piece, None, None]:
        position = start
        backoff = self.store.retries.backoff()
        body: Body | None = None
        try:
            while stop is None or position < stop:
                try:
                    if body is None:
                        body = self._open(position, stop)
                    if stop is None:
                        stop = self.info.size
                        continue
                    data = take(body, stop - position)
                    if not data:
                        raise TransientError(
                            "the answer ended early", path=self.store.where(self.key), where=f"byte {position}"
                        )
                except TransientError as error:
                    if body is not None:
                        body.close()
                        body = None
                    backoff.failed(error)
                    continue
                backoff.progress()
                position += len(data)
                yield data
        finally:
            if body is not None:
                body.close()

    def _open(self, start: int, stop: int | None) -> Body:
        path = self.store.where(self.key)
        try:
            body = self.store.body(self.key, start, stop, self._etag)
        except PreconditionError as error:
            raise _replaced(path, self._etag, "another version") from error
        except MissingObjectError as error:
            if not self._listed:
                raise
            raise self._missing() from error
        try:
            self._check(body.info)
            if body.start != start:
                raise StorageError(
                    "the server does not serve ranges", path=path, expected=f"byte {start}", found=f"byte {body.start}"
                )
        except BaseException:
            body.close()
            raise
        return body

    def read(self, start: int = 0, stop: int | None = None) -> bytes:
        """Bytes ``start`` to ``stop`` (None: the end); raises as `stream` does."""
        return b"".join(self.stream(start, stop))

    def readinto(self, buffer: memoryview, start: int = 0) -> None:
        """Fills ``buffer`` (uint8) with the bytes from ``start``; raises as `stream` does."""
        end = len(buffer)
        pieces = self._received(start, start + end, lambda body, left: _filled(body, buffer[end - left :]))
        deque(pieces, maxlen=0)

    def ranged(
        self, start: int = 0, stop: int | None = None, *, part: int = _PART, depth: int = 4
    ) -> Generator[memoryview, None, None]:
        """Bytes ``start`` to ``stop`` (None: the end) in order, by ``depth`` ranged requests at a time.

        For stores that limit each connection. Memory: ``depth + 1`` buffers of ``part`` bytes, used again: what is
        yielded holds until the next step.

        Raises:
            MissingObjectError: there is no such object.
            ConflictError: it was replaced while it was read.
            DataError: it is not as long as it should be.
            StorageError: the store can't be reached or refuses.
        """
        end = self.info.size if stop is None else stop
        starts = deque(range(start, end, part))
        pending: deque[tuple[Future[None], memoryview]] = deque()
        free = [memoryview(bytearray(min(part, max(end - start, 0)))) for _ in range(min(depth + 1, len(starts)))]
        with ThreadPoolExecutor(max(depth, 1), thread_name_prefix="wdsmix-read") as pool:
            try:
                lent: memoryview | None = None
                while starts or pending:
                    if lent is not None:
                        free.append(lent)
                    while starts and free:
                        first, buffer = starts.popleft(), free.pop()
                        view = buffer[: min(part, end - first)]
                        pending.append((pool.submit(self.readinto, view, first), buffer))
                    done, lent = pending.popleft()
                    done.result()
                    yield lent[: min(part, end - start)]
                    start += part
            finally:
                for future, _ in pending:
                    future.cancel()


def _own_buffer() -> memoryview:
    """Memory of the thread that asks, which need not be the one that began."""
    buffer: memoryview | None = getattr(_here, "buffer", None)
    if buffer is None:
        buffer = _here.buffer = memoryview(bytearray(_PIECE))
    return buffer


def _filled(body: Body, buffer: memoryview) -> memoryview:
    return buffer[: body.readinto(buffer[:_PIECE])]


def _replaced(path: str, expected: str, found: str) -> ConflictError:
    return ConflictError(
        "the object was replaced while it was read: two versions are never mixed",
        path=path,
        expected=f"ETag {expected}",
        found=found,
    )
