"""What goes wrong without the guarantees: the hospital's own procedures, run with none of them, or all but one.

The functions are those of :mod:`app`; only the runtime is different. It keeps tables in dictionaries and runs one step
of one alert or visit at a time, in the ward's time, with these switches:

``isolation`` off: while the doctor thinks nothing is locked. What SP2 looked at may have changed when SP3 writes.

``order`` off: several workers take what waits for a patient in any order, up to a minute late.

``replay``: what happens to messages between the steps when the process is killed. ``"once"``: they are acknowledged
together with what the step wrote. ``"at least once"``: every few steps, so the steps since then are run again. ``"at
most once"``: before the step runs, so what was under way is lost.

With every switch on it makes no mistake, so the mistakes come from the switches. It is a model of how the usual parts are put
together (queue, workers, database), not a measurement of any product.
"""

from __future__ import annotations

import datetime as dt
import heapq
import random
from collections import Counter, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from tidegate import App
from tidegate.examples.mimic_alerts import rules
from tidegate.examples.mimic_alerts.app import hospital
from tidegate.examples.mimic_alerts.safety import unsafe_doses
from tidegate.examples.mimic_alerts.source import Wish

START = dt.datetime(2026, 1, 1, 8)
DANGEROUS = ("nesiritide", "nesiritide", "sildenafil", "nitroglycerin", "milrinone")
HARMLESS = ("paracetamol", "heparin", "furosemide")
EVERY_S = 60
LATE_S = 60
THINKS_S = (20, 240)
ACKNOWLEDGED_EVERY = 40  # steps


class Window(NamedTuple):
    """The result of the window over a minute of pressure."""

    ended_at: dt.datetime
    mean: float
    fault: str | None = None


class Slide(NamedTuple):
    """What ``txn.window`` returns."""

    results: list[Window]


class Decision(NamedTuple):
    """A row of decisions."""

    give: bool
    decided_by: str
    decided_at: dt.datetime | None = None


@dataclass(frozen=True)
class Input:
    """An input batch: a window of a patient, or a visit."""

    at_s: float
    patient: int
    number: int
    window: Window | None = None
    wish: Wish | None = None


def busy_shift(seed: int, patients: int = 24, minutes: int = 480) -> list[Input]:
    """A bad night of eight hours: pressures vary, doctors make rounds, and one who comes in a crisis sees it."""
    dice = np.random.default_rng(seed)
    found = []
    for patient in range(1, patients + 1):
        seconds = np.arange(EVERY_S, 60 * minutes, EVERY_S)
        level = (
            22 + 9 * np.sin(seconds / dice.uniform(1200, 3600) + dice.uniform(0, 6)) + dice.normal(0, 0.7, len(seconds))
        )
        found += [
            Input(float(at_s), patient, 0, window=Window(START + dt.timedelta(seconds=int(at_s)), float(mean)))
            for at_s, mean in zip(seconds, level, strict=True)
        ]
        onsets = seconds[1:][(level[1:] >= 25) & (level[:-1] < 25)]
        urgent = [(at_s + dice.uniform(0, 300), DANGEROUS) for at_s in onsets if dice.random() < 0.6]
        routine = [(at_s, HARMLESS) for at_s in dice.uniform(0, 60 * minutes, 3)]
        for at_s, drugs in (*urgent, *routine):
            wish = Wish(patient, START + dt.timedelta(seconds=float(at_s)), drugs[int(dice.integers(len(drugs)))])
            found.append(Input(float(at_s), patient, 0, wish=wish))
    found.sort(key=lambda one: (one.at_s, one.patient))
    return [Input(one.at_s, one.patient, number, one.window, one.wish) for number, one in enumerate(found, 1)]


@dataclass(frozen=True)
class Guarantees:
    """Which guarantees hold."""

    name: str
    isolation: bool = True
    order: bool = True
    replay: str = "once"


VARIANTS = (
    Guarantees("no isolation", isolation=False),
    Guarantees("no order", order=False),
    Guarantees("at least once", replay="at least once"),
    Guarantees("at most once", replay="at most once"),
    Guarantees("none of them", isolation=False, order=False, replay="at least once"),
)
ALL = Guarantees("all, in the model")


# ---- what the procedures see


