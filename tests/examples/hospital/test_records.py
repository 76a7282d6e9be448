"""Real records: what the hospital makes of them is known beforehand."""

from __future__ import annotations

import csv
import datetime as dt
import gzip
import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from shared_data import CLINICAL, PAP, WFDB, needs_clinical, needs_pap, needs_wfdb

from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.records import CHART_BEHIND, Records, find_waveforms, open_recording
from tidegate.examples.mimic_alerts.safety import unsafe_doses
from tidegate.examples.mimic_alerts.shift import Doctor, Shift, WardClock

STORIES = {10013, 10061, 23922, 3680}


class Played:
    """A folder's records through the hospital, with a doctor who accepts everything, or another."""

    def __init__(
        self,
        folder: Path,
        only: set[int] | None = None,
        doctor: Doctor | None = None,
        quiet_s: float = 600,
        **how: Any,
    ) -> None:
        self.source = Records(folder, only, **how)
        clock = WardClock(self.source.start)
        with start(hospital(quiet_s=quiet_s), clock=clock) as engine:
            shift = Shift(engine, self.source, clock, doctor or Doctor(accepts=1, ignores=0))
            shift.admit()
            self.seen = shift.play()
            self.events = list(engine.query("SELECT * FROM med_events"))

    def rows(self, patient: int, *streams: str) -> list[Any]:
        return [row for row in self.seen.of(*streams) if row.patient == patient]


@pytest.fixture(scope="module")
def played() -> Played:
    return Played(PAP, STORIES)


@needs_pap
def test_10013_is_elevated_from_2359_and_nesiritide_is_running(played: Played) -> None:
    notices = played.rows(10013, "notices")
    assert dt.datetime(2125, 10, 4, 23, 59) <= notices[0].found_at < dt.datetime(2125, 10, 5, 0, 0)
    assert {(notice.drug, notice.kind) for notice in notices} == {("nesiritide", "recent")}
    assert "nesiritide is running" in notices[0].reason
    assert played.rows(10013, "outcomes") == []
    assert [
        event for event in played.events if event.patient == 10013 and event.origin not in ("record", "chart")
    ] == []


@needs_pap
def test_10013_is_suppressed_whatever_the_clock_of_its_chart() -> None:
    assert set(CHART_BEHIND) == {10013}
    played = Played(PAP, {10013}, chart_behind={})
    assert {notice.kind for notice in played.rows(10013, "notices")} == {"recent"}
    assert played.rows(10013, "outcomes") == []


