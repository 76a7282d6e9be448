"""What may be given when: minimum intervals and interactions, as plain data and pure functions.

The figures are for demonstration. They are plausible, but not medical advice.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

HOUR = 3600


class Drug(NamedTuple):
    """One drug: a usual dose, and how long to wait before it is given again."""

    drug: str
    dose: float
    unit: str
    min_interval_s: int


class Interaction(NamedTuple):
    """Two drugs that must not be given closer together than ``within_s``; ``drug`` < ``other``."""

    drug: str
    other: str
    within_s: int
    why: str


DRUGS = (
    Drug("amiodarone", 150, "mg", 4 * HOUR),
    Drug("digoxin", 0.25, "mg", 6 * HOUR),
    Drug("diltiazem", 20, "mg", 1 * HOUR),
    Drug("dobutamine", 2.5, "mcg/kg/min", 1 * HOUR),
    Drug("dopamine", 4, "mcg/kg/min", 1 * HOUR),
    Drug("furosemide", 40, "mg", 2 * HOUR),
    Drug("heparin", 800, "U/h", 1 * HOUR),
    Drug("insulin", 4, "U", 1 * HOUR),
    Drug("metoprolol", 5, "mg", 2 * HOUR),
    Drug("milrinone", 0.5, "mcg/kg/min", 4 * HOUR),
    Drug("nesiritide", 2, "mcg/kg", 6 * HOUR),
    Drug("nitroglycerin", 0.4, "mg", 1 * HOUR),
    Drug("norepinephrine", 0.1, "mcg/kg/min", 1 * HOUR),
    Drug("paracetamol", 1000, "mg", 4 * HOUR),
    Drug("phenylephrine", 0.5, "mcg/kg/min", 1 * HOUR),
    Drug("sildenafil", 10, "mg", 8 * HOUR),
)

INTERACTIONS = (
    Interaction("amiodarone", "metoprolol", 4 * HOUR, "the heart may become too slow"),
    Interaction("digoxin", "metoprolol", 6 * HOUR, "conduction may be blocked"),
    Interaction("diltiazem", "metoprolol", 4 * HOUR, "conduction may be blocked"),
    Interaction("milrinone", "nesiritide", 4 * HOUR, "blood pressure may drop"),
    Interaction("nesiritide", "nitroglycerin", 4 * HOUR, "blood pressure may drop"),
    Interaction("nesiritide", "sildenafil", 8 * HOUR, "blood pressure may drop"),
    Interaction("nitroglycerin", "sildenafil", 24 * HOUR, "blood pressure may drop"),
)

# what a sign calls for
INDICATIONS = {"high pulmonary pressure": "nesiritide", "fast heart rate": "metoprolol"}

# names as charted at the bedside
CHARTED = {
    "natrecor": "nesiritide",
    "lasix": "furosemide",
    "neosynephrine": "phenylephrine",
    "levophed": "norepinephrine",
    "nitroglycerine": "nitroglycerin",
    "labetolol": "labetalol",
}


def generic_name(charted: str) -> str:
    """The name of a drug from the name on a chart: ``Nitroglycerine-k`` is nitroglycerin."""
    plain = charted.strip().lower().removesuffix("-k")
    return CHARTED.get(plain, plain)


@dataclass(frozen=True)
class Objection:
    """Why a drug must not be given now: ``kind`` is ``"recent"`` or ``"interaction"``."""

    kind: str
    other: str
    text: str


def objection(
    drug: str, at: dt.datetime, given: Iterable[Any], drugs: Mapping[str, Any], interactions: Iterable[Any]
) -> Objection | None:
    """Why ``drug`` must not be given at ``at`` after what was ``given``, or None.

    ``given`` are rows of med_events. A running infusion (``until_at``) counts as given all the time it runs.
    Administrations charted for later count as well: the rule is about the time between two, not about their order.
    """
    near = {(i.drug if i.other == drug else i.other): i for i in interactions if drug in (i.drug, i.other)}
    rule = drugs.get(drug)
    for event in given:
        apart_s = _seconds_apart(at, event)
        if event.drug == drug and rule is not None and apart_s < rule.min_interval_s:
            told = "is running" if apart_s == 0 and event.until_at else f"given at {event.given_at:%H:%M:%S}"
            return Objection(
                "recent", drug, f"{drug} {told}; again after {rule.min_interval_s / HOUR:g} h at the earliest"
            )
        clash = near.get(event.drug)
        if clash is not None and apart_s < clash.within_s:
            return Objection(
                "interaction", event.drug, f"{drug} with {event.drug} ({event.given_at:%H:%M:%S}): {clash.why}"
            )
    return None


def _seconds_apart(at: dt.datetime, event: Any) -> float:
    last = event.given_at if event.until_at is None else max(event.given_at, min(at, event.until_at))
    return float(abs((at - last).total_seconds()))
