"""The answer to ``/ready``: checked outside the event loop, at most once a second, with a timeout."""

from __future__ import annotations

import asyncio

from tidegate.engine.engine import Engine
from tidegate.engine.readiness import reasons_not_to

FRESH_S = 1.0  # how long an answer is reused
LONGEST_S = 5.0  # a check that takes longer is an answer, too


class Readiness:
    """What the last check of the engine found. Created and used in the event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._looking: asyncio.Future[list[str]] | None = None
        self._until = 0.0

    async def why_not(self) -> list[str]:
        """Why the engine accepts no work; empty when it does."""
        loop = asyncio.get_running_loop()
        looking = self._looking
        if looking is None or (looking.done() and loop.time() >= self._until):
            looking = self._looking = asyncio.ensure_future(asyncio.to_thread(reasons_not_to, self._engine))
            looking.add_done_callback(self._looked)
        done, _ = await asyncio.wait({looking}, timeout=LONGEST_S)
        if not done:
            return [f"a small write to the data directory has not returned for {LONGEST_S:g} seconds"]
        error = looking.exception()
        return looking.result() if error is None else [f"{type(error).__name__}: {error}"]

    def _looked(self, _: object) -> None:
        self._until = asyncio.get_running_loop().time() + FRESH_S
