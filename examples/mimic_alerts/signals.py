"""Waveforms as they are sent: packets of one second, what a window computes from them, and whether it is valid.

A packet is what a bedside monitor sends: 125 samples as 16-bit whole numbers (WFDB's format 16), in hundredths of a mmHg for
pressures and in thousandths of a mV for the ECG. A missing sample is the smallest number.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

RATE_HZ = 125
PRESSURE_STEP = 0.01  # mmHg
ECG_STEP = 0.001  # mV
MISSING = -32768
PAP_PACKETS, PAP_SLIDE = 60, 5  # the window of the alert: one minute, every five seconds
RAIL_MMHG = 90.0  # monitors clamp here
RAIL, NEAR_RAIL = 9_000, 50  # in steps
LOW, HIGH = 200, 12_000  # in steps: below 2 and above 120 mmHg there is no pressure
PRESSURE = "ended_at TIMESTAMP, mean DOUBLE, spread DOUBLE, fault VARCHAR"


def pack(values: Array, step: float) -> bytes:
    """Samples as a packet; NaN is missing."""
    whole = np.where(np.isnan(values), MISSING, np.clip(np.round(values / step), -32767, 32767))
    return whole.astype("<i2").tobytes()


def unpack(packets: Sequence[bytes], step: float) -> Array:
    """The samples of packets, one after another."""
    whole = np.frombuffer(b"".join(packets), "<i2")
    return np.where(whole == MISSING, np.nan, whole * step)


# ---- pressure: what is kept of a pane, and what a window makes of its panes


def pressure_pane(packets: Any) -> tuple[float, ...]:
    """Of some packets: first and last time; samples, valid ones, their sum, squares; on the rail, near 0, too high."""
    whole = np.frombuffer(b"".join(packets["mmhg"]), "<i2")
    if len(whole) and whole.min() == MISSING:
        whole, sent = whole[whole != MISSING], len(whole)
    else:
        sent = len(whole)
    lowest, highest = (int(whole.min()), int(whole.max())) if len(whole) else (LOW, LOW)
    valid = whole.astype(np.int64)  # sums of whole steps are exact
    times = packets["taken_at"].astype("datetime64[us]").view(np.int64)
    return (
        int(times.min()),
        int(times.max()),
        sent,
        len(valid),
        int(valid.sum()) * PRESSURE_STEP,
        int(valid @ valid) * PRESSURE_STEP**2,
        0 if highest <= RAIL - NEAR_RAIL else int(np.count_nonzero(np.abs(valid - RAIL) < NEAR_RAIL)),
        0 if lowest >= LOW else int(np.count_nonzero(valid < LOW)),
        0 if highest <= HIGH else int(np.count_nonzero(valid > HIGH)),
    )


def pressure_window(panes: Sequence[tuple[float, ...]]) -> tuple[Any, ...]:
    """When it ended, mean, spread, and why it is not a valid measurement: as a whole, or because of one pane."""
    firsts, lasts, *counts = zip(*panes, strict=True)
    first, last = int(min(firsts)), int(max(lasts))
    whole = tuple(map(sum, counts))
    ended_at = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=last + 1_000_000)
    why = fault(whole) or next((found for pane in reversed(panes) if (found := pane_fault(pane)) is not None), None)
    if (last - first) / 1e6 + 1 > 1.1 * whole[0] / RATE_HZ:
        why = "signal lost"
    mean, spread = moments(whole)
    return ended_at, mean, spread, why


@lru_cache(maxsize=10_000)
def pane_fault(pane: tuple[float, ...]) -> str | None:
    """Each pane is looked at by every window that holds it."""
    return fault(pane[2:])


def moments(counts: Sequence[float]) -> tuple[float | None, float | None]:
    """Mean and standard deviation, from the counts of a pane, after its times."""
    _, valid, total, squares, *_ = counts
    if not valid:
        return None, None
    mean = total / valid
    return mean, max(squares / valid - mean * mean, 0.0) ** 0.5


def fault(counts: Sequence[float]) -> str | None:
    """Why a stretch of pressure is not a valid measurement, or None if it is."""
    samples, valid, _, _, railed, low, high = counts
    mean, spread = moments(counts)
    if mean is None or spread is None or valid < 0.9 * samples:
        return "signal lost"
    if railed > 0.1 * valid:
        return "clamped at 90 mmHg"
    if high > 0.01 * valid:
        return "line flushed"
    if mean < 3 or (low > 0.05 * valid and spread > 12):
        return "transducer zeroed"
    return "flat line" if spread < 1.5 else None


# ---- ECG


def find_beats(window: Any) -> list[dt.datetime] | None:
    """Beats in the middle half of a window of four packets; the next window has the rest. None: no usable ECG.

    A beat is where the signal is steep: the energy of its slope over a seventh of a second is far above average.
    """
    samples = unpack(list(window["mv"]), ECG_STEP)
    if np.isnan(samples).mean() > 0.1:
        return None
    samples = np.nan_to_num(samples, nan=float(np.nanmedian(samples)))
    slope = np.zeros_like(samples)
    slope[2:-2] = samples[4:] - samples[:-4]
    if samples.std() < 0.01 or np.abs(slope).max() < 0.05:
        return None
    energy = np.convolve(slope * slope, np.ones(18) / 18, "same")
    above = np.flatnonzero(energy > 0.35 * float(np.quantile(energy, 0.98)))
    times = window["taken_at"].astype("datetime64[us]")
    quarter = len(samples) // 4
    found, last = [], -RATE_HZ
    for run in np.split(above, np.flatnonzero(np.diff(above) > 10) + 1):
        place = int(run[0]) + int(np.argmax(energy[run[0] : run[-1] + 1]))
        if place - last < RATE_HZ // 4:
            continue
        last = place
        if quarter <= place < 3 * quarter:
            at = times[place // RATE_HZ] + np.timedelta64(place % RATE_HZ * 8000, "us")
            found.append(at.astype(dt.datetime))
    return found
