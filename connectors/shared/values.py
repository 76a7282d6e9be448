"""How a record is written in a message: JSON, JSON checked by a JSON Schema, or Avro.

``AvroValues`` needs fastavro, ``JsonSchemaValues`` jsonschema: ``pip install 'tidegate[kafka]'``.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import msgspec

from tidegate.connectors.shared.families import AS_AVRO, AS_JSON, Told, avro_told, json_told, unwritable
from tidegate.errors import SourceError
from tidegate.storage.schema import Relation
from tidegate.wire import encode


class Values(Protocol):
    """Records to bytes, and back. Unreadable bytes raise ValueError or msgspec.DecodeError."""

    def fields(self) -> Mapping[str, Told] | None:
        """The fields a record has and their types (see :mod:`tidegate.connectors.shared.families`), when a schema says so."""

    def unwritable(self, relation: Relation, key: str | None = None) -> list[str]:
        """Why rows of this relation can't all be records, in words; nothing when they can, or there is no schema.

        ``key``: a column that is the record's key, and so need not be in its value.
        """

    def decode(self, data: bytes) -> Any: ...
    def encode(self, record: Mapping[str, Any]) -> bytes: ...


class JsonValues:
    """JSON objects by column name."""

    def fields(self) -> Mapping[str, Told] | None:
        return None

    def unwritable(self, relation: Relation, key: str | None = None) -> list[str]:
        return []

    def decode(self, data: bytes) -> Any:
        return msgspec.json.decode(data)

    def encode(self, record: Mapping[str, Any]) -> bytes:
        return encode(record)


class JsonSchemaValues(JsonValues):
    """JSON that a JSON Schema (a dict, or the path of a file) accepts."""

    def __init__(self, schema: Mapping[str, Any] | str | Path) -> None:
        _need("jsonschema", "JsonSchemaValues")
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from jsonschema.validators import validator_for

        self.schema = _loaded(schema)
        kind = validator_for(self.schema, Draft202012Validator)
        try:
            kind.check_schema(self.schema)
        except SchemaError as error:
            raise SourceError(f"not a valid JSON Schema: {error.message}", fatal=True) from None
        self._validator = kind(self.schema)

    def fields(self) -> Mapping[str, Told] | None:
        found = self.schema.get("properties")
        return None if found is None else {name: json_told(kind) for name, kind in found.items()}

    def unwritable(self, relation: Relation, key: str | None = None) -> list[str]:
        found = self.fields() or {}
        closed = self.schema.get("additionalProperties") is False
        needed = [name for name in self.schema.get("required", ()) if name not in relation.index_of]
        left_out = [name for name in relation.column_names if name not in found] if closed else []
        told = [f"it requires {', '.join(needed)}, which the stream does not have"] if needed else []
        told += [f"it does not allow {', '.join(left_out)} (additionalProperties)"] if left_out else []
        return told + unwritable(relation, found, AS_JSON)

    def decode(self, data: bytes) -> Any:
        value = msgspec.json.decode(data)
        for error in self._validator.iter_errors(value):
            where = "/".join(map(str, error.absolute_path))
            raise ValueError(f"{where or 'the record'} is refused by the JSON Schema: {error.message}")
        return value

    def encode(self, record: Mapping[str, Any]) -> bytes:
        data = encode(record)
        self.decode(data)
        return data


class AvroValues:
    """Avro records of one schema (a dict, or the path of an ``.avsc`` file).

    ``schema_id``: records are framed as for schema registries, with a zero byte and the four bytes of the schema's id;
    reading accepts frames with any id, and none.
    """

    def __init__(self, schema: Mapping[str, Any] | str | Path, *, schema_id: int | None = None) -> None:
        _need("fastavro", "AvroValues")
        import fastavro

        self.schema_id = schema_id
        loaded = _loaded(schema)
        try:
            self._schema: Any = fastavro.parse_schema(loaded)
        except Exception as error:
            raise SourceError(f"not a valid Avro schema: {error}", fatal=True) from None
        self._fields = {field["name"]: avro_told(field["type"]) for field in loaded.get("fields", [])}
        self._defaults = {field["name"] for field in loaded.get("fields", []) if "default" in field}
        self._read, self._write = fastavro.schemaless_reader, fastavro.schemaless_writer

    def fields(self) -> Mapping[str, Told] | None:
        return self._fields

    def unwritable(self, relation: Relation, key: str | None = None) -> list[str]:
        needed = [name for name in self._fields if name not in relation.index_of and name not in self._defaults]
        left_out = [name for name in relation.column_names if name not in self._fields and name != key]
        told = [f"it has the fields {', '.join(needed)}, which the stream does not have"] if needed else []
        told += [f"it has no field {', '.join(left_out)}, which the stream has"] if left_out else []
        return told + unwritable(relation, self._fields, AS_AVRO)

    def decode(self, data: bytes) -> Any:
        body = data[5:] if self.schema_id is not None and data[:1] == b"\0" else data
        reader = io.BytesIO(body)
        try:
            record = self._read(reader, self._schema, None)
        except Exception as error:
            raise ValueError(f"no Avro record of the schema: {type(error).__name__} {error}") from None
        if reader.tell() != len(body):
            raise ValueError(f"no Avro record of the schema: {len(body) - reader.tell()} bytes are left over")
        return record

    def encode(self, record: Mapping[str, Any]) -> bytes:
        body = io.BytesIO()
        if self.schema_id is not None:
            body.write(b"\0" + struct.pack(">I", self.schema_id))
        self._write(body, self._schema, {name: _for_avro(value) for name, value in record.items()})
        return body.getvalue()


def _for_avro(value: Any) -> Any:
    """Our times are UTC; fastavro would read them in the machine's zone, and a tuple for a choice of type."""
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=dt.UTC)
    return [_for_avro(item) for item in value] if isinstance(value, tuple) else value


def _loaded(schema: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    if isinstance(schema, Mapping):
        return dict(schema)
    try:
        found = json.loads(Path(schema).read_text())
    except (OSError, ValueError) as error:
        raise SourceError(f"can't read the schema {schema}: {error}", fatal=True) from None
    return dict(found)


def _need(package: str, what: str) -> None:
    if find_spec(package) is None:
        raise SourceError(f"{what} needs {package}; pip install 'tidegate[kafka]'", fatal=True)
