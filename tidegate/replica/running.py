"""Running queries: opened, stepped and closed on worker threads, stopped when their time is up.

DuckDB releases the interpreter while it works, so the event loop stays free. Stopping a query is a request: DuckDB
checks for it from time to time, and some work never does. A query that still runs long after that is reported as
overdue, and the supervisor in the engine's process ends the replica (see tidegate.replica.supervisor).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.replica.guard import Asker, failed
from tidegate.replica.limits import Limits
from tidegate.replica.mirror import FRONTIER, Mirror
from tidegate.replica.statements import Prepared, Statements, types_of
from tidegate.replica.turns import Turns

BATCH_ROWS = 10_000
LOOK_EVERY_S = 0.1

T = TypeVar("T")


class Query:
    """One running statement, in its own read-only transaction: it sees one merged state, at ``position``."""

    def __init__(
        self,
        mirror: Mirror,
        statements: Statements,
        prepared: Prepared,
        parameters: Sequence[Any] | Mapping[str, Any],
        timeout_s: float,
        row_limit: int,
        wanted: int | None = None,
        as_of: int | None = None,
    ) -> None:
        """``wanted``: at most this many rows; ``row_limit``: more than this many are an error."""
        self._mirror = mirror
        self._statements = statements
        self._prepared = prepared
        self._parameters = parameters
        self._as_of = prepared.as_of if as_of is None else as_of
        self._cursor: duckdb.DuckDBPyConnection | None = None
        self._relation: duckdb.DuckDBPyRelation | None = None
        self._reader: Any = None
        self._row_limit = row_limit
        self._wanted = wanted
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s
        self.user = ""
        self.rows = 0
        self.position = 0
        self.columns: list[str] = []
        self.types: list[str] = []
        self.busy = False
        self.stopped: QueryFailed | None = None
        self.stopped_at = 0.0
        self.ended = False  # its caller is gone
        self.closed = False

    def open(self) -> Query:
        """Bind it: from now on its columns, types and position are known."""
        with _told(self):
            prepared, state = self._prepared, None
            if self._as_of is not None:
                state = self._mirror.state_at(self._as_of)
                prepared = self._statements.at(prepared, state)
            self._cursor = self._mirror.cursor()
            self._cursor.execute("BEGIN TRANSACTION READ ONLY")
            _, self.position, oldest = self._cursor.execute(FRONTIER).fetchall()[0]
            if state is not None:
                if state.number < oldest:  # dropped since it was chosen
                    raise QueryFailed(f"AS OF {self._as_of} is not retained any more", sqlstate="22023")
                self.position = state.position
            self._relation = self._cursor.sql(prepared.sql, params=self._parameters or None)
            if self._relation is None:
                raise QueryRefused("this statement returns no rows", sqlstate="0A000")
            self.columns, self.types = list(self._relation.columns), types_of(self._relation)
        return self

    def schema(self) -> pa.Schema:
        """Begin to execute; the schema of the rows to come."""
        with _told(self):
            assert self._relation is not None
            if self._reader is None:
                self._reader = self._relation.to_arrow_reader(BATCH_ROWS)
            return self._reader.schema

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None after the last."""
        left = None if self._wanted is None else self._wanted - self.rows
        if left is not None and left <= 0:
            return None
        self.schema()
        with _told(self):
            while True:
                try:
                    batch = self._reader.read_next_batch()
                except StopIteration:
                    return None
                if batch.num_rows:
                    break
        batch = batch if left is None else batch.slice(0, left)
        self.rows += batch.num_rows
        if self.rows > self._row_limit:
            raise QueryFailed(
                f"the answer has more than {self._row_limit:,} rows, which is the limit; ask for fewer (LIMIT, GROUP BY)",
                sqlstate="54000",
            )
        return batch

    def stop(self, error: QueryFailed) -> None:
        """Ask it to stop, from any thread; its next step raises ``error``."""
        if self.stopped is None:
            self.stopped, self.stopped_at = error, time.monotonic()
        self.interrupt()

    def interrupt(self) -> None:
        cursor = self._cursor
        if cursor is not None and self.busy:
            try:
                cursor.interrupt()
            except duckdb.Error:
                pass  # it has ended

    def close(self) -> None:
        """Release its snapshot. Not while one of its steps runs."""
        self.closed = True
        self._reader = self._relation = None
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            try:
                cursor.execute("ROLLBACK")
            except duckdb.Error:
                pass  # DuckDB has rolled back itself
            cursor.close()


