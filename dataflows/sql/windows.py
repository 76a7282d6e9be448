"""Windows in FROM: functions, ``TUMBLE(TABLE s, DESCRIPTOR(ts), INTERVAL '1' MINUTE)``, and CSA's ``s <SLICES '1 minute'>``.

Each is replaced in the text by the name of a window, which SQL reads like a table: its rows, and ``window_number``,
``window_start`` and ``window_end``.

======================================================  ==================================================================
``TUMBLE(TABLE s, DESCRIPTOR(ts), size)``               ``s <SLICES 'size'>``
``HOP(TABLE s, DESCRIPTOR(ts), slide, size)``           ``s <VISIBLE 'size' ADVANCE 'slide'>``
``CUMULATE(TABLE s, DESCRIPTOR(ts), step, max)``        ``s <ADVANCE 'step' RESET 'max'>``
``SESSION(TABLE s PARTITION BY k, DESCRIPTOR(ts), g)``  ``s <SESSION k TIMEOUT 'g'>``
``TUMBLE_ROWS(TABLE s, n)``                             ``s <SLICES n ROWS>``
``HOP_ROWS(TABLE s, slide, n)``                         ``s <VISIBLE n ROWS ADVANCE slide ROWS>``
======================================================  ==================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.sql.text import Piece, TokenType
from tidegate.errors import DeclarationError, near
from tidegate.streams.windows import WindowSpec
from tidegate.streams.windows.declare.kinds import window

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

NAMES = {  # the lengths that follow the time column, in order
    "TUMBLE": ("SIZE",),
    "HOP": ("SLIDE", "SIZE"),
    "CUMULATE": ("STEP", "SIZE"),
    "SESSION": ("GAP",),
    "TUMBLE_ROWS": ("SIZE",),
    "HOP_ROWS": ("SLIDE", "SIZE"),
}
ALSO = {"TIMEOUT": "GAP", "MAX_SIZE": "SIZE"}
LATER = {"EXPIRE_WHEN", "ADVANCE", "EXPIRE", "RETAIN"}  # of CSA's sessions
SESSION_RULES = (
    "a session here ends after a gap, and gives its result then; for results in between, count what is open in a table with "
    "app.procedure(every=…), or declare shorter windows"
)
SIMPLE = {TokenType.VAR, TokenType.IDENTIFIER}


@dataclass(frozen=True)
class Windowed:
    """A window in FROM: its name in the text, the stream it is over, where it stands and what it is."""

    name: str
    stream: str
    offset: int
    spec: WindowSpec


def take_windows(app: App, piece: Piece) -> list[Windowed]:
    """Replace every window in the text by its name."""
    found: list[Windowed] = []
    for at, token in enumerate(piece.tokens):
        before = piece.words(at - 1)[0] if at else ""
        if before not in {"FROM", "JOIN", ","} or at + 1 >= len(piece.tokens):
            continue
        after = piece.tokens[at + 1]
        if token.text.upper() in NAMES and after.token_type is TokenType.L_PAREN:
            found.append(_function(app, piece, at, len(found)))
        elif piece.says(at + 1, "<") or piece.says(at + 2, "<"):
            taken = _bracket(app, piece, at, len(found))
            found += [taken] if taken is not None else []
    return found


def _named(stream: str, number: int) -> str:
    return f"{stream}_window" if not number else f"{stream}_window{number + 1}"


# ---- table functions


def _function(app: App, piece: Piece, at: int, number: int) -> Windowed:
    kind, end = piece.tokens[at].text.upper(), piece.matching(at + 1)
    arguments = piece.split(at + 2, end)
    stream, by, rest = _source(app, piece, arguments)
    column = None
    if not kind.endswith("_ROWS"):
        column, rest = _descriptor(piece, at, rest)
    lengths = _lengths(app, piece, kind, rest)
    made = _spec(app, piece, at, kind, stream, column, by, lengths)
    name = _named(stream, number)
    has_alias = end + 1 < len(piece.tokens) and (
        piece.says(end + 1, "AS") or (piece.tokens[end + 1].token_type in SIMPLE and not piece.says(end + 1, "EMIT"))
    )
    piece.replace(at, end + 1, name if has_alias else f'{name} AS "{stream}"')
    return Windowed(name, stream, piece.tokens[at].start, made)


Parts = list[tuple[int, int]]


def _source(app: App, piece: Piece, arguments: Parts) -> tuple[str, tuple[str, ...], Parts]:
    """The stream and the columns of PARTITION BY, and the other arguments."""
    if not arguments:
        raise piece.refused(
            0, "this window names no stream", "write TUMBLE(TABLE stream, DESCRIPTOR(ts), INTERVAL '1' MINUTE)"
        )
    low, high = arguments[0]
    at = low + piece.says(low, "TABLE")
    stream = stream_named(app, piece, at)
    by: list[str] = []
    rest = arguments[1:]
    if at + 1 < high:
        if not piece.says(at + 1, "PARTITION BY"):
            raise piece.refused(
                at + 1, f"after {stream} only PARTITION BY can follow", "separate arguments with commas"
            )
        inner = at + 2
        if piece.tokens[inner].token_type is TokenType.L_PAREN:
            by = [piece.tokens[one].text for one, _ in piece.split(inner + 1, high - 1)]
        else:
            by = [piece.tokens[inner].text]
            while rest and rest[0][1] - rest[0][0] == 1 and piece.tokens[rest[0][0]].token_type in SIMPLE:
                if rest[0][0] + 1 < len(piece.tokens) and len(rest) > 1 and _is_column(app, stream, piece, rest[0]):
                    by.append(piece.tokens[rest[0][0]].text)
                    rest = rest[1:]
                else:
                    break
    return stream, tuple(by), rest


def _is_column(app: App, stream: str, piece: Piece, part: tuple[int, int]) -> bool:
    return piece.tokens[part[0]].text in app.streams[stream].relation.index_of


def stream_named(app: App, piece: Piece, at: int) -> str:
    """The stream that is named here."""
    name = piece.tokens[at].text
    for known in app.streams:
        if known.lower() == name.lower():
            return known
    if any(known.lower() == name.lower() for known in app.tables):
        raise piece.refused(at, f"{name} is a table, and a window cuts a stream", f"read it as it is: FROM {name}")
    raise piece.refused(at, f"there is no stream {name!r}", near(name, app.streams, "declared so far:"))


def _descriptor(piece: Piece, at: int, rest: Parts) -> tuple[str, Parts]:
    if rest:
        low, high = rest[0]
        if piece.says(low, "DESCRIPTOR"):
            return piece.tokens[low + 2].text, rest[1:]
        if high - low == 1 and piece.tokens[low].token_type in SIMPLE:
            return piece.tokens[low].text, rest[1:]
    raise piece.refused(
        at, "this window does not say which column has the time", "write DESCRIPTOR(ts) after the stream"
    )


def _lengths(app: App, piece: Piece, kind: str, rest: Parts) -> dict[str, Any]:
    wanted, found = list(NAMES[kind]), {}
    for low, high in rest:
        if low + 1 < high and piece.tokens[low + 1].token_type is TokenType.FARROW:
            name = piece.tokens[low].text.upper()
            name = ALSO.get(name, name)
            if name in LATER:
                raise piece.refused(low, f"{name} is not supported", SESSION_RULES)
            if name not in NAMES[kind]:
                raise piece.refused(low, f"{kind} has no {name}", f"it has {', '.join(NAMES[kind])}")
            low += 2
        else:
            left = [one for one in wanted if one not in found]
            if not left:
                raise piece.refused(low, f"{kind} takes no more than {', '.join(wanted)}", "leave this out")
            name = left[0]
        found[name] = length(app, piece, low, high)
    missing = [name for name in wanted if name not in found]
    if missing:
        raise piece.refused(rest[-1][0] if rest else 0, f"{kind} lacks {missing[0]}", f"it takes {', '.join(wanted)}")
    return found


def length(app: App, piece: Piece, low: int, high: int) -> Any:
    """A length: a time (a timedelta) or a whole number."""
    told = piece.text.sql[piece.tokens[low].start : piece.tokens[high - 1].end + 1]
    if high - low == 1 and piece.tokens[low].token_type is TokenType.NUMBER:
        if told.isdigit():
            return int(told)
        raise piece.refused(low, f"{told} is no length", "write a whole number, or INTERVAL '1' MINUTE")
    if piece.says(low, "NULL") or piece.says(low, "NONE"):
        raise piece.refused(low, "a session without a timeout never ends here", SESSION_RULES)
    try:
        return app.scratch.interval(told)
    except ValueError as error:
        raise piece.refused(low, str(error), "write INTERVAL '1' MINUTE, in days or shorter units") from None


# ---- CSA's brackets


def _bracket(app: App, piece: Piece, at: int, number: int) -> Windowed | None:
    """``stream [alias] <…>``; None if the ``<`` is none of these."""
    opened = at + 1 if piece.says(at + 1, "<") else at + 2
    if opened + 1 >= len(piece.tokens) or piece.words(opened + 1)[0] not in {"SLICES", "VISIBLE", "ADVANCE", "SESSION"}:
        return None
    closed = next((p for p in range(opened, len(piece.tokens)) if piece.says(p, ">")), None)
    if closed is None:
        raise piece.refused(opened, "this window is never closed", "add '>'")
    stream = stream_named(app, piece, at)
    parts = _clauses(app, piece, opened + 1, closed)
    watermark = app.watermarks.get(stream)
    by: tuple[str, ...] = ()
    rows = any(is_rows for _, is_rows in parts.values() if is_rows)
    values = {name: value for name, (value, _) in parts.items()}
    kind: str
    if "SLICES" in values:
        kind, lengths = "TUMBLE", {"SIZE": values["SLICES"]}
    elif "VISIBLE" in values:
        kind, lengths = "HOP", {"SLIDE": values.get("ADVANCE", values["VISIBLE"]), "SIZE": values["VISIBLE"]}
    elif "SESSION" in values:
        kind, lengths, by = "SESSION", {"GAP": values.get("TIMEOUT")}, tuple(values["SESSION"])
    else:
        kind, lengths = "CUMULATE", {"STEP": values["ADVANCE"], "SIZE": values.get("RESET")}
    lacking = [name for name, value in lengths.items() if value is None]
    if lacking:
        raise piece.refused(opened, f"this window lacks {'RESET' if kind == 'CUMULATE' else 'TIMEOUT'}", "add it")
    if rows and kind in {"TUMBLE", "HOP"}:
        kind += "_ROWS"
    elif watermark is None:
        raise piece.refused(
            opened, f"{stream} has no WATERMARK, so it is not known which of its columns has the time",
            f"declare it with WATERMARK FOR ts AS ts, or write {kind}(TABLE {stream}, DESCRIPTOR(ts), …)",
        )  # fmt: skip
    column = None if kind.endswith("_ROWS") or watermark is None else watermark[0]
    made = _spec(app, piece, opened, kind, stream, column, by, lengths)
    name = _named(stream, number)
    alias = piece.tokens[at + 1].text if opened == at + 2 else stream
    piece.replace(at, closed + 1, f'{name} AS "{alias}"')
    return Windowed(name, stream, piece.tokens[at].start, made)


def _clauses(app: App, piece: Piece, low: int, high: int) -> dict[str, tuple[Any, bool]]:
    """What stands between the brackets: {clause: (value, is it in rows?)}."""
    found: dict[str, tuple[Any, bool]] = {}
    at = low
    while at < high:
        word = piece.words(at)[0]
        if word == ",":
            at += 1
        elif word in {"EXPIRE", "RETAIN"} or (word == "ADVANCE" and "SESSION" in found):
            raise piece.refused(at, f"{word} of a session is not supported", SESSION_RULES)
        elif word == "SESSION":
            keys = []
            at += 1
            while at < high and not piece.says(at, "TIMEOUT") and piece.words(at)[0] not in {"EXPIRE", "ADVANCE"}:
                keys += [piece.tokens[at].text] if not piece.says(at, ",") else []
                at += 1
            found["SESSION"] = (keys, False)
        elif word in {"SLICES", "VISIBLE", "ADVANCE", "RESET", "TIMEOUT"}:
            rows = piece.words(at + 2)[0] in {"ROW", "ROWS"} if at + 2 < high else False
            found[word] = (length(app, piece, at + 1, at + 2), rows)
            at += 3 if rows else 2
        else:
            raise piece.refused(
                at, f"{piece.tokens[at].text} is not understood in a window", "write <SLICES '1 minute'>"
            )
    return found


# ---- the specification


def _spec(
    app: App,
    piece: Piece,
    at: int,
    kind: str,
    stream: str,
    column: str | None,
    by: tuple[str, ...],
    lengths: dict[str, Any],
) -> WindowSpec:
    relation = app.streams[stream].relation
    for name in (*by, *([column] if column else ())):
        if name not in relation.index_of:
            raise piece.refused(at, f"{stream} has no column {name!r}", near(name, relation.index_of, "it has"))
    delay = None
    if column is not None:
        named = app.watermarks.get(stream)
        if named is not None and named[0] != column:
            raise piece.refused(at, f"the WATERMARK of {stream} is for {named[0]}", f"write DESCRIPTOR({named[0]})")
        delay = named[1] if named is not None and named[1] else None
    time: dict[str, Any] = {"on": column, "by": by, "delay": delay}
    size, slide = lengths.get("SIZE"), lengths.get("SLIDE")
    try:
        match kind:
            case "TUMBLE":
                return window(stream, time=size, **time)
            case "HOP":
                return window(stream, time=size, slide=slide, **time)
            case "CUMULATE":
                return window(stream, landmark=size, slide=lengths["STEP"], **time)
            case "SESSION":
                return window(stream, session=lengths["GAP"], **time)
            case "TUMBLE_ROWS":
                return window(stream, count=size, by=by)
        return window(stream, count=size, slide=slide, by=by)
    except DeclarationError as error:
        raise piece.refused(at, str(error), "correct the lengths") from None
