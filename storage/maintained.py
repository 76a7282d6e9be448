"""Materialized views: what is kept of a query over tables, and how the changes of a transaction are folded into it.

For each group of the query one row of an ordinary table, the *state*, holds the number of rows in it and, for each aggregate,
what can be added to and taken away from: counts, exact sums, the least and greatest value. The values themselves, with how
often each is there, are rows of a second table where an aggregate needs them (min, max, count(DISTINCT)). So the state has the
versions, locks, log, checkpoints and replays of every table.

**Invariant**: below every position, the state is what the query's groups are over the tables there. :func:`maintain` runs at the
end of a transaction that has written to the tables, before it commits, and again before anyone in it reads the view: each time
it begins with the state as committed, so running it twice is the same as running it once.

Sums of floating-point numbers are kept as exact fractions, and rounded once when they are stored: they do not depend on the order
of additions and removals, and taking away what was added leaves nothing behind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any

from tidegate.storage.readers import Reader
from tidegate.storage.schema import Relation, Row, TableSchema
from tidegate.storage.sql.statements import Statement
from tidegate.storage.view import View

if TYPE_CHECKING:
    from tidegate.storage.database import Database

PREFIX = "tidegate_view_"  # of the tables that hold states
CHANGES = "tidegate_changes"  # the relation of rows that are gone, or new, in the query of a delta
DIGITS = Context(prec=60)
SCALE = 1074  # every double is a multiple of 2 ** -1074


def key_text(values: Sequence[Any]) -> str:
    """The key of a group: equal for values that GROUP BY holds to be equal."""
    return repr([value + 0.0 if type(value) is float else value for value in values])


def ordered_double(value: float) -> int:
    """A whole number that is ordered as doubles are, NaN after all."""
    if value != value:
        return 2**63 - 1
    bits: int = struct.unpack("<q", struct.pack("<d", value + 0.0))[0]
    return bits if bits >= 0 else -(bits & (2**63 - 1))


class Kept:
    """What is kept of one aggregate: some columns of the state. Over rows where its argument is not NULL."""

    def __init__(self, place: int, columns: int) -> None:
        self.place = place  # of its first column in the state
        self.columns = columns

    def start(self) -> list[Any]:
        """Its columns over no rows."""
        return [0]

    def add(self, change: Any, value: Any, weight: int) -> Any:
        """``change`` (None: nothing yet) with one more value, there (1) or no longer there (-1)."""
        return (change or 0) + weight

    def fold(self, before: Sequence[Any], change: Any, key: str, fold: Folding) -> list[Any]:
        """Its columns after the changes."""
        return [before[0] + change]


class KeptSum(Kept):
    """A number of values and their sum, exact: of whole numbers and decimals."""

    def start(self) -> list[Any]:
        return [0, 0]

    def add(self, change: Any, value: Any, weight: int) -> Any:
        n, total = change or (0, 0)
        return n + weight, DIGITS.add(total, value * weight) if type(value) is Decimal else total + value * weight

    def fold(self, before: Sequence[Any], change: Any, key: str, fold: Folding) -> list[Any]:
        total = change[1]
        exact = isinstance(before[1], Decimal) or isinstance(total, Decimal)
        return [before[0] + change[0], DIGITS.add(Decimal(before[1]), Decimal(total)) if exact else before[1] + total]


class KeptDecimals(KeptSum):
    """The same for whole numbers of 64 bits, whose sum may need more: a DECIMAL."""

    def start(self) -> list[Any]:
        return [0, Decimal(0)]


class KeptFloats(Kept):
    """A number of values, their sum rounded once, and the exact sum: ``number of NaN, +inf, -inf; numerator in hex``."""

    def start(self) -> list[Any]:
        return [0, 0.0, "0,0,0;0"]

    def add(self, change: Any, value: Any, weight: int) -> Any:
        n, nans, high, low, total = change or (0, 0, 0, 0, 0)
        if value != value:
            nans += weight
        elif value in (float("inf"), float("-inf")):
            high, low = high + weight * (value > 0), low + weight * (value < 0)
        else:
            numerator, denominator = value.as_integer_ratio()
            total += weight * numerator * ((1 << SCALE) // denominator)
        return n + weight, nans, high, low, total

    def fold(self, before: Sequence[Any], change: Any, key: str, fold: Folding) -> list[Any]:
        counts, _, number = before[2].partition(";")
        nans, high, low = (int(one) + more for one, more in zip(counts.split(","), change[1:4], strict=True))
        total = int(number, 16) + change[4]
        if nans or (high and low):
            shown = float("nan")
        elif high or low:
            shown = float("inf") if high else float("-inf")
        else:
            try:
                shown = total / (1 << SCALE)
            except OverflowError:
                shown = float("inf") if total > 0 else float("-inf")
        return [before[0] + change[0], shown, f"{nans},{high},{low};{total:x}"]


class KeptValues(Kept):
    """The values of the argument, each with how often it is there, in the second table. In the state: how many differ, the
    least and the greatest. Doubles are kept as whole numbers in the same order.
    """

    def __init__(self, place: int, values: TableSchema, least: Statement, greatest: Statement, double: bool) -> None:
        super().__init__(place, 3)
        self.values = values
        self._least, self._greatest = least, greatest
        self._double = double

    def start(self) -> list[Any]:
        return [0, None, None]

    def add(self, change: Any, value: Any, weight: int) -> Any:
        found: dict[Any, int] = {} if change is None else change
        found[value] = found.get(value, 0) + weight
        return found

    def fold(self, before: Sequence[Any], change: Any, key: str, fold: Folding) -> list[Any]:
        differ, least, greatest = before
        reader = fold.readers[self.values.name]
        gone = False
        for value in sorted(change, key=ordered_double if self._double else None):
            weight = change[value]
            if not weight:
                continue
            held = ordered_double(value) if self._double else value
            row = reader.row(fold.txn, (key, held))
            n = weight if row is None else row[2] + weight
            fold.txn.put(reader.name, (key, held), reader.conform((key, held, n, value)) if n else None)
            differ += (row is None) - (not n)
            if n:
                least = value if least is None or self._before(value, least) else least
                greatest = value if greatest is None or self._before(greatest, value) else greatest
            else:
                gone = gone or self._same(value, least) or self._same(value, greatest)
        if gone:
            least, greatest = (self._first(fold, one, key) for one in (self._least, self._greatest))
        return [differ, least, greatest]

    def _before(self, one: Any, other: Any) -> bool:
        return ordered_double(one) < ordered_double(other) if self._double else bool(one < other)

    def _same(self, one: Any, other: Any) -> bool:
        return other is not None and not self._before(one, other) and not self._before(other, one)

    def _first(self, fold: Folding, statement: Statement, key: str) -> Any:
        rows = statement.run(fold.shadow(fold.txn.writes), (key,))
        return rows[0][0] if rows else None


@dataclass(frozen=True)
class Delta:
    """What the rows of one table that stands in the query contribute: the groups and arguments of the joined rows.

    ``before``: tables that stand after it, which are read as they were; those before it are read as they are now.
    """

    table: str
    relation: Relation
    statement: Statement
    before: frozenset[str]


@dataclass(frozen=True)
class Maintained:
    """A materialized view: its state, and what its tables contribute to it. ``reads``: the tables of its query."""

    name: str
    sql: str
    state: TableSchema
    groups: int
    kept: tuple[Kept, ...]
    arguments: tuple[int | None, ...]  # for each aggregate the column of the deltas with its argument
    deltas: tuple[Delta, ...]
    values: tuple[TableSchema, ...]
    fill: Statement  # the groups and arguments of all rows

    def __str__(self) -> str:
        told = [f"  State {schema.name} ({', '.join(schema.index_of)})" for schema in self.states]
        told += [f"  Changes of {delta.table}: {delta.statement.explain()}" for delta in self.deltas]
        return "\n".join(told)

    @property
    def states(self) -> tuple[TableSchema, ...]:
        """The tables that hold its state."""
        return (self.state, *self.values)

    @property
    def reads(self) -> tuple[str, ...]:
        """The tables of its query."""
        return tuple(dict.fromkeys(delta.table for delta in self.deltas))


@dataclass(frozen=True)
class Changes:
    """What a row of the state shows in the view, for those who follow it. ``columns``: of the view, with their types."""

    relation: Relation
    statement: Statement
    columns: tuple[tuple[str, str], ...]

    def rows(self, database: Database, old: Sequence[Row], new: Sequence[Row]) -> list[tuple[Row, int]]:
        """The rows of the view that are fewer or more with ``new`` in the place of ``old`` rows of the state: (row, weight)."""
        found: dict[Row, int] = {}
        for rows, weight in ((old, -1), (new, 1)):
            view = View(database, 0, {}, procedure="view")
            view.relations = {self.relation.name: (self.relation, tuple(rows))}
            for row in self.statement.run(view):
                told = tuple(row)
                found[told] = found.get(told, 0) + weight
        return sorted(
            ((row, weight) for row, weight in found.items() if weight), key=lambda one: (one[1] > 0, repr(one[0]))
        )


def told_changes(txn: View, changes: Changes, reader: Reader) -> list[tuple[Row, int]]:
    """What a transaction changes in a view, of which ``reader`` reads the state."""
    old, new = [], []
    for key, row in sorted(txn.writes.get(reader.name, {}).items()):
        before = reader.old(txn, key)
        if before != row:
            old += [before] if before is not None else []
            new += [row] if row is not None else []
    return changes.rows(txn.database, old, new) if old or new else []


class Folding:
    """The fold of one transaction's changes into one view."""

    def __init__(self, txn: View, view: Maintained, readers: Mapping[str, Reader]) -> None:
        self.txn = txn
        self.view = view
        self.readers = readers
        self._changes: dict[str, tuple[Sequence[Any], list[Any]]] = {}

    def shadow(self, writes: Mapping[str, Any]) -> View:
        """The tables as the transaction sees them, with only these of its writes."""
        txn = self.txn
        made = View(txn.database, txn.position, self.readers, procedure=self.view.name, commit=txn.commit)
        made.writes = dict(writes)
        return made

    def changed(self) -> None:
        """Fold what the transaction has written to the tables of the view."""
        writes = self.txn.writes
        for delta in self.view.deltas:
            if delta.table in writes:
                old, new = self._old_and_new(delta.table)
                if old or new:
                    seen = self.shadow({name: rows for name, rows in writes.items() if name not in delta.before})
                    self._contribute(delta, seen, old, -1)
                    self._contribute(delta, seen, new, 1)
        self._fold()

    def filled(self) -> None:
        """Make the state what it is for the tables as they are."""
        for schema in self.view.states:
            reader = self.readers[schema.name]
            keys = self.txn.database.all_keys(reader.table)
            self.txn.put_all(
                schema.name, dict.fromkeys(sorted(key for key in keys if reader.row(self.txn, key) is not None))
            )
        self._take(self.view.fill.run(self.shadow({})), 1)
        self._fold()

    def _old_and_new(self, table: str) -> tuple[tuple[Row, ...], tuple[Row, ...]]:
        reader = self.readers[table]
        old, new = [], []
        for key, row in self.txn.writes[table].items():
            before = reader.old(self.txn, key)
            if before != row:
                old += [before] if before is not None else []
                new += [row] if row is not None else []
        return tuple(old), tuple(new)

    def _contribute(self, delta: Delta, seen: View, rows: tuple[Row, ...], weight: int) -> None:
        if rows:
            seen.relations = {delta.relation.name: (delta.relation, rows)}
            self._take(delta.statement.run(seen), weight)

    def _take(self, rows: Iterable[Sequence[Any]], weight: int) -> None:
        changes, groups = self._changes, self.view.groups
        kept = list(zip(self.view.kept, self.view.arguments, strict=True))
        for row in rows:
            key = key_text(row[:groups])
            known = changes.get(key)
            if known is None:
                known = changes[key] = (row[:groups], [0, *([None] * len(kept))])
            sums = known[1]
            sums[0] += weight
            for place, (one, argument) in enumerate(kept, 1):
                value = row[argument] if argument is not None else None
                if value is not None:
                    sums[place] = one.add(sums[place], value, weight)

    def _fold(self) -> None:
        txn, view = self.txn, self.view
        reader = self.readers[view.state.name]
        for key, (group, sums) in self._changes.items():
            old = reader.row(txn, key)
            count = sums[0] if old is None else old[1] + sums[0]
            cells: list[Any] = [key, count, *(group if old is None else old[2 : 2 + view.groups])]
            for one, change in zip(view.kept, sums[1:], strict=True):
                before = one.start() if old is None else old[one.place : one.place + one.columns]
                cells += before if change is None else one.fold(before, change, key, self)
            if not count:
                if old is not None:
                    txn.put(view.state.name, key, None)
            else:
                txn.put(view.state.name, key, reader.conform(cells))


