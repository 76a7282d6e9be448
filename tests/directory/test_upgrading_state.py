"""Windows, batch-ids, subscriptions and waiting work of a changed app: carried over, or refused; never lost in silence."""

from __future__ import annotations

import datetime as dt
import logging
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, either, join, window
from tidegate import windows as w
from tidegate.errors import BatchError, RecoveryRefused
from tidegate.offline.upgrade import check


def counter(
    spec: Any = None,
    *,
    stream: str = "numbers",
    columns: str = "n INTEGER NOT NULL",
    name: str = "watch",
    window_name: str = "recent",
    key: str | None = None,
    renamed_stream: str | None = None,
    **options: Any,
) -> App:
    """numbers → watch → sums: the sum of each window that fires."""
    app = App("counter")
    app.stream(stream, columns, border=True, key=key, renamed_from=renamed_stream)
    app.stream("sums", "total BIGINT")
    windows = {window_name: window(stream, count=3, slide=1) if spec is None else spec}

    def watch(txn: Transaction, numbers: Batch) -> None:
        slid = txn.window(window_name)
        for extent in slid.windows:
            txn.emit("sums", total=sum(row.n for row in extent.rows))

    watch.__name__ = name
    app.procedure(inputs=stream, outputs="sums", windows=windows, **options)(watch)
    return app


def push(engine: Engine, *numbers: int, stream: str = "numbers") -> list[int]:
    """The sums that these make fire."""
    found = engine.subscribe("sums")
    for number in numbers:
        engine.push(stream, [(number,)], number)
    return [row.total for batch in iter(found.get, None) for row in batch]


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    with tidegate.open(counter(), tmp_path) as engine:
        assert push(engine, 1, 2, 3, 4) == [6, 9]
    return tmp_path


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda: counter(name="observe", renamed_from="watch"), id="procedure"),
        pytest.param(
            lambda: counter(window("numbers", count=3, slide=1, renamed_from="recent"), window_name="last"), id="window"
        ),
        pytest.param(
            lambda: counter(
                window("numbers", count=3, slide=1, renamed_from="recent"),
                window_name="last",
                name="observe",
                renamed_from="watch",
            ),
            id="both",
        ),
        pytest.param(
            lambda: counter(
                window("numbers", count=3, slide=1, renamed_from="watch.recent"), window_name="last", name="observe"
            ),
            id="moved",
        ),
    ],
)
def test_a_renamed_window_keeps_its_rows(changed: Any, stored: Path) -> None:
    assert {change.verdict for change in check(changed(), stored).changes} == {"carried over"}
    with tidegate.open(changed(), stored) as engine:
        assert push(engine, 5) == [12]
    with tidegate.open(changed(), stored) as engine:  # renamed_from= may stay
        assert engine.upgraded == []
        assert push(engine, 6) == [15]


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda: counter(name="observe"), id="procedure"),
        pytest.param(lambda: counter(window_name="last"), id="window"),
    ],
)
def test_a_window_that_is_gone_is_refused_and_kept(
    changed: Any, stored: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = r"window recent of procedure watch holds 3 rows.*renamed_from=.*drop=\['watch.recent'\] \(--drop watch.rec"
    for _ in range(2):
        with pytest.raises(RecoveryRefused, match=told):
            tidegate.open(changed(), stored)
    with tidegate.open(counter(), stored) as engine:
        assert push(engine, 5) == [12], "nothing was harmed"
    with (
        caplog.at_level(logging.WARNING, "tidegate"),
        tidegate.open(changed(), stored, drop=["watch.recent"]) as engine,
    ):
        assert push(engine, 6, 7, 8) == [21]
    assert "dropped: window watch.recent: window recent of procedure watch holds 3 rows" in caplog.text


def test_a_window_that_grows_is_not_filled_with_what_is_there(stored: Path) -> None:
    """It would need rows that are gone; today's rows alone would be a part presented as the whole."""
    longer = counter(window("numbers", count=4, slide=1))
    with pytest.raises(RecoveryRefused, match=r"declared as \(count 3 slide 1\).*edition=2.*next whole window"):
        tidegate.open(longer, stored)
    again = counter(window("numbers", count=4, slide=1, edition=2))
    assert [change.verdict for change in check(again, stored).changes] == ["restarted"]
    with tidegate.open(again, stored) as engine:
        assert push(engine, 5, 6, 7) == []
        assert push(engine, 8) == [26]
    with tidegate.open(again, stored) as engine:
        assert engine.upgraded == []
        assert push(engine, 9) == [30]


def test_a_window_that_shrinks_has_all_it_needs(stored: Path) -> None:
    with tidegate.open(counter(window("numbers", count=2, slide=1)), stored) as engine:
        assert [change.verdict for change in engine.upgraded] == ["carried over"]
        assert push(engine, 5, 6) == [9, 11]


TIMED = "ts TIMESTAMP NOT NULL, n INTEGER NOT NULL"


def at(minute: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1, 10) + dt.timedelta(minutes=minute)


def push_at(engine: Engine, *minutes: int) -> list[tuple[Any, int]]:
    """Start and sum of the windows that fire."""
    found = engine.subscribe("sums")
    for minute in minutes:
        engine.push("numbers", [(at(minute), 1)])
    return [(row.began, row.total) for batch in iter(found.get, None) for row in batch]


def timed(spec: Any) -> App:
    app = App("timed")
    app.stream("numbers", TIMED, border=True)
    app.stream("sums", "began TIMESTAMP, total BIGINT")

    @app.procedure(inputs="numbers", outputs="sums", windows={"recent": spec})
    def watch(txn: Transaction, numbers: Batch) -> None:
        slid = txn.window("recent")
        if slid.results is not None:
            txn.emit("sums", [(row.window_start, row.n) for row in slid.results])
        else:
            start = [dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=int(x.start)) for x in slid.windows]
            txn.emit("sums", [(a, len(x.rows)) for a, x in zip(start, slid.windows, strict=True)])

    return app


