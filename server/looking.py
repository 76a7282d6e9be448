"""Looking: health, readiness, metrics, status, and what the app is made of."""

from __future__ import annotations

import asyncio
import inspect
from importlib.resources import files
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import Response

from tidegate.dataflows.drawing import describe_graph, mermaid, svg, text
from tidegate.engine.system_views import VIEWS
from tidegate.errors import DataError, LogFailed, ServerError
from tidegate.server.answers import json_response
from tidegate.server.context import Context
from tidegate.wire import describe_relation

CONSOLE_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


async def health(_: Request, context: Context) -> Response:
    """The process answers."""
    return json_response({"healthy": True, "app": context.engine.app.name})


async def ready(_: Request, context: Context) -> Response:
    """New work is accepted: 200, or 503 with the reasons why not. Tries a small write, at most once a second."""
    engine = context.engine
    why = []
    if context.stopping or engine.closed:
        why.append("the server is stopping")
    if engine.durable is not None:
        try:
            await asyncio.to_thread(engine.durable.writer.check_place)
        except LogFailed as error:
            why.append(str(error))
        else:
            if not engine.durable.writer.taking:
                why.append("the log refuses new records: the disk is full")
    if context.driver.queued >= context.driver.capacity:
        why.append("the engine is overloaded")
    if not why:
        why = await context.readiness.why_not()
    merged_s = round(engine.merger.facts()["last_merge_age_s"], 3)
    return json_response({"ready": not why, "why_not": why, "last_merge_age_s": merged_s}, 503 if why else 200)


async def metrics(_: Request, context: Context) -> Response:
    """Metrics for Prometheus."""
    return Response(await asyncio.to_thread(context.metrics.text), media_type=CONTENT_TYPE_LATEST)


async def status(_: Request, context: Context) -> Response:
    """What the engine is doing: streams, executions, locks, questions, windows, merges, aborts, dead letters."""
    return json_response(await context.status())


async def describe_app(_: Request, context: Context) -> Response:
    """What the app is made of: streams, tables and procedures, with their columns and parameters."""
    return json_response(app_facts(context))


def app_facts(context: Context) -> dict[str, Any]:
    app, graph = context.engine.app, context.engine.graph
    return {
        "name": app.name,
        "recovery": app.recovery,
        "durable": context.engine.durable is not None,
        "queries": context.queries is not None,
        "streams": [
            {
                "name": s.name,
                "border": s.border,
                "key": s.key,
                "key_type": graph.keyed.get(s.name),
                "awaited": s.awaited,
                "deadline_s": s.deadline_s,
                "columns": describe_relation(s.relation),
            }
            for s in app.streams.values()
        ],
        "tables": [
            {
                "name": t.name,
                "primary_key": list(t.primary_key),
                "partition_by": list(t.partition_by),
                "columns": describe_relation(t),
            }
            for t in app.tables.values()
        ],
        "plain_views": [
            {"name": v.name, "columns": [{"name": name, "type": kind, "nullable": True} for name, kind in v.columns]}
            for v in app.views.values()
        ],
        "views": [name.removeprefix("tidegate_") for name in VIEWS],
        "procedures": [
            {
                "name": p.name,
                "called": not p.streaming,
                "inputs": list(p.inputs),
                "outputs": list(p.outputs),
                "parameters": parameters(p.function) if not p.streaming else [],
                "doc": inspect.getdoc(p.function),
            }
            for p in app.procedures.values()
            if not p.internal
        ],
    }


def parameters(function: Any) -> list[dict[str, Any]]:
    """What a call passes: the parameters after ``txn``."""
    found = list(inspect.signature(function).parameters.values())[1:]
    return [{"name": p.name, "required": p.default is p.empty, "kind": p.kind.name.lower()} for p in found]


async def graph(request: Request, context: Context) -> Response:
    """The dataflow graph, as JSON, text, Mermaid or SVG."""
    described = describe_graph(context.engine.graph)
    match request.query_params.get("format", "json"):
        case "json":
            return json_response(described)
        case "text":
            return Response(text(described), media_type="text/plain")
        case "mermaid":
            return Response(mermaid(described), media_type="text/plain")
        case "svg":
            return Response(svg(described), media_type="image/svg+xml", headers={"content-security-policy": POLICY})
        case other:
            raise DataError(f"format must be json, text, mermaid or svg, got {other[:40]!r}", column="format")


async def console(request: Request, _: Context) -> Response:
    """The console page and its files, all in the package."""
    name = request.path_params.get("file", "index.html")
    kind = CONSOLE_TYPES.get("." + name.rpartition(".")[2])
    found = FILES.get(name)
    if found is None or kind is None:
        raise ServerError(f"the console has no file {name[:80]!r}", status=404)
    headers = {"content-security-policy": POLICY, "cache-control": "no-cache"}
    return Response(found, media_type=kind, headers=headers)


def _files() -> dict[str, bytes]:
    """The console's files by name. Read once: no request ever becomes a path."""
    here = files("tidegate.server") / "console"
    return {entry.name: entry.read_bytes() for entry in here.iterdir() if entry.is_file()} if here.is_dir() else {}


FILES = _files()
