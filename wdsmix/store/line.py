"""GETs over one connection, with next to nothing between the socket and memory of ours.

An HTTP library costs a millisecond of the interpreter a request where threads decode beside it, wants another turn for
every little piece of the body, and passes each piece through fresh memory. A `Line` sends bytes that are ready, reads
the few fields of the head that matter, and then waits for as much of the body as a buffer holds. Where an answer is not
as plain as that, it raises `OddAnswerError`, and a real library shall ask again.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
from typing import NamedTuple

__all__ = ["Answer", "IdleLines", "Line", "OddAnswerError"]

_HEAD = 1 << 15
"""Bytes of a head, at most."""
_BEGIN = b"HTTP/"


class OddAnswerError(Exception):
    """Not an answer for a `Line`: the connection is of no more use.

    Args:
        status: Of the answer; 0 where there is none to be relied on.
    """

    def __init__(self, status: int = 0) -> None:
        super().__init__(status)
        self.status = status


class Answer(NamedTuple):
    """The head of an answer."""

    status: int
    headers: dict[str, str]
    """By lower-case name."""
    length: int
    """Bytes of the body; -1 for an error that does not tell."""


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
            small = max(int((timeout - seconds) * 1e6), 0 if seconds else 1)  # no time at all would be for ever
            patience = struct.pack("@ll", seconds, small)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, patience)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, patience)
            link.settimeout(None)
        else:
            link.settimeout(timeout)
        self._rest = memoryview(b"")
        """Of the body, what came along with the head."""
        self.left = 0
        """Bytes of the body that have not been read; -1 where that is not known."""
        self.lasts = True
        """Whether another request may follow once the body is read."""

    def is_open(self) -> bool:
        """Whether the other side has neither closed it nor said anything out of turn."""
        if not self._plain:
            return self.lasts and not _speaks(self._link)
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
            if len(head) >= _HEAD or b"\n\n" in head or not head.startswith(_BEGIN[: len(head)]):
                raise OddAnswerError
            data = self._receive_some()
            if not data:
                raise ConnectionResetError("the connection was closed")
            head += data
        self._rest = memoryview(head)[end + 4 :]
        answer = _parsed(bytes(head[:end]))
        if len(self._rest) > answer.length >= 0:
            raise OddAnswerError
        self.left = answer.length
        self.lasts = answer.length >= 0 and "close" not in answer.headers.get("connection", "").lower()
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
            except OSError:
                if not count:  # what came counts; the next call will see that there is no more
                    raise
        self.left -= count
        return count

    def _fill(self, buffer: memoryview) -> int:
        if self._plain:
            return self._link.recv_into(buffer, 0, socket.MSG_WAITALL)
        place = 0
        try:
            while place < len(buffer) and (count := self._link.recv_into(buffer[place:])):  # a TLS record each
                place += count
        except OSError:
            if not place:
                raise
        return place

    def reason(self, most: int) -> bytes:
        """What an error says, as it came: chunks are not taken apart. Ends the line, unless that was a whole body.

        Args:
            most: Bytes that are worth it.

        Raises:
            OSError: the connection broke or went silent.
        """
        if self.left > most:
            self.lasts = False
            return b""
        if self.left >= 0:
            data = bytearray(self.left)
            while self.left and self.readinto(memoryview(data)[-self.left :]):
                pass
            self.lasts = self.lasts and not self.left
            return bytes(data)
        data = bytearray(self._rest)
        with contextlib.suppress(OSError):
            while len(data) <= most and not data.endswith(b"\r\n\r\n") and (more := self._receive_some()):
                data += more
        return bytes(data)

    def close(self) -> None:
        """Closes the connection."""
        self.lasts = False
        with contextlib.suppress(OSError):
            self._link.close()


class IdleLines:
    """Lines that wait for a request, by the server that they lead to. Thread-safe.

    Args:
        most: How many are kept for each server.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lines: dict[str, list[Line]] = {}

    def take(self, place: str) -> Line | None:
        """The line to a server that was used last, if there is one that is open."""
        lines = self._lines.get(place)
        while lines:
            try:
                line = lines.pop()
            except IndexError:  # another thread was faster
                break
            if line.is_open():
                return line
            line.close()
        return None

    def keep(self, place: str, line: Line) -> None:
        """Takes a line back, whose last answer has been read."""
        lines = self._lines.get(place)
        if lines is None:
            lines = self._lines.setdefault(place, [])
        if line.lasts and len(lines) < self._most:
            lines.append(line)
        else:
            line.close()

    def close(self, place: str) -> None:
        """Closes all lines to a server that nobody uses now."""
        lines = self._lines.get(place)
        while lines:
            with contextlib.suppress(IndexError):
                lines.pop().close()


def _speaks(link: socket.socket) -> bool:
    """Whether there is something to read from a connection of TLS: data, or its end."""
    pending = getattr(link, "pending", None)
    if pending is not None and pending():
        return True
    poll = select.poll()
    poll.register(link, select.POLLIN)
    return bool(poll.poll(0))


def _parsed(head: bytes) -> Answer:
    first, *lines = head.decode("latin-1").split("\r\n")
    version, _, rest = first.partition(" ")
    text = rest[:3]
    if version != "HTTP/1.1" or rest[3:4] not in ("", " ") or not (text.isascii() and text.isdigit()):
        raise OddAnswerError
    status = int(text)
    if status < 200 or status in (204, 304) or head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines):
        raise OddAnswerError(status)
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip() or (name == "content-length" and name in headers):
            raise OddAnswerError(status)
        headers[name] = value.strip()
    length = headers.get("content-length", "")
    if status >= 300 and ("transfer-encoding" in headers or not length):
        return Answer(status, headers, -1)
    if not (length.isascii() and length.isdigit()) or len(length) > 18 or "transfer-encoding" in headers:
        raise OddAnswerError(status)
    return Answer(status, headers, int(length))