class Tables:
    """Tables as dictionaries, written at once."""

    def __init__(self, app: App | None = None) -> None:
        self.app = app or _declared()
        self.rows: dict[str, dict[Any, Any]] = {name: {} for name in self.app.tables}
        self.types: dict[str, Any] = {
            name: namedtuple(name, table.column_names) for name, table in self.app.tables.items()
        }
        self.keys = {name: table.primary_key for name, table in self.app.tables.items()}
        self.emitted: dict[str, Any] = {
            name: namedtuple(name, s.relation.column_names) for name, s in self.app.streams.items()
        }
        for name, rows in (("drugs", rules.DRUGS), ("interactions", rules.INTERACTIONS)):
            for row in rows:
                self.put(name, tuple(row))
        for indication in rules.INDICATIONS.items():
            self.put("indications", indication)

    def put(self, table: str, row: tuple[Any, ...]) -> None:
        stored: Any = self.types[table](*row)
        key = tuple(getattr(stored, column) for column in self.keys[table])
        while table == "med_events" and key in self.rows[table]:  # nothing keeps two writers from using the same number
            key = (key[0], key[1] + 1)
            stored = stored._replace(number=key[1])
        self.rows[table][key] = stored


@cache
def _declared() -> App:
    return hospital(quiet_s=900)


class LooseTxn:
    """The part of a transaction that the hospital's procedures use. Nothing is undone or isolated."""

    def __init__(self, tables: Tables, patient: int, batch_id: int, windows: list[Any] | None = None) -> None:
        self._tables = tables
        self.key = patient
        self.batch_id = batch_id
        self._windows = windows
        self.out: dict[str, list[Any]] = {}

    def window(self, name: str) -> Any:
        return Slide(self._windows or [])

    def get(self, table: str, key: Any) -> Any:
        return self._tables.rows[table].get(key if isinstance(key, tuple) else (key,))

    def scan(self, table: str) -> list[Any]:
        rows = self._tables.rows[table].values()
        return [row for row in rows if getattr(row, "patient", self.key) == self.key]

    def insert(self, table: str, row: Any) -> None:
        self._tables.put(table, row)

    def upsert(self, table: str, row: Any) -> None:
        self._tables.put(table, row)

    def update(self, table: str, key: Any, **changes: Any) -> None:
        if key in self._tables.rows[table]:
            self._tables.rows[table][key] = self._tables.rows[table][key]._replace(**changes)

    def emit(self, stream: str, rows: list[Any]) -> None:
        made = self._tables.emitted[stream]
        self.out.setdefault(stream, []).extend(made(*row) for row in rows)


# ---- what runs them


@dataclass(order=True)
class Task:
    """One step that is due: a procedure, for a batch of a patient."""

    at_s: float
    number: int
    procedure: str = field(compare=False)
    patient: int = field(compare=False)
    batch_id: int = field(compare=False)
    rows: tuple[Any, ...] = field(compare=False, default=())
    first: bool = field(compare=False, default=False)


@dataclass
class Outcome:
    """The outcome of a run."""

    events: list[Any]
    asked: Counter[tuple[int, int]]
    applied: Counter[tuple[int, int]]
    accepted: set[tuple[int, int]]


