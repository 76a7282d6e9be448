"""Windows over a stream, by tuples or by batches.

A window belongs to one procedure. Its state is what execution *i* leaves to execution *i + 1*; the slide an execution
makes is worked out without touching that state and applied when the transaction commits, so an abort has nothing to
undo.

With range W and slide S, window w holds the elements i with wS ≤ i < wS + W, and fires when element wS + W − 1 is
there. Elements are tuples (``count``) or whole batches (``batches``)::

    count = 4, slide = 2        0 1 2 3 4 5 6 7
    window 0                    ───────
    window 1                        ───────
    window 2                            ───────

Until the first window is full there is a partial one: ``rows`` then holds what has arrived so far.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tidegate.errors import DeclarationError
from tidegate.storage.schema import Row

Unit = Literal["count", "batches"]


@dataclass(frozen=True)
class WindowSpec:
    """A declared window: ``size`` and ``slide`` in tuples or in batches of ``stream``."""

    stream: str
    unit: Unit
    size: int
    slide: int


def window(
    stream: str, *, count: int | None = None, batches: int | None = None, slide: int | None = None
) -> WindowSpec:
    """A window of the last ``count`` tuples or ``batches`` batches of ``stream``, moving by ``slide`` (default: tumbling).

    >>> window("votes", count=100, slide=1)
    WindowSpec(stream='votes', unit='count', size=100, slide=1)
    """
    if (count is None) == (batches is None):
        raise DeclarationError(f"window over {stream}: give either count= (tuples) or batches=, not both or neither")
    unit: Unit = "count" if count is not None else "batches"
    size = count if count is not None else batches
    slide = size if slide is None else slide
    for name, value in (("size", size), ("slide", slide)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise DeclarationError(f"window over {stream}: {name} must be a positive whole number, got {value!r}")
    assert size is not None
    assert slide is not None
    if slide > size:
        raise DeclarationError(
            f"window over {stream}: slide {slide} is larger than size {size}, so tuples between windows would be lost; "
            f"use a larger size or filter in the procedure"
        )
    return WindowSpec(stream, unit, size, slide)


class Slide:
    """One execution's view of a window: what was there before, the rows of its batch, and what that makes fire.

    ``added`` and ``expired``: the rows that entered and left the window with this batch; ``rows``: the newest full
    extent (before the first is full: what has arrived); ``fired``: numbers of the windows this batch completed.
    """

    __slots__ = ("_first", "_new", "_windows", "added", "buffer", "expired", "fired")

    def __init__(self, buffer: WindowBuffer, rows: Sequence[Row]) -> None:
        spec = buffer.spec
        self.buffer = buffer
        self.added: Sequence[Any] = rows
        self._new: list[Sequence[Row]] = [(row,) for row in rows] if spec.unit == "count" else [rows]
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

    def commit(self) -> None:
        """Make the slide the window's state."""
        buffer = self.buffer
        elements = buffer.elements
        elements.extend(self._new)
        for _ in range(self._first - buffer.first):
            elements.popleft()
        buffer.first = self._first
        buffer.windows = self._windows


class WindowBuffer:
    """The state of one window (of one key): the elements that can still fire, and how many windows have fired."""

    __slots__ = ("elements", "first", "spec", "windows")

    def __init__(self, spec: WindowSpec) -> None:
        self.spec = spec
        self.elements: deque[Sequence[Row]] = deque()
        self.first = 0  # the number of the oldest element held
        self.windows = 0

    def slide(self, rows: Sequence[Row]) -> Slide:
        """What adding ``rows`` would do. Nothing changes until the slide is committed."""
        return Slide(self, rows)
