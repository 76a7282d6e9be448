"""A shift in a process that is killed again and again, at any moment or at a named crash point; then, was it safe?

parent                              child (dies by SIGKILL)
  │  start ──────────────────────▶  open the directory, resume the shift where it stopped, alerts to a database
  │  ◀── decisions (file) ────────  recorded when they were acknowledged
  │  kill; start again …
  ▼
every dose allowed, every alert and visit delivered once, every decision applied once, none lost
"""

from __future__ import annotations

import datetime as dt
import json
import multiprocessing
import os
import random
import signal
import sqlite3
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tidegate import crashpoints
from tidegate.connectors.sql.sink import SqlSink
from tidegate.engine.engine import Engine
from tidegate.errors import BatchError, StillWaiting, TidegateError
from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.backends import choose_backend
from tidegate.examples.mimic_alerts.records import Records
from tidegate.examples.mimic_alerts.safety import ALERTS, unsafe_doses
from tidegate.examples.mimic_alerts.shift import Doctor, Shift, WardClock
from tidegate.examples.mimic_alerts.source import Source
from tidegate.examples.mimic_alerts.ward import Course, Ward

STUCK_AFTER_S = 180.0
IDENTITY = {
    **dict.fromkeys(ALERTS, ("patient", "sign", "found_at")),
    "visit_outcomes": ("patient", "visit_at", "drug", "reason"),
}
POINTS = (
    "log-before-write",
    "log-after-sync",
    "execution-before-commit",
    "execution-after-commit",
    "merge-before-commit",
    "merge-after-commit",
    "delivery-before-send",
    "delivery-after-send",
)


@dataclass
class Killed:
    """The outcome of a shift with kills."""

    kills: int = 0
    alerts: int = 0
    visits: int = 0
    decisions: int = 0
    doses: int = 0
    points: Counter[str] = field(default_factory=Counter)
    doubled: list[str] = field(default_factory=list)
    clashing: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    misapplied: list[str] = field(default_factory=list)

    @property
    def safe(self) -> bool:
        return not (self.doubled or self.clashing or self.repeated or self.lost or self.misapplied)


def busy_ward(seed: int, minutes: float) -> Ward:
    """Eight patients in trouble. What is given does not change the waves: they must be the same after every restart."""
    dice = random.Random(seed)
    courses = [
        Course(
            f"trouble {n}",
            18,
            24,
            dice.uniform(0, 20 * minutes),
            40,
            rate=90,
            rate_rise=60,
            rate_onset_s=dice.uniform(0, 30 * minutes),
            visits=tuple(
                (
                    dice.uniform(0, 60 * minutes),
                    dice.choice(("nesiritide", "sildenafil", "metoprolol", "diltiazem")),
                    "visit",
                )
                for _ in range(3)
            ),
        )
        for n in range(8)
    ]
    return Ward(8, minutes, seed, packets=5, courses=courses, responds=False)


@dataclass(frozen=True)
class Plan:
    """What is played and how: ``minutes`` of a busy ward, or the records of some patients in a folder."""

    seed: int = 1
    minutes: float = 4
    executor: str = "serial"
    recovery: Literal["weak", "strong", "effects"] = "weak"
    backend: str = "local"
    data: Path | None = None
    only: tuple[int, ...] = ()

    def source(self) -> Source:
        if self.data is None:
            return busy_ward(self.seed, self.minutes)
        return Records(self.data, set(self.only) or None, packets=5)

    def start(self, path: Path, clock: WardClock, **settings: Any) -> Engine:
        where = choose_backend(self.backend)
        settings = {"executor": self.executor, "workers": 2, **settings, **where.settings}
        return start(hospital(60, 120, where.window, self.recovery), str(path), clock=clock, **settings)


