"""Schemas: what a row of a relation looks like, and what a table requires of it."""

from __future__ import annotations

import datetime as dt
import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import Any, Protocol
from uuid import UUID

from tidegate.errors import ConstraintError, DataError, DeclarationError, MistakeError, near, shown
from tidegate.storage.mismatch import WrongType
from tidegate.storage.types import INTERVAL_DAYS, ColumnType
from tidegate.storage.unicode import is_unicode

Row = tuple[Any, ...]
Key = Any  # the value of a one-column primary key, or the tuple of a longer one
Conform = Callable[..., Row]
Change = Callable[[Row, Mapping[str, Any]], Row]


class Defaults(Protocol):
    """Gives the values of columns that were left out."""

    def default(self, column: Column) -> Any: ...


@dataclass(frozen=True)
class Column:
    """One column. ``default`` is SQL text, or None."""

    name: str
    type: ColumnType
    nullable: bool = True
    default: str | None = None


@dataclass(frozen=True)
class Check:
    """A CHECK constraint, as SQL text over the row's columns."""

    expression: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Index:
    """A secondary index (``unique``: a UNIQUE constraint or unique index) on plain columns."""

    name: str
    columns: tuple[str, ...]
    unique: bool


@dataclass(frozen=True)
class Expiry:
    """Rows of a table are due so long ``after`` the time in their ``column``."""

    column: str
    after: dt.timedelta


