"""Queries from the engine's own process (its HTTP server): over a local socket, as Arrow. Disconnecting cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.replica.frames import Frame, Kind, from_ipc, pack, read_frame, schema_to_ipc, to_ipc
from tidegate.replica.freshness import Freshness
from tidegate.replica.guard import Asker
from tidegate.replica.running import Query, Work
from tidegate.replica.system_views import SystemViews


class LocalQueries:
    """One query per connection."""

    def __init__(self, work: Work, views: SystemViews, freshness: Freshness) -> None:
        self._work = work
        self._views = views
        self._freshness = freshness

    async def serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, stays: Callable[[], None]
    ) -> None:
        frame = await read_frame(reader)
        if frame is not None and frame.kind is Kind.QUERY:
            answering = asyncio.ensure_future(self._answer(frame, writer))
            hanging_up = asyncio.ensure_future(reader.read(1))
            await asyncio.wait((answering, hanging_up), return_when=asyncio.FIRST_COMPLETED)
            answering.cancel()
            hanging_up.cancel()
            await asyncio.gather(answering, hanging_up, return_exceptions=True)
        writer.close()

    async def _answer(self, frame: Frame, writer: asyncio.StreamWriter) -> None:
        query: Query | None = None
        try:
            self._work.statements.check_length(frame.facts["sql"])
            asker = Asker(frame.facts["user"], frame.facts["tables"] and tuple(frame.facts["tables"]))
            prepared = await self._work.prepare(asker, frame.facts["sql"])
            query = self._work.query(
                asker,
                prepared,
                _parameters(frame),
                timeout_s=frame.facts["timeout_s"],
                row_limit=frame.facts["row_limit"],
                as_of=frame.facts["as_of"],
            )
            await self._freshness.ensure()
            await self._views.refresh(prepared.reading.views)
            await self._work.step(query, query.open)
            schema = await self._work.step(query, query.schema)
            writer.write(pack(Kind.SCHEMA, {"position": query.position}, schema_to_ipc(schema)))
            while (batch := await self._work.step(query, query.next)) is not None:
                writer.write(pack(Kind.BATCH, {}, to_ipc(batch)))
                await writer.drain()
            writer.write(pack(Kind.DONE, {"rows": query.rows}))
        except (QueryFailed, QueryRefused) as error:
            told = {"refused": isinstance(error, QueryRefused), "message": error.message, "sqlstate": error.sqlstate}
            writer.write(pack(Kind.ERROR, told))
        finally:
            if query is not None:
                self._work.end(query)
        await writer.drain()


def _parameters(frame: Frame) -> list[Any] | dict[str, Any]:
    if not frame.body:
        return []
    row: dict[str, Any] = from_ipc(frame.body).to_pylist()[0]
    return row if frame.facts["named"] else list(row.values())
