"""The DuckDB base: the newest merged state of every table, plus the facts that must move with it.

The only module that writes to DuckDB, and it writes in exactly one place: :meth:`Base.merge`. The base's tables carry
no keys or constraints (those are enforced before a row gets this far), which avoids DuckDB's delete+insert updates, its
index maintenance and the hazards of both. One DuckDB thread per connection: results do not depend on how a scan was
split.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidegate.errors import BaseDamaged, DeclarationError, DiskFull, MergeFailed, TidegateError
from tidegate.forking import own
from tidegate.mutex import Rank, mutex
from tidegate.storage.arrow import arrow_columns, arrow_keys, arrow_table, stored_rows
from tidegate.storage.ddl import quote
from tidegate.storage.merges import Changes
from tidegate.storage.schema import Column, Key, Row, TableSchema
from tidegate.storage.setaside import REFUSALS, Aside, SetAside
from tidegate.storage.writing import Delta, Writing

META = "tidegate_meta"
BASE_SCHEMA = "tidegate_base"
STAMP = "rows"  # the fact that says to which state a copy by key belongs, see tidegate.storage.cold
BATCH_ROWS = 50_000  # of a whole table read as Arrow


def close_to_others(path: Path) -> None:
    """DuckDB creates its files with the umask; restrict them to their owner, like the directory they are in."""
    for file in (path, path.with_name(path.name + ".wal")):
        if file.exists():
            file.chmod(0o600)


class Base:
    """A DuckDB database, in memory or in a file.

    ``gate`` makes two short steps exclusive: a merge's COMMIT together with dropping what it wrote from memory, and a
    reader's collection of the changes above the base. Neither waits for a query to finish. A reader whose query ran
    while ``published`` did not change has seen one state; otherwise it repeats the query in its own transaction.
    """

    def __init__(self, path: Path | None = None) -> None:
        own(self)
        self.path = path
        self.opening = 0  # how often it was opened
        self._copying = mutex(Rank.LEAF)
        self._connect()
        self.gate = mutex(Rank.GATE)
        self.merges = 0
        self.published = 0
        self.aside = self._aside_after = Aside()  # rows that DuckDB refused, as of the last merge

    def _connect(self) -> None:
        path = self.path
        try:
            self.connection = duckdb.connect(str(path) if path else ":memory:", config={"threads": "1"})
        except duckdb.Error as error:
            raise TidegateError(
                f"DuckDB can't open {path}: {error}\nIf another process has it open, close it there first.", path=path
            ) from None
        self.connection.execute("SET preserve_insertion_order = false")
        self.connection.execute("SET TimeZone = 'UTC'")
        self.connection.execute(f"CREATE SCHEMA IF NOT EXISTS {BASE_SCHEMA}")
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS {META} (name VARCHAR, value VARCHAR)")
        if path is not None:
            close_to_others(path)
        self._readers = self.connection.cursor()  # only used to make cursors: the other connection belongs to the merge
        self.opening += 1

    def reopen(self) -> None:
        """After DuckDB has invalidated the database; all connections must be closed. The caller holds ``gate``."""
        if self.path is None:
            raise BaseDamaged("DuckDB has invalidated the in-memory tables; close the engine and open it again")
        with self._copying:
            self.close()
            self._connect()
            self.published += 1  # earlier readers must read again
            self.connection.execute(f"SELECT count(*) FROM {META}").fetchall()

    # ---- schema

    def ensure_table(self, schema: TableSchema) -> None:
        """Create the table if it is missing; refuse one whose columns differ from the declared ones: an app that has
        changed was brought over before (:mod:`tidegate.storage.migration`).
        """
        name, declared = base_name(schema), [(column.name, column.type.sql) for column in schema.columns]
        columns = ", ".join(f"{quote(column)} {kind}" for column, kind in declared)
        self.connection.execute(f"CREATE TABLE IF NOT EXISTS {name} ({columns})")
        stored = self.connection.execute(
            'SELECT name, "type" FROM pragma_table_info(?) ORDER BY cid', [name]
        ).fetchall()  # duckdb_columns() would look at every table and view, which takes 10 ms
        if stored == declared:
            return
        if not self.sequence() and not self.count(schema):  # nothing was ever merged
            self.connection.execute(f"CREATE OR REPLACE TABLE {name} ({columns})")
        else:
            raise DeclarationError(
                f"table {schema.name} is stored in {self.path} as ({_columns(stored)}), but declared as "
                f"({_columns(declared)}); declare it as stored, or start with a new directory",
                table=schema.name,
            )

    # ---- reading

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A separate connection for one thread (a shared one silently returns wrong results)."""
        with self._copying:
            return self._readers.cursor()

    def count(self, schema: TableSchema) -> int:
        found = self.cursor().execute(f"SELECT count(*) FROM {base_name(schema)}").fetchall()[0]
        return int(found[0])

    def scan(self, schema: TableSchema) -> Iterator[Row]:
        """Every row of the table."""
        result = self.cursor().execute(f"SELECT * FROM {base_name(schema)}")
        while rows := result.fetchmany(10_000):
            yield from stored_rows(schema, rows)

    def batches(self, schema: TableSchema) -> Iterator[pa.RecordBatch]:
        """Every row of the table, as Arrow."""
        cursor = self.cursor()
        try:
            yield from cursor.sql(f"SELECT * FROM {base_name(schema)}").to_arrow_reader(BATCH_ROWS)
        finally:
            cursor.close()

    def sequence(self) -> int:
        """The sequence number of the merged state; 0 before the first merge."""
        found = self.cursor().execute(f"SELECT value FROM {META} WHERE name = 'sequence'").fetchall()
        return int(found[0][0]) if found else 0

    def stamp(self) -> str | None:
        """What the last merge called the state of the tables, for those who keep a copy; None if it is not known."""
        found = self.cursor().execute(f"SELECT value FROM {META} WHERE name = '{STAMP}'").fetchall()
        return json.loads(found[0][0]) if found else None

    @property
    def refused(self) -> Mapping[tuple[str, Key], SetAside]:
        """The rows that DuckDB refuses, as of the merge that was written and is yet to be published."""
        return self._aside_after.rows

    def fetch(self, schema: TableSchema, keys: Sequence[Key]) -> dict[Key, Row]:
        """The rows with these keys, in one query."""
        rows = self._matching(schema, schema.primary_key, arrow_keys(schema, keys))
        return {schema.key_of(row): row for row in rows}

    def find(self, schema: TableSchema, columns: Sequence[str], values: Sequence[Any]) -> list[Row]:
        """The rows whose columns equal these values."""
        return self._matching(schema, columns, arrow_columns([schema.column(n) for n in columns], [tuple(values)]))

    def between(self, schema: TableSchema, column: str, low: Any, high: Any) -> Iterator[Row]:
        """The rows whose column is above ``low`` (None: no bound) and at most ``high``."""
        name, given = quote(column), [high] if low is None else [high, low]
        above = "" if low is None else f" AND {name} > ?"
        rows = self.cursor().execute(f"SELECT * FROM {base_name(schema)} WHERE {name} <= ?{above}", given).fetchall()
        yield from stored_rows(schema, rows)

    def _matching(self, schema: TableSchema, columns: Sequence[str], wanted: pa.Table) -> list[Row]:
        cursor = self.cursor()
        cursor.register("wanted", wanted)
        on = " AND ".join(f"t.{quote(n)} = {_cast('w', schema.column(n))}" for n in columns)
        rows = cursor.execute(f"SELECT t.* FROM {base_name(schema)} t SEMI JOIN wanted w ON {on}").fetchall()
        cursor.close()
        return list(stored_rows(schema, rows))

    # ---- writing

    def merge(
        self, changes: Mapping[TableSchema, Iterable[Changes]], meta: Mapping[str, Any]
    ) -> dict[TableSchema, Delta]:
        """Fold ``changes``, which come in parts, and ``meta`` into the base; visible after :meth:`publish`, all or nothing.

        A row that DuckDB refuses is left out, and kept in ``aside``. Returns the changes as they were sent to DuckDB,
        for others that keep a copy.
        """
        try:
            writing = Writing(self, changes, meta.get("at"))
            while (failed := self._write(writing, meta)) is not None:
                writing.leave_out(*failed)
        except duckdb.Error as error:
            self.roll_back()
            raise write_error(self.path, error) from error
        except BaseException:
            self.roll_back()
            raise
        self._aside_after = writing.aside
        return writing.deltas

    def _write(self, writing: Writing, meta: Mapping[str, Any]) -> tuple[TableSchema, Exception] | None:
        """Write everything in a transaction that stays open; if rows are refused, roll back and return their table."""
        connection = self.connection
        connection.execute("BEGIN TRANSACTION")
        for schema, delta in writing.deltas.items():
            if delta.deleted is not None:
                self._delete(schema, delta.deleted)
            try:
                if delta.inserted is not None:
                    self._insert(schema, delta.inserted)
            except REFUSALS as error:
                self.roll_back()
                return schema, error
        if meta:
            told = {**meta, "set_aside": [entry.saved() for entry in writing.aside.rows.values()]}
            names, texts = list(told), [json.dumps(value) for value in told.values()]
            connection.execute(f"DELETE FROM {META} WHERE list_contains(?, name)", [names])
            connection.execute(f"INSERT INTO {META} SELECT unnest(?), unnest(?)", [names, texts])
        return None

    def attempt(self, schema: TableSchema, rows: Sequence[Row]) -> Exception | None:
        """Why DuckDB would refuse these rows; None when it accepts them. Nothing is written."""
        self.connection.execute("BEGIN TRANSACTION")
        try:
            self._insert(schema, arrow_table(schema, rows))
        except REFUSALS as error:
            return error
        finally:
            self.roll_back()
        return None

    def publish(self) -> None:
        """Commit what :meth:`merge` wrote. The caller holds ``gate`` and drops the merged changes under it."""
        self.published += 1  # before the commit: whoever sees it also sees that there was one
        try:
            self.connection.execute("COMMIT")
        except duckdb.Error as error:
            raise write_error(self.path, error) from error
        self.merges += 1
        self.aside = self._aside_after

    def roll_back(self) -> None:
        """Discard what :meth:`merge` wrote."""
        try:
            self.connection.execute("ROLLBACK")
        except duckdb.Error:
            pass  # DuckDB has rolled back itself

    def _delete(self, schema: TableSchema, keys: pa.Table) -> None:
        self.connection.register("merge_keys", keys)
        on = " AND ".join(f"t.{quote(n)} = {_cast('k', schema.column(n))}" for n in schema.primary_key)
        self.connection.execute(f"DELETE FROM {base_name(schema)} t USING merge_keys k WHERE {on}")
        self.connection.unregister("merge_keys")

    def _insert(self, schema: TableSchema, rows: pa.Table) -> None:
        self.connection.register("merge_rows", rows)
        columns = ", ".join(_cast("r", column) for column in schema.columns)
        self.connection.execute(f"INSERT INTO {base_name(schema)} SELECT {columns} FROM merge_rows r")
        self.connection.unregister("merge_rows")

    def close(self) -> None:
        self._readers.close()
        self.connection.close()


