"""System views in the replica: fetched from the engine when a query needs them, at a bounded rate."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable

from tidegate.errors import QueryFailed

FRESH_S = 0.2  # views this young are reused: fetching them holds the engine's lock for a moment
PATIENCE_S = 10.0


class SystemViews:
    """Keeps ``tidegate.*`` fresh."""

    def __init__(self, names: Iterable[str], ask: Callable[[int, list[str]], None]) -> None:
        """``ask(request, names)``: have the engine send these views, then :meth:`arrived`."""
        self._names = sorted(names)
        self._ask = ask
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._asking: asyncio.Future[None] | None = None
        self._taken_at = -FRESH_S

    async def refresh(self, wanted: Iterable[str]) -> None:
        """Return when the views wanted are as of now, or nearly."""
        if not set(wanted) & set(self._names) or time.monotonic() - self._taken_at < FRESH_S:
            return
        if self._asking is None or self._asking.done():
            request = next(self._numbers)
            self._asking = self._waiting[request] = asyncio.get_running_loop().create_future()
            self._ask(request, self._names)
        try:
            await asyncio.wait_for(asyncio.shield(self._asking), PATIENCE_S)
        except TimeoutError:
            raise QueryFailed(
                "the engine did not answer in time for its system views; it may be busy. Ask again",
                sqlstate="57014",
            ) from None

    def arrived(self, request: int) -> None:
        """The views asked for are in place."""
        self._taken_at = time.monotonic()
        future = self._waiting.pop(request, None)
        if future is not None and not future.done():
            future.set_result(None)