def maintain(txn: View, views: Iterable[Maintained], readers: Mapping[str, Reader]) -> None:
    """Bring the state of these views up to what the transaction has written."""
    for view in views:
        for schema in view.states:
            txn.writes.pop(schema.name, None)
        txn.forget_written_index()
        if any(table in txn.writes for table in view.reads):
            Folding(txn, view, readers).changed()


def readers_of(database: Database, views: Iterable[Maintained]) -> dict[str, Reader]:
    """Access to all that these views read and keep."""
    names = {name for view in views for name in (*view.reads, *(schema.name for schema in view.states))}
    return {name: Reader(database.tables[name], True) for name in sorted(names)}


def filler(view: Maintained, changes: Changes | None) -> Callable[[Any], None]:
    """The call that makes the state of a view what it is for its tables: a position in the order, at which the view begins."""

    def fill(txn: Any) -> None:
        readers = readers_of(txn.database, [view])
        Folding(txn, view, readers).filled()
        if changes is not None:
            txn.view_changes = {view.state.name: told_changes(txn, changes, readers[view.state.name])}

    return fill


def beginner(state: TableSchema, changes: Changes) -> Callable[..., None]:
    """The call at whose position a durable subscription begins: all rows of the view, as changes from nothing."""

    def begin(txn: Any, _: str) -> None:
        table = txn.database.tables[state.name]
        rows = txn.visible(txn.access[state.name], sorted(txn.database.all_keys(table)))
        txn.view_changes = {state.name: changes.rows(txn.database, [], rows)}

    return begin
