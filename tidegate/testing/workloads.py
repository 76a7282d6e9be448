"""What a crash test runs: apps, and the work done on them, the same for the same seed.

A workload is a list of steps. :class:`Push` (with a batch-id) and :class:`Call` are inputs; :class:`Feed`,
:class:`Checkpoint` and :class:`Outage` are what only the built-in workloads use.
"""

from __future__ import annotations

import datetime as dt
import importlib
import importlib.util
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import either, partition
from tidegate.errors import TidegateError
from tidegate.storage.types import ColumnType
from tidegate.streams.batch import Batch
from tidegate.streams.windows import window
from tidegate.streams.windows.declare.joins import join
from tidegate.testing.driver import Call, Push
from tidegate.txn.transaction import Transaction


@dataclass(frozen=True)
class Feed:
    """Rows for ``engine.feed``, one to a batch; the first gets batch-id ``first``."""

    stream: str
    rows: tuple[Any, ...]
    first: int


@dataclass(frozen=True)
class Checkpoint:
    """Merge; ``generation``: and keep a copy of the base."""

    generation: bool = False


@dataclass(frozen=True)
class Outage:
    """From now on (or, with ``over``, no longer) the outside world is down: procedures that call it raise."""

    over: bool = False


Step = Push | Call | Feed | Checkpoint | Outage


class World:
    """What procedures of the ward and the till depend on outside the engine. In a serial run it is always up."""

    down = False


@dataclass(frozen=True)
class Subject:
    """An app and its workload by seed."""

    name: str
    app: App
    steps: Callable[[int], list[Step]]


# ---- the built-in apps


def leaderboard_subject(recovery: str) -> Subject:
    """Votes by push and by feed, one nested transaction each, contestants leaving every 40 votes."""
    from tidegate.examples.leaderboard.app import leaderboard

    app = leaderboard(contestants=5, eliminate_every=40)
    app.recovery = recovery  # type: ignore[assignment]

    def steps(seed: int) -> list[Step]:
        chance = random.Random(seed)
        made: list[Step] = [Call("set_up")]
        votes = 0
        while votes < 150:
            count = chance.choice((1, 1, 1, 12, 25))
            rows = tuple((votes + i, chance.randrange(30), chance.randrange(1, 7)) for i in range(1, count + 1))
            if count == 1:
                made.append(Push("votes_in", rows, votes + 1))
            else:
                made.append(Feed("votes_in", rows, votes + 1))
            votes += count
            if chance.random() < 0.15:
                made.append(Checkpoint(generation=chance.random() < 0.5))
        return made

    return Subject("leaderboard", app, steps)