HOUR = window("numbers", time="1h", on="ts", compute={"n": w.count()})


@pytest.mark.parametrize(
    ("after", "pushed", "wanted"),
    [
        # an hour began at 10:00, the upgrade is at 10:20: the first whole one begins at 11:00
        (
            window("numbers", time="1h", on="ts", compute={"n": w.sum("n")}, edition=2),
            (30, 59, 60, 70, 119, 121),
            [(at(60), 3)],
        ),
        # windows that begin before, and reach beyond, are parts as well
        (
            window("numbers", time="20m", slide="10m", on="ts", compute={"n": w.count()}, edition=2),
            (25, 31, 35, 45, 55),
            [(at(30), 3)],
        ),
        (window("numbers", time="30m", on="ts", edition=2), (25, 30, 40, 61), [(at(30), 2)]),
        (
            window("numbers", time="1h", on="ts", compute=w.whole(lambda x: [(len(x),)], "n BIGINT"), edition=2),
            (30, 60, 61, 121),
            [(at(60), 2)],
        ),
        # the session of 10:20 goes on until 10:29, so that of 10:25 is its continuation
        (
            window("numbers", session="10m", on="ts", compute={"n": w.count()}, edition=2),
            (25, 30, 45, 50, 70),
            [(at(45), 2)],
        ),
        (
            window("numbers", landmark="1h", slide="30m", on="ts", compute={"n": w.count()}, edition=2),
            (25, 35, 61, 91, 121),
            [(at(60), 1), (at(60), 2)],
        ),
        (
            window("numbers", time="10m", slide_rows=1, on="ts", compute={"n": w.count()}, edition=2),
            (25, 29, 31, 35),
            [(at(21), 3), (at(25), 3)],
        ),
        (window("numbers", count=2, compute={"n": w.count()}, edition=2), (25, 26), None),
    ],
    ids=["aggregate", "sliding", "rows", "whole", "session", "landmark", "by-tuple", "count"],
)
def test_a_changed_window_begins_with_its_next_whole_one(after: Any, pushed: Any, wanted: Any, tmp_path: Path) -> None:
    app, changed = timed(HOUR), timed(after)
    if wanted is None:
        changed = counted(after)
        wanted = [(None, 2)]
    with tidegate.open(app, tmp_path) as engine:
        assert push_at(engine, 5, 10, 20) == []
    with tidegate.open(changed, tmp_path) as engine:
        assert [change.verdict for change in engine.upgraded] == ["restarted"]
        half = len(pushed) // 2
        found = push_at(engine, *pushed[:half])
    with tidegate.open(changed, tmp_path) as engine:  # what it waits for is remembered
        assert found + push_at(engine, *pushed[half:]) == wanted


