"""SQL over HTTP: forwarded to the query service, streamed back as JSON, CSV or Arrow."""

from __future__ import annotations

import asyncio
import csv
import io
import logging
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tidegate.errors import DataError, QueryFailed, ServerError, TidegateError
from tidegate.server.answers import error_facts
from tidegate.server.bodies import ARROW, JSON, Queried, read_json, whole_number
from tidegate.server.context import Context, holder_of
from tidegate.server.work import untagged
from tidegate.wire import finite, speak

log = logging.getLogger("tidegate.server")

CSV = "text/csv"
LONGEST_S = 3_600.0


class Streamed(StreamingResponse):
    """A result being streamed. One that fails midway is cut off, so that no client takes it for complete."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except TidegateError as error:
            log.warning("a result was cut off: %s", error)
            scope["extensions"]["tidegate.abort"]()
            while (await receive())["type"] != "http.disconnect":  # uvicorn has noticed
                pass


async def query(request: Request, context: Context) -> Response:
    """Run a read-only query in the query replica."""
    asked = await read_json(request, context.settings, Queried, _read)
    kind = _format(request)
    if context.queries is None:
        raise ServerError("this server has no query replica; start it with tidegate.replica installed", status=501)
    limit, timeout_s, as_of = _limits(asked, context)
    holder = holder_of(request)
    schema, batches = await context.queries.query(
        asked.sql,
        asked.parameters,
        row_limit=limit + 1,
        timeout_s=timeout_s,
        as_of=as_of,
        user=holder.name,
        tables=holder.tables,
    )
    bounded = _bounded(batches, limit, asked.row_limit is not None)
    first = await anext(bounded, None)  # an immediate failure gets its own status
    body = {JSON: _as_json, CSV: _as_csv, ARROW: _as_arrow}[kind](schema, _chained(first, bounded))
    return Streamed(body, media_type=kind, headers={"cache-control": "no-store"})


def _format(request: Request) -> str:
    accept = request.headers.get("accept", "*/*")
    for part in accept.split(","):
        kind = part.partition(";")[0].strip().lower()
        if kind in ("*/*", "application/*", JSON):
            return JSON
        if kind in (CSV, "text/*"):
            return CSV
        if kind == ARROW:
            return ARROW
    raise ServerError(f"results are available as {JSON}, {CSV} or {ARROW}, not as {accept[:100]!r}", status=406)


def _read(asked: Queried) -> Queried:
    """The query with its parameters as values."""
    if asked.encoding == "tagged":
        given = asked.parameters
        asked.parameters = (
            {name: untagged(value) for name, value in given.items()}
            if isinstance(given, dict)
            else [untagged(value) for value in given or ()]
        )
    return asked


def _limits(asked: Queried, context: Context) -> tuple[int, float, int | None]:
    settings = context.settings
    limit = settings.row_limit if asked.row_limit is None else asked.row_limit
    if not 0 < limit <= settings.row_limit:
        raise DataError(f"row_limit must be between 1 and {settings.row_limit:,}, got {limit}", column="row_limit")
    timeout_s = settings.query_timeout_s if asked.timeout_s is None else asked.timeout_s
    if not 0 < timeout_s <= LONGEST_S:
        raise DataError(f"timeout_s must be more than 0 and at most {LONGEST_S:g} seconds", column="timeout_s")
    as_of = whole_number(asked.as_of, "as_of") if isinstance(asked.as_of, str) else asked.as_of
    if as_of is not None and not 0 <= as_of < 2**63:
        raise DataError("as_of must be a sequence number", column="as_of")
    return limit, min(timeout_s, settings.query_timeout_s), as_of


async def _bounded(batches: AsyncIterator[pa.RecordBatch], limit: int, chosen: bool) -> AsyncIterator[pa.RecordBatch]:
    """At most ``limit`` rows. A caller who chose the limit gets that many; otherwise more rows are an error."""
    left = limit
    async for batch in batches:
        if batch.num_rows > left:
            if left:
                yield batch.slice(0, left)
            if not chosen:
                raise QueryFailed(
                    f"the result has more than {limit:,} rows; add a LIMIT, or aggregate", row_limit=limit
                )
            return
        left -= batch.num_rows
        if batch.num_rows:
            yield batch


async def _chained(first: pa.RecordBatch | None, rest: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[pa.RecordBatch]:
    if first is not None:
        yield first
    async for batch in rest:
        yield batch


async def _as_json(schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[bytes]:
    """``{"columns": […], "rows": [[…], …], "error": null}``; the error is that of a query that failed midway."""
    columns = [{"name": field.name, "type": str(field.type)} for field in schema]
    yield b'{"columns":' + speak(columns) + b',"rows":['
    error: TidegateError | None = None
    began = False
    try:
        async for batch in batches:
            text = await asyncio.to_thread(_json_rows, batch)
            yield b"," + text if began else text
            began = True
    except TidegateError as failed:
        error = failed
    yield b'],"error":' + speak(None if error is None else error_facts(error)) + b"}"


def _json_rows(batch: pa.RecordBatch) -> bytes:
    columns = [[finite(value) for value in column.to_pylist()] for column in batch.columns]
    return speak(list(zip(*columns, strict=True)))[1:-1]


async def _as_csv(schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[bytes]:
    yield _csv_text([schema.names])
    async for batch in batches:
        yield await asyncio.to_thread(_csv_rows, batch)


def _csv_rows(batch: pa.RecordBatch) -> bytes:
    columns = [[_csv_value(value) for value in column.to_pylist()] for column in batch.columns]
    return _csv_text(zip(*columns, strict=True))


def _csv_text(rows: Any) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)
    return text.getvalue().encode()


def _csv_value(value: Any) -> Any:
    """NULL is empty; values that are text in JSON are that text; lists and the like are JSON."""
    if value is None or (isinstance(value, (str, int)) and not isinstance(value, bool)):
        return value
    text = speak(finite(value)).decode()
    return text[1:-1] if text.startswith('"') else text


async def _as_arrow(schema: pa.Schema, batches: AsyncIterator[pa.RecordBatch]) -> AsyncIterator[bytes]:
    sink = _Sink()
    with pa.ipc.new_stream(sink, schema) as writer:
        yield sink.taken()
        async for batch in batches:
            writer.write_batch(batch)
            yield sink.taken()
    yield sink.taken()


class _Sink(io.RawIOBase):
    """What the Arrow writer has written since the last ``take``."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        data, self._parts = b"".join(self._parts), []
        return data
