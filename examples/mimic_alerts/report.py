"""The outcome of a shift, as a table."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from tidegate.examples.mimic_alerts.safety import Verdict
from tidegate.examples.mimic_alerts.shift import Seen
from tidegate.examples.mimic_alerts.source import Patient

COLUMNS = ("given", "declined", "lapsed", "recent", "clash", "alarms", "visits", "refused", "seen")


def counts(seen: Seen) -> dict[int, Counter[str]]:
    """For each patient: the outcomes of alerts and visits, and the number of technical alarms."""
    found: dict[int, Counter[str]] = {}

    def add(patient: int, what: str) -> None:
        found.setdefault(patient, Counter())[what] += 1

    for row in seen.of("outcomes", "rate_outcomes"):
        lapsed = row.decided_by.startswith("nobody")
        add(row.patient, "given" if row.given else "lapsed" if lapsed else "declined")
    for row in seen.of("notices", "rate_notices"):
        add(row.patient, "recent" if row.kind == "recent" else "clash")
    for row in seen.of("technical_alarms", "lead_alarms"):
        if row.state != "ok":
            add(row.patient, "alarms")
    for row in seen.of("visit_outcomes"):
        add(row.patient, "visits" if row.given else "seen" if row.kind == "seen" else "refused")
    return found


def facts(seen: Seen, verdict: Verdict, took_s: float) -> dict[str, Any]:
    """The totals, as JSON values."""
    total: Counter[str] = sum(counts(seen).values(), Counter())
    return {
        **{name: total[name] for name in COLUMNS},
        "packets": seen.packets,
        "samples_per_second": round(seen.packets * 125 / took_s),
        "double_doses": len(verdict.doubled),
        "interactions": len(verdict.clashing),
        "alerts_repeated": len(verdict.repeated),
        "decisions_misapplied": len(verdict.misapplied),
        "safe": verdict.safe,
    }


def show(console: Console, patients: list[Patient], seen: Seen, verdict: Verdict, took_s: float) -> None:
    console.print(Group(_table(patients, seen, wide=console.width >= 110), *_below(seen, verdict, took_s)))


def _table(patients: list[Patient], seen: Seen, wide: bool) -> Table:
    by_patient = counts(seen)
    busy = [patient for patient in patients if by_patient.get(patient.patient)] if len(patients) > 16 else patients
    table = Table(title="The shift", title_justify="left", show_footer=True, header_style="bold", box=SIMPLE_HEAD)
    table.padding, table.show_edge = (0, 1, 0, 0), False
    total: Counter[str] = sum(by_patient.values(), Counter())
    table.add_column("patient", footer="all")
    if wide:
        table.add_column("what happens")
    shown = [name for name in COLUMNS if name != "seen" or total[name]]  # recorded visits
    for name in shown:
        table.add_column(name, justify="right", footer=str(total[name]))
    for patient in busy:
        mine = by_patient.get(patient.patient, Counter())
        figures = [_figure(name, mine[name]) for name in shown]
        table.add_row(patient.bed.removeprefix("patient "), *([patient.story] if wide else []), *figures)
    return table


def _figure(name: str, value: int) -> Text:
    style = {"given": "green", "alarms": "yellow", "refused": "cyan", "clash": "magenta"}.get(name, "")
    return Text(str(value) if value else "·", style=style if value else "dim")


def _below(seen: Seen, verdict: Verdict, took_s: float) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Text(
            "Alerts: given, declined, lapsed (no one decided in time); or nothing to recommend, because the drug was "
            "given recently or clashes with one that was. Technical alarms. Visits: given, refused, and of records "
            "those that saw the patient and gave nothing.",
            style="dim",
        ),
        Text(
            f"{seen.packets:,} packets of 125 samples in {took_s:.1f} s: {seen.packets * 125 / took_s:,.0f} samples a second"
        ),
    ]
    if verdict.safe:
        lines.append(
            Text(
                "Safe: no dose too early, no interaction, every alert once, every decision applied once.", style="green"
            )
        )
    else:
        wrong = [*verdict.doubled, *verdict.clashing, *map(str, verdict.repeated), *verdict.misapplied]
        lines.append(Text("Not safe: " + "; ".join(wrong[:10]), style="bold red"))
    return lines
