"""What the handlers of one server share."""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any

from starlette.requests import HTTPConnection, Request

from tidegate.engine.engine import Engine
from tidegate.errors import NotAllowed, Overloaded, ServerError
from tidegate.server.driver import Driver
from tidegate.server.feeds import Feeds
from tidegate.server.metrics import Metrics
from tidegate.server.named import NamedFeeds
from tidegate.server.query import QueryService
from tidegate.server.readiness import Readiness
from tidegate.server.settings import Settings
from tidegate.server.status import look
from tidegate.server.tokens import Token
from tidegate.txn.ticket import Ticket


class Tickets:
    """Tickets that were not done when their request was answered, by a name that can't be guessed.

    Only the holder who got a ticket, or an admin, may use it. The oldest are dropped: those of a holder with too many,
    and any when there are too many in total.
    """

    def __init__(self, each: int, limit: int) -> None:
        self._each = each
        self._limit = limit
        self._tickets: OrderedDict[str, tuple[str, Ticket]] = OrderedDict()
        self._by_holder: dict[str, OrderedDict[str, None]] = {}

    def keep(self, ticket: Ticket, holder: Token) -> str:
        name = secrets.token_urlsafe(12)
        self._tickets[name] = (holder.name, ticket)
        mine = self._by_holder.setdefault(holder.name, OrderedDict())
        mine[name] = None
        if len(mine) > self._each and not holder.admin:
            self._forget(next(iter(mine)))
        if len(self._tickets) > self._limit:
            self._forget(next(iter(self._tickets)))
        return name

    def _forget(self, name: str) -> None:
        holder, _ = self._tickets.pop(name)
        mine = self._by_holder[holder]
        del mine[name]
        if not mine:
            del self._by_holder[holder]

    def find(self, name: str, holder: Token) -> Ticket:
        owner, ticket = self._tickets.get(name, (None, None))
        if ticket is None or (owner != holder.name and not holder.admin):
            raise ServerError(
                f"there is no ticket {name[:40]!r} here: tickets are kept in memory and lost when the server "
                "restarts. An accepted batch is still in the log; push it again under the same batch-id to confirm "
                "that",
                status=404,
            )
        return ticket


class Followers:
    """Open event streams and sockets: limited per token, and in total, so that others can still connect."""

    def __init__(self, each: int, limit: int) -> None:
        self._each = each
        self._limit = limit
        self._open: Counter[str] = Counter()

    def enter(self, holder: Token) -> None:
        if self._open.total() >= self._limit:
            raise Overloaded(f"{self._limit} clients already follow streams here, which is the limit; try again later")
        if self._open[holder.name] >= self._each and not holder.admin:
            raise Overloaded(
                f"{holder.name!r} follows {self._each} streams already, which is the limit; close one of them"
            )
        self._open[holder.name] += 1

    def leave(self, holder: Token) -> None:
        self._open[holder.name] -= 1
        if not self._open[holder.name]:
            del self._open[holder.name]


class Context:
    """A running server. Created in its event loop."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics, queries: QueryService | None) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.queries = queries
        self.driver = Driver(engine, engine.config.capacity)
        self.feeds = Feeds(engine)
        self.named = NamedFeeds(self.feeds, settings.subscriptions)
        self.readiness = Readiness(engine)
        self.followers = Followers(settings.followers, settings.connections * 3 // 4)
        self.tickets = Tickets(settings.tickets, settings.all_tickets)
        self.stopping = False
        metrics.watch(self.look)

    def look(self) -> dict[str, Any]:
        """The engine's state. May wait for a second: not in the event loop."""
        return {**look(self.engine, self.driver, self.feeds), "replica": getattr(self.queries, "status", None)}

    async def status(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.look)

    def let_go(self) -> None:
        """The server is about to stop: long-lived requests (subscriptions) are ended."""
        self.stopping = True
        self.feeds.let_go()
        self.named.let_go()

    async def close(self) -> None:
        """Finish what is under way; the caller who opened the engine closes it."""
        await self.feeds.close()
        await self.driver.close()


def check_role(holder: Token | None, roles: tuple[str, ...]) -> None:
    """Raise when the holder of this token has none of these roles."""
    if holder is not None and roles and not holder.allows(roles):
        raise NotAllowed(
            f"this needs a token with the role {' or '.join(roles)}; {holder.name!r} has "
            f"{', '.join(sorted(holder.roles))}"
        )


IN_PATHS = {"stream": "streams", "procedure": "procedures", "name": "subscriptions"}  # parameters of paths -> scopes
WHOLE = ("/v1/status",)  # shows rows of everything


def check_scope(holder: Token | None, path: str, parameters: Mapping[str, str]) -> None:
    """Raise when the holder may not use the names in a path."""
    if holder is None or holder.admin:
        return
    for parameter, name in parameters.items():
        if parameter in IN_PATHS:
            holder.check(IN_PATHS[parameter], name)
    if path in WHOLE and holder.tables is not None:
        raise NotAllowed(f"{path} shows rows of all streams and tables, and {holder.name!r} may see only some of them")


def holder_of(request: HTTPConnection) -> Token:
    """The holder of the token of this request."""
    holder: Token = request.scope["state"]["holder"]
    return holder


def log_facts(request: Request, **facts: Any) -> None:
    """Facts about this request, for its line in the log."""
    request.scope["state"].setdefault("log", {}).update(facts)
