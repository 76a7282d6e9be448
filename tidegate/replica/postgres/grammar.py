"""PostgreSQL's grammar without sqlglot's knowledge of functions.

sqlglot turns functions that it knows into those of the other dialect, well or less well, and says nothing where they
differ. Here every function keeps its name until :mod:`tidegate.replica.postgres.functions` has decided about it.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.postgres import Postgres

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.replica import text

LONGEST = 100_000  # characters that are read: a long statement occupies the interpreter
_LABEL = re.compile(r"(?:\bas\s+|\.\s*)(?:select|not)\b", re.IGNORECASE)
_AFTER_LABEL = ("", ",", ")", ";", "from", "where", "union", "intersect", "except", "order", "group", "limit")
_SPECIAL = ("CAST", "EXTRACT", "OVERLAY", "POSITION", "SUBSTRING", "TRIM")


_PostgresParser: Any = Postgres.Parser
_DuckDBParser: Any = DuckDB.Parser


class Wire(Postgres):
    """What clients send."""

    class Parser(_PostgresParser):  # type: ignore[misc]
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {name: _PostgresParser.FUNCTION_PARSERS[name] for name in _SPECIAL}


class WireDuck(DuckDB):
    """Forms of DuckDB that PostgreSQL does not have: FROM first, lists, QUALIFY."""

    class Parser(_DuckDBParser):  # type: ignore[misc]
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: _DuckDBParser.FUNCTION_PARSERS[name] for name in _SPECIAL if name != "OVERLAY"
        }


def labelled(sql: str) -> str:
    """With quotes around ``select`` and ``not`` where they are names of columns, which sqlglot can't tell.

    >>> labelled("SELECT 1 AS select, t.not FROM t")
    'SELECT 1 AS "select", t."not" FROM t'
    """
    if not _LABEL.search(sql):
        return sql
    found = [(sql[begin:end], begin, end) for kind, begin, end in text.tokens(sql) if kind != "space"]
    parts, done = [], 0
    for place in range(1, len(found)):
        word, begin, end = found[place]
        if word.lower() not in ("select", "not"):
            continue
        before = found[place - 1][0].lower()
        after = found[place + 1][0].lower() if place + 1 < len(found) else ""
        if before == "." or (before == "as" and after in _AFTER_LABEL):
            parts += [sql[done:begin], f'"{word.lower()}"']
            done = end
    return "".join([*parts, sql[done:]])


def parsed(sql: str) -> exp.Expr:
    """The statement's tree; forms that only DuckDB has are read too."""
    if len(sql) > LONGEST:
        raise QueryRefused(
            f"a statement of {len(sql):,} characters; at most {LONGEST:,} are read here. Send long lists as a parameter "
            "(= ANY($1))",
            sqlstate="54000",
        )
    hidden, told = labelled(text.hide_parameters(sql)), ""
    for dialect in (Wire, WireDuck):
        try:
            trees = sqlglot.parse(hidden, dialect=dialect)
        except (sqlglot.errors.SqlglotError, RecursionError) as error:
            told = told or (str(error).splitlines() or ["too deeply nested"])[0]
            continue
        if len(trees) != 1 or trees[0] is None:
            raise QueryRefused("one statement at a time", sqlstate="42601")
        if not isinstance(trees[0], exp.Command):
            return trees[0]
    raise QueryFailed(f"this is not understood: {told or 'not a query'}", sqlstate="42601")
