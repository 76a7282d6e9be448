# ruff: noqa: E501  a statement, what is said of it and its rewrite are one line
"""Statements that are refused: each error says where, why, and what to write instead, and that works."""

from __future__ import annotations

import pytest

from tidegate import App
from tidegate.errors import DeclarationError

BASE = """CREATE STREAM message (ts TIMESTAMP NOT NULL, device INTEGER NOT NULL, type VARCHAR, n INTEGER,
  WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH (border);
CREATE STREAM other (ts TIMESTAMP NOT NULL, device INTEGER NOT NULL) WITH (border);
CREATE TABLE kinds (type VARCHAR PRIMARY KEY, weight INTEGER NOT NULL);
"""
TUMBLE = "FROM TUMBLE(TABLE message, DESCRIPTOR(ts), INTERVAL '1' MINUTE)"

REFUSED = [  # the statement, what the error says, a rewrite that works
    ("CREATE STREAM x AS SELECT count(*) AS n FROM message", "count() over a stream needs a window", f"CREATE STREAM x AS SELECT count(*) AS n {TUMBLE}"),
    ("CREATE STREAM x AS SELECT device FROM message GROUP BY device", "GROUP BY over a stream needs", f"CREATE STREAM x AS SELECT device {TUMBLE} GROUP BY device"),
    ("CREATE STREAM x AS SELECT DISTINCT device FROM message", "DISTINCT over a stream", f"CREATE STREAM x AS SELECT DISTINCT device {TUMBLE}"),
    ("CREATE STREAM x AS SELECT device FROM message LIMIT 3", "LIMIT over a stream", f"CREATE STREAM x AS SELECT device {TUMBLE} LIMIT 3"),
    ("CREATE STREAM x AS SELECT device FROM message ORDER BY ts", "ORDER BY over a stream", "CREATE STREAM x AS SELECT device FROM message"),
    ("CREATE STREAM x AS SELECT row_number() OVER (ORDER BY ts) AS r FROM message", "a window function over a stream", f"CREATE STREAM x AS SELECT row_number() OVER (ORDER BY ts, device) AS r {TUMBLE}"),
    ("CREATE STREAM x AS SELECT weight FROM kinds", "reads no stream", "CREATE VIEW x AS SELECT weight FROM kinds"),
    ("CREATE STREAM x (a INTEGER)", "nothing feeds it", "CREATE STREAM x (a INTEGER) WITH (border)"),
    ("CREATE STREAM x (a TIMESTAMP, WATERMARK FOR a AS a) WITH (border)", "may be NULL", "CREATE STREAM x (a TIMESTAMP NOT NULL, WATERMARK FOR a AS a) WITH (border)"),
    ("CREATE STREAM x (a TIMESTAMP NOT NULL, WATERMARK FOR a AS a + 1) WITH (border)", "stays behind", "CREATE STREAM x (a TIMESTAMP NOT NULL, WATERMARK FOR a AS a - INTERVAL '1' DAY) WITH (border)"),
    ("CREATE STREAM x (a INTEGER) WITH (borderr)", "no option borderr", "CREATE STREAM x (a INTEGER) WITH (border)"),
    ("CREATE STREAM x (a INTEGER) WITH (border, key)", "key takes a text", "CREATE STREAM x (a INTEGER NOT NULL) WITH (border, key = 'a')"),
    ("CREATE STREAM x AS SELECT device FROM TUMBLE(TABLE message, DESCRIPTOR(ts), INTERVAL '1' MONTH)", "no fixed length", "CREATE STREAM x AS SELECT count(*) AS n FROM TUMBLE(TABLE message, DESCRIPTOR(ts), INTERVAL '30' DAY)"),
    ("CREATE STREAM x AS SELECT device FROM TUMBLE(TABLE message, DESCRIPTOR(device), INTERVAL '1' MINUTE)", "WATERMARK of message is for ts", f"CREATE STREAM x AS SELECT device {TUMBLE}"),
    ("CREATE STREAM x AS SELECT device FROM TUMBLE(TABLE mesage, DESCRIPTOR(ts), INTERVAL '1' MINUTE)", "message", f"CREATE STREAM x AS SELECT device {TUMBLE}"),
    ("CREATE STREAM x AS SELECT device FROM TUMBLE(TABLE kinds, DESCRIPTOR(ts), INTERVAL '1' MINUTE)", "kinds is a table", "CREATE VIEW x AS SELECT type FROM kinds"),
    ("CREATE STREAM x AS SELECT device FROM HOP(TABLE message, DESCRIPTOR(ts), INTERVAL '1' MINUTE)", "HOP lacks SIZE", "CREATE STREAM x AS SELECT device FROM HOP(TABLE message, DESCRIPTOR(ts), INTERVAL '1' MINUTE, INTERVAL '2' MINUTE)"),
    ("CREATE STREAM x AS SELECT device FROM SESSION(TABLE message PARTITION BY device, DESCRIPTOR(ts), TIMEOUT => NULL) GROUP BY device", "never ends", "CREATE STREAM x AS SELECT device FROM SESSION(TABLE message PARTITION BY device, DESCRIPTOR(ts), TIMEOUT => INTERVAL '1' MINUTE) GROUP BY device"),
    ("CREATE STREAM x AS SELECT count(*) FROM message <SLICES '1 minute'>", "name it with AS", "CREATE STREAM x AS SELECT count(*) AS n FROM message <SLICES '1 minute'>"),
    ("CREATE STREAM x AS SELECT count(*) AS n FROM other <SLICES '1 minute'>", "other has no WATERMARK", "CREATE STREAM x AS SELECT count(*) AS n FROM TUMBLE(TABLE other, DESCRIPTOR(ts), INTERVAL '1' MINUTE)"),
    ("CREATE STREAM x AS SELECT nme FROM message", "nme", "CREATE STREAM x AS SELECT n FROM message"),
    ("CREATE STREAM x AS SELECT m.ts, o.ts FROM message m JOIN other o ON m.device = o.device AND o.ts BETWEEN m.ts AND m.ts + INTERVAL '1' MINUTE", "two columns are called ts", "CREATE STREAM x AS SELECT m.ts, o.ts AS also FROM message m JOIN other o ON m.device = o.device AND o.ts BETWEEN m.ts AND m.ts + INTERVAL '1' MINUTE"),
    ("CREATE STREAM x AS SELECT m.ts FROM message m JOIN other o ON m.device = o.device", "joined within a time", "CREATE STREAM x AS SELECT m.ts FROM message m JOIN other o ON m.device = o.device AND o.ts >= m.ts AND o.ts < m.ts + INTERVAL '1' MINUTE"),
    ("CREATE STREAM x AS SELECT m.ts FROM message m ASOF JOIN other o ON m.device = o.device AND m.ts >= o.ts", "ASOF JOIN of streams", "CREATE STREAM x AS SELECT m.ts FROM message m JOIN other o ON m.device = o.device AND m.ts BETWEEN o.ts AND o.ts + INTERVAL '1' MINUTE"),
    ("CREATE STREAM x AS SELECT m.ts FROM message m FULL JOIN kinds k ON m.type = k.type", "for each batch anew", "CREATE STREAM x AS SELECT m.ts FROM message m LEFT JOIN kinds k ON m.type = k.type"),
    ("CREATE STREAM x AS SELECT type FROM kinds WHERE type IN (SELECT type FROM message)", "read in a subquery", "CREATE STREAM x AS SELECT m.type FROM message m JOIN kinds k ON m.type = k.type"),
    ("CREATE STREAM x AS SELECT m.n FROM message m JOIN kinds FOR SYSTEM_TIME AS OF m.ts AS k ON m.type = k.type", "not as of a time in a column", "CREATE STREAM x AS SELECT m.n FROM message m JOIN kinds FOR SYSTEM_TIME AS OF PROCTIME() AS k ON m.type = k.type"),
    (f"CREATE STREAM x AS SELECT device {TUMBLE} GROUP BY device EMIT FINAL", "EMIT FINAL", f"CREATE STREAM x AS SELECT device {TUMBLE} GROUP BY device EMIT ON WINDOW CLOSE"),
    (f"CREATE STREAM x AS SELECT device, sum(n) AS n {TUMBLE} WHERE n > 1 GROUP BY device EMIT EVERY INTERVAL '10' SECOND", "kept in panes", f"CREATE STREAM x AS SELECT device, sum(n) AS n {TUMBLE} GROUP BY device EMIT EVERY INTERVAL '10' SECOND"),
    (f"CREATE STREAM x AS SELECT sum(n) AS n {TUMBLE} EMIT EVERY INTERVAL '7' SECOND", "divide the window", f"CREATE STREAM x AS SELECT sum(n) AS n, final AS done {TUMBLE} EMIT EVERY INTERVAL '6' SECOND"),
    ("CREATE STREAM x AS SELECT n FROM message EMIT EVERY INTERVAL '7' SECOND", "about windows", "CREATE STREAM x AS SELECT n FROM message"),
    (f"CREATE STREAM x AS SELECT device {TUMBLE} GROUP BY device EMIT CHANGES", "EMIT CHANGES", f"CREATE STREAM x AS SELECT device {TUMBLE} GROUP BY device"),
    ("CREATE STREAM x AS SELECT ts FROM message UNION ALL SELECT ts FROM other", "UNION of streams", "CREATE STREAM x AS SELECT ts FROM message"),
    ("CREATE STREAM x AS WITH q AS (SELECT 1) SELECT ts FROM message", "WITH can't stand", "CREATE STREAM x AS SELECT ts FROM message"),
    ("CREATE STREAM x AS SELECT n FROM message WHERE n > $1", "has a parameter", "CREATE STREAM x AS SELECT n FROM message WHERE n > 5"),
    ("CREATE STREAM x AS SELECT first(n) AS n FROM TUMBLE_ROWS(TABLE message, 10) WHERE n > 1", "order is not known", "CREATE STREAM x AS SELECT first(n ORDER BY ts) AS n FROM TUMBLE_ROWS(TABLE message, 10) WHERE n > 1"),
    ("CREATE STREAM message AS SELECT ts FROM other", "taken", "CREATE STREAM message2 AS SELECT ts FROM other"),
    ("CREATE SINK x FROM message", "CREATE SINK is not supported", "CREATE STREAM x AS SELECT * FROM message"),
    ("CREATE", "here it ends", "CREATE STREAM x AS SELECT * FROM message"),
    ("CREATE STREAM", "the name of the stream is missing", "CREATE STREAM x AS SELECT * FROM message"),
    ("CREATE STREAM x", "columns or the query", "CREATE STREAM x AS SELECT * FROM message"),
    ("CREATE STREAM x AS", "the query of x is missing", "CREATE STREAM x AS SELECT * FROM message"),
    ("CREATE STREAM x AS SELECT a.ts FROM other a JOIN other b ON a.device = b.device AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE", "can't be joined with itself", "CREATE STREAM copy AS SELECT * FROM other; CREATE STREAM x AS SELECT a.ts FROM other a JOIN copy b ON a.device = b.device AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' MINUTE"),
    ("DROP STREAM message", "DROP is not needed", "CREATE STREAM x AS SELECT * FROM message"),
    ("SELECT * FROM message", "SELECT declares nothing", "CREATE STREAM x AS SELECT * FROM message"),
    ("CREATE TABLE IF NOT EXISTS x (i INTEGER PRIMARY KEY)", "IF NOT EXISTS", "CREATE TABLE x (i INTEGER PRIMARY KEY)"),
    ("CREATE INDEX i ON nothing (a)", "no CREATE TABLE nothing", "CREATE TABLE x (i INTEGER PRIMARY KEY, a INTEGER); CREATE INDEX i ON x (a)"),
    ("CREATE TABLE x (i INTEGER PRIMARY KEY) WITH (partition_by)", "partition_by takes a text", "CREATE TABLE x (i INTEGER PRIMARY KEY) WITH (partition_by = 'i', changelog)"),
]  # fmt: skip


