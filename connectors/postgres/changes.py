"""Changes of PostgreSQL tables as a source, by logical decoding: every committed change once, in commit order.

    pg_logical_slot_peek_binary_changes ─▶ our log has rows and LSN ─▶ pg_replication_slot_advance

Peeking leaves the slot where it is; it is advanced only after the rows are on disk here. After a crash of either side
in between, the same transactions are shown again, and those that end at or before the offset are skipped.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from tidegate.connectors.postgres.pgoutput import UNCHANGED, Change, Commit, Decoder
from tidegate.connectors.shared.families import PRINTED, postgres_told
from tidegate.connectors.shared.reading import UNREADABLE, RowReader, from_text, reason
from tidegate.connectors.sql.address import connect_source, shown_database
from tidegate.errors import SourceError
from tidegate.outside.sources import Checked, Malformed, Polled
from tidegate.storage.schema import Relation, Row

LOOK_S = 0.1
COLUMNS = """SELECT attname, typname FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid
             WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"""
PUBLISHED = """SELECT 1 FROM pg_publication_tables WHERE pubname = :publication
               AND format('%I.%I', schemaname, tablename)::regclass = to_regclass(:table)"""
MAY_REPLICATE = """SELECT bool_or(rolreplication OR rolsuper OR rolname = 'rds_replication') FROM pg_roles
                   WHERE rolname = current_user OR (rolname = 'rds_replication' AND pg_has_role(oid, 'MEMBER'))"""
MAY_PUBLISH = """SELECT has_database_privilege(current_database(), 'CREATE') AND pg_has_role(relowner, 'USAGE')
                 FROM pg_class WHERE oid = to_regclass(:table)"""
FREE_SLOT = "SELECT count(*) < current_setting('max_replication_slots')::int FROM pg_replication_slots"
PRINT = """SELECT set_config('intervalstyle', 'iso_8601', true), set_config('datestyle', 'ISO', true),
           set_config('bytea_output', 'hex', true)"""  # formats we can read; set until the end of the transaction
PEEK = """SELECT data FROM pg_logical_slot_peek_binary_changes(:slot, NULL, :limit,
          'proto_version', '1', 'publication_names', :publication)"""


class PostgresChanges:
    """Inserts, updates and deletes of ``table`` in the PostgreSQL database at ``url``.

    The stream has a column ``op`` (another name: ``op=``), which is ``insert``, ``update`` or ``delete``, and columns
    of the table: after an insert or update the row, before a delete its key (the whole row with REPLICA IDENTITY FULL;
    the rest is NULL). A transaction is never divided between batches. It begins with the first change after ``slot``
    was created; slot and publication are created when missing, which takes ``wal_level = logical`` and a role that may
    replicate. A slot that nobody reads keeps the server's log from being removed: :meth:`drop` it when you are done.
    """

    def __init__(
        self,
        url: str | sa.URL | sa.Engine,
        table: str,
        *,
        slot: str,
        publication: str | None = None,
        op: str = "op",
        fields: Mapping[str, str] | None = None,
        ignore_unknown: bool = False,
    ) -> None:
        self._database = connect_source(url)
        if self._database.dialect.name != "postgresql":
            raise SourceError(f"PostgresChanges reads PostgreSQL, got {self._database.url.drivername}", fatal=True)
        self._shown = shown_database(self._database.url)
        self._table = table
        self._slot = slot
        self._publication = publication or slot
        self._op = op
        self._fields = dict(fields or {})
        self._ignore = ignore_unknown
        self._at = 0
        self.finished = False

    @property
    def lag(self) -> int | None:
        """Bytes of the server's log between the offset and its end."""
        sql = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
        try:
            with self._database.connect() as connection:
                return max(0, int(connection.scalar(sa.text(sql)) or 0) - self._at)
        except SQLAlchemyError:
            return None

    # ---- getting ready

    def check(self, name: str, relation: Relation, offset: Any) -> Checked:
        """Looks at table, slot, publication and our permissions; creates nothing."""
        self._prepare(name, relation)
        try:
            self._check_table(relation)
            slot = self._slot_there(offset)
            publication = self._publication_there()
            self._check_rights(slot, publication)
            self._at = self._confirmed() if offset is None else _lsn(offset)
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error
        slot_told, publication_told = ("exists" if there else "will be created" for there in (slot, publication))
        told = f"slot {self._slot} {slot_told}, publication {self._publication} {publication_told}"
        return Checked(told, self.lag if slot else 0)

    def open(self, name: str, relation: Relation, offset: Any) -> None:
        self._prepare(name, relation)
        try:
            self._check_table(relation)
            self._make_missing(offset)
            self._at = self._confirmed() if offset is None else _lsn(offset)
            if offset is not None:
                self._advance(offset)
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error

    def _prepare(self, name: str, relation: Relation) -> None:
        self._name = name
        self._reader = RowReader(relation, {**self._fields, self._op: self._op} if self._fields else None)
        if self._op not in relation.index_of:
            raise SourceError(
                f"stream {relation.name} has no column {self._op!r} for the kind of change; add '{self._op} VARCHAR', or name "
                f"another with op=",
                source=name,
                fatal=True,
            )
        self._columns = {self._reader.field_of[c.name]: c for c in relation.columns if c.name != self._op}

    def _check_table(self, relation: Relation) -> None:
        with self._database.connect() as connection:
            level = connection.scalar(sa.text("SHOW wal_level"))
            if level != "logical":
                raise SourceError(
                    f"{self._shown} runs with wal_level = {level}; capturing changes needs wal_level = logical and a restart",
                    source=self._name,
                    fatal=True,
                )
            found = dict(tuple(row) for row in connection.execute(sa.text(COLUMNS), {"table": self._table}))
        if not found:
            raise SourceError(f"there is no table {self._table} in {self._shown}", source=self._name, fatal=True)
        missing = [field for field in self._columns if field not in found]
        unknown = [] if self._ignore else [field for field in found if field not in self._columns]
        if missing or unknown:
            raise SourceError(
                f"table {self._table} ({', '.join(found)}) in {self._shown} does not fit stream {relation.name} "
                f"({', '.join(relation.column_names)}): "
                + " and ".join(
                    [f"the table has no {', '.join(missing)}"] * bool(missing)
                    + [f"the stream has no {', '.join(unknown)} (ignore_unknown=True leaves them out)"] * bool(unknown)
                ),
                source=self._name,
                fatal=True,
            )

        types = {field: postgres_told(name) for field, name in found.items()}
        self._reader.check_types(types, f"table {self._table} in {self._shown}", PRINTED)

    def _make_missing(self, offset: Any) -> None:
        """The publication first: a slot shows nothing that was committed before its publication existed."""
        there = self._slot_there(offset)
        if not self._publication_there():
            quoted = self._database.dialect.identifier_preparer.quote_identifier(self._publication)
            with self._database.begin() as connection:
                table = connection.scalar(sa.text("SELECT to_regclass(:table)::text"), {"table": self._table})
                connection.execute(sa.text(f"CREATE PUBLICATION {quoted} FOR TABLE {table}"))
        if not there:
            with self._database.begin() as connection:
                make = "SELECT pg_create_logical_replication_slot(:name, 'pgoutput')"
                connection.execute(sa.text(make), {"name": self._slot})

    def _slot_there(self, offset: Any) -> bool:
        """If a slot that we have read from is gone, changes are lost: a new one would begin after them."""
        plugin = self._asked("SELECT plugin FROM pg_replication_slots WHERE slot_name = :slot")
        if plugin is None and offset is not None:
            raise SourceError(
                f"slot {self._slot} in {self._shown} is gone (dropped, or lost with a restored server), and with it "
                f"the changes after {offset}. Ingest under a new name to begin with the next change, and load what "
                "is missing with SqlSource",
                source=self._name,
                fatal=True,
            )
        if plugin not in (None, "pgoutput"):
            raise SourceError(f"slot {self._slot} has the plugin {plugin}, not pgoutput; name another", fatal=True)
        return plugin is not None

    def _publication_there(self) -> bool:
        """A publication that exists without our table would show nothing of it."""
        there = self._asked("SELECT 1 FROM pg_publication WHERE pubname = :publication") is not None
        if there and not self._asked(PUBLISHED):
            raise SourceError(
                f"publication {self._publication} in {self._shown} exists, but without table {self._table}. ALTER "
                f"PUBLICATION {self._publication} ADD TABLE {self._table}, or name another with publication=",
                source=self._name,
                fatal=True,
            )
        return there

    def _check_rights(self, slot: bool, publication: bool) -> None:
        """What opening needs: permission to read from slots, and to create what is missing."""
        told = [] if self._asked(MAY_REPLICATE) else ["read from a slot (ALTER ROLE … REPLICATION)"]
        if not slot and not self._asked(FREE_SLOT):
            told += ["create a slot: all max_replication_slots are in use"]
        if not publication and not self._asked(MAY_PUBLISH):
            told += ["create a publication (owner of the table, CREATE on the database); have it created"]
        if told:
            raise SourceError(f"in {self._shown} we may not {' or '.join(told)}", source=self._name, fatal=True)

    def _asked(self, sql: str) -> Any:
        given = {"slot": self._slot, "publication": self._publication, "table": self._table}
        with self._database.connect() as connection:
            return connection.scalar(sa.text(sql), {name: value for name, value in given.items() if f":{name}" in sql})

    def _confirmed(self) -> int:
        """Where the slot stands; nothing before it is shown."""
        at = self._asked("SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = :slot")
        return 0 if at is None else _lsn(str(at))

    # ---- reading

    def poll(self, limit: int, timeout_s: float) -> Polled | None:
        ends = time.monotonic() + timeout_s
        while True:
            polled = self._next(limit)
            if polled is not None or time.monotonic() >= ends:
                return polled
            time.sleep(min(LOOK_S, max(0.0, ends - time.monotonic())))

    def _next(self, limit: int) -> Polled | None:
        """The changes of whole transactions: PostgreSQL looks at the limit only where one ends."""
        given = {"slot": self._slot, "limit": limit, "publication": self._publication}
        try:
            with self._database.begin() as connection:
                connection.execute(sa.text(PRINT))
                messages = connection.scalars(sa.text(PEEK), given).all()
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error
        decoder = Decoder()
        rows: list[Row] = []
        malformed: list[Malformed] = []
        places: list[str] = []
        current: list[Change] = []
        end = self._at
        for message in messages:
            found = decoder.decode(bytes(message))
            if isinstance(found, Change):
                current.append(found)
            elif isinstance(found, Commit):
                if found.end > self._at:
                    self._take(current, found.end, rows, malformed, places)
                    end = found.end
                current = []
        if end == self._at:
            if messages:
                self.committed(_text(end))  # nothing new: the slot had gone back
            return None
        self._at = end
        return Polled(rows, _text(end), malformed, places.__getitem__)

    def _take(
        self, changes: list[Change], end: int, rows: list[Row], malformed: list[Malformed], places: list[str]
    ) -> None:
        for number, change in enumerate(changes):
            place = f"{_text(end)} change {number}"
            if f"{change.table.schema}.{change.table.name}" != self._full_name(change.table.schema):
                continue  # a different table of the publication
            try:
                rows.append(self._row(change))
                places.append(place)
            except UNREADABLE as error:
                malformed.append(Malformed(place, repr((change.operation, change.values)), reason(error)))

    def _full_name(self, schema: str) -> str:
        return self._table if "." in self._table else f"{schema}.{self._table}"

    def _row(self, change: Change) -> Row:
        record: dict[str, Any] = {self._op: change.operation}
        for field, value in change.values.items():
            if value is UNCHANGED:
                raise ValueError(
                    f"{field} is a large value that did not change, so PostgreSQL did not send it; ALTER TABLE "
                    f"{self._table} REPLICA IDENTITY FULL"
                )
            if field in self._columns:
                record[field] = from_text(self._columns[field], value)
        return self._reader.row(record)

    # ---- letting the server discard its log

    def committed(self, offset: Any) -> None:
        try:
            self._advance(offset)
        except SQLAlchemyError as error:
            raise self._unreadable(error) from error

    def _advance(self, offset: str) -> None:
        behind = "SELECT confirmed_flush_lsn < CAST(:at AS pg_lsn) FROM pg_replication_slots WHERE slot_name = :slot"
        with self._database.begin() as connection:
            if connection.scalar(sa.text(behind), {"at": offset, "slot": self._slot}):
                advance = "SELECT pg_replication_slot_advance(:slot, CAST(:at AS pg_lsn))"
                connection.execute(sa.text(advance), {"at": offset, "slot": self._slot})

    def drop(self) -> None:
        """Close, and remove slot and publication: otherwise the server keeps its log for them."""
        quote = self._database.dialect.identifier_preparer.quote_identifier
        with self._database.begin() as connection:
            connection.execute(sa.text("SELECT pg_drop_replication_slot(:slot)"), {"slot": self._slot})
            connection.execute(sa.text(f"DROP PUBLICATION IF EXISTS {quote(self._publication)}"))
        self.close()

    def _unreadable(self, error: SQLAlchemyError) -> SourceError:
        why = " ".join(str(getattr(error, "orig", None) or error).split()).rstrip(".")
        return SourceError(
            f"can't read changes of {self._table} from {self._shown}: {why}. Check the address, that the server is up, and that "
            "our role may replicate",
            source=self._name,
        )

    def close(self) -> None:
        self._database.dispose()


def _lsn(text: str) -> int:
    high, low = text.split("/")
    return (int(high, 16) << 32) + int(low, 16)


def _text(lsn: int) -> str:
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
