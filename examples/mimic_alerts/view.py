"""What the page shows beside the waves, as one JSON value."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

from tidegate.examples.mimic_alerts.app import PRESSURE_SIGN, RATE_SIGN
from tidegate.examples.mimic_alerts.safety import harms, judge
from tidegate.examples.mimic_alerts.shift import Shift, start_of

TREND_S = 300  # seconds of window averages shown
SHOWN = 40
SIGNS = {PRESSURE_SIGN: "The pressure in the lung is too high", RATE_SIGN: "The heart beats too fast"}
UNITS = {PRESSURE_SIGN: "mmHg", RATE_SIGN: "beats/min"}
WAITS = {"visit": "visit", "emergency": "pressure reading", "cardiac": "heart reading", "chart": "look at the chart"}
ENDINGS = {
    "given": "accepted, given",
    "declined": "declined, not given",
    "lapsed": "nobody decided in time, not given",
}
FAULTS = {
    "clamped at 90 mmHg": "it is stuck at 90 mmHg",
    "line flushed": "it is being flushed",
    "transducer zeroed": "it is being set to zero",
    "flat line": "it shows a flat line",
    "signal lost": "the signal is lost",
    "leads off": "a lead has come off",
}
TAGS = {
    "clamped at 90 mmHg": "line stuck",
    "line flushed": "line being flushed",
    "transducer zeroed": "being set to zero",
    "leads off": "lead off",
}


class State:
    """Looks at a shift, in the thread that plays it."""

    def __init__(self, shift: Shift) -> None:
        self._shift = shift
        self._taken: dict[str, int] = {}
        self._trend: dict[int, list[tuple[float, float | None]]] = {}
        self._rates: dict[int, float] = {}
        self._lines: dict[int, dict[str, str]] = {}
        self._news: list[dict[str, Any]] = []
        self._receipts: list[dict[str, Any]] = []
        self._counts: Counter[str] = Counter()

    def look(self) -> dict[str, Any]:
        """The current state. The medications are read first: their outcomes are then in what is collected afterwards,
        and a question that is still open afterwards had no answer at that time.
        """
        engine = self._shift.engine
        events = list(engine.query("SELECT * FROM med_events ORDER BY given_at DESC, patient, number DESC"))
        waits = engine.query(
            """SELECT partition AS patient, unit, count(DISTINCT position) AS number FROM tidegate.locks
               WHERE held_by IS NOT NULL GROUP BY ALL ORDER BY ALL LIMIT 60"""
        ).rows
        self._shift.collect()
        with engine.lock:
            questions = [self._question(question) for question in engine.questions()]
            commits = dict(engine.journal.commits)
            unfinished = len(engine.scheduler.live)
        self._take()
        verdict = judge(events, self._shift.seen.rows)
        return {
            "at": self._shift.clock.now(),
            "passed_s": self._shift.clock.monotonic(),
            "questions": questions,
            "events": [self._event(event) for event in events[:SHOWN]],
            "event_count": len(events),
            "charted": [(event.patient, event.number, event.drug) for event in events],
            "waits": [{"patient": patient, "what": WAITS.get(unit, unit), "number": n} for patient, unit, n in waits],
            "trend": {patient: trend[-TREND_S // 5 :] for patient, trend in self._trend.items()},
            "rates": self._rates,
            "lines": {
                patient: {signal: TAGS.get(found, found) for signal, found in lines.items()}
                for patient, lines in self._lines.items()
            },
            "news": sorted(self._news, key=lambda one: one["passed_s"])[-SHOWN:][::-1],
            "receipts": sorted(self._receipts, key=lambda one: one["passed_s"])[::-1],
            "counts": dict(self._counts),
            "commits": commits,
            "unfinished": unfinished,
            "harmed": [harm._asdict() for harm in harms(events)],
            "safe": {
                "doubled": len(verdict.doubled),
                "clashing": len(verdict.clashing),
                "repeated": len(verdict.repeated),
                "misapplied": len(verdict.misapplied),
            },
        }

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
                start = start_of(self._shift.source, patient)
                trend.append(
                    ((row.taken_at - start).total_seconds(), None if row.state != "ok" else round(row.mean, 1))
                )
                del trend[: -2 * TREND_S // 5]
            case "rates":
                self._rates[patient] = round(row.rate)
            case "technical_alarms" | "lead_alarms":
                self._lines.setdefault(patient, {})[row.signal] = row.state
                signal = {"pap": "The pressure line", "ecg": "The heart monitor"}[row.signal]
                if row.state != "ok":
                    self._counts["alarms"] += 1
                told = (
                    f"{signal} can't be trusted: {FAULTS.get(row.state, row.state)}"
                    if row.state != "ok"
                    else f"{signal} is fine again"
                )
                self._tell(row.since, patient, "technical" if row.state != "ok" else "quiet", told)
            case "outcomes" | "rate_outcomes":
                self._take_decision(stream, patient, batch_id, row)
            case "notices" | "rate_notices":
                self._counts["held back"] += 1
                told = f"{SIGNS[row.sign]}, but {row.drug} must not be given: {row.reason}"
                self._tell(row.found_at, patient, "suppressed", told)
            case "visit_outcomes" if row.kind == "seen":
                self._tell(row.visit_at, patient, "quiet", f"Visited: {row.reason}")
            case "visit_outcomes":
                who = {"visit": "a doctor at the bed", "schedule": "the medication plan"}.get(row.origin, row.origin)
                self._counts["given" if row.given else "refused"] += 1
                told = f"{row.drug} given ({who})" if row.given else f"{row.drug} refused ({who} asked): {row.reason}"
                self._tell(row.visit_at, patient, "given" if row.given else "refused", told)

    def _take_decision(self, stream: str, patient: int, batch_id: int, row: Any) -> None:
        """A receipt: who decided what, about what, when, and where it is charted."""
        lapsed = row.decided_by.startswith("nobody")
        deadline = dt.timedelta(seconds=self._shift.engine.app.streams["decisions"].deadline_s or 0)
        at = row.decided_at or row.found_at + deadline
        kind = "given" if row.given else "lapsed" if lapsed else "declined"
        self._counts["accepted" if row.given else kind] += 1
        self._counts["given"] += row.given
        told = {
            "given": "accepted, given",
            "declined": "declined, not given",
            "lapsed": "nobody decided in time, not given",
        }[kind]
        self._tell(at, patient, kind, f"{row.drug}: {told}" + ("" if lapsed else f" ({row.decided_by})"))
        self._receipts.append(
            {
                "receipt": f"{'P' if stream == 'outcomes' else 'H'}{patient}-{batch_id}",
                "patient": patient,
                "kind": kind,
                "sign": SIGNS[row.sign],
                "plain_sign": row.sign,
                "value": row.value,
                "limit": row.limit_value,
                "unit": UNITS[row.sign],
                "drug": row.drug,
                "dose": f"{row.dose:g} {row.unit}",
                "asked_at": row.found_at,
                "decided_at": at,
                "by": row.decided_by,
                "line": row.number,
                "passed_s": (at - start_of(self._shift.source, patient)).total_seconds(),
            }
        )

    def _tell(self, at: dt.datetime, patient: int, kind: str, told: str) -> None:
        passed_s = (at - start_of(self._shift.source, patient)).total_seconds()
        self._news.append({"at": at, "passed_s": passed_s, "patient": patient, "kind": kind, "told": told})
        if len(self._news) > 8 * SHOWN:
            self._news = sorted(self._news, key=lambda one: one["passed_s"])[-4 * SHOWN :]

    def _question(self, question: Any) -> dict[str, Any]:
        advice = next(batch[0] for name, batch in question.batches.items() if name.endswith("recommendations"))
        return {
            "question": question.id,
            "digest": question.digest,
            "stream": question.stream,
            "patient": question.key,
            "batch_id": question.batch_id,
            "unit": question.unit,
            "left_s": question.deadline_in_s,
            "sign": SIGNS[advice.sign],
            "unit_of_value": UNITS[advice.sign],
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
