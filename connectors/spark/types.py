"""Columns of tables and streams in Spark's types, and whether a data frame fits a stream."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql import types as spark

from tidegate.engine.result import plain
from tidegate.errors import DataError
from tidegate.storage.schema import Relation
from tidegate.storage.types import ColumnType

_INTEGERS: dict[str, Callable[[], spark.DataType]] = {
    "TINYINT": spark.ByteType,
    "SMALLINT": spark.ShortType,
    "INTEGER": spark.IntegerType,
    "BIGINT": spark.LongType,
    "UTINYINT": spark.ShortType,
    "USMALLINT": spark.IntegerType,
    "UINTEGER": spark.LongType,
    "UBIGINT": lambda: spark.DecimalType(20, 0),
}

_TYPES: dict[str, Callable[[], spark.DataType]] = {
    "text": spark.StringType,
    "boolean": spark.BooleanType,
    "timestamp": spark.TimestampType,  # ours are UTC: instants, which Spark shows in its session's zone
    "date": spark.DateType,
    "time": spark.StringType,
    "interval": spark.DayTimeIntervalType,
    "blob": spark.BinaryType,
    "uuid": spark.StringType,
    "json": spark.StringType,
}

_WHOLE = ("byte", "short", "integer", "long")
# what a stream's column accepts, by Spark's name of the type; the values themselves are checked at the push
_TAKEN: Mapping[str, tuple[str, ...]] = {
    "integer": _WHOLE,
    "float": (*_WHOLE, "float", "double", "decimal"),
    "decimal": (*_WHOLE, "decimal"),
    "text": ("string", "char", "varchar"),
    "boolean": ("boolean",),
    "timestamp": ("timestamp", "timestamp_ntz"),
    "date": ("date",),
    "time": ("time",),
    "interval": ("interval",),
    "blob": ("binary",),
    "json": ("string",),
}


def spark_type(kind: ColumnType) -> spark.DataType:
    """The Spark type that keeps every value; times of day and UUIDs are text."""
    if kind.family == "list":
        assert kind.element is not None
        return spark.ArrayType(spark_type(kind.element))
    if kind.family == "integer":
        return _INTEGERS[kind.sql]()
    if kind.family == "float":
        return spark.FloatType() if kind.sql == "FLOAT" else spark.DoubleType()
    if kind.family == "decimal":
        precision, scale = re.findall(r"\d+", kind.sql)
        return spark.DecimalType(int(precision), int(scale))
    return _TYPES[kind.family]()


def spark_schema(relation: Relation) -> spark.StructType:
    """The columns of a table or a stream, as Spark has them."""
    return spark.StructType([spark.StructField(c.name, spark_type(c.type), c.nullable) for c in relation.columns])


def arrow_schema(schema: spark.StructType) -> pa.Schema:
    """What Spark expects of Arrow data under this schema."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def as_arrow(schema: spark.StructType, table: pa.Table) -> pa.Table:
    """An answer of the engine in the Arrow types of Spark's schema."""
    target = arrow_schema(schema)
    columns = [_cast(table.column(field.name), field.type) for field in target]
    return pa.Table.from_arrays(columns, schema=target)


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type == kind:
        return column
    if pa.types.is_timestamp(kind) and pa.types.is_timestamp(column.type) and column.type.tz is None:
        return column.cast(pa.timestamp("us")).cast(kind)  # naive is UTC
    if pa.types.is_interval(column.type):
        return pa.chunked_array([pa.array([plain(value) for value in column.to_pylist()], type=kind)])
    return column.cast(kind)


def check_fits(schema: spark.StructType, relation: Relation) -> None:
    """Raise, naming every column that is missing, unknown or of a type that the stream can't take."""
    problems: list[str] = []
    given = {field.name: field.dataType for field in schema.fields}
    for column in relation.columns:
        if column.name not in given:
            if not column.nullable:
                problems.append(f"column {column.name} ({column.type}) is missing")
        elif not _fits(given[column.name], column.type):
            told = given[column.name].simpleString()
            problems.append(f"column {column.name} is {told} in Spark and {column.type} here{_remedy(column.type)}")
    strange = [name for name in given if name not in relation.index_of]
    problems += [f"column {name} is not in the stream" for name in strange]
    if problems:
        raise DataError(
            f"the data frame does not fit stream {relation.name}: {'; '.join(problems)}. The stream has "
            f"{', '.join(f'{c.name} {c.type}' for c in relation.columns)}; select, cast and rename columns first",
            relation=relation.name,
            problems=problems,
        )


def _remedy(kind: ColumnType) -> str:
    return " (Spark has no such type: declare the column as VARCHAR)" if kind.family == "uuid" else ""


def _fits(given: spark.DataType, kind: ColumnType) -> bool:
    if isinstance(given, spark.NullType):
        return True
    if kind.family == "list":
        assert kind.element is not None
        return isinstance(given, spark.ArrayType) and _fits(given.elementType, kind.element)
    name = given.typeName()
    return any(name == taken or name.startswith((taken + " ", taken + "(")) for taken in _TAKEN.get(kind.family, ()))


def columns_of(schema: Iterable[Any]) -> list[str]:
    """The names in a Spark schema."""
    return [field.name for field in schema]