def let_signal_through(error: BaseException) -> None:
    """A signal handler that raises while DuckDB is running (Ctrl-C) ends its query with a RuntimeError, and what it
    raised is lost. It was not an error of the query or its caller: raise KeyboardInterrupt instead.
    """
    if type(error) is RuntimeError and str(error) == "Query interrupted":
        raise KeyboardInterrupt("a signal arrived while DuckDB was running") from error


@contextmanager
def letting_signals_through() -> Iterator[None]:
    """Wrap every use of DuckDB in this."""
    try:
        yield
    except RuntimeError as error:
        let_signal_through(error)
        raise


def write_error(path: Path | None, error: duckdb.Error) -> TidegateError:
    """Why DuckDB did not write: no disk space, another passing reason, or because it has invalidated the database."""
    told = (str(error).splitlines() or [type(error).__name__])[0]
    if isinstance(error, (duckdb.FatalException, duckdb.InternalError)):
        return BaseDamaged(
            f"DuckDB could not write {path} ({told}) and has invalidated the database. What was acknowledged is safe "
            "in the log; the base is reopened automatically. If that does not help, check the disk, close the engine "
            "and open it again",
            path=path,
        )
    if "No space left" in str(error):
        return DiskFull(
            f"no room to merge into {path} ({told}); what was acknowledged is safe in the log. Free some space: work "
            "resumes automatically",
            path=path,
        )
    return MergeFailed(
        f"DuckDB could not write {path} ({told}). What was acknowledged is safe in the log, and the merge is retried "
        "automatically",
        path=path,
    )


def base_name(schema: TableSchema) -> str:
    """The qualified name of the base table: distinct from the name that SQL in procedures uses."""
    return f"{BASE_SCHEMA}.{quote(schema.name)}"


def _cast(alias: str, column: Column) -> str:
    return f"CAST({alias}.{quote(column.name)} AS {column.type.sql})"


def _columns(columns: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns)
