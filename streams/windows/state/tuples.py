"""Plain windows: tuples or whole batches in order of arrival, as Python rows, read by the procedure itself.

The windows of S-Store, and the fastest for small batches. Until the first window is full there is a partial one:
``rows`` then holds what has arrived so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, chain, islice
from typing import Any, ClassVar

import msgspec
import numpy as np

from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Relation, Row
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.state import saving
from tidegate.streams.windows.state.columns import Columns
from tidegate.streams.windows.state.shown import shown, shown_each
from tidegate.streams.windows.state.sizes import bytes_of


class TupleSlide(msgspec.Struct, eq=False, frozen=True):
    """One execution's view of a window: what was there before, the rows of its batch, and what that makes fire.

    ``added`` and ``expired``: the rows that entered and left the window with this batch; ``rows``: the newest full
    extent (before the first is full: what has arrived); ``fired``: numbers of the windows this batch completed.
    """

    buffer: TupleState
    added: tuple[Any, ...]
    expired: tuple[Any, ...]
    _new: list[tuple[Row, ...]]
    _first: int  # the number of the oldest element that is held from now on
    _windows: int  # windows fired so far, including this batch
    _before: int  # and without it

    late: ClassVar[Sequence[Any]] = ()
    results: ClassVar[None] = None

    @property
    def fired(self) -> range:
        return range(self._before, self._windows)

    @property
    def slid(self) -> bool:
        """Did this batch complete at least one window?"""
        return self._windows > self._before

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rows now in the window, oldest first."""
        return self.extent(max(self._windows - 1, 0))

    def extent(self, number: int) -> tuple[Any, ...]:
        """The rows of window ``number``: one of ``fired``, or the newest."""
        spec, buffer = self.buffer.spec, self.buffer
        low = number * spec.slide - buffer.first
        elements = [*buffer.elements, *self._new]
        return tuple(chain.from_iterable(elements[max(low, 0) : low + spec.size]))

    @property
    def windows(self) -> list[Extent]:
        """The windows that this batch completed."""
        if not self.slid:
            return []
        spec, buffer = self.buffer.spec, self.buffer
        elements = [*buffer.elements, *self._new]
        places = [0, *accumulate(map(len, elements))]  # of each element's first row
        columns = Columns.of_rows(buffer.relation, tuple(chain.from_iterable(elements))).protected()
        found = []
        for number in self.fired:
            start = number * spec.slide
            low, high = places[start - buffer.first], places[start - buffer.first + spec.size]
            if high > low:
                found.append(Extent(number, (), start, start + spec.size, columns.slice(low, high)))
        return found

    def shown(self, relation: Relation) -> Any:
        """What SQL reads under the window's name: the rows of all windows that fired."""
        return shown(relation, self.windows)

    def shown_each(self, relation: Relation) -> Iterator[Any]:
        """The same for one window after another."""
        return shown_each(relation, self.windows)

    def fired_at(self) -> list[int]:
        """The place in the batch of the row that completed each window that fired; of a window by count."""
        spec, before = self.buffer.spec, self.buffer.first + len(self.buffer.elements)
        return [number * spec.slide + spec.size - 1 - before for number in self.fired]

    def commit(self) -> None:
        """Make the slide the window's state."""
        buffer = self.buffer
        elements = buffer.elements
        elements.extend(self._new)
        gone = self._first - buffer.first
        if gone == 1:  # most often
            elements.popleft()
        else:
            for _ in range(gone):
                elements.popleft()
        buffer.first = self._first
        buffer.windows = self._windows


class TupleState:
    """The state of one window (of one key): the elements that can still fire, and how many windows have fired."""

    __slots__ = ("counts", "elements", "first", "full", "relation", "spec", "windows")

    late = 0
    late_rows: Sequence[Any] = ()
    watermark = None

    def __init__(self, spec: WindowSpec, relation: Relation) -> None:
        self.spec = spec
        self.counts = spec.kind == "count"  # an element is a row, not a batch
        self.full = spec.size if spec.slide == 1 else -1  # with so many elements, it slides by each that arrives
        self.relation = relation
        self.elements: deque[tuple[Row, ...]] = deque()
        self.first = 0  # the number of the oldest element held
        self.windows = 0

    def fresh(self) -> TupleState:
        """A new state like this one, for another key of the stream."""
        return TupleState(self.spec, self.relation)

    def slide(self, rows: Any, now_us: int = 0) -> TupleSlide:
        """What adding ``rows`` would do. Nothing changes until the slide is committed."""
        if type(rows) is ColumnRows:
            rows = rows.rows
        elements = self.elements
        held = len(elements)
        if held == self.full and (len(rows) == 1 or not self.counts):  # the most common case
            windows = self.windows
            return TupleSlide(self, rows, elements[0], [rows], self.first + 1, windows + 1, windows)
        spec = self.spec
        new: list[tuple[Row, ...]] = [rows] if len(rows) == 1 or not self.counts else list(zip(rows))
        total = self.first + held + len(new)
        if total < spec.size:
            return TupleSlide(self, rows, (), new, 0, 0, self.windows)
        windows = (total - spec.size) // spec.slide + 1
        # rows before the newest window's start have left it, and no later window reaches back to them
        first = (windows - 1) * spec.slide
        expired: list[Any] = []
        for i in range(first - self.first):
            expired += elements[i] if i < held else new[i - held]
        return TupleSlide(self, rows, tuple(expired), new, first, windows, self.windows)

    def still(self) -> TupleSlide:
        """Nothing arrived on the window's stream: nothing fires, nothing changes."""
        return TupleSlide(self, (), (), [], self.first, self.windows, self.windows)

    @property
    def fired(self) -> int:
        return self.windows

    def held(self) -> int:
        return sum(len(element) for element in self.elements)

    def bytes_held(self) -> int:
        return bytes_of(self.elements)

    def stands(self) -> dict[str, Any]:
        """What a checkpoint says about it in words."""
        return {"rows": self.held(), "first": self.first, "total": self.first + len(self.elements)}

    def begin_after(self, stands: Mapping[str, Any]) -> None:
        """A plain window begins with the next row."""

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
        self.elements = deque(tuple(islice(rows, length)) for length in lengths.tolist())
        self._refit()

    def _refit(self) -> None:
        """It may have been saved with another range and slide, see :func:`fits_again`."""
        self.windows, first = _stand(self.first + len(self.elements), self.spec.size, self.spec.slide)
        while self.first < first:
            self.elements.popleft()
            self.first += 1


def _stand(total: int, size: int, slide: int) -> tuple[int, int]:
    """Of ``total`` elements so far: how many windows have fired, and the first element that is held."""
    windows = (total - size) // slide + 1 if total >= size else 0
    return windows, max(windows - 1, 0) * slide


def fits_again(first: int, total: int, size: int, slide: int) -> bool:
    """Do elements ``first`` to ``total`` suffice for a window of this range and slide, as if it had always been so?

    >>> fits_again(6, 10, 2, 1), fits_again(6, 10, 8, 1)
    (True, False)
    """
    return _stand(total, size, slide)[1] >= first
