"""A shift on the ward: a source plays, the engine watches, a doctor decides, and all output is kept."""

from __future__ import annotations

import datetime as dt
import random
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tidegate.engine.engine import Engine
from tidegate.errors import BatchError
from tidegate.examples.mimic_alerts.source import Source, Step

FOLLOWED = (
    "outcomes",
    "notices",
    "technical_alarms",
    "vitals",
    "rate_outcomes",
    "rate_notices",
    "lead_alarms",
    "rates",
    "visit_outcomes",
)


class WardClock:
    """The time on the ward. It moves with what is played, so deadlines are in the patients' time at any speed."""

    def __init__(self, start: dt.datetime) -> None:
        self._start = start
        self._seconds = 0.0
        self._moving = threading.Lock()  # otherwise one thread could undo another's move

    def now(self) -> dt.datetime:
        return self._start + dt.timedelta(seconds=self._seconds)

    def monotonic(self) -> float:
        return self._seconds

    def move_to(self, at: dt.datetime) -> None:
        with self._moving:
            self._seconds = max(self._seconds, (at - self._start).total_seconds())


@dataclass
class Doctor:
    """Decides from a seed: how long it takes, and the answer. Some questions it never gets to."""

    seed: int = 1
    accepts: float = 0.7
    ignores: float = 0.15
    thinks_s: tuple[float, float] = (4.0, 40.0)

    def answer(self, question: Any) -> tuple[float, bool] | None:
        """After how many seconds, and whether to give it; None for never."""
        dice = random.Random(repr((self.seed, question.stream, question.key, question.batch_id)))
        after, ignored, give = dice.uniform(*self.thinks_s), dice.random() < self.ignores, dice.random() < self.accepts
        return None if ignored else (after, give)


@dataclass
class Seen:
    """The output by stream: (key, batch-id, row), and how many packets were pushed."""

    rows: dict[str, list[tuple[Any, int, Any]]] = field(default_factory=lambda: {name: [] for name in FOLLOWED})
    questions: dict[tuple[str, Any, int], dt.datetime] = field(default_factory=dict)
    packets: int = 0

    def take(self, stream: str, batch: Any) -> None:
        self.rows[stream] += [(batch.key, batch.id, row) for row in batch]

    def of(self, *streams: str) -> list[Any]:
        return [row for stream in streams for _, _, row in self.rows[stream]]


def start_of(source: Source, patient: int) -> dt.datetime:
    """When a patient's waves begin, on the patient's chart."""
    starts: dict[int, dt.datetime] = getattr(source, "starts", {})
    return starts.get(patient, source.start)


class Shift:
    """Plays a source through an engine. ``doctor`` None: people decide, elsewhere."""

    def __init__(
        self,
        engine: Engine,
        source: Source,
        clock: WardClock,
        doctor: Doctor | None = None,
        waits: bool = False,
        kept: bool = False,
    ) -> None:
        """``kept``: everything emitted is kept by the engine, and is here again after a restart."""
        self.engine = engine
        self.source = source
        self.clock = clock
        self.doctor = doctor
        self.seen = Seen()
        self._waits = waits  # with threads: let each step settle, so that runs can be compared
        self._following: dict[str, Iterable[Any]] = {
            name: engine.subscribe_durably(name, f"page {name}") if kept else engine.subscribe(name)
            for name in FOLLOWED
        }

    def admit(self) -> None:
        """Patients and their charts, once."""
        for patient in self.source.patients:
            self.engine.call("admit", *patient[:4])
            events = self.source.history.get(patient.patient)
            if events:
                self.engine.call("record", patient.patient, events)

    def play(
        self, speed: float = 0, stop: Callable[[], bool] = lambda: False, after: Callable[[Step], Any] = id
    ) -> Seen:
        """To the end. ``speed``: ward seconds per second; 0: as fast as possible. ``after``: called after each step."""
        began, first = time.monotonic(), None
        for step in self.source.steps():
            if stop():
                break
            first = first or step.at
            if speed > 0:
                due = began + (step.at - first).total_seconds() / speed
                time.sleep(max(0.0, due - time.monotonic()))
            self.step(step)
            after(step)
        self.finish()
        return self.seen

    def step(self, step: Step, source: str | None = None) -> bool:
        """One step: input, decisions that are due, and output. ``source``: whose offset is kept with the last push.

        True: all of it was known already.
        """
        self.clock.move_to(step.at)
        known = True
        for stream, rows in (("ecg", step.ecg), ("visits", step.visits), ("pap", step.pap)):
            last = source is not None and stream == "pap"
            place: dict[str, Any] = {"source": source, "offset": step.number} if last else {}
            if rows or place:
                ticket = self.engine.push(stream, rows, batch_id=step.number, **place)
                known = known and ticket.duplicate
                if ticket.error is not None:  # the ward's procedures never refuse a packet
                    raise ticket.error
        self.seen.packets += len(step.pap) + len(step.ecg)
        if self._waits:
            self.engine.run_until_idle()
        self.decide()
        self.engine.tick()
        if self._waits:
            self.engine.run_until_idle()
        self.collect()
        return known

    def decide(self) -> None:
        """The doctor's answers that are due by now."""
        for question in self.engine.questions():
            asked = (question.stream, question.key, question.batch_id)
            asked_at = self.seen.questions.setdefault(asked, self.clock.now())
            answer = None if self.doctor is None else self.doctor.answer(question)
            if answer is not None and (self.clock.now() - asked_at).total_seconds() >= answer[0]:
                row = {"give": answer[1], "decided_by": "the doctor on duty", "decided_at": self.time_of(question.key)}
                try:
                    self.engine.answer(question, **row)
                except BatchError:  # the time to decide ran out first
                    pass

    def time_of(self, patient: int) -> dt.datetime:
        """The time on this patient's chart: records were not all taken on the same day."""
        return start_of(self.source, patient) + (self.clock.now() - self.source.start)

    def collect(self) -> None:
        """Collect what was committed; the patients respond to what was given."""
        for name, following in self._following.items():
            for batch in following:
                self.seen.take(name, batch)
                self._respond(name, batch)

    def _respond(self, stream: str, batch: Iterable[Any]) -> None:
        if stream in ("outcomes", "rate_outcomes", "visit_outcomes"):
            for row in batch:
                if row.given:
                    at = row.visit_at if stream == "visit_outcomes" else row.found_at
                    self.source.administered(row.patient, row.drug, at)

    def finish(self) -> None:
        """Let open questions finish: by the doctor's answer, or the deadline."""
        for _ in range(10_000):
            self.engine.run_until_idle()
            self.collect()
            if not self.engine.scheduler.live:
                return
            self.clock.move_to(self.clock.now() + dt.timedelta(seconds=1))
            self.decide()
            self.engine.tick()
