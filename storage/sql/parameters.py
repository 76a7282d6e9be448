"""The parameters of a statement: by position (``?``, ``$1``) or by name (``$name``)."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import sqlglot
from sqlglot import TokenType, exp

from tidegate.errors import StatementError


class Parameters:
    """Which parameters a statement takes; turns what a caller gives into one tuple in the statement's order.

    Those of a SQLAlchemy statement go by place and by name, and have ``defaults``: the values bound when it
    was built.
    """

    def __init__(
        self, sql: str, names: Sequence[str], positional: bool, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.sql = sql
        self.names = tuple(names)
        self.positional = positional
        self.named = not positional or defaults is not None
        self.defaults = dict(defaults or {})
        self.count = len(self.names)
        self._wanted = tuple(name for name in self.names if name not in self.defaults)

    def bind(self, given: Sequence[Any] | Mapping[str, Any]) -> tuple[Any, ...]:
        if isinstance(given, Mapping):
            return self._by_name(given)
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise StatementError(
                f"parameters must be a sequence or a mapping, got {type(given).__name__}: {given!r}\n  {self.sql}",
                sql=self.sql,
            )
        if len(given) != len(self._wanted) or (given and not self.positional):
            raise self._mismatch(f"{len(given)} values by position")
        if len(self._wanted) == self.count:
            return tuple(given)
        return self._by_name(dict(zip(self._wanted, given, strict=True)))

    def _by_name(self, given: Mapping[str, Any]) -> tuple[Any, ...]:
        if not self.named and given:
            raise self._mismatch(f"a mapping with {', '.join(map(repr, given)) or 'nothing'}")
        unknown = [name for name in given if name not in self.names]
        missing = [name for name in self._wanted if name not in given]
        if unknown or missing:
            raise self._mismatch(", ".join(map(repr, given)) or "none")
        return tuple([given[name] if name in given else self.defaults[name] for name in self.names])

    def _mismatch(self, given: str) -> StatementError:
        if not self.named:
            expected = f"{self.count} values by position"
        else:
            expected = ", ".join(map(repr, self._wanted)) or "none"
            if self.defaults:
                expected += f" (and optionally {', '.join(map(repr, self.defaults))})"
        return StatementError(f"this statement takes {expected}; got {given}\n  {self.sql}", sql=self.sql)


def for_sqlglot(sql: str) -> str:
    """With a space at the end: sqlglot loses its place in a text that ends in ``''`` after it has searched for the end
    of a ``$tag$``, which a parameter may look like.
    """
    return f"{sql} "


def in_text_order(sql: str) -> str:
    """``sql`` with every ``?`` replaced by ``$1``, ``$2``, …: in a syntax tree their order differs from the text."""
    tokens = sqlglot.tokenize(for_sqlglot(sql), dialect="duckdb")
    marks = [token for token in tokens if token.token_type is TokenType.PLACEHOLDER]
    if any(token.token_type is TokenType.PARAMETER for token in tokens):
        return sql  # a mixture, which is refused
    for number, token in reversed(list(enumerate(marks, 1))):
        sql = f"{sql[: token.start]}${number}{sql[token.end + 1 :]}"
    return sql


def number_parameters(tree: exp.Expression, sql: str) -> tuple[list[str], bool]:
    """Rename every placeholder of ``tree`` to ``$p<place>``; returns the user's names and whether they are
    places.
    """
    names: list[str] = []
    anonymous = numbered = named = 0
    for node in list(tree.find_all(exp.Placeholder, bfs=False)):
        label = node.args.get("this")
        if label is None:
            place, anonymous = anonymous, anonymous + 1
        elif str(label).isdigit():
            place, numbered = int(str(label)) - 1, max(numbered, int(str(label)))
        else:
            if str(label) not in names:
                names.append(str(label))
            place, named = names.index(str(label)), named + 1
        node.set("this", f"p{place}")
    if (anonymous > 0) + (numbered > 0) + (named > 0) > 1:
        raise StatementError(f"a statement takes ? or $1 or $name parameters, not a mixture: {sql}", sql=sql)
    if named:
        return names, False
    return [str(place + 1) for place in range(max(anonymous, numbered))], True


def to_duckdb(value: Any) -> Any:
    """A parameter as a value that DuckDB's Python client binds with the type we mean."""
    if isinstance(value, dt.datetime):
        return value.astimezone(dt.UTC).replace(tzinfo=None) if value.tzinfo is not None else value
    if isinstance(value, np.generic):
        if isinstance(value, (np.datetime64, np.timedelta64)):
            kind = "datetime64[us]" if isinstance(value, np.datetime64) else "timedelta64[us]"
            return value.astype(kind).item()
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (tuple, list)):
        return [to_duckdb(item) for item in value]
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, dict):
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    return value
