"""Plays recorded waveforms: Parquet or CSV as cut from MIMIC-III, and WFDB files (with the ``wfdb`` package).

Every patient keeps the clock of its own record; the ward's clock is the time that has passed. All records begin together.

Beside the waveforms, charts are used where they are found. ``medevents.csv.gz``: running infusions, charted every hour.
An infusion counts as running from an hour before it is first charted, because a chart describes the hour before it,
until it is charted as stopped or an hour after it is charted last. Its end is recorded together with its beginning.
What was running when the record began is history; what begins later is a visit that wants to give it.
``bedside_visits.csv.gz``: who came by, and how much they charted; these are visits without a drug.
``chartevents_hemodynamics.csv.gz``: a patient's limit is 25 mmHg, or 5 more than the median of the mean pressures
charted in the day before, if that is six hours or more. Prescriptions name whole days and are not played. The chart
clock of patient 10013 is 52 minutes behind the monitor; the whole chart is shifted.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from tidegate.errors import TidegateError
from tidegate.examples.mimic_alerts.rules import generic_name
from tidegate.examples.mimic_alerts.signals import ECG_STEP, PRESSURE_STEP, RATE_HZ, Array, pack
from tidegate.examples.mimic_alerts.source import Patient, Step, Wish

HOUR = dt.timedelta(hours=1)
NAMED = re.compile(r"p(\d{6})-(\d{4})-(\d\d)-(\d\d)-(\d\d)-(\d\d)")
UNNAMED_START = dt.datetime(2000, 1, 1)
ECG_NAMES = ("ii", "mcl1", "v", "i", "iii", "avr")
PACKET_BYTES = 2 * RATE_HZ
UNITS = {  # as charted, and the usual spelling
    "mcgkgmin": "mcg/kg/min",
    "mcgmin": "mcg/min",
    "mcghr": "mcg/h",
    "mgkghr": "mg/kg/h",
    "mgmin": "mg/min",
    "mghr": "mg/h",
    "Uhr": "U/h",
    "Umin": "U/min",
}
CHART_BEHIND = {10013: dt.timedelta(minutes=52)}  # found by comparing charted with recorded heart rates


class Recording:
    """One patient's waveforms, packed: 250 bytes for each second."""

    def __init__(self, patient: int, start: dt.datetime, pap: Array | None, ecg: Array | None) -> None:
        self.patient = patient
        self.start = start
        self.pap = b"" if pap is None else pack(pap, PRESSURE_STEP)
        self.ecg = b"" if ecg is None else pack(ecg, ECG_STEP)
        self.seconds = max(len(self.pap), len(self.ecg)) // PACKET_BYTES
        self.end = start + dt.timedelta(seconds=self.seconds)

    def packets(self, wave: bytes, begin: int, end: int) -> list[tuple[Any, ...]]:
        return [
            (
                self.patient,
                self.start + dt.timedelta(seconds=second),
                wave[second * PACKET_BYTES : (second + 1) * PACKET_BYTES],
            )
            for second in range(begin, min(end, len(wave) // PACKET_BYTES))
        ]


class Records:
    """A source: the recordings of a folder, played side by side."""

    def __init__(
        self,
        folder: Path,
        only: set[int] | None = None,
        packets: int = 5,
        chart_behind: dict[int, dt.timedelta] | None = None,
    ) -> None:
        """``only``: these patients. ``chart_behind``: how far a patient's chart clock is behind the monitor's."""
        self.name = f"records in {folder.resolve().name}"
        self.recordings = [open_recording(path, number) for number, path in enumerate(find_waveforms(folder, only), 1)]
        self.start = min(recording.start for recording in self.recordings)
        self.starts = {recording.patient: recording.start for recording in self.recordings}
        self.length_s = max(recording.seconds for recording in self.recordings)
        self._packets = packets
        clinical = _clinical(folder)
        self.patients: list[Patient] = []
        self.history: dict[int, list[Any]] = {}
        self.visits: dict[int, list[Wish]] = {}
        for recording in self.recordings:
            behind = (CHART_BEHIND if chart_behind is None else chart_behind).get(recording.patient, dt.timedelta(0))
            limit = charted_limit(clinical, recording.patient, recording.start - behind)
            self.patients.append(Patient(recording.patient, f"patient {recording.patient}", limit, 130.0, "record"))
            runs = [
                (drug, begin + behind, until + behind, dose, unit)
                for drug, begin, until, dose, unit in infusions(clinical, recording.patient)
            ]
            self.history[recording.patient] = [list(run) for run in runs if run[1] <= recording.start]
            wishes = [
                Wish(recording.patient, begin, drug, dose, unit, until, "chart")
                for drug, begin, until, dose, unit in runs
                if recording.start < begin <= recording.end
            ]
            seen = bedside_visits(clinical, recording.patient, recording.start - behind, recording.end - behind)
            wishes += [Wish(recording.patient, at + behind, None, note=note) for at, note in seen]
            self.visits[recording.patient] = sorted(wishes, key=lambda wish: wish.visit_at)

    def steps(self) -> Iterator[Step]:
        seconds = self.length_s
        waiting = {patient: list(visits) for patient, visits in self.visits.items()}
        for begin in range(0, seconds, self._packets):
            end = min(begin + self._packets, seconds)
            step = Step(begin // self._packets + 1, self.start + dt.timedelta(seconds=end))
            for recording in self.recordings:
                step.pap += recording.packets(recording.pap, begin, end)
                step.ecg += recording.packets(recording.ecg, begin, end)
                mine = waiting[recording.patient]
                while mine and mine[0].visit_at <= recording.start + dt.timedelta(seconds=end):
                    step.visits.append(mine.pop(0))
            yield step

    def administered(self, patient: int, drug: str, at: dt.datetime) -> None:
        """Recordings do not respond to what is given now."""


# ---- waveforms


def find_waveforms(folder: Path, only: set[int] | None = None) -> list[Path]:
    """Waveform files in a folder, or in folders directly in it; one for each record."""
    if not folder.is_dir():
        raise TidegateError(
            f"{folder} is not a folder; --data takes one with pap_*.parquet, pap_*.csv.gz or WFDB (.hea) files"
        )
    found: dict[str, Path] = {}
    for pattern in ("pap_p*.parquet", "*hz.parquet", "mimic2_*.parquet", "pap_p*.csv.gz", "*.hea"):
        for path in sorted([*folder.glob(pattern), *folder.glob(f"*/{pattern}")]):
            name = path.name.split(".")[0]
            if only is None or subject_of(name) in only:
                found.setdefault(name, path)
    usable = [path for name, path in sorted(found.items()) if not name.endswith("_500hz") and _is_record(path)]
    if usable:
        return usable
    if only is not None:
        there = sorted({subject for path in find_waveforms(folder) if (subject := subject_of(path.name)) is not None})
        whose = ", ".join(map(str, sorted(only)))
        raise TidegateError(
            f"no waveforms of patient {whose} in {folder}; there are {', '.join(map(str, there)) or 'none with a number'}"
        )
    charts = (
        " (these are charts; they are found beside the waveforms)" if (folder / "medevents.csv.gz").is_file() else ""
    )
    raise TidegateError(
        f"no waveforms in {folder}{charts}: neither pap_p*.parquet, pap_p*.csv.gz nor WFDB (.hea) files"
    )


def _is_record(path: Path) -> bool:
    """Parquet files with a channel we know; of WFDB headers, those with a waveform: no single segments, no numerics."""
    if path.suffix == ".parquet":
        return bool({"pap_mmhg", *(f"{name}_mv" for name in ECG_NAMES)} & set(pq.read_schema(path).names))
    if path.suffix != ".hea":
        return True
    head = next(line for line in path.read_text().splitlines() if not line.startswith("#")).split()
    segment = any(
        other.stem != path.stem and f"\n{path.stem} " in other.read_text() for other in path.parent.glob("*.hea")
    )
    return float(head[2].split("/")[0]) >= 100 and not segment


def subject_of(name: str) -> int | None:
    found = NAMED.search(name)
    return int(found[1]) if found else None


def open_recording(path: Path, number: int) -> Recording:
    """A file as a recording. Files that do not name their patient get the number given."""
    found = NAMED.search(path.name)
    patient = int(found[1]) if found else number
    start = dt.datetime(*map(int, found.groups()[1:])) if found else UNNAMED_START  # type: ignore[arg-type]
    if path.suffix == ".hea":
        pap, ecg = _wfdb(path)
    elif path.suffix == ".parquet":
        table = pq.read_table(path)
        pap, ecg = _column(table, ["pap_mmhg"]), _column(table, [f"{name}_mv" for name in ECG_NAMES])
    else:
        options = pyarrow.csv.ConvertOptions(column_types={"pap_mmhg": pa.float64()}, strings_can_be_null=True)
        pap, ecg = _column(pyarrow.csv.read_csv(path, convert_options=options), ["pap_mmhg"]), None
    if pap is None and ecg is None:
        raise TidegateError(
            f"{path} has neither a pulmonary pressure nor an ECG lead this example knows ({', '.join(ECG_NAMES)})"
        )
    return Recording(patient, start, pap, ecg)


def _column(table: pa.Table, names: list[str]) -> Array | None:
    for name in names:
        if name in table.column_names:
            column = table[name].cast(pa.float64())
            return np.asarray(column.fill_null(float("nan")).to_numpy(), dtype=np.float64)
    return None


def _wfdb(path: Path) -> tuple[Array | None, Array | None]:
    try:
        import wfdb
    except ImportError:
        raise TidegateError(
            f"{path.name} is a WFDB file, and the package wfdb is not installed: pip install 'tidegate[wfdb]'"
        ) from None
    record = wfdb.rdrecord(str(path.with_suffix("")), smooth_frames=True)
    names = [str(name).lower() for name in record.sig_name]
    wanted = np.arange(0, record.sig_len, record.fs / RATE_HZ).astype(int)  # the nearest sample before, at 125 Hz

    def channel(choices: tuple[str, ...]) -> Array | None:
        found = next((names.index(choice) for choice in choices if choice in names), None)
        return (
            None
            if found is None
            else np.asarray(record.p_signal[wanted[wanted < record.sig_len], found], dtype=np.float64)
        )

    return channel(("pap",)), channel(ECG_NAMES)


# ---- charts


def _clinical(folder: Path) -> Path | None:
    """The folder with the charts: this one, one in it, or mimic3_demo_clinical beside it."""
    places = [folder, *sorted(p for p in folder.iterdir() if p.is_dir()), folder.parent / "mimic3_demo_clinical"]
    return next((place for place in places if (place / "medevents.csv.gz").is_file()), None)


def _chart(folder: Path | None, file: str, patient: int) -> list[dict[str, Any]]:
    if folder is None or not (folder / file).is_file():
        return []
    table = pyarrow.csv.read_csv(folder / file)
    mine = table.filter(pc.equal(table["subject_id"], patient))
    return [dict(row) for row in mine.to_pylist()]


def infusions(
    folder: Path | None, patient: int
) -> list[tuple[str, dt.datetime, dt.datetime, float | None, str | None]]:
    """Runs of a charted infusion: drug, from, until, rate, unit; in order of their beginning."""
    charted: dict[str, list[dict[str, Any]]] = {}
    for row in _chart(folder, "medevents.csv.gz", patient):
        charted.setdefault(generic_name(row["drug"]), []).append(row)
    runs = []
    for drug, rows in charted.items():
        for run in _runs(sorted(rows, key=lambda row: row["charttime"])):
            first, last = run[0], run[-1]
            until = last["charttime"] + (dt.timedelta(0) if last["stopped"] == "Stopped" else HOUR)
            runs.append(
                (drug, first["charttime"] - HOUR, until, first["dose"], UNITS.get(first["doseuom"], first["doseuom"]))
            )
    return sorted(runs, key=lambda run: (run[1], run[0]))


def _runs(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Charted rows of one drug, cut where it was stopped or not charted for two hours."""
    runs: list[list[dict[str, Any]]] = []
    for row in rows:
        last = runs[-1][-1] if runs else None
        if last is None or last["stopped"] == "Stopped" or row["charttime"] - last["charttime"] > 2 * HOUR:
            runs.append([])
        runs[-1].append(row)
    return runs


def bedside_visits(
    folder: Path | None, patient: int, begin: dt.datetime, end: dt.datetime
) -> list[tuple[dt.datetime, str]]:
    """Who was at the bed after ``begin`` and up to ``end``, on the chart's clock: when, and what is known of it."""
    found = []
    for row in _chart(folder, "bedside_visits.csv.gz", patient):
        if begin < row["charttime"] <= end:
            role = row["caregiver_role"] or "caregiver"
            found.append((row["charttime"], f"{role} {row['cgid']} wrote down {row['n_observations']} observations"))
    return sorted(found)


def charted_limit(folder: Path | None, patient: int, at: dt.datetime) -> float:
    """The pressure above which this patient's doctor wants an alert."""
    charted = [
        (row["charttime"], row["valuenum"])
        for row in _chart(folder, "chartevents_hemodynamics.csv.gz", patient)
        if row["signal"] == "pap_mean" and at - 24 * HOUR <= row["charttime"] < at
    ]
    known = bool(charted) and charted[-1][0] - charted[0][0] >= 6 * HOUR
    return max(25.0, float(np.median([value for _, value in charted])) + 5) if known else 25.0
