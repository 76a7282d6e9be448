"""The order oracle: whatever runs in parallel, the result is that of running in position order."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from tidegate import mutex
from tidegate.clock import Clock
from tidegate.config import Config
from tidegate.dataflows.app import App
from tidegate.engine.engine import Engine
from tidegate.storage.database import Database
from tidegate.testing.bystanders import Bystanders
from tidegate.testing.doubles import ManualClock
from tidegate.testing.driver import Input, SeededDriver
from tidegate.testing.history import History, call_result, differences, outcome_of
from tidegate.testing.reference import run_serially

WAIT_FOR_DISK_S = 10.0
Mode = Literal["manual", "threads", "serial"]
Opener = Callable[[App, Config, Clock], Engine]


@dataclass(frozen=True)
class Report:
    """One run that agreed with the oracle."""

    seed: int
    executor: str
    entries: int
    steps: int
    most_open: int  # bodies under way at the same time
    merges: int


class OrderViolation(AssertionError):
    """A run differs from serial execution in position order.

    Facts: ``seed``, ``executor``, ``inputs``, ``differences``, ``steps``.
    """

    def __init__(self, seed: int, executor: str, inputs: Sequence[Input], found: list[str], history: History) -> None:
        self.seed = seed
        self.executor = executor
        self.inputs = inputs
        self.differences = found
        self.kind = re.split(r"[\[:\d]", found[0])[0]  # the kind of violation: shrinking must not change it
        self.steps = history.steps
        told = [f"seed {seed}, executor {executor}: not as if run in position order", "", "inputs:"]
        told += [f"  {item}" for item in inputs]
        if history.steps:
            told += ["", "what happened:", *(f"  {step}" for step in history.steps)]
        told += ["", "differences:", *(f"  {difference}" for difference in found)]
        super().__init__("\n".join(told))


@dataclass
class Setting:
    """How runs are made. A simulation recycles engines and databases, which are costly to make."""

    executor: Mode = "manual"
    config: dict[str, Any] = field(default_factory=dict)
    open_engine: Opener = lambda app, config, clock: Engine(app, None, config, clock)
    open_database: Callable[[App], Database] = lambda app: Database(app.tables.values())
    repair: Callable[[str], None] | None = None
    reopen: Callable[[Engine], Engine] | None = None
    merges: float = 0.02
    compare_base: bool = True  # merge at the end, and compare what the base then holds
    never: Sequence[str] | None = None  # with bystanders, whose queries must never find a row; None: without


def run_once(app: App, inputs: Sequence[Input], seed: int, setting: Setting) -> Report:
    """One interleaving against the oracle; raises OrderViolation where they differ."""
    clock = ManualClock()
    config = Config(executor=setting.executor, **setting.config)
    engine = setting.open_engine(app, config, clock)
    driver = SeededDriver(engine, clock, seed, merges=setting.merges, reopen=setting.reopen, repair=setting.repair)
    history = driver.history
    found: list[str]
    try:
        with nullcontext() if setting.never is None else Bystanders(engine, setting.never):
            driver.run(inputs)
        _check_locks()
        found = _compare(app, driver, setting)
        merges = driver.engine.database.base.merges
    except Exception as error:
        raise OrderViolation(seed, setting.executor, inputs, [f"{type(error).__name__}: {error}"], history) from error
    finally:
        _let_go(driver.engine)
    if found:
        raise OrderViolation(seed, setting.executor, inputs, found, history)
    return Report(seed, setting.executor, len(history.entries), len(history.steps), driver.most_open, merges)


def _check_locks() -> None:
    """On any thread, even where the error was not raised to a caller."""
    if mutex.violations:
        told, mutex.violations[:] = mutex.violations[0], []
        raise mutex.OutOfOrder(told)


def _let_go(engine: Engine) -> None:
    """Close without the last merge, which is not needed."""
    if engine.directory is not None:
        engine.close()
    else:
        engine.lookout.close()
        engine.executor.close()
        engine.merger.close()
        engine.database.close()
        engine.closed = True


def _compare(app: App, driver: SeededDriver, setting: Setting) -> list[str]:
    engine, history = driver.engine, driver.history
    database = setting.open_database(app)
    try:
        expected = run_serially(app, history, database)
    finally:
        database.close()
    outcome = outcome_of(engine.runtime, engine.journal, history)
    for entry in history.entries:
        if entry.call is not None:
            if engine.durable is not None:
                entry.ticket.event().wait(WAIT_FOR_DISK_S)
            done = call_result(entry.ticket.value, entry.ticket.error) if entry.ticket.done else "not finished"
            outcome.calls[entry.sequence] = done
    found = [*differences(expected, outcome), *leftovers(engine)]
    if not found and setting.compare_base:
        engine.checkpoint()
        for table in engine.database.tables.values():
            key_of = table.schema.key_of
            stored = {key_of(row): tuple(row) for row in engine.database.base.scan(table.schema)}
            if stored != outcome.tables[table.name]:
                found.append(f"the base of {table.name} is {stored}, the table {outcome.tables[table.name]}")
            cold = engine.database.cold.get(table.name)
            if cold is not None and (wrong := cold.differs(stored.values())) is not None:
                found.append(wrong)
    return found


def leftovers(engine: Engine) -> Iterator[str]:
    """What a finished engine must no longer hold: locks, old versions, snapshots, index entries."""
    scheduler: Any = engine.scheduler
    for what in ("live", "parked", "halted", "_queues", "_by_batch", "withdrawn"):
        if getattr(scheduler, what):
            yield f"the scheduler still holds {what}: {getattr(scheduler, what)}"
    if scheduler.locks.marks():
        yield f"locks are left: {scheduler.locks.marks()}"
    if engine.executor.snapshots:
        yield f"snapshots are left: {engine.executor.snapshots}"
    for table in engine.database.tables.values():
        table.trim(())
        if table.chains:
            yield f"table {table.name} still holds old versions of {set(table.chains)}"
        table.check(trimmed=True)


def check_order(
    app: App | Callable[[], App],
    inputs: Sequence[Input],
    *,
    seed: int = 0,
    executor: Mode = "manual",
    tries: int = 20,
    **config: Any,
) -> Report:
    """Run ``inputs`` through ``app`` in the interleaving that ``seed`` names; compare with serial execution.

    Tables, windows, emitted batches, aborts, dead letters and results of calls must be the same. If not,
    raises :class:`OrderViolation` with the smallest history found: inputs are left out for as long as one of
    ``tries`` interleavings still differs.

    >>> app = App("counter")
    >>> _ = app.table("CREATE TABLE n (id INTEGER PRIMARY KEY, v INTEGER NOT NULL)")
    >>> @app.procedure(writes=["n"])
    ... def add(txn, amount):
    ...     row = txn.get("n", 1)
    ...     txn.upsert("n", (1, amount if row is None else row.v + amount))
    >>> from tidegate.testing import Call
    >>> check_order(app, [Call("add", (1,)), Call("add", (2,))], seed=7).entries
    2
    """
    make: Callable[[], App] = (lambda: app) if isinstance(app, App) else app
    setting = Setting(executor=executor, config=config)
    try:
        return run_once(make(), inputs, seed, setting)
    except OrderViolation as violation:
        raise shrink(violation, lambda some, s: run_once(make(), some, s, setting), tries) from None


def shrink(
    violation: OrderViolation, run: Callable[[Sequence[Input], int], Any], tries: int, seconds: float = 20.0
) -> OrderViolation:
    """The same kind of violation with as few inputs as can be found: halves, quarters, … single ones are removed."""
    size = max(len(violation.inputs) // 2, 1)
    give_up = time.monotonic() + seconds
    while time.monotonic() < give_up:
        start = 0
        while start < len(violation.inputs) and time.monotonic() < give_up:
            fewer = [*violation.inputs[:start], *violation.inputs[start + size :]]
            smaller = still_fails(violation, partial(run, fewer), tries)
            if smaller is None:
                start += size
            else:
                violation = smaller
        if size == 1:
            break
        size //= 2
    return violation


def still_fails(violation: OrderViolation, run: Callable[[int], Any], tries: int) -> OrderViolation | None:
    """A violation of the same kind, if one of ``tries`` interleavings shows it."""
    for attempt in range(tries):
        try:
            run(violation.seed + attempt)
        except OrderViolation as found:
            if found.kind == violation.kind:
                return found
    return None
