"""``ev MATCH_RECOGNIZE (…)`` as the arguments of :func:`~.declare.pattern`: one plan, whichever way it is written.

In SQL a match is made of neighbours (``select="strict"``), and the next one begins after its last row. A repetition
at the end is *greedy* there: it goes on as long as it can, which in a stream nobody knows until it is over. So it
is refused; ``b+?`` at the end (reluctant: as few as possible) means the same here as in SQL.

Where a row fits two elements (``b`` again, or ``c``), SQL prefers the first as long as the match can be completed, which needs
rows that have not come; here both are tried, and what is complete first is a match.
"""

from __future__ import annotations

import re
from typing import Any

import sqlglot
from sqlglot import exp

from tidegate.errors import DeclarationError
from tidegate.storage.sql.parameters import for_sqlglot
from tidegate.streams.windows.patterns.automaton import automaton_of
from tidegate.streams.windows.patterns.text import PatternText, parse
from tidegate.streams.windows.patterns.values import interval

_WITHIN = re.compile(
    r"\bWITHIN\s+(?:INTERVAL\s+'(?P<length>[^']+)'\s*(?P<unit>(?!DEFINE\b)[A-Za-z]+)?|'(?P<text>[^']+)'|(?P<number>\d+))",
    re.IGNORECASE,
)
_STRINGS = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|--[^\n]*")
_PART = re.compile(r"\s*(?:(?P<name>[^\W\d]\w*)|(?P<times>(?:\{[^}-]*\}|[+*?])\??)|(?P<sign>[()|,])|(?P<wrong>\S))")
_SKIP = re.compile(r"AFTER MATCH SKIP (?:(PAST LAST ROW)|(TO NEXT ROW)|TO (?:(FIRST|LAST) )?(\w+))", re.IGNORECASE)


def arguments_of(sql: str) -> dict[str, Any]:
    """What ``pattern()`` is called with.

    >>> arguments_of("ev MATCH_RECOGNIZE (PARTITION BY k ORDER BY t PATTERN (a b c) DEFINE a AS v > 3)")["match"]
    'SEQ(a, b, c)'
    """
    text, within = without_within(sql)
    select = text if re.match(r"\s*(SELECT|WITH)\b", text, re.IGNORECASE) else f"SELECT * FROM {text}"
    try:
        tree = sqlglot.parse_one(for_sqlglot(select), dialect="snowflake")  # DuckDB's dialect does not have it
    except sqlglot.errors.SqlglotError as error:
        raise DeclarationError(f"pattern.sql: this is not valid: {error}") from None
    found = tree.find(exp.MatchRecognize)
    table = tree.find(exp.Table)
    if found is None or table is None:
        raise DeclarationError(
            "pattern.sql: write stream MATCH_RECOGNIZE (PARTITION BY … ORDER BY … PATTERN (…) DEFINE …)"
        )
    return arguments(table.name, found, within)


def without_within(sql: str) -> tuple[str, str | int | None]:
    """The text without ``WITHIN INTERVAL '5' MINUTE`` (or ``WITHIN '5m'``), which SQL's parsers do not know, and its length."""
    hidden = _STRINGS.sub(lambda one: "x" * len(one[0]), sql)
    found = next(
        (one for one in _WITHIN.finditer(sql) if hidden[one.start() : one.start() + 6].upper() == "WITHIN"), None
    )
    if found is None:
        return sql, None
    rest = sql[: found.start()] + sql[found.end() :]
    if found["number"]:
        return rest, int(found["number"])
    if found["text"]:
        return rest, found["text"]
    length = interval(f"{found['length']} {found['unit'] or ''}")
    if length is None:
        raise DeclarationError(
            f"pattern.sql: {found[0]} is no length of time; write WITHIN INTERVAL '5' MINUTE, or WITHIN '5m'"
        )
    return rest, f"{length.total_seconds():.6f}s"


def arguments(stream: str, tree: exp.MatchRecognize, within: str | int | None = None) -> dict[str, Any]:
    """The same of a syntax tree: for SQL that has it somewhere inside."""
    rows = tree.args.get("rows")
    if rows is not None and "ALL ROWS" in rows.name.upper():
        raise DeclarationError(
            "pattern.sql: results are one row per match; its rows are in txn.window(…).matches. Write ONE ROW PER MATCH"
        )
    order = tree.args.get("order")
    ordered = [] if order is None else order.expressions
    columns = [one.this for one in ordered if not one.args.get("desc")]
    if len(ordered) != 1 or not columns or not isinstance(columns[0], exp.Column):
        raise DeclarationError("pattern.sql: ORDER BY names one column, the rows' time")
    partition = [*(tree.args.get("partition_by") or [])]
    if not all(isinstance(one, exp.Column) for one in partition):
        raise DeclarationError("pattern.sql: PARTITION BY names columns")
    written = tree.args["pattern"].name
    match = match_of(written)
    _refuse_greedy(written, match)
    names = {name.lower(): name for name in re.findall(r"[^\W\d]\w*", match) if name not in ("SEQ", "OR", "AND")}
    return {
        "stream": stream,
        "match": match,
        "on": columns[0].name,
        "by": tuple(one.name for one in partition),
        "define": {
            names.get(one.alias.lower(), one.alias): _text(one.this, names) for one in tree.args.get("define") or []
        },
        "measures": {
            one.this.alias_or_name: _text(one.this.unalias(), names) for one in tree.args.get("measures") or []
        },
        "within": within,
        "select": "strict",
        "after": _after(tree.args.get("after"), names),
    }


