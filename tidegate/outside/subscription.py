"""Following a stream: committed batches, in the order in which their transactions committed."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tidegate.errors import Overloaded
from tidegate.forking import own
from tidegate.mutex import Rank, reentrant
from tidegate.streams.batch import Batch

if TYPE_CHECKING:
    from tidegate.outside.outbox import Outbox


class Subscription:
    """The batches committed to one stream from now on. Iterating gives those waiting and stops when there are none.

    On a stream without key that is batch-id order; on a keyed stream it is batch-id order for every key. A subscriber
    that falls more than ``capacity`` batches behind gets Overloaded: nothing is dropped silently.
    """

    def __init__(self, outbox: Outbox, stream: str, capacity: int) -> None:
        own(self)
        self.stream = stream
        self.capacity = capacity
        self._outbox = outbox
        self._batches: deque[tuple[int, Batch]] = deque()  # (LSN that makes it final, batch)
        self._guard = reentrant(Rank.LEAF)
        self._arrived = threading.Condition(self._guard)
        self._lost = 0

    def receive(self, position: int, batch: Batch) -> None:
        """Called inside the commit: only queues."""
        with self._guard:
            if self._lost or len(self._batches) >= self.capacity:  # what comes after a gap is not kept either
                self._lost += 1
            else:
                self._batches.append((self._outbox.lsn(), batch))
            self._arrived.notify_all()

    def get(self, timeout_s: float | None = 0) -> Batch | None:
        """The next batch, waiting up to ``timeout_s`` seconds for it (None: as long as it takes); None when there is none."""
        with self._guard:
            if not self._batches and timeout_s != 0:
                self._arrived.wait_for(lambda: self._batches or self._lost, timeout_s)
            found = self._batches.popleft() if self._batches else None
            if found is None and self._lost:
                raise Overloaded(
                    f"the subscription to {self.stream} fell behind: {self._lost} batches after the {self.capacity} it held "
                    f"were not kept; read it faster or subscribe with a larger capacity",
                    stream=self.stream,
                    capacity=self.capacity,
                    lost=self._lost,
                )
        if found is None:
            return None
        lsn, batch = found
        try:
            self._outbox.wait(lsn)
        except BaseException:
            with self._guard:
                self._batches.appendleft(found)
            raise
        return batch

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.get()) is not None:
            yield batch

    def __len__(self) -> int:
        return len(self._batches)

    def close(self) -> None:
        """Stop following."""
        self._outbox.unlisten(self.stream, self.receive)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
