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


@dataclass
class Step:
    """What comes in up to ``at``: packets of one second, wishes to give something, charts. ``number`` is the batch-id."""

    number: int
    at: dt.datetime
    pap: list[tuple[Any, ...]] = field(default_factory=list)
    ecg: list[tuple[Any, ...]] = field(default_factory=list)
    visits: list[tuple[Any, ...]] = field(default_factory=list)
    charted: list[tuple[int, list[Any]]] = field(default_factory=list)  # taken over from a chart


class Source(Protocol):
    """``history``: for each patient, what was charted before: drug, given_at, until_at, dose, unit."""

    name: str
    start: dt.datetime
    patients: list[Patient]
    history: dict[int, list[Any]]

    def steps(self) -> Iterator[Step]: ...

    def administered(self, patient: int, drug: str, at: dt.datetime) -> None: ...
