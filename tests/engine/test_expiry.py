"""Tables whose rows expire: every way to read agrees with a plain dictionary, in every setting and after every replay."""

from __future__ import annotations

import datetime as dt
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tidegate
from tidegate import App, Batch, Engine, Transaction, partition
from tidegate.errors import DeclarationError
from tidegate.offline.verify import verify
from tidegate.outside.changelog import rebuild
from tidegate.storage.expiry import REMOVED
from tidegate.testing import ManualClock, Push, check_order

Open = Callable[..., Engine]
SECOND = dt.timedelta(seconds=1)
HOUR = dt.timedelta(hours=1)
JOINED = "SELECT a.id FROM seen a JOIN seen b ON a.id = b.id ORDER BY a.id"


def make_app(**options: Any) -> App:
    app = App("tags", recovery=options.pop("recovery", "weak"))
    app.table(
        "CREATE TABLE seen (id INTEGER PRIMARY KEY, tag INTEGER UNIQUE, seen_at TIMESTAMP)",
        expire=("seen_at", options.pop("after", "1h")),
        **options,
    )
    app.view("tags_seen", "SELECT id, tag FROM seen")
    app.stream("events", "id INTEGER, tag INTEGER", border=True)
    app.stream("answers", "id INTEGER, what VARCHAR")

    @app.procedure(inputs="events", outputs="answers", writes=["seen"])
    def note(txn: Transaction, events: Batch) -> None:
        for event in events:
            known = [row.id for row in txn.scan("seen")]
            ways = [
                [row.id for row in txn.execute(JOINED)],
                [row.id for row in txn.execute("SELECT id FROM seen WHERE id BETWEEN -1 AND 1000 ORDER BY id")],
                [key for key in range(10) if txn.get("seen", key) is not None],
                [key for key in range(10) if txn.execute("SELECT id FROM seen WHERE id = ?", key)],
                [row.id for row in txn.execute("SELECT id FROM seen WHERE tag >= 0 ORDER BY id")],
            ]
            assert all(found == known for found in ways), (known, ways)
            assert txn.count("seen") == len(known)
            held = txn.scan("seen", tag=event.tag)
            if event.id in known:
                txn.update("seen", event.id, seen_at=txn.now)
                what = "again"
            elif held:
                txn.execute("DELETE FROM seen WHERE tag = ?", event.tag)
                what = f"instead of {held[0].id}"
            else:
                txn.insert("seen", (event.id, event.tag, txn.now if event.id else None))
                what = "first"
            txn.emit("answers", id=event.id, what=what)

    return app


