"""Rows as JSON: how values that JSON has no form for are sent between a server and its clients.

=====================  ==========================================  =======================================
SQL                    sent as                                     also accepted
=====================  ==========================================  =======================================
DECIMAL                text: ``"12.50"``                           a number (its shortest decimal form)
TIMESTAMP              ISO 8601 text, UTC, without offset          ISO 8601 text with an offset or Z
DATE, TIME, UUID       their usual text
INTERVAL               ISO 8601 duration: ``"P1DT2S"``             a number of seconds
BLOB                   base64 text
FLOAT, DOUBLE          a number; ``"NaN"``, ``"Infinity"``, …
TINYINT … UBIGINT      a number; by a server (:func:`speak`) text     text: ``"9007199254740993"``
                       beyond ±(2⁵³ − 1)
T[]                    a list
=====================  ==========================================  =======================================

What can't be read is left as it is: the border then refuses it, naming stream, column and value.

Browsers, and many other JSON readers, read every number as a double, and round those that no double can hold. A rounded
key is a different key. So a server never sends such a number.
"""

from __future__ import annotations

import base64
import datetime as dt
import math
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from operator import itemgetter
from typing import Any

import msgspec

from tidegate.storage.codec import to_json
from tidegate.storage.schema import Column, Relation, Row
from tidegate.storage.types import ColumnType, column_type
from tidegate.streams.batch import Batch

EXACT = 2**53 - 1  # integers up to this size are the same number to every JSON reader
_SPECIAL = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_INTEGER = re.compile(r"-?(0|[1-9][0-9]{0,19})", re.ASCII)
_DIGITS = bytes(ord("0") if chr(byte).isdigit() and byte < 128 else byte for byte in range(256))
_LONG = b"0" * len(str(EXACT))
_LEAVES = {str, float, bool, type(None)}


