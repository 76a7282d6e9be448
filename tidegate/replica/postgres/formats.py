"""Patterns of ``to_char`` and ``to_timestamp``: as those of strftime where there is one with the same meaning, or refused."""

from __future__ import annotations

import re

from sqlglot import exp

from tidegate.replica.postgres.operators import cast, refuse

_NUMBERS = {
    "YYYY": "%Y",
    "YY": "%y",
    "MM": "%m",
    "DDD": "%j",
    "DD": "%d",
    "HH24": "%H",
    "HH12": "%I",
    "HH": "%I",
    "MI": "%M",
    "SS": "%S",
    "MS": "%g",
    "US": "%f",
    "IYYY": "%G",
    "IW": "%V",
    "FMMM": "%-m",
    "FMDD": "%-d",
    "FMHH24": "%-H",
    "FMHH12": "%-I",
}
_NAMES = {"month": "%B", "mon": "%b", "day": "%A", "dy": "%a", "am": "%p", "pm": "%p"}
_PARTS = {"Q": "quarter", "ID": "isodow"}
_UNREAD = ("%y", "%G", "%V")  # PostgreSQL guesses the century, and mixes weeks with days in its own way
_PIECE = re.compile(
    r'"(?P<quoted>[^"]*)"|(?P<code>FMHH24|FMHH12|FMMM|FMDD|YYYY|IYYY|HH24|HH12|DDD|YY|MM|DD|HH|MI|SS|MS|US|IW|ID|Q)'
    r"|(?P<name>(?:FM)?(?:MONTH|MON|DAY|DY|AM|PM))|(?P<other>[^A-Za-z\"\\]+)|(?P<unknown>.)",
    re.IGNORECASE | re.DOTALL,
)


def _pieces(pattern: str) -> list[tuple[str, str]]:
    """(kind, text) of each piece of the pattern: "text", a "format" of strftime, a "name" or a "part"."""
    found: list[tuple[str, str]] = []
    ordered = pattern.replace("FMMonth", "\0").replace("\0", "FMMonth")
    for match in _PIECE.finditer(ordered):
        kind, piece = str(match.lastgroup), match[0]
        if kind == "unknown":
            raise refuse(f"the pattern {pattern!r}", f"{piece!r} in it has no equal in DuckDB", 'quote texts: "T"')
        if kind == "quoted":
            found.append(("text", match["quoted"]))
        elif kind == "other":
            found.append(("text", piece))
        elif kind == "name":
            found.append(("name", piece))
        elif piece.upper() in _PARTS:
            found.append(("part", _PARTS[piece.upper()]))
        else:
            found.append(("format", _NUMBERS[piece.upper()]))
    return found


def shown(value: exp.Expr, pattern: str) -> exp.Expr:
    """The time as text."""
    parts = [_shown(kind, piece, value) for kind, piece in _pieces(pattern)]
    if not parts:
        raise refuse("to_char with an empty pattern", "there is nothing to write")
    told = parts[0]
    for more in parts[1:]:
        told = exp.DPipe(this=told, expression=more, safe=False)
    return exp.Paren(this=told)


def _shown(kind: str, piece: str, value: exp.Expr) -> exp.Expr:
    if kind == "part":
        call = exp.Anonymous(this="date_part", expressions=[exp.Literal.string(piece), value.copy()])
        return cast(call, "VARCHAR")
    if kind == "text":
        # NULL stays NULL
        literal = exp.Literal.string(piece)
        return exp.Case(ifs=[exp.If(this=exp.Not(this=exp.Is(this=value.copy(), expression=exp.Null())), true=literal)])
    if kind == "format":
        return _formatted(value, piece)
    filled = piece[:2].upper() == "FM"
    name = piece[2:] if filled else piece
    told = _formatted(value, _NAMES[name.lower()])
    if not filled and name.lower() in ("month", "day"):
        told = exp.Anonymous(this="rpad", expressions=[told, exp.Literal.number(9), exp.Literal.string(" ")])
    if name.isupper():
        return exp.Anonymous(this="upper", expressions=[told])
    return exp.Anonymous(this="lower", expressions=[told]) if name.islower() else told


def _formatted(value: exp.Expr, form: str) -> exp.Expr:
    return exp.Anonymous(this="strftime", expressions=[cast(value, "TIMESTAMP"), exp.Literal.string(form)])


def read_pattern(pattern: str) -> str:
    """The pattern of strptime that reads what PostgreSQL's pattern reads."""
    told = ""
    for kind, piece in _pieces(pattern):
        if kind == "part" or piece in _UNREAD or (kind == "format" and "-" in piece):
            raise refuse(f"reading the pattern {pattern!r}", "DuckDB reads it in another way", "write YYYY, MM, DD")
        if kind == "name":
            told += _NAMES[piece.lower().removeprefix("fm")]
        else:
            told += piece.replace("%", "%%") if kind == "text" else piece
    return told
