"""What a merge writes to the base: changes as Arrow, without the rows that DuckDB refuses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from tidegate.storage.arrow import arrow_keys, arrow_table
from tidegate.storage.merges import Changes
from tidegate.storage.schema import Key, Row, TableSchema
from tidegate.storage.setaside import REFUSALS, Aside, SetAside, cause_of, in_turn, refused

if TYPE_CHECKING:
    from tidegate.storage.base import Base


class Delta(NamedTuple):
    """What a merge changed in one table, as Arrow: keys that were there before, and rows that are there now."""

    deleted: pa.Table | None
    inserted: pa.Table | None


class Writing:
    """What one merge writes: the changes of every table as Arrow, without the rows that DuckDB refuses."""

    def __init__(self, base: Base, changes: Mapping[TableSchema, Iterable[Changes]], at: str | None) -> None:
        self._base = base
        self._at = at
        self.aside = Aside()
        self._rows: dict[TableSchema, list[Row]] = {}
        self.deltas = {schema: self._delta(schema, parts) for schema, parts in changes.items()}

    def _delta(self, schema: TableSchema, parts: Iterable[Changes]) -> Delta:
        deleted: list[pa.Table] = []
        inserted: list[pa.Table] = []
        taken: list[Row] = []
        again: list[SetAside] = []
        for part in parts:
            if part.deleted:
                deleted.append(_keys_as_arrow(schema, part.deleted))
            rows, known = self._base.aside.divided(schema, part.inserted)
            again += known
            if rows:
                inserted.append(self._as_arrow(schema, rows, taken))
        if again and (rows := self._taken_now(schema, again)):
            inserted.append(self._as_arrow(schema, rows, taken))
        self._rows[schema] = taken
        return Delta(pa.concat_tables(deleted) if deleted else None, pa.concat_tables(inserted) if inserted else None)

    def _as_arrow(self, schema: TableSchema, rows: list[Row], taken: list[Row]) -> pa.Table:
        try:
            made = arrow_table(schema, rows)
        except REFUSALS:
            rows = self._without(schema, rows, lambda some: arrow_error(arrow_table, schema, some))
            made = arrow_table(schema, rows)
        taken += rows
        return made

    def _taken_now(self, schema: TableSchema, again: list[SetAside]) -> list[Row]:
        """Rows that were refused before and are accepted now."""
        tried, others = in_turn(again, self._base.merges)
        self.aside.rows.update({(entry.table, entry.key): entry for entry in others})
        return self._without(schema, [entry.row for entry in tried], lambda rows: self._base.attempt(schema, rows))

    def leave_out(self, schema: TableSchema, error: Exception) -> None:
        """DuckDB refused the rows of this table: leave out those that it refuses individually."""
        rows = self._rows[schema]
        kept = self._without(schema, rows, lambda some: self._base.attempt(schema, some))
        if len(kept) == len(rows):
            raise error  # none of the rows is the cause
        self._rows[schema] = kept
        self.deltas[schema] = self.deltas[schema]._replace(inserted=arrow_table(schema, kept) if kept else None)

    def _without(
        self, schema: TableSchema, rows: list[Row], attempt: Callable[[Sequence[Row]], Exception | None]
    ) -> list[Row]:
        """These rows without those that ``attempt`` refuses, which are set aside."""
        found = refused(rows, attempt)
        for row, error in found:
            entry = self._entry(schema, row, error)
            self.aside.rows[entry.table, entry.key] = entry
        gone = {id(row) for row, _ in found}
        return [row for row in rows if id(row) not in gone]

    def _entry(self, schema: TableSchema, row: Row, error: Exception) -> SetAside:
        key = schema.key_of(row)
        known = self._base.aside.rows.get((schema.name, key))
        if known is not None and known.row == row:
            return known
        nothing = (None,) * len(row)
        for i, column in enumerate(schema.columns):
            only = (*nothing[:i], row[i], *nothing[i + 1 :])
            if row[i] is not None and (why := self._base.attempt(schema, [only])) is not None:
                return SetAside(schema.name, key, row, column.name, cause_of(why), self._at)
        return SetAside(schema.name, key, row, None, cause_of(error), self._at)


def arrow_error(make: Callable[..., pa.Table], schema: TableSchema, items: Sequence[Any]) -> Exception | None:
    """Why Arrow refuses these; None when it accepts them."""
    try:
        make(schema, items)
    except REFUSALS as error:
        return error
    return None


def _keys_as_arrow(schema: TableSchema, keys: list[Key]) -> pa.Table:
    """A key that Arrow can't represent is not in the base either."""
    try:
        return arrow_keys(schema, keys)
    except REFUSALS:
        unknown = refused(range(len(keys)), lambda some: arrow_error(arrow_keys, schema, [keys[i] for i in some]))
        places = {place for place, _ in unknown}
        return arrow_keys(schema, [key for place, key in enumerate(keys) if place not in places])
