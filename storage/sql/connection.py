"""One thread's connection to the base: the Arrow tables it has been shown, and statements it need not plan again.

DuckDB takes half a millisecond to parse, bind and plan a small query over Arrow, and 50 microseconds to run one that it has
prepared. So text that comes a second time is prepared, and Arrow is registered once under each name, as an object that
gives whatever it was shown last: a prepared statement then reads today's rows.

DuckDB plans an EXECUTE with parameters anew. Values that have one certain type are therefore shown as a row, too.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from tidegate.storage.ddl import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

KEPT = 256  # prepared statements; those not used for longest go first
_INT32, _INT64 = 1 << 31, 1 << 63


class _Shown:
    """What DuckDB reads under one name."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)


class BaseConnection:
    """One thread's connection to the base."""

    def __init__(self, cursor: duckdb.DuckDBPyConnection, thread: int = 0) -> None:
        self.cursor = cursor
        self.thread = thread
        self._shown: dict[str, _Shown] = {}
        self._prepared: dict[str, _Prepared | None] = {}  # None: seen once
        self._numbers = 0

    def show(self, name: str, table: pa.Table) -> None:
        """Make ``table`` readable as ``name``."""
        shown = self._shown.get(name)
        if shown is None or not (shown.table.schema is table.schema or shown.table.schema.equals(table.schema)):
            if shown is not None:  # prepared statements would go on reading what was shown before
                for text in [*self._prepared]:
                    self._drop(text)
            self._shown[name] = shown = _Shown(table)
            self.cursor.register(name, shown)
        shown.table = table

    def rows(self, text: str, given: Mapping[str, Any]) -> tuple[Sequence[int], list[tuple[Any, ...]]]:
        """The answer to a query: which of its columns are lists, and the rows."""
        prepared = None if given else self._prepare(text)
        if prepared is None:
            found = self.cursor.execute(text, given or None)
            return _lists(found), found.fetchall()
        found = self.cursor.execute(prepared.call)
        if prepared.lists is None:
            prepared.lists = _lists(found)
        return prepared.lists, found.fetchall()

    def _prepare(self, text: str) -> _Prepared | None:
        """The prepared statement for a text that has come before."""
        known = self._prepared
        if text not in known:
            known[text] = None
            if len(known) > KEPT:
                self._drop(next(iter(known)))
            return None
        prepared = known.pop(text)
        if prepared is None:
            self._numbers += 1
            prepared = _Prepared(f"tg_{self._numbers}")
            try:
                self.cursor.execute(f"PREPARE {prepared.name} AS {text}")
            except duckdb.Error:  # running it will tell why
                prepared = None
        known[text] = prepared
        return prepared

    def _drop(self, text: str) -> None:
        prepared = self._prepared.pop(text)
        if prepared is not None:
            self.cursor.execute(f"DEALLOCATE {prepared.name}")


class _Prepared:
    """A statement that DuckDB has planned. ``lists``: which columns of its answer are lists."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.call = f"EXECUTE {name}"
        self.lists: Sequence[int] | None = None


def _lists(found: Any) -> list[int]:
    return [i for i, column in enumerate(found.description or ()) if str(column[1]).endswith("]")]


def certain_type(value: Any) -> pa.DataType | None:
    """The Arrow type of a value for which DuckDB takes the same type wherever it stands; a text adapts to what it meets."""
    kind = type(value)
    if kind is int:
        return pa.int32() if -_INT32 <= value < _INT32 else pa.int64() if -_INT64 <= value < _INT64 else None
    return _CERTAIN.get(kind)


_CERTAIN = {
    bool: pa.bool_(),
    float: pa.float64(),
    dt.date: pa.date32(),
    dt.datetime: pa.timestamp("us"),
}


def values_row(values: Mapping[str, tuple[Any, pa.DataType]]) -> tuple[str, pa.Table]:
    """Values as a table of one row, and its name, which differs where the types do."""
    name = "tg_v:" + " ".join(f"{key} {kind}" for key, (_, kind) in values.items())
    arrays = [pa.array([value], type=kind) for value, kind in values.values()]
    return name, pa.Table.from_arrays(arrays, names=list(values))


def value_of(row: str, name: str) -> str:
    """SQL for one of the values of a row that is shown."""
    return f"(SELECT {quote(name)} FROM {quote(row)})"
