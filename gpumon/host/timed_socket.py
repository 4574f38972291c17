"""A socket for http.client whose operations all end by one deadline, and which takes no more than so many bytes.

http.client limits the time of each read alone, so an answer of one byte a second would never end; and a header, a
chunk of a negative size or a trailer may be as long as the peer likes.
"""

from __future__ import annotations

import io
import socket
from collections.abc import Callable


class TooLongError(Exception):
    """The peer sent more than it may."""


class TimedSocket:
    """Has of a socket what http.client uses. Like a real one, it stays open while a reader of it does."""

    def __init__(self, real: socket.socket, now_s: Callable[[], float]) -> None:
        self._real = real
        self._now_s = now_s
        self._readers = 0
        self._closing = False
        self.deadline_s = 0.0
        """Steady seconds; what goes on after it raises TimeoutError."""
        self.bytes_left = 0
        """To be received; what comes after it raises TooLongError."""

    def sendall(self, data: bytes) -> None:
        self._real.settimeout(left_s(self.deadline_s, self._now_s))
        self._real.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb"
        self._readers += 1
        return io.BufferedReader(_Reader(self), 65_536)

    def close(self) -> None:
        self._closing = True
        if self._readers == 0:
            self._real.close()

    def reader_closed(self) -> None:
        self._readers -= 1
        if self._closing:
            self.close()

    def receive_into(self, buffer: memoryview) -> int:
        if self.bytes_left <= 0:
            raise TooLongError
        self._real.settimeout(left_s(self.deadline_s, self._now_s))
        count = self._real.recv_into(buffer)
        self.bytes_left -= count
        return count


class _Reader(io.RawIOBase):
    def __init__(self, source: TimedSocket) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # BufferedReader gives nothing else
        return self._source.receive_into(buffer)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._source.reader_closed()


def left_s(deadline_s: float, now_s: Callable[[], float]) -> float:
    """Seconds until the deadline, more than 0. Raises TimeoutError when it has passed."""
    left = deadline_s - now_s()
    if left <= 0:
        raise TimeoutError
    return left
