"""What clients send besides queries: transactions that change nothing, settings, cursors."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.replica import text
from tidegate.replica.wire.settings import Settings, assignment

_CURSOR = re.compile(
    r"""\s*declare\s+(?P<name>"[^"]+"|\w+)\s+(?P<options>(?:(?:binary|insensitive|asensitive|no|scroll)\s+)*)cursor
    (?:\s+with(?:out)?\s+hold)?\s+for\s+(?P<query>.*)""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_FETCH = re.compile(
    r"""\s*(?:fetch|move)\s+(?:(?P<way>next|forward|first|all|absolute|backward|prior|last|relative)\s+)?
    (?:(?P<count>-?\d+|all)\s+)?(?:(?:from|in)\s+)?(?P<name>"[^"]+"|\w+)\s*""",
    re.IGNORECASE | re.VERBOSE,
)
_COPY = re.compile(
    r"\s*copy\s+(?:\((?P<query>.*)\)|(?P<table>[\w.\"]+)(?:\s*\((?P<columns>[^)]*)\))?)\s+to\s+stdout(?P<options>.*)",
    re.IGNORECASE | re.DOTALL,
)
_ENDS = {"commit": "COMMIT", "end": "COMMIT", "rollback": "ROLLBACK", "abort": "ROLLBACK"}


@dataclass(frozen=True)
class Answer:
    """A command's answer: its tag, perhaps rows of text, the transaction status after it, settings to report."""

    tag: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    status: str | None = None
    report: str = ""
    close: str | None = None  # cursors to close: a name, or "*"
    forget: str | None = None  # prepared statements to drop: a name, or "*"
    notice: str = ""


@dataclass(frozen=True)
class Declare:
    """DECLARE name CURSOR FOR query."""

    name: str
    query: str
    binary: bool


@dataclass(frozen=True)
class Fetch:
    """FETCH (or MOVE) count FROM name; ``count`` None: all."""

    name: str
    count: int | None
    move: bool


@dataclass(frozen=True)
class CopyOut:
    """COPY … TO STDOUT."""

    query: str
    csv: bool = False
    header: bool = False
    delimiter: str = "\t"


Command = Answer | Declare | Fetch | CopyOut


def command(sql: str, settings: Settings, status: str) -> Command | None:  # noqa: C901  a case for each command
    """What a statement that is not a query does; None: it is a query (or refused as one)."""
    words = text.words(sql)
    first = words[0] if words else ""
    if first in ("begin", "start") and (first == "begin" or words[1:2] == ["transaction"]):
        return Answer("BEGIN", status="T", notice=_NO_SNAPSHOT if status == "I" else "")
    if first in _ENDS and not (first == "rollback" and "to" in words[1:3]):
        failed = status == "E" and _ENDS[first] == "COMMIT"
        return Answer("ROLLBACK" if failed else _ENDS[first], status="I", close="*")
    if first in ("savepoint", "release", "rollback"):
        if status == "I":
            raise QueryFailed(f"{first.upper()} can only be used in a transaction block", sqlstate="25P01")
        return Answer(first.upper(), status="T" if first == "rollback" else None)
    if first in ("set", "reset", "show"):
        return _setting(first, words, sql, settings)
    if first == "discard":
        return Answer("DISCARD ALL", close="*", forget="*")
    if first == "deallocate":
        name = words[-1] if len(words) > 1 else ""
        return Answer("DEALLOCATE", forget="*" if name == "all" else _plain(_last(sql)))
    if first == "close":
        return Answer("CLOSE CURSOR", close="*" if words[1:2] == ["all"] else _plain(_last(sql)))
    if first in ("unlisten", "listen"):
        if first == "listen":
            raise QueryRefused("LISTEN is not offered; subscribe to streams over HTTP instead", sqlstate="0A000")
        return Answer("UNLISTEN")
    if first == "declare":
        return _declare(sql)
    if first in ("fetch", "move"):
        return _fetch(sql, first == "move")
    return _copy(sql) if first == "copy" else None


_NO_SNAPSHOT = "this session is read-only; every statement sees the newest merged state, even in a transaction block"


def _setting(first: str, words: list[str], sql: str, settings: Settings) -> Answer:
    if first == "reset":
        settings.reset("".join(words[1:]) or "all")
        return Answer("RESET")
    if first == "set":
        found = assignment(sql)
        return Answer("SET", report="" if found is None else settings.set(*found))
    told = words[1:]
    if told == ["all"]:
        return Answer("SHOW", ("name", "setting"), tuple(settings.all().items()))
    name = "timezone" if told == ["time", "zone"] else "".join(told)
    if told == ["transaction", "isolation", "level"]:
        name = "transaction_isolation"
    return Answer("SHOW", (name,), ((settings.show(name),),))


def _declare(sql: str) -> Declare:
    match = _CURSOR.fullmatch(sql)
    if match is None:
        raise QueryFailed("DECLARE is supported only as DECLARE name CURSOR FOR SELECT …", sqlstate="42601")
    options = match["options"].lower().split()
    if "scroll" in options and "no" not in options:
        raise QueryRefused("cursors only go forward; declare it NO SCROLL", sqlstate="0A000")
    return Declare(_plain(match["name"]), match["query"], "binary" in options)


def _fetch(sql: str, move: bool) -> Fetch:
    match = _FETCH.fullmatch(sql)
    if match is None:
        raise QueryFailed("FETCH is supported only as FETCH [FORWARD] [n | ALL] FROM cursor", sqlstate="42601")
    way, count = (match["way"] or "").lower(), (match["count"] or "").lower()
    if way in ("absolute", "backward", "prior", "last", "relative", "first") or count.startswith("-"):
        raise QueryRefused("cursors only go forward", sqlstate="0A000")
    everything = way == "all" or count == "all"
    return Fetch(_plain(match["name"]), None if everything else int(count or 1), move)


def _copy(sql: str) -> CopyOut | None:
    match = _COPY.fullmatch(sql)
    if match is None:
        return None  # DuckDB classifies it, and it is refused
    query = match["query"] or f"SELECT {match['columns'] or '*'} FROM {match['table']}"
    options = match["options"].lower()
    if "binary" in options:
        raise QueryRefused("COPY in binary format is not offered; use text or csv", sqlstate="0A000")
    csv = "csv" in options
    given = re.search(r"delimiter\s+(?:as\s+)?e?'(\\t|.)'", match["options"], re.IGNORECASE)
    delimiter = given[1].replace("\\t", "\t") if given else "," if csv else "\t"
    header = bool(re.search(r"header(?!\s+(?:false|off|0))", options))
    return CopyOut(query, csv, header, delimiter)


def _last(sql: str) -> str:
    found = [sql[begin:end] for kind, begin, end in text.tokens(sql) if kind != "space"]
    return found[-1]


def _plain(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name.lower()