def ward(recovery: str = "weak", deadline_s: float = 0.2) -> App:
    """A small hospital: doctors decide about risky orders, vitals are watched, alarms are counted.

    Its procedures do everything that makes recovery hard: they wait for people, abort, fail while the outside world is
    down (their dataflow halts) or for good (dead letters), keep windows, and use the transaction's time and chance.
    """
    app = App("ward", recovery=recovery)  # type: ignore[arg-type]
    app.table(
        "CREATE TABLE meds (patient INTEGER, drug VARCHAR, PRIMARY KEY (patient, drug))",
        partition_by="patient",
    )
    app.table("CREATE TABLE asked (patient INTEGER PRIMARY KEY, n INTEGER NOT NULL)", partition_by="patient")
    app.table("CREATE TABLE beats (patient INTEGER PRIMARY KEY, n INTEGER, total BIGINT)", partition_by="patient")
    app.table("CREATE TABLE alarms_seen (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, last_at TIMESTAMP)")
    app.table("CREATE TABLE notes (token BIGINT PRIMARY KEY, alarms INTEGER, written TIMESTAMP, dice DOUBLE)")
    app.stream("orders", "patient INTEGER, drug VARCHAR NOT NULL", border=True, key="patient")
    app.stream("risky", "patient INTEGER, drug VARCHAR")
    app.stream("given", "patient INTEGER, drug VARCHAR")
    app.stream(
        "decisions",
        "patient INTEGER NOT NULL, yes BOOLEAN NOT NULL",
        border=True,
        key="patient",
        deadline_s=deadline_s,
        default={"yes": False},
    )
    app.stream("vitals", "patient INTEGER, beat INTEGER NOT NULL", border=True, key="patient")
    app.stream("alarms", "patient INTEGER, beat INTEGER, dice DOUBLE")

    @app.procedure(inputs="orders", outputs="risky", writes=[partition("meds"), partition("asked", by="patient")])
    def check(txn: Transaction, orders: Batch) -> None:
        before = txn.get("asked", txn.key)
        txn.upsert("asked", (txn.key, 1 if before is None else before.n + 1))
        for order in orders:
            if order.drug.startswith("risky"):
                txn.emit("risky", [order])
            else:
                txn.upsert("meds", order)

    @app.procedure(inputs=["risky", "decisions"], outputs="given", writes=[partition("meds")])
    def prescribe(txn: Transaction, risky: Batch, decisions: Batch) -> None:
        if not decisions[0].yes:
            txn.abort("the doctor said no")
        for order in risky:
            txn.upsert("meds", order)
            txn.emit("given", [order])

    @app.procedure(
        inputs="vitals",
        outputs="alarms",
        writes=[partition("beats")],
        windows={"recent": window("vitals", count=4, slide=2)},
    )
    def watch(txn: Transaction, vitals: Batch) -> None:
        if World.down:
            raise ConnectionError("the monitor is unreachable")
        if any(row.beat == 13 for row in vitals):
            txn.abort("a loose wire")
        before = txn.get("beats", txn.key)
        n, total = (0, 0) if before is None else (before.n, before.total)
        txn.upsert("beats", (txn.key, n + len(vitals), total + sum(row.beat for row in vitals)))
        if sum(row.beat for row in txn.window("recent").rows) > 350 or vitals[0].beat == 66:
            txn.emit("alarms", [(txn.key, vitals[0].beat, txn.random.random())])

    @app.procedure(inputs="alarms", writes=["alarms_seen"], on_failure="dead_letter")
    def escalate(txn: Transaction, alarms: Batch) -> None:
        if alarms[0].beat == 66:
            raise ValueError("nobody to call")
        before = txn.get("alarms_seen", 1)
        txn.upsert("alarms_seen", (1, 1 if before is None else before.n + 1, txn.now))

    @app.procedure(reads=["alarms_seen"], writes=["notes"])
    def note(txn: Transaction, token: int) -> int:
        seen = txn.get("alarms_seen", 1)
        count = 0 if seen is None else seen.n
        txn.insert("notes", (token, count, txn.now, txn.random.random()))
        return count

    @app.procedure(reads=[partition("meds", by="patient")])
    def drugs(txn: Transaction, patient: int, token: int) -> list[str]:
        return sorted(row.drug for row in txn.scan("meds"))

    app.nested("check", "prescribe", name="prescribing")
    return app


def ward_subject(recovery: str) -> Subject:
    def steps(seed: int) -> list[Step]:
        chance = random.Random(seed)
        made: list[Step] = []
        last = dict.fromkeys(range(1, 5), 0)
        undecided: list[tuple[int, int]] = []
        for number in range(1, 111):
            patient = chance.choice(list(last))
            kind = chance.random()
            if kind < 0.3:
                last[patient] += chance.randrange(1, 3)
                drug = chance.choice(("aspirin", "ibuprofen", f"risky {number}"))
                made.append(Push("orders", ((patient, drug), (patient, f"tea {number % 3}")), last[patient]))
                if drug.startswith("risky") and chance.random() < 0.85:
                    undecided.append((patient, last[patient]))
            elif kind < 0.65:
                beats = tuple((p, chance.choice((60, 70, 95, 120, 13, 66))) for p in chance.sample(range(1, 5), 2))
                made.append(Push("vitals", beats, number))
            elif kind < 0.8:
                made.append(chance.choice((Call("note", (number,)), Call("drugs", (patient, number)))))
            elif kind < 0.86:
                made += [Outage(), Push("vitals", ((patient, 80),), number), Outage(over=True)]
            elif kind < 0.92:
                made.append(Checkpoint(generation=chance.random() < 0.5))
            if undecided and chance.random() < 0.5:
                asked = undecided.pop(0)
                made.append(Push("decisions", ((asked[0], chance.random() < 0.7),), asked[1]))
        return made

    return Subject("ward", ward(recovery), steps)


