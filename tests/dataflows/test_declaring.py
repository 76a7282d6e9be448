"""Declaring an app: every mistake is found at once, named, and leaves the app as it was."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from tidegate import App, DeclarationError, committed, partition, window


def sample() -> App:
    """Two border streams, one of them keyed, a partitioned table and a plain one, and one dataflow."""
    app = App("sample")
    app.table("CREATE TABLE totals (name VARCHAR PRIMARY KEY, n BIGINT NOT NULL)")
    app.table(
        "CREATE TABLE meds (patient INTEGER, drug VARCHAR, PRIMARY KEY (patient, drug))",
        partition_by="patient",
    )
    app.table("CREATE TABLE beds (ward INTEGER, bed INTEGER, PRIMARY KEY (ward, bed))", partition_by=("ward", "bed"))
    app.stream("events", "name VARCHAR", border=True)
    app.stream("orders", "patient INTEGER, drug VARCHAR, other INTEGER", border=True, key="patient")
    app.stream("counted", "name VARCHAR")
    app.stream("spare", "name VARCHAR")

    @app.procedure(inputs="events", outputs="counted", writes=["totals"])
    def count(txn: Any, events: Any) -> None: ...

    @app.procedure(inputs="orders", writes=[partition("meds")])
    def order(txn: Any, orders: Any) -> None: ...

    return app


def takes_batch(txn: Any, batch: Any) -> None: ...


def two_batches(txn: Any, first: Any, second: Any) -> None: ...


def declare(
    function: Callable[..., Any] = takes_batch, name: str | None = None, **options: Any
) -> Callable[[App], Any]:
    def declare_in(app: App) -> Any:
        if name is not None:
            function.__name__ = name
        return app.procedure(**options)(function)

    return declare_in


def procedure_called(name: str, **options: Any) -> Callable[[App], Any]:
    def declare_in(app: App) -> Any:
        def body(txn: Any, batch: Any) -> None: ...

        body.__name__ = name
        return app.procedure(**options)(body)

    return declare_in


def table(ddl: Any, **options: Any) -> Callable[[App], Any]:
    return lambda app: app.table(ddl, **options)


def stream(name: str, columns: str = "a INTEGER", **options: Any) -> Callable[[App], Any]:
    return lambda app: app.stream(name, columns, **options)


async def asynchronous(txn: Any, batch: Any) -> None: ...


def generator(txn: Any, batch: Any) -> Any:
    yield


async def async_generator(txn: Any, batch: Any) -> Any:
    yield


def keyword_only(*, txn: Any) -> None: ...


def no_arguments() -> None: ...


def with_patient(txn: Any, patient: int) -> None: ...


LIMIT = {"border": True, "deadline_s": 5.0, "default": {"a": 1}}

MISTAKES: dict[str, tuple[Callable[[App], Any], tuple[str, ...]]] = {
    # name: (what is declared, fragments the message must contain)
    "unknown input": (declare(inputs="event"), ("takes_batch", "'event'", "did you mean 'events'")),
    "unknown output": (
        declare(inputs="events", outputs="spar"),
        ("takes_batch", "'spar'", "did you mean 'spare'"),
    ),
    "unknown table": (declare(inputs="events", reads=["total"]), ("takes_batch", "did you mean 'totals'")),
    "unknown table, none like it": (declare(inputs="events", writes=["zzz"]), ("'zzz'", "meds, totals")),
    "two producers": (
        declare(inputs="events", outputs="counted"),
        ("counted", "count and takes_batch", "own", "either('counted', …)"),
    ),
    "border with producer": (declare(inputs="events", outputs="orders"), ("orders", "without border=True")),
    "reads what it emits": (declare(inputs="spare", outputs="spare"), ("takes_batch", "cycle")),
    "same input twice": (
        declare(two_batches, inputs=["events", "events"]),
        ("two_batches", "events", "twice"),
    ),
    "same procedure twice": (procedure_called("count", inputs="events"), ("count", "rename")),
    "inputs keyed differently": (
        declare(two_batches, inputs=["events", "orders"]),
        ("two_batches", "events by nothing", "orders by INTEGER", "same type"),
    ),
    "partition without keyed input": (
        declare(inputs="events", reads=[partition("meds")]),
        ("takes_batch", "meds", "key="),
    ),
    "partition of a plain table": (
        declare(inputs="orders", reads=[partition("totals")]),
        ("totals", "not partitioned", "partition_by="),
    ),
    "by= a column that no input has": (
        declare(inputs="orders", reads=[partition("meds", by="doctor")]),
        ("takes_batch", "partition('meds', by='doctor')", "no input has doctor", "orders has"),
    ),
    "by= a column of a stream that does not exist": (
        declare(inputs="orders", reads=[partition("meds", by="order.patient")]),
        ("takes_batch", "no stream 'order'"),
    ),
    "by= a column of another type": (
        declare(inputs="orders", reads=[partition("meds", by="drug")]),
        ("takes_batch", "orders.drug is VARCHAR", "patient INTEGER", "types"),
    ),
    "by= the rows of a stream that something else begins with": (
        declare(inputs="orders", reads=[partition("meds", by="events.name")]),
        ("takes_batch", "events are not known", "those of orders are"),
    ),
    "by= a column of an interior stream": (
        declare(inputs="counted", reads=[partition("meds", by="name")]),
        ("takes_batch", "counted is emitted inside the dataflow", "by='events.name'", "whole table"),
    ),
    "by= a tuple for one partition column": (
        declare(inputs="orders", reads=[partition("meds", by=("patient", "drug"))]),
        ("patient, drug is 2 names", "partitioned by patient", "by=['patient', 'drug']"),
    ),
    "by= too few names": (
        declare(inputs="orders", reads=[partition("beds", by=["patient"])]),
        ("patient is 1 name,", "partitioned by ward, bed"),
    ),
    "by= nothing": (
        lambda app: declare(inputs="orders", reads=[partition("meds", by=[])])(app),
        ("by=[]", "a list of these"),
    ),
    "by= something else": (
        lambda app: declare(inputs="orders", reads=[partition("meds", by=[("patient", 5)])])(app),
        ("('patient', 5)", "a list of these"),
    ),
    "by key in a table partitioned by several columns": (
        declare(inputs="orders", reads=[partition("beds")]),
        ("beds", "several columns", "by=('ward', 'bed')"),
    ),
    "some partitions to read and others to write": (
        declare(inputs="orders", reads=[partition("meds")], writes=[partition("meds", by="other")]),
        ("takes_batch", "reads partition('meds') and writes partition('meds', by='other')", "in writes="),
    ),
    "partitions and the whole table": (
        declare(inputs="orders", writes=[partition("meds", by="other"), "meds"]),
        ("takes_batch", "twice", "the wider"),
    ),
    "partitions of the committed state": (
        declare(inputs="orders", reads=[partition("meds", by="other"), committed("meds")]),
        ("takes_batch", "twice"),
    ),
    "no by= on an OLTP procedure": (
        declare(with_patient, reads=[partition("meds")]),
        ("with_patient", "by="),
    ),
    "by= an unknown parameter": (
        declare(with_patient, reads=[partition("meds", by="ward")]),
        ("with_patient", "'ward'", "patient"),
    ),
    "by= the transaction": (
        declare(with_patient, reads=[partition("meds", by="txn")]),
        ("with_patient", "'txn'"),
    ),
    "committed() in writes": (declare(inputs="events", writes=[committed("totals")]), ("totals", "reads=")),
    "one table in two ways": (
        declare(inputs="orders", reads=["meds"], writes=[partition("meds")]),
        ("takes_batch", "meds", "twice"),
    ),
    "access that is no table": (declare(inputs="events", reads=[5]), ("takes_batch", "5", "partition(")),
    "wrong signature": (
        declare(takes_batch, inputs=["events", "counted"]),
        ("takes_batch(txn, events, counted)",),
    ),
    "no arguments at all": (declare(no_arguments), ("no_arguments(txn", "no_arguments()")),
    "no place for txn": (declare(keyword_only), ("keyword_only(txn", "(*, txn")),
    "async": (declare(asynchronous, inputs="events"), ("asynchronous", "plain function")),
    "generator": (declare(generator, inputs="events"), ("generator", "plain function")),
    "async generator": (declare(async_generator, inputs="events"), ("async_generator", "plain function")),
    "no parentheses": (
        lambda app: app.procedure(takes_batch),
        ("@app.procedure()", "parentheses", "keyword"),
    ),
    "no function": (lambda app: app.procedure()("events"), ("'events'", "def")),
    "lambda": (declare(lambda txn, batch: None, inputs="events"), ("<lambda>", "def")),
    "callable without a name": (declare(lambda app: None, name="9"), ("identifier",)),
    "outputs but no inputs": (declare(outputs="spare"), ("takes_batch", "no inputs")),
    "windows but no inputs": (declare(windows={"w": window("events", count=2)}), ("takes_batch", "no input")),
    "window over another stream": (
        declare(inputs="events", windows={"w": window("orders", count=2)}),
        ("takes_batch", "'orders'", "events"),
    ),
    "window that is none": (declare(inputs="events", windows={"w": 5}), ("'w'", "tidegate.window")),
    "window name taken": (
        declare(inputs="events", windows={"totals": window("events", count=2)}),
        ("'totals'", "taken"),
    ),
    "window name reserved": (
        declare(inputs="events", windows={"tidegate_w": window("events", count=2)}),
        ("tidegate_w", "reserved"),
    ),
    "wrong on_failure": (
        declare(inputs="events", on_failure="ignore"),
        ("takes_batch", "'ignore'", "dead_letter"),
    ),
    "negative retries": (declare(inputs="events", retries=-1), ("takes_batch", "-1")),
    "procedure deadline of zero": (
        declare(inputs="events", deadline_s=0),
        ("takes_batch", "deadline_s", "0"),
    ),
    "procedure deadline as text": (
        declare(inputs="events", deadline_s="5"),
        ("takes_batch", "deadline_s", "'5'"),
    ),
    "prefetch of an undeclared table": (
        declare(inputs="events", prefetch={"totals": "name"}),
        ("takes_batch", "'totals'", "reads="),
    ),
    "prefetch by an unknown column": (
        declare(inputs="events", reads=["totals"], prefetch={"totals": "nam"}),
        ("'nam'", "name"),
    ),
    "prefetch by a longer key": (
        declare(inputs="orders", reads=["meds"], prefetch={"meds": "patient"}),
        ("meds", "one-column"),
    ),
    "reserved procedure name": (procedure_called("tidegate_x", inputs="events"), ("tidegate_x", "reserved")),
    # streams
    "stream name taken by a stream": (stream("events"), ("events", "taken")),
    "stream name taken by a table": (stream("totals"), ("totals", "taken")),
    "stream name taken but for its case": (stream("Totals"), ("Totals", "taken by", "totals")),
    "stream name reserved": (stream("tidegate_x"), ("tidegate_x", "reserved")),
    "stream name no identifier": (stream("my stream"), ("'my stream'", "identifier")),
    "column name reserved": (stream("s", "tidegate_key INTEGER"), ("s", "tidegate_key", "reserved")),
    "stream columns that do not parse": (stream("s", "a INTEGER,, b"), ("stream s", "a INTEGER,, b")),
    "stream with an unknown type": (stream("s", "a INTEGR"), ("stream s", "INTEGR")),
    "stream with an unsupported type": (stream("s", "a INTEGER[3]"), ("s.a", "INTEGER[3]", "T[]")),
    "key that is no column": (stream("s", key="b", border=True), ("'b'", "a")),
    "key of a type that can't be one": (stream("s", "a DOUBLE", key="a", border=True), ("s", "a is DOUBLE")),
    "deadline without default": (stream("s", border=True, deadline_s=5.0), ("s", "default", "go together")),
    "default without deadline": (stream("s", border=True, default={"a": 1}), ("s", "go together")),
    "deadline of an interior stream": (stream("s", deadline_s=5.0, default={"a": 1}), ("s", "border")),
    "negative deadline": (stream("s", **{**LIMIT, "deadline_s": -1.0}), ("s", "positive", "-1.0")),
    "deadline as text": (stream("s", **{**LIMIT, "deadline_s": "soon"}), ("s", "deadline_s", "'soon'")),
    "default with an unknown column": (
        stream("s", **{**LIMIT, "default": {"b": 1}}),
        ("s", "default", "'b'"),
    ),
    "default of a wrong type": (stream("s", **{**LIMIT, "default": {"a": "x"}}), ("s", "default", "'x'")),
    "default that lacks a column": (
        stream("s", "a INTEGER, b INTEGER NOT NULL", **LIMIT),
        ("s", "default", "s.b"),
    ),
    "default with NULL in NOT NULL": (
        stream("s", "a INTEGER NOT NULL", **{**LIMIT, "default": {"a": None}}),
        ("s", "default", "s.a", "NULL"),
    ),
    "default that is no row": (stream("s", **{**LIMIT, "default": [(1,)]}), ("s", "default", "(1,)")),
    # tables
    "table that does not parse": (table("CREATE TABL t (a INTEGER)"), ("CREATE TABL t",)),
    "table that is no DDL": (table(5), ("5", "CREATE TABLE")),
    "no table created": (table("SELECT 1"), ("one CREATE TABLE", "SELECT 1")),
    "two tables at once": (
        table("CREATE TABLE t (a INTEGER PRIMARY KEY); CREATE TABLE u (a INTEGER PRIMARY KEY)"),
        ("creates 2",),
    ),
    "table without primary key": (table("CREATE TABLE t (a INTEGER)"), ("t", "PRIMARY KEY")),
    "table with a float key": (table("CREATE TABLE t (a DOUBLE PRIMARY KEY)"), ("t.a", "DOUBLE", "integer")),
    "table with an unsupported type": (
        table("CREATE TABLE t (k INTEGER PRIMARY KEY, a BIT)"),
        ("t.a", "BIT"),
    ),
    "table with a foreign key": (
        table("CREATE TABLE t (a VARCHAR PRIMARY KEY REFERENCES totals (name))"),
        ("t", "FOREIGN KEY", "procedure"),
    ),
    "table with a generated column": (
        table("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER AS (a + 1))"),
        ("table t ", "generated"),
    ),
    "table name taken": (table("CREATE TABLE totals (a INTEGER PRIMARY KEY)"), ("totals", "taken")),
    "table name taken by a stream": (
        table("CREATE TABLE events (a INTEGER PRIMARY KEY)"),
        ("events", "taken"),
    ),
    "table name reserved": (
        table("CREATE TABLE tidegate_t (a INTEGER PRIMARY KEY)"),
        ("tidegate_t", "reserved"),
    ),
    "partition by an unknown column": (
        table("CREATE TABLE t (a INTEGER PRIMARY KEY)", partition_by="b"),
        ("t", "'b'", "a"),
    ),
    "primary key without the partition column": (
        table("CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER)", partition_by="b"),
        ("t", "b", "Add the partition"),
    ),
    "unique without the partition column": (
        table("CREATE TABLE t (a INTEGER, b INTEGER, PRIMARY KEY (a, b), UNIQUE (b))", partition_by="a"),
        ("t", "UNIQUE", "Add the partition"),
    ),
    "SQLAlchemy foreign key": (
        table(sa.Table("t", sa.MetaData(), sa.Column("a", sa.String, sa.ForeignKey("totals.name"), primary_key=True))),
        ("t", "foreign keys"),
    ),
    "SQLAlchemy client-side default": (
        table(sa.Table("t", sa.MetaData(), sa.Column("a", sa.Integer, primary_key=True, default=5))),
        ("t.a", "server_default"),
    ),
    "a DEFAULT of a stream that differs each time": (
        lambda app: app.stream("beats", "taken TIMESTAMP DEFAULT now()", border=True),
        ("stream beats", "column taken", "another value each time", "give the value when pushing"),
    ),
    "a column that is a word of SQL": (
        lambda app: app.stream("beats", "at TIMESTAMP NOT NULL", border=True),
        ("stream beats", "If at is a name", 'write "at"'),
    ),
    # nested transactions and triggers
    "nested, one member": (lambda app: app.nested("count"), ("count", "at least two")),
    "nested, same member twice": (lambda app: app.nested("count", "count"), ("count", "twice")),
    "nested, unknown member": (lambda app: app.nested("count", "ordr"), ("'ordr'", "did you mean 'order'")),
    "nested, not connected": (lambda app: app.nested("count", "order"), ("order", "not connected", "count")),
    "nested, name of a procedure": (
        lambda app: app.nested("count", "order", name="order"),
        ("'order'", "taken"),
    ),
    "nested, no procedure": (lambda app: app.nested("count", 5), ("5", "procedure")),
    "trigger on an unknown stream": (
        lambda app: app.trigger("event", "DELETE FROM totals"),
        ("'event'", "did you mean 'events'"),
    ),
    "trigger on an unknown window": (
        lambda app: app.trigger("count.w", "DELETE FROM totals"),
        ("count", "window 'w'"),
    ),
    "trigger on an unknown procedure": (
        lambda app: app.trigger("cont.w", "DELETE FROM totals"),
        ("'cont'", "did you mean 'count'"),
    ),
}


def contents(app: App) -> tuple[Any, ...]:
    return (
        dict(app.tables),
        dict(app.streams),
        dict(app.procedures),
        dict(app.nested_groups),
        list(app.triggers),
        app.scratch._tables(),
    )


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_and_leaves_the_app_unchanged(mistake: str) -> None:
    wrong, fragments = MISTAKES[mistake]
    app = sample()
    before = contents(app)
    with pytest.raises(DeclarationError) as caught:
        wrong(app)
    for fragment in fragments:
        assert fragment in str(caught.value)
    assert contents(app) == before


def test_after_a_mistake_the_right_declaration_works() -> None:
    app = sample()
    for wrong in ("CREATE TABLE t (a INTEGER)", "CREATE TABLE t (a DOUBLE PRIMARY KEY)"):
        with pytest.raises(DeclarationError):
            app.table(wrong)
    assert app.table("CREATE TABLE t (a INTEGER PRIMARY KEY)") == "t"
    with pytest.raises(DeclarationError):
        app.stream("s", "a DOUBLE", border=True, key="a")
    assert app.stream("s", "a INTEGER", border=True, key="a") == "s"


def test_sql_that_does_not_bind_is_refused_when_declared() -> None:
    from tidegate import StatementError

    app = sample()
    for wrong, fragment in (
        ("SELEC 1", "SELEC"),
        ("SELECT x FROM totals", "x"),
        ("SELECT * FROM total", "total"),
    ):
        with pytest.raises(StatementError) as caught:
            app.sql(wrong)
        assert fragment in str(caught.value)
        with pytest.raises(StatementError):
            app.trigger("events", wrong)
    assert app.triggers == []


# ---- mistakes that only show when the app is complete


def test_an_interior_stream_needs_a_producer() -> None:
    with pytest.raises(
        DeclarationError, match=r"stream spare has no producer; .*outputs, or declare it with border=True"
    ):
        sample().graph()


def test_a_border_stream_needs_a_reader() -> None:
    app = App()
    app.stream("events", "name VARCHAR", border=True)
    with pytest.raises(DeclarationError, match="border stream events is read by no procedure"):
        app.graph()


def test_a_trigger_needs_a_used_stream() -> None:
    app = App()
    app.table("CREATE TABLE totals (name VARCHAR PRIMARY KEY)")
    app.stream("events", "name VARCHAR")
    app.trigger("events", "INSERT INTO totals SELECT name FROM events")
    with pytest.raises(DeclarationError, match="events"):
        app.graph()


def chain(app: App, *links: tuple[str, str | tuple[str, ...], str | tuple[str, ...]]) -> None:
    """Procedures given as (name, inputs, outputs)."""
    for name, inputs, outputs in links:

        def body(txn: Any, *batches: Any) -> None: ...

        body.__name__ = name
        app.procedure(inputs=inputs, outputs=outputs)(body)


def with_streams(border: str, interior: str) -> App:
    app = App()
    for name in border.split():
        app.stream(name, "a INTEGER", border=True)
    for name in interior.split():
        app.stream(name, "a INTEGER")
    return app


def test_a_cycle_is_spelt_out() -> None:
    app = with_streams("b", "x y z")
    chain(app, ("p", ("b", "z"), "x"), ("q", "x", "y"))
    with pytest.raises(DeclarationError, match=r"cycle: .*p → q → r") as caught:
        chain(app, ("r", "y", "z"))
    assert set(caught.value.cycle) == {"p", "q", "r"}
    assert "r" not in app.procedures
    chain(app, ("r", "y", ()))


def test_a_nested_transaction_is_convex() -> None:
    app = with_streams("b", "x y z")
    chain(app, ("p", "b", ("x", "z")), ("q", "x", "y"), ("r", ("y", "z"), ()))
    with pytest.raises(DeclarationError, match=r"nested transaction outer is not convex.*q"):
        app.nested("p", "r", name="outer")
    assert app.nested_groups == {}
    app.nested("p", "q", "r", name="outer")


def test_a_procedure_is_in_one_nested_transaction_at_most() -> None:
    app = with_streams("b", "x y")
    chain(app, ("p", "b", "x"), ("q", "x", "y"), ("r", "y", ()))
    app.nested("p", "q")
    with pytest.raises(DeclarationError, match=r"q is in two nested transactions"):
        app.nested("q", "r")


def test_an_oltp_procedure_is_not_in_a_nested_transaction() -> None:
    app = with_streams("b", "x")
    chain(app, ("p", "b", "x"))

    @app.procedure()
    def client(txn: Any) -> None: ...

    with pytest.raises(DeclarationError, match="client is an OLTP procedure"):
        app.nested("p", "client")


def test_a_procedure_does_not_take_a_nested_transactions_name() -> None:
    app = with_streams("b", "x")
    chain(app, ("p", "b", "x"), ("q", "x", ()))
    app.nested("p", "q", name="both")
    with pytest.raises(DeclarationError, match=r"'both'.*nested"):
        chain(app, ("both", "x", ()))


def test_a_nested_transaction_that_waits_needs_a_deadline() -> None:
    app = with_streams("b decisions", "x")
    chain(app, ("p", "b", "x"), ("q", ("x", "decisions"), ()))
    with pytest.raises(
        DeclarationError, match=r"locks held, while q waits for .*\(decisions\); .*deadline_s= and default="
    ):
        app.nested("p", "q", name="asking")

    app = with_streams("b", "x")
    app.stream("decisions", "a INTEGER", border=True, deadline_s=60.0, default={"a": 0})
    chain(app, ("p", "b", "x"), ("q", ("x", "decisions"), ()))
    app.nested("p", "q", name="asking")
    (unit,) = app.graph().units
    assert (unit.inputs, unit.awaited, unit.ancestors) == (("b",), ("decisions",), {"b"})


def test_a_nested_transaction_does_not_begin_with_an_awaited_stream() -> None:
    app = with_streams("", "x")
    app.stream("decisions", "a INTEGER", border=True, deadline_s=60.0, default={"a": 0})
    chain(app, ("p", "decisions", "x"), ("q", "x", ()))
    with pytest.raises(DeclarationError, match="decisions"):
        app.nested("p", "q")


def test_a_deadline_is_for_a_stream_that_a_nested_transaction_waits_for() -> None:
    app = App()
    app.stream("decisions", "a INTEGER", border=True, deadline_s=60.0, default={"a": 0})
    chain(app, ("p", "decisions", ()))
    with pytest.raises(DeclarationError, match=r"decisions.*nested"):
        app.graph()


def test_partition_and_key_types_must_match() -> None:
    app = App()
    app.table("CREATE TABLE meds (patient VARCHAR PRIMARY KEY)", partition_by="patient")
    app.stream("orders", "patient INTEGER", border=True, key="patient")
    with pytest.raises(DeclarationError, match=r"meds.*patient VARCHAR.*INTEGER"):
        app.procedure(inputs="orders", reads=[partition("meds")])(takes_batch)


@pytest.mark.parametrize(
    ("options", "fragment"),
    [
        ({}, "give exactly one of count, batches, time"),
        ({"count": 3, "batches": 3}, "got count, batches"),
        ({"count": 0}, "positive whole number, got 0"),
        ({"count": 2.5}, "2.5"),
        ({"batches": True}, "True"),
        ({"count": 3, "slide": 0}, "slide must be a positive whole number"),
        ({"count": 3, "slide_rows": 4}, "slide_rows goes with time="),
    ],
)
def test_a_bad_window(options: dict[str, Any], fragment: str) -> None:
    with pytest.raises(DeclarationError, match="window over events") as caught:
        window("events", **options)
    assert fragment in str(caught.value)


# ---- what works


def test_sqlalchemy_tables_declare_the_same_as_ddl() -> None:
    declared = sa.Table(
        "meds",
        sa.MetaData(),
        sa.Column("patient", sa.Integer, primary_key=True),
        sa.Column("drug", sa.String, primary_key=True),
        sa.Column("dose", sa.Numeric(10, 2), sa.CheckConstraint("dose > 0"), nullable=False, server_default="1"),
        sa.Column("given_at", sa.DateTime),
        sa.Index("by_drug", "drug"),
    )
    ddl = """CREATE TABLE meds (patient INTEGER, drug VARCHAR, dose DECIMAL(10, 2) NOT NULL DEFAULT '1'
             CHECK (dose > 0), given_at TIMESTAMP, PRIMARY KEY (patient, drug));
             CREATE INDEX by_drug ON meds (drug)"""
    ours, theirs = App(), App()
    assert ours.table(ddl, partition_by="patient") == theirs.table(declared, partition_by="patient")
    for fact in ("primary_key", "indexes", "partition_by"):
        assert getattr(ours.tables["meds"], fact) == getattr(theirs.tables["meds"], fact)
    our_columns, their_columns = (
        [(c.name, c.type.sql, c.nullable, c.default) for c in app.tables["meds"].columns] for app in (ours, theirs)
    )
    assert our_columns == their_columns
    assert [check.columns for check in theirs.tables["meds"].checks] == [("dose",)]


def test_declaring_touches_nothing(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    threads = threading.active_count()
    app = sample()
    app.sql("SELECT * FROM totals")
    assert list(tmp_path.iterdir()) == []
    assert threading.active_count() == threads


def test_a_procedure_stays_an_ordinary_function() -> None:
    app = sample()

    @app.procedure()
    def double(txn: Any, n: int) -> int:
        return 2 * n

    assert double(None, 4) == 8


def test_columns_of_the_same_text_mean_what_each_app_says() -> None:
    """Columns are remembered by their text, but not where an app has types of its own."""
    found = []
    for kind in ("DECIMAL(10,2)", "BIGINT"):
        app = App("shop")
        app.table(f"CREATE TYPE price AS {kind}; CREATE TABLE stock (item VARCHAR PRIMARY KEY, price price)")
        app.stream("sold", "paid price", border=True)
        found.append(str(app.streams["sold"].relation.columns[0].type.sql))
    assert found == ["DECIMAL(10,2)", "BIGINT"]
