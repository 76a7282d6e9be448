"""Values as JSON and back, without loss: how rows and keys are encoded outside the tables."""

from __future__ import annotations

import base64
import datetime as dt
import operator
import uuid
from collections.abc import Callable, Iterable, Sequence
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np

from tidegate.errors import CorruptionError, shown, text_of
from tidegate.storage.column_rows import ColumnRows
from tidegate.storage.jsontext import DEPTH
from tidegate.storage.schema import Column, Relation, Row
from tidegate.storage.types import ColumnType

_PLAIN = frozenset({type(None), bool, int, float, str})


def plain(value: Any) -> Any:
    """A number, boolean or text of numpy, or of a subclass, as Python's own: nothing else can be encoded.

    >>> plain(np.float64(1.5))
    1.5
    """
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, np.bool_):
        return bool(value)
    return operator.index(value) if isinstance(value, (int, np.integer)) else float(value)


def writable(value: Any) -> Any:
    """``value`` in the form that goes into the log. ValueError says why that is impossible."""
    try:
        written = to_json(value)
        check_depth(written)
        msgspec.msgpack.encode(written)
        from_json(written)
    except RecursionError:
        raise ValueError(f"it is nested more than {DEPTH} levels deep") from None
    except (CorruptionError, UnicodeEncodeError, OverflowError, TypeError) as error:
        raise ValueError(text_of(error)) from None
    return written


def check_depth(written: Any, left: int = DEPTH) -> None:
    """Raise ValueError when what :func:`to_json` wrote is nested more than ``left`` levels deep."""
    if not left:
        raise ValueError(f"it is nested more than {DEPTH} levels deep")
    for item in written.values() if type(written) is dict else written if type(written) is list else ():
        if type(item) is dict or type(item) is list:
            check_depth(item, left - 1)


def to_json(value: Any) -> Any:
    """A stored value (or a tuple of them) as JSON.

    >>> from_json(to_json((1, Decimal("2.50"), None, (dt.date(2026, 1, 2),))))
    (1, Decimal('2.50'), None, (datetime.date(2026, 1, 2),))
    """
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        if _PLAIN.issuperset(map(type, value)):  # many numbers, for example: without a call for each
            return list(value)
        return [to_json(item) for item in value]
    match value:
        case int() | float() | str() | np.integer() | np.floating() | np.bool_():
            return plain(value)
        case Decimal():
            return {"decimal": str(value)}
        case dt.datetime():
            return {"timestamp": value.isoformat()}
        case dt.date():
            return {"date": value.isoformat()}
        case dt.time():
            return {"time": value.isoformat()}
        case dt.timedelta():
            return {"interval": [value.days, value.seconds, value.microseconds]}
        case bytes():
            return {"blob": base64.b64encode(value).decode()}
        case uuid.UUID():
            return {"uuid": str(value)}
        case tuple() | list():
            return [to_json(item) for item in value]
        case dict():
            return {"map": [[to_json(k), to_json(v)] for k, v in value.items()]}
    raise CorruptionError(f"can't encode {shown(value)} ({type(value).__name__})")


def from_json(value: Any) -> Any:
    """The value that :func:`to_json` wrote."""
    if isinstance(value, list):
        if _PLAIN.issuperset(map(type, value)):
            return tuple(value)
        return tuple([from_json(item) for item in value])
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    match kind:
        case "integer":  # large integers as text, for readers that can't hold them
            return int(text)
        case "decimal":
            return Decimal(text)
        case "timestamp":
            return dt.datetime.fromisoformat(text)
        case "date":
            return dt.date.fromisoformat(text)
        case "time":
            return dt.time.fromisoformat(text)
        case "interval":
            return dt.timedelta(*text)
        case "blob":
            return base64.b64decode(text)
        case "uuid":
            return uuid.UUID(text)
        case "map":
            return {from_json(k): from_json(v) for k, v in text}
    raise CorruptionError(f"unknown kind of value {kind!r} in stored state")


def widened(relation: Relation, values: Sequence[Any]) -> Row:
    """A stored row, perhaps written before nullable columns were added at its end."""
    make: Callable[[Iterable[Any]], Row] = relation.row._make
    return make([*values, *[None] * (len(relation.columns) - len(values))])


class RowCodec:
    """Rows of one relation as msgspec writes them, and back.

    Writing needs no help: msgspec knows every type we store. What comes back is text for the types msgpack lacks; a
    row that is too short was written before a nullable column was added.
    """

    def __init__(self, relation: Relation) -> None:
        self._relation = relation
        self._make: Callable[[Iterable[Any]], Row] = relation.named
        self._width = len(relation.columns)
        self._decoders = decoders_of(relation.columns)
        self._direct = None if self._decoders else msgspec.msgpack.Decoder(tuple[relation.row, ...])  # type: ignore[name-defined]

    def read(self, packed: bytes | msgspec.Raw) -> tuple[Row, ...] | ColumnRows:
        """Rows as stored, from what msgspec wrote."""
        if self._direct is not None:
            try:
                return self._direct.decode(packed)
            except msgspec.ValidationError:
                pass  # narrower than now
        return self.unpack(msgspec.msgpack.decode(packed))

    def unpack(self, rows: Sequence[Sequence[Any]] | bytes) -> tuple[Row, ...] | ColumnRows:
        """Rows as stored, from rows as read. Those written together are equally wide. Bytes are columns."""
        if isinstance(rows, bytes):
            return ColumnRows.unpacked(self._relation, rows)
        if not self._decoders and rows and len(rows[0]) == self._width:
            return tuple(map(self._make, rows))
        found = []
        for row in rows:
            if len(row) < self._width or self._decoders:
                values = [*row, *[None] * (self._width - len(row))]
                for i, decode in self._decoders:
                    if values[i] is not None:
                        values[i] = decode(values[i])
                row = values
            found.append(self._make(row))
        return tuple(found)


def decoders_of(columns: Sequence[Column]) -> list[tuple[int, Callable[[Any], Any]]]:
    """What is to be done to values that msgspec has read, by place: for columns of a type that msgpack lacks."""
    return [(i, _decoder(c.type)) for i, c in enumerate(columns) if not _plain(c.type)]


def _plain(kind: ColumnType) -> bool:
    return kind.family in {"integer", "float", "text", "boolean", "blob", "json"}


def _decoder(kind: ColumnType) -> Callable[[Any], Any]:
    if kind.family == "list":
        assert kind.element is not None
        inner: Callable[[Any], Any] = (lambda value: value) if _plain(kind.element) else _decoder(kind.element)
        return lambda values: tuple(None if value is None else inner(value) for value in values)
    return lambda value: msgspec.convert(value, kind.python)
