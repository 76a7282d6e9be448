"""PostgreSQL's SQL through the endpoint, beside a real PostgreSQL: the same name, type and value, or a refusal that is
listed in docs/reference/sql-endpoint.md.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from shops import Shop, holding

from tidegate.benchmarks.peers.postgres_server import PostgresServer
from tidegate.replica.catalog.functions import MACROS, TABLE_MACROS
from tidegate.replica.postgres.functions import DECIDED, STATISTICS
from tidegate.replica.postgres.functions import REFUSED as REFUSED_FUNCTIONS

ROWS = [
    (1, "tea", 10, 7, Decimal("12.50"), 1.5, dt.datetime(2026, 1, 2, 3, 4, 5, 6), dt.date(2026, 1, 2), dt.time(3, 4, 5), True,
     dt.timedelta(days=1, seconds=5)),
    (2, "jam", -3, 2, Decimal("0.07"), -2.5, dt.datetime(2025, 12, 31, 23, 59, 59), dt.date(2024, 2, 29), dt.time(23, 59, 59),
     False, dt.timedelta(hours=2, minutes=30)),
    (3, "Rum_x", 5, 10**12, Decimal("-7.00"), 0.1, dt.datetime(2026, 3, 15, 12, 0, 0, 250_000), dt.date(2026, 3, 15), dt.time(),
     True, dt.timedelta(days=3)),
    (4, *[None] * 10),
]  # fmt: skip
DDL = (
    "CREATE TABLE t (id INTEGER PRIMARY KEY, item VARCHAR, n INTEGER, b BIGINT, p NUMERIC(9,2), f DOUBLE PRECISION, "
    "ts TIMESTAMP, d DATE, h TIME, ok BOOLEAN, iv INTERVAL)"
)

SAME = (
    """
