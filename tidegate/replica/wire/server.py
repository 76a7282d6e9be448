"""Connections of PostgreSQL clients: TLS, login, cancel requests; then a session each."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import logging
import secrets
import ssl
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.guard.patience import LONGEST_S, Patience
from tidegate.replica.freshness import Freshness
from tidegate.replica.guard import Asker
from tidegate.replica.limits import Limits
from tidegate.replica.running import Work
from tidegate.replica.system_views import SystemViews
from tidegate.replica.wire import messages as m
from tidegate.replica.wire.scram import Exchange, Refused, Verifier, pretended
from tidegate.replica.wire.session import Gone, Session
from tidegate.replica.wire.settings import REPORTED, Settings

log = logging.getLogger("tidegate.replica")

DATABASE = "tidegate"
ENTERING = 128  # places for connections that have not logged in; when full, the oldest is closed
LONGEST_STARTUP = 10_000
WRITE_AHEAD = 1 << 18  # bytes kept for a client that does not read fast enough
FAREWELL = "57P01"
IDLE = "57P05"


@dataclass
class Guest:
    """One session, and how to reach its client. ``idle_since``: None while it is busy."""

    secret: int
    session: Session
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    idle_since: float | None = None


class PostgresServer:
    """Accepts clients, and keeps their sessions."""

    def __init__(
        self,
        work: Work,
        views: SystemViews,
        freshness: Freshness,
        limits: Limits,
        users: Mapping[str, tuple[Verifier, tuple[str, ...] | None]] | None,
        tls: ssl.SSLContext | None,
    ) -> None:
        """``users``: what is stored of their passwords, and the tables they may read; None: anyone may log in."""
        self._work = work
        self._views = views
        self._freshness = freshness
        self._limits = limits
        self._users = users
        self._tls = tls
        self._longest = limits.statement_bytes + (16 << 20)
        self._sessions: dict[int, Guest] = {}
        self._patience = Patience(min(LONGEST_S, limits.login_s / 3))
        self._numbers = 0

    @property
    def connections(self) -> int:
        """Sessions that are open."""
        return len(self._sessions)

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stays: Callable[[], None]
    ) -> None:
        """One connection, from its first byte to its last. ``stays()``: it has logged in."""
        writer.transport.set_write_buffer_limits(WRITE_AHEAD)
        try:
            async with asyncio.timeout(self._limits.login_s):
                entered = await self._login(reader, writer)
            if entered is not None and not self._has_room():
                told = f"too many connections, at most {self._limits.connections}, and all are busy; try again later"
                writer.write(m.error(told, "53300", "FATAL"))
            elif entered is not None:
                stays()
                await self._session(reader, writer, *entered)
        except m.Malformed as error:
            writer.write(m.error(f"{error}; the connection is closed", "08P01", "FATAL"))
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError, Gone, TimeoutError):
            pass  # the client has gone
        except Exception:
            log.exception("a PostgreSQL session failed")
            writer.write(m.error("internal error; the connection is closed", "XX000", "FATAL"))
        finally:
            writer.close()

    def _has_room(self) -> bool:
        """Is there a place for one more session? If needed, the longest idle one is closed."""
        if self.connections < self._limits.connections:
            return True
        idle = [(g.session.in_block, g.idle_since, n) for n, g in self._sessions.items() if g.idle_since is not None]
        if idle:
            self._show_out(
                min(idle)[2], f"all {self._limits.connections} connections were taken, and this one was idle longest"
            )
        return bool(idle)

    def _show_out(self, number: int, reason: str) -> None:
        guest = self._sessions.pop(number)
        guest.writer.write(m.error(f"{reason}; connect again", IDLE, "FATAL"))
        guest.writer.close()

    # ---- login

    async def _login(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Asker, Settings] | None:
        """Name and settings of a client that may log in; None for one that was rejected or sent a cancel request."""
        secure = False
        while True:
            size = struct.unpack(">i", await reader.readexactly(4))[0]
            if not 8 <= size <= LONGEST_STARTUP:
                raise m.Malformed("not a PostgreSQL client")
            fields = m.Fields(await reader.readexactly(size - 4))
            code = fields.uint32()
            if code == m.SSL and not secure:
                secure = await self._secured(reader, writer)
            elif code == m.GSS:
                writer.write(b"N")
            elif code == m.CANCEL:
                self._cancel(fields.uint32(), fields.uint32())
                return None
            else:
                return await self._started(code, fields, secure, reader, writer)

    async def _secured(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        if self._tls is None:
            writer.write(b"N")
            return False
        if getattr(reader, "_buffer", b""):  # sent before it could be encrypted: a man in the middle
            raise m.Malformed("data before the TLS handshake")
        writer.write(b"S")
        await writer.drain()
        await writer.start_tls(self._tls, ssl_handshake_timeout=self._limits.login_s)
        return True

    async def _started(
        self, code: int, fields: m.Fields, secure: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[Asker, Settings] | None:
        if code >> 16 != 3:
            raise m.Malformed(f"protocol {code >> 16}.{code & 0xFFFF} is not supported here; use 3.0")
        options: dict[str, str] = {}
        while name := fields.string():
            options[name] = fields.string()
        if code & 0xFFFF or any(name.startswith("_pq_.") for name in options):
            unknown = [name for name in options if name.startswith("_pq_.")]
            body = b"".join(name.encode() + b"\0" for name in unknown)
            writer.write(m.message(b"v", struct.pack(">ii", 0, len(unknown)) + body))
        refusal = await self._refusal(options, secure, reader, writer)
        if refusal is not None:
            writer.write(m.error(*refusal, "FATAL"))
            return None
        settings = Settings()
        for name, value in _startup_settings(options):
            if name.lower() == "timezone":
                continue  # drivers announce their own zone, and are told in return that it is UTC here
            try:
                settings.set(name, value)
            except (QueryFailed, QueryRefused) as error:
                writer.write(m.error(error.message, error.sqlstate, "FATAL"))
                return None
        user = options.get("user", "")
        return Asker(f"sql:{user}", None if self._users is None else self._users[user][1]), settings

    async def _refusal(
        self, options: dict[str, str], secure: bool, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, str] | None:
        user = options.get("user", "")
        if self._tls is not None and not secure:
            return "this server is reached over TLS only; connect with sslmode=require (or verify-full)", "28000"
        if self._users is not None:
            address = str((writer.get_extra_info("peername") or ("local",))[0])
            wait_s = self._patience.turn_s(address, time.monotonic())
            if wait_s is None:
                return f"too many wrong passwords from {address}; try again in a few seconds", "53300"
            await asyncio.sleep(wait_s)
            if not await self._authenticated(user, reader, writer):
                self._patience.wrong(address, time.monotonic())
                return f'password authentication failed for user "{user}"', "28P01"
        database = options.get("database") or user
        if database != DATABASE:
            return f'database "{database}" does not exist; the only one here is "{DATABASE}"', "3D000"
        return None

    async def _authenticated(self, user: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        assert self._users is not None
        exchange = Exchange(self._users[user][0] if user in self._users else pretended(user))
        writer.write(m.sasl_offer())
        try:
            fields = m.Fields(await self._password_message(reader))
            if fields.string() != "SCRAM-SHA-256":
                return False
            size = fields.int32()
            writer.write(m.sasl(11, exchange.first(fields.take(size))))
            writer.write(m.sasl(12, exchange.final(await self._password_message(reader))))
        except Refused:
            return False
        return user in self._users

    async def _password_message(self, reader: asyncio.StreamReader) -> bytes:
        tag, size = struct.unpack(">ci", await reader.readexactly(5))
        if tag != b"p" or not 4 <= size <= LONGEST_STARTUP:
            raise m.Malformed("a password was expected")
        return await reader.readexactly(size - 4)

    # ---- sessions

    async def _session(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asker: Asker, settings: Settings
    ) -> None:
        self._numbers += 1
        number, secret = self._numbers, secrets.randbits(32)
        session = Session(asker, writer, self._work, self._views, self._freshness, settings, self._limits)
        guest = self._sessions[number] = Guest(secret, session, reader, writer)
        writer.write(m.AUTHENTICATED)
        for name in REPORTED:
            writer.write(m.parameter_status(name, settings.show(name)))
        writer.write(m.key_data(number, secret) + m.ready("I"))
        try:
            going = True
            while going:
                guest.idle_since = time.monotonic()  # until it has sent the complete message
                tag, size = struct.unpack(">ci", await reader.readexactly(5))
                if not 4 <= size <= self._longest:
                    raise m.Malformed(f"a message of {size} bytes; at most {self._longest} are taken")
                body = await reader.readexactly(size - 4)
                guest.idle_since = None
                going = await session.handle(tag, body)
        finally:
            self._sessions.pop(number, None)
            session.end()

    def _cancel(self, number: int, secret: int) -> None:
        found = self._sessions.get(number)
        if found is not None and hmac.compare_digest(struct.pack(">I", secret), struct.pack(">I", found.secret)):
            found.session.cancel(QueryFailed("canceling statement due to user request", sqlstate="57014"))

    async def watch(self) -> None:
        """Stop the queries of clients that have disconnected; end sessions that are idle for too long."""
        while True:
            longest_s, now = self._limits.idle_s, time.monotonic()
            for number, guest in list(self._sessions.items()):
                if guest.session.at_work and guest.reader.at_eof():
                    guest.session.cancel(QueryFailed("the client has gone", sqlstate="57014"))
                elif guest.idle_since is not None and now - guest.idle_since > longest_s:
                    self._show_out(number, f"the connection was idle for more than {longest_s:g} seconds")
            await asyncio.sleep(0.5)

    def end_all(self, reason: str) -> None:
        """Tell every client why its session ends."""
        for guest in list(self._sessions.values()):
            guest.writer.write(m.error(reason, FAREWELL, "FATAL"))
            guest.writer.close()


def _startup_settings(options: dict[str, str]) -> list[tuple[str, str]]:
    """Settings in a startup message: as fields, and as ``-c name=value`` in ``options``."""
    known = ("user", "database", "options", "replication")
    found = [
        (name, value.strip("'"))
        for name, value in options.items()
        if name not in known and not name.startswith("_pq_.")
    ]
    words = options.get("options", "").replace("-c", " -c ").split()
    for flag, word in itertools.pairwise(words):
        if flag == "-c" and "=" in word:
            name, _, value = word.partition("=")
            found.append((name, value))
    return found
