"""Does ``backend="auto"`` keep up with the best fixed choice? Twenty shapes of windows, light to heavy, few to many.

Each shape is fed through an engine with windows evaluated in this process (``local``, without a pattern), always in two worker
processes, on Spark if asked for, and with ``auto``. They alternate; figures are the shortest of the rounds, by the clock,
because work in other processes counts. Start-up is paid before: what it costs to find that something pays is part of
``auto``. All results are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import tidegate
from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.setting import setting
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.evaluate import plan as plans
from tidegate.streams.windows.evaluate.local import PROCESSES, LocalBackend

Progress = Callable[[str], None]
AIM = 0.9


def light(extent: Extent) -> float:
    """A few microseconds."""
    return float(extent["x"].sum())


def medium(extent: Extent) -> float:
    """Some hundred microseconds, most of them in numpy."""
    x = extent["x"]
    return float(np.sort(np.stack([x**degree for degree in range(1, 9)]), axis=1)[:, len(x) // 2].sum())


def heavy(extent: Extent) -> float:
    """Some milliseconds in numpy, which lets other threads work."""
    x = extent["x"]
    return float(np.sort(np.stack([x**degree for degree in range(1, 129)]), axis=1)[:, len(x) // 2].sum())


def busy(extent: Extent) -> float:
    """Some milliseconds of Python, which lets no other thread work."""
    total = 0.0
    for number in range(40_000):
        total += number % 7
    return total + float(extent["x"].sum())


@dataclass(frozen=True)
class Shape:
    """``windows`` of ``size`` rows that slide by ``slide``, in batches of ``batch`` rows."""

    name: str
    function: Callable[[Extent], float]
    windows: int
    size: int
    slide: int
    batch: int


SHAPES = [
    Shape(f"{function.__name__}, {size:,} rows sliding by {slide:,}, {batch:,} a batch", function, most, size, slide, batch)
    for function, most in ((light, 3_000), (medium, 600), (heavy, 80), (busy, 80))
    for size, slide, batch in ((50, 50, 50), (50, 10, 100), (400, 20, 20), (400, 100, 1_000), (2_000, 100, 2_000))
]  # fmt: skip


def bench(
    rounds: int = 3, scale: float = 1.0, spark: bool = False, progress: Progress = lambda text: None
) -> dict[str, Any]:
    """A line for each shape; ``auto_of_best``: its rate, as a share of the best fixed choice's."""
    lines: dict[str, dict[str, Any]] = {}
    correct = True
    processes = LocalBackend(only=PROCESSES)
    try:
        processes.warm(2)
        plans.shared_backend().warm(2)
        for shape in SHAPES:
            progress(shape.name)
            lines[shape.name], right = measure(shape, rounds, scale, spark, processes)
            correct &= right
    finally:
        processes.close()
    shares = [line["auto_of_best"] for line in lines.values()]
    figures = {"shapes": lines, "auto_least": min(shares), "auto_median": round(statistics.median(shares), 3)}
    reached = sum(share >= AIM for share in shares)
    return {**figures, "auto_reaches_aim": reached, "aim": AIM, "correct": correct, "rounds": rounds, **setting()}


def measure(
    shape: Shape, rounds: int, scale: float, spark: bool, processes: LocalBackend
) -> tuple[dict[str, Any], bool]:
    """Seconds of each choice, and whether all computed the same."""
    choices = ["local", "processes", *(["spark"] if spark else []), "auto"]
    best: dict[str, float] = {}
    answers: list[Any] = []
    told = ""
    for _ in range(rounds):
        for choice in choices:
            with local_backend(processes if choice == "processes" else plans.shared_backend()):
                answer, seconds, told = run(shape, scale, choice)
            best[choice] = min(best.get(choice, seconds), seconds)
            answers.append(answer)
    share = min(seconds for choice, seconds in best.items() if choice != "auto") / best["auto"]
    line: dict[str, Any] = {f"{choice}_ms": round(seconds * 1e3) for choice, seconds in best.items()}
    return {**line, "auto_of_best": round(share, 3), "auto_chose": told}, all(one == answers[0] for one in answers)


@contextmanager
def local_backend(backend: LocalBackend) -> Iterator[None]:
    """Inside, windows on this machine are evaluated by this backend."""
    before = plans._shared[:]
    plans._shared[:] = [backend]
    try:
        yield
    finally:
        plans._shared[:] = before


def run(shape: Shape, scale: float, choice: str) -> tuple[tuple[Any, ...], float, str]:
    """What all results add up to, the seconds of feeding, and which way was taken last."""
    app = App("shapes")
    app.table("CREATE TABLE kept (number BIGINT PRIMARY KEY, value DOUBLE)")
    app.stream("points", "x DOUBLE NOT NULL", border=True)
    recent = window(
        "points",
        count=shape.size,
        slide=shape.slide,
        compute=w.whole(shape.function, "value DOUBLE"),
        pattern=w.WindowFarm(2) if choice == "processes" else None,
        backend="local" if choice == "processes" else choice,
    )

    @app.procedure(inputs="points", writes=["kept"], windows={"recent": recent})
    def keep(txn: Transaction, points: Batch) -> None:
        for row in txn.window("recent").results:
            txn.insert("kept", (row.window_number, row.value))

    count = shape.size + shape.slide * max(1, round(shape.windows * scale))
    rows = [(float(i * 7_919 % 1_009) / 1_009,) for i in range(count)]
    with tidegate.open(app) as engine:
        began = time.perf_counter()
        engine.feed("points", rows, size=shape.batch)
        seconds = time.perf_counter() - began
        (found,) = engine.query("SELECT count(*), sum(value) FROM kept").rows
        decision = engine.plan("keep.recent").decisions.get("whole")
    return tuple(found), seconds, "nothing" if decision is None else decision.way
