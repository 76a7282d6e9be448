"""The door for columns: Arrow, pandas, Polars, DuckDB relations, numpy structured arrays, checked column by column.

What is accepted here is exactly what the same rows would have been accepted as, one by one. Where a column does not
prove that at once (a value out of range, a NULL, another type, invalid text), the whole table goes the way of rows,
which converts or refuses it: the errors, and the rows they name, are the same.

=====================  ==============================================================================
a column of            is checked by columns when it comes as
=====================  ==============================================================================
integers               any integers, all in range
FLOAT, DOUBLE          any floats or integers; none becomes infinite
VARCHAR                text, also as dictionary; valid UTF-8
BOOLEAN, BLOB          the same
TIMESTAMP              any timestamps (those with a time zone as UTC), in the years 1 to 9999
DATE, TIME, INTERVAL   dates; times and durations of seconds to microseconds; in range
DECIMAL(p, s)          decimals of the same precision and scale
others                 any values that are stored as they are converted, one by one
=====================  ==============================================================================
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from tidegate.clock import EPOCH
from tidegate.errors import DataError, MistakeError, text_of
from tidegate.storage.arrow import uuid_text
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation, Row
from tidegate.storage.types import INTERVAL_DAYS

Given = ColumnRows | tuple[Row, ...]

DAY_US = 86_400_000_000
_FIRST_DAY, _LAST_DAY = dt.date.min.toordinal() - EPOCH.toordinal(), dt.date.max.toordinal() - EPOCH.toordinal()
_TIMES = {
    "timestamp": (_FIRST_DAY * DAY_US, (_LAST_DAY + 1) * DAY_US - 1),
    "time": (0, DAY_US - 1),
    "interval": (-INTERVAL_DAYS * DAY_US, INTERVAL_DAYS * DAY_US - 1),
}
_OF_TIME = {"timestamp": types.is_timestamp, "time": types.is_time, "interval": types.is_duration}
_SAME = {
    "integer": (types.is_integer,),
    "text": (types.is_string, types.is_large_string, types.is_string_view),
    "blob": (types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
    "boolean": (types.is_boolean,),
    "date": (types.is_date32,),
}
_FAILED = (pa.ArrowException, ValueError, TypeError, ArithmeticError, AttributeError, RecursionError)


class _ByRows(Exception):
    """Columns alone do not tell whether the rows are acceptable."""


def is_columnar(given: Any) -> bool:
    """Does it hold columns, by name? Lists, tuples and iterators of rows do not."""
    if isinstance(given, np.ndarray):
        return given.dtype.names is not None
    kind = type(given)
    return hasattr(kind, "__arrow_c_stream__") or hasattr(kind, "itertuples") or hasattr(kind, "to_dicts")


def conform_columns(relation: Relation, given: Any) -> Given:
    """The rows of something columnar as stored, every value checked; raises what the same rows one by one would raise."""
    table = _table(relation, given)
    if not isinstance(table, pa.Table):
        return relation.conform_all(table)
    if len(set(table.column_names)) < table.num_columns:
        twice = next(name for name in table.column_names if table.column_names.count(name) > 1)
        raise MistakeError(
            f"the rows for {relation.name} have two columns named {twice!r}; give each column once",
            relation=relation.name,
            column=twice,
        )
    if not len(table):
        return ()
    try:
        return _checked(relation, table)
    except (_ByRows, pa.ArrowException):
        return relation.conform_all(_rows(relation, table))


def pieces(relation: Relation, given: Any, size: int) -> Iterator[Any]:
    """Something columnar, ``size`` rows at a time, for :func:`conform_columns`. A stream of record batches is read as needed."""
    if isinstance(given, pa.Table) or hasattr(given, "itertuples") or not hasattr(given, "__arrow_c_stream__"):
        table = _table(relation, given)
        if not isinstance(table, pa.Table):
            rows = list(table)
            yield from (rows[low : low + size] for low in range(0, len(rows), size))
            return
        yield from (table.slice(low, size) for low in range(0, len(table), size))
        return
    reader = pa.RecordBatchReader.from_stream(given)
    held: list[pa.RecordBatch] = []
    waiting = 0
    for batch in reader:
        held.append(batch)
        waiting += batch.num_rows
        while waiting >= size:
            table = pa.Table.from_batches(held)
            yield table.slice(0, size)
            held, waiting = table.slice(size).to_batches(), waiting - size
    if waiting:
        yield pa.Table.from_batches(held)


def _table(relation: Relation, given: Any) -> pa.Table | Iterable[Any]:
    """As an Arrow table; as rows where Arrow can't hold it."""
    try:
        if isinstance(given, pa.Table):
            return given
        if isinstance(given, np.ndarray):
            return _of_numpy(relation, given)
        if hasattr(given, "itertuples"):
            return pa.Table.from_pandas(given, preserve_index=False)
        if hasattr(given, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(given).read_all()
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        pass
    if hasattr(given, "itertuples"):
        columns = [[None if _missing(value) else value for value in given[name]] for name in given.columns]
        return [dict(zip(given.columns, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(given, np.ndarray):
        return [dict(zip(given.dtype.names or (), row, strict=True)) for row in given.tolist()]
    for rows in ("to_dicts", "to_pylist"):
        if hasattr(given, rows):
            return getattr(given, rows)()
    return given


def _missing(value: Any) -> bool:
    return (
        value is None or (isinstance(value, float) and value != value) or type(value).__name__ in {"NaTType", "NAType"}
    )


def _of_numpy(relation: Relation, given: Any) -> pa.Table:
    if given.ndim != 1:
        raise DataError(
            f"the rows for {relation.name} are an array of {given.ndim} dimensions; give one dimension, a record for each row",
            relation=relation.name,
        )
    return pa.table({name: pa.array(given[name]) for name in given.dtype.names})


def _checked(relation: Relation, table: pa.Table) -> ColumnRows:
    names = set(table.column_names)
    if not names <= relation.index_of.keys():
        raise _ByRows
    arrays = []
    for column in relation.columns:
        if column.name in names:
            arrays.append(_column(column, table.column(column.name)))
        elif column.name in relation.fills:
            arrays.append(_filled(column, relation.fills[column.name], len(table)))
        elif column.nullable:
            arrays.append(pa.nulls(len(table), column.type.arrow))
        else:
            raise _ByRows
    found = ColumnRows.copied(relation, arrays)
    found.table.validate(full=True)  # text is UTF-8, decimals are in range
    for column, array in zip(relation.columns, found.table.columns, strict=True):
        _in_range(column, array)
    return found


def _column(column: Column, given: pa.ChunkedArray) -> pa.Array:
    """In the transport type, if every value that is in range there is the one that would be stored."""
    array = given.combine_chunks() if given.num_chunks != 1 else given.chunk(0)
    if array.null_count and not column.nullable:
        raise _ByRows
    if types.is_null(array.type):
        return array.cast(column.type.arrow)
    if types.is_dictionary(array.type):
        array = array.dictionary_decode()
    family, found = column.type.family, None
    if any(known(array.type) for known in _SAME.get(family, ())):
        found = array.cast(column.type.arrow)  # raises for an integer that is out of range
    elif family in _CONVERT:
        found = _CONVERT[family](column, array)
    return _one_by_one(column, array) if found is None else found


def _one_by_one(column: Column, array: pa.Array) -> pa.Array:
    """Values whose form columns can't check."""
    try:
        values = [None if value is None else column.type.coerce(value) for value in array.to_pylist()]
        values = [uuid_text(value) for value in values] if column.type.sql.startswith("UUID") else values
        return pa.array(values, type=column.type.arrow)
    except _FAILED:
        raise _ByRows from None


def _filled(column: Column, value: Any, count: int) -> pa.Array:
    """The DEFAULT of a column that is left out."""
    value = uuid_text(value) if column.type.sql.startswith("UUID") else value
    return pa.repeat(pa.scalar(value, type=column.type.arrow), count)


def _floats(column: Column, array: pa.Array) -> pa.Array | None:
    if types.is_integer(array.type):
        array = array.cast(pa.float64(), safe=False)
    if not types.is_floating(array.type):
        return None
    found = array.cast(column.type.arrow, safe=False)
    if array.type.bit_width > found.type.bit_width and _infinite(found) > _infinite(array):
        raise _ByRows
    return found


def _infinite(array: pa.Array) -> int:
    return int(np.isinf(array.to_numpy(zero_copy_only=False)).sum())


def _decimals(column: Column, array: pa.Array) -> pa.Array | None:
    return array if array.type == column.type.arrow else None


def _times(column: Column, array: pa.Array) -> pa.Array | None:
    """Nanoseconds of a timestamp are cut off; those of times and durations are left to their values."""
    kind, family = array.type, column.type.family
    if not _OF_TIME[family](kind):
        return None
    if kind.unit == "ns":
        if family != "timestamp":
            return None
        whole = array.cast(pa.int64()).fill_null(0).to_numpy() // 1_000
        mask = None if not array.null_count else np.asarray(array.is_null())
        return pa.array(whole, mask=mask).cast(pa.timestamp("us"))
    if family == "timestamp" and kind.tz is not None:
        array = array.cast(pa.int64()).cast(pa.timestamp(kind.unit))
    return array.cast(column.type.arrow)  # raises beyond 64 bits


_CONVERT: dict[str, Callable[[Column, pa.Array], pa.Array | None]] = {
    "float": _floats,
    "decimal": _decimals,
    "timestamp": _times,
    "time": _times,
    "interval": _times,
}


def _in_range(column: Column, array: pa.Array) -> None:
    """Days and times that Python and DuckDB can hold."""
    family = column.type.family
    if family == "date":
        low, high, plain = _FIRST_DAY, _LAST_DAY, array.cast(pa.int32())
    elif family in _TIMES:
        (low, high), plain = _TIMES[family], array.cast(pa.int64())
    else:
        return
    values = (plain.fill_null(0) if plain.null_count else plain).to_numpy()
    if len(values) and not (low <= values.min() and values.max() <= high):
        raise _ByRows


def _rows(relation: Relation, table: pa.Table) -> Sequence[Any]:
    """The rows as dicts; an error names the first value that Python can't hold."""
    try:
        return table.to_pylist()  # type: ignore[no-any-return]
    except (ValueError, OverflowError, pa.ArrowException):
        for number in range(len(table)):
            for name in table.column_names:
                try:
                    table.column(name)[number].as_py()
                except (ValueError, OverflowError, pa.ArrowException) as error:
                    raise DataError(
                        f"{relation.name}.{name} can't take the value of row {number + 1}: {text_of(error)} "
                        f"(it came as Arrow {table.schema.field(name).type})",
                        relation=relation.name,
                        column=name,
                    ) from None
        raise
