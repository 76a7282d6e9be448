"""The demonstration: a shift on the ward, with or without a page."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from tidegate.engine.engine import Engine
from tidegate.examples.mimic_alerts import report
from tidegate.examples.mimic_alerts.app import hospital, start
from tidegate.examples.mimic_alerts.backends import Where, choose_backend
from tidegate.examples.mimic_alerts.records import Records
from tidegate.examples.mimic_alerts.safety import judge
from tidegate.examples.mimic_alerts.shift import Doctor, Shift, WardClock
from tidegate.examples.mimic_alerts.source import Source, Step
from tidegate.examples.mimic_alerts.ward import Ward


@dataclass(frozen=True)
class Options:
    """What to play. ``speed``: ward seconds per second, 0 for as fast as possible."""

    minutes: float = 10
    patients: int = 8
    seed: int = 2
    speed: float = 0
    auto_doctor: bool = True
    data: Path | None = None
    only: tuple[int, ...] = ()
    backend: str = "auto"
    deadline_s: float = 60
    quiet_s: float = 180


def source_of(options: Options, where: Where) -> Source:
    """At full speed five seconds are a batch where that helps; on the page, one."""
    if options.data is not None:
        return Records(options.data, set(options.only) or None, packets=1 if options.speed else 5)
    fast = options.speed == 0 or options.speed >= 10
    return Ward(options.patients, options.minutes, options.seed, packets=5 if where.spark and fast else 1)


def open_shift(options: Options, source: Source, where: Where, **settings: Any) -> Shift:
    """An engine with the source's patients admitted."""
    clock = WardClock(source.start)
    app = hospital(options.deadline_s, options.quiet_s, where.window)
    engine = start(app, clock=clock, **{**where.settings, **settings})
    doctor = Doctor(options.seed) if options.auto_doctor else None
    shift = Shift(engine, source, clock, doctor, waits=engine.config.executor == "threads")
    shift.admit()
    return shift


def events_of(engine: Engine) -> list[Any]:
    return list(engine.query("SELECT * FROM med_events ORDER BY patient, number"))


def run_headless(options: Options, console: Console, as_json: bool = False) -> dict[str, Any]:
    """Play to the end, print what happened, return the totals."""
    where = choose_backend(options.backend)
    source = source_of(options, where)
    told = Console(stderr=True) if as_json else console
    told.print(f"[bold]Hospital[/]: {source.name}, {len(source.patients)} patients. {where.told}.", highlight=False)
    if not options.auto_doctor:
        told.print("No one decides, so every question lapses; --auto-doctor adds a simulated doctor.", highlight=False)
    shift = open_shift(options, source, where)
    began = time.perf_counter()
    with shift.engine, interruptible() as stopped, _progress(told) as bar:
        task = bar.add_task("", total=source.length_s)
        passed_s = 0.0

        def tell(step: Step) -> None:
            nonlocal passed_s
            passed_s = (step.at - source.start).total_seconds()
            bar.update(task, completed=passed_s, description=f"{_clock(passed_s)} on the ward")

        seen = shift.play(options.speed, stopped, tell)
        took_s = time.perf_counter() - began
        verdict = judge(events_of(shift.engine), seen.rows)
    found = {**report.facts(seen, verdict, took_s), "stopped": stopped()}
    if not as_json:
        report.show(console, source.patients, seen, verdict, took_s)
    if stopped():
        told.print(f"Stopped after {_clock(passed_s)} of {_clock(source.length_s)} on the ward.", highlight=False)
    elif options.speed and passed_s < 0.8 * options.speed * took_s:
        held = passed_s / took_s
        told.print(
            f"This machine held {held:.3g} of the {options.speed:g} seconds asked for per second.", highlight=False
        )
    return found


def _progress(console: Console) -> Progress:
    return Progress(TextColumn("{task.description}"), BarColumn(), console=console, transient=True)


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Inside, the first Ctrl-C only requests a stop, so that the outcome can be reported; the second is as usual."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(_number: int, _frame: Any) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield asked.is_set
    finally:
        signal.signal(signal.SIGINT, before)