@dataclass(frozen=True, eq=False)
class Relation:
    """A named sequence of typed columns: the schema of a stream, a batch or a table.

    Rows are named tuples, immutable, shared between versions: ``row.votes`` and ``row[2]`` both work. A column whose
    name is not a Python identifier is accessed by position.

    ``conform(values, defaults)``: the stored row for ``values`` (a sequence in column order, or a mapping by name), types and
    NOT NULL checked. Rows from a relation named in :meth:`trust` were checked when they were stored.
    ``fills``: of columns with a constant DEFAULT, the value in rows that do not name them; of a stream, that is all of
    them.
    """

    name: str
    columns: tuple[Column, ...]
    fills: Mapping[str, Any] = field(default_factory=dict, repr=False, kw_only=True)
    row: Any = field(init=False, repr=False)
    named: Callable[[Iterable[Any]], Any] = field(init=False, repr=False)  # a stored row as users see it
    index_of: dict[str, int] = field(init=False, repr=False)
    required: tuple[int, ...] = field(init=False, repr=False)  # places of the NOT NULL columns
    conform: Conform = field(init=False, repr=False)
    conform_all: Callable[[Iterable[Any]], tuple[Row, ...]] = field(init=False, repr=False)  # the same for many
    trusted: set[Any] = field(init=False, repr=False)  # classes of rows that conform

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        object.__setattr__(self, "row", row_class(self.name, names))
        object.__setattr__(self, "named", namer(self.row))
        object.__setattr__(self, "index_of", {name: i for i, name in enumerate(names)})
        object.__setattr__(self, "required", tuple(i for i, c in enumerate(self.columns) if not c.nullable))
        object.__setattr__(self, "trusted", set())
        conform, conform_all = _fast_conform(self.columns, self.named, self.trusted, self._conform_slowly)
        object.__setattr__(self, "conform", conform)
        object.__setattr__(self, "conform_all", conform_all)

    def trust(self, other: Relation) -> None:
        """Accept rows from ``other`` unchecked from now on, if their columns are the same as ours. Rows that users
        derive from such rows are not of their class: see :func:`row_class`.
        """
        fits = [
            mine.type == theirs.type and (mine.nullable or not theirs.nullable)
            for mine, theirs in zip(self.columns, other.columns, strict=False)
        ]
        if len(self.columns) == len(other.columns) and all(fits):
            self.trusted.add(other.row)

    @property
    def column_names(self) -> list[str]:
        return list(self.index_of)

    def column(self, name: str) -> Column:
        if name not in self.index_of:
            raise self.no_column(name)
        return self.columns[self.index_of[name]]

    def no_column(self, name: object) -> MistakeError:
        return MistakeError(
            f"{self.name} has no column {name!r}; {near(name, self.index_of, 'it has')}",
            relation=self.name,
            column=name,
        )

    def _conform_slowly(self, values: Any, defaults: Defaults | None = None) -> Row:
        """``conform`` for values that have to be converted, named or refused."""
        if isinstance(values, Mapping):
            values = self._from_mapping(values, defaults)
        if isinstance(values, str) or not isinstance(values, Sequence):
            raise MistakeError(
                f"a row of {self.name} must be a tuple, list or dict, got {type(values).__name__}: {shown(values)}; wrap a "
                f"single row in a list",
                relation=self.name,
                value=values,
            )
        if len(values) != len(self.columns):
            raise MistakeError(
                f"a row of {self.name} has {len(self.columns)} columns ({', '.join(self.index_of)}), "
                f"got {len(values)}: {shown(tuple(values))}",
                relation=self.name,
                value=tuple(values),
            )
        checked = [self.check_value(c, v) for c, v in zip(self.columns, values, strict=True)]
        made: Row = self.named(checked)
        self.check_required(made)
        return made

    def check_value(self, column: Column, value: Any) -> Any:
        """The stored form of one value, or a DataError (MistakeError: for its type) naming relation, column and value."""
        if value is None:
            return None
        try:
            return column.type.coerce(value)
        except (ValueError, TypeError, ArithmeticError, AttributeError, RecursionError) as error:
            mistaken = isinstance(error, (WrongType, TypeError, AttributeError))
            raise (MistakeError if mistaken else DataError)(
                f"{self.name}.{column.name} ({column.type}) can't take {shown(value)}: {error}",
                relation=self.name,
                column=column.name,
                value=value,
            ) from None

    def _from_mapping(self, values: Mapping[str, Any], defaults: Defaults | None) -> list[Any]:
        for name in values:
            if name not in self.index_of:
                raise self.no_column(name)
        row = []
        for column in self.columns:
            if column.name in values:
                row.append(values[column.name])
            elif column.default is not None and defaults is not None:
                row.append(defaults.default(column))
            elif column.name in self.fills:
                row.append(self.fills[column.name])
            elif column.nullable:
                row.append(None)
            else:
                raise MistakeError(
                    f"{self.name}.{column.name} is missing from {shown(dict(values))}; it is NOT NULL and has no DEFAULT, so "
                    f"give it a value",
                    relation=self.name,
                    column=column.name,
                )
        return row

    def check_required(self, row: Row) -> None:
        """Raise ConstraintError when a NOT NULL column is NULL."""
        for i in self.required:
            if row[i] is None:
                raise ConstraintError(
                    f"{self.name}.{self.columns[i].name} is NOT NULL, got NULL in row {shown(tuple(row))}",
                    relation=self.name,
                    constraint="NOT NULL",
                    column=self.columns[i].name,
                )


