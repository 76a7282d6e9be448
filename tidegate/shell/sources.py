"""What the shell queries: a directory, a PostgreSQL endpoint, or a server over HTTP. All of them answer with Arrow."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tidegate.errors import QueryFailed, TidegateError
from tidegate.guard.addresses import without_secrets
from tidegate.loading import load_app
from tidegate.offline.stored import ReplayedCopy, StoredCopy

Schema = dict[str, list[tuple[str, str]]]  # relation -> (column, type)

COLUMNS = (
    "SELECT table_schema, table_name, column_name, data_type FROM information_schema.columns "
    "WHERE table_schema IN ('public', 'tidegate') ORDER BY table_schema, table_name, ordinal_position"
)


class Source(Protocol):
    """Something that answers SQL. ``note``: what the user should know about it at the start."""

    note: str

    def query(self, sql: str) -> pa.Table: ...

    def schema(self) -> Schema:
        """Tables and system views with their columns."""
        ...

    def close(self) -> None: ...


def open_source(target: str, app: str | None = None, token: str | None = None) -> Source:
    """The source at ``target``: a directory, ``postgresql://…`` or ``http(s)://…``."""
    scheme = target.partition("://")[0] if "://" in target else ""
    if scheme in ("postgresql", "postgres"):
        return PostgresSource(target)
    if scheme in ("http", "https"):
        return HttpSource(target, token)
    if scheme:
        raise TidegateError(f"{target}: give a directory, postgresql://…, http://… or https://…")
    if app is not None:
        return ReplayedSource(Path(target), app)
    return StoredSource(Path(target))


class StoredSource:
    """The tables of a directory, without their app."""

    def __init__(self, path: Path) -> None:
        self._stored = StoredCopy(path)
        self.note = self._stored.note

    def query(self, sql: str) -> pa.Table:
        return self._stored.query(sql)

    def schema(self) -> Schema:
        return {name: [(c, kind) for c, kind, _ in columns] for name, columns in self._stored.tables.items()}

    def close(self) -> None:
        self._stored.close()


class ReplayedSource:
    """A directory with its app: the newest state, and system views."""

    def __init__(self, path: Path, app: str) -> None:
        self._copy = ReplayedCopy(path, load_app(app))
        self.note = self._copy.note

    def query(self, sql: str) -> pa.Table:
        return self._copy.engine.query(sql).arrow

    def schema(self) -> Schema:
        from tidegate.engine.system_views import VIEWS

        tables = self._copy.engine.app.tables.items()
        found = {name: [(c.name, c.type.sql) for c in schema.columns] for name, schema in tables}
        for name, view in VIEWS.items():
            found[name.replace("_", ".", 1)] = [(c.name, c.type.sql) for c in view.relation.columns]
        return found

    def close(self) -> None:
        self._copy.close()


class PostgresSource:
    """A replica's PostgreSQL endpoint."""

    def __init__(self, url: str) -> None:
        try:
            import psycopg
        except ImportError:
            raise TidegateError(
                "postgresql:// needs psycopg; pip install 'tidegate[postgres]'", package="psycopg"
            ) from None
        self._errors: type[Exception] = psycopg.Error
        try:
            self._connection = psycopg.connect(url, autocommit=True)
        except psycopg.Error as error:
            raise TidegateError(f"can't connect to {without_secrets(url)}: {error}".rstrip()) from None
        self.note = f"connected to {self._connection.info.host}:{self._connection.info.port}"

    def query(self, sql: str) -> pa.Table:
        try:
            cursor: Any = self._connection.execute(sql.encode())
            if cursor.description is None:
                return pa.table({"answer": [cursor.statusmessage]})
            rows = cursor.fetchall()
        except self._errors as error:
            state = getattr(error, "sqlstate", None) or "XX000"
            raise QueryFailed(str(error).strip(), sqlstate=state) from None
        names = [column.name for column in cursor.description]
        columns = [list(values) for values in zip(*rows, strict=True)] if rows else [[] for _ in names]
        return pa.Table.from_arrays([_array(values) for values in columns], names=names)

    def schema(self) -> Schema:
        return _schema_of(self.query(COLUMNS))

    def close(self) -> None:
        self._connection.close()


class HttpSource:
    """A server, through its client."""

    def __init__(self, url: str, token: str | None) -> None:
        import tidegate

        connect = getattr(tidegate, "connect", None)
        if connect is None:
            raise TidegateError("this installation has no HTTP client; use the server's postgresql:// address")
        self._client = connect(url, token, retry_s=0.0)
        self.note = f"connected to {without_secrets(url)}"

    def query(self, sql: str) -> pa.Table:
        found: pa.Table = self._client.query(sql).arrow
        return found

    def schema(self) -> Schema:
        return _schema_of(self.query(COLUMNS))

    def close(self) -> None:
        self._client.close()


def _schema_of(columns: pa.Table) -> Schema:
    found: Schema = {}
    for row in columns.to_pylist():
        prefix = "" if row["table_schema"] == "public" else f"{row['table_schema']}."
        found.setdefault(prefix + row["table_name"], []).append((row["column_name"], row["data_type"]))
    return found


def _array(values: list[Any]) -> pa.Array:
    """A column; values that Arrow has no common type for as text."""
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, OverflowError):
        return pa.array([None if value is None else str(value) for value in values], pa.string())
