"""A replay without the scheduler, where the log allows it, ends where one through the scheduler ends."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from recovering import frames, let_go

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate.engine.checkpoint import saved_state
from tidegate.errors import Aborted, FeedHalted, ProcedureFailed
from tidegate.storage.cold.table import ColdTable
from tidegate.testing import History
from tidegate.testing.history import outcome_of
from tidegate.testing.workloads import World
from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import Checkpoint, Executed, encode
from tidegate.txn.scheduler import Scheduler

Kill = Callable[[Engine], None]
MODES = ("weak", "strong", "effects")


@cache
def mill(recovery: Any) -> App:
    """orders → pick → (picked → bill → billed, rare → note, both → check): four units that all may or may not run."""
    app = App("mill", recovery=recovery)
    app.table("CREATE TABLE stock (item INTEGER PRIMARY KEY, n BIGINT NOT NULL)")
    app.table("CREATE TABLE bills (id INTEGER PRIMARY KEY, sum BIGINT, dice DOUBLE)")
    app.table("CREATE TABLE notes (id INTEGER PRIMARY KEY, noted TIMESTAMP)")
    app.stream("orders", "id INTEGER NOT NULL, item INTEGER NOT NULL", border=True)
    app.stream("pings", "who VARCHAR NOT NULL, id INTEGER NOT NULL", border=True, key="who")
    app.stream("picked", "id INTEGER, item INTEGER")
    app.stream("rare", "id INTEGER")
    app.stream("billed", "id INTEGER, sum BIGINT")

    @app.procedure(inputs="orders", outputs=["picked", "rare"], writes=["stock"], prefetch={"stock": "item"})
    def pick(txn: Transaction, orders: Batch) -> None:
        for order in orders:
            if World.down:
                raise ConnectionError("the mill stands still")
            if order.id % 13 == 12:
                txn.abort("thirteen")
            before = txn.get("stock", order.item)
            txn.upsert("stock", (order.item, 1 if before is None else before.n + 1))
            if order.id % 4:
                txn.emit("picked", [order])
            if order.id % 3 == 0:
                txn.emit("rare", id=order.id)

    @app.procedure(
        inputs="picked",
        outputs="billed",
        reads=["stock"],
        writes=["bills"],
        windows={"recent": window("picked", count=5, slide=2)},
        on_failure="dead_letter",
    )
    def bill(txn: Transaction, picked: Batch) -> None:
        if picked[0].id % 11 == 10:
            raise ValueError("the pen is broken")
        if picked[0].id % 17 == 5:
            txn.abort("not worth a bill")
        held = txn.get("stock", picked[0].item).n + sum(row.id for row in txn.window("recent").rows)
        txn.insert("bills", (picked[0].id, held, txn.random.random()))
        txn.emit("billed", id=picked[0].id, sum=held)

    @app.procedure(inputs="rare", writes=["notes"])
    def note(txn: Transaction, rare: Batch) -> None:
        txn.insert("notes", (rare[0].id, txn.now))

    @app.procedure(inputs=["billed", "rare"], writes=["notes"])
    def check(txn: Transaction, billed: Batch, rare: Batch) -> None:
        txn.insert("notes", (1_000_000 + billed[0].id, txn.now))

    @app.procedure(inputs="pings", writes=["stock"])
    def ping(txn: Transaction, pings: Batch) -> None:
        txn.upsert("stock", (pings[0].id, -len(pings)))

    @app.procedure(writes=["stock"])
    def clear(txn: Transaction, item: int) -> int:
        if item == 13:
            txn.abort("never")
        if item == 14:
            raise RuntimeError("the shelf is stuck")
        before = txn.get("stock", item)
        txn.upsert("stock", (item, 0))
        return 0 if before is None else int(before.n)

    return app


def work(engine: Engine, chance: random.Random, number: int, run: Callable[[], None]) -> int:
    """One random thing to do, from order ``number`` on; returns the number to go on with."""
    match chance.choice(("push", "push", "push", "many", "feed", "feed", "ping", "call", "outage", "ack", "subscribe")):
        case "push":
            engine.push("orders", [(number, number % 7)], chance.choice((None, None, number + 10_000)))
            number += 1
        case "many":
            engine.push("orders", [(number + i, number % 7) for i in range(3)], source="s", offset=number)
            number += 3
        case "feed":
            count = chance.randrange(1, 12)
            with suppress(FeedHalted):
                engine.feed("orders", [(number + i, i % 7) for i in range(count)], size=chance.choice((1, 1, 3)))
            number += count
        case "ping":
            engine.push("pings", [(who, number) for who in chance.choices("abc", k=3)])
        case "call":
            engine.submit("clear", chance.randrange(15))
        case "outage":
            World.down = True
            with suppress(FeedHalted):
                engine.feed("orders", [(number, 1), (number + 1, 2)])
            run()
            World.down = False
            number += 2
            if chance.random() < 0.7:
                engine.resume()
        case "ack":
            subscription = engine.subscribe_durably("billed", "bookkeeper")
            subscription.ack(subscription.take(3))
        case "subscribe":
            engine.subscribe_durably("rare", f"collector {chance.randrange(2)}")
    if chance.random() < 0.7:
        run()
    return number


def run_a_while(path: Path, mode: Any, executor: str, seed: int, kill: Kill, steps: int = 30) -> None:
    """Random work, commits of different batches in any order the scheduler allows, then a crash."""
    chance = random.Random(seed)
    settings: Any = {"executor": executor, "merge_every_s": 3600.0, "sync": "off"}
    engine = tidegate.open(mill(mode), path, **settings)

    def run() -> None:
        while executor == "manual" and (ready := engine.scheduler.ready()):
            engine.executor.run(engine.scheduler.take(chance.choice(ready)))
        engine.run_until_idle()

    engine.subscribe_durably("billed", "bookkeeper")
    number = 1
    for _ in range(steps):
        number = work(engine, chance, number, run)
    kill(engine)


@contextmanager
def through_the_scheduler() -> Iterator[None]:
    """Nothing is ever alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scheduler, "idle", property(lambda self: False))
        yield


