"""The replica's own copy of the tables: a DuckDB database in memory, written by the feed, read by everyone else.

A merge is one DuckDB transaction, so a reader sees the state of one merge, and reads that merge's position in the same
snapshot. For ``AS OF``, what a merge replaces is kept beside the table: for each merge and key the old row, or the fact
that there was none. The state after merge m is then: rows whose key no later merge has touched, and for the others what
the first later merge found. Queries of the newest state do not pay for that.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

from tidegate.errors import QueryFailed
from tidegate.storage.ddl import quote

LOCKED_DOWN = {
    "enable_external_access": "false",
    "autoload_known_extensions": "false",
    "autoinstall_known_extensions": "false",
    "allow_community_extensions": "false",
    "allow_unsigned_extensions": "false",
    "python_enable_replacements": "false",
    "temp_directory": "",
}
HISTORY = "tg_history"
AS_OF = "tg_as_of"
EXPIRING = "tg_expiring"
FRONTIER = "SELECT number, position, oldest_number FROM tidegate.frontier"


@dataclass(frozen=True)
class Table:
    """A table as the engine declares it: columns are (name, SQL type, nullable, default)."""

    name: str
    columns: tuple[tuple[str, str, bool, str | None], ...]
    primary_key: tuple[str, ...] = ()
    indexes: tuple[tuple[str, tuple[str, ...], bool], ...] = ()
    expire: tuple[str, int] | None = None  # the column, and microseconds: see tidegate.storage.expiry

    @property
    def stored(self) -> str:
        """Where its rows are. Readers see those of a table whose rows expire through a view that leaves out what is due."""
        return f"{'main' if self.expire is None else EXPIRING}.{quote(self.name)}"

    @property
    def not_due(self) -> str:
        assert self.expire is not None
        column, after_us = self.expire
        kind = next(kind for name, kind, *_ in self.columns if name == column)
        cut = f"CAST(make_timestamp(epoch_us(now()) - {after_us}) AS {kind})"
        return f"SELECT * FROM {self.stored} WHERE {quote(column)} IS NULL OR {quote(column)} > {cut}"

    @property
    def ddl(self) -> str:
        return ", ".join(f"{quote(name)} {kind}" for name, kind, *_ in self.columns)

    def cast(self, alias: str, names: Iterable[str]) -> str:
        """Transported columns in their declared types."""
        kinds = {name: kind for name, kind, *_ in self.columns}
        return ", ".join(f"CAST({alias}.{quote(name)} AS {kinds[name]}) AS {quote(name)}" for name in names)

    def same_key(self, left: str, right: str) -> str:
        return " AND ".join(f"{left}.{quote(n)} = {right}.{quote(n)}" for n in self.primary_key)


FRONTIER_COLUMNS = tuple((name, "BIGINT", True, None) for name in ("number", "position", "oldest_number", "oldest"))


class MergedState(NamedTuple):
    """A merged state: the number of the merge, its position, and what it replaced."""

    number: int
    position: int
    rows: int


def tables_of(described: Sequence[dict[str, Any]]) -> dict[str, Table]:
    """Tables as they were described by the engine's side (:func:`tidegate.replica.feed.described`)."""
    return {
        d["name"]: Table(
            d["name"],
            tuple((c[0], c[1], *(c[2:] or (True, None))) for c in d["columns"]),
            tuple(d.get("primary_key", ())),
            tuple((name, tuple(columns), unique) for name, columns, unique in d.get("indexes", ())),
            (d["expire"][0], d["expire"][1]) if d.get("expire") else None,
        )
        for d in described
    }


