"""A queue between senders and the ingestion, for sources that are pushed to.

Devices send when they like. What they send waits here, bounded by count and by bytes; when the queue is full they are
told to wait. Each entry is notified when its rows are on disk, so that a device can keep what was not acknowledged and
send it again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tidegate.connectors.shared.reading import UNREADABLE, reason, shown
from tidegate.errors import Overloaded
from tidegate.outside.sources import Malformed, Polled
from tidegate.storage.schema import Row

CAPACITY_BYTES = 64 << 20  # of messages being read or waiting


@dataclass(frozen=True)
class Arrived:
    """One message: its rows, or why it has none. ``done`` is called when they are on disk here."""

    place: str
    rows: list[Row]
    malformed: list[Malformed]
    done: Callable[[], None]
    size: int = 0  # bytes


class WaitingLine:
    """Entries in order of arrival; ``capacity`` of them at most."""

    def __init__(self, capacity: int, capacity_bytes: int = CAPACITY_BYTES) -> None:
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._bytes = 0
        self._entries: deque[Arrived] = deque()
        self._taken: deque[Arrived] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self.number = 0  # of the last entry taken

    def __len__(self) -> int:
        return len(self._entries) + len(self._taken)

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Reserve room for a message of this size while it is read, until it is queued. Overloaded if none is left."""
        with self._changed:
            if self._bytes + size > self._capacity_bytes:
                raise Overloaded(
                    f"{self._bytes} bytes are already waiting; send it again later", capacity=self._capacity_bytes
                )
            self._bytes += size
        try:
            yield
        finally:
            with self._changed:
                self._bytes -= size

    def put(self, entry: Arrived) -> None:
        """Queue an entry; Overloaded when the queue is full or closed."""
        with self._changed:
            if self._closed or len(self) >= self._capacity:
                raise Overloaded(
                    f"{len(self)} messages are already waiting; send it again later", capacity=self._capacity
                )
            self._entries.append(entry)
            self._bytes += entry.size
            self._changed.notify_all()

    def take(self, limit: int, timeout_s: float) -> Polled | None:
        """The rows of the next entries, about ``limit``."""
        with self._changed:
            self._changed.wait_for(lambda: self._entries or self._closed, timeout_s)
            rows: list[Row] = []
            malformed: list[Malformed] = []
            places: list[str] = []
            while self._entries and len(rows) + len(malformed) < limit:
                entry = self._entries.popleft()
                self._taken.append(entry)
                self.number += 1
                rows += entry.rows
                places += [f"{entry.place}/{i}" for i in range(len(entry.rows))]
                malformed += entry.malformed
        return Polled(rows, self.number, malformed, places.__getitem__) if rows or malformed else None

    def done(self) -> None:
        """Everything taken is on disk."""
        while self._taken:
            entry = self._taken.popleft()
            with self._changed:
                self._bytes -= entry.size
            entry.done()

    def open(self, offset: Any) -> None:
        with self._changed:
            self._closed = False
            self.number = max(self.number, offset or 0)
            self._entries.extendleft(reversed(self._taken))  # taken, but not accepted in the end
            self._taken.clear()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def arrived(
    place: str, records: list[Any], read: Callable[[Any], Row], done: Callable[[], None], size: int = 0
) -> Arrived:
    """A message of these records."""
    rows, malformed = [], []
    for i, record in enumerate(records):
        try:
            rows.append(read(record))
        except UNREADABLE as error:
            malformed.append(Malformed(f"{place}/{i}", shown(record), reason(error)))
    return Arrived(place, rows, malformed, done, size)
