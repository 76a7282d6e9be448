"""The hand-hygiene monitor finds what one sees when one reads the sensors' rows, however they come in."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path
from typing import Any

import tidegate
from tidegate.examples.hygiene.app import app
from tidegate.offline.verify import verify

START = dt.datetime(2026, 3, 1)
Seen = tuple[str, int, int, Any]  # sensor, worker, second, room or bed


def a_shift(seed: int, workers: int = 6, seconds: int = 3_600) -> list[Seen]:
    """Rows of all sensors in order of time, one a second at most."""
    chance = random.Random(seed)
    found: list[Seen] = []
    second = 0
    while second < seconds:
        second += chance.choice([1, 5, 20, 200])
        sensor = chance.choice(["doors", "dispensers", "beds", "beds"])
        what = {"doors": chance.choice("ABC"), "dispensers": None, "beds": chance.randrange(3)}[sensor]
        found.append((sensor, chance.randrange(workers), second, what))
    return found


def as_one_reads_it(rows: list[Seen]) -> tuple[list[Any], dict[int, list[int]]]:
    """Lapses (kind, worker, second), and compliance: for each worker what happened since the last row that matters."""
    lapses: list[Any] = []
    compliance: dict[int, list[int]] = {}

    def note(kind: str, worker: int, second: int, taken: int) -> None:
        known = compliance.setdefault(worker, [0, 0])
        known[0] += 1
        known[1] += taken
        if not taken:
            lapses.append((kind, worker, second))

    for worker in {row[1] for row in rows}:
        mine = [row for row in rows if row[1] == worker]
        entered: list[int] = []  # since which no lapse was told, and no dispenser used
        cleaned: list[tuple[int, bool]] = []
        touched: list[tuple[int, Any]] = []
        for sensor, _, second, what in mine:
            if sensor == "dispensers":
                entered, touched = [], []
                cleaned = [(since, True) for since, _ in cleaned]
            elif sensor == "doors":
                entered.append(second)
                cleaned.append((second, False))
            else:
                if any(second - since < 600 for since in entered):
                    note("before", worker, second, 0)
                    entered = []
                for since, bed in list(touched):
                    if second - since < 600 and bed != what:
                        note("between", worker, second, 0)
                        touched.remove((since, bed))
                if any(clean and second - since < 600 for since, clean in cleaned):
                    note("clean", worker, second, 1)
                    cleaned = []
                touched.append((second, what))
    return sorted(lapses), compliance


def push(engine: Any, rows: list[Seen]) -> None:
    for sensor, worker, second, what in rows:
        engine.push(sensor, [(worker, START + dt.timedelta(seconds=second), what)])


def test_a_lapse_is_told_when_it_happens() -> None:
    with tidegate.open(app) as engine:
        reminders = engine.subscribe("reminders")
        push(engine, [("doors", 1, 0, "A"), ("beds", 1, 20, 4), ("dispensers", 2, 30, None)])
        (reminder,) = reminders.get()
        assert (reminder.worker, reminder.kind, reminder.bed) == (1, "before", 4)
        push(engine, [("dispensers", 1, 40, None), ("beds", 1, 50, 5), ("doors", 2, 60, "B")])
        assert reminders.get() is None


def test_a_shift_is_as_one_reads_it_whatever_comes_in_which_order(tmp_path: Path) -> None:
    rows = a_shift(3)
    chance = random.Random(4)
    shuffled = sorted(rows, key=lambda row: row[2] + chance.random() * 1.9)
    with tidegate.open(app, tmp_path) as engine:
        push(engine, shuffled[: len(rows) // 2])
        engine.checkpoint()
    with tidegate.open(app, tmp_path) as engine:
        push(engine, shuffled[len(rows) // 2 :])
        engine.finish()
        lapses = engine.query("SELECT kind, worker, seen FROM lapses").rows
        told = sorted((kind, worker, int((seen - START).total_seconds())) for kind, worker, seen in lapses)
        compliance = {row[0]: [row[1], row[2]] for row in engine.query("SELECT * FROM compliance").rows}
    wanted, counted = as_one_reads_it(rows)
    assert told == wanted
    assert compliance == counted
    assert {kind for kind, _, _ in told} == {"before", "between"}
    assert verify(app, tmp_path).same