def counted(spec: Any) -> App:
    app = App("timed")
    app.stream("numbers", TIMED, border=True)
    app.stream("sums", "began TIMESTAMP, total BIGINT")

    @app.procedure(inputs="numbers", outputs="sums", windows={"recent": spec})
    def watch(txn: Transaction, numbers: Batch) -> None:
        txn.emit("sums", [(None, row.n) for row in txn.window("recent").results])

    return app


def parts(extent: Any) -> list[int]:
    return extent["n"].tolist()


def told(panes: Any) -> str:
    return "+".join(str(sum(pane)) for pane in panes)


def divided(pattern: Any, edition: int = 1) -> App:
    app = App("divided")
    app.stream("numbers", "n INTEGER NOT NULL", border=True)
    app.stream("sums", "told VARCHAR")
    compute = w.decomposed(parts, told, "told VARCHAR")
    spec = window("numbers", count=4, slide=2, compute=compute, pattern=pattern, edition=edition)

    @app.procedure(inputs="numbers", outputs="sums", windows={"recent": spec})
    def watch(txn: Transaction, numbers: Batch) -> None:
        txn.emit("sums", [(row.told,) for row in txn.window("recent").results])

    return app


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [
        (w.WindowMapReduce(2), w.WindowMapReduce(4), "5+6+7+8"),
        (w.WindowMapReduce(2), w.WindowMapReduce(2, parts=4), "5+6+7+8"),
        (None, w.WindowMapReduce(2), "11+15"),
        (w.WindowFarm(2), w.Sequential(), "11+15"),
        (w.Sequential(), w.WindowFarm(2), "11+15"),
        (w.PaneFarm(2), w.WindowFarm(w.PaneFarm(2), workers=2), "26"),
    ],
    ids=repr,
)
def test_a_window_divided_in_another_way_is_another_window(before: Any, after: Any, found: str, tmp_path: Path) -> None:
    with tidegate.open(divided(before), tmp_path) as engine:
        engine.push("numbers", [(n,) for n in (1, 2, 3)])
        engine.checkpoint()
    with pytest.raises(RecoveryRefused, match=r"declared as .*edition=2"):
        tidegate.open(divided(after), tmp_path)
    with tidegate.open(divided(after, edition=2), tmp_path) as engine:
        assert [change.verdict for change in engine.upgraded] == ["restarted"]
        sums = engine.subscribe("sums")
        engine.push("numbers", [(n,) for n in (5, 6, 7, 8)])
        assert [row.told for batch in iter(sums.get, None) for row in batch] == [found]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (w.PaneFarm(2), w.PaneFarm(7)),
        (None, w.Sequential()),
        (w.WindowFarm(2), w.WindowFarm(3, active=True)),
        (w.WindowMapReduce(2, parts=4), w.WindowMapReduce(4)),
        (w.WindowFarm(w.PaneFarm(2), workers=2), w.WindowFarm(w.PaneFarm(5), workers=2)),
    ],
    ids=repr,
)
def test_other_workers_of_the_same_parts_change_nothing(before: Any, after: Any, tmp_path: Path) -> None:
    with tidegate.open(divided(before), tmp_path) as engine:
        engine.push("numbers", [(n,) for n in (1, 2, 3)])
        engine.checkpoint()
    with tidegate.open(divided(after), tmp_path) as engine:
        assert not engine.upgraded
        engine.push("numbers", [(4,)])
        assert engine.query("SELECT fired FROM tidegate.windows").scalar() == 1


@pytest.mark.parametrize(
    "after",
    [
        window("numbers", delta=5, on="n", edition=2),
        window("numbers", until=lambda row: row.n > 3, edition=2),
        window("numbers", time="1h", edition=2),
    ],
    ids=["delta", "punctuated", "another time"],
)
def test_a_window_whose_next_whole_one_is_unknown_needs_another_name(after: Any, tmp_path: Path) -> None:
    with tidegate.open(timed(HOUR), tmp_path) as engine:
        push_at(engine, 5)
    with pytest.raises(RecoveryRefused, match=r"window watch.recent.*first whole window begins.*under another name"):
        tidegate.open(timed(after), tmp_path)


