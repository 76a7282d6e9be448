"""The transactional streaming suite and YCSB-T: apps, events, and the expected result by plain serial Python.

Grep&Sum, Streaming Ledger, Online Bidding and Toll Processing are the applications that the articles on TStream (Zhang et
al.) and MorphStream measure; transfers are YCSB-T as the Python system Styx reports it. Published knobs: how skewed keys are
(Zipf), how many rows a transaction touches, how many transactions touch more than one partition, how many are aborted.

A transaction within one partition arrives on a keyed stream and locks its partition; one that spans several locks the
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from tidegate import App, Batch, Transaction, partition

Event = tuple[str, tuple[Any, ...]]  # stream, row
State = dict[str, Any]


@dataclass(frozen=True)
class Parameters:
    """``skew``: Zipf exponent of the keys; ``multi_partition``, ``aborts``: share of the transactions."""

    events: int = 20_000
    keys: int = 10_000
    skew: float = 0.6
    length: int = 10
    multi_partition: float = 0.25
    aborts: float = 0.01
    partitions: int = 8
    seed: int = 1


@dataclass(frozen=True)
class Workload:
    """An app with its tables loaded by ``load``, events in order, and the expected result.

    ``state``: rows by table, and by stream what was emitted, as (key, row): in order for each key. ``aborted``:
    transactions that must be aborted.
    """

    app: App
    load: Sequence[tuple[Any, ...]]  # arguments of one call of the procedure ``load`` each
    events: Sequence[Event]
    state: State
    aborted: int
    outputs: tuple[str, ...] = ()


class Keys:
    """Zipf-distributed keys, drawn ahead; those of one partition leave the same remainder."""

    def __init__(self, parameters: Parameters) -> None:
        weights = 1.0 / np.arange(1, parameters.keys + 1) ** parameters.skew
        places = np.cumsum(weights / weights.sum())
        drawn = np.random.default_rng(parameters.seed).random(64 * parameters.events)
        self._drawn: Iterator[int] = iter(np.minimum(np.searchsorted(places, drawn), parameters.keys - 1).tolist())
        self._parameters = parameters
        self.dice = Random(parameters.seed)

    def some(self, count: int) -> tuple[int, list[int]]:
        """``count`` different keys, and their partition; -1 when they are in several."""
        partitions = self._parameters.partitions
        first = next(self._drawn)
        spread = count > 1 and self.dice.random() < self._parameters.multi_partition
        keys = {first: None}
        while len(keys) < count:
            key = next(self._drawn)
            if not spread:
                key += first % partitions - key % partitions
            keys.setdefault(key if 0 <= key < self._parameters.keys else first, None)
        chosen = list(keys)
        return first % partitions if len({key % partitions for key in chosen}) == 1 else -1, chosen


Body = Callable[[Transaction, Any], Any]


def declare(app: App, name: str, columns: str, tables: Sequence[str], body: Body, emits: str | None = None) -> None:
    """The procedure ``body(txn, event)`` twice: on one partition of ``tables``, and on all of them.

    ``emits``: the columns of its output; ``body`` returns the row.
    """
    for place in ("here", "across"):
        stream = app.stream(
            f"{name}_{place}", f"part INTEGER NOT NULL, {columns}", border=True, key="part" if place == "here" else None
        )
        output = None if emits is None else app.stream(f"{name}_{place}_out", emits)
        declared = [partition(table) for table in tables] if place == "here" else list(tables)
        function = _each(body, output)
        function.__name__ = f"run_{name}_{place}"
        app.procedure(inputs=stream, outputs=() if output is None else output, writes=declared)(function)


def _each(body: Body, output: str | None) -> Callable[[Transaction, Batch], None]:
    def run(txn: Transaction, batch: Batch) -> None:
        for event in batch:
            row = body(txn, event)
            if output is not None and row is not None:
                txn.emit(output, [row])

    return run


def sent(name: str, part: int, *values: Any) -> Event:
    return (f"{name}_here" if part >= 0 else f"{name}_across"), (max(part, 0), *values)


def partitioned(app: App, parameters: Parameters, **tables: tuple[int, ...]) -> list[tuple[Any, ...]]:
    """Tables of ``keys`` rows, each of them (part, id, and BIGINT columns that begin with the given values)."""
    for name, values in tables.items():
        columns = ", ".join(f"c{i} BIGINT NOT NULL" for i in range(len(values)))
        app.table(
            f"CREATE TABLE {name} (part INTEGER, id INTEGER, {columns}, PRIMARY KEY (part, id))", partition_by="part"
        )

    def load(txn: Transaction, table: str, first: int, last: int) -> None:
        for key in range(first, last):
            txn.insert(table, (key % parameters.partitions, key, *tables[table]))

    app.procedure(writes=list(tables))(load)
    step = 10_000
    return [
        (name, first, min(first + step, parameters.keys))
        for name in tables
        for first in range(0, parameters.keys, step)
    ]


def rows_of(parameters: Parameters, table: dict[int, Any]) -> list[tuple[Any, ...]]:
    """A table of the oracle as the engine stores it, in key order."""
    found = [(key % parameters.partitions, key, *np.atleast_1d(value).tolist()) for key, value in table.items()]
    return sorted(found)


def by_key(emitted: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """What was emitted, sorted by key, and in emission order for each key: the order between keys is unspecified."""
    return sorted(emitted, key=lambda pair: pair[0])


# ---- Grep&Sum


def grep_and_sum(parameters: Parameters) -> Workload:
    """Half of the events read ``length`` rows and emit their sum, half add to all of them. Aborted ones do so halfway."""
    app = App("grep_and_sum")
    load = partitioned(app, parameters, records=(100,))
    partitions = parameters.partitions

    def touch(txn: Transaction, event: Any) -> Any:
        if not event.add:
            return (sum(txn.get("records", (key % partitions, key)).c0 for key in event.keys),)
        for place, key in enumerate(event.keys):
            if event.bad and place == len(event.keys) // 2:
                txn.abort("no such record")
            at = (key % partitions, key)
            txn.update("records", at, c0=txn.get("records", at).c0 + event.add)
        return None

    columns = "keys INTEGER[] NOT NULL, add BIGINT NOT NULL, bad BOOLEAN NOT NULL"
    declare(app, "touch", columns, ["records"], touch, "total BIGINT")

    records = dict.fromkeys(range(parameters.keys), 100)
    keys = Keys(parameters)
    events: list[Event] = []
    sums: State = {"touch_here_out": [], "touch_across_out": []}
    aborted = 0
    for number in range(parameters.events):
        part, chosen = keys.some(parameters.length)
        add = number % 2 and 1 + number % 7
        bad = bool(add) and keys.dice.random() < 2 * parameters.aborts
        stream, row = sent("touch", part, chosen, add, bad)
        events.append((stream, row))
        if not add:
            sums[f"{stream}_out"].append((max(part, 0), (sum(records[key] for key in chosen),)))
        elif bad:
            aborted += 1
        else:
            for key in chosen:
                records[key] += add
    state = {"records": rows_of(parameters, records), **{name: by_key(rows) for name, rows in sums.items()}}
    return Workload(app, load, events, state, aborted, tuple(sums))


# ---- Streaming Ledger


def streaming_ledger(parameters: Parameters) -> Workload:
    """Deposits to an account and an asset; transfers between two of each, aborted when there is not enough."""
    app = App("streaming_ledger")
    load = partitioned(app, parameters, accounts=(1_000,), assets=(1_000,))
    partitions = parameters.partitions

    def deposit(txn: Transaction, event: Any) -> None:
        for table, key in (("accounts", event.account), ("assets", event.asset)):
            at = (key % partitions, key)
            txn.update(table, at, c0=txn.get(table, at).c0 + event.amount)

    def transfer(txn: Transaction, event: Any) -> None:
        for table, source, target in (("accounts", event.payer, event.payee), ("assets", event.giver, event.taker)):
            source, target = (source % partitions, source), (target % partitions, target)
            left = txn.get(table, source).c0 - event.amount
            if left < 0:
                txn.abort("not enough")
            txn.update(table, source, c0=left)
            txn.update(table, target, c0=txn.get(table, target).c0 + event.amount)

    both = ["accounts", "assets"]
    declare(app, "deposit", "account INTEGER NOT NULL, asset INTEGER NOT NULL, amount BIGINT NOT NULL", both, deposit)
    four = "payer INTEGER NOT NULL, payee INTEGER NOT NULL, giver INTEGER NOT NULL, taker INTEGER NOT NULL"
    declare(app, "transfer", f"{four}, amount BIGINT NOT NULL", both, transfer)

    accounts, assets = dict.fromkeys(range(parameters.keys), 1_000), dict.fromkeys(range(parameters.keys), 1_000)
    keys = Keys(parameters)
    events: list[Event] = []
    aborted = 0
    for number in range(parameters.events):
        amount = 1 + number % 50
        if number % 2:
            part, (payer, payee, giver, taker) = keys.some(4)
            if keys.dice.random() < 2 * parameters.aborts:
                amount = 1_000_000
            events.append(sent("transfer", part, payer, payee, giver, taker, amount))
            if accounts[payer] < amount or assets[giver] < amount:
                aborted += 1
                continue
            accounts[payer] -= amount
            accounts[payee] += amount
            assets[giver] -= amount
            assets[taker] += amount
        else:
            part, (account, asset) = keys.some(2)
            events.append(sent("deposit", part, account, asset, amount))
            accounts[account] += amount
            assets[asset] += amount
    state = {"accounts": rows_of(parameters, accounts), "assets": rows_of(parameters, assets)}
    return Workload(app, load, events, state, aborted)


# ---- Online Bidding


def online_bidding(parameters: Parameters) -> Workload:
    """For every six bids on an item, one change of 2 × ``length`` prices and one top-up of as many quantities.

    A bid below the price, or for more than is available, is aborted.
    """
    app = App("online_bidding")
    load = partitioned(app, parameters, items=(100, 1_000))  # price, quantity
    partitions = parameters.partitions

    def bid(txn: Transaction, event: Any) -> None:
        at = (event.part, event.item)
        item = txn.get("items", at)
        if event.price < item.c0 or event.quantity > item.c1:
            txn.abort("bid refused")
        txn.update("items", at, c1=item.c1 - event.quantity)

    def alter(txn: Transaction, event: Any) -> None:
        for item in event.items:
            txn.update("items", (item % partitions, item), c0=event.price)

    def top(txn: Transaction, event: Any) -> None:
        for item in event.items:
            at = (item % partitions, item)
            txn.update("items", at, c1=txn.get("items", at).c1 + event.quantity)

    tables = ["items"]
    declare(app, "bid", "item INTEGER NOT NULL, price BIGINT NOT NULL, quantity BIGINT NOT NULL", tables, bid)
    declare(app, "alter_prices", "items INTEGER[] NOT NULL, price BIGINT NOT NULL", tables, alter)
    declare(app, "top", "items INTEGER[] NOT NULL, quantity BIGINT NOT NULL", tables, top)

    items = {key: [100, 1_000] for key in range(parameters.keys)}
    keys = Keys(parameters)
    events: list[Event] = []
    aborted = 0
    for number in range(parameters.events):
        kind = number % 8
        part, chosen = keys.some(1 if kind < 6 else 2 * parameters.length)
        if kind == 6:
            events.append(sent("alter_prices", part, chosen, 50 + number % 101))
            for item in chosen:
                items[item][0] = 50 + number % 101
        elif kind == 7:
            events.append(sent("top", part, chosen, 5))
            for item in chosen:
                items[item][1] += 5
        else:
            price = 10 if keys.dice.random() < 8 / 6 * parameters.aborts else 151
            events.append(sent("bid", part, chosen[0], price, 1 + number % 3))
            if price < items[chosen[0]][0] or 1 + number % 3 > items[chosen[0]][1]:
                aborted += 1
            else:
                items[chosen[0]][1] -= 1 + number % 3
    return Workload(app, load, events, {"items": rows_of(parameters, items)}, aborted)


# ---- Toll Processing


def toll_processing(parameters: Parameters) -> Workload:
    """Linear Road reports: a nested transaction keeps a segment's mean speed, counts its vehicles, and charges a toll.

    A segment is a partition, so no transaction spans several; a report with an impossible speed is aborted.
    """
    app = App("toll_processing")
    app.table("CREATE TABLE speeds (segment INTEGER PRIMARY KEY, total BIGINT, reports BIGINT)", partition_by="segment")
    app.table("CREATE TABLE counts (segment INTEGER PRIMARY KEY, vehicles BIGINT)", partition_by="segment")
    app.table(
        "CREATE TABLE seen (segment INTEGER, vehicle INTEGER, PRIMARY KEY (segment, vehicle))", partition_by="segment"
    )
    columns = "segment INTEGER NOT NULL, vehicle INTEGER NOT NULL, speed INTEGER NOT NULL"
    app.stream("reports", columns, border=True, key="segment")
    app.stream("measured", columns)
    app.stream("counted", columns)
    app.stream("tolls", "segment INTEGER, vehicle INTEGER, toll BIGINT")

    @app.procedure(inputs="reports", outputs="measured", writes=[partition("speeds")])
    def road_speed(txn: Transaction, reports: Batch) -> None:
        for report in reports:
            if report.speed > 200:
                txn.abort("impossible speed")
            before = txn.get("speeds", report.segment)
            total, number = (0, 0) if before is None else before[1:]
            txn.upsert("speeds", (report.segment, total + report.speed, number + 1))
        txn.emit("measured", list(reports))

    @app.procedure(inputs="measured", outputs="counted", writes=[partition("counts"), partition("seen")])
    def vehicle_count(txn: Transaction, measured: Batch) -> None:
        for report in measured:
            if txn.get("seen", (report.segment, report.vehicle)) is None:
                txn.insert("seen", (report.segment, report.vehicle))
                before = txn.get("counts", report.segment)
                txn.upsert("counts", (report.segment, 1 if before is None else before.vehicles + 1))
        txn.emit("counted", list(measured))

    @app.procedure(inputs="counted", outputs="tolls", reads=[partition("speeds"), partition("counts")])
    def toll(txn: Transaction, counted: Batch) -> None:
        for report in counted:
            speed, count = txn.get("speeds", report.segment), txn.get("counts", report.segment)
            txn.emit("tolls", [(report.segment, report.vehicle, toll_of(speed[1:], count.vehicles))])

    app.nested(road_speed, vehicle_count, toll, name="tolling")

    keys = Keys(Parameters(parameters.events, 100, 0.2, 1, 0.0, parameters.aborts, seed=parameters.seed))
    speeds: dict[int, tuple[int, int]] = {}
    seen: dict[tuple[int, int], None] = {}
    counts: dict[int, int] = {}
    events: list[Event] = []
    tolls: list[tuple[int, tuple[int, int, int]]] = []
    aborted = 0
    for number in range(parameters.events):
        _, (segment,) = keys.some(1)
        vehicle, bad = keys.dice.randrange(5_000), keys.dice.random() < parameters.aborts
        speed = 999 if bad else 20 + number % 81
        events.append(("reports", (segment, vehicle, speed)))
        if bad:
            aborted += 1
            continue
        total, reports = speeds.get(segment, (0, 0))
        speeds[segment] = (total + speed, reports + 1)
        if (segment, vehicle) not in seen:
            seen[segment, vehicle] = None
            counts[segment] = counts.get(segment, 0) + 1
        tolls.append((segment, (segment, vehicle, toll_of(speeds[segment], counts[segment]))))
    state = {
        "speeds": sorted((segment, *speed) for segment, speed in speeds.items()),
        "counts": sorted(counts.items()),
        "seen": sorted(seen),
        "tolls": by_key(tolls),
    }
    return Workload(app, [], events, state, aborted, ("tolls",))


def toll_of(speed: Sequence[int], vehicles: int) -> int:
    """What Linear Road charges a vehicle on a slow, crowded segment."""
    return 2 * max(vehicles - 50, 0) ** 2 if speed[0] / speed[1] < 60 else 0


# ---- YCSB-T


def transfers(parameters: Parameters) -> Workload:
    """Transfers between two of 10,000 accounts, as in YCSB-T; aborted when there is not enough."""
    app = App("transfers")
    app.table("CREATE TABLE accounts (id INTEGER PRIMARY KEY, balance BIGINT NOT NULL)")
    app.stream("payments", "payer INTEGER NOT NULL, payee INTEGER NOT NULL, amount BIGINT NOT NULL", border=True)

    @app.procedure(writes=["accounts"])
    def load(txn: Transaction, number: int) -> None:
        for key in range(number):
            txn.insert("accounts", (key, 1_000))

    @app.procedure(inputs="payments", writes=["accounts"])
    def pay(txn: Transaction, payments: Batch) -> None:
        for payment in payments:
            left = txn.get("accounts", payment.payer).balance - payment.amount
            if left < 0:
                txn.abort("not enough")
            txn.update("accounts", payment.payer, balance=left)
            payee = txn.get("accounts", payment.payee)
            txn.update("accounts", payment.payee, balance=payee.balance + payment.amount)

    accounts = dict.fromkeys(range(parameters.keys), 1_000)
    keys = Keys(parameters)
    events: list[Event] = []
    aborted = 0
    for _ in range(parameters.events):
        _, (payer, payee) = keys.some(2)
        events.append(("payments", (payer, payee, 1)))
        if not accounts[payer]:
            aborted += 1
        else:
            accounts[payer] -= 1
            accounts[payee] += 1
    return Workload(app, [(parameters.keys,)], events, {"accounts": sorted(accounts.items())}, aborted)


SUITE: dict[str, Callable[[Parameters], Workload]] = {
    "grep_and_sum": grep_and_sum,
    "streaming_ledger": streaming_ledger,
    "online_bidding": online_bidding,
    "toll_processing": toll_processing,
}
