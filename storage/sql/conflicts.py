"""ON CONFLICT: which rows count as a conflict, and what DO UPDATE then stores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

from tidegate.storage.changes import OnConflict
from tidegate.storage.schema import Row
from tidegate.storage.sql.assignments import insert_places, place_of
from tidegate.storage.sql.codes import Fold, NotCompilable, Scope, conjuncts
from tidegate.storage.sql.expressions import Compiler
from tidegate.storage.sql.parsing import Parsed, target_table
from tidegate.storage.view import View


class Clause:
    """The parts of ON CONFLICT (or INSERT OR REPLACE / OR IGNORE) that both paths need."""

    def __init__(self, parsed: Parsed) -> None:
        assert parsed.target is not None
        self.schema = parsed.target
        clause = parsed.tree.args.get("conflict")
        alternative = str(parsed.tree.args.get("alternative") or "").upper()
        self.present = clause is not None or alternative in {"REPLACE", "IGNORE"}
        self.columns: frozenset[str] = frozenset()
        self.assignments: list[tuple[int, exp.Expression]] = []
        self.where: exp.Expression | None = None
        self.updates = False
        if clause is not None:
            self._read(clause)
        elif alternative == "REPLACE":
            self.updates = True
            self.assignments = _replace_all(parsed)

    def _read(self, clause: exp.Expression) -> None:
        names = [
            key.this.name if isinstance(key, exp.Ordered) else key.name
            for key in clause.args.get("conflict_keys") or []
        ]
        self.columns = frozenset(self.schema.columns[place_of(self.schema, name)].name for name in names)
        self.updates = "UPDATE" in str(clause.args.get("action") or "").upper()
        self.where = clause.args.get("where")
        for node in clause.expressions if self.updates else ():
            self.assignments.append((place_of(self.schema, node.this.name), node.expression))


def _replace_all(parsed: Parsed) -> list[tuple[int, exp.Expression]]:
    """INSERT OR REPLACE is DO UPDATE SET column = excluded.column for every column outside the key."""
    schema = parsed.target
    assert schema is not None
    return [
        (place, exp.column(exp.to_identifier(schema.columns[place].name, quoted=True), table="excluded"))
        for place in insert_places(parsed.tree, schema)
        if place not in schema.key_indexes
    ]


def compiled_conflict(parsed: Parsed, fold: Fold) -> OnConflict | None:
    clause = Clause(parsed)
    if not clause.present:
        return None
    if not clause.updates:
        return OnConflict(clause.columns, None)
    schema = clause.schema
    alias = target_table(parsed.tree).alias_or_name
    scope = Scope().add(schema, alias, "row").add(schema, "excluded", "new", bare=False)
    compiler = Compiler(scope, fold, parsed.parameters.count, parsed.draws)
    compiler.namespace["stored"] = schema.named
    texts = [f"row[{place}]" for place in range(len(schema.columns))]
    for place, node in clause.assignments:
        if place in schema.key_indexes:
            raise NotCompilable
        texts[place] = compiler.assigned(node, schema.columns[place], schema)
    renew = compiler.function(f"stored(({', '.join(texts)},))", "row, new, p")
    matches: Any = compiler.function(compiler.predicate(conjuncts(clause.where)), "row, new, p")

    def resolve(view: View, pairs: Sequence[tuple[Row, Row]], values: Sequence[Any]) -> Sequence[Row | None]:
        return [renew(old, new, values) if matches(old, new, values) else None for old, new in pairs]

    return OnConflict(clause.columns, resolve)