def test_a_join_that_changes_needs_another_name(tmp_path: Path) -> None:
    def shop(within: str, name: str, **options: Any) -> App:
        app = App("shop")
        app.stream("orders", "id INTEGER NOT NULL, ts TIMESTAMP NOT NULL", border=True)
        app.stream("payments", "id INTEGER NOT NULL, ts TIMESTAMP NOT NULL", border=True)
        both = join("orders", "payments", on="id", within=within, left_time="ts", right_time="ts", **options)

        @app.procedure(inputs=tidegate.either("orders", "payments"), windows={name: both})
        def match(txn: Transaction, orders: Batch, payments: Batch) -> None:
            assert len(txn.window(name).results) < 2

        return app

    with tidegate.open(shop("1h", "paid"), tmp_path) as engine:
        engine.push("orders", [(1, at(0))])
    with pytest.raises(RecoveryRefused, match=r"window match.paid.*declare it as it was, or under another name"):
        tidegate.open(shop("2h", "paid"), tmp_path)
    with tidegate.open(shop("1h", "matched", renamed_from="paid"), tmp_path) as engine:
        assert engine.upgraded[0].name == "match.matched"


def test_a_renamed_border_stream_still_knows_what_it_has_accepted(stored: Path) -> None:
    with pytest.raises(RecoveryRefused, match=r"stream numbers.*4 batch-ids that it has accepted would be forgotten"):
        tidegate.open(counter(stream="digits"), stored, drop=["watch.recent"])
    renamed = counter(window("digits", count=3, slide=1), stream="digits", renamed_stream="numbers")
    with tidegate.open(renamed, stored) as engine:
        assert engine.push("digits", [(4,)], 4).duplicate
        with pytest.raises(BatchError):
            engine.push("digits", [(9,)], 3)
        assert push(engine, 5, stream="digits") == [12], "and its window goes on"


def test_an_offset_follows_a_renamed_stream(tmp_path: Path) -> None:
    with tidegate.open(counter(), tmp_path) as engine:
        engine.push("numbers", [(1,)], source="ListSource/numbers", offset=17)
    renamed = counter(window("digits", count=3, slide=1), stream="digits", renamed_stream="numbers")
    with tidegate.open(renamed, tmp_path) as engine:
        assert engine.position("ListSource/digits") == 17


def test_another_key_would_forget_batch_ids(stored: Path) -> None:
    with pytest.raises(RecoveryRefused, match=r"stream numbers: it is keyed by n INTEGER from now on, not by nothing"):
        tidegate.open(counter(key="n"), stored, drop=["watch.recent"])


def test_a_wider_key_is_the_same_key(tmp_path: Path) -> None:
    with tidegate.open(counter(key="n"), tmp_path) as engine:
        assert push(engine, 7) == []
    wide = counter(window("numbers", count=3, slide=1, edition=2), columns="n BIGINT NOT NULL", key="n")
    with tidegate.open(wide, tmp_path) as engine:
        assert engine.push("numbers", [(7,)], 7).duplicate
        assert [engine.push("numbers", [(7,)], n).duplicate for n in (8, 9, 10)] == [False] * 3


def test_columns_added_to_a_stream_have_their_default_in_windows(stored: Path) -> None:
    app = App("counter")
    app.stream("numbers", "n INTEGER NOT NULL, weight INTEGER NOT NULL DEFAULT 10", border=True)
    app.stream("sums", "total BIGINT")

    @app.procedure(inputs="numbers", outputs="sums", windows={"recent": window("numbers", count=3, slide=1)})
    def watch(txn: Transaction, numbers: Batch) -> None:
        for extent in txn.window("recent").windows:
            txn.emit("sums", total=sum(row.n * row.weight for row in extent.rows))

    with tidegate.open(app, stored) as engine:
        assert [change.verdict for change in engine.upgraded] == ["refilled"]
        found = engine.subscribe("sums")
        engine.push("numbers", [(5, 100)], 5)
        assert [row.total for row in found.get()] == [570]


