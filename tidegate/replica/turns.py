"""Whose turn it is: a limited number run at a time, users in rotation, and never all places for one of them."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque


class Turns:
    """``limit`` places. Users that wait get one in turn, each its oldest request first.

    The last free place is for a user who has none: slow queries of one user fill all places but one, which is left for
    another user.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._at_work: Counter[str] = Counter()
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # users, next one first

    async def take(self, user: str) -> None:
        """Returns when it is this request's turn; give the place back afterwards."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(user, deque()).append(future)
        self._hand_out()
        try:
            await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():  # it had just got its place
                self.give_back(user)
            raise

    def give_back(self, user: str) -> None:
        self._at_work[user] -= 1
        if not self._at_work[user]:
            del self._at_work[user]
        self._hand_out()

    def _hand_out(self) -> None:
        while (user := next((user for user in self._waiting if self._may(user)), None)) is not None:
            line = self._waiting.pop(user)
            future = line.popleft()
            if line:
                self._waiting[user] = line  # at the end: others first
            if not future.done():  # its client has not gone
                self._at_work[user] += 1
                future.set_result(None)

    def _may(self, user: str) -> bool:
        free = self._limit - self._at_work.total()
        return free > 1 or (free == 1 and (self._limit == 1 or not self._at_work[user]))
