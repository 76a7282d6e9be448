"""``tidegate crash-test``: kill an engine again and again; nothing acknowledged may be lost or doubled.

parent                               child (dies by SIGKILL: at a random moment, or at a named crash point)
  │  start ───────────────────────▶   open the directory, resume the workload
  │  ◀── acknowledgements (file) ───  only after ticket.result() or a sync
  │  kill; read the log; start again …
  ▼
everything acknowledged is in the log, once; the end state is that of a serial run of what the log holds
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

from tidegate import crashpoints, mutex
from tidegate.engine.engine import Engine, open
from tidegate.errors import Aborted, BatchError, FeedHalted, ProcedureFailed, StillWaiting, TidegateError
from tidegate.offline.verify import verify
from tidegate.storage.codec import from_json, to_json
from tidegate.storage.column_rows import plain_rows
from tidegate.testing.accepted import accepted_history, key_place
from tidegate.testing.bystanders import Bystanders
from tidegate.testing.driver import Call, Push
from tidegate.testing.history import History, Outcome, call_result, comparable, differences, outcome_of
from tidegate.testing.reference import run_serially
from tidegate.testing.workloads import BUILT_IN, Checkpoint, Feed, Outage, Step, Subject, World, load_subject
from tidegate.txn.log.files import OsFiles
from tidegate.txn.log.reader import LogReader
from tidegate.txn.log.record import Called, Fed, Pushed, Record
from tidegate.txn.ticket import Ticket

SUBSCRIBER = "crash-test"
STUCK_AFTER_S = 60.0
AT_ONCE = 6  # inputs in flight before the child waits for their acknowledgements
OURS = tuple(
    name
    for name in crashpoints.CRASH_POINTS
    if not name.startswith(("delivery-", "ingestion-", "migration-", "topic-before-remove"))
)


@dataclass(frozen=True)
class Round:
    """One workload, crashed several times."""

    app: str
    seed: int
    recovery: str
    executor: str
    sync: str
    points: tuple[str, ...] = ()  # crash points to die at, one per life; "" is any moment

    @property
    def cold(self) -> bool:
        """Are most rows cold? They must be where it dies while these are written."""
        return self.seed % 2 == 1 or any(point.startswith("rows-") for point in self.points)

    def __str__(self) -> str:
        return f"{self.app} {self.recovery}/{self.executor}/{self.sync} seed {self.seed}"


@dataclass
class Summary:
    """The results of many rounds."""

    rounds: int = 0
    kills: int = 0
    inputs: int = 0
    acknowledged: int = 0
    lost: int = 0
    duplicated: int = 0
    different: int = 0
    points: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not (self.lost or self.duplicated or self.different or self.failures)


def crash_test(
    rounds: int,
    seed: int = 0,
    address: str | None = None,
    points: Iterable[str] = OURS,
    progress: Callable[[Summary], None] = lambda summary: None,
) -> Summary:
    """Run ``rounds`` rounds over recovery modes × executors × ways to sync (× the built-in apps)."""
    summary = Summary()
    for one in _rounds(rounds, seed, address, tuple(points)):
        directory = Path(tempfile.mkdtemp(prefix="tidegate-crash-"))
        try:
            run_round(one, directory, summary)
        except Exception as error:
            summary.failures.append(f"{one}: {type(error).__name__}: {error} (kept in {directory})")
        else:
            shutil.rmtree(directory)
        progress(summary)
    return summary


def _rounds(rounds: int, seed: int, address: str | None, points: tuple[str, ...]) -> Iterator[Round]:
    apps = [address] if address is not None else list(BUILT_IN)
    modes = ("weak", "strong", "effects") if address is None else ("as declared",)
    settings = list(product(apps, modes, ("serial", "threads"), ("group", "always")))
    chance = random.Random(seed)
    chance.shuffle(settings)
    for number in range(rounds):
        app, mode, executor, sync = settings[number % len(settings)]
        first = points[number % len(points)]
        deaths = (first, *(chance.choice(("", *points)) for _ in range(chance.randrange(3))))
        yield Round(app, seed + number, mode, executor, sync, deaths)


def subject_of(one: Round) -> Subject:
    return BUILT_IN[one.app](one.recovery) if one.app in BUILT_IN else load_subject(one.app)


# ---- the child


class Child:
    """Does the steps that are not known to be done; records what was acknowledged."""

    def __init__(self, one: Round, directory: Path, done: set[int], told: int) -> None:
        self._subject = subject_of(one)
        self._steps = self._subject.steps(one.seed)
        self._done = done
        self._told = told
        self._going: list[tuple[int, Ticket]] = []
        self.engine = open(
            self._subject.app,
            directory,
            executor=one.executor,
            sync=one.sync,
            workers=3,
            generation_bytes=3_000,
            merge_every_s=0.05,
            cached_rows=2 if one.cold else 2_000_000,
        )

    def tell(self, **facts: Any) -> None:
        os.write(self._told, json.dumps(facts).encode() + b"\n")

    def run(self) -> None:
        engine = self.engine
        for stream in engine.app.streams.values():
            if not stream.border:
                engine.subscribe_durably(stream.name, f"{SUBSCRIBER} {stream.name}")
        with Bystanders(engine, merge_every_s=0.01, pause_s=0.02):
            self._resume()
            self._send_again()
            for number, step in enumerate(self._steps):
                if number not in self._done:
                    self._do(number, step)
            self._acknowledge(finish=True)
        engine.close()
        if mutex.violations:
            raise mutex.OutOfOrder(mutex.violations[0])
        self.tell(finished=True)

    def _send_again(self) -> None:
        """Like a source that has lost its position: repeats must be recognised."""
        done = [self._steps[number] for number in sorted(self._done)]
        pushes = [s for s in done if isinstance(s, Push) and not self.engine.app.streams[s.stream].awaited]
        for step in pushes[-5:]:
            if not self.engine.push(step.stream, step.rows, step.batch_id).duplicate:
                raise TidegateError(f"{step} was accepted a second time")

    def _do(self, number: int, step: Step) -> None:
        engine = self.engine
        match step:
            case Push():
                self._push(number, step)
            case Call(procedure, arguments):
                self._going.append((number, engine.submit(procedure, *arguments)))
            case Feed(stream, rows, first):
                self._acknowledge()
                sequence = engine.borders[stream].sequences.get(None)
                accepted = 0 if sequence is None or sequence.last is None else max(sequence.last - first + 1, 0)
                while rows[accepted:]:
                    try:
                        accepted += engine.feed(stream, rows[accepted:]).rows
                    except FeedHalted as halted:  # it stops early: the rest waits there, too
                        accepted += halted.fed
                self.tell(step=number)
            case Checkpoint(generation):
                self._acknowledge()
                engine.checkpoint(generation=generation)
                self.tell(step=number)
            case Outage(over):
                self._idle()
                World.down = not over
                if over:
                    self._resume()
                self.tell(step=number)
        if len(self._going) >= AT_ONCE:
            self._acknowledge()

    def _push(self, number: int, step: Push) -> None:
        give_up = time.monotonic() + STUCK_AFTER_S
        while True:
            try:
                ticket = self.engine.push(step.stream, step.rows, step.batch_id)
            except BatchError as error:
                if not self.engine.app.streams[step.stream].awaited:
                    raise
                if "overtake" not in str(error):  # the deadline's default came first
                    self.engine.durable.sync()  # type: ignore[union-attr]
                    self.tell(step=number, refused=True)
                    return
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
                continue
            self._going.append((number, ticket))
            return

    def _acknowledge(self, finish: bool = False) -> None:
        """Wait for what is in flight; a push that waits for a person is acknowledged as accepted."""
        give_up = time.monotonic() + STUCK_AFTER_S
        while self._going:
            waiting = []
            for number, ticket in self._going:
                call = isinstance(self._steps[number], Call)
                try:
                    value, error = ticket.result(0.02), None
                except StillWaiting:
                    if call:
                        waiting.append((number, ticket))
                        continue
                    value, error = None, None
                except (Aborted, ProcedureFailed) as failed:
                    value, error = None, failed
                self.engine.durable.sync()  # type: ignore[union-attr]
                result = {"result": to_json(call_result(value, error))} if call else {}
                self.tell(step=number, **result)
            self._going = waiting
            if not finish:
                break
            if time.monotonic() > give_up:
                raise TidegateError(f"steps {[number for number, _ in waiting]} do not finish")
            self._idle()
        while finish and (self.engine.runtime.timers.pending or not self.engine.scheduler.idle):
            self._resume()
            self._idle()
            if time.monotonic() > give_up:
                told = "; ".join(f"{e} {e.reason}" for e in self.engine.scheduler.waiting())
                told += f" ({len(self.engine.runtime.timers.pending)} timers are pending)"
                raise TidegateError(f"the workload does not finish: {told}")

    def _idle(self) -> None:
        self.engine.run_until_idle()
        time.sleep(0.005)
        self.engine.tick()

    def _resume(self) -> None:
        if self.engine.scheduler.halted:
            World.down = False
            self.engine.resume()
            self.engine.run_until_idle()


def live(one: Round, directory: str, done: set[int], point: str, reach: int, acks: str) -> None:
    """A child process: until the workload is done, the parent kills it, or it dies at ``point``."""
    logging.getLogger("tidegate").setLevel(logging.CRITICAL)  # failures are part of the workload
    mutex.watch()
    told = os.open(acks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reached: Counter[str] = Counter()

    def die(name: str) -> None:
        reached[name] += 1
        if name == point and reached[name] == reach:
            os.write(told, json.dumps({"died": name}).encode() + b"\n")
            os.kill(os.getpid(), signal.SIGKILL)

    if point:
        crashpoints.listen(die)
    try:
        Child(one, Path(directory), done, told).run()
    except BaseException as error:
        os.write(told, json.dumps({"error": f"{type(error).__name__}: {error}"}).encode() + b"\n")
        raise


# ---- the parent


class Observed:
    """What the parent knows of a round: acknowledgements, and every record the log ever held."""

    def __init__(self, one: Round, directory: Path) -> None:
        self.subject = subject_of(one)
        self.steps = self.subject.steps(one.seed)
        self.directory = directory
        self.acknowledged: dict[int, Any] = {}  # step -> result of a call, or None
        self.refused: set[int] = set()
        self.points: Counter[str] = Counter()
        self.finished = False
        self.records: dict[int, Record] = {}
        self._read = 0

    def read_acknowledgements(self, acks: Path) -> None:
        lines = acks.read_bytes().splitlines() if acks.exists() else []
        for line in lines[self._read :]:
            told = json.loads(line)
            if "error" in told:
                raise TidegateError(f"the child failed: {told['error']}")
            if "died" in told:
                self.points[told["died"]] += 1
            elif told.get("refused"):
                self.refused.add(told["step"])
            elif "step" in told:
                self.acknowledged[told["step"]] = from_json(told.get("result"))
            self.finished = self.finished or "finished" in told
        self._read = len(lines)

    def read_log(self) -> list[str]:
        """Read what the log holds now; returns what has changed since the last reading."""
        changed = []
        for entry in LogReader(OsFiles(self.directory / "log")):
            known = self.records.setdefault(entry.lsn, entry.record)
            if known != entry.record:
                changed.append(f"the record at LSN {entry.lsn} was {known}, now it is {entry.record}")
        return changed

    def ordered(self) -> list[Record]:
        return [self.records[lsn] for lsn in sorted(self.records)]

    @property
    def done(self) -> set[int]:
        """Steps not to be done again: acknowledged, refused, or calls that the log turns out to hold."""
        return {*self.acknowledged, *self.refused, *self.calls()}

    def calls(self) -> dict[int, Called]:
        """Match calls of the workload to those in the log: the n-th of its kind is the n-th."""
        held: dict[str, list[Called]] = {}
        for record in self.ordered():
            if isinstance(record, Called):
                held.setdefault(repr((record.procedure, record.arguments)), []).append(record)
        found = {}
        for number, step in enumerate(self.steps):
            if isinstance(step, Call):
                name = repr((step.procedure, [to_json(value) for value in step.arguments]))
                if held.get(name):
                    found[number] = held[name].pop(0)
        return found


def run_round(one: Round, directory: Path, summary: Summary) -> None:
    """Crash the workload until it is done, then judge it."""
    seen = Observed(one, directory / "db")
    chance = random.Random(one.seed)
    acks = directory / "acks"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tidegate.testing.crashes", "pandas"])  # pyarrow imports pandas when it is there
    deaths = [*one.points]
    different: list[str] = []
    while not seen.finished:
        point = deaths.pop(0) if deaths else None
        often = str(point).startswith(("log", "execution"))
        reach = (
            chance.randrange(1, 40) if often else 1 if point == "retention-before-remove" else chance.randrange(1, 3)
        )
        arguments = (one, str(seen.directory), seen.done, point or "", reach, str(acks))
        child = context.Process(target=live, args=arguments)
        child.start()
        child.join(chance.uniform(0.05, 0.7) if point == "" else STUCK_AFTER_S)
        killed = child.exitcode is None
        if killed and point != "":
            child.kill()
            raise TidegateError("the child is stuck")
        child.kill()
        child.join()
        summary.kills += child.exitcode == -signal.SIGKILL
        seen.read_acknowledgements(acks)
        different += seen.read_log()
    judge(seen, summary, different)


def judge(seen: Observed, summary: Summary, different: list[str]) -> None:
    """Lost, duplicated, different: count them."""
    lost, duplicated = _compare_inputs(seen)
    history, last = accepted_history(seen.subject.app, seen.ordered())
    with quiet():
        expected = run_serially(seen.subject.app, history)
    for number, called in seen.calls().items():
        result = seen.acknowledged.get(number)
        if result is not None and repr(result) != repr(from_json(to_json(expected.calls[called.sequence]))):
            different.append(f"{seen.steps[number]} returned {result}, serially {expected.calls[called.sequence]}")
    expected.calls = {}
    with quiet():
        different += [f"verify: {told}" for told in verify(seen.subject.app, seen.directory).differences]
    for opening in ("after the last close", "once more"):
        with open(seen.subject.app, seen.directory) as engine:
            different += [f"{opening}: {told}" for told in differences(expected, outcome_found(engine))]
            if engine.sequence < last:
                different.append(f"{opening}: sequence {engine.sequence}, the log has {last}")
    summary.rounds += 1
    summary.inputs += sum(1 for step in seen.steps if isinstance(step, (Push, Call, Feed)))
    summary.acknowledged += sum(1 for n in seen.acknowledged if isinstance(seen.steps[n], (Push, Call, Feed)))
    summary.lost += len(lost)
    summary.duplicated += len(duplicated)
    summary.different += len(different)
    summary.points.update(seen.points)
    wrong = [*lost, *duplicated, *different]
    if wrong:
        raise TidegateError("; ".join(wrong[:8]))


def _never_came(seen: Observed, held: Counter[str]) -> list[str]:
    """Of the desk: shipments that nobody picked up, and that were not refused, and the reminders that they lack."""
    if seen.subject.name != "desk":
        return []
    with open(seen.subject.app, seen.directory) as engine:
        left = engine.query("SELECT id FROM shipments WHERE state <> 'picked up'").rows
    names = [repr(("unclaimed", "fed", [row.id, reminder])) for row in left for reminder in (1, 2, 3)]
    return [f"lost: the timer {name}" for name in names if not held[name]]


@contextmanager
def quiet() -> Iterator[None]:
    """Without the log lines about failures that belong to the workload."""
    log = logging.getLogger("tidegate")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)


def outcome_found(engine: Engine) -> Outcome:
    """The engine's state, with everything it ever emitted (the subscriber never acknowledged any of it)."""
    found = outcome_of(engine.runtime, engine.journal, History())
    for subscription in engine.outbox.subscriptions.values():
        if subscription.name.startswith(SUBSCRIBER):
            for (key, batch_id), batch in subscription.waiting.items():
                lane = found.streams.setdefault((subscription.stream, key), [])
                lane.append((batch_id, [tuple(row) for row in batch.rows]))
    found.streams = comparable(engine.graph, found.streams)
    return found