class Child:
    """Plays what was not played yet, with a doctor who records what was acknowledged."""

    def __init__(self, directory: Path, plan: Plan) -> None:
        self._progress = directory / "progress"
        self._decisions = os.open(directory / "decisions", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.source = plan.source()
        self.done = int(self._progress.read_text()) if self._progress.exists() else 0
        self.clock = WardClock(self.source.start)
        self.clock.move_to(self.source.start + dt.timedelta(seconds=5 * self.done))
        self.engine = plan.start(directory / "ward", self.clock, merge_every_s=0.3)
        for stream in IDENTITY:
            self.engine.subscribe_durably(stream, f"witness {stream}")  # never acknowledged: it keeps everything
        url = f"sqlite:///{directory / 'alerts.sqlite'}"
        self.deliveries = [self.engine.deliver(stream, SqlSink(url, stream), f"to {stream}") for stream in IDENTITY]
        self.shift = Shift(self.engine, self.source, self.clock, Doctor(plan.seed, 0.85, 0.1, (5, 25)))

    def run(self, last: int | None = None) -> None:
        """To the end; ``last``: stop after this step."""
        if not self.engine.query("SELECT count(*) FROM patients").scalar():
            self.shift.admit()
        for step in self.source.steps():
            if step.number <= self.done:
                continue
            self.clock.move_to(step.at)
            for stream, rows in (("pap", step.pap), ("ecg", step.ecg), ("visits", step.visits)):
                if rows:
                    self.engine.push(stream, rows, batch_id=step.number)
            if last is not None and step.number >= last:
                _die(self._progress.parent, "with a step")
            self._after()
            hidden = self._progress.with_suffix(".new")
            hidden.write_text(str(step.number - 1))
            hidden.replace(self._progress)
        while self.engine.scheduler.live:
            self.clock.move_to(self.clock.now() + dt.timedelta(seconds=1))
            self._after()
        for delivery in self.deliveries:
            delivery.drain(30)
        self.engine.close()
        (self._progress.parent / "finished").touch()

    def _after(self) -> None:
        self.engine.run_until_idle()
        for question in self.engine.questions():
            asked_at = self.shift.seen.questions.setdefault(
                (question.stream, question.key, question.batch_id), self.clock.now()
            )
            answer = self.shift.doctor.answer(question) if self.shift.doctor else None
            if answer is None or (self.clock.now() - asked_at).total_seconds() < answer[0]:
                continue
            decided_at = self.shift.time_of(question.key)
            row = {"give": answer[1], "decided_by": "the doctor on duty", "decided_at": decided_at}
            try:
                self.engine.answer(question, **row).result(10)
            except (BatchError, StillWaiting):
                continue
            told = {
                "stream": question.stream,
                "patient": question.key,
                "batch_id": question.batch_id,
                "give": answer[1],
            }
            os.write(self._decisions, json.dumps(told).encode() + b"\n")
        self.engine.tick()
        self.engine.run_until_idle()
        for delivery in self.deliveries:
            delivery.pump()


def _die(directory: Path, where: str) -> None:
    (directory / "died").write_text(where)
    os.kill(os.getpid(), signal.SIGKILL)


def live(directory: str, plan: Plan, point: str, reach: int, last: int | None) -> None:
    """A child process: to the end, or until it dies: at a point, when it is killed, or with a step, whichever comes first."""
    reached: Counter[str] = Counter()

    def die(name: str) -> None:
        reached[name] += 1
        if name == point and reached[name] == reach:
            _die(Path(directory), name)

    if point:
        crashpoints.listen(die)
    Child(Path(directory), plan).run(last)


def run_with_kills(kills: int, plan: Plan) -> Killed:
    """Play a shift, kill it ``kills`` times, then judge it."""
    with tempfile.TemporaryDirectory(prefix="tidegate-ward-") as made:
        return _run_with_kills(kills, plan, Path(made))


def _run_with_kills(kills: int, plan: Plan, directory: Path) -> Killed:
    found = Killed()
    dice = random.Random(plan.seed)
    steps, died = plan.source().length_s // 5, directory / "died"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tidegate.examples.mimic_alerts.kills", "pandas"])
    while not (directory / "finished").exists():
        wanted = found.kills < kills
        point = dice.choice((*POINTS, "")) if wanted else ""
        often = point.startswith(("log", "execution"))
        last = steps * (found.kills + 1) // (kills + 1) if wanted else None  # or it could be over before it was killed
        arguments = (str(directory), plan, point, dice.randrange(1, 120 if often else 3), last)
        child = context.Process(target=live, args=arguments)
        child.start()
        child.join(dice.uniform(0.3, 2.5) if wanted and not point else STUCK_AFTER_S)
        stuck = child.exitcode is None and not (wanted and not point)
        child.kill()
        child.join()
        if stuck:
            raise TidegateError(f"the shift with seed {plan.seed} does not finish")
        if child.exitcode == -signal.SIGKILL:
            found.kills += 1
            found.points[died.read_text() if died.exists() else "any moment"] += 1
            died.unlink(missing_ok=True)
        elif child.exitcode:
            raise TidegateError(f"the shift with seed {plan.seed} ended with exit code {child.exitcode}")
    _judge(directory, plan, found)
    return found


def _judge(directory: Path, plan: Plan, found: Killed) -> None:
    with plan.start(directory / "ward", WardClock(dt.datetime(2030, 1, 1))) as engine:
        events = list(engine.query("SELECT * FROM med_events"))
        emitted = {
            stream: [row for batch in engine.subscribe_durably(stream, f"witness {stream}") for row in batch]
            for stream in IDENTITY
        }
    found.doubled, found.clashing = unsafe_doses(events)
    with sqlite3.connect(directory / "alerts.sqlite") as database:
        for stream, columns in IDENTITY.items():
            rows = database.execute(f"SELECT {', '.join(columns)} FROM {stream}").fetchall()
            delivered = Counter(tuple(str(value)[:19] for value in row) for row in rows)
            wanted = Counter(tuple(str(getattr(row, name))[:19] for name in columns) for row in emitted[stream])
            found.alerts += len(wanted) if stream in ALERTS else 0
            found.visits += 0 if stream in ALERTS else len(wanted)
            found.repeated += [f"{stream} {one} emitted {times} times" for one, times in wanted.items() if times > 1]
            found.lost += [f"{stream} {one}" for one in wanted - delivered]
            found.repeated += [f"{stream} {one} delivered and not emitted" for one in delivered - wanted]
    database.close()
    applied = Counter((event.patient, event.asked_id, event.drug) for event in events if event.asked_id is not None)
    found.misapplied += [f"{one} given {times} times" for one, times in applied.items() if times != 1]
    given = Counter((event.patient, event.asked_id) for event in events if event.asked_id is not None)
    path = directory / "decisions"
    for line in path.read_text().splitlines() if path.exists() else []:
        told = json.loads(line)
        found.decisions += 1
        if told["give"] and not given[(told["patient"], told["batch_id"])]:
            found.misapplied.append(f"accepted and not given: {line}")
    found.doses = len(events)
