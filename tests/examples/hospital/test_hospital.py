"""The hospital's dataflows: alerts, decisions, deadlines, visits, and who waits for whom."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import tidegate
from tidegate.examples.mimic_alerts import signals
from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.shift import WardClock
from tidegate.examples.mimic_alerts.source import Wish

EIGHT = dt.datetime(2026, 1, 1, 8)


class Bed:
    """A patient with a pressure that the test sets, packet by packet."""

    def __init__(self, **settings: Any) -> None:
        self.clock = WardClock(EIGHT)
        self.engine = start(hospital(deadline_s=60, quiet_s=300), clock=self.clock, **settings)
        self.followed = {name: self.engine.subscribe(name) for name in ("outcomes", "notices", "visit_outcomes")}
        for patient in (1, 2):
            self.engine.call("admit", patient, f"bed {patient}")
        self.second = 0

    def pressure(self, mmhg: float, seconds: int, *patients: int) -> None:
        wave = mmhg + 6 * np.sin(np.arange(signals.RATE_HZ) / signals.RATE_HZ * 2 * np.pi)
        packet = signals.pack(wave, signals.PRESSURE_STEP)
        for _ in range(seconds):
            at = EIGHT + dt.timedelta(seconds=self.second)
            self.second += 1
            self.clock.move_to(at)
            self.engine.push("pap", [(patient, at, packet) for patient in patients or (1,)], batch_id=self.second)

    def visit(self, drug: str, patient: int = 1, number: int | None = None) -> Any:
        at = EIGHT + dt.timedelta(seconds=self.second)
        return self.engine.push("visits", [Wish(patient, at, drug)], batch_id=number or self.second + 1)

    def decide(self, give: bool) -> None:
        (question,) = self.engine.questions()
        answer = {"patient": question.key, "give": give, "decided_by": "a doctor"}
        self.engine.push(question.stream, [answer], batch_id=question.batch_id)

    def given(self) -> list[tuple[int, str, str]]:
        rows = self.engine.query("SELECT patient, drug, origin FROM med_events ORDER BY ALL")
        return [tuple(row) for row in rows]

    def told(self, stream: str) -> list[Any]:
        return [row for batch in self.followed[stream] for row in batch]


@pytest.fixture
def bed() -> Iterator[Bed]:
    bed = Bed()
    yield bed
    bed.engine.close()


def test_an_accepted_recommendation_is_given(bed: Bed) -> None:
    bed.pressure(18, 60)
    assert bed.engine.questions() == []
    bed.pressure(40, 30)
    (question,) = bed.engine.questions()
    assert (question.stream, question.key, question.unit) == ("decisions", 1, "emergency")
    assert bed.given() == []
    bed.decide(True)
    assert bed.given() == [(1, "nesiritide", "alert")]
    (outcome,) = bed.told("outcomes")
    assert outcome.given
    assert outcome.value == pytest.approx(25, abs=3)


def test_a_declined_recommendation_is_not(bed: Bed) -> None:
    bed.pressure(40, 60)
    bed.decide(False)
    assert bed.given() == []
    bed.pressure(40, 120)
    assert bed.engine.questions() == []  # not asked again at once
    bed.pressure(40, 180)
    assert len(bed.engine.questions()) == 1  # but after a while


def test_nobody_decides(bed: Bed) -> None:
    bed.pressure(40, 60)
    bed.clock.move_to(bed.clock.now() + dt.timedelta(seconds=61))
    bed.engine.tick()
    (outcome,) = bed.told("outcomes")
    assert (outcome.given, outcome.decided_by) == (False, "nobody: the time to decide ran out")
    assert bed.given() == []


def test_the_patient_waits_and_others_do_not(bed: Bed) -> None:
    bed.pressure(40, 60, 1, 2)
    first = bed.engine.questions()
    assert [question.key for question in first] == [1, 2]
    mine = bed.visit("paracetamol", 1)
    locks = bed.engine.query("SELECT held_by FROM tidegate.locks WHERE unit = 'visit' AND held_by IS NOT NULL").rows
    assert [tuple(row) for row in locks] == [("emergency",)]
    answer = {"patient": 2, "give": True, "decided_by": "a doctor"}
    bed.engine.push("decisions", [answer], batch_id=first[1].batch_id)
    theirs = bed.visit("paracetamol", 2)
    assert theirs.done
    assert not mine.done
    bed.decide(False)
    assert mine.done
    assert bed.given() == [(1, "paracetamol", "visit"), (2, "nesiritide", "alert"), (2, "paracetamol", "visit")]


def test_a_visit_sees_what_the_decision_led_to(bed: Bed) -> None:
    """The heart of it: the round comes while the doctor thinks. The dose must not be given twice."""
    bed.pressure(40, 60)
    visit = bed.visit("nesiritide")
    bed.decide(True)
    assert visit.done
    (refused,) = bed.told("visit_outcomes")
    assert (refused.given, refused.kind) == (False, "recent")
    assert bed.given() == [(1, "nesiritide", "alert")]


@pytest.mark.parametrize(("before", "kind"), [("nesiritide", "recent"), ("nitroglycerin", "interaction")])
def test_nothing_is_recommended_against_what_was_given(bed: Bed, before: str, kind: str) -> None:
    bed.visit(before)
    bed.pressure(40, 60)
    assert bed.engine.questions() == []
    (notice,) = bed.told("notices")
    assert notice.kind == kind
    assert before in notice.recent


def test_visits_are_checked_too(bed: Bed) -> None:
    for number, drug in enumerate(("metoprolol", "diltiazem", "metoprolol", "paracetamol"), 1):
        bed.visit(drug, number=number)
    assert [(row.drug, row.given, row.kind) for row in bed.told("visit_outcomes")] == [
        ("metoprolol", True, None),
        ("diltiazem", False, "interaction"),
        ("metoprolol", False, "recent"),
        ("paracetamol", True, None),
    ]


def test_an_answer_counts_once(bed: Bed) -> None:
    bed.pressure(40, 60)
    (question,) = bed.engine.questions()
    answer = {"patient": 1, "give": True, "decided_by": "a doctor"}
    bed.engine.push("decisions", [answer], batch_id=question.batch_id)
    assert bed.engine.push("decisions", [answer], batch_id=question.batch_id).duplicate
    with pytest.raises(tidegate.BatchError):
        bed.engine.push("decisions", [{**answer, "give": False}], batch_id=question.batch_id)
    assert len(bed.given()) == 1


def test_an_open_question_survives_a_restart(tmp_path: Any) -> None:
    bed = Bed(path=str(tmp_path / "ward"))
    bed.pressure(40, 60)
    (before,) = bed.engine.questions()
    bed.engine.close()
    with start(hospital(deadline_s=60, quiet_s=300), str(tmp_path / "ward"), clock=bed.clock) as engine:
        (after,) = engine.questions()
        assert (after.stream, after.key, after.batch_id) == (before.stream, before.key, before.batch_id)
        answer = {"patient": 1, "give": True, "decided_by": "a doctor"}
        engine.push("decisions", [answer], batch_id=after.batch_id)
        assert engine.query("SELECT count(*) FROM med_events").scalar() == 1
