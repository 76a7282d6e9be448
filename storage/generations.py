"""Copies of the base, and telling a sound base from a damaged one.

The log is the authority; where the base disagrees with it, the base is wrong. DuckDB checks a block's
checksum when it reads the block, so a base is *sound* when all of it can be read.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb

from tidegate.crashpoints import crash_point
from tidegate.errors import BaseDamaged
from tidegate.storage.base import BASE_SCHEMA, META, close_to_others, write_error
from tidegate.storage.ddl import quote
from tidegate.syncing import sync_file


def inspect_base(path: Path) -> dict[str, Any]:
    """Read every block of the database at ``path``; returns its stored facts. Raises BaseDamaged when it is not sound."""
    try:
        connection = duckdb.connect(str(path), config={"threads": "1"})
    except duckdb.Error as error:
        raise BaseDamaged(_first_line(error)) from None
    try:
        tables = connection.execute("SELECT schema_name, table_name FROM duckdb_tables()").fetchall()
        for schema, table in tables:
            if schema == BASE_SCHEMA:
                connection.execute(f"SELECT bit_xor(hash(t)) FROM {BASE_SCHEMA}.{quote(table)} t").fetchall()
        if META not in (table for _, table in tables):
            return {}
        return {name: json.loads(value) for name, value in connection.execute(f"FROM {META}").fetchall()}
    except (duckdb.Error, ValueError) as error:
        raise BaseDamaged(_first_line(error)) from None
    finally:
        connection.close()


def read_facts(path: Path) -> dict[str, Any]:
    """Only the stored facts, of a base that no process has open. Raises BaseDamaged when they can't be read."""
    try:
        with duckdb.connect(str(path), read_only=True, config={"threads": "1"}) as connection:
            found = connection.execute(f"FROM {META} WHERE name IN ('directory', 'lsn')").fetchall()
        return {name: json.loads(value) for name, value in found}
    except (duckdb.Error, ValueError) as error:
        raise BaseDamaged(_first_line(error)) from None


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
