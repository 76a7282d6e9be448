"""Tables that are declared differently than they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

from tidegate.dataflows.app import App
from tidegate.directory.upgrading.changes import Drops, Plan, Verdict, bound, drop_or_refuse, rows
from tidegate.directory.upgrading.declared import table_facts
from tidegate.errors import TidegateError
from tidegate.storage.ddl import quote
from tidegate.storage.maintained import PREFIX
from tidegate.storage.migration import Reshape, Source, StoredBase, Trial, constant_default, is_wider
from tidegate.storage.schema import Column, TableSchema

COPY = "Declare a new table with it, copy the rows in a procedure, then drop the old one"


def plan_tables(plan: Plan, app: App, meta: Mapping[str, Any], base: StoredBase, drops: Drops) -> None:
    stored = meta["declared"]["tables"]
    renamed = {name: old for (kind, name), old in app.renamed.items() if kind == "table"}
    plan.tables = bound(stored, app.tables, renamed)
    aside = {entry[0] for entry in meta.get("set_aside", ())}
    for name, facts in stored.items():
        new = plan.tables.get(name)
        if new is None and name.startswith(PREFIX):
            plan.add("table", name, "it held a materialized view, which is gone or has changed", Verdict.DROPPED)
            plan.forgotten.add(("table", name))
        elif new is None:
            what = f"it is stored with {rows(base.count(name))}, but the app no longer declares it"
            drop_or_refuse(plan, drops, "table", name, what, "Declare it again, say renamed_from= where it is now")
        else:
            _Table(plan, app, app.tables[new], name, facts, base, drops, name in aside).compare()
    for name, schema in app.tables.items():
        if name not in plan.tables.values():
            plan.created.append(schema)
            plan.add("table", name, "it is new", Verdict.ADDED)


class _Table:
    def __init__(
        self,
        plan: Plan,
        app: App,
        schema: TableSchema,
        stored: str,
        facts: Mapping[str, Any],
        base: StoredBase,
        drops: Drops,
        aside: bool,
    ) -> None:
        self.plan = plan
        self.app = app
        self.schema = schema
        self.stored = stored
        self.facts = facts
        self.base = base
        self.drops = drops
        self.aside = aside
        self.old = {name: (place, kind, nullable) for place, (name, kind, nullable, _) in enumerate(facts["columns"])}
        self.converted = False

    @cached_property
    def count(self) -> int:
        return self.base.count(self.stored)

    def compare(self) -> None:
        plan, schema = self.plan, self.schema
        if schema.name != self.stored:
            plan.add("table", schema.name, f"it was called {self.stored}", Verdict.CARRIED)
        if table_facts(schema) == self.facts:
            if schema.name != self.stored:
                self._reshape([Source(c, place) for place, c in enumerate(schema.columns)])
            return
        if list(schema.primary_key) != self.facts["key"]:
            now = f"PRIMARY KEY ({', '.join(schema.primary_key)})"
            was = f"PRIMARY KEY ({', '.join(self.facts['key'])})"
            plan.refuse("table", schema.name, f"it is stored with {was}, but declared with {now}", COPY)
            return
        before = len(plan.refused)
        sources = [self._source(column) for column in schema.columns]
        self._dropped_columns()
        if len(plan.refused) == before:
            reshape = self._reshape(sources)
            self._constraints(reshape)
            self._order_and_partitions()

    def _reshape(self, sources: list[Source]) -> Reshape:
        names = tuple(name for name, *_ in self.facts["columns"])
        reshape = Reshape(self.stored, names, self.schema, tuple(sources), self.converted)
        if reshape.rewritten or len(names) < len(sources) or self.schema.name != self.stored:
            self.plan.reshapes.append(reshape)
        return reshape

    def _source(self, column: Column) -> Source:
        if column.name not in self.old:
            return self._added(column)
        place, kind, nullable = self.old[column.name]
        full = f"{self.schema.name}.{column.name}"
        if kind != column.type.sql:
            if is_wider(kind, column.type.sql):
                self.converted = True
                self.plan.add("column", full, f"{kind} becomes {column.type}, which is wider", Verdict.CARRIED)
            else:
                what = f"it is stored as {kind}, but declared as {column.type}, which does not hold every such value"
                remedy = "Add a column of the new type and fill it in a procedure; drop the old one later"
                self.plan.refuse("column", full, what, remedy)
        if column.nullable and not nullable:
            self.plan.add("column", full, "it may be NULL from now on", Verdict.CARRIED)
        default = self.facts["columns"][place][3]
        if default != column.default:
            now = f"DEFAULT {column.default}" if column.default is not None else "no DEFAULT"
            self.plan.add("column", full, f"{now} for new rows; stored ones stay as they are", Verdict.CARRIED)
        return Source(column, place)

    def _added(self, column: Column) -> Source:
        full, plan = f"{self.schema.name}.{column.name}", self.plan
        fill = None
        if column.default is not None:
            try:
                fill = constant_default(column, self.app.scratch)
            except (ValueError, TidegateError) as error:
                if self.count:
                    what = f"it is new, and has no value for the {rows(self.count)} stored: {error}"
                    plan.refuse("column", full, what, "Add it without DEFAULT and fill it in a procedure")
        if fill is None and not column.nullable and self.count and column.default is None:
            what = f"it is new and NOT NULL without a DEFAULT, so it has no value for the {rows(self.count)} stored"
            plan.refuse("column", full, what, "Give it a DEFAULT, or let it be NULL")
        elif fill is None:
            plan.add("column", full, f"it is new, NULL in {rows(self.count)}", Verdict.ADDED)
        else:
            plan.add("column", full, f"it is new, {fill!r} in {rows(self.count)}", Verdict.FILLED)
        return Source(column, None, fill)

    def _dropped_columns(self) -> None:
        for name in self.old:
            if name not in self.schema.index_of:
                what = f"it holds the values of {rows(self.count)}, but the table no longer declares it"
                drop_or_refuse(self.plan, self.drops, "column", f"{self.schema.name}.{name}", what, "Declare it again")

    def _constraints(self, reshape: Reshape) -> None:
        """What is newly required is tried on the stored rows; what is no longer required is forgotten."""
        now = table_facts(self.schema)
        tried = [
            Trial(reshape, f"NOT NULL of {column.name}", f"{quote(column.name)} IS NULL")
            for column in self.schema.columns
            if not column.nullable and self._may_be_null(column)
        ]
        tried += [
            Trial(reshape, f"CHECK ({check})", f"NOT ({check})")
            for check in now["checks"]
            if check not in self.facts["checks"]
        ]
        tried += [
            Trial(reshape, f"UNIQUE ({', '.join(unique)})", unique=tuple(unique))
            for unique in now["unique"]
            if unique not in self.facts["unique"]
        ]
        for trial in tried:
            if self.aside:
                what = f"{trial.told} is new, but the table has rows that DuckDB set aside, which can't be tried"
                self.plan.refuse("table", self.schema.name, what, "Change or delete them in a procedure first")
        self.plan.trials.extend(() if self.aside else tried)
        gone = [f"CHECK ({check})" for check in self.facts["checks"] if check not in now["checks"]]
        gone += [f"UNIQUE ({', '.join(u)})" for u in self.facts["unique"] if u not in now["unique"]]
        for told in gone:
            self.plan.add("table", self.schema.name, f"{told} is no longer required", Verdict.CARRIED)

    def _may_be_null(self, column: Column) -> bool:
        """In a stored row; a new column has its default there."""
        return bool(self.old[column.name][2]) if column.name in self.old else column.default is not None

    def _order_and_partitions(self) -> None:
        kept = [name for name in self.schema.index_of if name in self.old]
        if kept != [name for name in self.old if name in self.schema.index_of]:
            self.plan.add("table", self.schema.name, "its columns are in another order", Verdict.CARRIED)
        if self.facts["partition_by"] != list(self.schema.partition_by):
            now = ", ".join(self.schema.partition_by) or "nothing"
            self.plan.add("table", self.schema.name, f"it is partitioned by {now} from now on", Verdict.CARRIED)
        expiry = self.schema.expiry
        if self.facts.get("expire") != (None if expiry is None else [expiry.column, str(expiry.after)]):
            how = "do not expire" if expiry is None else f"expire {expiry.after} after {expiry.column}"
            self.plan.add("table", self.schema.name, f"its rows {how} from now on", Verdict.CARRIED)
