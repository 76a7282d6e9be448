"""What Superset, Metabase, Grafana and DBeaver send, after their public sources and in our own words: when they connect, when
they look for tables, and for a chart. Charts are compared with a real PostgreSQL.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from shops import Shop, holding

from tidegate.benchmarks.peers.postgres_server import PostgresServer

DDL = "CREATE TABLE sales (id INTEGER PRIMARY KEY, shop VARCHAR, pieces INTEGER, price NUMERIC(9,2), sold TIMESTAMP, day DATE)"
ROWS = [
    (
        i,
        None if i % 11 == 0 else ("north", "south", "east_1")[i % 3],
        i % 7,
        Decimal(i * 37 % 1000) / 100,
        dt.datetime(2026, 1, 1) + dt.timedelta(minutes=397 * i),
        dt.date(2026, 1, 1) + dt.timedelta(days=i // 3),
    )
    for i in range(1, 90)
]

# Grafana: the version, whether it is Timescale, tables of the search path, columns; and the macros of its charts
GRAFANA_SCHEMA = """quote_ident(table_schema) IN (SELECT CASE WHEN trim(s[i]) = '"$user"' THEN user ELSE trim(s[i]) END
FROM generate_series(array_lower(string_to_array(current_setting('search_path'), ','), 1),
array_upper(string_to_array(current_setting('search_path'), ','), 1)) AS i,
string_to_array(current_setting('search_path'), ',') s)"""
STARTING: dict[str, tuple[str, list[tuple[Any, ...]] | None]] = {
    "grafana version": ("SELECT current_setting('server_version_num')::int/100 as version", [(1500,)]),
    "grafana timescale": ("SELECT extversion FROM pg_extension WHERE extname = 'timescaledb'", []),
    "grafana schemas": (
        "SELECT schema_name AS \"name\" FROM information_schema.schemata WHERE schema_name NOT IN ('information_schema', "
        "'pg_catalog', 'pg_toast') ORDER BY schema_name",
        [("public",), ("tidegate",)],
    ),
    "grafana tables": (
        f'SELECT quote_ident(table_name) AS "table" FROM information_schema.tables WHERE {GRAFANA_SCHEMA} ORDER BY 1',
        [("sales",)],
    ),
    "grafana columns": (
        'SELECT quote_ident(column_name) AS "column", data_type AS "type" FROM information_schema.columns WHERE CASE WHEN '
        "array_length(parse_ident('public.sales'), 1) = 2 THEN quote_ident(table_schema) = (parse_ident('public.sales'))[1] AND "
        "quote_ident(table_name) = (parse_ident('public.sales'))[2] ELSE quote_ident(table_name) = 'public.sales' END",
        [
            ("id", "integer"),
            ("shop", "character varying"),
            ("pieces", "integer"),
            ("price", "numeric"),
            ("sold", "timestamp without time zone"),
            ("day", "date"),
        ],
    ),
    "superset databases": ("SELECT datname FROM pg_database WHERE datistemplate = false", [("tidegate",)]),
    "superset schema": ('set search_path = "public"', None),
    "superset process": ("SELECT pg_backend_pid()", [(1,)]),
    "superset version": ("select pg_catalog.version()", None),
    "superset standard strings": ("show standard_conforming_strings", [("on",)]),
    "superset estimate": ("EXPLAIN SELECT sum(pieces) FROM sales", None),
    "metabase zone": ("show timezone", [("Etc/UTC",)]),
    "metabase enums": (
        "SELECT nspname, typname FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid IN (SELECT DISTINCT "
        "enumtypid FROM pg_enum e)",
        [],
    ),
    "metabase tables": (
        'SELECT "n"."nspname" AS "schema", "c"."relname" AS "name", CASE "c"."relkind" WHEN \'r\' THEN \'TABLE\' WHEN \'v\' THEN '
        '\'VIEW\' ELSE NULL END AS "type", "d"."description" AS "description", "stat"."n_live_tup" AS "estimated_row_count" FROM '
        '"pg_catalog"."pg_class" AS "c" INNER JOIN "pg_catalog"."pg_namespace" AS "n" ON "c"."relnamespace" = "n"."oid" '
        "LEFT JOIN "
        '"pg_catalog"."pg_description" AS "d" ON ("c"."oid" = "d"."objoid") AND ("d"."objsubid" = 0) AND ("d"."classoid" = '
        '\'pg_class\'::regclass) LEFT JOIN "pg_stat_user_tables" AS "stat" ON ("n"."nspname" = "stat"."schemaname") AND '
        '("c"."relname" = "stat"."relname") WHERE ("n"."nspname" !~ \'^pg_\') AND ("n"."nspname" <> \'information_schema\') AND '
        "c.relkind in ('r', 'p', 'v', 'f', 'm') AND (\"n\".\"nspname\" IN ('public')) ORDER BY \"type\", \"schema\", \"name\"",
        [("public", "sales", "TABLE", None, None)],
    ),
    "metabase fields": (
        'SELECT "c"."column_name" AS "name", CASE WHEN "c"."udt_schema" IN (\'public\', \'pg_catalog\') THEN FORMAT(\'%s\', '
        '"c"."udt_name") ELSE FORMAT(\'"%s"."%s"\', "c"."udt_schema", "c"."udt_name") END AS "database-type", '
        '"c"."ordinal_position" - 1 AS "database-position", "pk"."column_name" IS NOT NULL AS "pk?", '
        'COL_DESCRIPTION(CAST(CAST(FORMAT(\'%I.%I\', CAST("c"."table_schema" AS TEXT), CAST("c"."table_name" AS TEXT)) AS '
        'REGCLASS) AS OID), "c"."ordinal_position") AS "field-comment" FROM "information_schema"."columns" AS "c" LEFT JOIN '
        '(SELECT "tc"."table_schema", "tc"."table_name", "kc"."column_name" FROM "information_schema"."table_constraints" AS '
        '"tc" INNER JOIN "information_schema"."key_column_usage" AS "kc" ON ("tc"."constraint_name" = "kc"."constraint_name") '
        'AND ("tc"."table_schema" = "kc"."table_schema") AND ("tc"."table_name" = "kc"."table_name") WHERE '
        '"tc"."constraint_type" = \'PRIMARY KEY\') AS "pk" ON ("c"."table_schema" = "pk"."table_schema") AND ("c"."table_name" = '
        '"pk"."table_name") AND ("c"."column_name" = "pk"."column_name") WHERE c.table_schema !~ '
        "'^information_schema|catalog_history|pg_' AND (\"c\".\"table_schema\" IN ('public')) ORDER BY 3",
        [
            ("id", "int4", 0, True, None),
            ("shop", "varchar", 1, False, None),
            ("pieces", "int4", 2, False, None),
            ("price", "numeric", 3, False, None),
            ("sold", "timestamp", 4, False, None),
            ("day", "date", 5, False, None),
        ],
    ),
    "metabase privileges": (
        "with table_privileges as (select NULL as role, t.schemaname as schema, t.objectname as table, "
        + ", ".join(
            f"pg_catalog.{function}(current_user, '\"' || replace(t.schemaname, '\"', '\"\"') || '\"' || '.' || '\"' || "
            f"replace(t.objectname, '\"', '\"\"') || '\"', '{right}') as {right}"
            for function, right in (
                ("has_any_column_privilege", "update"),
                ("has_any_column_privilege", "select"),
                ("has_any_column_privilege", "insert"),
                ("has_table_privilege", "delete"),
            )
        )
        + " from (select schemaname, tablename as objectname from pg_catalog.pg_tables union select schemaname, viewname as "
        "objectname from pg_catalog.pg_views union select schemaname, matviewname as objectname from pg_catalog.pg_matviews) t "
        "where t.schemaname !~ '^pg_' and t.schemaname <> 'information_schema' and "
        "pg_catalog.has_schema_privilege(current_user, t.schemaname, 'usage')) "
        "select t.* from table_privileges t where t.schema = 'public'",
        [(None, "public", "sales", False, True, False, False)],
    ),
    "metabase fields of materialized views": (
        "SELECT c.column_name AS name, (c.column_default IS NULL OR LOWER(c.column_default) = 'null') AND c.is_nullable = "
        "'NO' AND NOT ((c.column_default IS NOT NULL AND c.column_default LIKE '%nextval(%') OR c.is_identity <> 'NO') AS "
        '"database-required", c.ordinal_position - 1 AS place FROM information_schema.columns AS c WHERE c.table_schema = '
        "'public' UNION ALL SELECT pa.attname, false, pa.attnum - 1 FROM pg_catalog.pg_class AS pc JOIN pg_catalog.pg_namespace "
        "AS pn ON pn.oid = pc.relnamespace JOIN pg_catalog.pg_attribute AS pa ON pa.attrelid = pc.oid JOIN pg_catalog.pg_type AS "
        "pt ON pt.oid = pa.atttypid JOIN pg_catalog.pg_namespace AS ptn ON ptn.oid = pt.typnamespace WHERE pc.relkind = 'm' AND "
        "pa.attnum >= 1 ORDER BY place LIMIT 2",
        [("id", True, 0), ("shop", False, 1)],
    ),
    "metabase foreign keys": (
        "SELECT fk_ns.nspname, fk_table.relname, fk_column.attname, pk_table.relname FROM pg_constraint AS c JOIN pg_class AS "
        "fk_table ON c.conrelid = fk_table.oid JOIN pg_namespace AS fk_ns ON c.connamespace = fk_ns.oid JOIN pg_attribute AS "
        "fk_column ON c.conrelid = fk_column.attrelid JOIN pg_class AS pk_table ON c.confrelid = pk_table.oid JOIN pg_attribute "
        "AS pk_column ON c.confrelid = pk_column.attrelid WHERE fk_ns.nspname !~ '^information_schema|catalog_history|pg_' AND "
        "c.contype = 'f'::char AND fk_column.attnum = ANY(c.conkey) AND pk_column.attnum = ANY(c.confkey) ORDER BY 1, 2",
        [],
    ),
    "metabase indexes": (
        "SELECT tmp.spot, tmp.tab, TRIM(BOTH '\"' FROM pg_catalog.pg_get_indexdef(tmp.ci_oid, tmp.pos, FALSE)) AS field FROM "
        "(SELECT n.nspname AS spot, ct.relname AS tab, ci.oid AS ci_oid, (information_schema._pg_expandarray(i.indkey)).n AS pos "
        "FROM pg_catalog.pg_class AS ct JOIN pg_catalog.pg_namespace AS n ON ct.relnamespace = n.oid JOIN pg_catalog.pg_index AS "
        "i ON ct.oid = i.indrelid JOIN pg_catalog.pg_class AS ci ON ci.oid = i.indexrelid WHERE "
        "pg_catalog.pg_get_expr(i.indpred, i.indrelid) IS NULL AND n.nspname !~ '^information_schema|catalog_history|pg_') AS "
        "tmp WHERE tmp.pos = 1",
        [("public", "sales", "id")],
    ),
    "dbeaver session": ("SELECT current_schema(),session_user", [("public", "tidegate")]),
    "dbeaver search path": ("SHOW search_path", [("public",)]),
    "dbeaver databases": ("SELECT db.oid,db.* FROM pg_catalog.pg_database db WHERE datname='tidegate'", None),
    "dbeaver count": ("SELECT COUNT(*) FROM public.sales", [(89,)]),
}

CHARTS = {
    "grafana time series": """SELECT floor(extract(epoch from sold)/21600)*21600 AS "time", shop AS metric,
        avg(price) AS price FROM sales
        WHERE sold BETWEEN '2026-01-02T00:00:00Z' AND '2026-01-12T12:00:00Z' GROUP BY time, shop
        ORDER BY time, shop""",
    "grafana group by 1": """SELECT floor(extract(epoch from sold)/3600)*3600 AS "time", sum(pieces) FROM sales
        WHERE extract(epoch from sold) >= 1767312000 GROUP BY 1 ORDER BY 1""",
    "superset time grain": """SELECT DATE_TRUNC('week', sold) AS sold, SUM(pieces) AS "SUM(pieces)", AVG(price) AS "AVG(price)"
        FROM public.sales WHERE sold >= TO_TIMESTAMP('2026-01-02 00:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US') AND sold <
        TO_TIMESTAMP('2026-02-01 00:00:00.000000', 'YYYY-MM-DD HH24:MI:SS.US') GROUP BY DATE_TRUNC('week', sold)
        ORDER BY "SUM(pieces)" DESC, sold LIMIT 10000""",
    "superset top groups": """SELECT DATE_TRUNC('day', day) AS day, sales.shop AS shop, COUNT(*) AS count FROM public.sales JOIN
        (SELECT shop AS shop__, SUM(pieces) AS mme_inner__ FROM public.sales GROUP BY shop ORDER BY mme_inner__ DESC LIMIT 2) AS
        series_limit ON shop = shop__ GROUP BY DATE_TRUNC('day', day), shop ORDER BY day, shop LIMIT 500""",
    "superset virtual table": """SELECT shop AS shop, sum(pieces)/count(*) AS per_sale FROM (SELECT * FROM sales WHERE pieces > 1)
        AS virtual_table GROUP BY shop ORDER BY per_sale DESC, shop LIMIT 50""",
    "superset to_date": "SELECT count(*) FROM sales WHERE day >= TO_DATE('2026-01-05', 'YYYY-MM-DD')",
    "superset epoch": "SELECT max(timestamp 'epoch' + id * interval '1 second') FROM sales",
    "metabase month": """SELECT CAST(DATE_TRUNC('month', "public"."sales"."sold") AS date) AS "sold", COUNT(*) AS "count",
        SUM("public"."sales"."price") AS "sum" FROM "public"."sales" GROUP BY CAST(DATE_TRUNC('month', "public"."sales"."sold")
        AS date) ORDER BY CAST(DATE_TRUNC('month', "public"."sales"."sold") AS date) ASC""",
    "metabase week": """SELECT (CAST(DATE_TRUNC('week', (CAST("sales"."sold" AS timestamp) + INTERVAL '1 day')) AS timestamp) +
        INTERVAL '-1 day') AS "w", COUNT(*) AS "count" FROM "sales" GROUP BY 1 ORDER BY 1 ASC""",
    "metabase ratio": """SELECT "source"."shop" AS "shop", CAST(SUM("source"."pieces") AS float) / NULLIF(COUNT(*), 0) AS "ratio"
        FROM (SELECT "public"."sales"."shop" AS "shop", "public"."sales"."pieces" AS "pieces" FROM "public"."sales") AS "source"
        GROUP BY "source"."shop" ORDER BY "source"."shop" ASC LIMIT 2000""",
    "metabase hour": """SELECT CAST(EXTRACT(hour FROM "sales"."sold") AS integer) AS "h", COUNT(*) AS "count" FROM "sales"
        GROUP BY CAST(EXTRACT(hour FROM "sales"."sold") AS integer) ORDER BY 1""",
    "metabase bins": """SELECT FLOOR(("sales"."price" / 2.5)) * 2.5 AS "price", COUNT(*) AS "count" FROM "sales" GROUP BY
        FLOOR(("sales"."price" / 2.5)) * 2.5 ORDER BY 1""",
    "metabase share": """SELECT COUNT(*), CAST(SUM(CASE WHEN "sales"."pieces" > 3 THEN 1 ELSE 0.0 END) AS float) /
        CASE WHEN COUNT(*) = 0 THEN NULL ELSE COUNT(*) END FROM "sales" """,
    "metabase search": """SELECT "sales"."id" FROM "sales" WHERE LOWER("sales"."shop") LIKE '%ast\\_1%' ORDER BY 1 LIMIT 5""",
    "metabase distinct": 'SELECT COUNT(DISTINCT "sales"."shop") AS "count" FROM "sales"',
    "metabase fingerprint": """SELECT SUBSTRING("sales"."shop", 1, 1234) AS "substring1" FROM "sales"
        ORDER BY "sales"."id" LIMIT 9""",
    "dbeaver page": "SELECT x.* FROM public.sales x WHERE (x.pieces > 3) ORDER BY x.price DESC, x.id LIMIT 20",
    "dbeaver groups": "SELECT shop, COUNT(*) AS c FROM public.sales GROUP BY shop ORDER BY c DESC, shop",
}


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    yield from holding("sales", DDL, ROWS)


@pytest.fixture(scope="module")
def original(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS public.sales")
        connection.execute("SET TIME ZONE 'UTC'")
        connection.execute(DDL)
        connection.cursor().executemany("INSERT INTO sales VALUES (%s, %s, %s, %s, %s, %s)", ROWS)
        yield connection
        connection.execute("DROP TABLE sales")


@pytest.mark.parametrize("name", STARTING)
def test_starting(shop: Shop, name: str) -> None:
    sql, expected = STARTING[name]
    with shop.connect() as connection:
        cursor = connection.execute(sql.encode())
        if cursor.description is not None:
            found = cursor.fetchall()
            assert expected is None or found == expected


@pytest.mark.parametrize("name", CHARTS)
def test_charts(shop: Shop, original: psycopg.Connection[Any], name: str) -> None:
    told = []
    with shop.connect() as connection:
        for asked in (original, connection):
            cursor = asked.execute(CHARTS[name].encode(), prepare=True)
            assert cursor.description is not None
            kinds = [(c.name, asked.adapters.types[c.type_code].name) for c in cursor.description]
            told.append((kinds, cursor.fetchall()))
    assert told[0][1], "the chart shows something"
    assert told[1] == told[0]


def test_sqlalchemy_charts(shop: Shop, original: psycopg.Connection[Any], postgres: PostgresServer) -> None:
    """As Superset builds them: from a reflected table, with bound parameters."""
    told = []
    for url in (postgres.url.replace("postgresql:", "postgresql+psycopg:"), shop.url):
        database = sa.create_engine(url)
        sales = sa.Table("sales", sa.MetaData(), autoload_with=database)
        month = sa.func.date_trunc("month", sales.c.sold).label("month")
        query = (
            sa.select(month, sales.c.shop, sa.func.avg(sales.c.price), (sa.func.sum(sales.c.pieces) / 3).label("third"))
            .where(sales.c.pieces > 1, sales.c.shop.in_(["north", "south"]))
            .group_by(month, sales.c.shop)
            .order_by(month.desc(), sales.c.shop)
            .limit(10)
        )
        with database.connect() as connection:
            told.append([tuple(row) for row in connection.execute(query)])
        database.dispose()
    assert told[0]
    assert told[1] == told[0]
