"""A simulated intensive-care unit: arterial pressure of the lung and ECG of some patients, 125 samples a second, from a seed.

A beat is a shape over its phase; the phase follows the heart rate, which varies with breathing. Mean pressure and heart
rate follow each patient's course: a baseline, an onset, a crisis, and a response to what was given. Artefacts are added
on top. Everything is computed for all patients at once, a second at a time.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from tidegate.examples.mimic_alerts.signals import ECG_STEP, PRESSURE_STEP, RAIL_MMHG, RATE_HZ, Array, pack
from tidegate.examples.mimic_alerts.source import Patient, Step, Wish

EPOCH = dt.datetime(2026, 1, 1, 8)
SHAPE = 512  # points of a beat


@dataclass(frozen=True)
class Artefact:
    """When a line is not to be trusted, from and until: ``clamped``, ``flat``, ``flush``, ``zero`` or ``leads``."""

    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class Course:
    """What happens to one patient. Times are seconds from the start."""

    story: str
    pap: float = 18.0
    pap_rise: float = 0.0
    pap_onset_s: float = 0.0
    pap_over_s: float = 60.0
    rate: float = 78.0
    rate_rise: float = 0.0
    rate_onset_s: float = 0.0
    pap_limit: float = 25.0
    artefacts: tuple[Artefact, ...] = ()
    visits: tuple[tuple[float, str, str], ...] = ()  # when, drug, origin


@dataclass
class _State:
    """The current state of the courses, one number for each patient."""

    phase: Array
    breath: Array
    wander: Array
    relief: Array  # mmHg taken off by drugs, and the target
    relief_to: Array
    slower: Array  # beats a minute, the same
    slower_to: Array


def stories(minutes: float) -> list[Course]:
    """Eight patients, whose stories fit into this many minutes."""
    m = 60 * minutes / 10  # a tenth of the time
    return [
        Course("crisis, a drug helps", 19, 23, 1.5 * m, visits=((1 * m, "paracetamol", "schedule"),)),
        Course("stable", 15, visits=((2 * m, "heparin", "schedule"), (6 * m, "furosemide", "visit"))),
        Course("the line gets stuck", 17, artefacts=(Artefact("clamped", 4 * m, 6.5 * m),)),
        Course("crisis after nitroglycerin", 20, 18, 3 * m, visits=((0.5 * m, "nitroglycerin", "visit"),)),
        Course("heart races", 16, rate=96, rate_rise=58, rate_onset_s=2 * m, visits=((3 * m, "diltiazem", "visit"),)),
        Course(
            "the line is flushed, then a slow rise",
            21,
            14,
            5.5 * m,
            90,
            artefacts=(Artefact("flush", 1.5 * m, 1.5 * m + 12), Artefact("zero", 3 * m, 3 * m + 20)),
            visits=((6.8 * m, "nesiritide", "visit"),),
        ),
        Course(
            "chronically high, treated this morning",
            27,
            22,
            4 * m,
            pap_limit=32,
            visits=((0.3 * m, "nesiritide", "schedule"),),
        ),
        Course(
            "crisis, and a lead comes off",
            18,
            20,
            2.5 * m,
            artefacts=(Artefact("leads", 5 * m, 6 * m), Artefact("flat", 8 * m, 8.7 * m)),
            visits=((2.9 * m, "milrinone", "schedule"), (7 * m, "sildenafil", "visit")),
        ),
    ]


class Ward:
    """A source: ``steps()`` gives a second of every patient at a time; ``administered`` says what was given."""

    name = "simulated ward"

    def __init__(
        self,
        patients: int = 8,
        minutes: float = 10,
        seed: int = 1,
        packets: int = 1,
        courses: list[Course] | None = None,
        responds: bool = True,
    ) -> None:
        """``courses``: what happens; the stories otherwise. Further patients repeat them, at other times. ``responds``:
        do patients respond to drugs? If not, the waves depend on the seed alone."""
        told = stories(minutes) if courses is None else courses
        self.courses = [told[i % len(told)] for i in range(patients)]
        self.minutes = minutes
        self.responds = responds
        self.start = EPOCH
        self.length_s = round(60 * minutes)
        self._packets = packets  # seconds to a batch
        self._dice = np.random.default_rng(seed)
        self._late = self._dice.uniform(0, 20, patients) if patients > len(told) else np.zeros(patients)
        self.patients = [
            Patient(i + 1, f"bed {i + 1}", course.pap_limit, 130.0, course.story)
            for i, course in enumerate(self.courses)
        ]
        self.history: dict[int, list[Any]] = {}
        zeros = np.zeros(patients)
        self._state = _State(
            self._dice.uniform(0, 1, patients), self._dice.uniform(0, 1, patients), *(zeros.copy() for _ in range(5))
        )
        self._course = {name: np.array([getattr(c, name) for c in self.courses]) for name in _NUMBERS}
        self._pressure_shape, self._ecg_shape = pressure_shape(), ecg_shape()
        self._visits = sorted(
            (at + self._late[i], i + 1, drug, origin)
            for i, course in enumerate(self.courses)
            for at, drug, origin in course.visits
        )

    def steps(self) -> Iterator[Step]:
        """One step for each second (or ``packets`` of them) until the minutes are over."""
        waiting = list(self._visits)
        seconds = self.length_s
        for begin in range(0, seconds, self._packets):
            step = Step(
                begin // self._packets + 1, self.start + dt.timedelta(seconds=min(begin + self._packets, seconds))
            )
            for second in range(begin, min(begin + self._packets, seconds)):
                taken_at = self.start + dt.timedelta(seconds=second)
                pap, ecg = self.second(second)
                step.pap += [(p.patient, taken_at, pack(pap[i], PRESSURE_STEP)) for i, p in enumerate(self.patients)]
                step.ecg += [(p.patient, taken_at, pack(ecg[i], ECG_STEP)) for i, p in enumerate(self.patients)]
                while waiting and waiting[0][0] <= second:
                    at, patient, drug, origin = waiting.pop(0)
                    step.visits.append(Wish(patient, self.start + dt.timedelta(seconds=at), drug, origin=origin))
            yield step

    def administered(self, patient: int, drug: str, at: dt.datetime) -> None:
        """The patient responds to a drug, over the next minutes."""
        i = patient - 1
        if not self.responds:
            return
        if drug in ("nesiritide", "milrinone", "sildenafil"):
            self._state.relief_to[i] += 0.75 * self._course["pap_rise"][i]
        if drug in ("metoprolol", "diltiazem"):
            self._state.slower_to[i] += 0.8 * self._course["rate_rise"][i]

    def second(self, second: int) -> tuple[Array, Array]:
        """Pressure (mmHg) and ECG (mV) of every patient in one second: patients × samples."""
        state, course = self._state, self._course
        pace = 1 / max(6.0 * self.minutes, 20.0)  # drugs work within a tenth of the time
        state.relief += (state.relief_to - state.relief) * pace
        state.slower += (state.slower_to - state.slower) * pace
        state.wander += self._dice.normal(0, 0.12, len(state.wander)) - 0.02 * state.wander
        since = second - self._late
        rise = course["pap_rise"] * _ramp(since - course["pap_onset_s"], course["pap_over_s"])
        mean = np.maximum(course["pap"] + np.maximum(rise - state.relief, -2.0) + state.wander, 8.0)
        faster = course["rate_rise"] * _ramp(since - course["rate_onset_s"], 45.0)
        rate = np.maximum(course["rate"] + np.maximum(faster - state.slower, -3.0) + 0.5 * state.wander, 40.0)
        pap, ecg = self._waves(mean, rate)
        for i, one in enumerate(self.courses):
            for artefact in one.artefacts:
                if artefact.begin_s <= since[i] < artefact.end_s:
                    self._spoil(artefact.kind, pap[i], ecg[i])
        return pap, ecg

    def _waves(self, mean: Array, rate: Array) -> tuple[Array, Array]:
        state, shape = self._state, (len(mean), RATE_HZ)
        ticks = np.arange(1, RATE_HZ + 1) / RATE_HZ
        breath = state.breath[:, None] + 0.25 * ticks
        swing = np.sin(2 * np.pi * breath)
        phase = (
            state.phase[:, None]
            + rate[:, None] / 60 * ticks
            + 0.012 * (swing - np.sin(2 * np.pi * state.breath)[:, None])
        )
        state.phase, state.breath = phase[:, -1] % 1, breath[:, -1] % 1
        place = (phase % 1 * SHAPE).astype(int)
        pulse = np.maximum(9.0, 0.8 * mean)[:, None]
        bottom = mean[:, None] - pulse * self._pressure_shape.mean()
        pap = bottom + pulse * self._pressure_shape[place] + 1.4 * swing + self._dice.normal(0, 0.25, shape)
        ecg = self._ecg_shape[place] + 0.04 * swing + self._dice.normal(0, 0.012, shape)
        return pap, ecg

    def _spoil(self, kind: str, pap: Array, ecg: Array) -> None:
        noise = self._dice.normal(0, 1, RATE_HZ)
        if kind == "clamped":
            pap[:] = RAIL_MMHG
        elif kind == "flat":
            pap[:] = 11 + 0.1 * noise
        elif kind == "flush":
            pap[:] = 160 + 40 * np.abs(noise)
        elif kind == "zero":
            pap[:] = 0.2 * noise
        elif kind == "leads":
            ecg[:] = 0.002 * noise


_NUMBERS = ("pap", "pap_rise", "pap_onset_s", "pap_over_s", "rate", "rate_rise", "rate_onset_s")


def _ramp(since: Array, over: Any) -> Array:
    """0 before, 1 after, smoothly."""
    x = np.clip(since / over, 0, 1)
    return np.asarray(x * x * (3 - 2 * x))


def pressure_shape() -> Array:
    """One beat of pulmonary-artery pressure from 0 to 1: upstroke, peak, dicrotic notch, run-off."""
    x = np.arange(SHAPE) / SHAPE
    beat = (
        np.exp(-(((x - 0.24) / 0.10) ** 2))
        + 0.42 * np.exp(-(((x - 0.46) / 0.09) ** 2))
        + 0.5 * np.exp(-x / 0.35) * (x > 0.2)
    )
    beat += 0.16 * np.exp(-(((x - 1.0) / 0.05) ** 2))
    kernel = np.hanning(25) / np.hanning(25).sum()
    beat = np.convolve(np.concatenate([beat[-12:], beat, beat[:12]]), kernel, "valid")
    return np.asarray((beat - beat.min()) / (beat.max() - beat.min()))


def ecg_shape() -> Array:
    """One beat of lead II in mV: P, QRS, T. The R peak comes early in the beat, before the pressure rises."""
    x = np.arange(SHAPE) / SHAPE
    waves = (
        (0.92, 0.025, 0.12),
        (0.058, 0.010, -0.10),
        (0.08, 0.011, 1.05),
        (0.103, 0.011, -0.22),
        (0.32, 0.045, 0.28),
    )
    return np.asarray(sum(high * np.exp(-(((x - at) / wide) ** 2)) for at, wide, high in waves))
