"""What a checkpoint remembers about the declarations of the app that wrote it."""

from __future__ import annotations

from typing import Any

from tidegate.dataflows.definitions import Stream
from tidegate.dataflows.fingerprint import divided_in
from tidegate.dataflows.graph import Graph
from tidegate.storage.schema import TableSchema
from tidegate.streams.windows.declare.declared import Declared
from tidegate.streams.windows.patterns.declare import PatternSpec


def declared_facts(graph: Graph) -> dict[str, Any]:
    """Everything that stored rows, batches and windows depend on, as JSON."""
    app = graph.app
    return {
        "tables": {name: table_facts(schema) for name, schema in app.tables.items()},
        "streams": {name: stream_facts(stream, graph) for name, stream in app.streams.items()},
        "windows": {
            f"{procedure.name}.{name}": window_facts(spec, graph)
            for procedure in app.procedures.values()
            for name, spec in procedure.windows.items()
        },
    }


def table_facts(schema: TableSchema) -> dict[str, Any]:
    return {
        "columns": [[c.name, c.type.sql, c.nullable, c.default] for c in schema.columns],
        "key": list(schema.primary_key),
        "checks": sorted(check.expression for check in schema.checks),
        "unique": sorted(sorted(index.columns) for index in schema.indexes if index.unique),
        "partition_by": list(schema.partition_by),
        **({} if schema.expiry is None else {"expire": [schema.expiry.column, str(schema.expiry.after)]}),
    }


def stream_facts(stream: Stream, graph: Graph) -> dict[str, Any]:
    """``key``: what its batches are split by; a changelog's batches are split by the partitions of its table."""
    table = stream.changelog_of
    return {
        "columns": [[c.name, c.type.sql, c.nullable] for c in stream.relation.columns],
        "border": stream.border,
        "key": stream.key if table is None else list(graph.app.tables[table].partition_by) or None,
        "keyed": graph.keyed.get(stream.name),
        "changelog_of": table,
    }


def window_facts(spec: Declared, graph: Graph) -> dict[str, Any]:
    """``holds``: what the form of its state depends on. ``axis``: the time that decides what is in a window."""
    holds = str(spec) if spec.compute is None else f"{spec} computing {spec.compute!r}"
    if isinstance(spec, PatternSpec):
        holds = f"{spec} defining {spec.defined}"
    source = getattr(spec, "source", None)
    if source is not None:
        holds += f" source {source}"
    holds += divided_in(spec, graph.app.streams)
    return {
        "streams": list(spec.streams),
        "keyed": graph.keyed.get(spec.streams[0]),
        "holds": holds,
        "axis": [getattr(spec, "on", None) or "arrival", spec.timed] if spec.by_time else None,
        "edition": spec.edition,
        "plain": [spec.kind, spec.size, spec.slide] if spec.plain else None,
    }