class _told:
    """Turns errors of DuckDB and Arrow into ours; after a stop, into the reason for the stop."""

    def __init__(self, query: Query) -> None:
        self._query = query

    def __enter__(self) -> None:
        if self._query.stopped is not None:
            raise self._query.stopped

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None or isinstance(error, (QueryFailed, QueryRefused, StopIteration)):
            return
        if self._query.stopped is not None:
            raise self._query.stopped from None
        if isinstance(error, MemoryError):
            raise QueryFailed("not enough memory in the replica for this query", sqlstate="53200") from None
        if isinstance(
            error, (duckdb.Error, OSError, pa.ArrowException, ValueError, TypeError, OverflowError, RuntimeError)
        ):
            raise failed(error) from None


class Work:
    """Runs the steps of queries on a bounded number of threads, and watches the clock for them."""

    def __init__(self, mirror: Mirror, statements: Statements, limits: Limits) -> None:
        self.mirror = mirror
        self._limits = limits
        self.statements = statements
        self._threads = ThreadPoolExecutor(limits.running, thread_name_prefix="query")
        self._turns = Turns(limits.running)
        self._queries: set[Query] = set()
        self._preparing: dict[object, float] = {}  # when each began

    def query(
        self,
        asker: Asker,
        prepared: Prepared,
        parameters: Sequence[Any] | Mapping[str, Any] = (),
        *,
        timeout_s: float | None = None,
        row_limit: int | None = None,
        as_of: int | None = None,
    ) -> Query:
        """A query to open; its time runs from now. It can be given less time than allowed, never more; ``row_limit``:
        at most this many rows.
        """
        timeout_s = self._limits.timeout_s if timeout_s is None else min(timeout_s, self._limits.timeout_s)
        rows = self._limits.rows
        query = Query(self.mirror, self.statements, prepared, parameters, timeout_s, rows, row_limit, as_of)
        query.user = asker.user
        self._queries.add(query)
        return query

    async def prepare(self, asker: Asker, sql: str, postgres: bool = False) -> Prepared:
        """A statement, read and checked, that ``asker`` may run; ``postgres``: in PostgreSQL's SQL."""
        prepared = await self.apart(asker, lambda: self.statements.prepare(sql, postgres))
        asker.check(prepared.reading)
        return prepared

    async def apart(self, asker: Asker, function: Callable[[], T]) -> T:
        """Read something on a worker: texts can take a while, and the event loop is shared."""
        await self._turns.take(asker.user)
        mark = object()
        self._preparing[mark] = time.monotonic()
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        future.add_done_callback(lambda done: self._read(asker, mark, done))
        return await asyncio.shield(future)

    def _read(self, asker: Asker, mark: object, done: asyncio.Future[Any]) -> None:
        del self._preparing[mark]
        self._turns.give_back(asker.user)
        if not done.cancelled():
            done.exception()  # retrieved: the waiter may be gone

    async def step(self, query: Query, function: Callable[[], T]) -> T:
        """Run one step of a query on a worker. A caller that is cancelled leaves a stopped query behind."""
        await self._turns.take(query.user)
        if query.closed or query.stopped is not None:
            self._turns.give_back(query.user)
            raise query.stopped or QueryFailed("the query has ended", sqlstate="57014")
        query.busy = True
        future = asyncio.get_running_loop().run_in_executor(self._threads, function)
        future.add_done_callback(lambda done: self._stepped(query, done))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            query.stop(QueryFailed("the client has gone", sqlstate="57014"))
            raise

    def _stepped(self, query: Query, done: asyncio.Future[Any]) -> None:
        query.busy = False
        self._turns.give_back(query.user)
        if not done.cancelled():
            done.exception()  # retrieved: the waiter is gone
        if query.ended:
            self._queries.discard(query)
            query.close()

    def end(self, query: Query) -> None:
        """Finish it, at once or as soon as its step is over."""
        query.ended = True
        if query.busy:
            query.stop(QueryFailed("the query was closed", sqlstate="57014"))
        else:
            self._queries.discard(query)
            query.close()

    @property
    def running(self) -> int:
        return sum(query.busy for query in self._queries)

    def overdue_s(self) -> float:
        """How long the worst query has kept running after it was told to stop."""
        now = time.monotonic()
        stopped = [now - q.stopped_at for q in self._queries if q.busy and q.stopped is not None]
        reading = [now - began - self._limits.timeout_s for began in self._preparing.values()]
        return max([*stopped, *reading], default=0.0)

    async def watch(self) -> None:
        """Stop what is out of time, repeatedly: a request made between two steps of DuckDB is lost."""
        while True:
            now = time.monotonic()
            for query in list(self._queries):
                if now > query.deadline and query.stopped is None:
                    query.stop(timed_out(query.timeout_s))
                    if not query.busy:
                        query.close()
                elif query.stopped is not None and query.busy:
                    query.interrupt()
            await asyncio.sleep(LOOK_EVERY_S)


def timed_out(limit_s: float) -> QueryFailed:
    return QueryFailed(
        f"the query took too long (at most {limit_s:g} s, the time to fetch its rows included) and was stopped",
        sqlstate="57014",
    )