def till(recovery: str = "weak") -> App:
    """Orders and payments, each at its own pace, joined per shop; either of them starts the procedure."""
    app = App("till", recovery=recovery)  # type: ignore[arg-type]
    app.table(
        "CREATE TABLE paid (shop INTEGER, number INTEGER, amount INTEGER, PRIMARY KEY (shop, number))",
        partition_by="shop",
    )
    app.table(
        "CREATE TABLE runs (shop INTEGER PRIMARY KEY, orders INTEGER, payments INTEGER, total BIGINT)",
        partition_by="shop",
    )
    app.table("CREATE TABLE ledger (id INTEGER PRIMARY KEY, n INTEGER NOT NULL, last_batch BIGINT)")
    for name, value in (("orders", "item INTEGER"), ("payments", "amount INTEGER")):
        app.stream(name, f"shop INTEGER, number INTEGER, {value}, t BIGINT NOT NULL", border=True, key="shop")
    app.stream("checked", "shop INTEGER, number INTEGER, item INTEGER, t BIGINT NOT NULL")
    app.stream("matched", "shop INTEGER, number INTEGER, amount INTEGER, dice DOUBLE")

    @app.procedure(inputs="orders", outputs="checked")
    def check(txn: Transaction, orders: Batch) -> None:
        txn.emit("checked", [order for order in orders if order.item != 7])

    @app.procedure(
        inputs=either("checked", "payments"),
        outputs="matched",
        writes=[partition("paid"), partition("runs")],
        windows={
            "pairs": join(
                "checked", "payments", on="number", within=6, left_time="t", right_time="t", how="left", delay=2
            )
        },
    )
    def match(txn: Transaction, checked: Batch, payments: Batch) -> None:
        if World.down:
            raise ConnectionError("the till is unreachable")
        if any(payment.amount == 13 for payment in payments):
            txn.abort("forged")
        before = txn.get("runs", txn.key)
        orders, paid = (0, 0) if before is None else before[1:3]
        for pair in txn.window("pairs").results or ():
            txn.upsert("paid", (txn.key, pair.number, pair.amount))
            txn.emit("matched", [(txn.key, pair.number, pair.amount, txn.random.random())])
        total = txn.execute("SELECT coalesce(sum(amount), 0)::BIGINT FROM paid WHERE number % 3 < 2").scalar()
        txn.upsert("runs", (txn.key, orders + len(checked), paid + len(payments), total))

    @app.procedure(inputs="matched", writes=["ledger"])
    def enter(txn: Transaction, matched: Batch) -> None:
        before = txn.get("ledger", 1)
        txn.upsert("ledger", (1, len(matched) + (0 if before is None else before.n), txn.batch_id))
        txn.execute("UPDATE ledger SET n = n + 1 WHERE id IN (SELECT id FROM ledger WHERE n % 5 = 0)")

    return app


def till_subject(recovery: str) -> Subject:
    def steps(seed: int) -> list[Step]:
        chance = random.Random(seed)
        made: list[Step] = []
        time = {"orders": 0, "payments": 0}
        for number in range(1, 111):
            stream = chance.choice(("orders", "payments"))
            time[stream] += chance.randrange(4)
            rows = tuple(
                (shop, chance.randrange(8), chance.choice((5, 7, 13, 20)), time[stream] - chance.randrange(3))
                for shop in chance.sample(range(1, 4), chance.randrange(1, 3))
            )
            push = Push(stream, rows, number)
            kind = chance.random()
            if kind < 0.06:
                made += [Outage(), push, Outage(over=True)]
            else:
                made.append(push)
            if kind > 0.92:
                made.append(Checkpoint(generation=chance.random() < 0.5))
        return made

    return Subject("till", till(recovery), steps)


