"""SQL written as text in procedures that no longer fits a table: it would fail when it is run, long after the upgrade.

A statement of ``app.sql(…)`` is prepared when the app is declared, a text only when it is first run. Texts that a procedure
puts together as it runs, and rows given by position, can't be known before.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from types import CellType, CodeType, FunctionType
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.bytecode import names_in
from tidegate.errors import TidegateError

_STATEMENT = re.compile(r"\s*(INSERT|UPDATE|DELETE|SELECT|WITH|FROM)\s", re.IGNORECASE)


def misfits(app: App, tables: Collection[str]) -> list[str]:
    """What is wrong with texts that name one of these tables, by procedure."""
    if not tables:
        return []
    named = re.compile(rf"\b({'|'.join(map(re.escape, tables))})\b", re.IGNORECASE)
    told: dict[str, None] = {}
    for procedure in app.procedures.values():
        windows_of = procedure.name if procedure.windows else None
        for text in _texts(procedure.function, set()):
            if _STATEMENT.match(text) and named.search(text):
                try:
                    app.statement(text, windows_of)
                except TidegateError as error:
                    told[f"procedure {procedure.name}: {error}"] = None
    return list(told)


def _texts(value: Any, seen: set[int]) -> Iterator[str]:
    """The text in a function and in what it refers to in its own module."""
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, str):
        yield value
    elif isinstance(value, CodeType):
        for const in value.co_consts:
            yield from _texts(const, seen)
    elif isinstance(value, FunctionType):
        yield from _texts(value.__code__, seen)
        inside = value.__globals__
        used = [inside[name] for name in names_in(value.__code__).globals if name in inside]
        used += [cell.cell_contents for cell in value.__closure__ or () if cell != CellType()]
        for other in used:
            if isinstance(other, str) or (isinstance(other, FunctionType) and other.__module__ == value.__module__):
                yield from _texts(other, seen)