def declared() -> App:
    app = App("refusing")
    app.declare(BASE)
    return app


@pytest.mark.parametrize(("sql", "why", "rewrite"), REFUSED, ids=[sql[:60] for sql, _, _ in REFUSED])
def test_what_is_refused_says_where_why_and_what_works(sql: str, why: str, rewrite: str) -> None:
    app = declared()
    streams, procedures = set(app.streams), set(app.procedures)
    with pytest.raises(DeclarationError, match=r"^line \d+, column \d+: ") as caught:
        app.declare("\n\n" + sql)
    assert why in str(caught.value)
    assert int(str(caught.value).split(",")[0].removeprefix("line ")) >= 3
    assert (set(app.streams), set(app.procedures)) == (streams, procedures)  # nothing half declared
    app.declare(rewrite)


def test_the_place_of_a_word() -> None:
    with pytest.raises(DeclarationError, match=r"line 2, column 11: .*nme.*\n  SELECT \*, nme FROM message"):
        declared().declare("CREATE STREAM x AS\nSELECT *, nme FROM message")


def test_what_a_plan_tells() -> None:
    app = declared()
    app.declare(
        f"""CREATE STREAM heavy AS SELECT m.*, k.weight FROM message m JOIN kinds k ON k.type = m.type WHERE k.weight > 3;
            CREATE STREAM means AS SELECT device, avg(n) AS mean {TUMBLE} GROUP BY device;
            CREATE STREAM errors AS SELECT device, count(*) FILTER (n > 3) AS many {TUMBLE} WHERE type = 'E' GROUP BY device"""
    )
    assert app.explain("heavy").splitlines() == [
        "stream heavy (ts TIMESTAMP NOT NULL, device INTEGER NOT NULL, type VARCHAR, n INTEGER, weight INTEGER NOT NULL)",
        "  Scan message",
        "  Lookup kinds",
        "  Emit select: row by row over the batch; DuckDB from 2,000 rows on (reads kinds; from message)",
    ]
    assert "Aggregate in panes, as rows arrive" in app.explain("means")
    assert "Mask type = 'E' (filtered rows still move time)" in app.explain("errors")
    assert "Aggregate in DuckDB, when a window closes; its rows are held until then" in app.explain("errors")
    with pytest.raises(DeclarationError, match="heavy"):
        app.explain("hevy")