@dataclass(frozen=True, eq=False)
class TableSchema(Relation):
    """A table: a relation with a primary key, constraints, indexes and, optionally, partitions.

    The primary key and every unique constraint of a partitioned table contain the partition columns: then the rows of
    one partition can be checked without looking at another, and a lock on the partition is enough.

    ``conform_key(key)``: the stored form of a key given by a user, or a DataError naming table, column and value.
    ``partition_of(key)``: the partition that a stored key belongs to, the values of the ``partition_by`` columns.
    """

    primary_key: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    indexes: tuple[Index, ...] = ()
    partition_by: tuple[str, ...] = ()
    expiry: Expiry | None = None
    key_of: Callable[[Row], Key] = field(init=False, repr=False)
    key_indexes: tuple[int, ...] = field(init=False, repr=False)
    conform_key: Callable[[Key], Key] = field(init=False, repr=False)
    partition_of: Callable[[Key], tuple[Any, ...]] = field(init=False, repr=False)
    changes: dict[tuple[str, ...], Change] = field(
        init=False, repr=False, default_factory=dict
    )  # by the columns changed

    def __post_init__(self) -> None:
        super().__post_init__()
        self._refuse_bad_keys()
        key_indexes = tuple(self.index_of[name] for name in self.primary_key)
        object.__setattr__(self, "key_indexes", key_indexes)
        object.__setattr__(self, "key_of", itemgetter(*key_indexes))
        columns = [self.columns[i] for i in key_indexes]
        object.__setattr__(self, "conform_key", _fast_conform_key(columns, self._conform_key_slowly))
        object.__setattr__(self, "partition_of", self._partitioner())

    def _refuse_bad_keys(self) -> None:
        if not self.primary_key:
            raise DeclarationError(
                f"table {self.name} has no PRIMARY KEY; every table needs one (rows are addressed by it)",
                table=self.name,
            )
        for index in [Index("PRIMARY KEY", self.primary_key, True), *self.indexes]:
            for name in index.columns:
                if not self.columns[self.index_of[name]].type.hashable_key:
                    kind = self.columns[self.index_of[name]].type
                    raise DeclarationError(
                        f"{self.name}.{name} is {kind}, which can't be part of a key or index ({index.name}); "
                        f"use an integer, text, decimal, date or timestamp column",
                        table=self.name,
                    )
            if index.unique and not set(self.partition_by) <= set(index.columns):
                raise DeclarationError(
                    f"table {self.name} is partitioned by {', '.join(self.partition_by)}, but {index.name} "
                    f"({', '.join(index.columns)}) does not contain it: two partitions could hold the same value "
                    "unnoticed. Add the partition columns to the key",
                    table=self.name,
                )

    def change(self, names: tuple[str, ...]) -> Change:
        """The function that makes a row with just these columns changed: types and NOT NULL checked, key columns refused."""
        found = self.changes.get(names)
        if found is None:
            found = self.changes[names] = _fast_change(self, names)
        return found

    def changed_slowly(self, row: Row, changes: Mapping[str, Any]) -> Row:
        """``change`` for values that have to be converted or refused."""
        fields = list(row)
        for name, value in changes.items():
            place = self.index_of.get(name, -1)
            if value is None or place < 0 or place in self.key_indexes:
                fields[place] = self._check_change(name, value)
            else:
                fields[place] = self.check_value(self.columns[place], value)
        return self.named(fields)  # type: ignore[no-any-return]

    def _check_change(self, name: str, value: Any) -> Any:
        column = self.column(name)
        if name in self.primary_key:
            raise MistakeError(
                f"{self.name}.{name} is part of the primary key; delete the row and insert the new one",
                relation=self.name,
                column=name,
            )
        if not column.nullable:
            raise ConstraintError(
                f"{self.name}.{name} is NOT NULL, got NULL", relation=self.name, constraint="NOT NULL", column=name
            )
        return value

    def recogniser(self, columns: Iterable[str]) -> Callable[[Any], bool]:
        """A function that says whether a value of these columns (a tuple, if several) is in its stored form and not NULL."""
        return _fast_recognise([replace(self.column(name), nullable=False) for name in columns])

    def _partitioner(self) -> Callable[[Key], tuple[Any, ...]]:
        if len(self.primary_key) == 1:
            return lambda key: (key,)
        places = [self.primary_key.index(name) for name in self.partition_by]
        if len(places) == 1:
            (place,) = places
            return lambda key: (key[place],)
        return lambda key: tuple([key[place] for place in places])

    def _conform_key_slowly(self, key: Key) -> Key:
        """``conform_key`` for keys that have to be converted or refused."""
        if len(self.primary_key) == 1:
            return self._key_part(self.primary_key[0], key)
        if not isinstance(key, tuple) or len(key) != len(self.primary_key):
            raise MistakeError(
                f"the key of {self.name} is the tuple ({', '.join(self.primary_key)}), got {shown(key)}",
                relation=self.name,
                value=key,
            )
        return tuple(self._key_part(name, part) for name, part in zip(self.primary_key, key, strict=True))

    def check_key(self, row: Row) -> None:
        """Raise ConstraintError when a part of the row's key is NULL: such a key can't even be looked up."""
        for i in self.key_indexes:
            if row[i] is None:
                self.check_required(row)

    def _key_part(self, name: str, value: Any) -> Any:
        if value is None:
            raise DataError(f"{self.name}.{name} is part of the key and can't be NULL", relation=self.name, column=name)
        return self.check_value(self.column(name), value)