def test_a_dead_letter_can_be_requeued_after_its_stream_was_renamed_and_got_a_column(tmp_path: Path) -> None:
    def till(stream: str, columns: str, broken: bool, **options: Any) -> App:
        app = App("till")
        app.table("CREATE TABLE sold (n INTEGER PRIMARY KEY, weight INTEGER, unit VARCHAR)")
        app.stream(stream, columns, border=True, **options)

        @app.procedure(inputs=stream, writes=["sold"], on_failure="dead_letter")
        def sell(txn: Transaction, sales: Batch) -> None:
            if broken:
                raise ValueError("the till is broken")
            for row in sales:
                txn.insert("sold", row)

        return app

    columns = "n INTEGER NOT NULL"
    with tidegate.open(till("sales", columns, True), tmp_path) as engine:
        engine.push("sales", [(7,)])
    more = f"{columns}, weight INTEGER NOT NULL DEFAULT 10, unit VARCHAR DEFAULT 'g'"
    with tidegate.open(till("sold_today", more, False, renamed_from="sales"), tmp_path) as engine:
        ((position, stream),) = engine.query("SELECT position, stream FROM tidegate.dead_letters")
        assert stream == "sold_today"
        engine.requeue(position).result()
        assert [tuple(row) for row in engine.query("SELECT * FROM sold")] == [(7, 10, "g")]


def test_other_columns_of_a_stream_do_not_fit_its_windows(stored: Path) -> None:
    changed = counter(columns="n BIGINT NOT NULL")
    with pytest.raises(RecoveryRefused, match=r"window watch.recent.*whose columns have changed.*edition=2"):
        tidegate.open(changed, stored)
    again = counter(window("numbers", count=3, slide=1, edition=2), columns="n BIGINT NOT NULL")
    with tidegate.open(again, stored) as engine:
        assert push(engine, 5, 6, 7) == [18]


def test_a_subscription_of_a_stream_that_is_gone(tmp_path: Path) -> None:
    def app(output: str, **options: Any) -> App:
        app = App("echo")
        app.stream("numbers", "n INTEGER", border=True)
        app.stream(output, "n INTEGER", **options)

        @app.procedure(inputs="numbers", outputs=output)
        def echo(txn: Transaction, numbers: Batch) -> None:
            txn.emit(output, numbers)

        return app

    with tidegate.open(app("echoes"), tmp_path) as engine:
        engine.subscribe_durably("echoes", "ward")
        engine.push("numbers", [(1,)])
    with pytest.raises(
        RecoveryRefused, match=r"subscription ward: it follows stream echoes.*1 batches wait.*--drop ward"
    ):
        tidegate.open(app("replies"), tmp_path)
    with tidegate.open(app("replies", renamed_from="echoes"), tmp_path) as engine:
        assert [row.n for row in engine.subscribe_durably("replies", "ward").get()] == [1]
    with tidegate.open(app("other"), tmp_path, drop=["ward"]) as engine:
        assert engine.outbox.subscriptions == {}


def test_waiting_work_goes_on_under_its_new_name(tmp_path: Path) -> None:
    def app(last: str, columns: str = "n INTEGER", was: str | None = None) -> App:
        app = App("people")
        app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        app.stream("asks", columns, border=True)
        app.stream("asked", columns)
        app.stream("answers", "yes BOOLEAN", border=True, deadline_s=600.0, default={"yes": False})

        def ask(txn: Transaction, asks: Batch) -> None:
            txn.emit("asked", asks)

        def answer(txn: Transaction, asked: Batch, answers: Batch) -> None:
            if answers[0].yes:
                txn.insert("t", (asked[0][-1],))

        answer.__name__ = last
        app.procedure(inputs="asks", outputs="asked")(ask)
        app.procedure(inputs=["asked", "answers"], writes=["t"], renamed_from=was)(answer)
        app.nested("ask", last)
        return app

    with tidegate.open(app("answer"), tmp_path) as engine:
        engine.push("asks", [(1,)], 1)
    with pytest.raises(RecoveryRefused, match=r"unit ask\+answer: it still waits with batch 1.*renamed_from="):
        tidegate.open(app("reply"), tmp_path)
    with pytest.raises(RecoveryRefused, match=r"stream asks.*1 of its batches wait.*let it finish"):
        tidegate.open(app("answer", "n BIGINT"), tmp_path)
    wider = "n INTEGER, more INTEGER DEFAULT 42"
    with tidegate.open(app("reply", wider, was="answer"), tmp_path) as engine:
        assert [question.batch_id for question in engine.questions()] == [1]
        engine.push("answers", [(True,)], 1).result()
        assert engine.query("SELECT n FROM t").scalar() == 42


