"""Packets, pressures, beats: against plain numpy over all samples at once."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pytest

from tidegate.examples.mimic_alerts import signals
from tidegate.examples.mimic_alerts.ward import Artefact, Course, Ward, stories

START = np.datetime64("2026-01-01T08:00:00", "us")


def packets(samples: signals.Array, column: str, step: float) -> dict[str, Any]:
    """Whole seconds of samples as a window sees them."""
    seconds = samples.reshape(-1, signals.RATE_HZ)
    found = np.empty(len(seconds), dtype=object)
    found[:] = [signals.pack(second, step) for second in seconds]
    return {column: found, "taken_at": START + np.arange(len(seconds)) * np.timedelta64(1, "s")}


def of_window(samples: signals.Array) -> tuple[Any, ...]:
    size = 5 * signals.RATE_HZ
    whole = packets(samples, "mmhg", signals.PRESSURE_STEP)
    panes = [
        signals.pressure_pane({name: column[i : i + 5] for name, column in whole.items()})
        for i in range(0, len(samples) // signals.RATE_HZ, 5)
    ]
    assert len(panes) == len(samples) // size
    return signals.pressure_window(panes)


def waves(course: Course, seconds: int = 60, seed: int = 3) -> tuple[signals.Array, signals.Array]:
    ward = Ward(1, minutes=10, seed=seed, courses=[course])
    both = [ward.second(second) for second in range(seconds)]
    return np.concatenate([pap[0] for pap, _ in both]), np.concatenate([ecg[0] for _, ecg in both])


def test_a_packet_keeps_its_samples() -> None:
    samples = np.array([0.0, 12.34, -72.0, 192.0, np.nan])
    back = signals.unpack([signals.pack(samples, 0.01)], 0.01)
    assert np.allclose(back, samples, atol=0.005, equal_nan=True)


@pytest.mark.parametrize("mean", [12.0, 25.0, 45.0])
def test_window_mean_and_spread_are_those_of_the_samples(mean: float) -> None:
    pap, _ = waves(Course("", mean))
    ended_at, found, spread, fault = of_window(pap)
    assert fault is None
    assert found == pytest.approx(pap.mean(), abs=0.01)
    assert spread == pytest.approx(pap.std(), abs=0.01)
    assert abs(found - mean) < 2
    assert ended_at == dt.datetime(2026, 1, 1, 8, 1)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("clamped", "clamped at 90 mmHg"),
        ("flat", "flat line"),
        ("flush", "line flushed"),
        ("zero", "transducer zeroed"),
    ],
)
def test_artefacts_are_no_measurements(kind: str, told: str) -> None:
    pap, _ = waves(Course("", 20.0, artefacts=(Artefact(kind, 0, 60),)))
    assert of_window(pap)[3] == told
    part, _ = waves(Course("", 40.0, artefacts=(Artefact(kind, 30, 35),)))
    assert of_window(part)[3] == told


def test_missing_samples_and_missing_packets() -> None:
    pap, _ = waves(Course("", 20.0))
    pap[: 10 * signals.RATE_HZ] = np.nan
    assert of_window(pap)[3] == "signal lost"
    gap = [
        (0, 4_000_000, 625, 625, 12_500.0, 270_000.0, 0, 0, 0),
        (65_000_000, 69_000_000, 625, 625, 12_500.0, 270_000.0, 0, 0, 0),
    ]
    assert signals.pressure_window(gap)[3] == "signal lost"


@pytest.mark.parametrize("rate", [50, 78, 110, 150])
def test_beats_are_found(rate: int) -> None:
    """Windows of four seconds, every two: together each beat once."""
    _, ecg = waves(Course("", rate=rate), 62)
    seconds = packets(ecg, "mv", signals.ECG_STEP)
    found = []
    for begin in range(0, 59, 2):
        window = {name: column[begin : begin + 4] for name, column in seconds.items()}
        beats = signals.find_beats(window)
        assert beats is not None
        found += beats
    assert len(found) == pytest.approx(rate, abs=2)
    gaps = np.diff(np.array(found, dtype="datetime64[us]")).astype(float) / 1e6
    assert gaps.min() > 0.6 * 60 / rate


def test_no_beats_without_leads() -> None:
    _, ecg = waves(Course("", artefacts=(Artefact("leads", 0, 60),)), 4)
    assert signals.find_beats(packets(ecg, "mv", signals.ECG_STEP)) is None


def test_the_ward_is_the_same_for_a_seed() -> None:
    def first(seed: int) -> list[Any]:
        return [step.pap for _, step in zip(range(5), Ward(8, 2, seed).steps(), strict=False)]

    assert first(1) == first(1)
    assert first(1) != first(2)


def test_drugs_bring_the_pressure_down() -> None:
    assert stories(10)[0].pap_rise > 0

    def last(give: bool) -> float:
        ward = Ward(1, minutes=10)
        if give:
            ward.administered(1, "nesiritide", dt.datetime(2026, 1, 1, 8))
        return float(np.mean([ward.second(second)[0] for second in range(590)][-30:]))

    assert last(True) < 25 < 35 < last(False)
