"""Which columns a DML statement assigns to."""

from __future__ import annotations

from sqlglot import exp

from tidegate.storage.schema import TableSchema


def place_of(schema: TableSchema, name: str) -> int:
    """The place of a column, named as SQL names it: in any case."""
    place = schema.index_of.get(name)
    if place is None:
        place = next(i for n, i in schema.index_of.items() if n.lower() == name.lower())
    return place


def is_default(node: exp.Expression) -> bool:
    """Is this the keyword DEFAULT?"""
    if isinstance(node, exp.Var):
        return str(node.this).upper() == "DEFAULT"
    return (
        isinstance(node, exp.Column)
        and node.name.upper() == "DEFAULT"
        and not node.table
        and not node.this.args.get("quoted")
    )


def insert_places(tree: exp.Expression, schema: TableSchema) -> list[int]:
    """The columns that INSERT gives values for, in its order."""
    if isinstance(tree.this, exp.Schema):
        return [place_of(schema, node.name) for node in tree.this.expressions]
    return list(range(len(schema.columns)))
