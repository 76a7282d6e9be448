"""One client's session: the messages after login, in both protocols."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

from tidegate.errors import QueryFailed, QueryRefused, TidegateError
from tidegate.replica import text
from tidegate.replica.freshness import Freshness
from tidegate.replica.guard import Asker
from tidegate.replica.limits import Limits
from tidegate.replica.running import Work
from tidegate.replica.statements import Prepared
from tidegate.replica.system_views import SystemViews
from tidegate.replica.wire import messages as m
from tidegate.replica.wire.commands import Answer, CopyOut, Declare, Fetch, command
from tidegate.replica.wire.parameters import decoded, inferred, typed
from tidegate.replica.wire.portals import Portal, Statement, copied
from tidegate.replica.wire.settings import Settings
from tidegate.replica.wire.types import named

PORTALS = 64  # open at a time: each holds a snapshot
STATEMENTS = 2_000
SHORT = 4_096  # bytes that are read at once; longer messages are read on a worker


class Gone(Exception):
    """The client has disconnected, or does not read."""


class Session:
    """State and message handling of one connection. Everything is read-only, so transactions are a formality."""

    def __init__(
        self,
        asker: Asker,
        writer: asyncio.StreamWriter,
        work: Work,
        views: SystemViews,
        freshness: Freshness,
        settings: Settings,
        limits: Limits,
    ) -> None:
        self._asker = asker
        self._limits = limits
        self._writer = writer
        self._work = work
        self._views = views
        self._freshness = freshness
        self._settings = settings
        self._status = "I"
        self._skipping = False  # after an error, until the client says Sync
        self._statements: dict[str, Statement] = {}
        self._portals: dict[str, Portal] = {}
        self._current: Portal | None = None
        self._handling = False
        self._cancelled: QueryFailed | None = None  # what is being handled
        self._noticed = False  # notices that are sent once per session

    # ---- the loop's side

    async def handle(self, tag: bytes, body: bytes) -> bool:
        """Handle one message; False when the client ends the session."""
        self._handling, self._cancelled = True, None
        try:
            return await self._handled(tag, body)
        finally:
            self._handling = False

    async def _handled(self, tag: bytes, body: bytes) -> bool:
        if tag == b"X":
            return False
        if tag == b"S":
            self._skipping = False
            if self._status == "I":
                self._close_portals("*")
            self._write(m.ready(self._status))
        elif tag == b"Q":
            await self._simple(m.Fields(body).string())
            self._write(m.ready(self._status))
        elif tag in (b"d", b"c", b"f"):
            pass  # copy data after COPY was refused
        elif not self._skipping:
            await self._extended(tag, body)
        await self._flush()
        return True

    async def _extended(self, tag: bytes, body: bytes) -> None:
        handlers = {b"P": self._parse, b"B": self._bind, b"D": self._describe, b"E": self._execute, b"C": self._close}
        if tag == b"H":
            return
        if tag not in handlers:
            raise m.Malformed(f"message {tag!r} is not expected here")
        try:
            await handlers[tag](m.Fields(body))
        except (QueryFailed, QueryRefused) as error:
            self._failed(error)
            self._skipping = True

    def cancel(self, error: QueryFailed) -> None:
        """Stop what runs, or waits for its turn."""
        if self._handling:
            self._cancelled = error
        if self._current is not None and self._current.query is not None:
            self._current.query.stop(error)

    @property
    def at_work(self) -> bool:
        return self._handling

    @property
    def in_block(self) -> bool:
        """Between BEGIN and COMMIT, perhaps with cursors."""
        return self._status != "I"

    def end(self) -> None:
        """Release everything."""
        self._close_portals("*")

    def say(self, data: bytes) -> None:
        self._write(data)

    # ---- the simple protocol

    async def _simple(self, sql: str) -> None:
        try:
            statements = await self._split(sql)
        except (QueryFailed, QueryRefused) as error:
            self._failed(error)
            return
        if not statements:
            self._write(m.EMPTY)
        for statement in statements:
            try:
                await self._one(statement)
            except (QueryFailed, QueryRefused) as error:
                self._failed(error)
                break
            finally:
                self._close_portals("")

    async def _split(self, sql: str) -> list[str]:
        """The statements of a text, if it is not too long to be read."""
        self._work.statements.check_length(sql)
        found = text.split(sql) if len(sql) <= SHORT else await self._work.apart(self._asker, lambda: text.split(sql))
        if len(found) > self._limits.statements:
            raise QueryRefused(
                f"the message has {len(found):,} statements, at most {self._limits.statements:,} are run at once; send them "
                f"in several messages",
                sqlstate="54000",
            )
        return found

    async def _one(self, sql: str) -> None:
        self._refuse_in_failed(sql)
        found = command(sql, self._settings, self._status)
        if found is not None:
            await self._command(found, describe=True)
            return
        portal = await self._begin(Statement(sql, await self._work.prepare(self._asker, sql, postgres=True)), (), ())
        await self._send(portal, None, describe=True)

    def _refuse_in_failed(self, sql: str) -> None:
        if self._status == "E" and text.words(sql, 1)[:1] not in (["rollback"], ["abort"], ["commit"], ["end"]):
            raise QueryFailed("the transaction block has failed: commands are ignored until ROLLBACK", sqlstate="25P02")

    # ---- the extended protocol

    async def _parse(self, fields: m.Fields) -> None:
        name, sql = fields.string(), fields.string()
        given = [fields.uint32() for _ in range(fields.int16())]
        found = await self._split(sql)
        if len(found) > 1:
            raise QueryRefused("one statement at a time in the extended protocol", sqlstate="42601")
        if len(self._statements) >= STATEMENTS:
            raise QueryFailed(f"a session can keep {STATEMENTS} prepared statements; DEALLOCATE some", sqlstate="53400")
        if found:
            self._refuse_in_failed(found[0])
        statement = Statement(found[0] if found else "")
        if found and command(found[0], Settings(), "T") is not None:
            statement.command = True
        elif found:
            known = [0 if oid == 705 else oid for oid in given]  # 705: unknown
            statement.oids, told = await self._work.apart(self._asker, lambda: self._typed(found[0], known))
            statement.prepared = await self._work.prepare(self._asker, told, postgres=True)
        self._statements[name] = statement
        self._write(m.PARSED)

    def _typed(self, sql: str, known: list[int]) -> tuple[list[int], str]:
        """The types of a statement's parameters, and the statement with them; on a worker."""
        oids = inferred(sql, known, self._work.mirror)
        return oids, typed(sql, oids)

    async def _bind(self, fields: m.Fields) -> None:
        name, source = fields.string(), fields.string()
        statement = self._statement(source)
        formats = [fields.int16() for _ in range(fields.int16())]
        raw = []
        for _ in range(fields.int16()):
            size = fields.int32()
            raw.append(None if size < 0 else fields.take(size))
        results = [fields.int16() for _ in range(fields.int16())]
        if len(raw) != len(statement.oids):
            raise QueryFailed(
                f"the statement has {len(statement.oids)} parameters, {len(raw)} were given", sqlstate="08P01"
            )
        if len(formats) not in (0, 1, len(raw)):
            raise m.Malformed("as many parameter formats as parameters, or one, or none")
        binary = [bool(f) for f in (formats * len(raw) if len(formats) == 1 else formats or [0] * len(raw))]
        oids = statement.oids

        def values_of() -> list[Any]:
            return [decoded(d, oid, b) for d, oid, b in zip(raw, oids, binary, strict=True)]

        short = sum(map(len, filter(None, raw))) <= SHORT
        values = values_of() if short else await self._work.apart(self._asker, values_of)
        self._close_portals(name)
        if len(self._portals) >= PORTALS:
            raise QueryFailed(f"a session can have {PORTALS} open portals; close some", sqlstate="53400")
        if statement.prepared is None:
            self._portals[name] = Portal(statement, None, results)
        else:
            self._portals[name] = self._bound(statement, values, results)
        self._write(m.BOUND)

    async def _describe(self, fields: m.Fields) -> None:
        kind, name = fields.take(1), fields.string()
        if kind == b"S":
            statement = self._statement(name)
            self._write(m.parameter_description(statement.oids))
            if statement.prepared is not None and statement.columns is None:
                portal = self._bound(statement, [None] * len(statement.oids), ())
                try:
                    await self._open(portal)
                    assert portal.query is not None
                    statement.columns, statement.types = portal.query.columns, portal.types
                finally:
                    self._end(portal)
            self._say_columns(statement.sql, statement.columns, statement.types, ())
            return
        portal = self._portal(name)
        if portal.query is None:
            self._say_columns(portal.statement.sql, None, (), ())
            return
        await self._open(portal)
        self._write(m.row_description(portal.query.columns, portal.types, portal.binary))

    def _say_columns(
        self, sql: str, columns: Sequence[str] | None, types: Sequence[Any], binary: Sequence[bool]
    ) -> None:
        if columns is None:
            found = command(sql, Settings(), "T") if text.words(sql, 1) == ["show"] else None
            if isinstance(found, Answer) and found.columns:
                columns, types = found.columns, [named("text")] * len(found.columns)
        if columns is None:
            self._write(m.NO_DATA)
        else:
            self._write(m.row_description(columns, types, binary or [False] * len(columns)))

    async def _execute(self, fields: m.Fields) -> None:
        name, limit = fields.string(), fields.int32()
        portal = self._portal(name)
        if portal.query is None:
            if not portal.statement.sql:
                self._write(m.EMPTY)
                return
            self._refuse_in_failed(portal.statement.sql)
            found = command(portal.statement.sql, self._settings, self._status)
            assert found is not None
            await self._command(found, describe=False)
            return
        self._refuse_in_failed(portal.statement.sql)
        await self._open(portal)
        await self._send(portal, limit if limit > 0 else None, describe=False)

    async def _close(self, fields: m.Fields) -> None:
        kind, name = fields.take(1), fields.string()
        if kind == b"S":
            self._statements.pop(name, None)
        else:
            self._close_portals(name)
        self._write(m.CLOSED)

    def _statement(self, name: str) -> Statement:
        if name not in self._statements:
            raise QueryFailed(f'prepared statement "{name}" does not exist', sqlstate="26000")
        return self._statements[name]

    def _portal(self, name: str) -> Portal:
        if name not in self._portals:
            raise QueryFailed(f'portal or cursor "{name}" does not exist', sqlstate="34000")
        return self._portals[name]

    # ---- commands

    async def _command(self, found: Answer | Declare | Fetch | CopyOut, describe: bool) -> None:
        if isinstance(found, Declare):
            self._close_portals(found.name)
            if len(self._portals) >= PORTALS:
                raise QueryFailed(f"a session can have {PORTALS} open cursors; close some", sqlstate="53400")
            prepared = await self._work.prepare(self._asker, found.query, postgres=True)
            portal = await self._begin(Statement(found.query, prepared), (), [1] if found.binary else [])
            self._portals[found.name] = portal
            self._write(m.complete("DECLARE CURSOR"))
        elif isinstance(found, Fetch):
            await self._fetch(found)
        elif isinstance(found, CopyOut):
            await self._copy(found)
        else:
            self._answer(found, describe)

    def _answer(self, answer: Answer, describe: bool) -> None:
        if answer.notice and not self._noticed:
            self._noticed = True
            self._write(m.notice(answer.notice))
        if answer.close is not None:
            self._close_portals(answer.close)
        if answer.forget is not None:
            self._statements = (
                {}
                if answer.forget == "*"
                else {name: s for name, s in self._statements.items() if name != answer.forget}
            )
        if answer.status is not None:
            self._status = answer.status
        if answer.report:
            self._write(m.parameter_status(answer.report, self._settings.show(answer.report)))
        if answer.columns:
            if describe:
                types = [named("text")] * len(answer.columns)
                self._write(m.row_description(answer.columns, types, [False] * len(types)))
            for row in answer.rows:
                data = b"".join(len(v.encode()).to_bytes(4, "big") + v.encode() for v in row)
                self._write(m.message(b"D", len(row).to_bytes(2, "big") + data))
        self._write(m.complete(answer.tag))

    async def _fetch(self, fetch: Fetch) -> None:
        portal = self._portal(fetch.name)
        if portal.query is None:
            raise QueryFailed(f'"{fetch.name}" has no rows to fetch', sqlstate="34000")
        await self._open(portal)
        verb = "MOVE" if fetch.move else "FETCH"
        if not fetch.move:
            self._write(m.row_description(portal.query.columns, portal.types, portal.binary))
        self._write(m.complete(f"{verb} {await self._rows(portal, fetch.count, silent=fetch.move)}"))

    async def _copy(self, copy: CopyOut) -> None:
        portal = await self._begin(
            Statement(copy.query, await self._work.prepare(self._asker, copy.query, postgres=True)), (), ()
        )
        try:
            assert portal.query is not None
            self._write(m.copy_out(len(portal.types)))
            if copy.header:
                self._write(m.copy_data(copied([portal.query.columns], copy).encode()))
            count = 0
            while True:
                data, rows = await self._step(portal, lambda: portal.take_copied(copy))
                if not rows:
                    break
                count += rows
                self._write(data)
                await self._flush(portal)
            self._write(m.COPY_DONE + m.complete(f"COPY {count}"))
        finally:
            self._end(portal)

    # ---- queries

    def _bound(self, statement: Statement, values: Sequence[Any], formats: Sequence[int]) -> Portal:
        assert isinstance(statement.prepared, Prepared)
        if self._cancelled is not None:
            raise self._cancelled
        settings = self._settings
        query = self._work.query(
            self._asker,
            statement.prepared,
            list(values),
            timeout_s=settings.timeout_s,
            as_of=statement.prepared.as_of or settings.as_of,
        )
        return Portal(statement, query, formats)

    async def _begin(self, statement: Statement, values: Sequence[Any], formats: Sequence[int]) -> Portal:
        portal = self._bound(statement, values, formats)
        try:
            await self._open(portal)
        except BaseException:
            self._end(portal)
            raise
        return portal

    async def _open(self, portal: Portal) -> None:
        if not portal.opened:
            assert portal.statement.prepared is not None
            await self._freshness.ensure()
            await self._views.refresh(portal.statement.prepared.reading.views)
            await self._step(portal, portal.open)

    async def _step(self, portal: Portal, function: Any) -> Any:
        assert portal.query is not None
        self._current = portal
        try:
            return await self._work.step(portal.query, function)
        finally:
            self._current = None

    async def _send(self, portal: Portal, limit: int | None, describe: bool) -> None:
        assert portal.query is not None
        try:
            if describe:
                self._write(m.row_description(portal.query.columns, portal.types, portal.binary))
            count = await self._rows(portal, limit)
        except BaseException:
            self._end(portal)
            raise
        if limit is not None and count == limit:
            self._write(m.SUSPENDED)
            return
        self._write(m.complete(f"SELECT {count}"))
        if describe:
            self._end(portal)

    async def _rows(self, portal: Portal, limit: int | None, silent: bool = False) -> int:
        """Send rows, at most ``limit``; returns how many."""
        count = 0
        while limit is None or count < limit:
            left = None if limit is None else limit - count
            data, rows = await self._step(portal, lambda left=left: portal.take(left))
            if not rows:
                break
            count += rows
            if not silent:
                self._write(data)
                await self._flush(portal)
        return count

    # ---- endings

    def _end(self, portal: Portal) -> None:
        if portal.query is not None:
            self._work.end(portal.query)

    def _close_portals(self, name: str) -> None:
        names = list(self._portals) if name == "*" else [name] if name in self._portals else []
        for closing in names:
            self._end(self._portals.pop(closing))

    def _failed(self, error: TidegateError) -> None:
        if self._status == "T":
            self._status = "E"
        self._write(m.error(error.message, getattr(error, "sqlstate", "XX000")))

    def _write(self, data: bytes | memoryview) -> None:
        self._writer.write(data)

    async def _flush(self, portal: Portal | None = None) -> None:
        """Wait until the client has received most of what was sent; no longer than the query may last."""
        left = 60.0 if portal is None or portal.query is None else portal.query.deadline - time.monotonic()
        try:
            async with asyncio.timeout(max(left, 0.1)):
                await self._writer.drain()
        except TimeoutError:
            self._writer.transport.abort()
            raise Gone("the client does not read") from None
        except ConnectionError:
            raise Gone("the client has hung up") from None