def state_after_replay(path: Path, mode: Any, scheduled: bool) -> dict[str, Any]:
    """Everything a copy of the directory comes to. What the log does not finish runs after the replay."""
    copy = path.with_name(f"{path.name} {'scheduled' if scheduled else 'inline'}")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("lock"))
    if scheduled:
        with through_the_scheduler():
            engine = tidegate.open(mill(mode), copy, merge_every_s=3600.0, sync="off")
    else:
        engine = tidegate.open(mill(mode), copy, merge_every_s=3600.0, sync="off")
    outcome = outcome_of(engine.runtime, engine.journal, History())
    state = {**saved_state(engine, 0), **vars(outcome)}
    del state["at"]  # when it was saved
    state["windows"] = dict(sorted(outcome.windows.items()))
    state["commits"] = dict(sorted(engine.journal.commits.items()))
    state["replayed"] = engine.recovery.replayed
    state["unlogged"] = engine.recovery.unlogged
    let_go(engine)
    shutil.rmtree(copy)
    return state


@pytest.fixture(autouse=True)
def _world() -> Iterator[None]:
    World.down = False
    yield
    World.down = False


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("executor", ["serial", "manual", "threads"])
def test_both_ways_end_in_the_same_state(mode: Any, executor: str, tmp_path: Path, killed: Kill) -> None:
    for seed in range(3):
        path = tmp_path / str(seed)
        run_a_while(path, mode, executor, seed, killed)
        inline, scheduled = (state_after_replay(path, mode, scheduled) for scheduled in (False, True))
        assert inline == scheduled, f"seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("block", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_both_ways_end_in_the_same_state_many(mode: Any, block: int, tmp_path: Path, killed: Kill) -> None:
    for seed in range(100 + 20 * block, 120 + 20 * block):
        path = tmp_path / str(seed)
        run_a_while(path, mode, ("serial", "manual", "threads")[seed % 3], seed, killed)
        inline, scheduled = (state_after_replay(path, mode, scheduled) for scheduled in (False, True))
        assert inline == scheduled, f"seed {seed}"
        shutil.rmtree(path)


