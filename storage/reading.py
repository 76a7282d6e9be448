"""Reading a stored base without its engine: a copy of the DuckDB file, its tables under their own names, nothing written."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from tidegate.errors import BaseDamaged, StatementError
from tidegate.storage.base import BASE_SCHEMA, META
from tidegate.storage.ddl import quote


class StoredTables:
    """The tables of a base file that no other process has open (a copy), for queries.

    ``tables``: name -> its columns as ``(name, type, nullable)``; ``keys``: name -> primary key.
    """

    def __init__(self, path: Path) -> None:
        try:
            duckdb.connect(str(path)).close()  # replays its write-ahead log
            self._connection = duckdb.connect(":memory:")
            self._connection.execute(
                f"ATTACH '{str(path).replace(chr(39), chr(39) * 2)}' AS tidegate_stored (READ_ONLY)"
            )
            found = self._connection.execute(f"FROM tidegate_stored.{META}").fetchall()
        except duckdb.Error as error:
            raise BaseDamaged(f"the stored tables can't be read: {error}", path=path) from None
        facts = {name: json.loads(value) for name, value in found}
        self.sequence = int(facts.get("sequence", 0))
        self.tables: dict[str, list[tuple[str, str, bool]]] = {}
        self.keys: dict[str, list[str]] = {}
        for name, table in facts.get("declared", {"tables": {}})["tables"].items():
            self.tables[name] = [(column, kind, bool(nullable)) for column, kind, nullable, _ in table["columns"]]
            self.keys[name] = list(table["key"])
            self._connection.execute(f"CREATE VIEW {quote(name)} AS FROM tidegate_stored.{BASE_SCHEMA}.{quote(name)}")

    def query(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> pa.Table:
        """The answer to one query."""
        try:
            statements = self._connection.extract_statements(sql)
            if [s.type for s in statements] not in ([duckdb.StatementType.SELECT], [duckdb.StatementType.EXPLAIN]):
                raise StatementError("stored tables are read-only; run one SELECT at a time", sql=sql)
            cursor = self._connection.cursor()
            return cursor.sql(sql, params=parameters or None).to_arrow_table()
        except duckdb.Error as error:
            raise StatementError(f"{str(error).strip()}\n  {sql}", sql=sql) from None

    def close(self) -> None:
        self._connection.close()
