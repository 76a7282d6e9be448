"""Which rows of tables the rows of a stream will ask for: declared with ``prefetch``, or learned.

Procedures find most rows by a value of their input. When a chunk of a feed has read many rows one by one that were not in
memory, the keys of those are looked for in the columns of the chunk: a column that has most of them names rows of that table,
and from then on they are fetched together, before a chunk runs. It changes when rows are read, never what is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tidegate.dataflows.app import App
from tidegate.storage.database import Database
from tidegate.storage.versions import VersionedTable

ENOUGH = 16  # rows that were read one by one, to learn from
MOST = 0.5  # of the keys are in a column that names them

Plan = list[tuple[str, int]]  # tables, and the column of the stream that names their rows


class Foreknown:
    """What is known of each border stream."""

    def __init__(self, app: App, database: Database) -> None:
        self._database = database
        self.plans = declared(app)
        self._tables = [table for table in database.tables.values() if len(table.schema.primary_key) == 1]

    def fetch(self, stream: str, rows: Iterable[Any]) -> None:
        """Load the table rows that these rows of a border stream name into memory, those of each table together."""
        for table, place in self.plans.get(stream, ()):
            self._database.prefetch(table, {row[place] for row in rows})

    def watch(self, stream: str) -> list[VersionedTable]:
        """A chunk of this stream is about to run: the tables of which it may read cold rows."""
        known = self.plans.get(stream, ())
        watched = [
            table for table in self._tables if not table.complete and all(table.name != name for name, _ in known)
        ]
        for table in watched:
            table.missed = []
        return watched

    def learn(self, stream: str, watched: Sequence[VersionedTable], rows: Sequence[Any]) -> None:
        """The chunk has run: learn from the keys that were missing."""
        for table in watched:
            missed, table.missed = table.missed, None
            if missed is None or len(missed) < ENOUGH:
                continue
            for place in range(len(rows[0])):
                try:
                    values = {row[place] for row in rows}
                except TypeError:  # lists are no keys
                    continue
                if sum(key in values for key in missed) >= MOST * len(missed):
                    self.plans.setdefault(stream, []).append((table.name, place))
                    break


def declared(app: App) -> dict[str, Plan]:
    """For each border stream: the tables whose rows its batches name, and the column that names them."""
    plans: dict[str, Plan] = {}
    for procedure in app.procedures.values():
        for table, column in procedure.prefetch.items():
            for stream in procedure.inputs:
                relation = app.streams[stream].relation
                if column in relation.index_of and app.streams[stream].border:
                    plans.setdefault(stream, []).append((table, relation.index_of[column]))
    return plans