_QUICK = 2**30 - 1  # the interpreter compares numbers up to this size much faster, and most are smaller

# how the stored form of a value is recognised, by family, as source
_RECOGNISED = {
    "integer": "type({v}) is int and ({small} <= {v} and {v} <= {large} or {low} <= {v} <= {high})",
    "text": "type({v}) is str and ({v}.isascii() or is_unicode({v}))",
    "boolean": "type({v}) is bool",
    "date": "type({v}) is date",
    "interval": f"type({{v}}) is timedelta and -{INTERVAL_DAYS} <= {{v}}.days < {INTERVAL_DAYS}",
    "blob": "type({v}) is bytes",
    "time": "type({v}) is time and {v}.tzinfo is None and not {v}.fold",
    "uuid": "type({v}) is UUID",
    "timestamp": "type({v}) is datetime and {v}.tzinfo is None and not {v}.fold",
}


def _recognised(column: Column, name: str) -> str:
    """Source that tests whether the variable ``name`` holds a value of ``column`` in its stored form."""
    kind = column.type
    known = f"type({name}) is float" if kind.sql == "DOUBLE" else _RECOGNISED.get(kind.family, "False")
    small, large = max(kind.low, -_QUICK), min(kind.high, _QUICK)
    test = known.format(v=name, low=kind.low, high=kind.high, small=small, large=large)
    return f"({name} is None or {test})" if column.nullable else test


_SCOPE = {
    **{"date": dt.date, "datetime": dt.datetime, "timedelta": dt.timedelta, "time": dt.time, "UUID": UUID},
    "is_unicode": is_unicode,
}


GENERATED = "<generated>"  # the file name of code that was made for a relation

_compiled = lru_cache(4096)(compile)  # compiling is most of what declaring a relation costs; types are often the same


def _generated(source: str, scope: dict[str, Any], *names: str) -> list[Any]:
    """The functions with these names that the source defines."""
    exec(_compiled(source, GENERATED, "exec"), scope)
    for name in names:  # code of its own: the interpreter adapts code to what it meets, and relations differ in that
        scope[name].__code__ = scope[name].__code__.replace()
    return [scope[name] for name in names]


def _fast_conform(columns: Sequence[Column], named: Any, trusted: set[Any], slowly: Conform) -> tuple[Conform, Any]:
    """A function that makes the row at once when every value is in its stored form already, and one that does so for many.

    Generated, because every row that is pushed or written passes through here: one test per column, no calls. What it
    does not recognise is left to ``slowly``, which converts it or raises.
    """
    names = [f"v{i}" for i in range(len(columns))]
    tests = [_recognised(column, name) for name, column in zip(names, columns, strict=True)]
    source = (
        f"def conform(values, defaults=None):\n"
        f"    if type(values) in trusted:\n"
        f"        return named(values)\n"
        f"    if isinstance(values, rows) and len(values) == {len(columns)}:\n"
        f"        {', '.join(names)}, = values\n"
        f"        if {' and '.join(tests)}:\n"
        f"            return named(({', '.join(names)},))\n"
        f"    return slowly(values, defaults)\n"
        f"def conform_all(many):\n"
        f"    made = []\n"
        f"    for values in many:\n"
        f"        if type(values) in trusted:\n"
        f"            made.append(named(values))\n"
        f"            continue\n"
        f"        if isinstance(values, rows) and len(values) == {len(columns)}:\n"
        f"            {', '.join(names)}, = values\n"
        f"            if {' and '.join(tests)}:\n"
        f"                made.append(named(({', '.join(names)},)))\n"
        f"                continue\n"
        f"        made.append(slowly(values))\n"
        f"    return tuple(made)\n"
    )
    scope: dict[str, Any] = {
        **_SCOPE,
        "named": named,
        "rows": (tuple, list),
        "trusted": trusted,
        "slowly": slowly,
    }
    conform, conform_all = _generated(source, scope, "conform", "conform_all")
    return conform, conform_all


