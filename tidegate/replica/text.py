"""Reading SQL text without understanding it: where statements end, and where parameters are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

STAND_IN = "tg_parameter"  # the name of a parameter while sqlglot processes the statement

_TOKEN = re.compile(
    r"""
      (?P<space>\s+ | --[^\n]*)
    | (?P<comment>/\*)
    | (?P<escaped>[eE]'(?:[^'\\]|\\.|'')*(?:'|$))
    | (?P<string>'(?:[^']|'')*(?:'|$))
    | (?P<name>"(?:[^"]|"")*(?:"|$))
    | (?P<dollar>\$(?P<tag>[A-Za-z_]\w*)?\$)
    | (?P<parameter>\$\d+)
    | (?P<word>[A-Za-z_\x80-\U0010ffff][\w$\x80-\U0010ffff]*)
    | (?P<other>\d+|.)
    """,
    re.VERBOSE | re.DOTALL,
)


def tokens(sql: str) -> Iterator[tuple[str, int, int]]:
    """(kind, start, end) of every token; comments and blanks are of kind ``space``."""
    place = 0
    while place < len(sql):
        match = _TOKEN.match(sql, place)
        assert match is not None
        kind, end = str(match.lastgroup), match.end()
        if kind == "tag":
            kind = "dollar"
        if kind == "comment":
            kind, end = "space", _comment_end(sql, end)
        elif kind == "dollar":
            closing = sql.find(match["dollar"], end)
            kind, end = "string", len(sql) if closing < 0 else closing + len(match["dollar"])
        elif kind == "escaped":
            kind = "string"
        yield kind, place, end
        place = end


def _comment_end(sql: str, place: int) -> int:
    """Block comments nest, as in PostgreSQL."""
    depth = 1
    for match in re.compile(r"/\*|\*/").finditer(sql, place):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return len(sql)


def split(sql: str) -> list[str]:
    """The statements of a text, without their semicolons; empty ones left out."""
    parts, start, found = [], 0, False
    for kind, begin, end in tokens(sql):
        if kind == "other" and sql[begin] == ";":
            if found:
                parts.append(sql[start:begin])
            start, found = end, False
        elif kind != "space":
            found = True
    if found:
        parts.append(sql[start:])
    return [part.strip() for part in parts]


def words(sql: str, limit: int = 8) -> list[str]:
    """The first words and signs of a statement, in lower case."""
    found: list[str] = []
    for kind, begin, end in tokens(sql):
        if kind != "space":
            found.append(sql[begin:end].lower())
            if len(found) == limit:
                break
    return found


def parameters(sql: str) -> int:
    """How many parameters ``$1`` … ``$n`` the text has."""
    return max((_number(sql, begin, end) for kind, begin, end in tokens(sql) if kind == "parameter"), default=0)


def _number(sql: str, begin: int, end: int) -> int:
    """The number of a parameter; very high ones are all treated alike, and none is allowed."""
    return int(sql[begin + 1 : end]) if end - begin < 10 else 10**9


def with_parameters(sql: str, written: Callable[[int], str]) -> str:
    """The text with every ``$n`` rewritten."""
    parts, place = [], 0
    for kind, begin, end in tokens(sql):
        if kind == "parameter":
            parts += [sql[place:begin], written(_number(sql, begin, end))]
            place = end
    return "".join([*parts, sql[place:]])


def as_of(sql: str) -> tuple[str, int | None]:
    """The statement without a closing ``AS OF [POSITION] n``, and n."""
    found = [(sql[begin:end].lower(), begin) for kind, begin, end in tokens(sql) if kind != "space"]
    for size in (3, 4):
        tail = [text for text, _ in found[-size:]]
        if len(found) > size and tail[:2] == ["as", "of"] and tail[-1].isdigit() and tail[2:-1] in ([], ["position"]):
            return sql[: found[-size][1]].rstrip(), int(tail[-1])
    return sql, None


def hide_parameters(sql: str) -> str:
    """Every ``$n`` as a function call: sqlglot takes ``$1, $`` for the beginning of a quoted text."""
    return with_parameters(sql, lambda number: f"{STAND_IN}({number})")


def show_parameters(sql: str) -> str:
    """The reverse."""
    return re.sub(rf"\b{STAND_IN}\((\d+)\)", r"$\1", sql, flags=re.IGNORECASE)
