"""The SQLAlchemy dialect: PostgreSQL's SQL, which DuckDB understands, and reflection from the declared tables."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import sqlalchemy as sa
from sqlalchemy import types
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGIdentifierPreparer, PGTypeCompiler
from sqlalchemy.engine import URL
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import NoSuchTableError

from tidegate.dialect import dbapi

SYSTEM = "tidegate"  # the schema of the system views

_TYPES: dict[str, Any] = {
    "BOOLEAN": sa.Boolean,
    "TINYINT": sa.SmallInteger,
    "SMALLINT": sa.SmallInteger,
    "INTEGER": sa.Integer,
    "BIGINT": sa.BigInteger,
    "UTINYINT": sa.SmallInteger,
    "USMALLINT": sa.Integer,
    "UINTEGER": sa.BigInteger,
    "UBIGINT": sa.Numeric(20, 0),
    "FLOAT": sa.REAL,
    "DOUBLE": sa.Double,
    "VARCHAR": sa.String,
    "BLOB": sa.LargeBinary,
    "DATE": sa.Date,
    "TIME": sa.Time,
    "TIMESTAMP": sa.DateTime,
    "INTERVAL": sa.Interval,
    "JSON": sa.String,  # it comes as text
    "UUID": sa.String,
}


def column_type(sql: str) -> types.TypeEngine[Any]:
    """SQLAlchemy's type for a declared one.

    >>> column_type("DECIMAL(9,2)"), column_type("INTEGER[]")
    (Numeric(precision=9, scale=2), ARRAY(Integer()))
    """
    if match := re.fullmatch(r"DECIMAL\((\d+),\s*(\d+)\)", sql):
        return sa.Numeric(int(match[1]), int(match[2]))
    if sql.endswith("[]"):
        return sa.ARRAY(column_type(sql[:-2]))
    found: types.TypeEngine[Any] = sa.types.to_instance(_TYPES.get(sql, sa.String))
    return found


class _Compiler(PGCompiler):
    """Plain SELECTs as PostgreSQL has them; no casts around parameters."""

    def render_bind_cast(self, type_: Any, dbapi_type: Any, sqltext: str) -> str:
        return sqltext


class TidegateDialect(DefaultDialect):
    """``tidegate:///directory`` (``?app=file.py:app`` to replay what is not merged), or a live engine in connect_args."""

    name = "tidegate"
    driver = "tidegate"
    default_paramstyle = "numeric_dollar"
    statement_compiler = _Compiler
    type_compiler_cls = PGTypeCompiler
    preparer = PGIdentifierPreparer
    supports_statement_cache = True
    supports_native_boolean = True
    supports_native_decimal = True
    supports_sane_rowcount = False
    supports_alter = False
    supports_multivalues_insert = False
    _backslash_escapes = False
    _supports_create_index_concurrently = False

    @classmethod
    def import_dbapi(cls) -> ModuleType:
        return dbapi

    def create_connect_args(self, url: URL) -> tuple[list[Any], dict[str, Any]]:
        """Everything after the third slash is the directory."""
        options: dict[str, Any] = dict(url.query)
        if url.database:
            options["path"] = url.database
        return [], options

    def initialize(self, connection: Any) -> None:
        """Nothing to query: everything known is in the connection."""
        self.default_schema_name = None
        self.server_version_info = (1,)

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Nothing to do: it only reads."""

    # ---- reflection

    @staticmethod
    def _opened(connection: Any) -> dbapi.Connection:
        found: dbapi.Connection = connection.connection.dbapi_connection
        return found

    def _relation(self, connection: Any, name: str, schema: str | None) -> dbapi.Columns:
        opened = self._opened(connection)
        relations = opened.views if schema == SYSTEM else opened.tables if schema is None else {}
        if name not in relations:
            raise NoSuchTableError(name if schema is None else f"{schema}.{name}")
        return relations[name]

    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        return [SYSTEM]

    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return list(self._opened(connection).tables) if schema is None else []

    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return list(self._opened(connection).views) if schema == SYSTEM else []

    def has_table(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> bool:
        try:
            self._relation(connection, table_name, schema)
        except NoSuchTableError:
            return False
        return True

    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        return [
            {"name": name, "type": column_type(kind), "nullable": nullable, "default": None}
            for name, kind, nullable in self._relation(connection, table_name, schema)
        ]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        self._relation(connection, table_name, schema)
        key = self._opened(connection).keys.get(table_name, []) if schema is None else []
        return {"constrained_columns": key, "name": None}

    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        self._relation(connection, table_name, schema)
        return []

    def get_indexes(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        self._relation(connection, table_name, schema)
        return []

    def get_unique_constraints(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return []

    def get_check_constraints(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return []

    def get_table_comment(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        return {"text": None}


dialect = TidegateDialect