def test_a_lookup_by_the_key_of_the_stream_locks_one_partition() -> None:
    app = App("locks")
    app.declare("""CREATE TABLE stock (shop INTEGER PRIMARY KEY, n INTEGER NOT NULL) WITH (partition_by = 'shop');
                   CREATE STREAM sales (shop INTEGER NOT NULL, n INTEGER) WITH (border, key = 'shop');
                   CREATE STREAM left_over AS SELECT s.shop, t.n - s.n AS n FROM sales s JOIN stock t ON t.shop = s.shop;
                   CREATE STREAM all_of_it AS SELECT s.shop, t.n FROM sales s JOIN stock t ON t.shop = s.n""")
    access = {name: str(app.procedures[name].access[0]) for name in ("left_over", "all_of_it")}
    assert access == {"left_over": "partition('stock')", "all_of_it": "'stock'"}


def test_a_view_in_a_procedure_and_the_tables_behind_it() -> None:
    app = declared()
    app.declare("CREATE VIEW light AS SELECT type FROM kinds WHERE weight < 3")

    @app.procedure(reads=["light"])
    def lightest(txn):  # type: ignore[no-untyped-def]
        return [row.type for row in txn.execute("SELECT type FROM light")]

    assert [str(one) for one in app.procedures["lightest"].access] == ["'kinds'"]
