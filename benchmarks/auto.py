"""Does ``backend="auto"`` keep up with the best fixed choice? Twenty shapes of windows, light to heavy, few to many.

Each shape is fed, a stretch at a time, through engines with windows evaluated in this process (``local``, without a pattern),
always in two worker processes, on Spark if asked for, and with ``auto``. The engines stay open and take turns, stretch by
stretch, so that what else the machine does meets all of them. Figures are by the clock, because work in other processes counts.

The *steady state* begins after ``SETTLING_S`` of feeding each of them: by then ``auto`` has tried what it can try, and what
follows has its later trials in it. The time before, in which it finds out, is told separately (``auto_at_first``). Worker
processes and Spark have started before. All results are compared.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

import tidegate
from tidegate import App, Batch, Engine, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.setting import setting
from tidegate.streams.windows.declare.functions import Extent
from tidegate.streams.windows.evaluate import plan as plans
from tidegate.streams.windows.evaluate.local import PROCESSES, LocalBackend

Progress = Callable[[str], None]
AIM = 0.9
SETTLING_S = 1.0  # of feeding, until the steady state begins
STRETCH_S = 0.15  # what is fed in one turn takes about this long in this process


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
    """Windows of ``size`` rows that slide by ``slide``, in batches of ``batch`` rows."""

    name: str
    function: Callable[[Extent], float]
    size: int
    slide: int
    batch: int


SHAPES = [
    Shape(f"{function.__name__}, {size:,} rows sliding by {slide:,}, {batch:,} a batch", function, size, slide, batch)
    for function in (light, medium, heavy, busy)
    for size, slide, batch in ((50, 50, 50), (50, 10, 100), (400, 20, 20), (400, 100, 1_000), (2_000, 100, 2_000))
]  # fmt: skip


def bench(
    rounds: int = 7, scale: float = 1.0, spark: bool = False, only: str = "", progress: Progress = lambda text: None
) -> dict[str, Any]:
    """A line for each shape; ``auto_of_best``: its rate in the steady state, as a share of the best fixed choice's."""
    lines: dict[str, dict[str, Any]] = {}
    correct = True
    processes = LocalBackend(only=PROCESSES)
    try:
        processes.warm(2)
        plans.shared_backend().warm(2)
        for shape in [shape for shape in SHAPES if only in shape.name]:
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
    """Milliseconds that a stretch takes each choice, and whether all computed the same."""
    choices = ["local", "processes", *(["spark"] if spark else []), "auto"]
    with ExitStack() as opened:
        runs = {}
        for choice in choices:
            with local_backend(processes if choice == "processes" else plans.shared_backend()):
                runs[choice] = opened.enter_context(running(shape, choice))
        batches = _stretch(shape, scale)
        first = {choice: [run.feed(batches)] for choice, run in runs.items()}
        while min(map(sum, first.values())) < SETTLING_S * scale:
            for choice, run in runs.items():
                first[choice].append(run.feed(batches))
        taken: dict[str, list[float]] = {choice: [] for choice in choices}
        for number in range(rounds):
            for choice in (*choices[number % len(choices) :], *choices[: number % len(choices)]):
                taken[choice].append(runs[choice].feed(batches))
        answers = [run.answer() for run in runs.values()]
        told = runs["auto"].told()
    line: dict[str, Any] = {f"{choice}_ms": round(statistics.median(of) * 1e3, 1) for choice, of in taken.items()}
    line["auto_of_best"] = _share({choice: statistics.median(of) for choice, of in taken.items()})
    line["auto_at_first"] = _share({choice: sum(of) for choice, of in first.items()})
    return {**line, "auto": told}, all(one == answers[0] for one in answers)


def _share(seconds: dict[str, float]) -> float:
    return round(min(of for choice, of in seconds.items() if choice != "auto") / seconds["auto"], 3)


def _stretch(shape: Shape, scale: float) -> int:
    """How many batches take about ``STRETCH_S`` in this process: tried with an engine of its own."""
    with running(shape, "local") as run:
        run.feed(2 + shape.size // shape.batch)
        batches = 2
        while (seconds := run.feed(batches)) < STRETCH_S / 4 * min(1.0, scale):
            batches *= 2
        return max(2, round(batches * STRETCH_S * scale / seconds))


@contextmanager
def local_backend(backend: LocalBackend) -> Iterator[None]:
    """Inside, windows on this machine are evaluated by this backend."""
    before = plans._shared[:]
    plans._shared[:] = [backend]
    try:
        yield
    finally:
        plans._shared[:] = before


class Running:
    """An open engine with one of the shapes."""

    def __init__(self, engine: Engine, shape: Shape) -> None:
        self.engine = engine
        self.shape = shape
        self.fed = 0

    def feed(self, batches: int) -> float:
        """Seconds that the next batches take from end to end."""
        first, self.fed = self.fed, self.fed + batches * self.shape.batch
        rows = [(float(i * 7_919 % 1_009) / 1_009,) for i in range(first, self.fed)]
        began = time.perf_counter()
        self.engine.feed("points", rows, size=self.shape.batch)
        return time.perf_counter() - began

    def answer(self) -> tuple[Any, ...]:
        """What all results add up to."""
        (found,) = self.engine.query("SELECT count(*), sum(value) FROM kept").rows
        return tuple(found)

    def told(self) -> str:
        """Which way windows were evaluated last, and whether ahead of their batches."""
        plan = self.engine.plan("keep.recent")
        decision = plan.decisions.get("whole")
        way = "nothing" if decision is None else decision.way
        gauge = getattr(plan.ahead, "gauge", None)
        return way if gauge is None else f"{way}; {gauge}"


@contextmanager
def running(shape: Shape, choice: str) -> Iterator[Running]:
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

    with tidegate.open(app) as engine:
        yield Running(engine, shape)
