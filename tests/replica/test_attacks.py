"""SQL that wants more than to read: every attack is refused with a clear error, and the engine goes on."""

from __future__ import annotations

import psycopg
import pytest
from psycopg.pq import ExecStatus
from shops import Shop

from tidegate.errors import QueryFailed, QueryRefused

ATTACKS = {
    "read a file": "SELECT * FROM read_csv('/etc/passwd')",
    "read a file as text": "SELECT content FROM read_text('/etc/passwd')",
    "read a blob": "SELECT * FROM read_blob('/etc/passwd')",
    "read parquet": "SELECT * FROM read_parquet('/tmp/x.parquet')",
    "read json": "SELECT * FROM read_json('/etc/passwd')",
    "read by name": "SELECT * FROM '/etc/passwd'",
    "read by name, csv": "SELECT * FROM 'x.csv'",
    "read a DuckDB file": "SELECT * FROM read_duckdb('/tmp/base.duckdb')",
    "list files": "SELECT * FROM glob('/etc/*')",
    "sniff": "SELECT * FROM sniff_csv('/etc/passwd')",
    "copy to a file": "COPY stock TO '/tmp/stolen.csv'",
    "copy a query to a file": "COPY (SELECT 1) TO '/tmp/stolen.csv'",
    "copy to a program": "COPY (SELECT 1) TO PROGRAM 'sh'",
    "copy from a file": "COPY stock FROM '/etc/passwd'",
    "copy from the client": "COPY stock FROM STDIN",
    "export": "EXPORT DATABASE '/tmp/stolen'",
    "import": "IMPORT DATABASE '/tmp/stolen'",
    "attach a file": "ATTACH '/tmp/other.duckdb' AS other",
    "attach memory": "ATTACH ':memory:' AS other",
    "detach": "DETACH memory",
    "network": "SELECT * FROM read_csv('http://127.0.0.1:1/x')",
    "network by name": "SELECT * FROM 'https://example.org/x.parquet'",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "force install": "FORCE INSTALL spatial FROM community",
    "connect": "CONNECT 'tcp://127.0.0.1'",
    "secret": "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "which secret": "SELECT * FROM which_secret('s3://x', 's3')",
    "set": "SET threads = 100",
    "set external access": "SET enable_external_access = true",
    "set memory": "SET memory_limit = '100GB'",
    "set the lock": "SET lock_configuration = false",
    "set global": "SET GLOBAL threads = 4",
    "set variable": "SET VARIABLE x = 1",
    "get variable": "SELECT getvariable('x')",
    "reset": "RESET memory_limit",
    "pragma": "PRAGMA database_list",
    "pragma as table": "SELECT * FROM pragma_database_list",
    "pragma function": "SELECT * FROM pragma_table_info('stock')",
    "pragma setting": "PRAGMA threads = 8",
    "settings": "SELECT * FROM duckdb_settings()",
    "settings as table": "SELECT * FROM duckdb_settings",
    "logs": "SELECT * FROM duckdb_logs",
    "databases": "SELECT * FROM duckdb_databases()",
    "sqlite_master": "SELECT * FROM sqlite_master",
    "environment": "SELECT getenv('HOME')",
    "environment inside": "SELECT * FROM stock WHERE item = (SELECT getenv('HOME'))",
    "environment in a lambda": "SELECT list_transform([1], lambda x: getenv('HOME'))",
    "environment by method": "SELECT 'HOME'.getenv()",
    "insert": "INSERT INTO stock VALUES ('x', 1)",
    "update": "UPDATE stock SET pieces = 0",
    "delete": "DELETE FROM stock",
    "truncate": "TRUNCATE stock",
    "merge": "MERGE INTO stock USING stock s ON false WHEN NOT MATCHED THEN INSERT VALUES ('x', 1)",
    "delete in a CTE": "WITH gone AS (DELETE FROM stock RETURNING *) SELECT * FROM gone",
    "insert in a CTE": "WITH new AS (INSERT INTO stock VALUES ('x', 1) RETURNING *) SELECT * FROM new",
    "drop": "DROP TABLE stock",
    "alter": "ALTER TABLE stock ADD COLUMN x INTEGER",
    "create table": "CREATE TABLE mine (x INTEGER)",
    "temporary table": "CREATE TEMP TABLE bomb AS SELECT * FROM range(1000000000)",
    "create as": "CREATE TABLE bomb AS SELECT 1",
    "select into": "SELECT * INTO bomb FROM stock",
    "macro": "CREATE MACRO f(x) AS x",
    "view": "CREATE VIEW v AS SELECT 1",
    "type": "CREATE TYPE t AS ENUM ('a')",
    "sequence": "CREATE SEQUENCE s",
    "checkpoint": "CHECKPOINT",
    "vacuum": "VACUUM",
    "analyze": "ANALYZE",
    "call": "CALL pragma_version()",
    "prepare": "PREPARE p AS SELECT 1",
    "execute": "EXECUTE p",
    "use": "USE memory",
    "sql in a string": "SELECT * FROM query('SELECT 1')",
    "table in a string": "SELECT * FROM query_table('stock')",
    "serialized sql": "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "sleep": "SELECT pg_sleep(1000)",
    "sleep in ms": "SELECT sleep_ms(1000000)",
    "log": "SELECT write_log('x')",
    "history of the replica": "SELECT * FROM tg_history.stock",
    "older states by hand": 'SELECT * FROM tg_as_of."stock@1"',
    "catalog under its own name": "SELECT * FROM tg_pg.pg_class",
    "another database": "SELECT * FROM memory.main.stock",
    "DuckDB's catalog": "SELECT * FROM system.information_schema.tables",
    "a CTE that takes a name": "WITH duckdb_settings AS (SELECT 1) SELECT * FROM duckdb_settings",
    "explain something else": "EXPLAIN COPY stock TO '/tmp/x'",
    "explain analyze a write": "EXPLAIN ANALYZE DELETE FROM stock",
    "python objects": "SELECT * FROM pandas_scan(0, 0, 0)",
    "arrow pointers": "SELECT * FROM arrow_scan(0, 0, 0)",
    "setting by catalog": "SELECT read_text('/etc/passwd') FROM pg_catalog.pg_class",
    "files beside the catalog": "SELECT * FROM pg_catalog.pg_class, read_csv('/etc/passwd')",
    "write beside the catalog": "WITH g AS (DELETE FROM stock RETURNING *) SELECT * FROM g, pg_catalog.pg_class",
    "shared library": "LOAD '/tmp/evil.duckdb_extension'",
    "do": "DO $$ BEGIN END $$",
    "listen": "LISTEN x",
    "lock": "LOCK TABLE stock",
    "set role": "SET ROLE postgres",
    "set search path of files": "SET file_search_path = '/etc'",
    "large object": "SELECT lo_import('/etc/passwd')",
    "pg file": "SELECT pg_read_file('/etc/passwd')",
    "pg directory": "SELECT * FROM pg_ls_dir('/')",
    "terminate": "SELECT pg_terminate_backend(1)",
}


