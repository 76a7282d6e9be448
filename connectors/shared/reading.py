"""Records from outside as rows of a stream: shared by all sources.

A record is a JSON object by field name, or a list in column order. ``fields`` maps columns to fields of another name;
fields without a column are an error unless ``ignore_unknown``. Text becomes the column's type as in ``tidegate.wire``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tidegate.connectors.shared.families import TAKEN, Taken, Told, unfit
from tidegate.errors import DataError, SourceError
from tidegate.outside.sources import Malformed
from tidegate.storage.schema import Column, Relation, Row
from tidegate.wire import RowWire, read_value

UNREADABLE = (DataError, msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


class RowReader:
    """Makes rows of one relation; a record it can't read raises one of ``UNREADABLE``, whose text is the reason."""

    def __init__(
        self, relation: Relation, fields: Mapping[str, str] | None = None, ignore_unknown: bool = False
    ) -> None:
        self.relation = relation
        self._wire = RowWire(relation, spelt=False)  # a source sends integers as numbers
        self._plain = not fields and not ignore_unknown
        self._ignore = ignore_unknown
        given = dict(fields or {})
        if strangers := [name for name in given if name not in relation.index_of]:
            raise SourceError(
                f"fields= names {', '.join(strangers)}, but {relation.name} has the columns "
                f"{', '.join(relation.column_names)}",
                stream=relation.name,
                fatal=True,
            )
        self.field_of = {name: given.get(name, name) for name in relation.column_names}
        self._column_of = {field: name for name, field in self.field_of.items()}

    def row(self, record: Any) -> Row:
        """The row for a record as JSON has it."""
        if not self._plain and isinstance(record, Mapping):
            record = self._renamed(record)
        return self.relation.conform(self._wire.read((record,))[0])

    def json(self, data: bytes | str) -> Row:
        """The row for a record that is JSON text."""
        return self.row(msgspec.json.decode(data))

    def _renamed(self, record: Mapping[str, Any]) -> dict[str, Any]:
        named = {}
        for field, value in record.items():
            column = self._column_of.get(field)
            if column is not None:
                named[column] = value
            elif not self._ignore:
                raise DataError(f"{self.relation.name} has no column for the field {field!r}", column=field)
        return named

    def check_fields(self, fields: Iterable[str], where: str) -> None:
        """Raise SourceError when the source can't fit: a field without a column, a NOT NULL column without a field."""
        there = list(fields)
        unknown = [] if self._ignore else [field for field in there if field not in self._column_of]
        missing = [c.name for c in self.relation.columns if not c.nullable and self.field_of[c.name] not in there]
        if unknown or missing:
            told = [f"it has {', '.join(map(repr, unknown))}, which the stream does not have"] if unknown else []
            told += [f"it lacks {', '.join(missing)}, which can't be NULL"] if missing else []
            raise SourceError(
                f"{where} does not fit stream {self.relation.name} ({', '.join(self.relation.column_names)}): "
                f"{'; '.join(told)}. Map names with fields={{column: field}}, or leave fields out with ignore_unknown=True",
                stream=self.relation.name,
                fatal=True,
            )

    def check_schema(self, fields: Mapping[str, Told] | None, filled: str | None, where: str) -> None:
        """Does the schema fit the stream? ``filled``: a column that is filled from beside the record."""
        if fields is not None:
            beside = [] if filled is None else [self.field_of[filled]]
            self.check_fields([*fields, *(field for field in beside if field not in fields)], where)
            self.check_types({name: told for name, told in fields.items() if name not in beside}, where)

    def check_types(self, found: Mapping[str, Told], where: str, taken: Taken = TAKEN) -> None:
        """Raise SourceError when a field's type can never become its column's; ``found``: the types of fields."""
        if told := unfit(self.relation, self.field_of, found, taken):
            raise SourceError(
                f"{where} does not fit stream {self.relation.name}: {'; '.join(told)}. Declare the column with a type that "
                "takes it, or map another field to it with fields={column: field}",
                stream=self.relation.name,
                fatal=True,
            )


def read_all(
    records: Sequence[Any], read: Callable[[Any], Row], place: Callable[[int], str]
) -> tuple[list[Row], list[int], list[Malformed]]:
    """The rows, the number of the record each came from, and the records that are not rows."""
    rows, numbers, malformed = [], [], []
    for i, record in enumerate(records):
        try:
            rows.append(read(record))
            numbers.append(i)
        except UNREADABLE as error:
            malformed.append(Malformed(place(i), shown(record), reason(error)))
    return rows, numbers, malformed


def from_text(column: Column | None, text: str | None) -> Any:
    """The value that a text stands for in a column, where everything is text: in CSV, and in PostgreSQL's changes."""
    if column is None or text is None:
        return text
    try:
        match column.type.family:
            case "integer":
                return int(text)
            case "float":
                return float(text)
            case "boolean":
                return _TRUTH[text.lower()]
            case "list":
                return json.loads(text)
            case "blob" if text.startswith("\\x"):
                return bytes.fromhex(text[2:])
        return read_value(column.type, text)
    except (ValueError, KeyError):
        raise DataError(f"{column.name} {column.type} can't take {text!r}", column=column.name, value=text) from None


_TRUTH = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def shown(record: Any) -> str:
    """A record in readable form."""
    if isinstance(record, (bytes, bytearray)):
        return record.decode(errors="backslashreplace")
    return record if isinstance(record, str) else repr(record)


def reason(error: Exception) -> str:
    return str(error) if isinstance(error, DataError) else f"{type(error).__name__}: {error}"