def bank(recovery: str = "weak") -> App:
    """Transfers per branch, posted per account: the stream between them has a key of its own."""
    app = App("bank", recovery=recovery)  # type: ignore[arg-type]
    app.table(
        "CREATE TABLE balances (account INTEGER PRIMARY KEY, amount BIGINT NOT NULL, posted INTEGER)",
        partition_by="account",
    )
    app.table("CREATE TABLE totals (id INTEGER PRIMARY KEY, n BIGINT NOT NULL, last_batch BIGINT)")
    app.stream("transfers", "branch INTEGER, payer INTEGER, payee INTEGER, amount INTEGER", border=True, key="branch")
    app.stream("entries", "account INTEGER NOT NULL, amount INTEGER NOT NULL", key="account")
    app.stream("statements", "account INTEGER, balance BIGINT, dice DOUBLE")

    @app.procedure(inputs="transfers", outputs="entries", reads=["totals"])
    def split(txn: Transaction, transfers: Batch) -> None:
        if any(transfer.amount == 13 for transfer in transfers):
            txn.abort("forged")
        bonus = txn.count("totals")
        for transfer in transfers:
            txn.emit("entries", [(transfer.payer, -transfer.amount), (transfer.payee, transfer.amount + bonus)])

    @app.procedure(
        inputs="entries",
        outputs="statements",
        writes=[partition("balances")],
        windows={"last": window("entries", count=3, slide=1)},
    )
    def post(txn: Transaction, entries: Batch) -> None:
        if World.down and txn.key % 2:
            raise ConnectionError("the account is unreachable")
        before = txn.get("balances", txn.key)
        amount, posted = (0, 0) if before is None else before[1:3]
        recent = sum(row.amount for extent in txn.window("last").windows for row in extent.rows)
        amount += sum(entry.amount for entry in entries)
        if amount < -120:
            txn.abort("overdrawn")
        txn.upsert("balances", (txn.key, amount, posted + len(entries)))
        if recent % 3:
            txn.emit("statements", [(txn.key, amount + recent, txn.random.random())])

    @app.procedure(inputs="statements", reads=[partition("balances")], writes=["totals"])
    def total(txn: Transaction, statements: Batch) -> None:
        before, balance = txn.get("totals", txn.key % 2), txn.get("balances", txn.key)
        n = len(statements) + (0 if before is None else before.n) + (0 if balance is None else balance.posted)
        txn.upsert("totals", (txn.key % 2, n, txn.batch_id))

    return app


def bank_subject(recovery: str) -> Subject:
    def steps(seed: int) -> list[Step]:
        chance = random.Random(seed)
        made: list[Step] = []
        for number in range(1, 81):
            rows = tuple(
                (branch, chance.randrange(6), chance.randrange(6), chance.choice((5, 7, 13, 20, 31)))
                for branch in chance.sample(range(1, 4), chance.randrange(1, 3))
                for _ in range(chance.randrange(1, 3))
            )
            push = Push("transfers", rows, number)
            kind = chance.random()
            made += [Outage(), push, Outage(over=True)] if kind < 0.08 else [push]
            if kind > 0.92:
                made.append(Checkpoint(generation=chance.random() < 0.5))
        return made

    return Subject("bank", bank(recovery), steps)


def desk(recovery: str = "weak") -> App:
    """Shipments that are picked up in time, or not: timers, some cancelled, some that set the next one, and a schedule."""
    app = App("desk", recovery=recovery)  # type: ignore[arg-type]
    app.table(
        "CREATE TABLE shipments (id BIGINT PRIMARY KEY, timer VARCHAR, state VARCHAR NOT NULL, reminders BIGINT NOT NULL)"
    )
    app.table("CREATE TABLE ticks (due TIMESTAMP PRIMARY KEY, waiting BIGINT NOT NULL)")
    app.stream("booked", "id BIGINT NOT NULL, wait_ms BIGINT NOT NULL", border=True)
    app.stream("picked_up", "id BIGINT NOT NULL", border=True)
    app.stream("unclaimed", "id BIGINT NOT NULL, reminder BIGINT NOT NULL", border=True)
    app.stream("alerts", "id BIGINT NOT NULL, reminder BIGINT NOT NULL")

    @app.procedure(inputs="booked", writes=["shipments"], timers="unclaimed")
    def book(txn: Transaction, booked: Batch) -> None:
        for one in booked:
            timer = txn.after(dt.timedelta(milliseconds=one.wait_ms), "unclaimed", id=one.id, reminder=1)
            txn.insert("shipments", (one.id, timer, "waiting", 0))
        if any(one.id % 11 == 0 for one in booked):
            txn.abort("no such address")

    @app.procedure(inputs="picked_up", writes=["shipments"])
    def pick_up(txn: Transaction, picked_up: Batch) -> None:
        for one in picked_up:
            shipment = txn.get("shipments", one.id)
            if shipment is not None:
                txn.cancel(shipment.timer)
                txn.update("shipments", one.id, state="picked up")

    @app.procedure(inputs="unclaimed", outputs="alerts", writes=["shipments"], timers="unclaimed")
    def remind(txn: Transaction, unclaimed: Batch) -> None:
        for one in unclaimed:
            shipment = txn.get("shipments", one.id)
            if shipment.state == "picked up":
                continue
            timer = shipment.timer
            if one.reminder < 3:
                timer = txn.after("3ms", "unclaimed", id=one.id, reminder=one.reminder + 1)
            txn.update("shipments", one.id, timer=timer, state="overdue", reminders=shipment.reminders + 1)
            txn.emit("alerts", [(one.id, one.reminder)])

    @app.procedure(every="50ms", reads=["shipments"], writes=["ticks"])
    def look(txn: Transaction, ticks: Batch) -> None:
        for tick in ticks:
            txn.insert("ticks", (tick.due, txn.count("shipments", state="waiting")))

    return app


