"""Values kept in order, for ranges of a secondary index.

A sorted list cut into blocks: finding a place is two binary searches, and a change moves only the rest of one block.
Values that arrive in order, as times do, are appended.

Pure data structure: no clock, thread, file or DuckDB.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

SIZE = 512  # values in a new block; it is split at twice as many


class _Top:
    """Above every value."""

    __slots__ = ()

    def __lt__(self, other: object) -> bool:
        return False

    def __gt__(self, other: object) -> bool:
        return other is not self


TOP = _Top()


class Range(NamedTuple):
    """Rows whose first indexed columns equal ``prefix`` and whose next one lies between ``low`` and ``high``.

    None: no bound on that side. ``above`` and ``below``: the bound itself is not in it.
    """

    prefix: tuple[Any, ...] = ()
    low: Any = None
    above: bool = False
    high: Any = None
    below: bool = False


class Ordered:
    """Distinct values in ascending order.

    >>> values = Ordered([30, 10, 20])
    >>> values.between((10, True), None)
    [20, 30]
    """

    __slots__ = ("_blocks", "_lasts")

    def __init__(self, values: Iterable[Any] = ()) -> None:
        self.fill(values)

    def fill(self, values: Iterable[Any]) -> None:
        """These are the values from now on."""
        ordered = sorted(values)
        self._blocks: list[list[Any]] = [ordered[start : start + SIZE] for start in range(0, len(ordered), SIZE)]
        self._lasts = [block[-1] for block in self._blocks]

    def __len__(self) -> int:
        return sum(map(len, self._blocks))

    def add(self, value: Any) -> None:
        """Put ``value`` in its place, unless it is there."""
        lasts = self._lasts
        if not lasts:
            self._blocks.append([value])
            lasts.append(value)
            return
        at = bisect_left(lasts, value)
        if at == len(lasts):
            at -= 1
            block = self._blocks[at]
            block.append(value)
            lasts[at] = value
        else:
            block = self._blocks[at]
            place = bisect_left(block, value)
            if block[place] == value:
                return
            block.insert(place, value)
        if len(block) > 2 * SIZE:
            self._blocks[at : at + 1] = [block[:SIZE], block[SIZE:]]
            lasts[at : at + 1] = [block[SIZE - 1], block[-1]]

    def discard(self, value: Any) -> None:
        """Take ``value`` out, if it is there."""
        at = bisect_left(self._lasts, value)
        if at == len(self._lasts):
            return
        block = self._blocks[at]
        place = bisect_left(block, value)
        if block[place] != value:
            return
        del block[place]
        if block:
            self._lasts[at] = block[-1]
        else:
            del self._blocks[at], self._lasts[at]

    def between(self, low: Any, high: Any, most: int | None = None, descending: bool = False) -> list[Any]:
        """The values between two bounds, at most ``most``, from the first or from the last.

        A bound is None or ``(value, after)``: the gap before or after that value.
        """
        first = (0, 0) if low is None else self._gap(*low)
        end = (len(self._blocks), 0) if high is None else self._gap(*high)
        found: list[Any] = []
        if first >= end:
            return found
        blocks = range(first[0], min(end[0] + 1, len(self._blocks)))
        for at in reversed(blocks) if descending else blocks:
            block = self._blocks[at]
            part = block[first[1] if at == first[0] else 0 : end[1] if at == end[0] else len(block)]
            found += reversed(part) if descending else part
            if most is not None and len(found) >= most:
                return found[:most]
        return found

    def _gap(self, value: Any, after: bool) -> tuple[int, int]:
        """(block, place in it) of the first value behind the gap."""
        bisect = bisect_right if after else bisect_left
        at = bisect(self._lasts, value)
        return (at, 0) if at == len(self._lasts) else (at, bisect(self._blocks[at], value))
