"""Plain windows: tuples or whole batches in order of arrival, as Python rows, read by the procedure itself.

What S-Store has, and the quickest for small batches. Until the first window is full there is a partial one: ``rows``
then holds what has arrived so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from tidegate.storage.schema import Relation, Row
from tidegate.streams.windows import saving
from tidegate.streams.windows.columns import Columns
from tidegate.streams.windows.functions import Extent
from tidegate.streams.windows.kinds import WindowSpec


class TupleSlide:
    """One execution's view of a window: what was there before, the rows of its batch, and what that makes fire.

    ``added`` and ``expired``: the rows that entered and left the window with this batch; ``rows``: the newest full
    extent (before the first is full: what has arrived); ``fired``: numbers of the windows this batch completed.
    """

    __slots__ = ("_first", "_new", "_windows", "added", "buffer", "expired", "fired")

    late: Sequence[Any] = ()
    results = None

    def __init__(self, buffer: TupleState, rows: Sequence[Row] | None) -> None:
        spec = buffer.spec
        self.buffer = buffer
        self.added: Sequence[Any] = rows or ()
        self._new: list[Sequence[Row]] = []
        if rows is not None:
            self._new = list(zip(rows)) if spec.kind == "count" else [rows]
        held = len(buffer.elements)
        total = buffer.first + held + len(self._new)
        self._windows = (total - spec.size) // spec.slide + 1 if total >= spec.size else 0
        self.fired = range(buffer.windows, self._windows)
        # what lies before the newest window's start has left it, and no later window reaches back to it
        self._first = (self._windows - 1) * spec.slide if self._windows else 0
        self.expired: list[Any] = []
        for i in range(self._first - buffer.first):
            self.expired.extend(buffer.elements[i] if i < held else self._new[i - held])

    @property
    def slid(self) -> bool:
        """Did this batch complete at least one window?"""
        return len(self.fired) > 0

    @property
    def rows(self) -> list[Any]:
        """The rows now in the window, oldest first."""
        return self.extent(max(self._windows - 1, 0))

    def extent(self, number: int) -> list[Any]:
        """The rows of window ``number``: one of ``fired``, or the newest."""
        spec, buffer = self.buffer.spec, self.buffer
        low = number * spec.slide - buffer.first
        elements = [*buffer.elements, *self._new]
        return [row for element in elements[max(low, 0) : low + spec.size] for row in element]

    @property
    def windows(self) -> list[Extent]:
        """The windows that this batch completed."""
        spec, relation = self.buffer.spec, self.buffer.relation
        found = []
        for number in self.fired:
            start, rows = number * spec.slide, self.extent(number)
            if rows:
                found.append(Extent(number, (), start, start + spec.size, Columns.of_rows(relation, rows)))
        return found

    def commit(self) -> None:
        """Make the slide the window's state."""
        buffer = self.buffer
        elements = buffer.elements
        elements.extend(self._new)
        for _ in range(self._first - buffer.first):
            elements.popleft()
        buffer.first = self._first
        buffer.windows = self._windows


class TupleState:
    """The state of one window (of one key): the elements that can still fire, and how many windows have fired."""

    __slots__ = ("elements", "first", "relation", "spec", "windows")

    late = 0
    late_rows: Sequence[Any] = ()
    watermark = None

    def __init__(self, spec: WindowSpec, relation: Relation) -> None:
        self.spec = spec
        self.relation = relation
        self.elements: deque[Sequence[Row]] = deque()
        self.first = 0  # the number of the oldest element held
        self.windows = 0

    def slide(self, rows: Sequence[Row], now_us: int = 0) -> TupleSlide:
        """What adding ``rows`` would do. Nothing changes until the slide is committed."""
        return TupleSlide(self, rows)

    def still(self) -> TupleSlide:
        """Nothing came on the window's stream: nothing fires, nothing changes."""
        return TupleSlide(self, None)

    @property
    def fired(self) -> int:
        return self.windows

    def held(self) -> int:
        return sum(len(element) for element in self.elements)

    def contents(self) -> Any:
        return self.first, self.windows, [[tuple(row) for row in element] for element in self.elements]

    def save(self) -> bytes:
        lengths = np.array([len(element) for element in self.elements], "i8")
        rows = [row for element in self.elements for row in element]
        return saving.pack([self.first, self.windows, lengths, Columns.of_rows(self.relation, rows)])

    def restore(self, saved: bytes) -> None:
        names = self.relation.column_names
        self.first, self.windows, lengths, columns = saving.unpack(saved, self.relation, names)
        rows = iter(columns.rows)
        self.elements = deque(list(islice(rows, length)) for length in lengths.tolist())
