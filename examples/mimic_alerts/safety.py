"""What must hold after any run, whatever happened in between."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidegate.examples.mimic_alerts import rules

ALERTS = ("outcomes", "notices", "rate_outcomes", "rate_notices")


class Harm(NamedTuple):
    """A dose that the rules forbid: ``kind`` is ``"recent"`` or ``"interaction"``."""

    patient: int
    at: dt.datetime
    kind: str
    text: str


def harms(events: Iterable[Any]) -> list[Harm]:
    """Administrations too close to one of the same drug, and those that clash with another: of rows of med_events.

    What was charted elsewhere (origin ``record``) is history: it counts against what the ward gives, not against itself.
    """
    drugs = {drug.drug: drug for drug in rules.DRUGS}
    found: list[Harm] = []
    by_patient: dict[int, list[Any]] = {}
    for event in events:
        by_patient.setdefault(event.patient, []).append(event)
    for patient, given in by_patient.items():
        given.sort(key=lambda event: (event.given_at, event.number))
        for i, event in enumerate(given):
            if event.origin == "record":
                continue
            others = [other for j, other in enumerate(given) if j < i or other.origin == "record"]
            against = rules.objection(event.drug, event.given_at, others, drugs, rules.INTERACTIONS)
            if against is not None:
                found.append(Harm(patient, event.given_at, against.kind, against.text))
    return found


def unsafe_doses(events: Iterable[Any]) -> tuple[list[str], list[str]]:
    """The same in words: too close to one of the same drug, and clashing with another."""
    found = [(harm.kind, f"patient {harm.patient}, {harm.at}: {harm.text}") for harm in harms(events)]
    return [told for kind, told in found if kind == "recent"], [told for kind, told in found if kind != "recent"]


def repeated(delivered: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Alerts that were delivered more than once, by their identity (stream, patient, batch-id)."""
    return [identity for identity, times in Counter(delivered).items() if times > 1]


def misapplied(events: Iterable[Any], accepted: Iterable[tuple[int, int, str]]) -> list[str]:
    """Decisions that did not lead to exactly one administration: ``accepted`` are (patient, batch-id, drug)."""
    applied = Counter((event.patient, event.asked_id, event.drug) for event in events if event.asked_id is not None)
    wanted = Counter(accepted)
    wrong = [f"patient {p}, alert {b}: {drug} given {n} times" for (p, b, drug), n in applied.items() if n != 1]
    wrong += [f"patient {p}, alert {b}: {drug} accepted and not given" for p, b, drug in wanted - applied]
    wrong += [f"patient {p}, alert {b}: {drug} given and not accepted" for p, b, drug in applied - wanted]
    return sorted(set(wrong))


@dataclass(frozen=True)
class Verdict:
    """What was found wrong after a run; if everything is empty, it was safe."""

    doubled: list[str]
    clashing: list[str]
    repeated: list[tuple[Any, ...]]
    misapplied: list[str]

    @property
    def safe(self) -> bool:
        return not (self.doubled or self.clashing or self.repeated or self.misapplied)


def judge(events: Iterable[Any], alerts: Mapping[str, list[tuple[Any, int, Any]]]) -> Verdict:
    """``events``: the rows of med_events; ``alerts``: what was delivered, by stream: (patient, batch-id, row)."""
    events = list(events)
    named = [(stream, key, batch_id) for stream in ALERTS for key, batch_id, _ in alerts.get(stream, [])]
    accepted = [
        (key, batch_id, row.drug)
        for stream in ("outcomes", "rate_outcomes")
        for key, batch_id, row in alerts.get(stream, [])
        if row.given
    ]
    return Verdict(*unsafe_doses(events), repeated(named), misapplied(events, accepted))