class Loose:
    """Runs a shift under some guarantees."""

    def __init__(self, guarantees: Guarantees, inputs: list[Input], seed: int, kills: int = 40) -> None:
        self.guarantees = guarantees
        self.tables = Tables()
        self._dice = random.Random(seed)
        self._number = 0
        self._due: list[Task] = []
        self._open: set[int] = set()  # patients with an alert under way, where there is isolation
        self._waiting: dict[int, list[Task]] = {}
        self._since: list[Task] = []  # steps since the last acknowledgement
        end = inputs[-1].at_s
        self._kills = sorted(self._dice.uniform(0, end) for _ in range(kills if guarantees.replay != "once" else 0))
        self.asked: Counter[tuple[int, int]] = Counter()
        self.applied: Counter[tuple[int, int]] = Counter()
        self.accepted: set[tuple[int, int]] = set()
        for patient in {one.patient for one in inputs}:
            self.tables.put("patients", (patient, f"bed {patient}", 25.0, 130.0))
        for one in inputs:
            late_s = 0.0 if guarantees.order else self._dice.uniform(0, LATE_S)
            procedure, rows = ("visit", (one.wish,)) if one.wish else ("watch_pressure", (one.window,))
            self._add(one.at_s + late_s, procedure, one.patient, one.number, rows, first=True)

    def _add(
        self, at_s: float, procedure: str, patient: int, batch_id: int, rows: tuple[Any, ...], first: bool = False
    ) -> None:
        self._number += 1
        heapq.heappush(self._due, Task(at_s, self._number, procedure, patient, batch_id, rows, first))

    def run(self) -> Outcome:
        while self._due:
            if self._kills and self._due[0].at_s >= self._kills[0]:
                self._kill(self._kills.pop(0))
                continue
            task = heapq.heappop(self._due)
            if task.first and self.guarantees.isolation and task.patient in self._open:
                self._waiting.setdefault(task.patient, []).append(task)
                continue
            self._step(task)
            self._since.append(task)
            if len(self._since) >= ACKNOWLEDGED_EVERY:
                self._since.clear()
        events = list(self.tables.rows["med_events"].values())
        return Outcome(events, self.asked, self.applied, self.accepted)

    def _kill(self, at_s: float) -> None:
        """The process dies and restarts."""
        if self.guarantees.replay == "at least once":
            again, self._since = self._since, []
            for task in again:
                self._add(at_s, task.procedure, task.patient, task.batch_id, task.rows, task.first)
        else:  # questions on the screen, and answers in flight, were already acknowledged
            self._due = [task for task in self._due if task.procedure != "administer"]
            heapq.heapify(self._due)
            for patient in list(self._open):
                self._release(patient, at_s)

    def _step(self, task: Task) -> None:
        function = self.tables.app.procedures[task.procedure].function
        txn = LooseTxn(self.tables, task.patient, task.batch_id, list(task.rows))
        if task.procedure == "administer":
            advice, decision = task.rows
            function(txn, [advice], [decision])
            self.applied[(task.patient, task.batch_id)] += bool(decision.give)
            self._release(task.patient, task.at_s)
            return
        function(txn, list(task.rows))
        for advice in txn.out.get("recommendations", []):
            self._ask(task, advice)
        for sign in txn.out.get("elevated", []):
            self._open.add(task.patient)
            self._add(task.at_s, "recommend", task.patient, task.batch_id, (sign,))
        if task.procedure == "recommend" and "recommendations" not in txn.out:
            self._release(task.patient, task.at_s)

    def _ask(self, task: Task, advice: Any) -> None:
        """The doctor sees it, thinks, and answers."""
        identity = (task.patient, task.batch_id)
        self.asked[identity] += 1
        dice = random.Random(repr(identity))
        decision = Decision(dice.random() < 0.8, "the doctor on duty")
        if decision.give:
            self.accepted.add(identity)
        self._add(task.at_s + dice.uniform(*THINKS_S), "administer", task.patient, task.batch_id, (advice, decision))

    def _release(self, patient: int, at_s: float) -> None:
        self._open.discard(patient)
        for task in self._waiting.pop(patient, []):
            heapq.heappush(
                self._due, Task(at_s, task.number, task.procedure, patient, task.batch_id, task.rows, task.first)
            )


# ---- counting


@dataclass
class Mistakes:
    """Mistakes over several shifts."""

    double_doses: int = 0
    interactions: int = 0
    alerts_lost: int = 0
    alerts_repeated: int = 0
    decisions_misapplied: int = 0
    given_otherwise: int = 0

    @property
    def total(self) -> int:
        return sum(vars(self).values())


def count(right: Outcome, found: Outcome, mistakes: Mistakes) -> None:
    """Compare a run with the one that had every guarantee, and with the rules."""
    doubled, clashing = unsafe_doses(found.events)
    mistakes.double_doses += len(doubled)
    mistakes.interactions += len(clashing)
    mistakes.alerts_lost += len(set(right.asked) - set(found.asked))
    mistakes.alerts_lost += len([one for one in found.asked if one in found.accepted and not found.applied[one]])
    mistakes.alerts_repeated += sum(times - 1 for times in found.asked.values()) + len(
        set(found.asked) - set(right.asked)
    )
    mistakes.decisions_misapplied += len([one for one in found.accepted if found.applied[one] != 1])
    given = [Counter((event.patient, event.drug, event.given_at) for event in run.events) for run in (right, found)]
    mistakes.given_otherwise += sum(((given[0] - given[1]) + (given[1] - given[0])).values())


def compare(shifts: int = 5, seed: int = 1) -> Iterator[tuple[Guarantees, Mistakes]]:
    """Every variant over the same shifts."""
    scenes = [busy_shift(seed + n) for n in range(shifts)]
    right = [Loose(ALL, scene, seed).run() for scene in scenes]
    for variant in (ALL, *VARIANTS):
        mistakes = Mistakes()
        for n, scene in enumerate(scenes):
            count(right[n], Loose(variant, scene, seed + n).run(), mistakes)
        yield variant, mistakes
