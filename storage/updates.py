"""Changing many rows of a table one after the other: what ``txn.update_each`` does."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tidegate.storage.readers import Reader, Updating
from tidegate.storage.schema import Key, Row
from tidegate.storage.undo import Undo

if TYPE_CHECKING:
    from tidegate.storage.view import View

Computed = list[tuple[str, Any]]  # columns and the functions that make their values


def update_each(view: View, reader: Reader, keys: Iterable[Key], changes: dict[str, Any]) -> list[Any]:
    """Change columns of the rows with these keys; returns the new rows. When one is refused, none is changed."""
    table = reader.name
    computed = [(name, value) for name, value in changes.items() if callable(value)]
    closed = Updating({**view.access, table: reader.closed()} if computed else {})
    if reader.constraints:
        return _in_turn(view, reader, keys, changes, computed, closed)
    change = reader.table.schema.change(tuple(changes))
    held, key_of, newest, named, position = reader.table, reader.key_of, reader.newest, reader.named, view.position
    place, mine = reader.place, reader.partitions(view) or ()
    written = view.writes.get(table, {})
    news: list[Row] = []
    changed: dict[Key, Any] = {}
    for key in keys:
        try:
            old = newest(key) if key not in written else None
            if old is None or held.straight >= position or (place is not None and old[place] not in mine):
                old = view.get(table, key)
        except TypeError:  # an unhashable key
            old = view.get(table, key)
        if old is not None:
            key = key_of(old)
            row = named(changed.get(key, old))
            if computed:
                _compute(view, closed, computed, row, changes)
            changed[key] = new = change(row, changes)
            news.append(new)
    view.put_all(table, changed)
    return news


def _in_turn(
    view: View, reader: Reader, keys: Iterable[Key], changes: dict[str, Any], computed: Computed, closed: Updating
) -> list[Any]:
    """``update_each`` where every row has to be checked: it may be refused."""
    table = reader.name
    undo = Undo(view, table)
    news = []
    try:
        for key in keys:
            row = view.get(table, key)
            if row is not None:
                undo.remember(reader.key_of(row))
                _compute(view, closed, computed, row, changes)
                news.append(view.update(table, key, **changes))
    except BaseException:
        undo.roll_back()
        raise
    return news


def _compute(view: View, closed: Updating, computed: Computed, row: Row, changes: dict[str, Any]) -> None:
    """Call the functions that compute the changes of a row. What they wrote to its table would be lost."""
    before, view.access = view.access, closed
    try:
        for name, value in computed:
            changes[name] = value(row)
    finally:
        view.access = before