def test_a_halted_dataflow_stays_halted_under_its_new_name(tmp_path: Path) -> None:
    broken = [True]

    def app(name: str, **options: Any) -> App:
        app = App("halting")
        app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")
        app.stream("numbers", "n INTEGER", border=True)

        def put(txn: Transaction, numbers: Batch) -> None:
            if broken:
                raise RuntimeError("not today")
            txn.insert("t", numbers[0])

        put.__name__ = name
        app.procedure(inputs="numbers", writes=["t"], **options)(put)
        return app

    with tidegate.open(app("put"), tmp_path) as engine:
        engine.push("numbers", [(1,)])
    with tidegate.open(app("store", renamed_from="put"), tmp_path) as engine:
        broken.clear()
        engine.resume("store")
        assert engine.query("SELECT count(*) FROM t").scalar() == 1


def halting(joined: bool = True, key: str | None = None) -> App:
    """s1 → first, which fails; s2 → second; ``joined``: both are one dataflow."""
    app = App("halting")
    app.table("CREATE TABLE t (n INTEGER PRIMARY KEY)")
    for name in ("s1", "s2"):
        app.stream(name, "n INTEGER NOT NULL", border=True, key=key)

    if joined:

        @app.procedure(inputs=either("s1", "s2"))
        def both(txn: Transaction, s1: Batch, s2: Batch) -> None: ...

    @app.procedure(inputs="s1")
    def first(txn: Transaction, s1: Batch) -> None:
        raise RuntimeError("not today")

    @app.procedure(inputs="s2", writes=["t"])
    def second(txn: Transaction, s2: Batch) -> None:
        txn.insert("t", s2[0])

    return app


def test_what_is_parked_stays_behind_its_halt(tmp_path: Path) -> None:
    with tidegate.open(halting(), tmp_path, executor="manual") as engine:
        engine.push("s2", [(1,)])
        engine.push("s1", [(2,)])
        for name in ("both", "both", "first"):  # so that nothing but second is parked, besides what failed
            ready = next(e for e in engine.scheduler.ready() if e.unit.name == name)
            engine.executor.run(engine.scheduler.take(ready))
    refused = check(halting(joined=False), tmp_path).refused
    assert [(change.kind, change.name) for change in refused] == [("dataflow", "second")]
    with pytest.raises(RecoveryRefused, match="halted that no longer has the same procedures or keys"):
        tidegate.open(halting(joined=False), tmp_path)
    with tidegate.open(halting(), tmp_path) as engine:
        engine.skip()
        assert engine.query("SELECT n FROM t").rows == [(1,)]
    with tidegate.open(halting(joined=False), tmp_path) as engine:
        assert engine.scheduler.idle


def test_keys_that_are_halted_one_by_one_stay_so(tmp_path: Path) -> None:
    """With a consumer by another key, the dataflow halts as a whole: there is one front then, not two."""

    def app(together: bool) -> App:
        made = halting(key="n")
        if together:
            made.stream("tens", "ten INTEGER NOT NULL", key="ten")

            @made.procedure(inputs="s2", outputs="tens")
            def tell(txn: Transaction, s2: Batch) -> None: ...

            @made.procedure(inputs="tens")
            def hear(txn: Transaction, tens: Batch) -> None: ...

        return made

    with tidegate.open(app(together=False), tmp_path) as engine:
        for n in (1, 2):
            engine.push("s1", [(n,)])
        assert len(engine.halted()) == 2
    with pytest.raises(RecoveryRefused, match="halted that no longer has the same procedures or keys"):
        tidegate.open(app(together=True), tmp_path)
    with tidegate.open(app(together=False), tmp_path) as engine:
        engine.skip()
        assert engine.scheduler.idle
