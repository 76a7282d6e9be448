"""A SQL database as a sink: exactly once.

The rows of a batch and the mark that it was delivered are written in ONE transaction of the target database:

    lock the sink's row ─▶ read the marks ─▶ insert rows and marks of batches without one ─▶ commit

So the target never holds rows without their mark or a mark without its rows. If we crash, or lose the connection,
before the commit is known, the batches are sent again, and the marks say which of them are there. The lock comes first,
and the marks are read under it: if a process that was thought dead is still committing, we wait for it and then see its
marks. A mark carries a digest of its rows, so that a batch of *another* engine with the same id is an error, not a
repeat.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import (
    DataError,
    IntegrityError,
    NoSuchTableError,
    SQLAlchemyError,
)

from tidegate.connectors.shared.plain import key_text
from tidegate.connectors.sql.address import connect_database, missing_file, shown_database
from tidegate.connectors.sql.fit import misfits
from tidegate.connectors.sql.types import converter, target_type
from tidegate.connectors.sql.upsert import Upserts, check_changelog, missing_key
from tidegate.errors import SinkError, SinkRefused
from tidegate.storage.schema import Relation, TableSchema
from tidegate.streams.batch import Batch
from tidegate.streams.border import digest

SINKS = "tidegate_sinks"
DELIVERED = "tidegate_delivered"


class SqlSink:
    """Inserts the rows of each batch into ``table`` of the database at ``url`` (or of an SQLAlchemy engine).

    The table is created if it is missing; an existing one needs a column for each of the stream's, of a type that
    keeps its values (:mod:`tidegate.connectors.sql.fit`), and may have others that have a default. ``schema``: where
    it is, with the marks beside it. ``at_once``: batches that share a transaction.
    ``history``: keep the mark of every batch. Otherwise marks are deleted once their batch can't be sent again, because
    its acknowledgement is in our log; a restored backup of the engine then stops with an error instead of recognising
    what was delivered after it.
    ``upsert``: the stream is the changelog of this table (``app.tables["stock"]``), and ``table`` is kept like it: rows are
    inserted, updated and deleted by primary key, in PostgreSQL and SQLite.
    """

    transactional = True

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str,
        *,
        schema: str | None = None,
        at_once: int = 100,
        history: bool = False,
        upsert: TableSchema | None = None,
    ) -> None:
        if upsert is not None and not isinstance(upsert, TableSchema):
            raise SinkError(f"upsert is a table of the app, as upsert=app.tables['stock']; got {upsert!r}", sink=table)
        self._upsert = upsert
        self._upserts: Upserts | None = None
        self.name = table
        self.at_once = at_once
        self._table_name = table
        self._schema = schema
        self._history = history
        self._owned = not isinstance(url, sa.Engine)
        self._database = connect_database(url)
        self._shown = shown_database(self._database.url)
        metadata = sa.MetaData(schema=schema)
        self._sinks = sa.Table(
            SINKS,
            metadata,
            sa.Column("sink", sa.Text, primary_key=True),
            sa.Column("stream", sa.Text, nullable=False),
            sa.Column("sends", sa.BigInteger, nullable=False),
        )
        self._marks = sa.Table(
            DELIVERED,
            metadata,
            sa.Column("sink", sa.Text, primary_key=True),
            sa.Column("stream", sa.Text, primary_key=True),
            sa.Column("key", sa.Text, primary_key=True),
            sa.Column("batch_id", sa.BigInteger, primary_key=True, autoincrement=False),
            sa.Column("digest", sa.Text, nullable=False),
        )

    # ---- getting ready

    def open(self, name: str, relation: Relation) -> None:
        """Create what is missing in the target, and check that what exists fits the stream."""
        self.name = name
        written = self._written(relation)
        try:
            self._target = self._find_or_create(written)
            self._check_fit(written, self._target)
            self._marks.metadata.create_all(self._database)
            self._register(relation.name)
        except SQLAlchemyError as error:
            raise self._unusable(relation.name, error) from error
        if self._upsert is not None:
            self._upserts = Upserts(self._upsert, self._target, self._database.dialect.name)
        self._columns: list[tuple[str, Callable[[Any], Any] | None]] = [
            (column.name, converter(column.type, self._target.columns[column.name].type)) for column in written.columns
        ]

    def _written(self, relation: Relation) -> Relation:
        """What is written into the target: the stream's rows, or those of the table whose changelog it is."""
        if self._upsert is None:
            return relation
        check_changelog(relation, self._upsert, self._database.dialect.name, self.name)
        return self._upsert

    def check(self, name: str, relation: Relation) -> str:
        """Would :meth:`open` succeed? Creates and changes nothing; says what it found."""
        self.name = name
        written = self._written(relation)
        if (missing := missing_file(self._database.url)) is not None:
            if not missing.absolute().parent.is_dir():
                raise SinkError(f"can't create {missing}: there is no directory {missing.parent}", sink=name)
            return f"{missing} and table {self._table_name} will be created"
        try:
            target = self._find()
            if sa.inspect(self._database).has_table(SINKS, schema=self._schema):
                with self._database.connect() as connection:
                    self._check_stream(self._registered(connection), relation.name)
        except SQLAlchemyError as error:
            raise self._unusable(relation.name, error) from error
        if target is None:
            return f"table {self._table_name} will be created"
        self._check_fit(written, target)
        return f"table {self._table_name} has its columns"

    def _find(self) -> sa.Table | None:
        try:
            found = sa.Table(self._table_name, sa.MetaData(schema=self._schema), autoload_with=self._database)
        except NoSuchTableError:
            return None
        for column in found.columns:
            if isinstance(column.type, sa.JSON):
                column.type.none_as_null = True
        return found

    def _find_or_create(self, relation: Relation) -> sa.Table:
        found = self._find()
        if found is not None:
            return found
        dialect = self._database.dialect.name
        keys = () if self._upsert is None else self._upsert.primary_key
        columns = [
            sa.Column(
                c.name,
                target_type(c.type, dialect),
                nullable=c.nullable and c.name not in keys,
                primary_key=c.name in keys,
                autoincrement=False,
            )
            for c in relation.columns
        ]
        table = sa.Table(self._table_name, sa.MetaData(schema=self._schema), *columns)
        table.create(self._database, checkfirst=True)
        return table

    def _check_fit(self, relation: Relation, target: sa.Table) -> None:
        """A column for each of the stream's that keeps its values, and a value for each of the target's."""
        told = misfits(relation, target, self._database.dialect)
        if self._upsert is not None and (lack := missing_key(self._upsert, target, self._database)):
            told.append(lack)
        if told:
            raise SinkError(
                f"table {self._table_name} ({', '.join(target.columns.keys())}) in {self._shown} does not fit stream "
                f"{relation.name} ({', '.join(relation.column_names)}): {'; '.join(told)}. Change it (ALTER TABLE) or the "
                "stream, or give SqlSink another table; a table that does not exist is created to fit",
                sink=self.name,
                stream=relation.name,
                misfits=told,
            )

    def _register(self, stream: str) -> None:
        """One row per sink, to lock."""
        with self._database.begin() as connection:
            known = self._registered(connection)
            if known is None:
                connection.execute(self._sinks.insert().values(sink=self.name, stream=stream, sends=0))
        self._check_stream(known, stream)

    def _registered(self, connection: sa.Connection) -> str | None:
        """The stream that was delivered under our name before."""
        found: str | None = connection.scalar(sa.select(self._sinks.c.stream).where(self._sinks.c.sink == self.name))
        return found

    def _check_stream(self, known: str | None, stream: str) -> None:
        if known not in (None, stream):
            raise SinkError(
                f"delivery {self.name!r} has delivered batches of {known} to {self._shown}, not of {stream}; "
                "use another name",
                sink=self.name,
                stream=stream,
            )

    # ---- delivering

    def send(self, batches: Sequence[Batch]) -> None:
        try:
            with self._database.begin() as connection:
                self._deliver(connection, batches)
        except SQLAlchemyError as error:
            raise self._refused(batches[0].stream, error) from error

    def _deliver(self, connection: sa.Connection, batches: Sequence[Batch]) -> None:
        """Everything that makes it exactly once happens here, in one transaction."""
        self._lock(connection)
        marks = self._read_marks(connection, batches)
        fresh = [batch for batch in batches if self._is_fresh(batch, marks[key_text(batch)])]
        if not fresh:
            return
        if self._upserts is not None:
            self._upserts.write(connection, fresh)
        elif rows := [row for batch in fresh for row in self._rows(batch)]:
            connection.execute(self._target.insert(), rows)
        connection.execute(self._marks.insert(), [self._mark(batch) for batch in fresh])
        if not self._history:
            self._forget_acknowledged(connection, batches)

    def _lock(self, connection: sa.Connection) -> None:
        """Writing to the sink's row locks it until the end of the transaction, in every database.

        (``SELECT … FOR UPDATE`` is the same where it exists; SQLite has none, and would let two transactions
        read first.)
        """
        mine = self._sinks.c.sink == self.name
        locked = connection.execute(self._sinks.update().where(mine).values(sends=self._sinks.c.sends + 1))
        if locked.rowcount != 1:
            raise SinkError(
                f"the row of {self.name!r} in {SINKS} of {self._shown} is gone, so it is unknown what was delivered; "
                f"restore it with {DELIVERED}, or close the engine and deliver under a new name",
                sink=self.name,
            )

    def _read_marks(self, connection: sa.Connection, batches: Sequence[Batch]) -> dict[str, dict[int, str]]:
        """What was delivered, as far as it concerns these batches: key → batch-id → digest."""
        marks: dict[str, dict[int, str]] = defaultdict(dict)
        chosen = sa.select(self._marks.c.key, self._marks.c.batch_id, self._marks.c.digest).where(
            self._marks.c.sink == self.name,
            self._marks.c.key.in_(sorted({key_text(batch) for batch in batches})),
            self._marks.c.batch_id >= min(batch.id for batch in batches),
        )
        for key, batch_id, its_digest in connection.execute(chosen):
            marks[key][batch_id] = its_digest
        return marks

    def _is_fresh(self, batch: Batch, marks: dict[int, str]) -> bool:
        """False for a repeat. What is neither new nor a repeat is an error: it would be lost or doubled."""
        known = marks.get(batch.id)
        if known is None and (not marks or batch.id > max(marks)):
            return True
        if known == digest(batch.rows):
            return False
        what = "has other rows than the batch delivered under its id" if known else f"is sent after batch {max(marks)}"
        raise SinkError(
            f"{batch!r} {what} to {self._table_name} in {self._shown}. Another engine delivers under the name "
            f"{self.name!r}, or this one started over or from a backup. Deliver under another name, and check what is "
            "in the table",
            sink=self.name,
            stream=batch.stream,
            batch_id=batch.id,
        )

    def _rows(self, batch: Batch) -> list[dict[str, Any]]:
        return [
            {
                name: value if convert is None or value is None else convert(value)
                for (name, convert), value in zip(self._columns, row, strict=True)
            }
            for row in batch.rows
        ]

    def _mark(self, batch: Batch) -> dict[str, Any]:
        return {
            "sink": self.name,
            "stream": batch.stream,
            "key": key_text(batch),
            "batch_id": batch.id,
            "digest": digest(batch.rows),
        }

    def _forget_acknowledged(self, connection: sa.Connection, batches: Sequence[Batch]) -> None:
        """What came before these batches is acknowledged in our log, so it can't be sent again."""
        first: dict[str, int] = {}
        for batch in batches:
            first.setdefault(key_text(batch), batch.id)
        marks = self._marks.c
        older = (marks.sink == self.name) & (marks.key == sa.bindparam("k")) & (marks.batch_id < sa.bindparam("first"))
        connection.execute(
            self._marks.delete().where(older),
            [{"k": key, "first": batch_id} for key, batch_id in first.items()],
        )

    def _unusable(self, stream: str, error: SQLAlchemyError) -> SinkError:
        return SinkError(
            f"can't deliver {stream} to table {self._table_name} in {self._shown}: {_told(error)}. Check the address, that the "
            "server is up, and our permissions there",
            sink=self.name,
            stream=stream,
        )

    def _refused(self, stream: str, error: SQLAlchemyError) -> SinkError:
        why = _told(error)
        unwanted = isinstance(error, (DataError, IntegrityError)) and not error.connection_invalidated
        return (SinkRefused if unwanted else SinkError)(
            f"{self._shown} did not accept a batch of {stream} for table {self._table_name}: {why}. Check that the "
            "server is up and that the table accepts these rows; the batch is kept and sent again",
            sink=self.name,
            stream=stream,
        )

    def close(self) -> None:
        if self._owned:
            self._database.dispose()


def _told(error: SQLAlchemyError) -> str:
    return " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
