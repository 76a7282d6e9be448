"""What a source of waveforms gives, simulated or recorded: patients, their history, and a step for every second."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol


class Patient(NamedTuple):
    """Someone in a bed. Limits: mmHg averaged over a minute, and beats a minute."""

    patient: int
    bed: str
    pap_limit: float = 25.0
    rate_limit: float = 130.0
    story: str = ""


class Wish(NamedTuple):
    """A row of visits: someone at the bed wants to give ``drug``, or (None) nothing. An infusion includes its end."""

    patient: int
    visit_at: dt.datetime
    drug: str | None
    dose: float | None = None
    unit: str | None = None
    until_at: dt.datetime | None = None
    origin: str = "visit"
    note: str | None = None


@dataclass
class Step:
    """What comes in up to ``at``: packets of one second, and visits. ``number`` is the batch-id."""

    number: int
    at: dt.datetime
    pap: list[tuple[Any, ...]] = field(default_factory=list)
    ecg: list[tuple[Any, ...]] = field(default_factory=list)
    visits: list[Wish] = field(default_factory=list)


class Source(Protocol):
    """``history``: for each patient, what was charted before: drug, given_at, until_at, dose, unit."""

    name: str
    start: dt.datetime
    length_s: int
    patients: list[Patient]
    history: dict[int, list[Any]]

    def steps(self) -> Iterator[Step]: ...

    def administered(self, patient: int, drug: str, at: dt.datetime) -> None: ...
