"""The engine's side of the feed: sends every merge as Arrow, and the whole base first or after falling behind."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.engine.system_views import VIEWS
from tidegate.replica.frames import Kind, pack, to_ipc
from tidegate.storage.arrow import arrow_table

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine
    from tidegate.storage.schema import TableSchema
    from tidegate.storage.writing import Delta

log = logging.getLogger("tidegate.replica")

PENDING_ROWS = 1_000_000  # with more than this unsent, the whole base is sent instead
FRAME_ROWS = 50_000
SYSTEM = "tidegate_"  # internal names of the relations of system views


class _Merged(NamedTuple):
    deltas: Mapping[TableSchema, Delta]
    position: int
    rows: int


class Feed:
    """Listens to merges while it is attached, and turns them into frames on request.

    Listening costs the merge an append to a queue: the changes are already Arrow. The sender packs the frames. When it
    can't keep up, the queue is dropped and the next frames are a copy of the whole base: memory is bounded, and a copy
    is always right.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._pending: deque[_Merged] = deque()
        self._rows = 0
        self._stale = True  # the replica needs a full copy
        self._number = 0
        self.news = threading.Condition()
        self.position = 0  # of the last merge received

    def attach(self) -> None:
        """Receive every merge from now on."""
        self._engine.merger.in_background()
        self._engine.database.merge_listeners.append(self._merged)

    def hasten(self, refresh_s: float) -> int:
        """There are queries: merge at least every ``refresh_s`` seconds. Returns the position that is new enough."""
        try:
            self._engine.merger.merge_if_older(refresh_s)
            self._engine.merger.in_background(refresh_s)
        except Exception:  # a full disk, or the engine is closing: the workload gets the error
            log.debug("no merge for the query replica", exc_info=True)
        return self.position

    def rest(self) -> None:
        """There are no queries: merges at the replica's pace are not needed."""
        self._engine.merger.in_background()

    def detach(self) -> None:
        listeners = self._engine.database.merge_listeners
        if self._merged in listeners:
            listeners.remove(self._merged)
            self.rest()
        with self.news:
            self.news.notify_all()

    def start_over(self) -> None:
        """A new replica: it has no data and no queries yet."""
        self.rest()
        with self.news:
            self._stale = True
            self.news.notify_all()

    def _merged(self, deltas: Mapping[TableSchema, Delta], facts: Mapping[str, Any]) -> None:
        rows = sum(part.num_rows for delta in deltas.values() for part in delta if part is not None)
        with self.news:
            self.position = int(facts.get("sequence", 0))
            if self._stale:
                return
            self._pending.append(_Merged(deltas, self.position, rows))
            self._rows += rows
            if self._rows > PENDING_ROWS:
                self._stale = True
                self._pending.clear()
            self.news.notify_all()

    def has_news(self) -> bool:
        """Something waits to be sent. The caller holds ``news``."""
        return self._stale or bool(self._pending)

    def frames(self) -> Iterator[bytes]:
        """What to send now: merges, or a full copy."""
        with self.news:
            stale = self._stale
            merged = None if stale or not self._pending else self._pending.popleft()
            if merged is not None:
                self._rows -= merged.rows
        if stale:
            yield from self._whole()
        elif merged is not None:
            yield from self._delta(merged)

    def _whole(self) -> Iterator[bytes]:
        """The base as it is, in one piece: no merge runs meanwhile. Work continues, and is merged later."""
        database = self._engine.database
        with self._engine.merger.paused():
            with self.news:
                self._stale = False
                self._pending.clear()
                self._rows = 0
                self._number += 1
                self.position = database.base.sequence()
            yield pack(Kind.BEGIN, {"number": self._number, "position": self.position, "fresh": True})
            for table in database.tables.values():
                for batch in database.base.batches(table.schema):
                    yield pack(Kind.INSERT, {"table": table.name}, to_ipc(batch))
        yield pack(Kind.PUBLISH)

    def _delta(self, merged: _Merged) -> Iterator[bytes]:
        self._number += 1
        yield pack(Kind.BEGIN, {"number": self._number, "position": merged.position, "fresh": False})
        for schema, delta in merged.deltas.items():
            for kind, part in ((Kind.DELETE, delta.deleted), (Kind.INSERT, delta.inserted)):
                if part is not None:
                    for start in range(0, part.num_rows, FRAME_ROWS):
                        yield pack(kind, {"table": schema.name}, to_ipc(part.slice(start, FRAME_ROWS)))
        yield pack(Kind.PUBLISH)


def described(engine: Engine) -> dict[str, Any]:
    """The tables, the app's views and the system views, as the replica needs to know them."""
    return {
        "tables": [
            {
                "name": schema.name,
                "columns": [[c.name, c.type.sql, c.nullable, c.default] for c in schema.columns],
                "primary_key": list(schema.primary_key),
                "indexes": [[index.name, list(index.columns), index.unique] for index in schema.indexes],
                "expire": None
                if schema.expiry is None
                else [schema.expiry.column, schema.expiry.after // dt.timedelta(microseconds=1)],
            }
            for schema in engine.app.tables.values()
        ],
        "plain": [
            {"name": view.name, "columns": [list(column) for column in view.columns], "sql": view.sql}
            for view in engine.app.views.values()
        ],
        "views": [
            {"name": name.removeprefix(SYSTEM), "columns": [[c.name, c.type.sql] for c in view.relation.columns]}
            for name, view in VIEWS.items()
        ],
    }


def view_frames(engine: Engine, names: list[str], request: int) -> Iterator[bytes]:
    """System views as they are now."""
    taken = []
    with engine.lock:
        if not engine.closed:
            for name in names:
                view = VIEWS[SYSTEM + name]
                taken.append((name, view.relation, [tuple(row) for row in view.rows(engine)]))
    for name, relation, rows in taken:
        yield pack(Kind.VIEW, {"view": name}, to_ipc(arrow_table(relation, rows)))
    yield pack(Kind.VIEWED, {"request": request})