@pytest.mark.parametrize("mode", MODES)
def test_wherever_the_log_ends(mode: Any, tmp_path: Path, killed: Kill) -> None:
    """A log cut between the units of a batch: the rest of the batch runs once, after the replay, either way."""
    path = tmp_path / "whole"
    run_a_while(path, mode, "serial", 3, killed, steps=14)
    (log,) = (path / "log").iterdir()
    ends = [entry.end for entry in LogReader(OsFiles(path / "log"))]
    for end in ends[::-7]:
        os.truncate(log, end)
        inline, scheduled = (state_after_replay(path, mode, scheduled) for scheduled in (False, True))
        assert inline == scheduled, f"cut at {end}"


@pytest.mark.parametrize("mode", MODES)
def test_work_that_a_checkpoint_found_unfinished_comes_before_the_first_record(
    mode: Any, tmp_path: Path, killed: Kill
) -> None:
    """In mode weak the log says how the second unit failed, and only the base knows of the first."""
    engine = tidegate.open(mill(mode), tmp_path, executor="manual", merge_every_s=3600.0)
    for number in (1, 10, 21):
        engine.push("orders", [(number, 1)])
    engine.checkpoint()
    engine.run_until_idle()
    before = facts(engine)
    assert [letter["position"] for letter in before["dead_letters"]] == ["2.1", "3.1"]
    killed(engine)
    with tidegate.open(mill(mode), tmp_path) as engine:
        assert facts(engine) == before