5/2
-5/2
5/-2
-7/3
-7 % 3
7 % -3
mod(7, -3)
5.0/2
1/3.0
2/3.0
1/30000.0
100000/3.0
-10/4.0
5::float8/2
5::smallint/2::smallint
n/2
b/3
n/b
p/3
n/p
f/2
n/f
100.0*n/b
round(n/p, 2)
n % 3
p % 2
2^3
power(2, 3)
sqrt(4)
exp(1.0::float8)
ln(2::float8)
abs(n)
abs(p)
sign(n)
sign(p)
ceil(p)
ceil(n)
floor(p)
floor(f)
round(n)
round(p)
round(f)
round(2.5::float8)
round(3.5::float8)
round(2.345, 2)
round(n, 2)
round(1234.5, -2)
trunc(p)
trunc(p, 1)
trunc(f)
1e3
1.5e-2
3000000000
99999999999999999999
n + 0.5
n * p
p * p
n + b
f + n
n::text
p::text
b::varchar
d::text
ts::text
ok::text
item::varchar(2)
p::int
f::int
'12'::int
'1.50'::numeric
'7'::numeric
n::numeric
p::numeric
f::numeric
f::numeric(9,1)
2.675::float8::numeric(9,2)
p::float8
ok::int
n::smallint
ts::date
d::timestamp
ts::time
'2026-01-02'::date
date '2026-01-02' + 3
date '2026-03-01' - date '2026-02-01'
d - date '2026-01-01'
d + 1
d - 1
d + interval '1 month'
ts + interval '1 day 2 hours'
ts - interval '90 minutes'
ts - timestamp '2026-01-01'
iv + interval '1 hour'
iv * 2
extract(year from ts)
extract(month from d)
extract(day from ts)
extract(hour from ts)
extract(minute from ts)
extract(second from ts)
extract(milliseconds from ts)
extract(microseconds from ts)
extract(epoch from ts)
extract(epoch from d)
extract(epoch from ts - timestamp '2026-01-01')
extract(dow from d)
extract(isodow from d)
extract(doy from d)
extract(week from d)
extract(isoyear from d)
extract(quarter from d)
extract(century from d)
extract(decade from d)
date_part('hour', ts)
date_part('epoch', ts)
date_trunc('month', ts)
date_trunc('week', ts)
date_trunc('day', d)
date_trunc('hour', ts)
to_char(ts, 'YYYY-MM-DD HH24:MI:SS')
to_char(ts, 'YYYY-MM-DD"T"HH24:MI:SS.MS')
to_char(ts, 'DD.MM.YY')
to_char(ts, 'Mon DD, YYYY')
to_char(ts, 'FMMonth FMDD')
to_char(ts, 'Month')
to_char(ts, 'MONTH dy')
to_char(d, 'YYYY-"Q"Q')
to_char(ts, 'IYYY-IW')
to_char(ts, 'HH12:MI AM')
to_char(ts, 'DDD Day')
to_char(ts, 'US')
to_timestamp('05 Dec 2000', 'DD Mon YYYY')
to_timestamp('2026-01-02 03:04:05', 'YYYY-MM-DD HH24:MI:SS')
to_timestamp(1.5)
to_timestamp(0)
to_date('20260102', 'YYYYMMDD')
ts at time zone 'UTC'
ts at time zone 'Europe/Berlin'
ts at time zone 'UTC' at time zone 'Asia/Tokyo'
upper(item)
lower(item)
length(item)
char_length(item)
substring(item from 2 for 1)
substring(item, 2)
substr(item, 0, 3)
left(item, 2)
left(item, -1)
right(item, 2)
right(item, -1)
position('a' in item)
strpos(item, 'a')
trim(item)
trim(both 'x' from item)
ltrim('xxa', 'x')
rtrim('axx', 'x')
btrim('xax', 'x')
replace(item, 'a', 'o')
reverse(item)
repeat(item, 2)
lpad(item, 5, '.')
rpad(item, 2, '.')
split_part('a,b,c', ',', 2)
item || '!'
item || n
n || item
concat(item, n, NULL)
concat_ws('-', item, n)
starts_with(item, 'te')
translate(item, 'ta', '12')
ascii('A')
chr(65)
md5('a')
item like 't%'
item like 'Rum\\_%'
item ilike 'RUM%'
item like 'Rum!_x' escape '!'
item ~ 'u'
item ~ '^t'
item ~* 'RUM'
item !~ 'u'
item !~* 'RUM'
item not like 't%'
regexp_replace(item, 'a', 'o')
regexp_replace('banana', 'a', 'o', 'g')
coalesce(n, 0)
coalesce(item, 'none')
nullif(n, 5)
greatest(n, 3, NULL)
least(n, 3)
case when n > 4 then 'much' else 'little' end
case when n > 4 then n end
case n when 5 then 1.5 else 2 end
n is distinct from 5
n in (5, 10)
n between 1 and 6
not ok
ok and n > 4
n is null
(select max(n) from t)
exists (select 1 from t where n = 5)
array[1, 2]
(array[1, 2])[1]
n = any(array[5, 10])
array_length(array[1, 2], 1)
cardinality(array[1, 2])
array_to_string(array['a', 'b'], '-')
string_to_array('a,b', ',')
'{"a": [1, 2]}'::json -> 'a'
'{"a": "x"}'::json ->> 'a'
'[1, 2]'::json ->> 0
json_build_object('a', n, 'b', item)
json_array_length('[1, 2]'::json)
true
null
'text'
current_database() = current_catalog
pi()
degrees(1::float8)
row_number() over (order by n desc)
rank() over (order by ok)
ntile(2) over (order by id)
lag(n) over (order by id)
sum(n) over (order by id)
avg(n) over ()
avg(p) over (partition by ok)
sum(b) over ()
count(*) over ()
first_value(item) over (order by n)
n & 3
n | 8
n # 3
""".replace("\\\\", "\\")
    .strip()
    .splitlines()
)

QUERIES = """
SELECT count(*), sum(n), avg(n), min(n), max(n) FROM t
SELECT sum(b), avg(b), sum(p), avg(p), sum(f), avg(f) FROM t
SELECT avg(p) FILTER (WHERE ok), sum(n) FILTER (WHERE n > 4), count(DISTINCT ok) FROM t
SELECT avg(DISTINCT n), sum(DISTINCT n) FROM t
SELECT avg(n) FROM t WHERE false
SELECT sum(n) / count(*), sum(p) / count(n), sum(n) / 3.0 FROM t
SELECT ok, avg(p) AS Mean, sum(n) / count(*) FROM t GROUP BY ok ORDER BY ok
SELECT ok, sum(n) FROM t GROUP BY 1 HAVING avg(n) > 0 ORDER BY 2 DESC
SELECT item FROM t ORDER BY n DESC
SELECT item FROM t ORDER BY n
SELECT item FROM t ORDER BY n DESC NULLS LAST LIMIT 2 OFFSET 1
SELECT date_trunc('month', ts) AS month, sum(p) FROM t GROUP BY 1 ORDER BY 1
SELECT string_agg(item, ', ' ORDER BY item) FROM t
SELECT array_agg(n ORDER BY id) FROM t
SELECT json_agg(n ORDER BY id), jsonb_agg(item ORDER BY id)::text IS NULL FROM t
SELECT json_agg(n) FROM t WHERE false
SELECT bool_and(ok), bool_or(ok), every(ok) FROM t
SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY n), percentile_disc(0.5) WITHIN GROUP (ORDER BY n) FROM t
SELECT percentile_cont(0.9) WITHIN GROUP (ORDER BY p) FROM t
SELECT sum(x) / 2 FROM (SELECT n AS x FROM t) q
SELECT x / 2 FROM (SELECT sum(n) AS x FROM t) q
WITH a AS (SELECT n / 2 AS h FROM t), c AS (SELECT h / 2 AS q FROM a) SELECT sum(q), avg(q) FROM c
WITH RECURSIVE c AS (SELECT 1 AS x UNION ALL SELECT x + 1 FROM c WHERE x < 4) SELECT x, x / 2 FROM c ORDER BY x
SELECT id, (SELECT u.n / 2 FROM t u WHERE u.id = t.id) FROM t ORDER BY id
SELECT a.id, q.h FROM t a, LATERAL (SELECT a.n / 2 AS h) q ORDER BY a.id
SELECT a.id FROM t a JOIN t c ON a.n / 2 = c.n / 2 ORDER BY a.id
SELECT id FROM t WHERE n / 2 = 2 ORDER BY id
SELECT count FROM (SELECT count(*) FROM t) q
SELECT ID, Item AS Name, "item", t.N FROM t ORDER BY id
SELECT 1, 2, 'a'
SELECT generate_series(1, 3)
SELECT i, i / 2 FROM generate_series(1, 5) AS i
SELECT * FROM generate_series(1, 5, 2) g(x) ORDER BY x DESC
SELECT generate_series FROM generate_series(1, 2)
SELECT n AS select, s.not AS not FROM (SELECT n, b AS not FROM t) AS s ORDER BY n, 2
SELECT day FROM generate_series(date '2026-01-01', '2026-01-03', '1 day') AS day
SELECT day FROM generate_series(date '2026-01-01', timestamp '2026-01-03', interval '1 day') AS day
SELECT day FROM generate_series(timestamp '2026-01-01', timestamp '2026-01-03', interval '1 day') AS day
SELECT x / 2 FROM unnest(array[5, 7]) AS x
SELECT s[2] FROM string_to_array('a,b', ',') s
SELECT id, x FROM t, generate_series(1, t.id) x ORDER BY 1, 2
SELECT format('%s is %I', item, 'Odd') FROM t ORDER BY id
SELECT 5 / 2 UNION ALL SELECT 7 / 2 ORDER BY 1
SELECT DISTINCT ON (ok) ok, n FROM t ORDER BY ok, n DESC
SELECT * FROM t ORDER BY id
SELECT n::text FROM t ORDER BY n
VALUES (1, 'a'), (2, 'b')
SELECT sum(sum(n)) OVER () / 2 FROM t
SELECT n, count(*) FROM t GROUP BY n ORDER BY n
SELECT current_user = session_user
SELECT max(ts) - min(ts), max(d) - min(d) FROM t
SELECT CASE WHEN sum(n) > 3 THEN sum(n) / 2 ELSE 0 END FROM t
SELECT extract(year FROM ts)::int AS year, count(*) FROM t GROUP BY 1 ORDER BY 1
SELECT (avg(p) * 100)::numeric(9,1), round(avg(p), 2) FROM t
SELECT id FROM t ORDER BY p / 2 DESC, id
SELECT stddev(n::float8) > 0, corr(n, f) IS NOT NULL FROM t
""".strip().splitlines()

ERRORS = """
SELECT 5 / 0|22012
SELECT 5.0 / 0|22012
SELECT 5::float8 / 0|22012
SELECT 5 % 0|22012
SELECT n / (n - n) FROM t|22012
SELECT 2147483647 + 1|22003
""".strip().splitlines()

REFUSED = """
initcap('ab')
make_interval(days => 10)
to_char(p, 'FM999.00')
to_char(ts, 'J')
to_timestamp('26', 'YY')
age(ts)
age(ts, ts)
sqrt(p)
power(p, 2)
log(2.0, 8.0)
stddev(n)
variance(p)
f::text
iv::text
array[1]::text
concat(ok)
f || 'x'
item similar to 't%'
random()
to_hex(255)
encode('a', 'hex')
extract(julian from d)
json_agg(ts)
cbrt(27)
n::char(3)
current_time
regexp_matches(item, 'a')
regexp_replace(item, 'a|ab', 'x')
regexp_split_to_array(item, 'a')
item::numeric
pg_typeof(n)
h - h
overlay(item placing 'x' from 1)
format('%5s', item)
make_timestamp(2026, 1, 2, 3, 4, 5.5)
sum(iv)
avg(iv)
avg(p)::text
gcd(12, 8)
date_trunc('day', ts, 'UTC')
""".strip().splitlines()


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    yield from holding("t", DDL, ROWS)


@pytest.fixture(scope="module")
def endpoint(shop: Shop) -> Iterator[psycopg.Connection[Any]]:
    with shop.connect() as connection:
        yield connection


@pytest.fixture(scope="module")
def original(postgres: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        connection.execute("CREATE SCHEMA answers")
        connection.execute("SET search_path = answers")
        connection.execute(DDL)
        for row in ROWS:
            connection.execute("INSERT INTO t VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)", row)
        yield connection
        connection.execute("DROP SCHEMA answers CASCADE")


Answer = tuple[list[str], list[str], list[tuple[Any, ...]]]
ALIKE = {"jsonb": "json", "name": "varchar"}  # listed in the docs


def answer(connection: psycopg.Connection[Any], sql: str, *, binary: bool = False, prepare: bool = False) -> Answer:
    cursor = connection.cursor(binary=binary)
    cursor.execute(sql.encode(), prepare=prepare)
    assert cursor.description is not None
    kinds = [connection.adapters.types[column.type_code].name for column in cursor.description]
    names = [column.name for column in cursor.description]
    return names, [ALIKE.get(kind, kind) for kind in kinds], cursor.fetchall()


def same(left: Any, right: Any) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        return left == right or math.isclose(left, right, rel_tol=1e-15)
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return left == right
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def texts(connection: psycopg.Connection[Any], sql: str) -> list[list[bytes | None]]:
    """What psql shows, but for numbers (zeros at their end) and intervals (a timedelta's days are stored as hours)."""
    cursor = connection.execute(sql.encode())
    assert cursor.pgresult is not None
    assert cursor.description is not None
    result = cursor.pgresult
    kinds = [connection.adapters.types[column.type_code].name for column in cursor.description]
    chosen = [
        i for i, kind in enumerate(kinds) if kind not in ("numeric", "float4", "float8", "json", "jsonb", "interval")
    ]
    return [[result.get_value(row, i) for i in chosen] for row in range(result.ntuples)]


def compare(endpoint: psycopg.Connection[Any], original: psycopg.Connection[Any], sql: str) -> None:
    wanted = answer(original, sql)
    for binary, prepare in ((False, False), (True, True)):
        found = answer(endpoint, sql, binary=binary, prepare=prepare)
        assert found[:2] == wanted[:2]
        assert same(found[2], wanted[2]), (found[2], wanted[2])
    assert texts(endpoint, sql) == texts(original, sql)


@pytest.mark.parametrize("expression", SAME)
def test_an_expression_has_postgres_answer(endpoint: Any, original: Any, expression: str) -> None:
    compare(endpoint, original, f"SELECT {expression} FROM t ORDER BY id")


WRITTEN = """
ts
h
ts::timestamptz
now()::date + time '10:00:00.250000'
time '10:00'
timestamp '2026-01-02 03:04:05.500000'
interval '1 year 2 months'
interval '1 month 1 day'
interval '-1 month 3 days 36 hours 0.5 second'
interval '-3 days 2 hours'
interval '-2 hours 0.000001 second'
interval '0'
f
1e-7::float8
0.0001::float8
0.00001::float8
123456789012345::float8
999999999999999::float8
1e15::float8
1e20::float8
-1.5e-300::float8
0::float8
'NaN'::float8
'-Infinity'::float8
0.1::real
1e6::real
123456::real
1e-5::real
array['a', 'b c', NULL, '', 'null', 'x,y', 'q"q', 'back\\slash', '{}']
array[timestamp '2026-01-01']
array[date '2026-01-01', NULL]
array[true, false]
array[1, 2]
array[0.5::float8, 1e20::float8]
array[f, 2.0]
""".strip().splitlines()


@pytest.mark.parametrize("expression", WRITTEN)
def test_text_is_written_as_postgres_writes_it(endpoint: Any, original: Any, expression: str) -> None:
    told = []
    for connection in (original, endpoint):
        cursor = connection.execute(f"SELECT {expression} FROM t ORDER BY id".encode())
        told.append([cursor.pgresult.get_value(row, 0) for row in range(cursor.pgresult.ntuples)])
    assert told[1] == told[0]


@pytest.mark.parametrize("sql", QUERIES)
def test_a_query_has_postgres_answer(endpoint: Any, original: Any, sql: str) -> None:
    compare(endpoint, original, sql)


@pytest.mark.parametrize("given", ERRORS)
def test_an_error_is_postgres_error(endpoint: Any, original: Any, given: str) -> None:
    sql, _, sqlstate = given.rpartition("|")
    for connection in (original, endpoint):
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(sql.encode())
        assert caught.value.sqlstate == sqlstate


@pytest.mark.parametrize("expression", REFUSED)
def test_what_differs_is_refused(endpoint: Any, expression: str) -> None:
    with pytest.raises(psycopg.Error, match="not answered here") as caught:
        endpoint.execute(f"SELECT {expression} FROM t".encode())
    assert caught.value.sqlstate == "0A000"


def test_refused_functions_are_in_the_docs() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "sql-endpoint.md").read_text()
    told = page.partition("## PostgreSQL's SQL")[2]
    assert [name for name in [*REFUSED_FUNCTIONS, *STATISTICS] if f"`{name}`" not in told] == []


