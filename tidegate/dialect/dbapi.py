"""Python's database interface (PEP 249) over engine.query, or over the tables of a directory. It only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidegate.engine.result import Result
from tidegate.engine.system_views import VIEWS
from tidegate.errors import TidegateError
from tidegate.loading import load_app
from tidegate.offline.stored import ReplayedCopy, StoredCopy

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

apilevel = "2.0"
threadsafety = 1
paramstyle = "numeric_dollar"  # $1, $2: this is SQLAlchemy's name for it


class Error(Exception):
    """Base of this interface's errors; the engine's own is its cause."""


class InterfaceError(Error):
    """The interface was used wrongly."""


class DatabaseError(Error):
    """The engine refused or could not answer."""


class DataError(DatabaseError):
    """A value does not fit."""


class OperationalError(DatabaseError):
    """Something outside the statement: a closed engine, a missing directory."""


class IntegrityError(DatabaseError):
    """Not raised: nothing is written here."""


class InternalError(DatabaseError):
    """Not raised."""


class ProgrammingError(DatabaseError):
    """The statement is wrong, or does more than read."""


class NotSupportedError(DatabaseError):
    """What this interface does not do."""


Columns = list[tuple[str, str, bool]]  # name, type, nullable


class Connection:
    """A connection; ``engine`` live, or the directory ``path`` (with ``app``: replayed to the newest state)."""

    def __init__(self, engine: Engine | None = None, path: str | None = None, app: str | None = None) -> None:
        self._close: Callable[[], None] = lambda: None
        self._run: Callable[[str, Sequence[Any]], pa.Table]
        try:
            if engine is not None:
                self._use(engine)
            elif path is None:
                raise InterfaceError(
                    "name a directory, create_engine('tidegate:///data'), or give an engine: "
                    "create_engine('tidegate://', connect_args={'engine': engine})"
                )
            elif app is not None:
                copy = ReplayedCopy(Path(path), load_app(app))
                self._close = copy.close
                self._use(copy.engine)
            else:
                stored = StoredCopy(Path(path))
                self._close, self._run = stored.close, stored.query
                self.tables: dict[str, Columns] = stored.tables
                self.keys: dict[str, list[str]] = stored.keys
                self.views: dict[str, Columns] = {}
        except TidegateError as error:
            raise OperationalError(str(error)) from error

    def _use(self, engine: Engine) -> None:
        self._run = lambda sql, parameters: engine.query(sql, *parameters).arrow
        schemas = engine.app.tables
        self.tables = {n: [(c.name, c.type.sql, c.nullable) for c in s.columns] for n, s in schemas.items()}
        self.keys = {name: list(schema.primary_key) for name, schema in schemas.items()}
        self.views = {
            name.removeprefix("tidegate_"): [(c.name, c.type.sql, True) for c in view.relation.columns]
            for name, view in VIEWS.items()
        }

    def cursor(self) -> Cursor:
        return Cursor(self._run)

    def commit(self) -> None:
        """Nothing to do: it only reads."""

    def rollback(self) -> None:
        """Nothing to do: it only reads."""

    def close(self) -> None:
        self._close()


class Cursor:
    """Runs one statement at a time and returns its rows."""

    arraysize = 1

    def __init__(self, run: Callable[[str, Sequence[Any]], pa.Table]) -> None:
        self._run = run
        self._rows: Iterator[tuple[Any, ...]] = iter(())
        self.description: list[tuple[Any, ...]] | None = None
        self.rowcount = -1

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Cursor:
        if isinstance(parameters, Mapping):
            raise InterfaceError("parameters are given by position, for $1, $2, … in the statement")
        try:
            answer = self._run(sql, parameters)
        except TidegateError as error:
            raise ProgrammingError(str(error)) from error
        self.description = [(field.name, str(field.type), None, None, None, None, None) for field in answer.schema]
        self.rowcount = answer.num_rows
        self._rows = map(tuple, Result(answer))
        return self

    def executemany(self, sql: str, parameters: Sequence[Any]) -> None:
        raise NotSupportedError("this interface only reads; change tables in a procedure: engine.call(…)")

    def fetchone(self) -> tuple[Any, ...] | None:
        return next(self._rows, None)

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        return [row for row, _ in zip(self._rows, range(size or self.arraysize), strict=False)]

    def fetchall(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def close(self) -> None:
        self._rows = iter(())

    def setinputsizes(self, sizes: Any) -> None:
        """Nothing to prepare."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Nothing to prepare."""


def connect(**options: Any) -> Connection:
    return Connection(**options)
