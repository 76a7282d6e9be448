"""The hospital of the S-Store paper (Tatbul et al., section 2): several dataflows share the list of medications.

    pap ──▶ watch_pressure ──▶ elevated ──▶ recommend ──▶ recommendations ──▶ administer ──▶ outcomes
      │     SP1, window of 60 s             SP2 │               decisions ──▶ SP3
      │     └──────────────────── one nested transaction for each batch of a patient ───┘
      └───▶ check_signal ──▶ technical_alarms

    ecg ──▶ find_rhythm ──▶ beats ──▶ watch_rate ──▶ fast ──▶ recommend_slower ──▶ … the same, with a window by beats
    visits ──▶ visit ──▶ visit_outcomes                                             SP4: a doctor's round, the schedule

All of them read and write ``med_events``, one partition for each patient. While a doctor decides, that patient's
partition stays locked; other patients are not affected.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Literal

import tidegate
from tidegate import App, Batch, Transaction, partition, window
from tidegate import windows as w
from tidegate.examples.mimic_alerts import rules, signals

PRESSURE_SIGN, RATE_SIGN = tuple(rules.INDICATIONS)
RULES = ("drugs", "interactions", "indications")
PATIENT_TABLES = {
    "patients": """CREATE TABLE patients (patient INTEGER PRIMARY KEY, bed VARCHAR NOT NULL, pap_limit DOUBLE NOT NULL,
                                          rate_limit DOUBLE NOT NULL)""",
    "med_events": """CREATE TABLE med_events (patient INTEGER, number INTEGER, drug VARCHAR NOT NULL,
                                              given_at TIMESTAMP NOT NULL, until_at TIMESTAMP, dose DOUBLE, unit VARCHAR,
                                              origin VARCHAR NOT NULL, asked_id BIGINT, PRIMARY KEY (patient, number))""",
    "asked": """CREATE TABLE asked (patient INTEGER, sign VARCHAR, asked_at TIMESTAMP NOT NULL, outcome VARCHAR NOT NULL,
                                    PRIMARY KEY (patient, sign))""",
    "signal_states": """CREATE TABLE signal_states (patient INTEGER, signal VARCHAR, state VARCHAR NOT NULL,
                                                    since TIMESTAMP NOT NULL, PRIMARY KEY (patient, signal))""",
}
SIGN_COLUMNS = "patient INTEGER, sign VARCHAR, found_at TIMESTAMP, value DOUBLE, limit_value DOUBLE, recent VARCHAR"
ADVICE_COLUMNS = f"{SIGN_COLUMNS}, drug VARCHAR, dose DOUBLE, unit VARCHAR"
NOTICE_COLUMNS = f"{SIGN_COLUMNS}, drug VARCHAR, kind VARCHAR, reason VARCHAR"
OUTCOME_COLUMNS = f"{ADVICE_COLUMNS}, given BOOLEAN, decided_by VARCHAR, decided_at TIMESTAMP, number INTEGER"
ALARM_COLUMNS = "patient INTEGER, signal VARCHAR, state VARCHAR, since TIMESTAMP"


def hospital(
    deadline_s: float = 120,
    quiet_s: float = 600,
    backend: dict[str, Any] | None = None,
    recovery: Literal["weak", "strong", "effects"] = "weak",
) -> App:
    """The app. Undecided recommendations lapse after ``deadline_s``; a sign is not raised again for ``quiet_s``.

    ``backend``: further arguments for the windows over waveforms, such as a pattern. ``recovery``: what is logged.
    """
    app = App("hospital", recovery=recovery)
    for ddl in PATIENT_TABLES.values():
        app.table(ddl, partition_by="patient")
    app.table("""CREATE TABLE drugs (drug VARCHAR PRIMARY KEY, dose DOUBLE NOT NULL, unit VARCHAR NOT NULL,
                                     min_interval_s INTEGER NOT NULL)""")
    app.table("""CREATE TABLE interactions (drug VARCHAR, other VARCHAR, within_s INTEGER NOT NULL, why VARCHAR NOT NULL,
                                            PRIMARY KEY (drug, other))""")
    app.table("CREATE TABLE indications (sign VARCHAR PRIMARY KEY, drug VARCHAR NOT NULL)")
    _desk(app)
    _emergency(app, deadline_s, quiet_s, backend or {})
    _cardiac(app, deadline_s, quiet_s)
    _visits(app)
    return app


# ---- called by clients


def _desk(app: App) -> None:
    """Admission and look-ups."""

    @app.procedure(writes=list(RULES))
    def set_up(txn: Transaction) -> None:
        for drug in rules.DRUGS:
            txn.upsert("drugs", drug)
        for interaction in rules.INTERACTIONS:
            txn.upsert("interactions", interaction)
        for indication in rules.INDICATIONS.items():
            txn.upsert("indications", indication)

    @app.procedure(writes=[partition("patients", by="patient")])
    def admit(txn: Transaction, patient: int, bed: str, pap_limit: float = 25.0, rate_limit: float = 130.0) -> None:
        txn.upsert("patients", (patient, bed, pap_limit, rate_limit))

    @app.procedure(writes=[partition("med_events", by="patient")])
    def record(txn: Transaction, patient: int, events: list[list[Any]]) -> None:
        """Record what was charted elsewhere: drug, given_at, until_at, dose, unit."""
        for drug, given_at, until_at, dose, unit in events:
            _add_event(txn, patient, drug, given_at, dose, unit, "record", until_at=until_at)

    @app.procedure(reads=[partition("med_events", by="patient")])
    def chart(txn: Transaction, patient: int) -> list[tuple[Any, ...]]:
        """The medications of a patient; waits while a decision about them is open."""
        return [tuple(event) for event in txn.scan("med_events")]


# ---- the emergency alert: SP1, SP2, SP3


def _emergency(app: App, deadline_s: float, quiet_s: float, backend: dict[str, Any]) -> None:
    """Pulmonary-artery pressure."""
    app.stream(
        "pap", "patient INTEGER NOT NULL, taken_at TIMESTAMP NOT NULL, mmhg BLOB NOT NULL", border=True, key="patient"
    )
    app.stream("elevated", SIGN_COLUMNS)
    _decisions(app, "decisions", deadline_s)
    app.stream("recommendations", ADVICE_COLUMNS)
    app.stream("notices", NOTICE_COLUMNS)
    app.stream("outcomes", OUTCOME_COLUMNS)
    app.stream("vitals", "patient INTEGER, taken_at TIMESTAMP, mean DOUBLE, state VARCHAR")
    app.stream("technical_alarms", ALARM_COLUMNS)
    minute = w.decomposed(signals.pressure_pane, signals.pressure_window, signals.PRESSURE, ["taken_at", "mmhg"])

    @app.procedure(
        inputs="pap",
        outputs="elevated",
        reads=[partition("patients"), partition("med_events"), partition("asked")],
        windows={
            "minute": window("pap", count=signals.PAP_PACKETS, slide=signals.PAP_SLIDE, compute=minute, **backend)
        },
    )
    def watch_pressure(txn: Transaction, pap: Batch) -> None:
        """SP1: the average over a minute; when it is too high, the recent medications are passed on with it."""
        for result in txn.window("minute").results:
            patient = txn.get("patients", txn.key)
            if patient is None or result.fault is not None or result.mean < patient.pap_limit:
                continue
            if _may_ask(txn, PRESSURE_SIGN, result.ended_at, quiet_s):
                _emit_sign(txn, "elevated", PRESSURE_SIGN, result.ended_at, result.mean, patient.pap_limit)
                return

    @app.procedure(
        inputs="elevated",
        outputs=["recommendations", "notices"],
        reads=[partition("med_events"), *RULES],
        writes=[partition("asked")],
    )
    def recommend(txn: Transaction, elevated: Batch) -> None:
        """SP2: the drug this calls for, unless it was given recently or interacts with what was given."""
        _recommend(txn, elevated[0], "recommendations", "notices")

    @app.procedure(
        inputs=["recommendations", "decisions"],
        outputs="outcomes",
        writes=[partition("med_events"), partition("asked")],
    )
    def administer(txn: Transaction, recommendations: Batch, decisions: Batch) -> None:
        """SP3: what the doctor decided."""
        _decide(txn, recommendations[0], decisions[0], "outcomes")

    app.nested(watch_pressure, recommend, administer, name="emergency")

    @app.procedure(
        inputs="pap",
        outputs=["vitals", "technical_alarms"],
        writes=[partition("signal_states")],
        windows={"trend": window("pap", count=signals.PAP_PACKETS, slide=signals.PAP_SLIDE, compute=minute)},
    )
    def check_signal(txn: Transaction, pap: Batch) -> None:
        """The trend for the display, of the averages that the alert compares with its limit, and alarms about the line.
        It does not wait for a decision."""
        for result in txn.window("trend").results:
            state = result.fault or "ok"
            txn.emit("vitals", [(txn.key, result.ended_at, result.mean, state)])
            _note_state(txn, "pap", state, result.ended_at, "technical_alarms")


# ---- cardiac


def _cardiac(app: App, deadline_s: float, quiet_s: float) -> None:
    """Heart rate from the ECG. Its window has its range in time and slides by beats."""
    app.stream(
        "ecg", "patient INTEGER NOT NULL, taken_at TIMESTAMP NOT NULL, mv BLOB NOT NULL", border=True, key="patient"
    )
    app.stream("beats", "patient INTEGER, beat_at TIMESTAMP NOT NULL")
    app.stream("lead_alarms", ALARM_COLUMNS)
    app.stream("fast", SIGN_COLUMNS)
    app.stream("rates", "patient INTEGER, taken_at TIMESTAMP, rate DOUBLE")
    _decisions(app, "rate_decisions", deadline_s)
    app.stream("rate_recommendations", ADVICE_COLUMNS)
    app.stream("rate_notices", NOTICE_COLUMNS)
    app.stream("rate_outcomes", OUTCOME_COLUMNS)
    beats = w.whole(_found, "found_to TIMESTAMP, beats TIMESTAMP[]", ["taken_at", "mv"])

    @app.procedure(
        inputs="ecg",
        outputs=["beats", "lead_alarms"],
        writes=[partition("signal_states")],
        windows={"seconds": window("ecg", count=4, slide=2, compute=beats)},
    )
    def find_rhythm(txn: Transaction, ecg: Batch) -> None:
        """Beats, or an alarm about the leads."""
        for result in txn.window("seconds").results:
            if result.beats is not None:
                txn.emit("beats", [(txn.key, beat_at) for beat_at in result.beats])
            _note_state(txn, "ecg", "leads off" if result.beats is None else "ok", result.found_to, "lead_alarms")

    ten_beats = {"number": w.count(), "first_at": w.first("beat_at"), "last_at": w.last("beat_at")}

    @app.procedure(
        inputs="beats",
        outputs="fast",
        reads=[partition("patients"), partition("med_events"), partition("asked")],
        windows={"rhythm": window("beats", time="15s", slide_rows=8, on="beat_at", compute=ten_beats)},
    )
    def watch_rate(txn: Transaction, beats: Batch) -> None:
        """SP5: beats a minute, over the last 15 seconds, with every eighth beat."""
        for result in txn.window("rhythm").results:
            seconds, rate = _rate(result)
            patient = txn.get("patients", txn.key)
            if seconds <= 12 or patient is None or rate < patient.rate_limit:
                continue
            if _may_ask(txn, RATE_SIGN, result.last_at, quiet_s):
                _emit_sign(txn, "fast", RATE_SIGN, result.last_at, rate, patient.rate_limit)
                return

    @app.procedure(
        inputs="beats",
        outputs="rates",
        windows={"display": window("beats", time="15s", slide_rows=8, on="beat_at", compute=ten_beats)},
    )
    def show_rate(txn: Transaction, beats: Batch) -> None:
        """The same figure for the display. It does not wait for a decision."""
        for result in txn.window("display").results:
            seconds, rate = _rate(result)
            if seconds >= 5:
                txn.emit("rates", [(txn.key, result.last_at, rate)])

    @app.procedure(
        inputs="fast",
        outputs=["rate_recommendations", "rate_notices"],
        reads=[partition("med_events"), *RULES],
        writes=[partition("asked")],
    )
    def recommend_slower(txn: Transaction, fast: Batch) -> None:
        """SP6."""
        _recommend(txn, fast[0], "rate_recommendations", "rate_notices")

    @app.procedure(
        inputs=["rate_recommendations", "rate_decisions"],
        outputs="rate_outcomes",
        writes=[partition("med_events"), partition("asked")],
    )
    def administer_slower(txn: Transaction, rate_recommendations: Batch, rate_decisions: Batch) -> None:
        """SP7."""
        _decide(txn, rate_recommendations[0], rate_decisions[0], "rate_outcomes")

    app.nested(watch_rate, recommend_slower, administer_slower, name="cardiac")


def _rate(result: Any) -> tuple[float, float]:
    """Over how many seconds, and beats a minute."""
    seconds = (result.last_at - result.first_at).total_seconds()
    return seconds, 60 * (result.number - 1) / seconds if seconds else 0.0


def _found(extent: Any) -> tuple[dt.datetime, list[dt.datetime] | None]:
    ended_at = extent["taken_at"].astype("datetime64[us]").max().astype(dt.datetime) + dt.timedelta(seconds=1)
    return ended_at, signals.find_beats(extent)


# ---- periodic visits: SP4


def _visits(app: App) -> None:
    """A doctor on the round, or the medication schedule, wants to give something."""
    app.stream(
        "visits",
        """patient INTEGER NOT NULL, visit_at TIMESTAMP NOT NULL, drug VARCHAR, dose DOUBLE, unit VARCHAR, until_at TIMESTAMP,
           origin VARCHAR NOT NULL, note VARCHAR""",
        border=True,
        key="patient",
    )
    app.stream(
        "visit_outcomes",
        "patient INTEGER, visit_at TIMESTAMP, drug VARCHAR, given BOOLEAN, kind VARCHAR, reason VARCHAR, origin VARCHAR",
    )

    @app.procedure(inputs="visits", outputs="visit_outcomes", reads=list(RULES), writes=[partition("med_events")])
    def visit(txn: Transaction, visits: Batch) -> None:
        """SP4: check against what was given, then give. A visit without a drug only saw the patient."""
        for wish in visits:
            against = None if wish.drug is None else _objection(txn, wish.drug, wish.visit_at)
            given = wish.drug is not None and against is None
            kind = against.kind if against is not None else None if given else "seen"
            reason = against.text if against is not None else wish.note
            if given:
                dose, unit = _dose(txn, wish)
                _add_event(txn, txn.key, wish.drug, wish.visit_at, dose, unit, wish.origin, until_at=wish.until_at)
            txn.emit("visit_outcomes", [(txn.key, wish.visit_at, wish.drug, given, kind, reason, wish.origin)])


def _dose(txn: Transaction, wish: Any) -> tuple[float | None, str | None]:
    """What was asked for, or the usual dose."""
    drug = txn.get("drugs", wish.drug)
    return (wish.dose, wish.unit) if wish.dose is not None or drug is None else (drug.dose, drug.unit)


# ---- what the dataflows share


def _decisions(app: App, name: str, deadline_s: float) -> None:
    columns = "patient INTEGER NOT NULL, give BOOLEAN NOT NULL, decided_by VARCHAR NOT NULL, decided_at TIMESTAMP"
    lapsed = {"give": False, "decided_by": "nobody: the time to decide ran out"}
    app.stream(name, columns, border=True, key="patient", deadline_s=deadline_s, default=lapsed)


def _may_ask(txn: Transaction, sign: str, at: dt.datetime, quiet_s: float) -> bool:
    before = txn.get("asked", (txn.key, sign))
    return before is None or (at - before.asked_at).total_seconds() >= quiet_s


def _emit_sign(txn: Transaction, stream: str, sign: str, at: dt.datetime, value: float, limit: float) -> None:
    since = at - dt.timedelta(hours=24)
    given = [event for event in txn.scan("med_events") if (event.until_at or event.given_at) >= since]
    recent = ", ".join(f"{event.drug} {event.given_at:%H:%M}" for event in given[-5:])
    txn.emit(stream, [(txn.key, sign, at, value, limit, recent)])


def _objection(txn: Transaction, drug: str, at: dt.datetime) -> rules.Objection | None:
    given: Iterable[Any] = txn.scan("med_events")
    known = {row.drug: row for row in txn.scan("drugs")}
    return rules.objection(drug, at, given, known, txn.scan("interactions"))


def _recommend(txn: Transaction, sign: Any, recommendations: str, notices: str) -> None:
    drug = txn.get("drugs", txn.get("indications", sign.sign).drug)
    against = _objection(txn, drug.drug, sign.found_at)
    txn.upsert("asked", (txn.key, sign.sign, sign.found_at, "suppressed" if against else "open"))
    if against is None:
        txn.emit(recommendations, [(*sign, drug.drug, drug.dose, drug.unit)])
    else:
        txn.emit(notices, [(*sign, drug.drug, against.kind, against.text)])


def _decide(txn: Transaction, advice: Any, decision: Any, outcomes: str) -> None:
    """A dose is charted for the time it was accepted; without one, for the time of the alert."""
    number = None
    if decision.give:
        at, origin = decision.decided_at or advice.found_at, "alert"
        number = _add_event(txn, txn.key, advice.drug, at, advice.dose, advice.unit, origin, asked_id=txn.batch_id)
    txn.update("asked", (txn.key, advice.sign), outcome="given" if decision.give else "declined")
    txn.emit(outcomes, [(*advice, decision.give, decision.decided_by, decision.decided_at, number)])


def _add_event(
    txn: Transaction,
    patient: int,
    drug: str,
    at: dt.datetime,
    dose: float | None,
    unit: str | None,
    origin: str,
    *,
    until_at: dt.datetime | None = None,
    asked_id: int | None = None,
) -> int:
    """Returns its line on the patient's chart."""
    number = len(txn.scan("med_events")) + 1
    txn.insert("med_events", (patient, number, drug, at, until_at, dose, unit, origin, asked_id))
    return number


def _note_state(txn: Transaction, signal: str, state: str, at: dt.datetime, alarms: str) -> None:
    """Raise an alarm when the state of a signal changes, and say when it is over."""
    before = txn.get("signal_states", (txn.key, signal))
    if (before.state if before is not None else "ok") != state:
        txn.emit(alarms, [(txn.key, signal, state, at)])
    if before is None or before.state != state:
        txn.upsert("signal_states", (txn.key, signal, state, at))


app = hospital()


def start(app: App, path: str | None = None, **settings: Any) -> tidegate.Engine:
    """An engine with drugs and interactions set up: in memory, or in the directory ``path``."""
    engine = tidegate.open(app, path, **settings)
    if engine.sequence == 0:
        engine.call("set_up")
    return engine
