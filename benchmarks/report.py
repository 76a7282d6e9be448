"""All benchmarks, in short form, with tables and plots: what ``make bench`` writes to ``benchmarks/results/``.

Every benchmark runs as a separate command, so that none inherits the memory or the threads of another.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidegate.benchmarks.plots import PLOTS
from tidegate.benchmarks.setting import setting

RESULTS = Path(__file__).resolve().parent / "results"
Facts = Mapping[str, Any]
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Section:
    """One benchmark of the report: what it asks, and the command that answers."""

    name: str
    question: str
    arguments: tuple[str, ...]

    @property
    def command(self) -> str:
        return " ".join(("tidegate", "bench", *self.arguments))


SECTIONS = (
    Section(
        "leaderboard",
        "How many votes a second with all guarantees, and how many do other systems manage?",
        ("leaderboard", "--durable", "--votes", "30000", "--rounds", "3", "--variants", "--peers", "all"),
    ),
    Section("transactions", "Transactions over shared tables, with skew and aborts", ("transactions", "--rounds", "1")),
    Section("windows", "Windows, batch by batch, beside others", ("windows", "--rows", "2000000", "--peers")),
    Section(
        "spark", "What Spark and look-ahead gain for heavy windows", ("spark", "--windows", "200", "--rounds", "2")
    ),
    Section("durability", "What durability costs, and how fast recovery is", ("durability", "--rounds", "3")),
    Section("latency", "How long does a push take, under open-loop load?", ("latency",)),
    Section("growth", "Does it get slower as it grows?", ("growth",)),
    Section("memory", "How much memory does it hold?", ("memory",)),
    Section("kernel", "What single steps cost", ("kernel", "--rounds", "3")),
    Section("hospital", "200 patients in real time: how soon does an alert arrive?", ("hospital", "--durable")),
    Section("connectors", "From Kafka to Kafka, and from files", ("connectors",)),
    Section("server", "Over HTTP", ("server", "--rounds", "1")),
    Section("replica", "SQL beside transactions", ("replica", "--rounds", "1")),
)


def run(only: list[str], results: Path = RESULTS, progress: Progress = lambda text: None) -> dict[str, str]:
    """Measure the sections (all, or ``only`` these) and write the report; returns what went wrong, by section."""
    results.mkdir(parents=True, exist_ok=True)
    failed: dict[str, str] = {}
    for section in SECTIONS:
        if only and section.name not in only:
            continue
        progress(section.command)
        command = [sys.executable, "-m", "tidegate", "bench", *section.arguments, "--json"]
        done = subprocess.run(command, capture_output=True, text=True)
        try:
            facts = json.loads(done.stdout.strip().splitlines()[-1])
        except (IndexError, ValueError):
            failed[section.name] = (done.stderr or done.stdout).strip()[-500:]
            continue
        (results / f"{section.name}.json").write_text(json.dumps(facts, indent=1) + "\n")
        if facts.get("correct") is False:
            failed[section.name] = "the results are not correct"
    write(results)
    return failed


def write(results: Path = RESULTS) -> Path:
    """The report of what has been measured so far."""
    where = ("machine", "system", "python", "commit")
    here = setting()
    parts = ["# Benchmarks", "", f"Written by `make bench` on {here['machine']}, {here['system']}.", ""]
    for section in SECTIONS:
        path = results / f"{section.name}.json"
        if not path.is_file():
            continue
        facts = json.loads(path.read_text())
        parts += [f"## {section.question}", "", f"`{section.command}`, commit {facts.get('commit', 'unknown')}", ""]
        plot = PLOTS.get(section.name)
        if plot is not None and plot(facts, results / f"{section.name}.svg"):
            parts += [f"![{section.question}]({section.name}.svg)", ""]
        parts += [*_tables({name: value for name, value in facts.items() if name not in where}), ""]
    report = results / "report.md"
    report.write_text("\n".join(parts))
    return report


def _tables(facts: Facts, title: str = "") -> list[str]:
    """Plain values as one table; groups of values as separate tables."""
    plain = {name: value for name, value in facts.items() if not isinstance(value, (dict, list))}
    told: list[str] = [f"**{title}**", ""] if title else []
    if plain:
        told += ["| | |", "|---|---|", *(f"| {name} | {_shown(value)} |" for name, value in plain.items()), ""]
    for name, group in facts.items():
        if isinstance(group, dict) and group and all(isinstance(value, dict) for value in group.values()):
            columns = list(dict.fromkeys(key for value in group.values() for key in value))
            told += [f"**{name}**", "", f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
            for each, value in group.items():
                told.append(f"| {each} | {' | '.join(_shown(value.get(column, '')) for column in columns)} |")
            told.append("")
        elif isinstance(group, dict):
            told += _tables(group, name)
    return told


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return f"{value:,}"
    if isinstance(value, dict):
        return "; ".join(f"{name.replace('_', ' ')}: {_shown(each)}" for name, each in value.items())
    return str(value).replace("|", "/").replace("\n", " ")
