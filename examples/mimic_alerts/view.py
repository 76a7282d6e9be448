"""What the page shows beside the waves, as one JSON value."""

from __future__ import annotations

import datetime as dt
from typing import Any

from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.shift import Shift

TREND_S = 300  # seconds of window averages shown
SHOWN = 40


class State:
    """Looks at a shift, in the thread that plays it."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._taken: dict[str, int] = {}
        self._trend: dict[int, list[tuple[float, float | None]]] = {}
        self._rates: dict[int, float] = {}
        self._lines: dict[int, dict[str, str]] = {}
        self._news: list[dict[str, Any]] = []
        self.latest: dict[str, Any] = {}

    def ward(self) -> dict[str, Any]:
        """What does not change: who lies where."""
        source = self._shift.source
        return {
            "name": source.name,
            "patients": [patient._asdict() for patient in source.patients],
            "deadline_s": self._shift.engine.app.streams["decisions"].deadline_s,
        }

    def look(self) -> dict[str, Any]:
        """The current state. The medications are read first: their outcomes are then in what is collected afterwards,
        and a question that is still open afterwards had no answer at that time.
        """
        engine = self._shift.engine
        events = list(engine.query("SELECT * FROM med_events ORDER BY given_at DESC, patient, number DESC"))
        waits = engine.query(
            """SELECT DISTINCT unit, table_name, partition AS patient, held_by, waits_behind, position
               FROM tidegate.locks WHERE held_by IS NOT NULL ORDER BY position LIMIT 60"""
        ).rows
        self._shift.collect()
        with engine.lock:
            questions = [self._question(question) for question in engine.questions()]
            commits = dict(engine.journal.commits)
            unfinished = len(engine.scheduler.live)
        self._take()
        verdict = judge(events, self._shift.seen.rows)
        self.latest = {
            "at": self._shift.clock.now(),
            "passed_s": self._shift.clock.monotonic(),
            "questions": questions,
            "events": [self._event(event) for event in events[:SHOWN]],
            "event_count": len(events),
            "waits": [
                dict(zip(("unit", "table", "patient", "held_by", "behind", "position"), row, strict=True))
                for row in waits
            ],
            "trend": {patient: trend[-TREND_S // 5 :] for patient, trend in self._trend.items()},
            "rates": self._rates,
            "lines": self._lines,
            "news": self._news[-SHOWN:][::-1],
            "commits": commits,
            "unfinished": unfinished,
            "packets": self._shift.seen.packets,
            "safe": {
                "doubled": len(verdict.doubled),
                "clashing": len(verdict.clashing),
                "repeated": len(verdict.repeated),
                "misapplied": len(verdict.misapplied),
            },
        }
        return self.latest

    def _take(self) -> None:
        """What was committed since the last look."""
        for stream, rows in self._shift.seen.rows.items():
            for key, batch_id, row in rows[self._taken.get(stream, 0) :]:
                self._taken[stream] = self._taken.get(stream, 0) + 1
                self._take_row(stream, key, batch_id, row)

    def _take_row(self, stream: str, patient: int, batch_id: int, row: Any) -> None:
        match stream:
            case "vitals":
                trend = self._trend.setdefault(patient, [])
                start = self._start_of(patient)
                trend.append(
                    ((row.taken_at - start).total_seconds(), None if row.state != "ok" else round(row.mean, 1))
                )
                del trend[: -2 * TREND_S // 5]
            case "rates":
                self._rates[patient] = round(row.rate)
            case "technical_alarms" | "lead_alarms":
                self._lines.setdefault(patient, {})[row.signal] = row.state
                signal = {"pap": "pressure", "ecg": "ECG"}[row.signal]
                told = f"{signal}: {row.state}" if row.state != "ok" else f"{signal} is back"
                self._tell(row.since, patient, "technical" if row.state != "ok" else "quiet", told)
            case "outcomes" | "rate_outcomes":
                kind = "given" if row.given else "declined"
                told = f"{row.drug} given" if row.given else f"{row.drug} not given"
                self._tell(row.found_at, patient, kind, f"{told}: {row.decided_by} (alert {batch_id})")
            case "notices" | "rate_notices":
                self._tell(row.found_at, patient, "suppressed", f"{row.sign}, nothing to recommend: {row.reason}")
            case "visit_outcomes" if row.kind == "seen":
                self._tell(row.visit_at, patient, "quiet", f"visited: {row.reason}")
            case "visit_outcomes":
                told = (
                    f"{row.drug} given ({row.origin})"
                    if row.given
                    else f"{row.drug} refused ({row.origin}): {row.reason}"
                )
                self._tell(row.visit_at, patient, "given" if row.given else "refused", told)

    def _start_of(self, patient: int) -> dt.datetime:
        starts: dict[int, dt.datetime] = getattr(self._shift.source, "starts", {})
        return starts.get(patient, self._shift.source.start)

    def _tell(self, at: dt.datetime, patient: int, kind: str, told: str) -> None:
        self._news.append({"at": at, "patient": patient, "kind": kind, "told": told})
        del self._news[: -4 * SHOWN]

    def _question(self, question: Any) -> dict[str, Any]:
        advice = next(batch[0] for name, batch in question.batches.items() if name.endswith("recommendations"))
        return {
            "question": question.id,
            "stream": question.stream,
            "patient": question.key,
            "batch_id": question.batch_id,
            "unit": question.unit,
            "left_s": question.deadline_in_s,
            "sign": advice.sign,
            "value": advice.value,
            "limit": advice.limit_value,
            "recent": advice.recent,
            "drug": advice.drug,
            "dose": advice.dose,
            "unit_of_dose": advice.unit,
            "found_at": advice.found_at,
        }

    def _event(self, event: Any) -> dict[str, Any]:
        return {
            "patient": event.patient,
            "number": event.number,
            "drug": event.drug,
            "at": event.given_at,
            "until": event.until_at,
            "dose": event.dose,
            "unit": event.unit,
            "origin": event.origin,
        }
