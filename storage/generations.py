"""Copies of the base, and telling a sound base from a damaged one.

The log is the authority; where the base disagrees with it, the base is wrong. DuckDB checks a block's
checksum when it reads the block, so a base is *sound* when all of it can be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import duckdb

from tidegate.crashpoints import crash_point
from tidegate.errors import BaseDamaged
from tidegate.storage.base import BASE_SCHEMA, META, close_to_others, write_error
from tidegate.storage.ddl import quote
from tidegate.syncing import sync_file

ATTACHED = "looked_into"


class Inspector:
    """Looks into databases that no process has open, one after the other, in a ``with`` block.

    They are attached to one DuckDB: to start another for each takes twenty times as long as the look.
    """

    def __init__(self) -> None:
        self._started: duckdb.DuckDBPyConnection | None = None

    def read_all(self, path: Path) -> dict[str, Any]:
        """Read every block of the database at ``path``; returns its stored facts. Raises BaseDamaged when it is not sound."""
        with self._attached(path, "") as connection:
            found = connection.execute(
                "SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = ?", [ATTACHED]
            )
            tables = found.fetchall()
            for schema, table in tables:
                if schema == BASE_SCHEMA:
                    connection.execute(f"SELECT bit_xor(hash(t)) FROM {ATTACHED}.{schema}.{quote(table)} t").fetchall()
            if META not in (table for _, table in tables):
                return {}
            return _facts(connection, "")

    def read_facts(self, path: Path) -> dict[str, Any]:
        """Only whose base it is, and its LSN. Raises BaseDamaged when they can't be read."""
        with self._attached(path, "(READ_ONLY)") as connection:
            return _facts(connection, "WHERE name IN ('directory', 'lsn')")

    @contextmanager
    def _attached(self, path: Path, how: str) -> Iterator[duckdb.DuckDBPyConnection]:
        try:
            if self._started is None:
                self._started = duckdb.connect(":memory:", config={"threads": "1"})
            self._started.execute(f"ATTACH {_text(path)} AS {ATTACHED} {how}")
            yield self._started
            self._started.execute(f"DETACH {ATTACHED}")
        except (duckdb.Error, ValueError) as error:
            self.close()  # what a damaged file has done to this DuckDB is unknown: the next look gets another
            raise BaseDamaged(_first_line(error)) from None

    def close(self) -> None:
        """Let go of what is attached."""
        if self._started is not None:
            self._started.close()
            self._started = None

    def __enter__(self) -> Inspector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _facts(connection: duckdb.DuckDBPyConnection, which: str) -> dict[str, Any]:
    found = connection.execute(f"SELECT name, value FROM {ATTACHED}.{META} {which}").fetchall()
    return {name: json.loads(value) for name, value in found}


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def copy_base(cursor: duckdb.DuckDBPyConnection, target: Path) -> None:
    """A consistent copy of the open base at ``target``, complete and on disk, or absent."""
    partial = target.with_suffix(".partial")
    cursor.execute("DETACH DATABASE IF EXISTS tidegate_copy")  # left by an interrupted copy
    _remove(partial)
    source = cursor.execute("SELECT current_database()").fetchall()[0][0]
    crash_point("generation-before-copy")
    try:
        cursor.execute(f"ATTACH {_text(partial)} AS tidegate_copy")
        close_to_others(partial)
        cursor.execute(f"COPY FROM DATABASE {quote(source)} TO tidegate_copy")
        cursor.execute("CHECKPOINT tidegate_copy")
    except duckdb.Error as error:
        with suppress(duckdb.Error):  # it may not even have been attached
            cursor.execute("DETACH tidegate_copy")
        _remove(partial)
        raise write_error(target, error) from error
    cursor.execute("DETACH tidegate_copy")
    sync_file(partial)
    crash_point("generation-before-rename")
    partial.replace(target)
    sync_file(target.parent)
    crash_point("generation-after-rename")


def _remove(partial: Path) -> None:
    for leftover in partial.parent.glob(f"{partial.name}*"):
        leftover.unlink()


def sync_base(path: Path) -> None:
    """Make DuckDB's changes to the directory (a removed WAL) durable too; restrict new files to the owner."""
    close_to_others(path)
    sync_file(path.parent)


def _text(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
