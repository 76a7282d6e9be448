"""The interface to what answers SQL from outside. That never runs in the engine's process: see ``tidegate.replica``."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol

import pyarrow as pa


class QueryService(Protocol):
    """Answers read-only SQL at a known position."""

    async def query(
        self,
        sql: str,
        parameters: list[Any] | dict[str, Any] | None,
        *,
        row_limit: int,
        timeout_s: float,
        as_of: int | None,
        user: str,
        tables: tuple[str, ...] | None,
    ) -> tuple[pa.Schema, AsyncIterator[pa.RecordBatch]]:
        """The columns, and the rows in batches, at most ``row_limit`` of them.

        ``user``: on whose behalf; ``tables``: what it may read, None for everything.
        ``as_of``: at this sequence number instead of the newest merged state. Raises QueryRefused or QueryFailed;
        the iterator may raise QueryFailed later.
        """
        ...
