"""The database of one engine: its tables in memory over their DuckDB base."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidegate.crashpoints import crash_point
from tidegate.storage.base import Base, Delta
from tidegate.storage.constraints import Checks, Default, prepare_default
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.overlay import Session
from tidegate.storage.schema import Column, Key, Row, TableSchema
from tidegate.storage.versions import Changes, VersionedTable
from tidegate.storage.view import View, WriteSet

if TYPE_CHECKING:
    import duckdb


PART = 2_000  # rows that a merge takes at a time: about a millisecond
PAUSE_S = 0.0002  # long enough for a thread that waits for the interpreter to get it

Readers = Callable[[str], tuple[Sequence[int], Sequence[int]]]

# told of every merge, in order, after it was published: what it changed and the facts stored with it
MergeListener = Callable[[Mapping[TableSchema, Delta], Mapping[str, Any]], None]


class Database:
    """Tables, their versions in memory and the base below them.

    ``cached_rows`` bounds the rows of one table kept in memory: a table that fits is held whole (absent keys cost
    nothing to find absent), a larger one is cached and read ahead with :meth:`prefetch`.
    """

    def __init__(
        self,
        schemas: Iterable[TableSchema],
        path: Path | None = None,
        cached_rows: int = 2_000_000,
        base: Base | None = None,
    ) -> None:
        self.base = base if base is not None else Base(path)
        self.cached_rows = cached_rows
        self.tables: dict[str, VersionedTable] = {}
        self.commits = 0
        self.concurrent = False  # set when several threads use it: readers then fix a snapshot, see Base.gate
        self.merge_listeners: list[MergeListener] = []
        self._too_large: dict[str, int] = {}  # tables that did not fit in memory -> number of merges at that time
        self._loading = threading.Lock()
        self._local = threading.local()
        self._sessions: list[Session] = []
        self._checks: dict[str, Checks] = {}
        self._defaults: dict[int, tuple[Column, Default]] = {}  # by the column's identity, which the entry keeps
        for schema in schemas:
            self.base.ensure_table(schema)
            self.tables[schema.name] = VersionedTable(schema, self._load, complete=self.base.count(schema) == 0)

    # ---- memory

    def _load(self, table: VersionedTable, keys: Sequence[Key]) -> dict[Key, Row] | None:
        return None if self.hold(table) else self.base.fetch(table.schema, keys)

    def load_all(self, table: VersionedTable) -> None:
        """Hold the whole table in memory from now on (until it outgrows the bound at a merge)."""
        with self._loading:
            if not table.complete:
                table.fill(lambda: self.base.scan(table.schema))

    def hold(self, table: VersionedTable) -> bool:
        """Hold the whole table in memory if it fits; says whether it is."""
        if not table.complete and self._too_large.get(table.name) != self.base.merges:
            if self.base.count(table.schema) <= self.cached_rows:
                self.load_all(table)
            else:
                self._too_large[table.name] = self.base.merges
        return table.complete

    def cover(self, table: VersionedTable, index: SecondaryIndex, values: tuple[Any, ...]) -> None:
        """Bring the rows with these indexed values into memory, so that the index knows all of them."""
        if not self.hold(table):
            table.take(lambda: self.base.find(table.schema, index.columns, values))

    def prefetch(self, table: str, keys: Iterable[Key]) -> None:
        """Bring these rows into memory in one query."""
        self.tables[table].fetch(keys)

    # ---- committing and merging

    def commit(self, writes: WriteSet, position: int, keep_older: bool, readers: Readers | None = None) -> None:
        """Make a write set visible as versions at ``position``.

        ``keep_older``: someone may still read what it replaces. ``readers(table)`` says who: the positions below this one
        that are unfinished, and the commit numbers held; what none of them can see goes at once, so that a row that
        changes often under one long wait does not pile up versions.
        """
        self.commits = commit = self.commits + 1
        tables = self.tables
        for name, rows in writes.items():
            tables[name].commit(rows, position, commit, keep_older)
        if keep_older and readers is not None:
            for name, rows in writes.items():
                tables[name].trim(*readers(name), keys=rows)

    @property
    def unmerged(self) -> int:
        """Changed rows that the base does not have yet."""
        return sum(len(table.dirty) for table in self.tables.values())

    def merge(
        self,
        meta: Callable[[], Mapping[str, Any]],
        open_positions: Callable[[str], Sequence[int]] = lambda table: (),
        open_commits: Callable[[], Sequence[int]] = lambda: (),
        lock: AbstractContextManager[Any] | None = None,
        before_publish: Callable[[], None] = lambda: None,
    ) -> int:
        """Fold all committed versions into the base, drop what nobody may read any more; returns rows written.

        ``open_positions(table)``: ascending positions of unfinished executions with an intent on that table.
        ``meta()``: facts to store in the same DuckDB transaction.
        ``before_publish()``: runs when the changes are written, before they are committed.
        ``lock`` keeps commits out for moments; they go on while changes are collected and written. Others get their turn
        after every ``PART`` rows: a million rows in one go would hold up the whole interpreter.
        """
        lock = lock if lock is not None else nullcontext()
        with lock:
            facts = meta()
            changed = [table for table in self.tables.values() if table.dirty]
            for table in changed:
                table.begin_merge()
        try:
            crash_point("merge-before-write")
            deltas = self.base.merge({table.schema: self._in_turn(table.taken(PART)) for table in changed}, facts)
            before_publish()
            crash_point("merge-before-commit")
            with self.base.gate:
                self.base.publish()
                crash_point("merge-after-commit")
                with lock:
                    for table in changed:
                        table.merged()
        except BaseException:
            self.base.roll_back()
            with lock:
                for table in changed:
                    table.merge_failed()
            raise
        self._forget(changed, lock)
        with lock:
            for table in self.tables.values():
                table.trim(open_positions(table.name), open_commits())
                table.evict(self.cached_rows)
        for listener in self.merge_listeners:
            listener(deltas, facts)
        return sum(part.num_rows for delta in deltas.values() for part in delta if part is not None)

    def _in_turn(self, parts: Iterable[Changes]) -> Iterator[Changes]:
        for number, part in enumerate(parts):
            if number:
                self._let_others_run()
            yield part

    def _forget(self, tables: Iterable[VersionedTable], lock: AbstractContextManager[Any]) -> None:
        """What is deleted in the base, too, need not be remembered."""
        for table in tables:
            while True:
                with lock:
                    if not table.forget(PART):
                        break
                self._let_others_run()

    def _let_others_run(self) -> None:
        if self.concurrent:
            time.sleep(PAUSE_S)

    # ---- DuckDB for SQL in procedures

    def session(self) -> Session:
        """This thread's own connection to the base."""
        session = getattr(self._local, "session", None)
        if session is None:
            session = self._local.session = Session(self.base.cursor())
            self._sessions.append(session)
        return session

    def cursor(self) -> duckdb.DuckDBPyConnection:
        return self.session().cursor

    # ---- constraints

    def check_row(self, schema: TableSchema, row: Row) -> None:
        """Raise ConstraintError when a CHECK of the table is false for ``row`` (NULL passes, as in SQL)."""
        self.check_rows(schema, (row,))

    def check_rows(self, schema: TableSchema, rows: Sequence[Row]) -> None:
        """The same for many rows at once."""
        checks = self._checks.get(schema.name)
        if checks is None:
            checks = self._checks[schema.name] = Checks(schema, self.session())
        checks.enforce(rows, self.session)

    def default(self, view: View, column: Column) -> Any:
        """The value of ``column``'s DEFAULT for a row inserted through ``view``."""
        found = self._defaults.get(id(column))
        if found is None:
            found = self._defaults[id(column)] = (column, prepare_default(column, self.session()))
        return found[1](view)

    def close(self) -> None:
        for session in self._sessions:
            session.cursor.close()
        self.base.close()
