"""What the handlers of one server share."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from typing import Any

from starlette.requests import Request

from tidegate.engine import Engine
from tidegate.errors import NotAllowed, ServerError
from tidegate.server.driver import Driver
from tidegate.server.feeds import Feeds
from tidegate.server.metrics import Metrics
from tidegate.server.named import NamedFeeds
from tidegate.server.query import QueryService
from tidegate.server.settings import Settings
from tidegate.server.status import look
from tidegate.server.tokens import Token
from tidegate.txn.ticket import Ticket


class Tickets:
    """Tickets that were not done when their request was answered, by a name nobody can guess. The oldest are forgotten."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._tickets: OrderedDict[str, Ticket] = OrderedDict()

    def keep(self, ticket: Ticket) -> str:
        name = secrets.token_urlsafe(12)
        self._tickets[name] = ticket
        if len(self._tickets) > self._limit:
            self._tickets.popitem(last=False)
        return name

    def find(self, name: str) -> Ticket:
        ticket = self._tickets.get(name)
        if ticket is None:
            raise ServerError(
                f"there is no ticket {name[:40]!r} here: tickets are kept in memory, until the server is restarted. What was "
                f"accepted is in the log all the same; push it again under the same batch-id to see that it was",
                status=404,
            )
        return ticket


class Context:
    """One server at work. Made in its event loop."""

    def __init__(self, engine: Engine, settings: Settings, metrics: Metrics, queries: QueryService | None) -> None:
        self.engine = engine
        self.settings = settings
        self.metrics = metrics
        self.queries = queries
        self.driver = Driver(engine, engine.config.capacity)
        self.feeds = Feeds(engine)
        self.named = NamedFeeds(self.feeds)
        self.tickets = Tickets(settings.tickets)
        self.stopping = False
        metrics.watch(self.look)

    def look(self) -> dict[str, Any]:
        """The engine's state. May wait for a second: not in the event loop."""
        return {**look(self.engine, self.driver, self.feeds), "replica": getattr(self.queries, "status", None)}

    async def status(self) -> dict[str, Any]:
        return await asyncio.to_thread(self.look)

    def let_go(self) -> None:
        """The server is about to stop: requests that last, subscriptions, are ended."""
        self.stopping = True
        self.feeds.let_go()
        self.named.let_go()

    async def close(self) -> None:
        """Finish what is under way; the engine itself is closed by whoever opened it."""
        await self.feeds.close()
        await self.driver.close()


def check_role(holder: Token | None, roles: tuple[str, ...]) -> None:
    """Raise when the holder of this token may not do what takes one of these roles."""
    if holder is not None and roles and not holder.allows(roles):
        raise NotAllowed(
            f"this takes a token with the role {' or '.join(roles)}; {holder.name!r} has {', '.join(sorted(holder.roles))}"
        )


def log_facts(request: Request, **facts: Any) -> None:
    """Facts about this request, for its line in the log."""
    request.scope["state"].setdefault("log", {}).update(facts)