class RowWire:
    """Rows of one relation as JSON values, and back. ``spelt``: text is accepted as an integer, too."""

    def __init__(self, relation: Relation, spelt: bool = True) -> None:
        self.relation = relation
        self._names = relation.column_names
        self._readers = [
            (i, c.name, _reader(c.type))
            for i, c in enumerate(relation.columns)
            if not _native(c.type) and (spelt or _innermost(c.type).family != "integer")
        ]
        whole = [(i, c.name) for i, c in enumerate(relation.columns) if c.type.family == "integer" and spelt]
        self._only_integers = len(whole) == len(self._readers)
        if whole:
            self._by_place = itemgetter(*(i for i, _ in whole), whole[0][0])  # one more: with one it returns no tuple
            self._by_name = itemgetter(*(name for _, name in whole), whole[0][1])
        self._floats = any(_innermost(c.type).family == "float" for c in relation.columns)

    def read(self, rows: Iterable[Any]) -> list[Any]:
        """Rows as decoded from JSON, with values of the right Python types, ready for the border."""
        if not self._readers:
            return list(rows)
        if self._only_integers:
            return [row if self._as_numbers(row) else self._read_row(row) for row in rows]
        return [self._read_row(row) for row in rows]

    def _as_numbers(self, row: Any) -> bool:
        """Are all integers of this row numbers? This is the usual case, so the check is cheap."""
        try:
            return str not in map(type, self._by_name(row) if type(row) is dict else self._by_place(row))
        except (LookupError, TypeError):
            return False

    def _read_row(self, row: Any) -> Any:
        if isinstance(row, Mapping):
            named = dict(row)
            for _, name, reader in self._readers:
                if named.get(name) is not None:
                    named[name] = reader(named[name])
            return named
        if isinstance(row, (list, tuple)) and len(row) == len(self._names):
            listed = list(row)
            for place, _, reader in self._readers:
                if listed[place] is not None:
                    listed[place] = reader(listed[place])
            return listed
        return row

    def read_stored(self, rows: Iterable[Mapping[str, Any]]) -> tuple[Row, ...]:
        """Rows as :meth:`write` wrote them, as named tuples of stored values."""
        return self.relation.conform_all(self.read(rows))

    def write(self, rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
        """Stored rows as objects that :func:`encode` can write."""
        names = self._names
        if self._floats:
            return [dict(zip(names, map(finite, row), strict=True)) for row in rows]
        return [dict(zip(names, row, strict=True)) for row in rows]


def encode(value: Any) -> bytes:
    """JSON text of values as stored: dates, decimals and the like in the forms of the table above."""
    return msgspec.json.encode(value, enc_hook=_other)


def speak(value: Any) -> bytes:
    """JSON text as a server sends it: as :func:`encode`, but integers that are not the same to every reader are text.

    >>> speak({"batch_id": 7, "key": 2**53 + 1})
    b'{"batch_id":7,"key":"9007199254740993"}'
    """
    data = encode(value)
    if _LONG not in data.translate(_DIGITS):  # nearly always: no number is that large
        return data
    return msgspec.json.encode(_spelt(msgspec.to_builtins(value, enc_hook=_other, str_keys=True), str))


def tagged(value: Any) -> Any:
    """A value as :func:`tidegate.storage.codec.to_json` writes it, for any reader: ``{"integer": "9007…"}``."""
    return _spelt(to_json(value), lambda number: {"integer": str(number)})


def _spelt(value: Any, spell: Callable[[int], Any]) -> Any:
    """JSON with ``spell(number)`` in place of every integer beyond ``EXACT``."""
    if type(value) is int:
        return value if -EXACT <= value <= EXACT else spell(value)
    if isinstance(value, (list, tuple)):
        kinds = set(map(type, value))
        if kinds <= _LEAVES or (kinds == {int} and min(value) >= -EXACT and max(value) <= EXACT):
            return value
        return [_spelt(item, spell) for item in value]
    if isinstance(value, dict):
        return {key: _spelt(item, spell) for key, item in value.items()}
    return value


def finite(value: Any) -> Any:
    """Numbers that JSON does not have, as text."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, (tuple, list)):
        if set(map(type, value)) <= {int, str, bool, type(None)}:
            return list(value)
        return [finite(item) for item in value]
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    return value


def whole(value: Any) -> Any:
    """An integer that came as text, as an integer; anything else as it is."""
    return int(value) if type(value) is str and _INTEGER.fullmatch(value) else value


def describe_relation(relation: Relation) -> list[dict[str, Any]]:
    """The columns of a relation, for readers of its rows."""
    return [{"name": c.name, "type": c.type.sql, "nullable": c.nullable} for c in relation.columns]


def read_relation(name: str, columns: Iterable[Mapping[str, Any]]) -> Relation:
    """The relation that :func:`describe_relation` described."""
    return Relation(name, tuple(Column(c["name"], column_type(c["type"]), bool(c["nullable"])) for c in columns))


def read_value(kind: ColumnType | None, value: Any) -> Any:
    """One value of a column of this type, as decoded from JSON."""
    return value if kind is None or value is None or _native(kind) else _reader(kind)(value)


def batch_facts(wire: RowWire, batch: Batch) -> dict[str, Any]:
    """A batch as subscribers receive it."""
    return {"stream": batch.stream, "batch_id": batch.id, "key": batch.key, "rows": wire.write(batch.rows)}


def _other(value: Any) -> Any:
    if hasattr(value, "_asdict"):
        return value._asdict()
    if hasattr(value, "item"):  # numpy
        return value.item()
    return str(value)


def _native(kind: ColumnType) -> bool:
    if kind.family == "list":
        assert kind.element is not None
        return _native(kind.element)
    return kind.family in {"text", "boolean", "json"}


def _innermost(kind: ColumnType) -> ColumnType:
    while kind.element is not None:
        kind = kind.element
    return kind


def _reader(kind: ColumnType) -> Callable[[Any], Any]:
    if kind.family == "list":
        assert kind.element is not None
        inner = _reader(kind.element)
        return lambda value: [None if v is None else inner(v) for v in value] if isinstance(value, list) else value
    convert = _CONVERT[kind.family]

    def read(value: Any) -> Any:
        try:
            return convert(value)
        except (ValueError, TypeError, ArithmeticError, KeyError):
            return value

    return read


def _decimal(value: Any) -> Any:
    number = Decimal(repr(value) if isinstance(value, float) else value) if isinstance(value, (float, str)) else value
    return value if isinstance(number, Decimal) and not number.is_finite() else number


def _time(value: Any) -> Any:
    time = dt.time.fromisoformat(value)
    return value if time.tzinfo is not None else time


def _interval(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return dt.timedelta(seconds=value)
    return msgspec.convert(value, dt.timedelta)


_CONVERT: dict[str, Callable[[Any], Any]] = {
    "integer": whole,
    "decimal": _decimal,
    "float": lambda value: _SPECIAL[value] if isinstance(value, str) else value,
    "timestamp": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": _time,
    "interval": _interval,
    "blob": lambda value: base64.b64decode(value, validate=True) if isinstance(value, str) else value,
    "uuid": lambda value: uuid.UUID(value) if isinstance(value, str) else value,
}
