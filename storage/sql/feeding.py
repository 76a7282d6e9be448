"""The text of a query, with its values as parameters, or read from a row that DuckDB is shown.

DuckDB plans a statement with parameters every time. Read from a row of a relation, values change without a new plan
(:mod:`tidegate.storage.sql.connection`). A value may be read from there if it means the same: it has the type it would have
as a parameter. Text has not: as a parameter it adapts to what it meets, and may be read only where it meets text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from sqlglot import exp

from tidegate.storage.sql.connection import BaseConnection, certain_type, values_row

_CONSTANT = (exp.Order, exp.Group, exp.Limit, exp.Offset, exp.Window, exp.Lambda)  # may want constants there
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
_MOST = 32  # combinations of types that are kept

Families = Mapping[str, set[str]]


class Text:
    """The text of one query. ``parts(row)``: its WITH entries and the rest, the values read from ``row``, if any."""

    def __init__(self, tree: exp.Expression, families: Families) -> None:
        self._tree = tree
        placeholders = list(tree.find_all(exp.Placeholder))
        self.names = sorted({str(node.this) for node in placeholders}, key=lambda name: int(name[1:]))
        self._feeds = not any(node.find_ancestor(*_CONSTANT) for node in placeholders)
        self._not_text = {str(node.this) for node in placeholders if not _meets_text(node, families)}
        self._parts: dict[str, tuple[list[str], str]] = {}
        clause = tree.args.get("with_")
        self.opening = "WITH RECURSIVE " if clause is not None and clause.args.get("recursive") else "WITH "

    def parts(self, row: str) -> tuple[list[str], str]:
        found = self._parts.get(row)
        if found is None:
            found = _parts(self._tree, row)
            if len(self._parts) < _MOST:
                self._parts[row] = found
        return found

    def refuse(self) -> None:
        """DuckDB wants parameters in the places where they stand."""
        self._feeds = False

    def shown(self, connection: BaseConnection, given: Mapping[str, Any]) -> str:
        """Show these values to DuckDB; returns where. Empty if they have to be parameters."""
        if not given or not self._feeds:
            return ""
        typed: dict[str, tuple[Any, pa.DataType]] = {}
        for name, value in given.items():
            kind = pa.string() if type(value) is str and name not in self._not_text else certain_type(value)
            if kind is None:
                return ""
            typed[name] = value, kind
        row, table = values_row(typed)
        connection.show(row, table)
        return row


def _parts(tree: exp.Expression, row: str) -> tuple[list[str], str]:
    tree = tree.copy()
    if row:
        for node in list(tree.find_all(exp.Placeholder)):
            name = exp.column(exp.to_identifier(str(node.this), quoted=True))
            table = exp.Table(this=exp.to_identifier(row, quoted=True))
            node.replace(exp.Subquery(this=exp.Select(expressions=[name], from_=exp.From(this=table))))
    clause = tree.args.get("with_")
    entries = [entry.sql("duckdb") for entry in clause.expressions] if clause is not None else []
    tree.set("with_", None)
    return entries, tree.sql("duckdb")


def _meets_text(node: exp.Placeholder, families: Families) -> bool:
    parent: Any = node.parent
    if isinstance(parent, exp.Cast):
        return True
    others: Sequence[Any] = ()
    if isinstance(parent, _COMPARED):
        others = [parent.expression if parent.this is node else parent.this]
    elif isinstance(parent, exp.In) and parent.this is not node:
        others = [parent.this]
    return bool(others) and all(
        isinstance(other, exp.Column) and families.get(other.name.lower()) == {"text"} for other in others
    )
