"""A small run of everything that writes, whose state says which of its parts have happened, and how often.

Part i adds 4**i to one balance, so that the i-th digit to base 4 of the balance is how often it has happened. What a call
returns, and what is there after a recovery, must agree.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tidegate
from tidegate import App, Batch, Engine, TidegateError, Transaction, window
from tidegate.outside.outbox import DurableSubscription

PARTS = 16
LIMIT_S = 60


class Hangs(BaseException):
    """What should have ended long ago has not."""


class Injected(MemoryError):
    """An exception from outside."""


@cache
def make_ledger(mode: Any) -> App:
    app = App("ledger", recovery=mode)
    app.table("CREATE TABLE account (name VARCHAR PRIMARY KEY, balance BIGINT NOT NULL)")
    app.table("CREATE TABLE receipts (amount BIGINT PRIMARY KEY, recent BIGINT NOT NULL)")
    app.stream("deposits", "amount BIGINT NOT NULL", border=True)
    app.stream("gifts", "giver VARCHAR NOT NULL, amount BIGINT NOT NULL", border=True, key="giver")
    app.stream("done", "amount BIGINT NOT NULL")

    def add(txn: Transaction, amount: int) -> int:
        row = txn.get("account", "all")
        balance = amount + (0 if row is None else row.balance)
        txn.upsert("account", {"name": "all", "balance": balance})
        return balance

    @app.procedure(inputs="deposits", outputs="done", writes=["account"])
    def take(txn: Transaction, deposits: Batch) -> None:
        for row in deposits:
            add(txn, row.amount)
            txn.emit("done", amount=row.amount)

    @app.procedure(inputs="done", writes=["receipts"], windows={"recent": window("done", count=3, slide=1)})
    def receipt(txn: Transaction, done: Batch) -> None:
        for row in done:
            txn.insert("receipts", {"amount": row.amount, "recent": len(txn.window("recent").rows)})

    @app.procedure(inputs="gifts", writes=["account"])
    def take_gift(txn: Transaction, gifts: Batch) -> None:
        for row in gifts:
            add(txn, row.amount)

    @app.procedure(writes=["account"])
    def deposit(txn: Transaction, amount: int) -> int:
        return add(txn, amount)

    return app


def digits(balance: int) -> list[int]:
    return [balance // 4**i % 4 for i in range(PARTS)]


class Run:
    """The parts, what became of each as far as its caller knows, and what was answered."""

    def __init__(self, mode: str, sync: str, path: Path, executor: str = "serial") -> None:
        self.mode, self.path = mode, path
        self.settings: dict[str, Any] = {"sync": sync, "executor": executor, "merge_every_s": 3600.0, "workers": 2}
        self.acknowledged: set[int] = set()
        self.tried: set[int] = set()
        self.answers: list[tuple[int, int]] = []
        self.errors: list[BaseException] = []
        self.engine: Engine | None = None

    def open(self) -> Engine:
        return tidegate.open(make_ledger(self.mode), self.path, tune_process=False, **self.settings)

    def all(self, engine: Engine) -> None:
        """Every part, in order. An error, ours or one that was injected, ends a part, not the run."""
        self.engine = engine
        assert engine.durable is not None
        engine.durable.writer._segment_bytes = 1_500
        self.part(lambda: engine.subscribe_durably("done", "teller"))
        self.push(0)
        self.call(1)
        self.part(lambda: engine.feed("deposits", [(4**i,) for i in (2, 3, 4)]), 2, 3, 4)
        self.part(engine.checkpoint)
        self.push(5)
        gifts = [("a", 4**6), ("b", 4**7)]
        self.part(lambda: engine.push("gifts", gifts, source="till", offset=1).result(LIMIT_S), 6, 7)
        self.part(lambda: self.acknowledge_some(engine.subscribe_durably("done", "teller")))
        self.call(8)
        self.part(lambda: engine.checkpoint(generation=True))
        self.push(9)
        more = [("a", 4**10), ("a", 4**11)]
        self.part(lambda: engine.feed("gifts", more, size=2, source="till", offset=2), 10, 11)
        for i in (12, 13):
            self.push(i)
        self.part(lambda: engine.checkpoint(generation=True))
        self.call(14)
        self.push(15)

    def push(self, i: int) -> None:
        engine = self.engine
        assert engine is not None
        self.part(lambda: engine.push("deposits", [(4**i,)], i + 1).result(LIMIT_S), i)

    def call(self, i: int) -> None:
        engine = self.engine
        assert engine is not None
        self.part(lambda: self.answers.append((i, engine.call("deposit", 4**i))), i)

    def acknowledge_some(self, followed: DurableSubscription) -> None:
        followed.ack(followed.take(2))

    def part(self, work: Callable[[], object], *numbers: int) -> None:
        self.tried.update(numbers)
        try:
            work()
            self.acknowledged.update(numbers)
        except (TidegateError, OSError, MemoryError, KeyboardInterrupt) as error:
            self.errors.append(error)
            self.resume()

    def resume(self) -> None:
        """A procedure was interrupted: its dataflow stands still in front of its batch."""
        try:
            assert self.engine is not None
            if self.engine.scheduler.halted:
                self.engine.resume()
        except (TidegateError, OSError, MemoryError, KeyboardInterrupt) as error:
            self.errors.append(error)

    def close(self) -> None:
        """Let go of everything; a fault may hit this too, but not twice."""
        assert self.engine is not None
        try:
            self.engine.close()
        except (TidegateError, OSError, MemoryError, KeyboardInterrupt) as error:
            self.errors.append(error)
            self.engine.close()

    def check(self) -> None:
        """Open again: nothing acknowledged is lost, nothing is there twice, and no answer was a lie."""
        happened, receipts = self.found()
        told = f"{self.errors=} {self.answers=} {self.acknowledged=} {happened=}"
        assert set(happened) <= {0, 1}, f"something happened twice: {told}"
        there = {i for i in range(PARTS) if happened[i]}
        assert self.acknowledged <= there <= self.tried, f"acknowledged and lost, or never tried: {told}"
        assert receipts == {4**i for i in there if i in (0, 2, 3, 4, 5, 9, 12, 13, 15)}, f"half of a dataflow: {told}"
        for together in ({6, 7}, {10, 11}):
            assert there >= together or not there & together, f"half of a push: {told}"
        for i, balance in self.answers:
            assert digits(balance) == [*happened[: i + 1], *[0] * (PARTS - i - 1)], f"answer {i} was a lie: {told}"

    def found(self) -> tuple[list[int], set[int]]:
        with self.open() as engine:
            if engine.scheduler.halted:
                engine.resume()
            engine.run_until_idle()
            account, receipts = engine.database.tables["account"], engine.database.tables["receipts"]
            engine.database.load_all(receipts)
            balance = account.newest("all")
            return digits(0 if balance is None else balance[1]), {k for k in receipts.keys() if receipts.newest(k)}  # noqa: SIM118


@contextmanager
def in_time() -> Iterator[None]:
    """What does not end raises where it stands."""

    def ring(number: int, frame: object) -> None:
        raise Hangs(f"still here after {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def sampled(points: list[int], count: int, seed: int) -> list[int]:
    """Every k-th of them, beginning somewhere."""
    step = max(1, len(points) // count)
    return points[seed % step :: step]