def test_every_function_that_both_have_is_decided(original: Any) -> None:
    """A newer DuckDB may get a function that PostgreSQL has too: somebody must look whether they agree."""
    theirs = {row[0] for row in original.execute("SELECT DISTINCT proname FROM pg_proc").fetchall()}
    ours = {row[0] for row in duckdb.sql("SELECT DISTINCT function_name FROM duckdb_functions()").fetchall()}
    internal = {name for name in theirs if name.startswith(("pg_", "has_", "inet_", "txid_"))}
    undecided = (theirs & ours) - DECIDED - MACROS.keys() - TABLE_MACROS.keys() - internal
    assert undecided <= {"nextval", "currval", "setval", "pg_sleep", "session_user", "current_user"}


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize(
    ("sql", "given"),
    [
        ("SELECT n / %s FROM t ORDER BY id", (2,)),
        ("SELECT p / %s FROM t ORDER BY id", (Decimal("2.5"),)),
        ("SELECT %s / %s", (7, 2)),
        ("SELECT f / %s FROM t ORDER BY id", (2.0,)),
        ("SELECT date_trunc('month', ts) FROM t WHERE ts > %s ORDER BY id", ("2026-01-01",)),
        ("SELECT sum(n) / %s FROM t WHERE item = ANY(%s)", (2, ["tea", "jam"])),
    ],
)
def test_parameters(endpoint: Any, original: Any, sql: str, given: tuple[Any, ...], binary: bool) -> None:
    told = []
    for connection in (original, endpoint):
        cursor = connection.cursor(binary=binary)
        cursor.execute(sql, given, prepare=True)
        kinds = [connection.adapters.types[column.type_code].name for column in cursor.description]
        told.append((kinds, cursor.fetchall()))
    assert told[0][0] == told[1][0]
    assert same(told[0][1], told[1][1]), told


def test_the_time_zone_is_utc(shop: Shop) -> None:
    with shop.connect() as connection:
        connection.execute("SET TIME ZONE 'UTC'")
        with pytest.raises(psycopg.Error, match="AT TIME ZONE") as caught:
            connection.execute("SET TIME ZONE 'Europe/Berlin'")
        assert caught.value.sqlstate == "22023"
        assert connection.execute("SHOW TIME ZONE").fetchone() == ("Etc/UTC",)


def test_the_version_is_told(endpoint: Any) -> None:
    assert endpoint.execute("SELECT version()").fetchone()[0].startswith("PostgreSQL 15.0 (tidegate")