# ---- compared with the run before the crash


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sequence numbers of batches and calls that went through the scheduler."""
    found: list[int] = []
    for name in ("admit", "admit_call"):
        real = getattr(Scheduler, name)

        def counting(self: Scheduler, sequence: int, *given: Any, real: Any = real) -> Any:
            found.append(sequence)
            return real(self, sequence, *given)

        monkeypatch.setattr(Scheduler, name, counting)
    return found


def facts(engine: Engine) -> dict[str, Any]:
    """What must be the same before a crash and after it."""
    state = saved_state(engine, 0)
    kept = ("offsets", "subscriptions", "sequence", "borders", "aborts", "dead_letters", "answers", "unfinished")
    return {**vars(outcome_of(engine.runtime, engine.journal, History())), **{name: state[name] for name in kept}}


@pytest.mark.parametrize("mode", MODES)
def test_it_is_as_it_was_and_the_scheduler_was_not_asked(
    mode: Any, tmp_path: Path, killed: Kill, admitted: list[int]
) -> None:
    engine = tidegate.open(mill(mode), tmp_path, merge_every_s=3600.0)
    bookkeeper = engine.subscribe_durably("billed", "bookkeeper")
    for number in range(1, 31):
        engine.push("orders", [(number, number % 7)], number, source="s", offset=number)
    bookkeeper.ack(bookkeeper.take(4))
    engine.subscribe_durably("rare", "collector")
    engine.feed("orders", [(number, number % 7) for number in range(31, 100)])
    engine.push("pings", [("a", 1), ("b", 2), ("a", 3)])
    assert engine.call("clear", 3) > 0
    with pytest.raises(Aborted):
        engine.call("clear", 13)
    before = facts(engine)
    dead, aborts = len(before["dead_letters"]), len(before["aborts"])
    assert dead > 5
    assert aborts > 8
    assert len(bookkeeper) > 20
    killed(engine)
    admitted.clear()
    engine = tidegate.open(mill(mode), tmp_path, merge_every_s=3600.0)
    assert facts(engine) == before
    assert set(engine.recovery.replayed) == {"batches", "calls", "executions"}
    assert engine.recovery.replayed["batches"] == 30 + 69 + 2
    letters = {sequence_of_text(letter["position"]) for letter in before["dead_letters"]}
    assert set(admitted) == (letters if mode == "weak" else set()), "only what must not run before its record"
    assert engine.push("orders", [(100, 1)]).batch_ids == [100]
    assert engine.sequence == before["sequence"] + 1
    assert [b.id for b in engine.subscribe_durably("billed", "bookkeeper")] == [
        i for _, i in bookkeeper.waiting if i < 100
    ] + [b.id for b in bookkeeper if b.id >= 100]
    engine.close()


def sequence_of_text(at: str) -> int:
    return int(at.split(".")[0])


@pytest.mark.parametrize("mode", ["strong", "effects"])
def test_a_failure_that_halts_is_left_to_the_scheduler(
    mode: Any, tmp_path: Path, killed: Kill, admitted: list[int]
) -> None:
    engine = tidegate.open(mill(mode), tmp_path, merge_every_s=3600.0)
    engine.push("orders", [(1, 1)])
    with pytest.raises(ProcedureFailed):
        engine.call("clear", 14)
    World.down = True
    engine.push("orders", [(2, 1)])
    engine.push("orders", [(3, 1)])
    World.down = False
    engine.push("pings", [("a", 1)])
    before = facts(engine)
    killed(engine)
    admitted.clear()
    engine = tidegate.open(mill(mode), tmp_path, merge_every_s=3600.0)
    assert facts(engine) == before
    assert admitted == [2, 3, 4, 5], "the failed call, the halt, and what came behind it"
    engine.resume()
    engine.push("orders", [(5, 1)])
    before = facts(engine)
    killed(engine)
    admitted.clear()
    engine = tidegate.open(mill(mode), tmp_path, merge_every_s=3600.0)
    assert facts(engine) == before
    assert admitted == [2, 3, 4, 5], "and not what came after it went on"
    engine.close()


def test_nothing_runs_that_the_log_does_not_say(tmp_path: Path, killed: Kill) -> None:
    """Mode strong: a unit whose record did not reach the disk runs after the replay, under the log, once."""
    engine = tidegate.open(mill("strong"), tmp_path, merge_every_s=3600.0)
    engine.push("orders", [(1, 1)])
    engine.push("orders", [(3, 1)])  # pick, bill, note and check
    before = facts(engine)
    killed(engine)
    (log,) = (tmp_path / "log").iterdir()
    ends = {e.record.position: e.end for e in LogReader(OsFiles(tmp_path / "log")) if e.kind is Executed}  # type: ignore[union-attr]
    assert len(ends) == 2 + 4
    for missing in (1, 2, 3):
        path = tmp_path.with_name(f"{tmp_path.name}-{missing}")
        shutil.copytree(tmp_path, path, ignore=shutil.ignore_patterns("lock"))
        os.truncate(path / "log" / log.name, sorted(ends.values())[-missing - 1])
        engine = tidegate.open(mill("strong"), path, merge_every_s=3600.0)
        assert engine.recovery.replayed["executions"] == 6 - missing
        assert facts(engine) == before
        killed(engine)
        logged = [e.record.position for e in LogReader(OsFiles(path / "log")) if e.kind is Executed]  # type: ignore[union-attr]
        assert sorted(logged) == sorted(ends), "each of them once"


def test_rows_named_by_a_chunk_are_fetched_together(
    tmp_path: Path, killed: Kill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when it was fed: a table that does not fit in memory is not read row by row."""
    settings: Any = {"merge_every_s": 3600.0, "cached_rows": 10}
    engine = tidegate.open(mill("weak"), tmp_path, **settings)
    engine.feed("orders", [(number * 13, number) for number in range(200)])
    engine.checkpoint()
    engine.feed("orders", [((200 + number) * 13, number) for number in range(200)])
    killed(engine)
    fetches: list[int] = []
    get_all = ColdTable.get_all
    monkeypatch.setattr(ColdTable, "get_all", lambda self, keys: fetches.append(len(keys)) or get_all(self, keys))
    engine = tidegate.open(mill("weak"), tmp_path, **settings)
    assert engine.recovery.replayed["batches"] == 200
    assert max(fetches) == 200
    assert engine.query("SELECT sum(n) FROM stock").scalar() == 400
    engine.close()


# ---- the log


def test_records_are_those_of_the_entries(tmp_path: Path, killed: Kill) -> None:
    run_a_while(tmp_path, "effects", "serial", 1, killed)
    files = OsFiles(tmp_path / "log")
    entries = [entry for entry in LogReader(files) if entry.kind is not Checkpoint]
    chains = {int(n.removesuffix(".log")) + f.end: f.crc for n in files.names() for f in frames(files.read(n))}
    for place in (0, 1, len(entries) // 2, len(entries) - 1):
        start = entries[place].lsn
        found = LogReader(files, start).records(chains[start])
        assert [encode(r) for r in found] == [encode(e.record) for e in entries[place:]]
    assert all(type(entry.record) is entry.kind for entry in entries)
