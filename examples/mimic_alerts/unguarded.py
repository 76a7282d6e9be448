"""The same ward without the guarantees, live: the second half of the page.

It gets the same measurements, visits and decisions, runs the same procedures, and is judged by the same rules. It is put
together the usual way, from a queue, workers and a database: a step writes at once, nothing is locked while the doctor thinks,
and after a power cut the messages since the last checkpoint are processed again. It is a model (:mod:`loose`), not a
measurement of any product.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from tidegate.examples.mimic_alerts import signals
from tidegate.examples.mimic_alerts.app import PRESSURE_SIGN, hospital
from tidegate.examples.mimic_alerts.loose import Decision, LooseTxn, Tables, Window
from tidegate.examples.mimic_alerts.safety import Harm, harms
from tidegate.examples.mimic_alerts.source import Source, Step

CHECKPOINT_S = 60.0  # messages since then come again


class Rhythm(NamedTuple):
    """Beats of 15 seconds."""

    number: int
    first_at: dt.datetime
    last_at: dt.datetime


class Monitor:
    """The windows of one patient, as the app declares them."""

    def __init__(self) -> None:
        self.packets: list[tuple[dt.datetime, bytes]] = []
        self.panes: deque[tuple[float, ...]] = deque(maxlen=signals.PAP_PACKETS // signals.PAP_SLIDE)
        self.ecg: deque[tuple[dt.datetime, bytes]] = deque(maxlen=4)
        self.seconds = 0
        self.beats: deque[dt.datetime] = deque(maxlen=100)
        self.count = 0

    def pressure(self, at: dt.datetime, packet: bytes) -> Window | None:
        self.packets.append((at, packet))
        if len(self.packets) < signals.PAP_SLIDE:
            return None
        self.panes.append(signals.pressure_pane(_columns(self.packets, "mmhg")))
        self.packets.clear()
        if len(self.panes) < (self.panes.maxlen or 0):
            return None
        ended_at, mean, _, fault = signals.pressure_window(tuple(self.panes))
        return Window(ended_at, mean, fault)

    def heart(self, at: dt.datetime, packet: bytes) -> list[Rhythm]:
        self.ecg.append((at, packet))
        self.seconds += 1
        found: list[Rhythm] = []
        if len(self.ecg) < 4 or self.seconds % 2:
            return found
        for beat in signals.find_beats(_columns(list(self.ecg), "mv")) or []:
            self.beats.append(beat)
            self.count += 1
            if self.count % 8 == 0:
                recent = [one for one in self.beats if one > beat - dt.timedelta(seconds=15)]
                found.append(Rhythm(len(recent), recent[0], beat))
        return found


def _columns(packets: list[tuple[dt.datetime, bytes]], name: str) -> dict[str, Any]:
    return {"taken_at": np.array([at for at, _ in packets], "datetime64[us]"), name: [packet for _, packet in packets]}


class Unguarded:
    """Runs the hospital's procedures over dictionaries, step by step. ``harmed``: who got a dose that the rules forbid."""

    def __init__(self, source: Source, deadline_s: float, quiet_s: float) -> None:
        self.tables = Tables(hospital(deadline_s, quiet_s))
        self.repeated = 0  # messages that came again
        self._monitors = {patient.patient: Monitor() for patient in source.patients}
        self._open: dict[tuple[int, str], tuple[int, Any]] = {}  # what the doctor is asked
        self._since: list[tuple[str, int, int, tuple[Any, ...]]] = []
        self._checkpoint: dt.datetime | None = None
        for patient in source.patients:
            self.tables.put("patients", tuple(patient[:4]))
            for number, (drug, given_at, until_at, dose, unit) in enumerate(source.history.get(patient.patient, []), 1):
                row = (patient.patient, number, drug, given_at, until_at, dose, unit, "record", None)
                self.tables.put("med_events", row)

    def step(self, step: Step) -> None:
        """A second of every patient."""
        if self._checkpoint is None or (step.at - self._checkpoint).total_seconds() >= CHECKPOINT_S:
            self._checkpoint = step.at
            self._since.clear()
        for patient, at, packet in step.pap:
            window = self._monitors[patient].pressure(at, packet)
            if window is not None:
                self._run("watch_pressure", patient, step.number, (window,))
        for patient, at, packet in step.ecg:
            for rhythm in self._monitors[patient].heart(at, packet):
                self._run("watch_rate", patient, step.number, (rhythm,))
        for wish in step.visits:
            self._message("visit", wish.patient, step.number, (wish,))

    def decided(self, patient: int, sign: str, give: bool, by: str, at: dt.datetime | None) -> None:
        """The same decision as in the other ward."""
        batch_id, advice = self._open.pop((patient, sign), (0, None))
        if advice is not None:
            name = "administer" if sign == PRESSURE_SIGN else "administer_slower"
            self._message(name, patient, batch_id, (advice, Decision(give, by, at)))

    def plug(self) -> None:
        """Power is cut and comes back: the messages since the last checkpoint are processed again."""
        again, self._since = self._since, []
        self.repeated += len(again)
        for message in again:
            self._message(*message)

    @property
    def doses(self) -> int:
        return sum(row.origin != "record" for row in self.tables.rows["med_events"].values())

    def harmed(self) -> list[Harm]:
        return harms(self.tables.rows["med_events"].values())

    def _message(self, procedure: str, patient: int, batch_id: int, rows: tuple[Any, ...]) -> None:
        self._since.append((procedure, patient, batch_id, rows))
        self._run(procedure, patient, batch_id, rows)

    def _run(self, procedure: str, patient: int, batch_id: int, rows: tuple[Any, ...]) -> None:
        function = self.tables.app.procedures[procedure].function
        txn: Any = LooseTxn(self.tables, patient, batch_id, list(rows))
        if procedure.startswith("administer"):
            function(txn, [rows[0]], [rows[1]])
            return
        function(txn, list(rows))
        for stream, following in (("elevated", "recommend"), ("fast", "recommend_slower")):
            for sign in txn.out.get(stream, []):
                self._run(following, patient, batch_id, (sign,))
        for stream in ("recommendations", "rate_recommendations"):
            for advice in txn.out.get(stream, []):
                self._open[patient, advice.sign] = (batch_id, advice)
