"""What is computed for each window: aggregates, or a user's function.

A function gets an :class:`Extent` (numpy columns, rows, Arrow) and returns a row for each result: a value, a tuple, a
dict, a list of those, or None for no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from tidegate.errors import DeclarationError, MistakeError, near
from tidegate.storage.schema import Column, Relation
from tidegate.storage.types import column_type
from tidegate.streams.windows.declare.aggregates import Aggregate
from tidegate.streams.windows.state.columns import Array, Columns

SPELLINGS = {
    "INT": "INTEGER",
    "TEXT": "VARCHAR",
    "STRING": "VARCHAR",
    "REAL": "FLOAT",
    "BOOL": "BOOLEAN",
    "LONG": "BIGINT",
}


class Extent:
    """The rows of one window, or of one pane of it.

    ``key``: the values of the ``by`` columns; ``number``: which window (pane) of its key; ``start``, ``end``: its bounds,
    as integers (microseconds, tuples, batches) or for a delta window as δ. ``cuts``: the rows at which its panes begin.
    """

    __slots__ = ("columns", "cuts", "end", "key", "number", "start")

    def __init__(
        self,
        number: int,
        key: tuple[Any, ...],
        start: Any,
        end: Any,
        columns: Columns,
        cuts: list[int] | None = None,
    ) -> None:
        self.number = number
        self.key = key
        self.start = start
        self.end = end
        self.columns = columns
        self.cuts = cuts

    def __len__(self) -> int:
        return len(self.columns)

    def __getitem__(self, column: str) -> Array:
        """A column as a numpy array."""
        try:
            return self.columns[column]
        except KeyError:
            hint = near(column, self.columns.values, "it has")
            raise MistakeError(f"the window has no column {column!r}; {hint}", column=column) from None

    @property
    def rows(self) -> tuple[Any, ...]:
        """The rows as named tuples, in window order."""
        return self.columns.rows

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows)

    def to_arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self.columns.to_arrow()

    def __repr__(self) -> str:
        key = f" of {', '.join(map(repr, self.key))}" if self.key else ""
        return f"<window {self.number}{key} [{self.start}, {self.end}) {len(self)} rows>"


class Function:
    """Base: something that makes rows of a window. ``decomposable``: it can be computed pane by pane."""

    decomposable = False
    by: tuple[str, ...] = ()

    @property
    def panes_are(self) -> Any:
        """Functions for which this is equal need the same of a pane."""
        return self

    def returns(self, relation: Relation) -> tuple[Column, ...]:
        """The columns of its results."""
        raise NotImplementedError

    def columns(self, relation: Relation) -> Sequence[str]:
        """The columns of the stream that it needs."""
        return relation.column_names

    def whole(self, extent: Extent) -> Any:
        """The result for a whole window."""
        raise NotImplementedError

    def pane(self, extent: Extent) -> Any:
        """What is needed of one pane."""
        raise NotImplementedError

    def combine(self, panes: Sequence[Any]) -> Any:
        """The result for a window, from the results of its panes, in order."""
        raise NotImplementedError


class Aggregates(Function):
    """Named aggregates, several at once."""

    decomposable = True

    def __init__(self, named: Mapping[str, Aggregate], by: tuple[str, ...] = ()) -> None:
        if not named:
            raise DeclarationError("compute= names no aggregate; give for example {'mean': mean('value')}")
        for name, aggregate in named.items():
            if not isinstance(aggregate, Aggregate):
                raise DeclarationError(
                    f"compute= gives {aggregate!r} for {name!r}, which is not an aggregate; take one from "
                    "tidegate.windows, or give a function with whole(), decomposed() or incremental()"
                )
        self.named = dict(named)
        self.by = by

    @property
    def panes_are(self) -> Any:
        return tuple((type(aggregate), repr(aggregate)) for aggregate in self.named.values())

    def __repr__(self) -> str:
        return ", ".join(f"{aggregate!r} AS {name}" for name, aggregate in self.named.items())

    def returns(self, relation: Relation) -> tuple[Column, ...]:
        found = []
        for name, aggregate in self.named.items():
            aggregate.check(relation)
            found.append(Column(name, aggregate.type(relation)))
        return tuple(found)

    def columns(self, relation: Relation) -> Sequence[str]:
        return list(dict.fromkeys(a.column for a in self.named.values() if a.column is not None))

    def whole(self, extent: Extent) -> Any:
        return self.combine([self.pane(extent)])

    def pane(self, extent: Extent) -> Any:
        return [aggregate.summary(extent.columns) for aggregate in self.named.values()]

    def combine(self, panes: Sequence[Any]) -> Any:
        return tuple(a.value([pane[i] for pane in panes]) for i, a in enumerate(self.named.values()))


class Written(Function):
    """A function with declared result columns."""

    def __init__(self, returns: str, columns: Sequence[str] | None) -> None:
        if not isinstance(returns, str) or not returns.strip():
            raise DeclarationError(
                "returns= names the columns of the result, for example returns='slope DOUBLE, peak DOUBLE'"
            )
        self._returns = tuple(_column(part) for part in _parts(returns))
        self._columns = None if columns is None else list(columns)

    def returns(self, relation: Relation) -> tuple[Column, ...]:
        return self._returns

    def columns(self, relation: Relation) -> Sequence[str]:
        return relation.column_names if self._columns is None else self._columns


class Whole(Written):
    """A function of the whole window."""

    def __init__(self, function: Callable[[Extent], Any], returns: str, columns: Sequence[str] | None = None) -> None:
        super().__init__(returns, columns)
        self.function = function

    def __repr__(self) -> str:
        return f"whole({getattr(self.function, '__name__', self.function)})"

    def whole(self, extent: Extent) -> Any:
        return self.function(extent)


class Decomposed(Written):
    """A function of the results of the panes: ``pane(extent)`` once per pane, ``combine(panes)`` once per window."""

    decomposable = True

    def __init__(
        self,
        pane: Callable[[Extent], Any],
        combine: Callable[[Sequence[Any]], Any],
        returns: str,
        columns: Sequence[str] | None = None,
    ) -> None:
        super().__init__(returns, columns)
        self._pane = pane
        self._combine = combine

    @property
    def panes_are(self) -> Any:
        return self._pane

    def __repr__(self) -> str:
        names = [getattr(f, "__name__", str(f)) for f in (self._pane, self._combine)]
        return f"decomposed({', '.join(names)})"

    def whole(self, extent: Extent) -> Any:
        return self._combine([self._pane(extent)])

    def pane(self, extent: Extent) -> Any:
        return self._pane(extent)

    def combine(self, panes: Sequence[Any]) -> Any:
        return self._combine(panes)


class Incremental(Written):
    """A fold: ``state = add(state, row)`` from ``start()`` on, the result is ``finish(state)``."""

    def __init__(
        self,
        start: Callable[[], Any],
        add: Callable[[Any, Any], Any],
        finish: Callable[[Any], Any],
        returns: str,
    ) -> None:
        super().__init__(returns, None)
        self.start = start
        self.add = add
        self.finish = finish

    def __repr__(self) -> str:
        return f"incremental({getattr(self.add, '__name__', self.add)})"

    def whole(self, extent: Extent) -> Any:
        state = self.start()
        for row in extent.rows:
            state = self.add(state, row)
        return self.finish(state)


def as_function(given: Any, by: tuple[str, ...]) -> Function | None:
    """What ``compute=`` stands for."""
    if given is None or isinstance(given, Function):
        return given
    if isinstance(given, str):
        from tidegate.streams.windows.declare.sql import aggregates_of

        return aggregates_of(given, by)
    if isinstance(given, Mapping):
        return Aggregates(given, by)
    if callable(given):
        raise DeclarationError(
            "compute= got a bare function; wrap it: whole(f, returns='mean DOUBLE'), so that its result has columns"
        )
    raise DeclarationError(f"compute= takes aggregates by name, a function or SQL, got {given!r}")


def result_rows(relation: Relation, given: Any, labels: tuple[Any, ...]) -> list[Any]:
    """The rows a function returned, with the window's labels in front, checked."""
    if given is None:
        return []
    many = given if isinstance(given, list) else [given]
    names = relation.column_names[len(labels) :]
    found = []
    for row in many:
        if isinstance(row, Mapping):
            unknown = set(row) - set(names)
            if unknown:
                raise MistakeError(
                    f"{relation.name}: the window function returned {sorted(unknown)}, its columns are {', '.join(names)}; "
                    f"add them to returns=",
                    relation=relation.name,
                )
            values = tuple(row.get(name) for name in names)
        elif isinstance(row, tuple):
            values = row
        else:
            values = (row,)
        found.append(relation.conform(labels + tuple(v.item() if isinstance(v, np.generic) else v for v in values)))
    return found


def _parts(text: str) -> list[str]:
    """``"a DOUBLE, b DECIMAL(10, 2)"`` cut at the commas between columns."""
    parts, depth, last = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if letter == "," and not depth:
            parts.append(text[last:place])
            last = place + 1
    return [*parts, text[last:]]


def _column(part: str) -> Column:
    name, _, kind = part.strip().partition(" ")
    if not kind.strip():
        raise DeclarationError(
            f"returns= has {part.strip()!r}; write each column as name and type, for example 'peak DOUBLE'"
        )
    kind = kind.strip().upper()
    return Column(name, column_type(SPELLINGS.get(kind, kind)))
