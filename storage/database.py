"""The database of one engine: its tables in memory over their DuckDB base."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from tidegate.crashpoints import crash_point
from tidegate.errors import DataError
from tidegate.mutex import Rank, mutex
from tidegate.storage.base import STAMP, Base, letting_signals_through
from tidegate.storage.cold.runs import Damaged
from tidegate.storage.cold.store import ColdStore, Gathered
from tidegate.storage.constraints import Checks, Default, prepare_default
from tidegate.storage.halfway import MERGING, Halfway
from tidegate.storage.indexes import SecondaryIndex
from tidegate.storage.memory import Bound, table_bytes
from tidegate.storage.merges import Changes
from tidegate.storage.schema import Column, Key, Row, TableSchema
from tidegate.storage.setaside import restored
from tidegate.storage.sql.connection import BaseConnection
from tidegate.storage.versions import VersionedTable
from tidegate.storage.view import View, WriteSet
from tidegate.storage.writing import Delta

COLD = "rows"  # the folder with rows by key, beside the base
STATE = ("merge", "lsn", "chain", "sequence")  # the facts that make a merged state unique in its directory
AT_ONCE = 20_000  # rows of a table that is loaded at once by who needs some of it
PART = 2_000  # rows that a merge takes at a time: about a millisecond
PAUSE_S = 0.0002  # long enough for a thread that waits for the interpreter lock to get it


class Stopped(Exception):
    """There is no time to read all rows: the engine is closing."""


def batched(rows: Iterable[Row], size: int) -> Iterator[list[Row]]:
    """So many at a time."""
    taken = iter(rows)
    while part := list(islice(taken, size)):
        yield part


Readers = Callable[[str], tuple[Sequence[int], Sequence[int]]]

# called after every published merge, in order: what it changed and the facts stored with it
MergeListener = Callable[[Mapping[TableSchema, Delta], Mapping[str, Any]], None]


class Database:
    """Tables, their versions in memory and the base below them.

    ``cached_rows`` bounds the rows of one table kept in memory, ``memory`` the bytes of all: a table that fits is held whole
    (looking up an absent key is then free), of a larger one the other rows are cold (:mod:`tidegate.storage.cold.store`).
    """

    def __init__(
        self,
        schemas: Iterable[TableSchema],
        path: Path | None = None,
        cached_rows: int = 2_000_000,
        base: Base | None = None,
        memory: int | None = None,
    ) -> None:
        self.base = base if base is not None else Base(path)
        self.bound = Bound(cached_rows, memory)
        self.halfway = Halfway(self.base.path is not None)
        self.tables: dict[str, VersionedTable] = {}
        self.elsewhere: Callable[[], int] = lambda: 0  # bytes that windows and queues take
        self.commits = 0
        self.concurrent = False  # set when several threads use it: readers then fix a snapshot, see Base.gate
        self.merge_listeners: list[MergeListener] = []
        self._merging = False  # has a merge begun that has neither succeeded nor failed yet?
        self.wanted: set[str] = set()  # large tables that are being read a few rows at a time
        self.on_wanted: Callable[[], None] = lambda: None  # whoever calls ``load_wanted`` has something to do
        self._too_large: dict[str, int] = {}  # tables that did not fit in memory -> number of merges at that time
        self._loading = mutex(Rank.LOADING)
        self._local = threading.local()
        self._connections: list[BaseConnection] = []
        self._checks: dict[str, Checks] = {}
        self._defaults: dict[int, tuple[Column, Default]] = {}  # by the column's identity, which the entry keeps
        for schema in schemas:
            self.base.ensure_table(schema)
            self.tables[schema.name] = VersionedTable(schema, self._load, complete=self.base.count(schema) == 0)
        path = self.base.path
        known = [table.schema for table in self.tables.values()]
        self.cold = (
            ColdStore(None, known, None) if path is None else ColdStore(path.parent / COLD, known, self.base.stamp())
        )

    # ---- memory

    def _load(self, table: VersionedTable, keys: Sequence[Key]) -> dict[Key, Row] | None:
        cold = self.cold.get(table.name)
        if cold is not None:
            try:
                return cold.get_all(keys)
            except Damaged as error:
                self.cold.condemn(table.name, error)
        if self.concurrent and self._held_later(table):
            return self.base.fetch(table.schema, keys)
        return None if self.hold(table) else self.base.fetch(table.schema, keys)

    def _held_later(self, table: VersionedTable) -> bool:
        """Is the table so large that who needs a few of its rows does not wait until all of them can be found by key?"""
        if self.base.count(table.schema) <= min(AT_ONCE, self._room(table)):
            return False
        self.wanted.add(table.name)
        self.on_wanted()
        return True

    def load_all(self, table: VersionedTable) -> None:
        """Hold the whole table in memory from now on (until it outgrows the bound at a merge)."""
        with self._loading:
            if not table.complete:
                table.fill(lambda: self.base.scan(table.schema))

    def hold(self, table: VersionedTable) -> bool:
        """Hold the whole table in memory if it fits; returns whether it does."""
        if not table.complete and self._too_large.get(table.name) != self.base.merges:
            if self.base.count(table.schema) <= self._room(table):
                self.load_all(table)
            else:
                self._too_large[table.name] = self.base.merges
        return table.complete

    def _room(self, table: VersionedTable) -> int:
        """How many rows it may have to be held whole. Fewer if it was not: it should not come and go with each merge."""
        room = self.bound.room(table, self.tables.values())
        return room if self.cold.get(table.name) is None else room * 4 // 5

    def keys_with(self, table: VersionedTable, index: SecondaryIndex, values: tuple[Any, ...]) -> tuple[Key, ...]:
        """The keys of all rows with these indexed values; some may be of older or newer versions."""
        value = values if len(values) > 1 else values[0]
        while True:
            evictions = table.mark()
            if not table.complete:
                self._take_with(table, index, values)
            keys = index.candidates(value)
            if table.evictions == evictions:  # otherwise rows may have been evicted before the index was read
                return keys

    def _take_with(self, table: VersionedTable, index: SecondaryIndex, values: tuple[Any, ...]) -> None:
        """Have all rows with these indexed values in memory."""
        cold = self.cold.get(table.name)
        if cold is not None and index.recognises(values if len(values) > 1 else values[0]):
            try:
                keys = cold.keys_with(index.name, values)
            except Damaged as error:
                self.cold.condemn(table.name, error)
            else:
                if keys is not None:
                    table.fetch(keys)
                    return
        if not self.hold(table):
            table.take(lambda: self.base.find(table.schema, index.columns, values))

    def all_keys(self, table: VersionedTable) -> list[Key]:
        """The keys of all rows, which are loaded into memory."""
        while True:
            self.load_all(table)
            keys = table.keys_if_complete()
            if keys is not None:
                return keys

    def prefetch(self, table: str, keys: Iterable[Key]) -> None:
        """Load these rows into memory at once. Keys may be in any form; what is no key is passed over."""
        held = self.tables[table]
        if held.complete:
            return
        rows, stored = held.rows, set()
        for key in keys:
            if key not in rows:
                try:
                    stored.add(held.schema.conform_key(key))
                except DataError:
                    continue
        if stored:
            held.fetch(stored)

    # ---- committing and merging

    def commit(self, writes: WriteSet, position: int, keep_older: bool, readers: Readers | None = None) -> None:
        """Make a write set visible as versions at ``position``.

        ``keep_older``: someone may still read what it replaces. ``readers(table)`` says who: the positions below this
        one that are unfinished, and the commit numbers held; what none of them can see is dropped at once, so that a
        row that changes often during one long wait does not pile up versions.
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
        """Changed rows that the base does not have yet, without those that it refused."""
        return max(0, sum(len(table.dirty) for table in self.tables.values()) - len(self.base.aside))

    @property
    def crowded(self) -> bool:
        """Are there more rows in memory than it was given? A merge evicts them."""
        return self.bound.exceeded(self.tables.values())

    def memory_facts(self) -> dict[str, int | None]:
        """What tables take, for people and for monitoring; ``elsewhere`` is as of the last merge."""
        tables = self.tables.values()
        return {
            "limit": self.bound.memory,
            "tables": sum(map(table_bytes, tables)),
            "elsewhere": self.bound.elsewhere,
            "rows": sum(len(table.rows) for table in tables),
            "cold_bytes": self.cold.size,
            "cold_reads": sum(table.cold_reads for table in tables),
        }

    def restore_set_aside(self, saved: Iterable[Sequence[Any]]) -> None:
        """Put back the rows that the base refused, from the facts stored in it."""
        for one in saved:
            table = self.tables[one[0]]
            entry = restored(table.schema, one)
            self.base.aside.rows[entry.table, entry.key] = entry
            table.restore_left_out(entry.key, entry.row)

    def reopen(self) -> None:
        """DuckDB has invalidated the base: drop every connection to it, and open it again."""
        with self.base.gate:
            for connection in self._connections:
                connection.cursor.close()
            self._connections.clear()
            self._checks.clear()
            self._defaults.clear()
            self.base.reopen()

    @letting_signals_through()
    def merge(
        self,
        meta: Callable[[], Mapping[str, Any]],
        open_positions: Callable[[str], Sequence[int]] = lambda table: (),
        open_commits: Callable[[], Sequence[int]] = lambda: (),
        lock: AbstractContextManager[Any] | None = None,
        turn: AbstractContextManager[Any] | None = None,
        before_publish: Callable[[], None] = lambda: None,
    ) -> int:
        """Fold all committed versions into the base and drop those that no reader needs; returns rows written.

        ``open_positions(table)``: ascending positions of unfinished executions with an intent on that table.
        ``meta()``: facts to store in the same DuckDB transaction.
        ``before_publish()``: runs when the changes are written, before they are committed. ``lock`` keeps commits out
        briefly; they continue while changes are collected and written. Other threads get a turn after every ``PART``
        rows: a million rows in one go would block the whole interpreter. ``turn`` keeps out executions that only their
        executor knows of, while the state that the merge covers is fixed.
        """
        lock = lock if lock is not None else nullcontext()
        with turn if turn is not None else nullcontext(), lock:
            self.halfway.check_entry()
            facts = meta()
            self.bound.elsewhere = self.elsewhere() + self.cold.held
            changed = [table for table in self.tables.values() if table.dirty]
            with self.halfway.step(MERGING):
                if self._merging:  # a merge was interrupted, and so was its cleanup
                    raise self.halfway.stopped()
                self._merging = True
                merges = [table.begin_merge() for table in changed]
        stamp = "-".join(str(facts[name]) for name in STATE) if "merge" in facts else None
        try:
            crash_point("merge-before-write")
            gathered: dict[str, Gathered] = {}
            taken = {
                table.schema: self.cold.gather(table.schema, self._in_turn(merge.taken(PART)), gathered)
                for table, merge in zip(changed, merges, strict=True)
            }
            deltas = self.base.merge(taken, {**facts, STAMP: stamp} if stamp else facts)
            self.cold.begin(stamp, gathered, self.base.refused)
            before_publish()
            crash_point("merge-before-commit")
            with self.base.gate:
                self.base.publish()
                crash_point("merge-after-commit")
                self.cold.adopt()
                self._end_merge(changed, True, lock)
        except BaseException:
            self.base.roll_back()
            self.cold.drop_next()
            self._end_merge(changed, False, lock)
            self._merging = False
            raise
        self._forget(self.tables.values(), lock)
        kept = self.bound.kept(self.tables)
        self._keep_cold(kept)
        with lock, self.halfway.step(MERGING):
            for table in self.tables.values():
                table.trim(open_positions(table.name), open_commits())
                table.evict(kept[table.name])
        self.cold.settle()
        for listener in self.merge_listeners:
            listener(deltas, facts)
        self._merging = False
        return sum(part.num_rows for delta in deltas.values() for part in delta if part is not None)

    def _keep_cold(self, kept: Mapping[str, int]) -> None:
        """Before rows are evicted for the first time, all of the table can be read by key; not any more when it is held."""
        for table in self.tables.values():
            if self.cold.get(table.name) is None:
                if len(table.rows) > kept[table.name]:
                    self.cold.build(table.schema, self._rows_in_turn(table.schema))
            elif table.complete and len(table.rows) <= self._room(table):
                self.cold.forget(table.name)

    def _rows_in_turn(self, schema: TableSchema, stop: Callable[[], bool] = lambda: False) -> Iterator[Row]:
        """The rows of the base. Others get a turn in between."""
        for number, row in enumerate(self.base.scan(schema), 1):
            if number % PART == 0:
                self._let_others_run()
                if stop():
                    raise Stopped
            yield row

    def load_wanted(self, stop: Callable[[], bool]) -> None:
        """Load the tables that were asked for, or what does not fit where it can be read by key, while others work.
        Nothing is merged meanwhile.
        """
        while self.wanted and not stop():
            table = self.tables[self.wanted.pop()]
            if table.complete:
                continue
            rows = self._rows_in_turn(table.schema, stop)
            try:
                if self.base.count(table.schema) <= self._room(table):
                    if table.fill_in_parts(batched(rows, PART)):
                        self.cold.forget(table.name)
                elif self.cold.get(table.name) is None:
                    self.cold.build(table.schema, rows)
            except Stopped:
                return

    def _end_merge(self, changed: Iterable[VersionedTable], in_base: bool, lock: AbstractContextManager[Any]) -> None:
        """The changes taken are in the base now or, if that is uncertain, stay unmerged for the next merge to write."""
        with lock, self.halfway.step(MERGING):
            for table in changed:
                if in_base:
                    table.merged(self.base.aside.keys(table.name))
                else:
                    table.merge_failed()

    def _in_turn(self, parts: Iterable[Changes]) -> Iterator[Changes]:
        for number, part in enumerate(parts):
            if number:
                self._let_others_run()
            yield part

    def _forget(self, tables: Iterable[VersionedTable], lock: AbstractContextManager[Any]) -> None:
        """Rows that are deleted in the base as well need not be remembered."""
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

    def connection(self) -> BaseConnection:
        """This thread's own connection to the base."""
        connection: BaseConnection | None = getattr(self._local, "connection", None)
        if connection is None or self._local.opening != self.base.opening:
            self._local.opening = self.base.opening
            connection = self._local.connection = BaseConnection(self.base.cursor(), threading.get_ident())
            self._connections.append(connection)
        return connection

    def interrupt(self, thread: int) -> None:
        """Interrupt the query that this thread runs on its connection, if any."""
        for connection in tuple(self._connections):
            if connection.thread == thread:
                connection.cursor.interrupt()

    def discard_connection(self) -> None:
        """This thread's connection was interrupted: its next query could return anything, so that gets a new one.

        It closes with its last reference: another thread may be about to interrupt it.
        """
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            self._local.connection = None
            self._connections.remove(connection)

    # ---- constraints

    def check_row(self, schema: TableSchema, row: Row) -> None:
        """Raise ConstraintError when a CHECK of the table is false for ``row`` (NULL passes, as in SQL)."""
        self.check_rows(schema, (row,))

    def check_rows(self, schema: TableSchema, rows: Sequence[Row]) -> None:
        """The same for many rows at once."""
        checks = self._checks.get(schema.name)
        if checks is None:
            checks = self._checks[schema.name] = Checks(schema, self.connection())
        checks.enforce(rows, self.connection)

    def default(self, view: View, column: Column) -> Any:
        """The value of ``column``'s DEFAULT for a row inserted through ``view``."""
        found = self._defaults.get(id(column))
        if found is None:
            found = self._defaults[id(column)] = (column, prepare_default(column, self.connection()))
        return found[1](view)

    def close(self) -> None:
        for connection in self._connections:
            connection.cursor.close()
        self.base.close()