def _text(tree: exp.Expression, names: dict[str, str]) -> str:
    """An expression, with the names of rows as they are in PATTERN."""

    def spelled(node: exp.Expression) -> exp.Expression:
        if isinstance(node, exp.Column) and node.table.lower() in names:
            node.set("table", exp.to_identifier(names[node.table.lower()]))
        return node

    return tree.transform(spelled).sql("duckdb")


def _after(after: exp.Expression | None, names: dict[str, str]) -> str:
    if after is None:
        return "past_last"
    found = _SKIP.fullmatch(after.name.strip())
    if found is None:
        raise DeclarationError(f"pattern.sql: {after.name} is not known")
    if found[4] is not None:
        return f"to_{(found[3] or 'LAST').lower()}({names.get(found[4].lower(), found[4])})"
    return "past_last" if found[1] else "to_next"


def match_of(written: str) -> str:
    """``a b+ (c | d)`` as ``SEQ(a, b+, OR(c, d))``.

    >>> match_of("a b+ (c | d){2} PERMUTE(e, f)")
    'SEQ(a, b+, OR(c, d){2}, AND(e, f))'
    """
    return _Reader(written).whole()


class _Reader:
    def __init__(self, written: str) -> None:
        self.written = written
        self.tokens: list[tuple[str, str]] = []
        for found in _PART.finditer(written):
            kind = str(found.lastgroup)
            if kind == "wrong":
                raise self.wrong(found.start(kind), f"{found[kind]!r} is not known here")
            self.tokens.append((kind, found[kind]))
        self.place = 0

    def wrong(self, at: int, why: str) -> DeclarationError:
        return DeclarationError(
            f"pattern.sql: {why}, at character {at + 1} of PATTERN\n  {self.written}\n  {' ' * at}^"
        )

    def peek(self) -> tuple[str, str]:
        return self.tokens[self.place] if self.place < len(self.tokens) else ("end", "")

    def take(self) -> tuple[str, str]:
        self.place += 1
        return self.tokens[self.place - 1]

    def whole(self) -> str:
        found = self.alternatives()
        if self.peek()[0] != "end":
            raise self.wrong(len(self.written), f"{self.peek()[1]!r} is left over")
        return found if found.startswith(("SEQ(", "OR(", "AND(")) else f"SEQ({found})"

    def alternatives(self) -> str:
        found = [self.sequence()]
        while self.peek()[1] == "|":
            self.take()
            found.append(self.sequence())
        return found[0] if len(found) == 1 else f"OR({', '.join(found)})"

    def sequence(self) -> str:
        found = []
        while self.peek()[0] == "name" or self.peek()[1] == "(":
            part = self.part()
            while self.peek()[0] == "times":
                times = self.take()[1]
                part += times[:-1] if len(times) > 1 and times.endswith("?") else times
            found.append(part)
        if not found:
            raise self.wrong(len(self.written), "a part is missing")
        return found[0] if len(found) == 1 else f"SEQ({', '.join(found)})"

    def part(self) -> str:
        kind, text = self.take()
        if kind == "name" and text.upper() != "PERMUTE":
            return text
        parts = [self.closed()] if text == "(" else self.permuted()
        if text != "(":
            return f"AND({', '.join(parts)})"
        return parts[0] if parts[0].endswith(")") else f"({parts[0]})"

    def closed(self) -> str:
        found = self.alternatives()
        if self.peek()[1] != ")":
            raise self.wrong(len(self.written), "')' is missing")
        self.take()
        return found

    def permuted(self) -> list[str]:
        self.take()
        found = [self.alternatives()]
        while self.peek()[1] == ",":
            self.take()
            found.append(self.alternatives())
        self.take()
        return found


def _refuse_greedy(written: str, match: str) -> None:
    if re.search(r"[+*?}]\?\s*\)*\s*$", written):
        return
    automaton = automaton_of(parse("pattern.sql", match), PatternText("pattern.sql", match))
    if any(automaton.edges[position] for position in automaton.ends):
        raise DeclarationError(
            f"pattern.sql: PATTERN ({written}) ends with a repetition, which in SQL goes on for as long as it can; in a stream "
            f"nobody knows when that is. Name the row that ends it, PATTERN ({written} z), or take as few as possible: "
            "b+? in place of b+"
        )