def charted_visits(patient: int, begin: str, end: str) -> list[tuple[dt.datetime, str]]:
    """Read from the file by other means than the example's: time on the chart, who."""
    with gzip.open(CLINICAL / "bedside_visits.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if int(row["subject_id"]) == patient]
    return sorted(
        (dt.datetime.fromisoformat(row["charttime"]), row["cgid"]) for row in rows if begin < row["charttime"] <= end
    )


@needs_pap
@needs_clinical
@pytest.mark.parametrize(
    ("patient", "begin", "end", "behind", "least"),
    [
        (10013, "2125-10-04 22:45:00", "2125-10-05 00:25:00", 52, 12),
        (10061, "2107-01-20 12:33:00", "2107-01-20 14:13:00", 0, 2),
    ],
)
def test_recorded_visits_are_played_when_they_happened(
    played: Played, patient: int, begin: str, end: str, behind: int, least: int
) -> None:
    wanted = [(at + dt.timedelta(minutes=behind), who) for at, who in charted_visits(patient, begin, end)]
    assert len(wanted) >= least
    seen = [row for row in played.rows(patient, "visit_outcomes") if row.kind == "seen"]
    assert [(row.visit_at, row.reason.split()[1]) for row in seen] == wanted
    assert not any(row.given for row in seen)


@needs_pap
@needs_clinical
def test_recorded_infusions_come_with_a_visit(played: Played) -> None:
    """First charted at midnight: an hour before, on the monitor's clock 52 minutes later. They end where the chart says."""
    begun = [row for row in played.rows(10013, "visit_outcomes") if row.kind != "seen"]
    assert [(row.drug, row.given, row.origin) for row in begun] == [
        (drug, True, "chart") for drug in ("dobutamine", "dopamine", "nesiritide")
    ]
    at, stopped = dt.datetime(2125, 10, 4, 23, 52), dt.datetime(2125, 10, 5, 4, 52)
    charted = {event.drug: event for event in played.events if event.patient == 10013 and event.origin == "chart"}
    assert {event.given_at for event in charted.values()} == {at}
    assert charted["nesiritide"][2:] == ("nesiritide", at, stopped, 0.008, "mcg/kg/min", "chart", None)
    assert len([event for event in played.events if event.patient == 10013]) == 3
    assert [row for row in played.rows(10061, "visit_outcomes") if row.kind != "seen"] == []  # they ran before


@needs_pap
@needs_clinical
def test_recorded_visits_count_once_however_often_they_are_played(tmp_path: Path) -> None:
    """Stopped in the middle; the source then begins again from its start, and once more after the end."""
    source = Records(PAP, {10013})

    def play(until: int | None) -> list[Any]:
        clock = WardClock(source.start)
        with start(hospital(), str(tmp_path / "ward"), clock=clock) as engine:
            engine.subscribe_durably("visit_outcomes", "witness")
            if not engine.query("SELECT count(*) FROM patients").scalar():
                Shift(engine, source, clock, None).admit()
            for step in itertools.islice(source.steps(), until):
                if step.visits:
                    engine.push("visits", step.visits, batch_id=step.number)
            told = [row for batch in engine.subscribe_durably("visit_outcomes", "witness") for row in batch]
            return [told, list(engine.query("SELECT * FROM med_events ORDER BY number"))]

    half, (told, events) = play(600), play(None)
    assert 0 < len(half[0]) < len(told) == len(source.visits[10013])
    assert len(events) == 3
    assert play(None) == [told, events]


@needs_pap
def test_10061_is_a_false_alarm(played: Played) -> None:
    clamped = [alarm for alarm in played.rows(10061, "technical_alarms") if alarm.state == "clamped at 90 mmHg"]
    assert dt.datetime(2107, 1, 20, 14, 0) < clamped[0].since < dt.datetime(2107, 1, 20, 14, 2)
    assert played.rows(10061, "technical_alarms")[-1].state == "clamped at 90 mmHg"  # to the end
    assert played.rows(10061, "outcomes", "notices") == []
    assert all(event.origin == "record" for event in played.events if event.patient == 10061)


@needs_pap
def test_23922_has_one_episode(played: Played) -> None:
    (alert,) = played.rows(23922, "outcomes")
    assert dt.datetime(2171, 9, 19, 16, 36) < alert.found_at < dt.datetime(2171, 9, 19, 16, 39)
    assert alert.given
    assert alert.drug == "nesiritide"
    assert {notice.kind for notice in played.rows(23922, "notices")} == {"recent"}  # it lasts, and the drug was given
    (given,) = [event for event in played.events if event.patient == 23922]
    assert (given.drug, given.origin) == ("nesiritide", "alert")


@needs_pap
def test_3680_is_left_alone(played: Played) -> None:
    assert played.rows(3680, "outcomes", "notices", "rate_outcomes", "rate_notices") == []
    assert played.rows(3680, "vitals")


@needs_pap
def test_what_was_given_is_safe(played: Played) -> None:
    assert unsafe_doses(played.events) == ([], [])


@pytest.mark.slow
@needs_pap
def test_alerts_are_where_the_minute_means_are_high() -> None:
    """All twelve records, also those with no story above, against means that were worked out with the data.

    Windows slide by five seconds and minutes do not, so what is within half a mmHg of the limit may go either way.
    """
    played = Played(PAP, None, Doctor(accepts=0, ignores=0, thinks_s=(1, 2)), quiet_s=60)
    means: dict[int, dict[int, float]] = {}
    with (PAP / "minute_means.csv").open() as file:
        for row in csv.DictReader(file):
            if row["quality"] == "ok":
                means.setdefault(int(row["record"][1:7]), {})[int(row["minute"])] = float(row["mpap_60s"])
    assert len(played.source.patients) == 12
    for patient in played.source.patients:
        start_at = played.source.starts[patient.patient]
        found = played.rows(patient.patient, "outcomes", "notices")
        alerts = {int((row.found_at - start_at).total_seconds() - 1) // 60 for row in found}
        mine, limit = means[patient.patient], patient.pap_limit
        near = {minute + by for minute, mean in mine.items() if mean >= limit - 0.5 for by in (-1, 0, 1)}
        assert alerts <= near, (patient, alerts - near)
        told = {minute + by for minute in alerts for by in (-1, 0, 1)}
        high = {minute for minute, mean in mine.items() if mean >= limit + 0.5}
        assert high <= told, (patient, high - told)


@needs_pap
def test_csv_and_parquet_hold_the_same_waveform() -> None:
    for parquet in (PAP / "pap_p010013-2125-10-04-23-37.parquet", PAP / "pap_p010061-2107-01-20-12-33.parquet"):
        csv = parquet.with_suffix(".csv.gz")
        one, other = open_recording(parquet, 1), open_recording(csv, 1)
        assert (one.patient, one.start, one.pap) == (other.patient, other.start, other.pap)


@needs_wfdb
def test_wfdb_files() -> None:
    pytest.importorskip("wfdb", reason="the wfdb package is not installed: pip install 'tidegate[wfdb]'")
    played = Played(WFDB)
    assert [len(recording.pap) > 0 for recording in played.source.recordings] == [False, True, False, False]
    monitor = {row.patient: row.rate for row in played.seen.of("rates")}
    assert 110 < monitor[1] < 130  # 037
    assert 50 < monitor[3] < 75  # s00001, whose monitor says 56 on average
    assert played.seen.of("outcomes", "rate_outcomes") == []


def test_folders_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(TidegateError, match="is not a folder"):
        Records(tmp_path / "nothing")
    with pytest.raises(TidegateError, match="no waveforms in"):
        Records(tmp_path)
    pq.write_table(
        pa.table({"t_ms": [0, 8], "pap_mmhg": [20.0, None]}), tmp_path / "pap_p000007-2100-01-01-00-00.parquet"
    )
    with pytest.raises(TidegateError, match=r"no waveforms of patient 8 in .*; there are 7"):
        find_waveforms(tmp_path, {8})
    assert open_recording(find_waveforms(tmp_path, {7})[0], 1).patient == 7
