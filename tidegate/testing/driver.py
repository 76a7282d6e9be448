"""One random, repeatable interleaving: the seeded driver.

It takes the place of an executor's loop. At every step it picks, by its seed, one of the things that could happen next:
the next input enters, an execution that may run starts, one that has begun runs its next member or commits, a decision
is answered, a question is asked anew, a deadline passes, a merge happens, the engine is closed and reopened, a halted
dataflow is resumed. Inside a procedure the same happens at every access to a table, so that bodies interleave too.

With executor ``"serial"`` or ``"threads"`` the engine runs executions itself; the driver does the rest.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.errors import BatchError, CorruptionError, ProcedureFailed, TidegateError
from tidegate.testing.doubles import ManualClock
from tidegate.testing.history import History
from tidegate.txn.execution import Execution, State
from tidegate.txn.outcome import COMMITTED, PAUSED, Waits
from tidegate.txn.transaction import Transaction

STUCK_AFTER_S = 20.0
RESUMES = 8
REOPENS = 3


@dataclass(frozen=True)
class Push:
    """A batch for a border stream. On an awaited stream: a decision, delivered at any moment."""

    stream: str
    rows: tuple[Any, ...]
    batch_id: int | None = None

    def __str__(self) -> str:
        number = "" if self.batch_id is None else f", {self.batch_id}"
        return f"push({self.stream!r}, {[tuple(row) for row in self.rows]}{number})"


@dataclass(frozen=True)
class Call:
    """A call of an OLTP procedure."""

    procedure: str
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"call({', '.join(map(repr, (self.procedure, *self.arguments)))})"


@dataclass(frozen=True)
class Advance:
    """A watermark for a border stream."""

    stream: str
    to: int
    batch_id: int | None = None

    def __str__(self) -> str:
        number = "" if self.batch_id is None else f", batch_id={self.batch_id}"
        return f"advance({self.stream!r}, {self.to}{number})"


@dataclass(frozen=True)
class Finish:
    """The end of all border streams."""

    def __str__(self) -> str:
        return "finish()"


Input = Push | Call | Advance | Finish


class Stuck(TidegateError):
    """Nothing more can happen, but something is unfinished."""


class PausingTransaction(Transaction):
    """A transaction that lets something else happen before every access."""

    __slots__ = ("pause",)

    pause: Callable[[], None]

    def get(self, table: str, key: Any) -> Any:
        self.pause()
        return super().get(table, key)

    def scan(self, table: str, **equals: Any) -> list[Any]:
        self.pause()
        return super().scan(table, **equals)

    def insert(self, table: str, row: Any = None, /, **values: Any) -> Any:
        self.pause()
        return super().insert(table, row, **values)

    def upsert(self, table: str, row: Any = None, /, **values: Any) -> Any:
        self.pause()
        return super().upsert(table, row, **values)

    def delete(self, table: str, key: Any) -> bool:
        self.pause()
        return super().delete(table, key)

    def execute(self, statement: Any, *parameters: Any, **named: Any) -> Any:
        self.pause()
        return super().execute(statement, *parameters, **named)


class SeededDriver:
    """Runs an engine through the interleaving that ``seed`` names.

    ``merges``: how likely each step is a merge. ``depth``: how many bodies may be interrupted at a time.
    ``reopen(engine)``: closes the engine and opens the same directory again; without it that never happens.
    ``repair(dataflow)``: called before a halted dataflow is resumed.
    """

    def __init__(
        self,
        engine: Engine,
        clock: ManualClock,
        seed: int,
        *,
        merges: float = 0.02,
        depth: int = 2,
        reopen: Callable[[Engine], Engine] | None = None,
        repair: Callable[[str], None] | None = None,
    ) -> None:
        self.clock = clock
        self.history = History()
        self.most_open = 0
        self._random = random.Random(seed)
        self._merges = merges
        self._depth = depth
        self._reopen = reopen
        self._reopens = REOPENS if reopen is not None else 0
        self._repair = repair
        self._inputs: deque[Input] = deque()
        self._decisions: dict[tuple[str, Any], deque[Push]] = {}
        self._begun: dict[Execution, Any] = {}  # body run as far as possible -> the outcome to settle, or PAUSED
        self._broken: ProcedureFailed | None = None
        self._resumes = 0
        self._requeues = 3
        self._passes = 15
        self._take(engine)

    def _take(self, engine: Engine) -> None:
        self.engine = engine
        self.manual = engine.config.executor == "manual"
        self.history.attach(engine)
        runtime = engine.runtime
        dead_letter, halted = engine.journal.dead_letter, engine.journal.halted
        engine.journal.dead_letter = self._noticing(dead_letter)  # type: ignore[method-assign]
        engine.journal.halted = self._noticing(halted)  # type: ignore[method-assign]
        if self.manual:
            advance = runtime.advance
            runtime.advance = lambda txn, one_member=True: advance(txn, True)  # type: ignore[method-assign]

        def begin(*arguments: Any) -> Transaction:
            txn = PausingTransaction(runtime, *arguments)
            txn.pause = self._pause if self.manual else _give_way
            return txn

        if engine.config.executor != "serial":
            runtime.begin = begin  # type: ignore[method-assign, assignment]

    def _noticing(self, report: Callable[..., None]) -> Callable[..., None]:
        """Broken invariants must not look like failing procedures."""

        def noticed(txn: Transaction, error: ProcedureFailed, *rest: Any) -> None:
            if isinstance(error.__cause__, (CorruptionError, AssertionError)):
                self._broken = error
            report(txn, error, *rest)

        return noticed

    # ---- the loop

    def run(self, inputs: Iterable[Input]) -> History:
        """Feed ``inputs`` in order (decisions: at any moment) and continue until everything is finished."""
        for item in inputs:
            self._queue(item)
        while self.step() or self._last_resort():
            pass
        return self.history

    def _queue(self, item: Input) -> None:
        if isinstance(item, Push) and self.engine.app.streams[item.stream].awaited:
            border = self.engine.borders[item.stream]
            for key, rows in border.split(border.check_rows(item.rows)).items():
                lane = self._decisions.setdefault((item.stream, key), deque())
                lane.append(Push(item.stream, tuple(rows), item.batch_id))
        else:
            self._inputs.append(item)

    def step(self) -> bool:
        """Let one thing happen; False when only waiting is left."""
        if self._broken is not None:
            raise self._broken
        chance = self._random.random()
        if chance < self._merges:
            self._merge()
        elif 0.5 < chance < 0.55:
            self._collect()
        elif self._outside(chance):
            self._check_tables()
            return True
        choices: list[Callable[[], None]] = [self._admit] if self._inputs else []
        if self.engine.scheduler.halted and chance < 0.3:
            choices.append(self._resume)
        if self.manual:
            choices += [partial(self._start, e) for e in dict.fromkeys(self.engine.scheduler.ready())]
            choices += [partial(self._go_on, e) for e in self._begun]
        if not choices:
            return False
        choices[self._random.randrange(len(choices))]()
        self._check_tables()
        return True

    def _outside(self, chance: float) -> bool:
        """From time to time: a decision arrives, a question is asked anew, deadlines pass, the engine is reopened."""
        if chance < self._merges + 0.03:
            return self._answer()
        if chance < self._merges + 0.04:
            return self._reask()
        if chance > 0.995:
            return self._expire()
        if 0.9 < chance < 0.93:
            return self._pass_time(int(chance * 1e6) % 30)
        return chance > 0.98 and self._reopens > 0 and not self._depth_now and self._reopened()

    def _last_resort(self) -> bool:
        """Nothing may run: answer a question, let deadlines pass, resume. False when all is finished."""
        engine = self.engine
        if engine.config.executor == "threads":
            self._wait_for_threads()
        with engine.lock:
            busy = bool(engine.scheduler.ready()) or any(
                e.state is State.RUNNING for e in engine.scheduler.live.values()
            )
        if busy or self._answer(asked=True) or self._expire():
            return True
        if engine.scheduler.halted:
            self._resume()
            return True
        if not engine.scheduler.idle:
            waiting = "; ".join(f"{e} {e.reason}" for e in engine.scheduler.waiting())
            raise Stuck(f"nothing can run, but {waiting}")
        return not self._inputs and (self._requeue() or self._pass_time(40))

    def _wait_for_threads(self) -> None:
        executor: Any = self.engine.executor
        deadline = time.monotonic() + STUCK_AFTER_S
        with executor.lock:
            while executor._running or executor.scheduler.ready():
                if not executor.ended.wait(0.5) and time.monotonic() > deadline:
                    waiting = "; ".join(f"{e} {e.state.value}: {e.reason}" for e in executor.scheduler.waiting())
                    raise Stuck(f"the threads made no progress in {STUCK_AFTER_S:g} s: {waiting}")

    # ---- what can happen

    def _tell(self, text: str) -> None:
        self.history.steps.append("  " * self._depth_now + text)

    def _admit(self) -> None:
        item = self._inputs.popleft()
        self._tell(str(item))
        self.clock.advance(0.001)
        if isinstance(item, Call):
            self.engine.submit(item.procedure, *item.arguments)
        elif isinstance(item, Advance):
            self.engine.advance(item.stream, item.to, batch_id=item.batch_id)
        elif isinstance(item, Finish):
            self.engine.finish()
        else:
            self.engine.push(item.stream, item.rows, item.batch_id)

    def _start(self, execution: Execution) -> None:
        engine = self.engine
        with engine.lock:
            engine.scheduler.take(execution)
        engine.executor.start(execution)
        self._body(execution)

    def _go_on(self, execution: Execution) -> None:
        outcome = self._begun.pop(execution)
        if outcome is PAUSED:
            self._body(execution)
            return
        how = "commits" if outcome is COMMITTED else f"ends: {outcome}"
        self._tell(f"{execution} {how}")
        self.engine.executor.settle(execution, outcome)
        if isinstance(outcome, Waits):
            self._tell(f"{execution} {outcome}")

    def _body(self, execution: Execution) -> None:
        context = execution.context
        self._tell(f"{execution} runs member {context.txn.cursor}")
        self._open += 1
        self.most_open = max(self.most_open, self._open + len(self._begun))
        try:
            outcome = self.engine.runtime.attempt(context.txn)
        finally:
            self._open -= 1
        self._begun[execution] = outcome

    _open = 0
    _depth_now = 0

    def _pause(self) -> None:
        """Inside a body, before an access: perhaps let something else happen."""
        if self._depth_now < self._depth and self._random.random() < 0.12:
            running, thread = self.engine.runtime.running, threading.get_ident()
            mine = running.pop(thread)  # what happens now happens outside this procedure
            self._depth_now += 1
            try:
                self.step()
            finally:
                self._depth_now -= 1
                running[thread] = mine

    def _merge(self) -> None:
        self._tell("merge")
        self.engine.checkpoint()
        self._check_tables(trimmed=self.manual)  # with threads, something else has happened since

    def _check_tables(self, trimmed: bool = False) -> None:
        """Their invariants hold, and what unfinished executions and held commits may read is there."""
        engine = self.engine
        with engine.lock:
            commits = sorted(engine.executor.snapshots)
            for table in engine.database.tables.values():
                table.check(engine.scheduler.open_positions(table.name), commits, trimmed)

    def _collect(self) -> None:
        """Drop versions that no reader needs: the last step of a merge, without its cost."""
        scheduler = self.engine.scheduler
        with self.engine.lock:
            snapshots = sorted(self.engine.executor.snapshots)
            for table in self.engine.database.tables.values():
                if table.chains:
                    table.trim(scheduler.open_positions(table.name), snapshots)
            self._check_tables(trimmed=True)

    def _answer(self, asked: bool = False) -> bool:
        """Deliver a decision; ``asked``: only one that an execution waits for."""
        lanes = [lane for lane, waiting in self._decisions.items() if waiting]
        self._random.shuffle(lanes)
        for stream, key in lanes:
            decision = self._decisions[stream, key][0]
            with self.engine.lock:
                execution = self.engine.scheduler.awaiting(stream, key)
            wanted = execution is not None and execution.batch_id == decision.batch_id
            if not wanted and (asked or execution is not None or self._random.random() < 0.8):
                continue
            self._decisions[stream, key].popleft()
            open_now = self.engine.questions()
            asked_now = [q for q in open_now if (q.stream, q.key, q.batch_id) == (stream, key, decision.batch_id)]
            try:
                if asked_now:
                    self.engine.answer(asked_now[0], decision.rows)
                else:
                    self.engine.push(stream, decision.rows, decision.batch_id)
                self._tell(f"{decision} {'answers' if wanted else 'comes early'}")
            except BatchError:
                self._tell(f"{decision} comes too late")
            return True
        return False

    def _reask(self) -> bool:
        """Ask one of the open questions anew: its procedures, being deterministic, ask the same."""
        questions = self.engine.questions()
        if not questions:
            return False
        question = self._random.choice(questions)
        try:
            self.engine.reask(question)
        except BatchError:  # it was answered meanwhile
            return False
        self._tell(f"{question.unit} on batch {question.batch_id} is asked anew")
        return True

    def _expire(self) -> bool:
        """Let the deadlines of all open questions pass."""
        with self.engine.turn:
            waiting = self.engine.scheduler.suspended()
            deadlines = [self.engine.app.streams[str(e.reason.stream)].deadline_s or 0.0 for e in waiting]
            if not deadlines:
                return False
            self._tell("deadlines pass")
            self.clock.advance(max(deadlines))
            self.engine.tick()
        return True

    def _pass_time(self, seconds: int) -> bool:
        """Let time pass, if timers are pending."""
        if not self.engine.runtime.timers.pending or not self._passes:
            return False
        self._passes -= 1
        self._tell(f"{seconds} s pass")
        self.clock.advance(seconds)
        self.engine.tick()
        return True

    def _resume(self) -> None:
        with self.engine.lock:
            halted = list(self.engine.scheduler.halted)
        self._resumes += 1
        if self._resumes > RESUMES:
            raise Stuck(f"dataflow {halted[0][0]} halts again and again; only histories that finish can be compared")
        one_key = self._random.random() < 0.3
        for dataflow, key in (
            halted if one_key else [(name, None) for name in dict.fromkeys(name for name, _ in halted)]
        ):
            skip = self._random.random() < 0.2
            told = f" for key {key!r}" if one_key else ""
            self._tell(f"{'skip' if skip else 'resume'} {dataflow}{told}")
            if self._repair is not None:
                self._repair(dataflow)
            act = self.engine.skip if skip else self.engine.resume
            act(dataflow, **({"key": key} if one_key else {}))

    def _requeue(self) -> bool:
        """Accept the batch of a dead letter again, if it may be. (It takes the id that the next push would.)"""
        with self.engine.lock:
            letters = sorted({str(d.position) for d in self.engine.journal.dead_letters if d.position is not None})
        if not letters or not self._requeues:
            return False
        self._requeues -= 1
        letter = self._random.choice(letters)
        try:
            self.engine.requeue(letter)
        except TidegateError as error:
            self._tell(f"requeue {letter}: {error}")
        else:
            self._tell(f"requeue {letter}")
        return True

    def _reopened(self) -> bool:
        """Close and open again; what had begun is restarted. Not while a call is open."""
        assert self._reopen is not None
        self._reopens -= 1
        if any(e.batch_id is None for e in self.engine.scheduler.live.values()):
            return False
        self._tell("close and reopen")
        self._begun.clear()
        before = _shown(self.engine)
        self._take(self._reopen(self.engine))
        if _shown(self.engine) != before:
            raise CorruptionError(f"before closing these were asked: {before}; after opening: {_shown(self.engine)}")
        return True


def _shown(engine: Engine) -> list[Any]:
    """The open questions with all that they show."""
    return [(q.id, q.digest, [(name, list(batch)) for name, batch in q.batches.items()]) for q in engine.questions()]


def _give_way() -> None:
    time.sleep(0)
