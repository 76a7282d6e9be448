"""A table or query of a SQL database as a source: its rows by an ascending column, each exactly once.

The offset is the value of the cursor column in the last row that is on disk here. What is read is what the column
shows to be new: rows that are changed or deleted later are not seen again, nor is a row that is committed with a smaller
value than one already read. For those, capture changes: :mod:`tidegate.connectors.postgres.changes`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tidegate.connectors.shared.families import Told, known, postgres_told
from tidegate.connectors.shared.reading import RowReader, read_all
from tidegate.connectors.sql.address import connect_source, missing_file, shown_database
from tidegate.errors import SourceError
from tidegate.outside.sources import Checked, Polled
from tidegate.storage.schema import Relation

LOOK_S = 0.2


class SqlSource:
    """Rows of ``table`` (a name, or a query in parentheses) of the database at ``url``, in the order of ``cursor``.

    ``cursor``: a column whose values are unique and ascend as rows are committed. ``follow``: keep looking for new rows
    every ``every_s`` seconds; otherwise it finishes when there are none. ``fields``, ``ignore_unknown``: see
    :mod:`tidegate.connectors.shared.reading`.
    """

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str,
        cursor: str,
        *,
        follow: bool = False,
        every_s: float = 1.0,
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        self._database = connect_source(url)
        self._shown = shown_database(self._database.url)
        self._owned = not isinstance(url, sa.Engine)
        self._table = f"{table} AS tidegate_source" if table.lstrip().startswith("(") else table
        self._cursor = cursor
        self._follow = follow
        self._every_s = every_s
        self._options = (fields, ignore_unknown)
        self._looked = 0.0
        self.finished = False

    @property
    def lag(self) -> int | None:
        """Rows after the offset, counted by the database."""
        after = "" if self._at is None else f" WHERE {self._column} > :at"
        try:
            with self._database.connect() as connection:
                counted = connection.scalar(sa.text(f"SELECT count(*) FROM {self._table}{after}"), {"at": self._at})
                return int(counted or 0)
        except SQLAlchemyError:
            return None

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        self.open(name, relation, offset)  # which only reads
        return Checked(f"{self._table} has its columns", self.lag)

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        self._name = name
        self._at = offset
        self.finished = False
        self._reader = RowReader(relation, *self._options)
        self._column = self._database.dialect.identifier_preparer.quote(self._cursor)
        if (missing := missing_file(self._database.url)) is not None:
            raise SourceError(f"can't read {self._table}: there is no file {missing}", source=name, fatal=True)
        try:
            with self._database.connect() as connection:
                result = connection.execute(sa.text(f"SELECT * FROM {self._table} WHERE 1 = 0"))
                types = self._types(connection, result)
                found = list(result.keys())
        except SQLAlchemyError as error:
            fatal = not getattr(error, "connection_invalidated", False) and "connect" not in str(error).lower()
            raise self._unreadable(error, fatal) from error
        if self._cursor not in found:
            raise SourceError(
                f"{self._table} in {self._shown} has no column {self._cursor!r} to use as a cursor; it has "
                f"{', '.join(found)}",
                source=name,
                fatal=True,
            )
        fields = set(self._reader.field_of.values())
        self._reader.check_fields(
            (n for n in found if n != self._cursor or n in fields), f"{self._table} in {self._shown}"
        )
        self._reader.check_types(types, f"{self._table} in {self._shown}")
        self._truths = [self._reader.field_of[c.name] for c in relation.columns if c.type.family == "boolean"]
        self._kept = [n for n in found if n in fields or n != self._cursor]

    def _types(self, connection: sa.Connection, result: Any) -> dict[str, Told]:
        """The types of the columns, as far as the database knows. In SQLite only those of text columns are reliable."""
        if connection.dialect.name == "postgresql":
            described = result.cursor.description
            return {column.name: postgres_told(column.type_display) for column in described}
        if connection.dialect.name == "sqlite" and sa.inspect(connection).has_table(self._table):
            columns = sa.inspect(connection).get_columns(self._table)
            return {c["name"]: known(str(c["type"]), "text") for c in columns if isinstance(c["type"], sa.String)}
        return {}

    def _truthful(self, record: dict[str, Any]) -> dict[str, Any]:
        """Databases without a boolean type have 1 and 0."""
        for field in self._truths:
            if record.get(field) in (0, 1):
                record[field] = bool(record[field])
        return record

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        ends = time.monotonic() + timeout_s
        while True:
            if not self._follow or time.monotonic() >= self._looked + self._every_s or timeout_s == 0:
                self._looked = time.monotonic()
                polled = self._next(limit)
                if polled is not None or not self._follow:
                    self.finished = polled is None
                    self._looked = 0.0  # there may be more at once
                    return polled
            if time.monotonic() >= ends:
                return None
            time.sleep(min(LOOK_S, max(0.0, ends - time.monotonic())))

    def _next(self, limit: int) -> Polled | None:
        """The next rows; one more is read, to see whether the last value of the cursor is whole."""
        after = "" if self._at is None else f" WHERE {self._column} > :at"
        sql = f"SELECT * FROM {self._table}{after} ORDER BY {self._column} LIMIT {limit + 1}"
        try:
            with self._database.connect() as connection:
                found = [dict(row) for row in connection.execute(sa.text(sql), {"at": self._at}).mappings()]
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error
        if not found:
            return None
        values = [record[self._cursor] for record in found]
        if len(set(values)) < len(values) or None in values:
            raise SourceError(
                f"{self._cursor} of {self._table} in {self._shown} is not unique (or is NULL): from {values[0]!r} to "
                f"{values[-1]!r} there are {len(values)} rows and {len(set(values))} values. Use a column that is",
                source=self._name,
                fatal=True,
            )
        values, found = values[:limit], [self._truthful({n: record[n] for n in self._kept}) for record in found[:limit]]

        def place(i: int) -> str:
            return f"{self._cursor}={values[i]}"

        rows, numbers, malformed = read_all(found, self._reader.row, place)
        self._at = values[-1]
        return Polled(rows, self._at, malformed, lambda i: place(numbers[i]))

    def _unreadable(self, error: SQLAlchemyError, fatal: bool = False) -> SourceError:
        why = " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
        return SourceError(
            f"can't read {self._table} in {self._shown}: {why}. Check the address, that the server is up, and our "
            "permissions there",
            source=self._name,
            fatal=fatal,
        )

    def committed(self, offset: Any) -> None:
        pass

    def close(self) -> None:
        self._database.dispose()