@pytest.mark.parametrize("sql", ATTACKS.values(), ids=ATTACKS)
def test_refused_over_http_and_arrow(shop: Shop, sql: str) -> None:
    with pytest.raises((QueryRefused, QueryFailed)) as caught:
        shop.rows(sql)
    assert str(caught.value)
    assert caught.value.sqlstate not in ("XX000", "57P01"), str(caught.value)
    assert shop.replica.status["restarts"] == 0


def test_refused_over_the_wire(shop: Shop) -> None:
    """In both protocols, alone and behind a harmless statement; the session survives all of it."""
    with shop.connect() as connection:
        for sql in ATTACKS.values():
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(sql)
            assert caught.value.sqlstate not in ("XX000", "57P01"), sql
            for smuggled in (f"SELECT 1; {sql}", f"/* ; */ SELECT ';'; {sql}"):
                assert connection.pgconn.exec_(smuggled.encode()).status == ExecStatus.FATAL_ERROR, smuggled
        assert connection.execute("SELECT count(*) FROM stock").fetchone() == (2,)


def test_several_statements_are_refused_in_one_query(shop: Shop) -> None:
    with pytest.raises(QueryRefused, match="one statement at a time"):
        shop.rows("SELECT 1; SELECT 2")


def test_a_parameter_is_never_sql(shop: Shop) -> None:
    assert shop.rows("SELECT * FROM stock WHERE item = ?", ["x'; DROP TABLE stock; --"]) == []
    with shop.connect() as connection:
        assert connection.execute("SELECT %s", ("'; DROP TABLE stock; --",)).fetchone() == ("'; DROP TABLE stock; --",)


def test_what_is_allowed(shop: Shop) -> None:
    """The guard does not refuse what reads."""
    for sql in (
        "SELECT 1",
        "VALUES (1), (2)",
        "TABLE stock",
        "FROM stock SELECT item",
        "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 5) SELECT sum(n) FROM r",
        "SELECT * FROM stock s JOIN kinds k ON k.id = s.pieces",
        "SELECT unnest([1, 2]), * FROM generate_series(1, 2)",
        "SELECT item, sum(pieces) OVER (ORDER BY item) FROM public.stock",
        "DESCRIBE stock",
        "SUMMARIZE stock",
        "EXPLAIN SELECT * FROM stock",
        "EXPLAIN ANALYZE SELECT * FROM stock",
        "SELECT * FROM tidegate.locks",
        "SELECT * FROM information_schema.columns",
        "SELECT json_extract('{\"a\": 1}', '$.a'), struct_pack(a := 1), regexp_matches('a', 'b')",
        "SELECT * FROM (FROM stock PIVOT (sum(pieces) FOR item IN ('tea', 'jam')))",
    ):
        assert shop.rows(sql) is not None


def test_the_copy_is_untouched(shop: Shop) -> None:
    assert sorted(shop.rows("SELECT * FROM stock")) == [("jam", 3), ("tea", 10)]
    assert shop.engine.query("SELECT count(*) FROM stock").scalar() == 2
