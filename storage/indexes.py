"""Secondary indexes over rows with versions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from copy import copy
from operator import itemgetter
from typing import Any

from tidegate.mutex import Rank, mutex
from tidegate.storage.chains import rows_of
from tidegate.storage.ordered import TOP, Ordered, Range
from tidegate.storage.schema import Index, Key, Row, TableSchema


class Aged(dict[Any, Any]):
    """A dictionary that the garbage collector keeps in its old generation.

    An exact ``dict`` of untracked tuples is untracked by a full collection and, with the next write, tracked again as a
    young object: then every young collection would walk through the whole table.
    """

    __slots__ = ()


class SecondaryIndex:
    """Index key → keys of the rows that have it in *any* version kept; readers check the version they see.

    A single key under a value is stored as it is, several as a set: most values of many indexes have one row, and
    a set takes 216 bytes and a visit in every full garbage collection.

    Rows with a NULL in an indexed column are not in it: no comparison finds them.

    The values are in no order until a range of them is first asked for; from then on their order is kept. Readers on other
    threads look into it while rows change, so it has a lock; lookups by equality need none.
    """

    def __init__(self, schema: TableSchema, index: Index) -> None:
        self.columns = index.columns
        self.unique = index.unique
        self.name = index.name
        places = [schema.index_of[name] for name in index.columns]
        self.places = tuple(places)
        self.columns_of: Callable[[Row], Any] = itemgetter(*places)  # the indexed value, NULL or not
        self._keys: dict[Any, Any] = Aged()
        self.recognises = schema.recogniser(index.columns)  # is this an indexed value in its stored form?
        self._wide = len(places) > 1
        self._order: Ordered | None = None
        self._ordering = mutex(Rank.LEAF)

    def empty(self) -> SecondaryIndex:
        """An index on the same columns, for other rows."""
        other = copy(self)
        other._keys, other._order = {}, None
        other._ordering = mutex(Rank.LEAF)
        return other

    def value_of(self, row: Row) -> Any:
        """The indexed value of ``row``, or None when a part of it is NULL."""
        value = self.columns_of(row)
        return None if self._wide and None in value else value

    def add(self, row: Row, key: Key) -> None:
        columns_of = self.columns_of
        value = columns_of(row)
        keys = self._keys.get(value)
        if keys is None:
            if value is not None and not (self._wide and None in value):
                self._keys[value] = key
                if self._order is not None:
                    self._enter(value)
        elif type(keys) is set:
            keys.add(key)
        elif keys != key:
            self._keys[value] = {keys, key}

    def drop(self, row: Row, key: Key) -> None:
        self.drop_all([self.columns_of(row)], [key])

    def drop_all(self, values: list[Any], keys: list[Key]) -> None:
        """The rows with these keys no longer have these indexed values."""
        held = self._keys
        if len(values) > 1 and values.count(values[0]) == len(values) and type(having := held.get(values[0])) is set:
            having.difference_update(keys)
            if not having:
                self._leave(values[0])
            return
        for value, key in zip(values, keys, strict=True):
            having = held.get(value)
            if type(having) is set:
                having.discard(key)
                if not having:
                    self._leave(value)
            elif having == key:
                del held[value]
                if self._order is not None:  # asked after the value has gone: see _sort
                    self._leave_order(value)

    def _enter(self, value: Any) -> None:
        """The first row with this value."""
        with self._ordering:
            assert self._order is not None
            self._order.add(value)

    def _leave(self, value: Any) -> None:
        """There is no row with this value any more."""
        del self._keys[value]
        if self._order is not None:
            self._leave_order(value)

    def _leave_order(self, value: Any) -> None:
        with self._ordering:
            assert self._order is not None
            self._order.discard(value)

    def replace(self, old: Row | None, row: Row | None, key: Key) -> None:
        """``row`` takes the place of ``old``."""
        if row is not None:
            if old is not None and self.columns_of(old) == self.columns_of(row):
                return  # it stays under that value
            self.add(row, key)
        if old is not None:
            self.drop(old, key)

    def replace_older(self, version: Any, row: Row | None, key: Key) -> None:
        """``row`` takes the place of what is left of a chain."""
        now = None if row is None else self.value_of(row)
        for old in rows_of(version):
            if old is not None and (row is None or self.value_of(old) != now):
                self.drop(old, key)

    def candidates(self, value: Any) -> tuple[Key, ...]:
        keys = self._keys.get(value)
        return tuple(keys) if type(keys) is set else () if keys is None else (keys,)

    def count(self, value: Any) -> int | None:
        """How many keys there are under ``value``; None when it is not in its stored form, or NULL."""
        recognises = self.recognises
        if not recognises(value):
            return None
        keys = self._keys.get(value)
        return len(keys) if type(keys) is set else 0 if keys is None else 1

    # ---- ranges

    def values_in(self, wanted: Range, most: int | None = None, descending: bool = False) -> list[Any]:
        """The indexed values in this range, in order, at most so many."""
        return self.between(*self._bounds(wanted), most, descending)

    def between(self, low: Any, high: Any, most: int | None = None, descending: bool = False) -> list[Any]:
        """The same for bounds of :class:`~tidegate.storage.ordered.Ordered`."""
        if self._order is None:
            self._sort()
        with self._ordering:
            assert self._order is not None
            return self._order.between(low, high, most, descending)

    def least(self) -> Any:
        """The smallest indexed value, or None."""
        found = self.between(None, None, 1)
        return found[0] if found else None

    def walk(self, wanted: Range, descending: bool = False) -> Iterator[Any]:
        """The indexed values in this range, one after the other. What changes meanwhile may be met or not."""
        low, high = self._bounds(wanted)
        size = 8
        while True:
            values = self.between(low, high, size, descending)
            yield from values
            if len(values) < size:
                return
            low, high = (low, (values[-1], False)) if descending else ((values[-1], True), high)
            size = min(2 * size, 1024)

    def bytes_held(self) -> int:
        """What the index takes, without the values and keys, which belong to rows."""
        return sys.getsizeof(self._keys)

    def is_ordered(self) -> bool:
        """Is the order, if it is kept, that of the values?"""
        return self._order is None or self._order.between(None, None) == sorted(self._keys)

    def _sort(self) -> None:
        """Keep the order from now on. Whoever adds a value sees that, and waits, or has added it before it is read."""
        with self._ordering:
            if self._order is None:
                self._order = Ordered()
                self._order.fill(list(self._keys))

    def _bounds(self, wanted: Range) -> tuple[Any, Any]:
        prefix, low, above, high, below = wanted
        if not self._wide:
            if prefix:
                return (prefix[0], False), (prefix[0], True)
            return None if low is None else (low, above), None if high is None else (high, not below)
        start = prefix if low is None else (*prefix, low, TOP) if above else (*prefix, low)
        end = (*prefix, TOP) if high is None else (*prefix, high) if below else (*prefix, high, TOP)
        return (start, False), (end, False)

    def entries(self) -> dict[Any, set[Key]]:
        """All of it: the keys by indexed value."""
        return {value: set(self.candidates(value)) for value in self._keys}
