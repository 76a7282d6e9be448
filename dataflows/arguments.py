"""Arguments of calls that come as JSON or as text, read by the annotations of the procedure."""

from __future__ import annotations

import datetime as dt
import inspect
import json
import types
import typing
from collections.abc import Callable, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import cached_property
from typing import Any

import msgspec

from tidegate.errors import DataError, shown

WORDS = {
    "Decimal": "a decimal number",
    "datetime": "a time such as 2026-01-31T14:05:00",
    "date": "a date such as 2026-01-31",
    "time": "a time of day such as 14:05:00",
    "timedelta": "a duration such as PT90S",
    "UUID": "a UUID",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "bytes": "bytes in base64",
}


def _read_time(kind: Any, text: str) -> dt.datetime | dt.time | None:
    """A time as SQL may write it: with a space, or without seconds. None: it is none."""
    kinds = {kind, *typing.get_args(kind)}
    for one in (dt.datetime, dt.time):
        if one in kinds:
            with suppress(ValueError):
                return one.fromisoformat(text)
    return None


class Arguments:
    """What a procedure's parameters take.

    Parameters without an annotation, or with one that JSON has no form for, take what they are given.
    """

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self._name = name
        self._function = function
        self._parameters = list(inspect.signature(function).parameters.values())[1:]  # after txn
        self._places = [p.name for p in self._parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]

    @cached_property
    def _kinds(self) -> dict[str, Any]:
        """Types by parameter; looked at when the first arguments come, because opening an engine should not wait for it."""
        hints = _hints(self._function)
        return {p.name: hints[p.name] for p in self._parameters if _readable(hints.get(p.name))}

    def read(
        self, arguments: Sequence[Any], named: dict[str, Any], text: bool = False
    ) -> tuple[list[Any], dict[str, Any]]:
        """JSON values as the types the parameters declare. ``text``: all are texts, as typed on a command line.

        >>> def pay(txn, account: str, amount: Decimal): ...
        >>> Arguments("pay", pay).read(["0123", "9.50"], {}, text=True)
        (['0123', Decimal('9.50')], {})
        """
        one = self._read_text if text else self._read
        names = [*self._places, *[None] * len(arguments)]
        return (
            [one(name, value) for name, value in zip(names, arguments, strict=False)],
            {name: one(name, value) for name, value in named.items()},
        )

    def _read(self, parameter: str | None, value: Any) -> Any:
        if parameter not in self._kinds:
            return value
        kind = self._kinds[parameter]
        try:
            return _finite(msgspec.convert(value, kind))
        except (msgspec.ValidationError, ValueError):
            if not isinstance(value, str):
                raise self._refused(parameter, kind, value) from None
        if (found := _read_time(kind, value)) is not None:
            return found
        try:  # whole numbers beyond 2**53 travel as text
            return _finite(msgspec.convert(value, kind, strict=False))
        except (msgspec.ValidationError, ValueError):
            raise self._refused(parameter, kind, value) from None

    def _read_text(self, parameter: str | None, text: str) -> Any:
        kind = self._kinds.get(parameter) if parameter is not None else None
        if _takes_text(kind) and text != "null":
            return text
        try:
            value = json.loads(text, parse_float=None if kind is None else str)
        except ValueError:
            value = text
        return self._read(parameter, value)

    def _refused(self, parameter: str, kind: Any, value: Any) -> DataError:
        return DataError(
            f"{self._name}: {parameter} takes {_told(kind)}, got {shown(value)}",
            relation=self._name,
            column=parameter,
            value=value,
        )


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # names that only a type checker knows: such annotations say nothing here
        return {}


def _readable(kind: Any) -> bool:
    if kind is None or kind is Any:
        return False
    try:
        msgspec.json.schema(kind)
    except TypeError:
        return False
    return True


def _takes_text(kind: Any) -> bool:
    """Is text a value of this type as it is? Not of ``list[str]``, which is written as JSON."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return kind is str or (union and str in typing.get_args(kind))


def _finite(value: Any) -> Any:
    if isinstance(value, Decimal) and not value.is_finite():
        raise ValueError(value)
    return value


def _told(kind: Any) -> str:
    parts = [part for part in typing.get_args(kind) if part is not type(None)]
    origin = typing.get_origin(kind)
    if origin in (list, tuple, set):
        return f"a list of values, each {_told(parts[0])}" if parts else "a list"
    if parts:
        nullable = " or null" if type(None) in typing.get_args(kind) else ""
        return " or ".join(map(_told, parts)) + nullable
    name = getattr(kind, "__name__", str(kind))
    return WORDS.get(name, name)