def _fast_conform_key(columns: Sequence[Column], slowly: Callable[[Key], Key]) -> Callable[[Key], Key]:
    """``conform`` for the primary key alone: most keys that are not found have the right type."""
    names = [f"v{i}" for i in range(len(columns))] if len(columns) > 1 else ["key"]
    tests = [_recognised(column, name) for name, column in zip(names, columns, strict=True)]
    source = "def conform_key(key):\n"
    if len(columns) > 1:
        source += f"    if type(key) is not tuple or len(key) != {len(columns)}:\n        return slowly(key)\n"
        source += f"    {', '.join(names)} = key\n"
    source += f"    return key if {' and '.join(tests)} else slowly(key)\n"
    scope: dict[str, Any] = {**_SCOPE, "slowly": slowly}
    (made,) = _generated(source, scope, "conform_key")
    return made  # type: ignore[no-any-return]


def _fast_recognise(columns: Sequence[Column]) -> Callable[[Any], bool]:
    names = [f"v{i}" for i in range(len(columns))] if len(columns) > 1 else ["value"]
    tests = [_recognised(column, name) for name, column in zip(names, columns, strict=True)]
    taken_apart = f"    {', '.join(names)} = value\n" if len(columns) > 1 else ""
    source = f"def recognise(value):\n{taken_apart}    return {' and '.join(tests)}\n"
    scope: dict[str, Any] = {**_SCOPE}
    (made,) = _generated(source, scope, "recognise")
    return made  # type: ignore[no-any-return]


def _fast_change(schema: TableSchema, names: Sequence[str]) -> Change:
    """A function that changes just these columns of a row, generated like ``conform``."""
    if any(name not in schema.index_of or schema.index_of[name] in schema.key_indexes for name in names):
        return schema.changed_slowly
    given = {schema.index_of[name]: f"v{i}" for i, name in enumerate(names)}
    tests = [_recognised(schema.columns[place], name) for place, name in given.items()]
    fields = [given.get(place, f"row[{place}]") for place in range(len(schema.columns))]
    source = (
        f"def change(row, changes):\n"
        f"    {'; '.join(f'v{i} = changes[{name!r}]' for i, name in enumerate(names)) or 'pass'}\n"
        f"    if {' and '.join(tests) or 'True'}:\n"
        f"        return named(({', '.join(fields)},))\n"
        f"    return slowly(row, changes)\n"
    )
    scope: dict[str, Any] = {**_SCOPE, "named": schema.named, "slowly": schema.changed_slowly}
    (made,) = _generated(source, scope, "change")
    return made  # type: ignore[no-any-return]


class _Stored(type):
    """The metaclass of stored rows: calling such a class makes a named tuple that looks the same."""

    def __call__(cls, *values: Any, **named: Any) -> Any:
        return cls._unchecked(*values, **named)  # type: ignore[attr-defined]


@lru_cache(4096)
def _named_tuple(title: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(title, fields, rename=True)


def row_class(name: str, names: Iterable[str]) -> Any:
    """A named tuple class whose fields are the columns (positional where a name is not an identifier).

    An instance of it is a row that was checked and stored, made by its :func:`namer`. What a call of the class,
    ``_make`` and ``_replace`` return is of another class.
    """
    fields = [
        n if n.isidentifier() and not keyword.iskeyword(n) and not n.startswith("_") else f"column{i}"
        for i, n in enumerate(names)
    ]
    title = name if name.isidentifier() and not keyword.iskeyword(name) else "Row"
    unchecked = _named_tuple(title, tuple(fields))
    looks = {name: value for name, value in vars(unchecked).items() if name != "__new__"}
    own = {
        "_unchecked": unchecked,
        "_make": classmethod(lambda cls, values: unchecked._make(values)),
        "__getnewargs__": lambda self: (tuple(self),),  # for copies
    }
    return _Stored(title, (tuple,), {**looks, **own})


def namer(row: Any) -> Callable[[Iterable[Any]], Any]:
    """The function that makes instances of a :func:`row_class`. Every row that is read or written is made by it, so it
    is the fastest way to make a tuple of a class: directly through ``type``, without Python code in between.
    """
    make: Callable[[Iterable[Any]], Any] = type.__call__.__get__(row)
    return make
