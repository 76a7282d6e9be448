"""Applying the rows of one DML statement to a view: all of them, or, when one is refused, none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.readers import Reader
from tidegate.storage.schema import Key, Row
from tidegate.storage.undo import Undo
from tidegate.storage.view import View
from tidegate.storage.violations import duplicate_key, taken_value

# pairs of (stored row, proposed row) in conflict -> the rows to store instead, None where WHERE leaves it
Resolve = Callable[[View, Sequence[tuple[Row, Row]], Sequence[Any]], Sequence[Row | None]]


class OnConflict(NamedTuple):
    """ON CONFLICT. ``columns``: its target (empty: any key). ``resolve``: DO UPDATE, or None for DO
    NOTHING.
    """

    columns: frozenset[str]
    resolve: Resolve | None


def insert_rows(
    view: View, reader: Reader, rows: Sequence[Row], conflict: OnConflict | None, values: Sequence[Any] = ()
) -> list[Row]:
    """Insert ``rows`` in order; returns those that were inserted or, by DO UPDATE, stored."""
    schema = reader.table.schema
    for row in rows:
        schema.check_key(row)
        reader.check(view, schema.key_of(row))
    if conflict is None:
        _store(view, reader, [(None, row) for row in rows])
        return list(rows)
    fresh, clashing = _split(view, reader, rows, conflict)
    resolved: Sequence[Row | None] = ()
    if clashing and conflict.resolve is not None:
        resolved = conflict.resolve(view, [pair for _, pair in clashing], values)
    changes: list[tuple[int, Row | None, Row]] = [(place, None, row) for place, row in fresh]
    for (place, (old, _)), new in zip(clashing, resolved, strict=False):
        if new is not None:
            changes.append((place, old, new))
    changes.sort(key=lambda change: change[0])
    _store(view, reader, [(old, new) for _, old, new in changes])
    return [new for _, _, new in changes]


def _split(
    view: View, reader: Reader, rows: Sequence[Row], conflict: OnConflict
) -> tuple[list[tuple[int, Row]], list[tuple[int, tuple[Row, Row]]]]:
    """Rows without a conflict, and rows that conflict with a stored one; both with their place.

    Of several rows in one statement that conflict with each other the first wins, the others are ignored (as in
    DuckDB).
    """
    schema = reader.table.schema
    claimed: set[Any] = set()
    fresh: list[tuple[int, Row]] = []
    clashing: list[tuple[int, tuple[Row, Row]]] = []
    by_key = not conflict.columns or conflict.columns == frozenset(schema.primary_key)
    indexes = [
        index
        for index in reader.table.indexes
        if index.unique and (not conflict.columns or conflict.columns == frozenset(index.columns))
    ]
    for place, row in enumerate(rows):
        names: list[Any] = [("", schema.key_of(row))] if by_key else []
        names += [(i.name, i.columns, value) for i in indexes if (value := i.value_of(row)) is not None]
        if not claimed.isdisjoint(names):
            continue
        claimed.update(names)
        old = reader.replaced(view, schema.key_of(row)) if by_key else None
        for index in indexes:
            if old is None:
                old = holder(view, reader, index, row)
        if old is None:
            fresh.append((place, row))
        else:
            clashing.append((place, (old, row)))
    return fresh, clashing


def holder(view: View, reader: Reader, index: SecondaryIndex, row: Row) -> Row | None:
    """The visible row that has ``row``'s value in a unique index."""
    value = index.value_of(row)
    if value is None:
        return None
    values = value if len(index.places) > 1 else (value,)
    for key in view.index_keys(reader, index, values):
        other = reader.replaced(view, key)
        if other is not None and index.value_of(other) == value:
            return other
    return None


def update_rows(view: View, reader: Reader, pairs: Sequence[tuple[Row, Row]]) -> None:
    """Replace each old row by its new one; keys and unique values may move within the set."""
    schema = reader.table.schema
    for _, new in pairs:
        schema.check_key(new)
        reader.check(view, schema.key_of(new))
    _store(view, reader, pairs)


def delete_rows(view: View, reader: Reader, rows: Sequence[Row]) -> None:
    view.put_all(reader.name, dict.fromkeys(map(reader.key_of, rows)))


def _store(view: View, reader: Reader, pairs: Sequence[tuple[Row | None, Row]]) -> None:
    """Write (old, new) pairs, ``old`` None for an insert; constraints see the state after all of them."""
    schema = reader.table.schema
    key_of = schema.key_of
    for _, new in pairs:
        schema.check_required(new)
    if schema.checks:
        view.database.check_rows(schema, [new for _, new in pairs])
    if not reader.constraints and all(old is not None and key_of(old) == key_of(new) for old, new in pairs):
        view.put_all(schema.name, {key_of(new): new for _, new in pairs})  # their keys do not change: nothing to refuse
        return
    undo = Undo(view, schema.name)
    unique = [index for index in reader.table.indexes if index.unique]
    try:
        moved = [(old, new) for old, new in pairs if old is None or key_of(old) != key_of(new)]
        for old, _ in moved:
            if old is not None:
                undo.put(key_of(old), None)
        for old, new in pairs:
            key = key_of(new)
            if (old is None or key_of(old) != key) and reader.replaced(view, key) is not None:
                raise duplicate_key(schema, key)
            undo.put(key, new)
        for index in unique:
            _check_unique(view, reader, index, pairs)
    except BaseException:
        undo.roll_back()
        raise


def _check_unique(view: View, reader: Reader, index: SecondaryIndex, pairs: Sequence[tuple[Row | None, Row]]) -> None:
    """Are the new rows' values in a unique index still unique? One pass over the write set, however many rows."""
    schema = reader.table.schema
    written = view.writes.get(schema.name, {})
    owner: dict[Any, Key] = {}
    for key, row in written.items():
        value = None if row is None or not reader.shows(view, row) else index.value_of(row)
        if value is not None and owner.setdefault(value, key) != key:
            raise taken_value(schema, index, value, owner[value], key)
    for old, new in pairs:
        value = index.value_of(new)
        if value is None or (old is not None and index.value_of(old) == value):
            continue
        for other in view.database.keys_with(reader.table, index, value if len(index.places) > 1 else (value,)):
            committed = None if other in written else reader.old(view, other)
            if committed is not None and index.value_of(committed) == value and reader.shows(view, committed):
                raise taken_value(schema, index, value, other, schema.key_of(new))