class Naive:
    """The same with a dictionary of the rows that are not due."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[int, dt.datetime | None]] = {}
        self.answers: list[tuple[int, str]] = []

    def live(self, now: dt.datetime) -> list[int]:
        self.rows = {k: (tag, at) for k, (tag, at) in self.rows.items() if at is None or at + HOUR > now}
        return sorted(self.rows)

    def note(self, key: int, tag: int, now: dt.datetime) -> None:
        self.live(now)
        held = [k for k, (other, _) in self.rows.items() if other == tag]
        if key in self.rows:
            self.rows[key] = (self.rows[key][0], now)
            self.answers.append((key, "again"))
        elif held:
            del self.rows[held[0]]
            self.answers.append((key, f"instead of {held[0]}"))
        else:
            self.rows[key] = (tag, now if key else None)
            self.answers.append((key, "first"))


def run(engine: Engine, clock: ManualClock, seed: int, expected: Naive, steps: int = 40) -> None:
    dice = random.Random(seed)
    for _ in range(steps):
        clock.advance(dice.choice([0, 60, 900, 3600]))
        event = (dice.randrange(10), dice.randrange(6))
        expected.note(*event, clock.now())
        engine.push("events", [event]).result()
        if dice.random() < 0.15:
            engine.checkpoint()
        if dice.random() < 0.3:
            clock.advance(dice.choice([1, 3599, 3600]))
            live = expected.live(clock.now())
            assert [row.id for row in engine.query("SELECT id FROM seen ORDER BY id")] == live
            assert [row.id for row in engine.query("SELECT id FROM tags_seen ORDER BY id")] == live
            assert [key for key in range(10) if len(engine.query("SELECT id FROM seen WHERE id = ?", key))] == live


@pytest.mark.parametrize("options", [{}, {"cached_rows": 2}], ids=["in memory", "evicted"])
def test_all_ways_to_read_agree_with_a_dictionary(tmp_path: Path, options: dict[str, Any]) -> None:
    for seed, recovery in enumerate(["weak", "strong", "effects"]):
        clock, expected, directory = ManualClock(), Naive(), tmp_path / recovery
        make = lambda recovery=recovery: make_app(recovery=recovery)  # noqa: E731
        for part in range(2):  # the second continues what was replayed
            with tidegate.open(make(), directory, clock=clock, **options) as engine:
                answers = engine.subscribe("answers")
                run(engine, clock, 10 * seed + part, expected, 15)
                engine.database.tables["seen"].check()
                found = [(row.id, row.what) for batch in answers for row in batch]
                assert found == expected.answers[-15:]
        assert verify(make(), directory).same


def test_the_same_as_serially_in_position_order() -> None:
    events = [Push("events", ((n * 7 % 10, n * 5 % 6),)) for n in range(25)]
    for executor in ("manual", "threads"):
        check_order(lambda: make_app(after=dt.timedelta(milliseconds=4)), events, seed=3, executor=executor)  # type: ignore[arg-type]


def make_dedupe(**options: Any) -> App:
    app = App("dedupe")
    app.table(
        "CREATE TABLE seen (room INTEGER, id INTEGER, seen_at TIMESTAMP, PRIMARY KEY (room, id))",
        expire=("seen_at", "1h"),
        **options,
    )
    app.stream("events", "room INTEGER, id INTEGER", border=True, key="room")

    @app.procedure(inputs="events", writes=[partition("seen") if "partition_by" in options else "seen"])
    def note(txn: Transaction, events: Batch) -> None:
        for event in events:
            if txn.get("seen", (event.room, event.id)) is None:
                txn.insert("seen", (event.room, event.id, txn.now))

    return app


def stored(engine: Engine) -> int:
    return sum(row is not None for row in engine.database.tables["seen"].rows.values())


@pytest.mark.parametrize("options", [{}, {"partition_by": "room"}])
def test_a_bounded_number_is_removed_in_each_transaction_that_writes(open_engine: Open, options: Any) -> None:
    clock = ManualClock()
    engine = open_engine(make_dedupe(**options), clock=clock)
    engine.push("events", [(1, n) for n in range(3 * REMOVED)])
    engine.push("events", [(2, n) for n in range(5)])
    clock.advance(3600)
    assert len(engine.query("SELECT * FROM seen")) == 0
    engine.push("events", [(1, 10**6)])
    assert stored(engine) == 3 * REMOVED + 5 + 1 - (REMOVED + 2)
    engine.push("events", [(1, 10**6)])  # it writes nothing
    assert stored(engine) == 3 * REMOVED + 5 + 1 - (REMOVED + 2)
    for n in range(2):
        engine.push("events", [(1, 10**6 + 1 + n)])
    of_others = 5 if options else 0  # room 2 is another partition, with a lock of its own
    assert stored(engine) == 3 + of_others
    engine.push("events", [(2, 7)])
    assert stored(engine) == 4
    assert len(engine.query("SELECT * FROM seen")) == 4


def test_a_changelog_has_the_removals_and_rebuilds_the_table(open_engine: Open, tmp_path: Path) -> None:
    clock = ManualClock()
    engine = open_engine(make_dedupe(changelog=True), clock=clock)
    engine.push("events", [(1, 1), (1, 2)])
    clock.advance(3600)
    changes = engine.subscribe("seen_changes")
    engine.push("events", [(1, 2)])  # due, and inserted again
    clock.advance(3599)
    engine.push("events", [(1, 3)])
    told = [(row.row_key, row.before is not None, row.after is not None) for batch in changes for row in batch]
    assert told == [("[1,1]", True, False), ("[1,2]", True, True), ("[1,3]", False, True)]
    assert verify_snapshot(engine, clock) == ["[1,2]", "[1,3]"]
    rows = [("[1,2]", json.dumps({"room": 1, "id": 2, "seen_at": "2020-01-01T00:00:00"}))]
    assert rebuild(make_dedupe(changelog=True), tmp_path / "new", {"seen": rows}) == {"seen": 1}
    with tidegate.open(make_dedupe(changelog=True), tmp_path / "new") as again:
        assert len(again.query("SELECT * FROM seen")) == 0


def verify_snapshot(engine: Engine, clock: ManualClock) -> list[str]:
    """What a new follower is told, when rows are due that were not removed: their removal will be a change."""
    clock.advance(3600)
    assert len(engine.query("SELECT * FROM seen")) == 0
    held = engine.runtime.changelogs["seen"].snapshot  # type: ignore[attr-defined]
    found: list[str] = []

    def look(txn: Transaction) -> None:
        found.extend(row.row_key for batch in held(txn) for row in batch)

    unit = engine.runtime.units["note"]
    txn = engine.runtime.begin(unit, 10**18, 1, None, clock.now(), {})
    txn.access = unit.members[0].access
    look(txn)
    return found


def test_an_app_may_begin_and_end_to_expire_rows(tmp_path: Path) -> None:
    clock = ManualClock()
    plan: list[list[str]] = []
    for after, shown in [(None, 1), ("1h", 0), (None, 1)]:
        app = App("later")
        app.table(
            "CREATE TABLE seen (id INTEGER PRIMARY KEY, seen_at TIMESTAMP)",
            expire=None if after is None else ("seen_at", after),
        )

        @app.procedure(writes=["seen"])
        def note(txn: Transaction) -> None:
            txn.upsert("seen", (1, txn.now))

        with tidegate.open(app, tmp_path / "d", clock=clock) as engine:
            if not plan:
                engine.call("note")
                clock.advance(3600)
            plan.append([str(change) for change in engine.upgraded])
            assert len(engine.query("SELECT * FROM seen")) == shown
    assert "table seen: its rows expire 1:00:00 after seen_at from now on" in plan[1]
    assert "table seen: its rows do not expire from now on" in plan[2]


def test_dates_expire_at_midnight(open_engine: Open) -> None:
    app = App("days")
    app.table("CREATE TABLE notes (id INTEGER PRIMARY KEY, day DATE)", expire=("day", "2d"))

    @app.procedure(writes=["notes"])
    def note(txn: Transaction, key: int, day: dt.date) -> bool:
        txn.insert("notes", (key, day))
        return txn.get("notes", key) is not None

    clock = ManualClock(dt.datetime(2024, 3, 10, 12))
    engine = open_engine(app, clock=clock)
    assert not engine.call("note", 1, dt.date(2024, 3, 8))  # already due
    assert engine.call("note", 1, dt.date(2024, 3, 9))
    clock.advance(12 * 3600 - 1)
    assert len(engine.query("SELECT * FROM notes")) == 1
    clock.advance(1)
    assert len(engine.query("SELECT * FROM notes")) == 0


@pytest.mark.parametrize(
    ("expire", "told"),
    [
        (("at", "1h"), "names the column 'at'"),
        (("id", "1h"), "rows expire by a TIMESTAMP or DATE column, and id is neither"),
        (("seen_at", "soon"), "'soon' is not a length of time"),
        (("seen_at", dt.timedelta(0)), "a positive duration"),
        ("seen_at", r"a column and a duration, such as \('seen_at', '1h'\)"),
    ],
)
def test_what_can_not_be_declared(expire: Any, told: str) -> None:
    app = App("wrong")
    with pytest.raises(DeclarationError, match=told):
        app.table("CREATE TABLE seen (id INTEGER PRIMARY KEY, seen_at TIMESTAMP)", expire=expire)
    assert not app.tables
