"""Rows of one stream as numpy columns.

Integers are ``int64`` (``uint64`` for UBIGINT), floats ``float64``, BOOLEAN ``bool``, TIMESTAMP ``datetime64[us]``, DATE
``datetime64[D]``; any other type is an array of Python objects. Where a column has NULLs, ``valid`` has its mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tidegate.storage.arrow import uuid_text
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.schema import Column, Relation, Row

Array = npt.NDArray[Any]

_NUMPY = {"float": np.dtype("f8"), "boolean": np.dtype("?"), "timestamp": np.dtype("M8[us]"), "date": np.dtype("M8[D]")}


def dtype_of(column: Column) -> np.dtype[Any]:
    """The numpy type a column is held in."""
    if column.type.family == "integer":
        return np.dtype("u8") if column.type.sql == "UBIGINT" else np.dtype("i8")
    return _NUMPY.get(column.type.family, np.dtype("O"))


class Columns:
    """Some or all columns of some rows. Immutable; slicing does not copy."""

    __slots__ = ("_rows", "length", "relation", "valid", "values")

    def __init__(
        self,
        relation: Relation,
        length: int,
        values: Mapping[str, Array],
        valid: Mapping[str, Array | None],
        rows: tuple[Row, ...] | None = None,
    ) -> None:
        self.relation = relation
        self.length = length
        self.values = values
        self.valid = valid
        self._rows = rows

    @classmethod
    def of_rows(cls, relation: Relation, rows: Sequence[Row], names: Iterable[str] | None = None) -> Columns:
        """The named columns (default: all) of ``rows``."""
        values: dict[str, Array] = {}
        valid: dict[str, Array | None] = {}
        if type(rows) is ColumnRows:
            for name in relation.index_of if names is None else names:
                values[name], valid[name] = _of_columns(rows, name)
            return cls(relation, len(rows), values, valid)
        for name in relation.index_of if names is None else names:
            place = relation.index_of[name]
            values[name], valid[name] = array_of(relation.columns[place], [row[place] for row in rows])
        return cls(relation, len(rows), values, valid)

    @classmethod
    def empty(cls, relation: Relation, names: Iterable[str] | None = None) -> Columns:
        return cls.of_rows(relation, (), names)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, name: str) -> Array:
        """One column; NULLs of a float column are NaN, of any other see ``valid``."""
        return self.values[name]

    def slice(self, low: int, high: int) -> Columns:
        """The rows from ``low`` up to ``high``."""
        values = {name: array[low:high] for name, array in self.values.items()}
        valid = {name: None if mask is None else mask[low:high] for name, mask in self.valid.items()}
        return Columns(self.relation, max(0, min(high, self.length) - low), values, valid)

    def take(self, which: Array) -> Columns:
        """The rows that an index array or a mask picks."""
        values = {name: array[which] for name, array in self.values.items()}
        valid = {name: None if mask is None else mask[which] for name, mask in self.valid.items()}
        length = int(np.count_nonzero(which)) if which.dtype == bool else len(which)
        return Columns(self.relation, length, values, valid)

    def protected(self) -> Columns:
        """The same, read-only: it is passed to the user's code."""
        for array in self.values.values():
            array.flags.writeable = False
        for mask in self.valid.values():
            if mask is not None:
                mask.flags.writeable = False
        return self

    @staticmethod
    def joined(parts: Sequence[Columns]) -> Columns:
        """The rows of all parts, one after another."""
        parts = [part for part in parts if part.length] or list(parts[:1])
        if len(parts) == 1:
            return parts[0]
        values: dict[str, Array] = {}
        valid: dict[str, Array | None] = {}
        for name in parts[0].values:
            values[name] = np.concatenate([part.values[name] for part in parts])
            masks = [part.valid[name] for part in parts]
            if any(mask is not None for mask in masks):
                whole = [np.ones(p.length, bool) if m is None else m for p, m in zip(parts, masks, strict=True)]
                valid[name] = np.concatenate(whole)
            else:
                valid[name] = None
        return Columns(parts[0].relation, sum(part.length for part in parts), values, valid)

    def python(self, name: str) -> list[Any]:
        """One column as Python values, None for NULL."""
        array, mask = self.values[name], self.valid[name]
        values = array.tolist()
        return values if mask is None else [v if ok else None for v, ok in zip(values, mask.tolist(), strict=True)]

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rows as named tuples. All columns must be present."""
        if self._rows is None:
            columns = [self.python(name) for name in self.relation.index_of]
            self._rows = tuple(map(self.relation.row._make, zip(*columns, strict=True)))
        return self._rows

    def tuples(self) -> list[tuple[Any, ...]]:
        """Row by row the values of the columns present."""
        return list(zip(*(self.python(name) for name in self.values), strict=True))

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        arrays, names = [], []
        for name in self.values:
            array, mask = self.values[name], self.valid[name]
            kind = self.relation.column(name).type
            if array.dtype == np.dtype(object):
                values = array.tolist()
                made = pa.array(map(uuid_text, values) if kind.sql.startswith("UUID") else values, type=kind.arrow)
            else:
                made = pa.array(array, mask=None if mask is None else ~mask, from_pandas=False)
            arrays.append(made)
            names.append(name)
        return pa.Table.from_arrays(arrays, names=names)


def array_of(column: Column, values: list[Any]) -> tuple[Array, Array | None]:
    """Python values as an array, and the mask of those that are not NULL (None: all of them)."""
    dtype = dtype_of(column)
    if dtype == np.dtype(object):
        return np.fromiter(values, object, len(values)), None
    if not column.nullable or None not in values:
        if dtype.kind == "M":
            return _from_arrow(column, pa.array(values, type=column.type.arrow))
        return np.array(values, dtype), None
    return _from_arrow(column, pa.array(values, type=column.type.arrow))


def _of_columns(rows: ColumnRows, name: str) -> tuple[Array, Array | None]:
    """One column of a batch, shared by all windows that ask for it."""
    found: tuple[Array, Array | None] | None = rows.numpy.get(name)
    if found is None:
        place = rows.relation.index_of[name]
        column = rows.relation.columns[place]
        if dtype_of(column) == np.dtype(object):
            found = np.fromiter(rows.python(place), object, len(rows)), None
        else:
            found = _from_arrow(column, rows.table.column(place))
        rows.numpy[name] = found
    return found


def _from_arrow(column: Column, array: Any) -> tuple[Array, Array | None]:
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    dtype = dtype_of(column)
    if dtype == np.dtype(object):
        return np.fromiter(array.to_pylist(), object, len(array)), None
    if not array.null_count:
        return _numpy(array, dtype), None
    mask = np.asarray(array.is_valid())
    fill: Any = float("nan") if dtype.kind == "f" else 0
    if dtype.kind == "M":
        array = array.cast(pa.int64() if dtype == np.dtype("M8[us]") else pa.int32()).fill_null(0)
        return _numpy(array, np.dtype("i8" if dtype == np.dtype("M8[us]") else "i4")).astype(dtype), mask
    return _numpy(array.fill_null(bool(fill) if dtype.kind == "b" else fill), dtype), mask


def _numpy(array: Any, dtype: np.dtype[Any]) -> Array:
    found: Array = array.to_numpy(zero_copy_only=False)
    return found if found.dtype == dtype else found.astype(dtype)


def times_of(array: Array) -> Array:
    """A time column as ``int64``: microseconds since 1970 for TIMESTAMP and DATE, else the integers themselves."""
    if array.dtype.kind == "M":
        return array.astype("M8[us]", copy=False).view("i8")
    return array.astype("i8", copy=False)
