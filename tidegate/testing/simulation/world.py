"""What all simulated apps share: tables, stream columns and SQL, and DuckDB databases that are reused.

Opening DuckDB and declaring tables costs many times what a simulated run does, so both are done once per
process.
"""

from __future__ import annotations

import copy
from pathlib import Path

from tidegate.clock import Clock
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import Stream
from tidegate.engine.engine import Engine
from tidegate.storage.base import Base, base_name
from tidegate.storage.database import Database
from tidegate.storage.schema import Relation, TableSchema

COLUMNS = "k INTEGER NOT NULL, x BIGINT NOT NULL, j INTEGER"
STREAMS = 32
MORE_STREAMS = 12  # of dataflows that get streams with a key of their own
DEADLINE_S = 60.0

PLAIN = {
    "plain": """CREATE TABLE plain (id INTEGER PRIMARY KEY, v BIGINT NOT NULL, d DOUBLE, tag INTEGER);
                CREATE INDEX plain_tag ON plain (tag)""",
    "named": "CREATE TABLE named (id INTEGER PRIMARY KEY, v BIGINT NOT NULL, d DOUBLE, tag INTEGER UNIQUE)",
    "bounded": """CREATE TABLE bounded (id INTEGER PRIMARY KEY, v BIGINT NOT NULL CHECK (v < 900), d DOUBLE,
                                        tag INTEGER)""",
    "fading": """CREATE TABLE fading (id INTEGER PRIMARY KEY, v BIGINT NOT NULL, d DOUBLE, tag INTEGER UNIQUE,
                                      seen TIMESTAMP)""",
}
PARTITIONED = {
    "parts": """CREATE TABLE parts (k INTEGER, id INTEGER, v BIGINT NOT NULL, d DOUBLE, tag INTEGER,
                                    PRIMARY KEY (k, id));
                CREATE INDEX parts_tag ON parts (tag)""",
    "places": """CREATE TABLE places (k INTEGER, id INTEGER, v BIGINT NOT NULL, d DOUBLE, tag INTEGER,
                                      PRIMARY KEY (k, id), UNIQUE (k, tag))""",
    "visits": """CREATE TABLE visits (k INTEGER, id INTEGER, v BIGINT NOT NULL, d DOUBLE, tag INTEGER, seen TIMESTAMP,
                                      PRIMARY KEY (k, id))""",
}
EXPIRING = {"fading": "3ms", "visits": "6ms"}  # an input takes a millisecond
SIDES = ("left_side", "right_side")  # always changed together: any consistent state has equal rows in both


VIEWS = """
CREATE MATERIALIZED VIEW of_plain AS SELECT tag, count(*) AS n, sum(v) AS v, sum(d) AS d, min(v) AS least, max(d) AS most FROM plain GROUP BY tag;
CREATE MATERIALIZED VIEW of_parts AS SELECT k, count(*) AS n, sum(d) AS d, count(DISTINCT tag) AS tags FROM parts GROUP BY k;
CREATE MATERIALIZED VIEW of_both AS SELECT l.id, l.v + r.v AS v FROM left_side l JOIN right_side r ON r.id = l.id;
"""  # noqa: E501

LATE = "late"  # the border stream that only timers feed


class World:
    """One process's shared declarations."""

    def __init__(self) -> None:
        self._template = App("simulated")
        for name, ddl in PLAIN.items():
            self._template.table(ddl, expire=_expire(name))
        for name, ddl in PARTITIONED.items():
            self._template.table(ddl, partition_by="k", expire=_expire(name))
        for side in SIDES:
            self._template.table(f"CREATE TABLE {side} (id INTEGER PRIMARY KEY, v BIGINT NOT NULL)")
        for name in (*(f"s{i}" for i in range(STREAMS)), *(f"t{i}" for i in range(MORE_STREAMS)), LATE):
            self._template.stream(name, COLUMNS, border=True)
        self._plain = dict(self._template.tables)
        self._template.declare(VIEWS)
        self._relations = {s.name: s.relation for s in self._template.streams.values()}
        self._bases: list[RecycledBase] = []

    def app(self, views: bool = False) -> App:
        """An app with the tables, perhaps with views over them, and nothing else; prepared statements that read no windows are
        shared.
        """
        app = copy.copy(self._template)
        if not views:
            app.tables, app.views, app.maintained = self._plain, {}, {}
        app._statements = {None: self._template._statements.setdefault(None, {})}
        app.streams, app.procedures, app.nested_groups, app.triggers = {}, {}, {}, []
        return app

    def stream(
        self, app: App, name: str, *, border: bool, key: str | None, awaited: bool = False, priority: int = 0
    ) -> None:
        relation: Relation = self._relations[name]
        deadline_s, default = (DEADLINE_S, ({"x": -1, "k": 0, "j": 2},)) if awaited else (None, ())
        app.streams[name] = Stream(name, relation, border, key, deadline_s, default, priority=priority)

    # ---- databases, reused

    def base(self) -> RecycledBase:
        return self._bases.pop() if self._bases else RecycledBase(self._bases)

    def database(self, app: App, cached_rows: int = 2_000_000) -> Database:
        return Database(app.tables.values(), None, cached_rows, base=self.base())

    def engine(self, app: App, config: Config, clock: Clock) -> Engine:
        return _RecyclingEngine(app, config, clock, self)


def _expire(table: str) -> tuple[str, str] | None:
    return ("seen", EXPIRING[table]) if table in EXPIRING else None


class RecycledBase(Base):
    """A base that is emptied instead of closed."""

    def __init__(self, pool: list[RecycledBase]) -> None:
        super().__init__()
        self._pool = pool
        self._known: dict[str, TableSchema] = {}

    def ensure_table(self, schema: TableSchema) -> None:
        if schema.name not in self._known:
            super().ensure_table(schema)
            self._known[schema.name] = schema

    def count(self, schema: TableSchema) -> int:
        return super().count(schema) if self.merges else 0

    def close(self) -> None:
        if self.merges:
            for schema in self._known.values():
                self.connection.execute(f"DELETE FROM {base_name(schema)}")
            self.connection.execute("DELETE FROM tidegate_meta")
            self.merges = 0
        self._pool.append(self)


class _RecyclingEngine(Engine):
    def __init__(self, app: App, config: Config, clock: Clock, world: World) -> None:
        self._world = world
        super().__init__(app, None, config, clock)

    def _open_database(self, path: Path | None) -> Database:
        return self._world.database(self.app, self.config.cached_rows)
