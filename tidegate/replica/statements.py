"""From SQL text to what the replica runs: AS OF taken off, catalog queries rewritten, everything checked."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import duckdb
import sqlglot
from sqlglot import exp

from tidegate.errors import QueryRefused, TidegateError
from tidegate.replica import text
from tidegate.replica.catalog.rewrite import mentions_catalog, rewritten
from tidegate.replica.guard import Guard, Reading
from tidegate.replica.mirror import MergedState, Mirror

REMEMBERED = 500  # statements whose check is kept
SHORT = 20_000  # longer ones are checked every time


@dataclass(frozen=True)
class Prepared:
    """A statement that may run. ``reading`` says what it reads."""

    sql: str
    reading: Reading
    as_of: int | None = None
    catalog: bool = False  # it reads PostgreSQL's catalog


class Statements:
    """Prepares statements, and caches those it has seen."""

    def __init__(self, mirror: Mirror, longest: int) -> None:
        self._mirror = mirror
        self._longest = longest
        self._tables = {name.lower(): name for name in mirror.tables}
        self._guard = Guard(self._tables, {name.lower(): name for name in mirror.views})
        self._seen: OrderedDict[str, Prepared] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self, sql: str) -> Prepared:
        """Check a statement; raises QueryRefused or QueryFailed. Runs on a worker: a text can take a while to read."""
        with self._lock:
            found = self._seen.get(sql)
            if found is not None:
                self._seen.move_to_end(sql)
                return found
        try:
            prepared = self._prepare(sql)
        except TidegateError:
            raise
        except Exception as error:  # what can't be parsed can't be checked: parsers raise all kinds of errors
            told = (str(error).splitlines() or [""])[0]
            raise QueryRefused(f"this can't be read as a query ({told})", sqlstate="42601", sql=sql) from None
        if len(sql) <= SHORT:
            with self._lock:
                self._seen[sql] = prepared
                if len(self._seen) > REMEMBERED:
                    self._seen.popitem(last=False)
        return prepared

    def _prepare(self, sql: str) -> Prepared:
        self.check_length(sql)
        plain, as_of = text.as_of(sql)
        cursor = self._mirror.cursor()
        try:
            if mentions_catalog(plain):
                changed = rewritten(plain)
                return Prepared(changed, self._guard.check(cursor, changed, rewritten=True), as_of, True)
            return Prepared(plain, self._guard.check(cursor, plain), as_of)
        finally:
            cursor.close()

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
