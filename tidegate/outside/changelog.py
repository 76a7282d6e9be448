"""Changelogs: the committed changes of a table as an output stream, and an engine rebuilt from them.

``app.table(…, changelog=True)`` declares the stream ``<table>_changes``. Every execution that changes the table adds a batch to
it, with a row for each row of the table that has changed:

========= =====================================================================================
row_key   the primary key, as a JSON list
before    the row as it was, as a JSON object; NULL for a new one
after     the row as it is now; NULL for a deleted one
position  of the execution: ascending for every row, and the batch-id
========= =====================================================================================

The batches of a partitioned table have the partition as their key (one batch for each partition that was changed), those
of other tables have none. Executions that change the same partition commit in position order, so batch-ids ascend for every
key, as on any stream. The rows of a batch are in key order: a changelog is the same in every run and after every crash.

Nothing is computed while the stream has no follower.

A durable subscription begins with a *snapshot*: the rows that the table holds, as changes from nothing, at the position
of a call that is ordered like any other. What committed before it is in the snapshot, what commits after it follows,
whatever runs in parallel and after every crash; so a subscription has everything needed to rebuild the table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tidegate.dataflows.app import App
from tidegate.dataflows.changelogs import RESTORE
from tidegate.errors import DataError, TidegateError
from tidegate.storage.database import Database
from tidegate.storage.expiry import ExpiringReader
from tidegate.storage.migration import constant_default
from tidegate.storage.schema import Column, Key, Relation, Row, TableSchema
from tidegate.storage.versions import VersionedTable
from tidegate.streams.batch import Batch
from tidegate.wire import RowWire, encode

if TYPE_CHECKING:
    from tidegate.txn.transaction import Transaction

ROWS_AT_ONCE = 1_000  # of a rebuild: one call


class Changelog:
    """Turns what an execution wrote into batches of changes."""

    def __init__(self, table: VersionedTable, relation: Relation) -> None:
        self.stream = relation.name
        self._table = table
        self._relation = relation
        self._wire = RowWire(table.schema)

    def batches(self, txn: Transaction, writes: Mapping[Key, Row | None]) -> list[Batch]:
        """What the transaction changes; called before its writes are committed."""
        schema, position = self._table.schema, txn.position
        parts: dict[Any, list[Row]] = {}
        for key in sorted(writes):
            before, after = self._table.read(key, position), writes[key]
            if before != after:
                parts.setdefault(_partition(schema, key), []).append(
                    self._relation.row(key_text(schema, key), self._told(before), self._told(after), position)
                )
        return [Batch(self._relation, position, tuple(rows), part) for part, rows in parts.items()]

    def snapshot(self, view: Transaction) -> list[Batch]:
        """All rows that ``view`` reaches, as changes from nothing at its position. With those that are due: their removal
        will be a change.
        """
        schema = self._table.schema
        reader = view.access[schema.name]
        reader = reader.inner if isinstance(reader, ExpiringReader) else reader
        parts: dict[Any, list[Row]] = {}
        for row in view.visible(reader, sorted(reader.inside(view, view.database.all_keys(self._table)))):
            key = schema.key_of(row)
            parts.setdefault(_partition(schema, key), []).append(
                self._relation.row(key_text(schema, key), None, self._told(row), view.position)
            )
        return [Batch(self._relation, view.position, tuple(rows), part) for part, rows in parts.items()]

    def _told(self, row: Row | None) -> str | None:
        return None if row is None else encode(self._wire.write((row,))[0]).decode()


class ViewChangelog(Changelog):
    """Turns what an execution changed in the state of a materialized view into rows of the view, each with a weight: how many
    there are more (or, negative, fewer) than before.
    """

    def batches(self, txn: Transaction, writes: Mapping[Key, Row | None]) -> list[Batch]:
        return self.snapshot(txn)

    def snapshot(self, view: Transaction) -> list[Batch]:
        """What the transaction found before it committed: its changes, or all rows for the call that begins a subscription."""
        rows = self._relation.conform_all(
            [(*row, weight, view.position) for row, weight in view.view_changes[self._table.name]]
        )
        return [Batch(self._relation, view.position, rows)] if rows else []


def _partition(schema: TableSchema, key: Key) -> Any:
    if not schema.partition_by:
        return None
    found = schema.partition_of(key)
    return found[0] if len(found) == 1 else found


def key_text(schema: TableSchema, key: Key) -> str:
    """A primary key as the changelog has it."""
    return encode([key] if len(schema.primary_key) == 1 else list(key)).decode()


def changelogs(app: App, database: Database) -> dict[str, Changelog]:
    """The changelogs of an engine, by table."""
    found: dict[str, Changelog] = {}
    for stream in app.streams.values():
        table = stream.changelog_of
        if table in app.view_changes:
            found[table] = ViewChangelog(database.tables[table], stream.relation)
        elif table is not None:
            found[table] = Changelog(database.tables[table], stream.relation)
    return found


# ---- rebuilding


def rebuild(
    app: App,
    directory: str | Path,
    changes: Mapping[str, Iterable[tuple[str, str | None]]],
    *,
    progress: Callable[[str, int], None] = lambda table, rows: None,
) -> dict[str, int]:
    """Fill the tables of a new engine in ``directory`` from their changelogs; returns the number of rows of each.

    ``changes``: for every table ``(row_key, after)`` in the order of the changelog; the last one of a key counts, so a
    compacted topic is enough. The rows go through the log, like any work. What is not in tables is not in their
    changelogs: windows, positions of sources and waiting batches start empty.
    """
    import tidegate

    for table in changes:
        if table not in app.tables or not any(s.changelog_of == table for s in app.streams.values()):
            known = [s.changelog_of for s in app.streams.values() if s.changelog_of]
            raise TidegateError(
                f"rebuild: {table!r} is not a table with a changelog; those are {', '.join(map(str, known))}"
            )
    with tidegate.open(app, directory) as engine:
        if engine.sequence:
            raise TidegateError(f"{directory} holds an engine that already has data; rebuild into a new directory")
        counts = {}
        for table, found in changes.items():
            rows = [row for row in dict(found).values() if row is not None]  # the last one of a key
            counts[table] = len(rows)
            for start in range(0, len(rows), ROWS_AT_ONCE):
                engine.call(RESTORE, table, _read(app, table, rows[start : start + ROWS_AT_ONCE]))
                progress(table, min(start + ROWS_AT_ONCE, len(rows)))
    return counts


class _Former:
    """A row that has not changed since a column was added has its default, as in the engine that it comes from."""

    def __init__(self, app: App) -> None:
        self._app = app

    def default(self, column: Column) -> Any:
        return constant_default(column, self._app.scratch)


def _read(app: App, table: str, rows: list[str]) -> list[list[Any]]:
    schema, former = app.tables[table], _Former(app)
    try:
        found = RowWire(schema).read(msgspec.json.decode(row) for row in rows)
        return [list(schema.conform(row, former)) for row in found]
    except (msgspec.DecodeError, DataError, ValueError) as error:
        raise TidegateError(f"the changelog does not fit table {table}: {error}") from None


def changes_in_files(directory: str | Path) -> Iterator[tuple[str, str | None]]:
    """The changes that :class:`~tidegate.connectors.files.sink.FileSink` wrote as NDJSON, for :func:`rebuild`.

    Every change must begin where the one before it ended: missing files are an error, not a wrong table.
    """
    rows = []
    for path in sorted(Path(directory).rglob("*.ndjson")):
        for number, line in enumerate(path.read_bytes().splitlines(), 1):
            try:
                found = msgspec.json.decode(line)
                rows.append((found["position"], found["row_key"], found["before"], found["after"], path))
            except (msgspec.DecodeError, KeyError, TypeError):
                raise TidegateError(f"{path}, line {number}, is not a table change: {line[:80]!r}") from None
    if not rows:
        raise TidegateError(
            f"{directory} holds no changes: no *.ndjson files, as a FileSink writes them for a changelog"
        )
    rows.sort(key=lambda row: row[0])
    return _checked(rows)


def _continues(known: str | None, before: str) -> bool:
    """Is it the same row? In a table that has changed since, it may have other columns, and wider numbers."""
    if known is None or known == before:
        return known is not None
    was, now = msgspec.json.decode(known), msgspec.json.decode(before)
    return all(_equal(was[name], now[name]) for name in was.keys() & now.keys())


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other or (type(one) is type(other) is str and Decimal(one) == Decimal(other)))
    except InvalidOperation:
        return False


def _checked(rows: Iterable[tuple[int, str, str | None, str | None, Path]]) -> Iterator[tuple[str, str | None]]:
    known: dict[str, str | None] = {}
    for position, key, before, after, path in rows:
        if before is not None and not _continues(known.get(key), before):
            raise TidegateError(
                f"the changelog has a gap: at position {position} the row {key} changes from {before}, which no "
                f"change before it says ({path}). Files are missing, or its delivery began with snapshot=False. "
                "Deliver it again, under another name and into an empty directory: it then begins with all rows"
            )
        known[key] = after
        yield key, after
