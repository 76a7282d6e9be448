"""Settings of a session: those that clients commonly change, and nothing that would affect the replica."""

from __future__ import annotations

import re

from tidegate.errors import QueryFailed, QueryRefused
from tidegate.replica import text

VERSION = "15.0"
FIXED = {
    "server_version": VERSION,
    "server_version_num": "150000",
    "server_encoding": "UTF8",
    "integer_datetimes": "on",
    "is_superuser": "off",
    "in_hot_standby": "on",
    "default_transaction_read_only": "on",
    "transaction_read_only": "on",
    "transaction_isolation": "read committed",
    "default_transaction_isolation": "read committed",
    "max_index_keys": "32",
    "max_identifier_length": "63",
    "lc_collate": "C",
    "lc_ctype": "C",
    "data_checksums": "off",
    "wal_level": "replica",
    "ssl": "off",
}
CHANGEABLE = {
    "application_name": "",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "notice",
    "datestyle": "ISO, MDY",
    "default_tablespace": "",
    "extra_float_digits": "1",
    "geqo": "on",
    "idle_in_transaction_session_timeout": "0",
    "intervalstyle": "postgres",
    "jit": "off",
    "lc_messages": "C",
    "lc_monetary": "C",
    "lc_numeric": "C",
    "lc_time": "C",
    "lock_timeout": "0",
    "row_security": "on",
    "search_path": "public",
    "standard_conforming_strings": "on",
    "statement_timeout": "0",
    "synchronize_seqscans": "on",
    "tidegate.as_of": "",
    "timezone": "Etc/UTC",
    "xmloption": "content",
}
REPORTED = (
    "server_version",
    "server_encoding",
    "client_encoding",
    "DateStyle",
    "IntervalStyle",
    "TimeZone",
    "integer_datetimes",
    "standard_conforming_strings",
    "application_name",
    "is_superuser",
    "in_hot_standby",
    "default_transaction_read_only",
)
_ONLY = {  # settings whose other values would change the format of what is sent
    "client_encoding": ("utf8", "utf-8", "unicode", "sql_ascii"),
    "standard_conforming_strings": ("on", "true", "1"),
    "bytea_output": ("hex",),
    "intervalstyle": ("postgres",),
}
_UNITS = {"": 0.001, "us": 1e-6, "ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


UTC = ("utc", "etc/utc", "gmt", "etc/gmt", "z", "zulu", "universal", "0", "+00", "+00:00", "")


class Settings:
    """What one session has set."""

    def __init__(self) -> None:
        self._set: dict[str, str] = {}

    def show(self, name: str) -> str:
        name = name.lower()
        found = self._set.get(name) or FIXED.get(name) or CHANGEABLE.get(name)
        if found is None:
            raise QueryFailed(f'unrecognized configuration parameter "{name}"', sqlstate="42704")
        return found

    def all(self) -> dict[str, str]:
        return dict(sorted({**CHANGEABLE, **FIXED, **self._set}.items()))

    def set(self, name: str, value: str) -> str:
        """Change a setting; returns the name under which clients expect a report of it, or nothing."""
        key = name.lower()
        if key not in CHANGEABLE:
            if key in FIXED and value.lower() == FIXED[key]:
                return ""
            raise QueryRefused(
                f"{name} can't be set here: a session may change only client settings ({', '.join(CHANGEABLE)})",
                sqlstate="42501",
            )
        if key in _ONLY and value.lower() not in _ONLY[key]:
            raise QueryFailed(f"{name} can only be {_ONLY[key][0]} here, not {value!r}", sqlstate="22023")
        if key == "datestyle" and not value.lower().startswith("iso"):
            raise QueryFailed(f"DateStyle can only be ISO here, not {value!r}", sqlstate="22023")
        if key == "timezone":
            if value.lower() not in UTC:
                raise QueryRefused(
                    f"times are in UTC here, {value!r} can't be set; write column AT TIME ZONE 'UTC' AT TIME ZONE "
                    f"'{value}' where another zone is meant",
                    sqlstate="22023",
                )
            value = "Etc/UTC"
        if key == "statement_timeout":
            duration_s(value)
        if key == "tidegate.as_of" and value and not value.isdigit():
            raise QueryFailed(f"tidegate.as_of is a position, a whole number, not {value!r}", sqlstate="22023")
        self._set[key] = value
        return next((reported for reported in REPORTED if reported.lower() == key), "")

    def reset(self, name: str) -> None:
        if name.lower() == "all":
            self._set.clear()
        elif name.lower() not in CHANGEABLE:
            raise QueryRefused(f"{name} can't be reset here", sqlstate="42501")
        else:
            self._set.pop(name.lower(), None)

    @property
    def timeout_s(self) -> float | None:
        return duration_s(self._set.get("statement_timeout", "0")) or None

    @property
    def as_of(self) -> int | None:
        found = self._set.get("tidegate.as_of")
        return int(found) if found else None


def duration_s(value: str) -> float:
    """``"5s"``, ``"1min"``, ``"250"`` (milliseconds) in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h|d|)", value.strip().lower())
    if match is None:
        raise QueryFailed(f"{value!r} is not a duration; write 5000, '5s' or '1min'", sqlstate="22023")
    return float(match[1]) * _UNITS[match[2]]


def assignment(sql: str) -> tuple[str, str] | None:
    """Name and value of ``SET name = value``; None for SET TRANSACTION and the like, which change nothing here."""
    found = [(kind, sql[begin:end]) for kind, begin, end in text.tokens(sql) if kind != "space"][1:]
    if found and found[0][1].lower() in ("session", "local"):
        found = found[1:]
    told = [part.lower() for _, part in found]
    if told[:1] in (["transaction"], ["characteristics"]) or told[:2] == ["session", "characteristics"]:
        return None
    if told[:2] == ["time", "zone"]:
        return "timezone", _value(found[2:])
    if told[:1] == ["names"]:
        return "client_encoding", _value(found[1:])
    name, place = "", 0
    while place < len(found) and found[place][1] != "=" and told[place] != "to":
        name += found[place][1]
        place += 1
    if not name or place == len(found):
        raise QueryFailed("SET needs a name and a value: SET name = value", sqlstate="42601")
    return name.strip('"'), _value(found[place + 1 :])


def _value(tokens: list[tuple[str, str]]) -> str:
    parts = [part[1:-1].replace("''", "'") if kind in ("string", "name") else part for kind, part in tokens]
    value = "".join(", " if part == "," else part for part in parts)
    return "" if value.lower() == "default" else value
