"""The OpenAPI 3.1 document of one app's server, made from the table of endpoints and the app's declarations."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tidegate.dataflows.app import App
from tidegate.server.bodies import ARROW, JSON, NDJSON
from tidegate.server.looking import parameters
from tidegate.server.table import CALL_TAGS, ENDPOINTS, TAGS, Endpoint
from tidegate.server.tokens import Tokens
from tidegate.storage.schema import Relation
from tidegate.storage.types import ColumnType
from tidegate.wire import EXACT

Schema = dict[str, Any]
INT64 = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
INTEGER = {"anyOf": [INT64, {"type": "string", "pattern": "^-?(0|[1-9][0-9]{0,17})$"}]}
STRINGS = {"type": "array", "items": {"type": "string"}}
REFUSALS = {
    "400": "Refused.",
    "401": "No token, or an unknown or expired one.",
    "403": "The token lacks the role, or the request comes from another site.",
    "404": "No such name.",
    "406": "No such format.",
    "408": "The request arrived too slowly.",
    "409": "In conflict with what was accepted before, or aborted by the procedure.",
    "410": "The batches after the cursor are no longer held.",
    "413": "Too large.",
    "415": "A content type that is not accepted here.",
    "421": "Not a host name of this server.",
    "422": "The body, a value or the SQL does not fit.",
    "429": "Too many requests.",
    "501": "Not available on this server.",
    "503": "Overloaded or stopping; try again.",
    "507": "The disk is full.",
}


def document(app: App, tokens: Tokens, version: str) -> dict[str, Any]:
    """Everything a client generator needs."""
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in ENDPOINTS:
        if not endpoint.hidden:
            for path, operation in _operations(app, endpoint, tokens):
                paths.setdefault(path, {})[endpoint.method.lower()] = operation
    schemas = {**_SHARED, **{f"row_{s.name}": row_schema(s.relation) for s in app.streams.values()}}
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": f"tidegate: {app.name}", "version": version, "description": _ABOUT},
        "paths": paths,
        "components": {"schemas": schemas},
    }
    if tokens.required:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    return found


_ABOUT = (
    "Push batches, call procedures, answer questions, follow streams and query tables. Streams can also be followed "
    "over WebSocket: /v1/streams/{stream}/socket. Integers beyond 2^53 - 1 are sent as text, and accepted as text."
)


def _operations(app: App, endpoint: Endpoint, tokens: Tokens) -> Iterator[tuple[str, dict[str, Any]]]:
    for name in _names(app, endpoint):
        path = endpoint.path
        if name is not None:
            path = path.replace("{stream}", name).replace("{procedure}", name)
        operation: dict[str, Any] = {
            "operationId": "_".join(filter(None, (endpoint.handler.__name__, name))),
            "summary": endpoint.summary,
            "parameters": [*_path_parameters(path), *_query_parameters(endpoint)],
            "responses": _answers(endpoint),
        }
        if endpoint.body is not None:
            operation["requestBody"] = {"required": True, "content": _body(endpoint.body, app, name)}
        if tokens.required and endpoint.path not in ("/health", "/ready"):
            operation["security"] = [{"token": []}]
            operation["description"] = f"Role: {' or '.join(endpoint.roles) or 'any'}."
        yield path, operation


def _names(app: App, endpoint: Endpoint) -> list[str | None]:
    match endpoint.expand:
        case "border":
            return [s.name for s in app.streams.values() if s.border]
        case "interior":
            return [s.name for s in app.streams.values() if not s.border]
        case "awaited":
            return [s.name for s in app.streams.values() if s.awaited]
        case "procedure":
            return [p.name for p in app.procedures.values() if not p.streaming and not p.internal]
    return [None]


def _path_parameters(path: str) -> Iterator[dict[str, Any]]:
    for name in re.findall(r"{(\w+)}", path):
        schema = INT64 if name == "batch_id" else {"type": "string", "minLength": 1}
        yield {"name": name, "in": "path", "required": True, "schema": schema}


def _query_parameters(endpoint: Endpoint) -> Iterator[dict[str, Any]]:
    for name, (schema, text) in endpoint.query.items():
        yield {"name": name, "in": "query", "schema": schema, "description": text}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _body(kind: str, app: App, name: str | None) -> dict[str, Any]:
    match kind:
        case "rows" | "fed":
            row = _ref(f"row_{name}")
            numbered = {"batch_id": _nullable(INTEGER)} if kind == "rows" else {}
            whole = {
                "type": "object",
                "required": ["rows"],
                "additionalProperties": False,
                "properties": {
                    "rows": {"type": "array", "items": row},
                    **numbered,
                    "source": _nullable({"type": "string"}),
                    "offset": {},
                    "after": {},
                },
            }
            return {
                JSON: {"schema": {"anyOf": [{"type": "array", "items": row}, whole]}},
                NDJSON: {"schema": {"type": "string", "description": "One row in JSON on each line."}},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            }
        case "row":
            return {JSON: {"schema": _ref(f"row_{name}")}}
        case "call":
            return {JSON: {"schema": _call(app, str(name))}}
    return {JSON: {"schema": _ref(kind)}}


def _call(app: App, name: str) -> Schema:
    listed = parameters(app.procedures[name].function)
    required = [p["name"] for p in listed if p["required"] and p["kind"] == "positional_or_keyword"]
    told = ", ".join(p["name"] for p in listed) or "none"
    return {
        "type": "object",
        "additionalProperties": False,
        "description": f"Parameters: {told}. Pass them by position, by name, or mixed.",
        "properties": {
            "arguments": {"type": "array", "maxItems": len(listed), "items": {}},
            "named": {
                "type": "object",
                "properties": {p["name"]: {} for p in listed},
                "additionalProperties": False,
                "examples": [dict.fromkeys(required, 1)],
            },
            "encoding": CALL_TAGS,
        },
    }


def _answers(endpoint: Endpoint) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for status, kind in endpoint.answers.items():
        found[str(status)] = {"description": "As asked." if status < 300 else "Not now.", "content": _content(kind)}
    for code, text in REFUSALS.items():
        found.setdefault(code, {"description": text, "content": {JSON: {"schema": _ref("error")}}})
    return found


def _content(kind: str) -> dict[str, Any]:
    plain: dict[str, Any] = {"schema": {"type": "string"}}
    match kind:
        case "events":
            return {"text/event-stream": plain}
        case "text":
            return {"text/plain": plain}
        case "graph":
            return {JSON: {"schema": {"type": "object"}}, "text/plain": plain, "image/svg+xml": plain}
        case "result":
            return {JSON: {"schema": _ref("result")}, "text/csv": plain, ARROW: {"schema": {"type": "string"}}}
        case "object":
            return {JSON: {"schema": {"type": "object"}}}
    return {JSON: {"schema": _ref(kind)}}


def _nullable(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def row_schema(relation: Relation) -> Schema:
    """A row of a stream: an object by column name, or a list in column order."""
    columns = {
        c.name: _nullable(value_schema(c.type)) if c.nullable else value_schema(c.type) for c in relation.columns
    }
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": columns,
                "required": [c.name for c in relation.columns if not c.nullable],
                "additionalProperties": False,
            },
            {
                "type": "array",
                "prefixItems": list(columns.values()),
                "minItems": len(columns),
                "maxItems": len(columns),
            },
        ]
    }


def value_schema(kind: ColumnType) -> Schema:
    """One value, in the form of ``tidegate.wire``."""
    match kind.family:
        case "integer":
            number = {"type": "integer", "minimum": kind.low, "maximum": kind.high}
            if kind.high <= EXACT:
                return number
            return {"anyOf": [number, {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"}]}
        case "float":
            return {"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]}
        case "decimal":
            return {"type": ["string", "number"], "pattern": r"^-?[0-9]{1,6}(\.[0-9]{1,4})?$", "description": kind.sql}
        case "boolean":
            return {"type": "boolean"}
        case "list":
            assert kind.element is not None
            return {"type": "array", "items": _nullable(value_schema(kind.element))}
        case "json":
            return {"type": ["object", "array", "string"], "description": "JSON, or text that holds JSON."}
    return {"type": "string", **_FORMATS.get(kind.family, {})}


_FORMATS: dict[str, Schema] = {
    "timestamp": {"format": "date-time"},
    "date": {"format": "date"},
    "time": {"pattern": r"^([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]$"},
    "interval": {"pattern": r"^P[0-9]{1,4}D$", "description": "An ISO 8601 duration."},
    "blob": {"contentEncoding": "base64", "pattern": r"^([A-Za-z0-9+/]{4})*$"},
    "uuid": {"format": "uuid"},
}

_SHARED: dict[str, Schema] = {
    "error": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["type", "message", "facts"],
                "properties": {
                    "type": {"type": "string", "description": "The name of a class in tidegate.errors."},
                    "message": {"type": "string"},
                    "facts": {"type": "object"},
                },
            }
        },
    },
    "ticket": {
        "type": "object",
        "required": ["done", "duplicate", "original", "batch_ids", "error", "value", "ticket"],
        "properties": {
            "done": {"type": "boolean", "description": "Everything it caused has finished and is on disk."},
            "duplicate": {"type": "boolean", "description": "It was accepted before; this request changed nothing."},
            "batch_ids": {"type": "array", "items": {"type": ["integer", "string"]}},
            "original": {
                "type": ["array", "null"],
                "description": "The outcome of each batch that was accepted before.",
            },
            "sequence": {"type": ["integer", "string"], "description": "The last sequence number it was given."},
            "error": {"description": "What aborted it; null when nothing did."},
            "value": {"description": "What a called procedure returned."},
            "ticket": {"type": ["string", "null"], "description": "While it is not done: its address, /v1/tickets/…"},
            "note": {"type": "string"},
        },
    },
    "query": {
        "type": "object",
        "required": ["sql"],
        "additionalProperties": False,
        "properties": {
            "sql": {"type": "string"},
            "parameters": {"type": ["array", "object", "null"]},
            "row_limit": {"type": ["integer", "null"], "minimum": 1, "maximum": 1_000_000},
            "timeout_s": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 3600},
            "as_of": {
                "type": ["integer", "string", "null"],
                "minimum": 0,
                "maximum": 2**63 - 1,
                "pattern": "^[0-9]{1,18}$",
            },
            "encoding": TAGS,
        },
    },
    "advance": {
        "type": "object",
        "required": ["to"],
        "additionalProperties": False,
        "properties": {
            "to": {
                "type": ["integer", "string"],
                "description": "No row before this will follow: a time in ISO 8601, or a number where time is one.",
            },
            "key": {"description": "On a keyed stream, for this key; all so far without it."},
            "batch_id": _nullable(INTEGER),
        },
    },
    "result": {
        "type": "object",
        "required": ["columns", "rows", "error"],
        "properties": {
            "columns": {"type": "array"},
            "rows": {"type": "array", "items": {"type": "array"}},
            "error": {"description": "What stopped the query midway; null when nothing did."},
        },
    },
    "seek": {
        "type": "object",
        "required": ["to"],
        "additionalProperties": False,
        "properties": {
            "to": {
                "type": ["string", "integer"],
                "description": "now, earliest, an offset, or a time in ISO 8601.",
            },
        },
    },
    "ack": {
        "type": "object",
        "required": ["cursors"],
        "additionalProperties": False,
        "properties": {
            "cursors": STRINGS,
            "up_to": {"type": "boolean", "default": False},
            "refused": {
                "type": ["string", "null"],
                "description": "Why they are refused: they become dead letters.",
            },
        },
    },
}