def _compare_inputs(seen: Observed) -> tuple[list[str], list[str]]:
    """Every acknowledged input is in the log, every input at most once."""
    app = seen.subject.app
    held: Counter[str] = Counter()
    for record in seen.ordered():
        match record:
            case Pushed():
                place = key_place(app, record.stream)
                key = None if place is None else plain_rows(record.rows)[0][place]
                held[repr((record.stream, key, record.batch_id))] += 1
            case Fed():
                held.update(repr((record.stream, "fed", list(row))) for row in plain_rows(record.rows))
    lost, calls = _never_came(seen, held), seen.calls()
    for number in seen.acknowledged:
        match seen.steps[number]:
            case Push(stream, rows, batch_id):
                place = key_place(app, stream)
                keys = [None] if place is None else list(dict.fromkeys(row[place] for row in rows))
                names = [repr((stream, key, batch_id)) for key in keys]
            case Feed(stream, rows, first):
                fed = [repr((stream, "fed", list(row))) for row in rows]
                pushed = [repr((stream, None, first + i)) for i in range(len(rows))]
                names = [f if held[f] else p for f, p in zip(fed, pushed, strict=True)]
            case Call():
                names = []
                if number not in calls:
                    lost.append(f"lost: {seen.steps[number]}")
            case _:
                names = []
        lost += [f"lost: {name} of {seen.steps[number]}" for name in names if not held[name]]
    wanted = Counter(repr((s.procedure, [to_json(a) for a in s.arguments])) for s in seen.steps if isinstance(s, Call))
    made = Counter(repr((r.procedure, r.arguments)) for r in seen.ordered() if isinstance(r, Called))
    twice = [f"duplicated: {name}" for name, count in held.items() if count > 1]
    twice += [f"duplicated: {name}" for name, count in made.items() if count > wanted[name]]
    return lost, twice


def facts(summary: Summary) -> dict[str, Any]:
    """The summary as JSON."""
    return {**asdict(summary), "points": dict(sorted(summary.points.items()))}