class Mirror:
    """The database. One thread feeds it; readers take a cursor each."""

    def __init__(
        self,
        tables: dict[str, Table],
        views: dict[str, Table],
        memory_mb: int,
        threads: int,
        history_merges: int,
        history_rows: int,
        plain: Sequence[dict[str, Any]] = (),
    ) -> None:
        """``plain``: the app's own views, as they were described, each after those that it reads."""
        self.tables = tables
        self.plain = tables_of(plain)
        self.definitions = {view["name"]: view["sql"] for view in plain}
        self.views = {**views, "frontier": Table("frontier", FRONTIER_COLUMNS)}
        self.connection = duckdb.connect(
            ":memory:", config={**LOCKED_DOWN, "memory_limit": f"{memory_mb}MB", "threads": str(threads)}
        )
        self._copying = threading.Lock()
        self._keep, self._keep_rows = history_merges, history_rows
        self._writer = self.connection.cursor()
        self._states: deque[MergedState] = deque()  # newest last; the last one is the frontier
        self._merging: MergedState | None = None
        self._replaced = 0
        self._as_of: set[tuple[int, str]] = set()
        self._declare()
        self.system = self.connection.cursor()  # for what the replica itself looks up

    def _declare(self) -> None:
        run = self.connection.execute
        run("SET TimeZone = 'UTC'")
        for schema in ("public", "tidegate", HISTORY, AS_OF, EXPIRING):
            run(f"CREATE SCHEMA {schema}")
        run(f"CREATE TABLE tidegate.frontier ({self.views['frontier'].ddl})")
        run("INSERT INTO tidegate.frontier VALUES (0, 0, 0, 0)")
        for table in self.tables.values():
            name = quote(table.name)
            run(f"CREATE TABLE {table.stored} ({table.ddl})")
            if table.expire is not None:
                run(f"CREATE VIEW main.{name} AS {table.not_due}")
            run(f"CREATE VIEW public.{name} AS FROM main.{name}")
            run(f'CREATE TABLE {HISTORY}.{name} ("tg:merge" BIGINT, "tg:absent" BOOLEAN, {table.ddl})')
        for name, sql in self.definitions.items():
            run(f"CREATE VIEW main.{quote(name)} AS {sql}")
            run(f"CREATE VIEW public.{quote(name)} AS FROM main.{quote(name)}")
        for view in self.views.values():
            if view.name != "frontier":
                run(f"CREATE TABLE tidegate.{quote(view.name)} ({view.ddl})")

    def lock_down(self) -> None:
        """No setting changes after this."""
        self.connection.execute("SET lock_configuration = true")

    def cursor(self) -> duckdb.DuckDBPyConnection:
        """A separate connection for one query (a shared one silently returns wrong results)."""
        with self._copying:
            return self.connection.cursor()

    # ---- the feed

    def begin(self, number: int, position: int, fresh: bool) -> None:
        """A merge starts; nothing of it is seen before :meth:`publish`."""
        self._writer.execute("BEGIN TRANSACTION")
        self._merging, self._replaced = MergedState(number, position, 0), 0
        if fresh:
            self._states.clear()
            for table in self.tables.values():
                self._writer.execute(f"DELETE FROM {table.stored}")
                self._writer.execute(f"DELETE FROM {HISTORY}.{quote(table.name)}")

    def delete(self, name: str, keys: pa.Table) -> None:
        """Rows with these keys are gone, or follow again."""
        table, target = self.tables[name], self.tables[name].stored
        self._show(keys)
        keyed = f"(SELECT {table.cast('d', table.primary_key)} FROM tg_delta d) k"
        if self._keep:
            self._remember(
                f"INSERT INTO {HISTORY}.{quote(name)} SELECT {self._number}, false, t.* FROM {target} t "
                f"SEMI JOIN {keyed} ON {table.same_key('t', 'k')}"
            )
        self._writer.execute(f"DELETE FROM {target} t USING {keyed} WHERE {table.same_key('t', 'k')}")
        self._writer.unregister("tg_delta")

    def insert(self, name: str, rows: pa.Table) -> None:
        table, target = self.tables[name], self.tables[name].stored
        self._show(rows)
        names = [column[0] for column in table.columns]
        given = f"(SELECT {table.cast('d', names)} FROM tg_delta d) r"
        if self._keep and self._states:
            keys = ", ".join(quote(n) for n in table.primary_key)
            self._remember(
                f'INSERT INTO {HISTORY}.{quote(name)} ("tg:merge", "tg:absent", {keys}) SELECT {self._number}, true, '
                f'{keys} FROM {given} ANTI JOIN (FROM {HISTORY}.{quote(name)} WHERE "tg:merge" = {self._number}) h '
                f"ON {table.same_key('r', 'h')}"
            )
        self._writer.execute(f"INSERT INTO {target} FROM {given}")
        self._writer.unregister("tg_delta")

    def publish(self) -> MergedState:
        """The merge is complete: from now on it is what queries see."""
        assert self._merging is not None
        state = self._merging._replace(rows=self._replaced)
        forgotten = self._forget(state)
        oldest = self._states[0] if self._states else state
        self._writer.execute("DELETE FROM tidegate.frontier")
        self._writer.execute(
            "INSERT INTO tidegate.frontier VALUES (?, ?, ?, ?)",
            [state.number, state.position, oldest.number, oldest.position],
        )
        self._writer.execute("COMMIT")
        self._states.append(state)
        self._merging = None
        if forgotten:
            self._drop_views(oldest.number)
        return state

    @property
    def _number(self) -> int:
        assert self._merging is not None
        return self._merging.number

    def _show(self, table: pa.Table) -> None:
        self._writer.register("tg_delta", table)

    def _remember(self, sql: str) -> None:
        self._replaced += self._writer.execute(sql).fetchall()[0][0]

    def _forget(self, newest: MergedState) -> bool:
        """Drop the oldest states when there are too many, or too much is kept for them."""
        kept = sum(state.rows for state in [*self._states, newest][1:])  # nothing is kept from before the oldest
        before = len(self._states)
        while self._states and (len(self._states) > self._keep or kept > self._keep_rows):
            self._states.popleft()
            # what the next one replaced is needed only to get back to the state just dropped
            kept -= (self._states[0] if self._states else newest).rows
        if len(self._states) == before:
            return False
        oldest = self._states[0] if self._states else newest
        for table in self.tables.values():
            self._writer.execute(f'DELETE FROM {HISTORY}.{quote(table.name)} WHERE "tg:merge" <= {oldest.number}')
        return True

    def show_view(self, name: str, rows: pa.Table) -> None:
        """Replace what a system view shows."""
        view = self.views[name]
        self._show(rows)
        self._writer.execute("BEGIN TRANSACTION")
        self._writer.execute(f"DELETE FROM tidegate.{quote(name)}")
        columns = view.cast("d", [column[0] for column in view.columns])
        self._writer.execute(f"INSERT INTO tidegate.{quote(name)} SELECT {columns} FROM tg_delta d")
        self._writer.execute("COMMIT")
        self._writer.unregister("tg_delta")

    # ---- older states

    @property
    def frontier(self) -> MergedState | None:
        """The newest state; None before the first."""
        return self._states[-1] if self._states else None

    def state_at(self, position: int) -> MergedState:
        """The newest retained state that is not newer than ``position``."""
        states = list(self._states)
        if not states or position > states[-1].position:
            at = states[-1].position if states else "nothing yet"
            raise QueryFailed(
                f"AS OF {position} is ahead of the replica, which is at {at}; ask again in a moment, or leave AS OF out",
                sqlstate="22023",
            )
        found = next((state for state in reversed(states) if state.position <= position), None)
        if found is None:
            raise QueryFailed(
                f"AS OF {position} is not retained any more: the replica keeps {len(states)} states, positions "
                f"{states[0].position} to {states[-1].position}",
                sqlstate="22023",
            )
        return found

    def as_of(self, state: MergedState, name: str) -> str:
        """The name of a view of the table as it was in ``state``."""
        table = self.tables[name]
        view = f"{AS_OF}.{quote(f'{name}@{state.number}')}"
        with self._copying:
            if (state.number, name) not in self._as_of:
                self.system.execute(f"CREATE OR REPLACE VIEW {view} AS {self._as_of_sql(table, state.number)}")
                self._as_of.add((state.number, name))
        return view

    def _as_of_sql(self, table: Table, number: int) -> str:
        columns = ", ".join(quote(column[0]) for column in table.columns)
        keys = ", ".join(quote(n) for n in table.primary_key)
        later = f'(FROM {HISTORY}.{quote(table.name)} WHERE "tg:merge" > {number})'
        return (
            f"SELECT {columns} FROM {table.stored} t ANTI JOIN {later} h ON {table.same_key('t', 'h')} "
            f'UNION ALL SELECT {columns} FROM (SELECT *, row_number() OVER (PARTITION BY {keys} ORDER BY "tg:merge") '
            f'AS "tg:place" FROM {later} l) WHERE "tg:place" = 1 AND NOT "tg:absent"'
        )

    def _drop_views(self, oldest: int) -> None:
        with self._copying:
            for number, name in [entry for entry in self._as_of if entry[0] < oldest]:
                self.system.execute(f"DROP VIEW IF EXISTS {AS_OF}.{quote(f'{name}@{number}')}")
                self._as_of.discard((number, name))
