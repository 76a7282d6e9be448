"""The hospital at real-time speed: does it keep up, and how soon after a window's last sample is its alert there?

The monitors of all patients send a packet of 125 samples every second, spread over the second. Every patient's pressure is too
high, and for nine in ten the drug was given before: each of their windows ends in a notice. The others' doctor declines at once.
Latency is the time from when a packet is due, which is when its last sample was taken, to the notice or the question.
"""

from __future__ import annotations

import datetime as dt
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tidegate.benchmarks.setting import setting
from tidegate.engine.engine import Engine
from tidegate.examples.mimic_alerts import signals
from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.ward import Course, Ward

Progress = Callable[[str], None]
SLICES = 40  # groups of monitors that send together
WARM_S = 70  # the window must be full


def bench(
    patients: int = 200,
    seconds: int = 30,
    durable: bool = False,
    progress: Progress = lambda text: None,
) -> dict[str, Any]:
    """Play ``seconds`` in real time, after a minute at full speed to fill the windows."""
    progress("making waveforms")
    packets = _waveforms(patients, 20)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as made:
        engine = start(hospital(60, quiet_s=0.5), made if durable else None)
        with engine:
            _admit(engine, patients)
            progress("filling the windows")
            filled = _fill(engine, packets, patients)
            progress(f"{seconds} seconds in real time")
            figures = _play(engine, packets, patients, seconds)
    return {
        "patients": patients,
        "samples_per_s": patients * signals.RATE_HZ,
        **figures,
        "as_fast_as_it_goes_samples_per_s": round(filled),
        "durable": durable,
        **setting(),
    }


def _waveforms(patients: int, seconds: int) -> list[list[bytes]]:
    """By second, by patient: packets, played in a loop."""
    ward = Ward(patients, 10, seed=1, courses=[Course("high", pap=38.0)])
    return [[signals.pack(wave, signals.PRESSURE_STEP) for wave in ward.second(second)[0]] for second in range(seconds)]


def _admit(engine: Engine, patients: int) -> None:
    for patient in range(1, patients + 1):
        engine.call("admit", patient, f"bed {patient}")
        if patient % 10:
            engine.call("record", patient, [["nesiritide", _at(0), _at(86_400), 2.0, "mcg/kg"]])


def _at(second: int) -> dt.datetime:
    return dt.datetime(2026, 1, 1) + dt.timedelta(seconds=second)


def _fill(engine: Engine, packets: list[list[bytes]], patients: int) -> float:
    """The first minute; returns samples a second."""
    began = time.perf_counter()
    for second in range(WARM_S):
        now = packets[second % len(packets)]
        engine.push("pap", [(p, _at(second), now[p - 1]) for p in range(1, patients + 1)], batch_id=second + 1)
        _answer(engine)
    return WARM_S * patients * signals.RATE_HZ / (time.perf_counter() - began)


def _answer(engine: Engine) -> list[Any]:
    """The doctor declines; returns what was asked."""
    asked = engine.questions()
    for question in asked:
        row = {"patient": question.key, "give": False, "decided_by": "a doctor"}
        engine.push(question.stream, [row], batch_id=question.batch_id)
    return asked


def _play(engine: Engine, packets: list[list[bytes]], patients: int, seconds: int) -> dict[str, Any]:
    notices = engine.subscribe("notices")
    groups = [list(range(1 + slice_, patients + 1, SLICES)) for slice_ in range(SLICES)]
    latencies: list[float] = []
    late: list[float] = []
    asked = 0
    busy_before, began = time.process_time(), time.perf_counter() + 0.1
    for second in range(seconds):
        now = packets[second % len(packets)]
        number = WARM_S + second
        for place, group in enumerate(groups):
            due = began + second + place / SLICES
            time.sleep(max(0.0, due - time.perf_counter()))
            late.append(time.perf_counter() - due)
            engine.push("pap", [(p, _at(number), now[p - 1]) for p in group], batch_id=number + 1)
            questions = _answer(engine)
            asked += len(questions)
            found = len(questions) + sum(len(batch) for batch in notices)
            latencies += [time.perf_counter() - due] * found
    took = time.perf_counter() - began
    busy = time.process_time() - busy_before
    percentile = np.percentile(np.array(latencies) * 1000, [50, 99, 100]) if latencies else [float("nan")] * 3
    return {
        "alerts": len(latencies),
        "questions": asked,
        "alert_latency_p50_ms": round(float(percentile[0]), 1),
        "alert_latency_p99_ms": round(float(percentile[1]), 1),
        "alert_latency_max_ms": round(float(percentile[2]), 1),
        "packets_late_max_ms": round(max(late) * 1000, 1),
        "seconds_played": seconds,
        "seconds_taken": round(took, 2),
        "processor_share": round(busy / took, 3),
        "holds": bool(percentile[1] < 2000 and max(late) < 2),
    }
