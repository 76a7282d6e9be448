"""From SQL text to what the replica runs: AS OF taken off, catalog queries rewritten, everything checked."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass

import duckdb
import sqlglot
from sqlglot import exp

from tidegate.errors import QueryFailed, QueryRefused, TidegateError
from tidegate.replica import text
from tidegate.replica.catalog.rewrite import mentions_catalog
from tidegate.replica.guard import Guard, Reading, failed
from tidegate.replica.mirror import MergedState, Mirror
from tidegate.replica.postgres.translate import translated

REMEMBERED = 500  # statements whose check is kept
SHORT = 20_000  # longer ones are checked every time


@dataclass(frozen=True)
class Prepared:
    """A statement that may run. ``reading`` says what it reads."""

    sql: str
    reading: Reading
    as_of: int | None = None
    catalog: bool = False  # it reads PostgreSQL's catalog
    computed: tuple[bool, ...] = ()  # per column, if known: is it an expression?


class Statements:
    """Prepares statements, and caches those it has seen."""

    def __init__(self, mirror: Mirror, longest: int) -> None:
        self._mirror = mirror
        self._longest = longest
        self._tables = {name.lower(): name for name in mirror.tables}
        named = {name.lower(): name for name in mirror.plain}
        self._guard = Guard({**self._tables, **named}, {name.lower(): name for name in mirror.views})
        self._seen: OrderedDict[tuple[str, bool], Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, sql: str, postgres: bool = False) -> Prepared:
        """Check a statement; raises QueryRefused or QueryFailed. Runs on a worker: a text can take a while to read.

        ``postgres``: it is PostgreSQL's SQL, and is to get PostgreSQL's answer.
        """
        with self._lock:
            found = self._seen.get((sql, postgres))
            if found is not None:
                self._seen.move_to_end((sql, postgres))
                return found
        try:
            prepared = self._prepare(sql, postgres)
        except TidegateError:
            raise
        except Exception as error:  # what can't be parsed can't be checked: parsers raise all kinds of errors
            told = (str(error).splitlines() or [""])[0]
            raise QueryRefused(f"this can't be read as a query ({told})", sqlstate="42601", sql=sql) from None
        if len(sql) <= SHORT:
            with self._lock:
                self._seen[sql, postgres] = prepared
                if len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
        return prepared

    def _prepare(self, sql: str, postgres: bool) -> Prepared:
        self.check_length(sql)
        plain, as_of = text.as_of(sql)
        cursor = self._mirror.cursor()
        try:
            if postgres or mentions_catalog(plain):
                return self._translated(cursor, plain, as_of)
            return Prepared(plain, self._guard.check(cursor, plain), as_of)
        finally:
            cursor.close()

    def _translated(self, cursor: duckdb.DuckDBPyConnection, sql: str, as_of: int | None) -> Prepared:
        first = text.words(sql, 2)
        if first[:1] in (["describe"], ["summarize"]):  # DuckDB's own
            return Prepared(sql, self._guard.check(cursor, sql), as_of)
        before, rest = "", sql
        if first[:1] == ["explain"]:
            before = "EXPLAIN ANALYZE " if first[1:] == ["analyze"] else "EXPLAIN "
            rest = re.sub(r"^\s*explain(\s+analyze)?", "", sql, flags=re.IGNORECASE)
        try:
            changed, computed = translated(rest, lambda probe: self._bound(cursor, probe))
        except QueryFailed as error:
            if error.sqlstate == "42601":
                self._guard.check(cursor, sql)  # what is no query is told so
            raise
        changed = before + changed
        reading = self._guard.check(cursor, changed, rewritten=True)
        return Prepared(changed, reading, as_of, mentions_catalog(sql), () if before else computed)

    def _bound(self, cursor: duckdb.DuckDBPyConnection, probe: str) -> list[str]:
        """The types of a query's columns; it is not run."""
        self._guard.check(cursor, probe, rewritten=True)
        try:
            return types_of(cursor.sql(probe))
        except duckdb.Error as error:
            raise failed(error) from None

    def check_length(self, sql: str) -> None:
        """QueryRefused for a text that is too long to be read. Comes before anything else is done with it."""
        size = len(sql) if len(sql) > self._longest else len(sql.encode(errors="surrogatepass"))
        if size > self._longest:
            raise QueryRefused(
                f"the statement has {size:,} bytes, at most {self._longest:,} are read; send long lists as a parameter "
                f"(= ANY($1)), or raise Limits.statement_bytes",
                sqlstate="54000",
            )

    def at(self, prepared: Prepared, state: MergedState) -> Prepared:
        """The statement over the tables as they were in ``state``: every table's name leads to a view of it."""
        try:
            tree = sqlglot.parse_one(text.hide_parameters(prepared.sql), dialect="duckdb")
        except (sqlglot.errors.SqlglotError, RecursionError):
            raise QueryRefused("AS OF can't be combined with this form of query", sqlstate="0A000") from None
        defined = {cte.alias_or_name.lower() for cte in tree.find_all(exp.CTE)}
        if clash := defined & self._tables.keys():
            raise QueryRefused(
                f"with AS OF a WITH query can't have the name of a table: rename {clash.pop()}", sqlstate="0A000"
            )
        for table in list(tree.find_all(exp.Table)):
            name = self._tables.get(table.name.lower())
            if name is not None and table.db.lower() in ("", "public", "main"):
                view = exp.to_table(self._mirror.as_of(state, name), dialect="duckdb")
                table.set("this", view.this)
                table.set("db", view.args["db"])
                if not table.alias:
                    table.set("alias", exp.TableAlias(this=exp.to_identifier(name, quoted=True)))
        changed = text.show_parameters(tree.sql(dialect="duckdb"))
        cursor = self._mirror.cursor()
        try:
            reading = self._guard.check(cursor, changed, rewritten=True)
        finally:
            cursor.close()
        if reading.tables:  # none may refer to the current state
            raise QueryRefused("AS OF can't be combined with this form of query", sqlstate="0A000")
        return Prepared(changed, reading, prepared.as_of, True)


def types_of(relation: duckdb.DuckDBPyRelation) -> list[str]:
    """The SQL types of a relation's columns, as DuckDB spells them."""
    return [str(kind) for kind in relation.types]
