"""What arrives on a connection, as a file that ends at a fixed deadline and after so many bytes, however slow."""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class TooMuch(OSError):
    """More arrived than is allowed."""


class Arriving(io.RawIOBase):
    """A connection, read within bounds."""

    def __init__(self, connection: socket.socket, size: int, seconds: float) -> None:
        self._connection = connection
        self.allow(size, seconds)

    def allow(self, size: int, seconds: float) -> None:
        """From now on: this much, and this long."""
        self._left, self._ends = size, time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if not self._left:
            raise TooMuch("too much arrived")
        seconds = self._ends - time.monotonic()
        if seconds <= 0:
            raise TimeoutError("timed out")
        self._connection.settimeout(seconds)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._left -= count
        return count
