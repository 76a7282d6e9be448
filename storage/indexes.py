"""Secondary indexes over rows with versions, and what a version is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Final

from tidegate.storage.schema import Index, Key, Row, TableSchema

Position = int

# (position, row or None if deleted, older version, commit number)
Version = tuple[Position, Row | None, Any, int]

TRIMMED: Final = object()  # not an instance of a class of ours: the cyclic garbage collector then ignores who holds it


def rows_of(version: Any) -> Iterator[Row | None]:
    """The rows of a chain of versions, newest first."""
    while version is not None and version is not TRIMMED:
        yield version[1]
        version = version[2]


class SecondaryIndex:
    """Index key → keys of the rows that have it in *any* version kept; readers check the version they see.

    Rows with a NULL in an indexed column are not in it: equality never finds them.
    """

    def __init__(self, schema: TableSchema, index: Index) -> None:
        self.columns = index.columns
        self.unique = index.unique
        self.name = index.name
        places = [schema.index_of[name] for name in index.columns]
        self.places = tuple(places)
        self.columns_of: Callable[[Row], Any] = itemgetter(*places)  # the indexed value, NULL or not
        self._keys: dict[Any, set[Key]] = {}
        self._wide = len(places) > 1

    def value_of(self, row: Row) -> Any:
        """The indexed value of ``row``, or None when a part of it is NULL."""
        value = self.columns_of(row)
        return None if self._wide and None in value else value

    def add(self, row: Row, key: Key) -> None:
        value = self.columns_of(row)
        if value is not None and not (self._wide and None in value):
            keys = self._keys.get(value)
            if keys is None:
                self._keys[value] = {key}
            else:
                keys.add(key)

    def drop(self, row: Row, key: Key) -> None:
        value = self.value_of(row)
        keys = self._keys.get(value)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys[value]

    def replace(self, head: Version, row: Row | None, key: Key) -> None:
        """``row`` takes the place of all versions of ``key``."""
        old = head[1]
        if row is not None and old is not None and self.columns_of(old) == self.columns_of(row):
            old = None  # it stays under that value
        elif row is not None:
            self.add(row, key)
        if old is not None:
            self.drop(old, key)
        if head[2] is not None and head[2] is not TRIMMED:
            self._replace_older(head[2], row, key)

    def _replace_older(self, version: Version, row: Row | None, key: Key) -> None:
        now = None if row is None else self.value_of(row)
        for old in rows_of(version):
            if old is not None and (row is None or self.value_of(old) != now):
                self.drop(old, key)

    def drop_all(self, keys_of: Mapping[Any, Iterable[Key]]) -> None:
        """``drop`` for many rows: their keys by indexed value."""
        for value, keys in keys_of.items():
            held = self._keys.get(value)
            if held is not None:
                held.difference_update(keys)
                if not held:
                    del self._keys[value]

    def candidates(self, value: Any) -> tuple[Key, ...]:
        return tuple(self._keys.get(value, ()))
