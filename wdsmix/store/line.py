"""GETs over one connection, with next to nothing between the socket and memory of ours.

An HTTP library costs a millisecond of the interpreter a request where threads decode beside it, wants another turn for
every little piece of the body, and passes each piece through fresh memory. A `Line` sends bytes that are ready, reads
the few fields of the head that matter, and then waits for as much of the body as a buffer holds. Where an answer is not
as plain as that, it raises `OddAnswerError`, and a real library shall ask again.
"""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import NamedTuple

__all__ = ["Answer", "Line", "OddAnswerError"]

_HEAD = 1 << 15
"""Bytes of a head, at most."""


class OddAnswerError(Exception):
    """Not an answer for a `Line`: the connection is of no more use."""


class Answer(NamedTuple):
    """The head of an answer."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    length: int
    """Bytes of the body."""


class Line:
    """A connection whose last answer has been read to its end. Used by one thread at a time.

    Args:
        link: Its socket, plain or of TLS.
        timeout: s without a byte after which it is given up.
    """

    def __init__(self, link: socket.socket, timeout: float) -> None:
        self._link = link
        self._plain = type(link) is socket.socket
        if self._plain:  # a socket that blocks; the kernel looks after the time
            seconds = int(timeout)
            patience = struct.pack("@ll", seconds, int((timeout - seconds) * 1e6))
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            link.settimeout(None)
        else:
            link.settimeout(timeout)
        self._rest = memoryview(b"")
        """Of the body, what came along with the head."""
        self.left = 0
        """Bytes of the body that have not been read."""
        self.lasts = True
        """Whether another request may follow."""

    def is_open(self) -> bool:
        """Whether the other side has neither closed it nor said anything out of turn."""
        if not self._plain:
            return self.lasts
        try:
            self._link.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return self.lasts
        except OSError:
            return False
        return False

    def ask(self, request: bytes) -> Answer:
        """Sends a request; returns the head of its answer.

        Raises:
            OddAnswerError: it is not a plain HTTP/1.1 answer with a length.
            OSError: the connection broke or went silent.
        """
        self._link.sendall(request)
        head = bytearray()
        while (end := head.find(b"\r\n\r\n")) < 0:
            if len(head) >= _HEAD:
                raise OddAnswerError
            data = self._receive_some()
            if not data:
                raise ConnectionResetError("the connection was closed")
            head += data
        self._rest = memoryview(head)[end + 4 :]
        answer = _parsed(bytes(head[:end]))
        if len(self._rest) > answer.length:
            raise OddAnswerError
        self.left = answer.length
        self.lasts = "close" not in answer.headers.get("connection", "").lower()
        return answer

    def _receive_some(self) -> bytes:
        try:
            return self._link.recv(_HEAD)
        except BlockingIOError as error:
            raise TimeoutError("timed out") from error

    def readinto(self, buffer: memoryview) -> int:
        """Waits for as many bytes as the buffer (uint8, writable) holds, or the body has left.

        Returns:
            How many came; fewer where the body ends, or it takes long; 0 at the end, also at an early one.

        Raises:
            OSError: the connection broke or went silent.
        """
        buffer = buffer[: self.left]
        count = min(len(self._rest), len(buffer))
        if count:
            buffer[:count], self._rest = self._rest[:count], self._rest[count:]
            buffer = buffer[count:]
        if buffer:
            try:
                count += self._fill(buffer)
            except BlockingIOError as error:
                if not count:
                    raise TimeoutError("timed out") from error
        self.left -= count
        return count

    def _fill(self, buffer: memoryview) -> int:
        if self._plain:
            return self._link.recv_into(buffer, 0, socket.MSG_WAITALL)
        place = 0
        while place < len(buffer) and (count := self._link.recv_into(buffer[place:])):  # a TLS record each
            place += count
        return place

    def close(self) -> None:
        """Closes the connection."""
        self.lasts = False
        with contextlib.suppress(OSError):
            self._link.close()


def _parsed(head: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    status = rest[:3]
    if version != "HTTP/1.1" or not (status.isascii() and status.isdigit()) or int(status) < 200:
        raise OddAnswerError
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in headers):
            raise OddAnswerError
        headers[name] = value.strip()
    length = headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()) or len(length) > 18 or "transfer-encoding" in headers:
        raise OddAnswerError
    return Answer(int(status), headers, int(length))
