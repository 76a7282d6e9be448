"""Merges at the replica's pace, but only while there are queries: an idle replica costs the engine nothing.

    resting ──a query──▶ waking ──the newest merge is here──▶ awake ──no queries for a while──▶ resting

A query in the state awake is answered at once: merges come every ``refresh_s`` seconds. The first one after a rest waits
until the engine has merged what is older than that, and the replica has it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

IDLE_S = 10.0
PATIENCE_S = 5.0  # a slightly old answer is better than none


class Freshness:
    """Lives in the replica's event loop."""

    def __init__(self, ask: Callable[[int], None], rest: Callable[[], None], position: Callable[[], int]) -> None:
        """``ask(request)``: have the engine merge and call :meth:`told`. ``position()``: of this copy."""
        self._ask = ask
        self._rest = rest
        self._position = position
        self._request = 0
        self._awake = False
        self._asked_at = 0.0
        self._wanted: int | None = None
        self._fresh: asyncio.Event | None = None  # while it is waking

    async def ensure(self) -> None:
        """Return when the copy is new enough to be queried."""
        self._asked_at = time.monotonic()
        if self._awake:
            return
        if self._fresh is None:
            self._fresh = asyncio.Event()
            self._request += 1
            self._wanted = None
            self._ask(self._request)
        waking = self._fresh
        try:
            async with asyncio.timeout(PATIENCE_S):
                await waking.wait()
        except TimeoutError:
            if self._fresh is waking:  # the next query asks again
                self._fresh = None

    def told(self, request: int, position: int) -> None:
        """The engine's newest merge is at ``position``."""
        if request == self._request and self._fresh is not None:
            self._wanted = position
            self.arrived()

    def arrived(self) -> None:
        """The copy has changed, or the position it must reach is known."""
        if self._fresh is not None and self._wanted is not None and self._position() >= self._wanted:
            self._awake = True
            self._fresh.set()
            self._fresh = None

    def look(self, busy: bool) -> None:
        """Called regularly: rest when there were no queries for a while."""
        if self._awake and not busy and time.monotonic() - self._asked_at > IDLE_S:
            self._awake = False
            self._rest()
