"""Filters of Spark as conditions of SQL, where both mean the same."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

from pyspark.sql import datasource as ds

_COMPARED: dict[type[ds.Filter], str] = {
    ds.EqualTo: "=",
    ds.EqualNullSafe: "IS NOT DISTINCT FROM",
    ds.GreaterThan: ">",
    ds.GreaterThanOrEqual: ">=",
    ds.LessThan: "<",
    ds.LessThanOrEqual: "<=",
}
_TEXT = {ds.StringStartsWith: "starts_with", ds.StringEndsWith: "suffix", ds.StringContains: "contains"}

Condition = tuple[str, list[Any]]


def condition(one: ds.Filter) -> Condition | None:
    """The condition and its parameters; None when Spark has to look for itself."""
    match one:
        case ds.Not(child):
            inner = condition(child)
            return None if inner is None else (f"NOT ({inner[0]})", inner[1])
        case ds.IsNull(column):
            return _on(column, "{} IS NULL")
        case ds.IsNotNull(column):
            return _on(column, "{} IS NOT NULL")
        case ds.In(column, values):
            plain = [_plain(value) for value in values]
            if not plain or any(value is None for value in plain):
                return None
            return _on(column, "{} IN (" + ", ".join("?" * len(plain)) + ")", *plain)
    value = _plain(getattr(one, "value", None))
    if value is None:
        return None
    if type(one) in _COMPARED:
        return _on(one.attribute, "{} " + _COMPARED[type(one)] + " ?", value)  # type: ignore[attr-defined]
    if type(one) in _TEXT and isinstance(value, str):
        return _on(one.attribute, _TEXT[type(one)] + "({}, ?)", value)  # type: ignore[attr-defined]
    return None


def _on(column: tuple[str, ...], clause: str, *values: Any) -> Condition | None:
    if len(column) != 1:
        return None
    return clause.format('"' + column[0].replace('"', '""').replace("{", "{{").replace("}", "}}") + '"'), list(values)


def _plain(value: Any) -> Any:
    """A value that is the same in both; None otherwise. Moments are UTC here."""
    match value:
        case bool() | int() | str() | Decimal():
            return value
        case float() if value == value:
            return value
        case dt.datetime():
            return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else None
        case dt.date():
            return value
    return None