def desk_subject(recovery: str) -> Subject:
    def steps(seed: int) -> list[Step]:
        chance = random.Random(seed)
        made: list[Step] = []
        for number in range(1, 61):
            made.append(Push("booked", ((number, chance.choice((0, 2, 10, 40))),), number))
            if chance.random() < 0.4:
                made.append(Push("picked_up", ((chance.randrange(1, number + 1),),), number))
            if chance.random() < 0.08:
                made.append(Checkpoint(generation=chance.random() < 0.5))
        return made

    return Subject("desk", desk(recovery), steps)


BUILT_IN = {
    "leaderboard": leaderboard_subject, "ward": ward_subject, "till": till_subject, "bank": bank_subject,
    "desk": desk_subject,
}  # fmt: skip


# ---- apps of others


def load_subject(address: str) -> Subject:
    """The app at ``module:app`` or ``file.py:app``. Its workload is its module's ``crash_workload(seed)``
    (an iterable of Push, with batch-ids, and Call) or else rows made from the schemas of its border streams.
    """
    where, _, name = address.partition(":")
    module = _module(where)
    app = getattr(module, name or "app", None)
    if callable(app) and not isinstance(app, App):
        app = app()
    if not isinstance(app, App):
        raise TidegateError(f"{address} is not a tidegate App; name one as module:app or file.py:app")
    theirs = getattr(module, "crash_workload", None)
    loaded = app

    def steps(seed: int) -> list[Step]:
        inputs: Iterable[Step] = theirs(seed) if theirs is not None else generated(loaded, seed)
        chance = random.Random(seed)
        made: list[Step] = []
        for item in inputs:
            if isinstance(item, Push) and item.batch_id is None:
                raise TidegateError(f"crash_workload: {item} needs a batch-id, otherwise a loss can't be detected")
            made.append(item)
            if chance.random() < 0.05:
                made.append(Checkpoint(generation=chance.random() < 0.5))
        return made

    return Subject(app.name, app, steps)


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        return importlib.import_module(where)
    path = Path(where).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.exists():
        raise TidegateError(f"{where} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def generated(app: App, seed: int, count: int = 100) -> Iterator[Push]:
    """Random rows for every border stream that nothing waits on; awaited ones run into their deadline."""
    chance = random.Random(seed)
    streams = [s for s in app.streams.values() if s.border and not (s.awaited and s.deadline_s is not None)]
    if not streams:
        raise TidegateError(f"app {app.name} has no border stream to push to; offer crash_workload(seed) beside it")
    for number in range(1, count + 1):
        stream = chance.choice(streams)
        rows = tuple(
            tuple(_value(column.type, chance) for column in stream.relation.columns)
            for _ in range(chance.randrange(1, 4))
        )
        yield Push(stream.name, rows, number)


def _value(kind: ColumnType, chance: random.Random) -> Any:
    """A small value of this type: small, so that keys repeat."""
    number = chance.randrange(20)
    match kind.family:
        case "integer":
            return number
        case "float":
            return number / 4
        case "decimal":
            return Decimal(number)
        case "boolean":
            return number < 10
        case "timestamp":
            return dt.datetime(2026, 1, 1) + dt.timedelta(minutes=number)
        case "date":
            return dt.date(2026, 1, 1) + dt.timedelta(days=number)
        case "time":
            return dt.time(number)
        case "interval":
            return dt.timedelta(minutes=number)
        case "blob":
            return bytes([number])
        case "uuid":
            return UUID(int=number)
        case "json":
            return str(number)
        case "list":
            return () if kind.element is None else tuple(_value(kind.element, chance) for _ in range(number % 3))
    return f"v{number}"
