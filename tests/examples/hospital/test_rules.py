"""What may be given when."""

from __future__ import annotations

import datetime as dt
from typing import Any, NamedTuple

import pytest

from tidegate.examples.mimic_alerts import rules
from tidegate.examples.mimic_alerts.safety import misapplied, repeated, unsafe_doses

NOON = dt.datetime(2026, 1, 1, 12)
DRUGS = {drug.drug: drug for drug in rules.DRUGS}


class Event(NamedTuple):
    drug: str
    given_at: dt.datetime
    until_at: dt.datetime | None = None
    patient: int = 1
    number: int = 1
    origin: str = "visit"
    asked_id: int | None = None


def hours(n: float) -> dt.timedelta:
    return dt.timedelta(hours=n)


def against(drug: str, *given: Event) -> Any:
    found = rules.objection(drug, NOON, given, DRUGS, rules.INTERACTIONS)
    return None if found is None else found.kind


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ([], None),
        ([Event("nesiritide", NOON - hours(5.9))], "recent"),
        ([Event("nesiritide", NOON - hours(6))], None),
        ([Event("nesiritide", NOON + hours(1))], "recent"),  # charted for later
        ([Event("nesiritide", NOON - hours(20), NOON + hours(1))], "recent"),  # running
        ([Event("nesiritide", NOON - hours(20), NOON - hours(7))], None),  # stopped long ago
        ([Event("nesiritide", NOON - hours(20), NOON - hours(5))], "recent"),  # stopped a while ago
        ([Event("sildenafil", NOON - hours(7))], "interaction"),
        ([Event("sildenafil", NOON - hours(8))], None),
        ([Event("paracetamol", NOON)], None),
    ],
)
def test_objections(given: list[Event], wanted: str | None) -> None:
    assert against("nesiritide", *given) == wanted


def test_interactions_hold_in_both_directions() -> None:
    for one in rules.INTERACTIONS:
        assert one.drug < one.other
        assert against(one.drug, Event(one.other, NOON)) == "interaction"
        assert against(one.other, Event(one.drug, NOON)) == "interaction"


def test_every_name_is_known() -> None:
    named = {name for one in rules.INTERACTIONS for name in (one.drug, one.other)} | set(rules.INDICATIONS.values())
    assert named <= set(DRUGS)


@pytest.mark.parametrize(
    ("charted", "name"), [("Natrecor", "nesiritide"), ("Nitroglycerine-k", "nitroglycerin"), ("Insulin", "insulin")]
)
def test_charted_names(charted: str, name: str) -> None:
    assert rules.generic_name(charted) == name


def test_the_safety_check_finds_what_is_wrong() -> None:
    twice = [Event("nesiritide", NOON, number=1), Event("nesiritide", NOON + hours(1), number=2)]
    clash = [Event("metoprolol", NOON, number=1), Event("diltiazem", NOON + hours(1), number=2)]
    assert [len(found) for found in unsafe_doses(twice)] == [1, 0]
    assert [len(found) for found in unsafe_doses(clash)] == [0, 1]
    assert [len(found) for found in unsafe_doses([event._replace(origin="record") for event in twice])] == [0, 0]
    assert [len(found) for found in unsafe_doses([twice[0]._replace(origin="record"), twice[1]])] == [1, 0]
    assert repeated([("outcomes", 1, 5), ("outcomes", 1, 6), ("outcomes", 1, 5)]) == [("outcomes", 1, 5)]


def test_decisions_count_once() -> None:
    given = [Event("nesiritide", NOON, asked_id=7)]
    assert misapplied(given, [(1, 7, "nesiritide")]) == []
    assert len(misapplied(given * 2, [(1, 7, "nesiritide")])) == 2
    assert len(misapplied([], [(1, 7, "nesiritide")])) == 1
    assert len(misapplied(given, [])) == 1
