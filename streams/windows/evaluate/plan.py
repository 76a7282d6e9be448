"""How a window is evaluated: one logical plan, whatever the pattern and wherever it runs.

The plan divides the work as the pattern says and hands it to a backend, in the way that has been measured to be the
fastest for this much work. The results never depend on that: a decomposable function always gets the same panes, in the
same order, so the results are the same to the last bit, and they are returned in the requested order.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from math import gcd
from typing import Any
from zlib import crc32

from tidegate.clock import SystemClock
from tidegate.errors import DeclarationError
from tidegate.storage.schema import Relation
from tidegate.streams.windows.declare.durations import described
from tidegate.streams.windows.declare.functions import Aggregates, Extent
from tidegate.streams.windows.declare.kinds import WindowSpec
from tidegate.streams.windows.declare.patterns import (
    KeyFarm,
    PaneFarm,
    Pattern,
    Sequential,
    WindowFarm,
    WindowMapReduce,
    as_numbers,
    check,
    default_pattern,
    farms_of_panes,
    has_panes,
)
from tidegate.streams.windows.evaluate.choosing import ALONE, LITTLE, LITTLE_S, Decision, Meter, count, many, time
from tidegate.streams.windows.evaluate.local import HERE, ON_THIS_MACHINE, Backend, LocalBackend
from tidegate.streams.windows.evaluate.picture import Picture, Stage, as_svg, as_text
from tidegate.streams.windows.evaluate.tasks import PART_ROWS, Operation, Outcome, Task, Work, carry_out
from tidegate.streams.windows.state.saving import unstorable
from tidegate.streams.windows.state.sharing import Sharing

PROBE = 2  # items evaluated here to learn what one costs

NOUNS: dict[Operation, str] = {"whole": "window", "pane": "pane", "combine": "window"}
DOES: dict[Operation, str] = {"whole": "windows", "pane": "pane", "combine": "combine"}

Dealt = list[tuple[list[int], int | None]]  # the places of each task's items, and its worker if that is fixed
Deal = Callable[[int], Dealt]  # given the chunks for each worker

_shared: list[LocalBackend] = []


def shared_backend() -> LocalBackend:
    """The backend of plans that were given none: one for the process, since they share its cores."""
    if not _shared:
        _shared.append(LocalBackend())
    return _shared[0]


class Plan:
    """The plan of one declared window. ``by_pane``: its state keeps the results of panes, not rows. ``vectorised``: numbers
    per pane are enough, and the state works on arrays of them itself.

    ``keyed``: whether the stream has a key, which a KeyFarm needs if the window has no ``by=``; a caller that does not
    know leaves it to :func:`~tidegate.streams.windows.declare.patterns.check` at declaration. ``timer``: seconds, for
    measuring.
    """

    def __init__(
        self,
        spec: WindowSpec,
        relation: Relation,
        backend: Backend | None = None,
        *,
        keyed: bool = True,
        timer: Callable[[], float] | None = None,
    ) -> None:
        assert spec.compute is not None
        self.spec = spec
        self.function = spec.compute
        self.backend: Backend = backend or shared_backend()
        self.pattern: Pattern = spec.pattern or default_pattern(spec, spec.compute, self.backend.replicas)
        check(self.pattern, spec, self.function, keyed)
        core = self.pattern.core
        self.farms = farms_of_panes(spec.pattern, spec)
        self.parts: int | None = core.parts if isinstance(core, WindowMapReduce) else None
        self.pane = None
        if has_panes(spec):
            self.pane = spec.slide if spec.kind == "landmark" else gcd(spec.size, self.farms * spec.slide)
        by_rows = spec.kind == "count" or (spec.kind == "landmark" and not spec.by_time)
        self.work = Work(self.function, relation, self.pane, by_rows, spec.on, spec.scale, self.parts)
        self.by_pane = isinstance(core, PaneFarm) or (
            isinstance(core, Sequential) and self.function.decomposable and self.pane is not None
        )
        self.vectorised = as_numbers(spec, relation)
        self.timer = timer or SystemClock().monotonic
        self.work_s = (
            0.0  # what everything evaluated so far would have taken in this process, at the cost measured then
        )
        self.meters: dict[Operation, Meter] = {}
        self.decisions: dict[Operation, Decision] = {}
        self.sharing: Sharing | None = None  # with windows that have the same panes
        self.ahead: object = None  # how far it is evaluated ahead of its batches, in words

    @property
    def panes_are(self) -> tuple[Any, ...]:
        """What decides what is kept of its panes: the same for windows that may share them."""
        spec = self.spec
        return (
            spec.stream, spec.kind, spec.size, spec.slide, spec.on, spec.by, spec.timed, spec.delay, spec.late, spec.source,
            spec.idle_us, spec.scale, spec.partial, self.farms, tuple(self.function.columns(self.work.relation)),
            self.function.panes_are,
        )  # fmt: skip

    # ---- what window states request

    def whole(self, extents: Sequence[Extent]) -> list[Any]:
        """The result of each window, in the given order.

        A decomposable function gets each window in panes: those that ``cuts`` marks or, where the kind has none, parts
        of a fixed number of rows.
        """
        if isinstance(self.pattern.core, WindowMapReduce):
            return self._map_and_reduce(extents)
        weights = [len(extent) for extent in extents]
        return self._all("whole", extents, extents, lambda chunks: self._dealt(extents, weights, chunks))

    def panes(self, extents: Sequence[Extent]) -> list[Any]:
        """What is kept of each pane, in the given order. It goes into checkpoints, so it must be the same after a restart."""
        weights = [len(extent) for extent in extents]
        found = self._all("pane", extents, extents, lambda chunks: self._dealt(extents, weights, chunks))
        if not isinstance(self.function, Aggregates):
            for extent, result in zip(extents, found, strict=True):
                if (wrong := unstorable(result, self.work.relation)) is not None:
                    raise self._named(self._refusal(wrong), "pane", extent)
        return found

    def _refusal(self, wrong: str) -> DeclarationError:
        return DeclarationError(
            f"{self.function!r} over {self.spec.stream} returned {wrong} for a pane, which can't be kept in a checkpoint. Return "
            f"numbers, text, bytes, dates, decimals, rows, numpy arrays, or lists, tuples, sets, dicts and Counters of them "
            f"for a pane, and build anything else from those in combine",
            stream=self.spec.stream,
        )

    def combine(self, labels: Sequence[Extent], panes: Sequence[Sequence[Any]]) -> list[Any]:
        """The result of each window from the results of its panes. ``labels`` say which windows; they need no rows."""
        weights = [len(window) for window in panes]
        return self._all("combine", panes, labels, lambda chunks: self._dealt(labels, weights, chunks))

    # ---- evaluation

    def _map_and_reduce(self, extents: Sequence[Extent]) -> list[Any]:
        parts = [self.work.panes(extent) for extent in extents]
        mapped = self._evaluate(
            "pane", [part for window in parts for part in window], lambda _: self._shares(extents, parts)
        )
        bounds = list(accumulate(map(len, parts), initial=0))
        complete = len(parts) if mapped.error is None else bisect_right(bounds, len(mapped.results)) - 1
        of_each = [mapped.results[low:high] for low, high in pairwise(bounds[: complete + 1])]
        results = self.combine(
            extents[:complete], of_each
        )  # of windows before one that failed: their errors come first
        if mapped.error is not None:
            raise self._named(mapped.error, "pane", extents[complete])
        return results

    def _all(self, operation: Operation, items: Sequence[Any], labels: Sequence[Extent], deal: Deal) -> list[Any]:
        outcome = self._evaluate(operation, items, deal)
        if outcome.error is not None:
            raise self._named(outcome.error, operation, labels[len(outcome.results)])
        return outcome.results

    def _evaluate(self, operation: Operation, items: Sequence[Any], deal: Deal) -> Outcome:
        """Results in order, up to the first item that raised: the same one however the items were divided."""
        if not items:
            return Outcome([])
        meter = self.meters.setdefault(operation, Meter(NOUNS[operation]))
        self._spread()
        workers = self._workers(operation)
        if workers == 1:
            self.decisions[operation] = ALONE
            return self._here(meter, operation, items)
        each = meter.cost(HERE).each
        self.work_s += (each or 0.0) * len(items)
        if each is not None and each * len(items) < LITTLE_S and not self.backend.only:
            self.decisions[operation] = LITTLE
            return self._here(meter, operation, items)
        ways = self.backend.ways(self.work)
        first = Outcome([])
        if len(ways) > 1 and meter.cost(ways[0].name).each is None:
            first = self._probe(meter, ways[0].name, operation, items)
            if first.error is not None or len(first.results) == len(items):
                return first
        done = len(first.results)
        decision = meter.decide(
            len(items) - done,
            self.backend.workers(workers),
            ways,
            lambda way: self.backend.start(way, self.backend.workers(workers)),
        )
        self.decisions[operation] = decision
        if decision.way == HERE:
            return self._here(meter, operation, items, first.results)
        dealt = [([i for i in places if i >= done], worker) for places, worker in deal(decision.chunks)]
        dealt = [(places, worker) for places, worker in dealt if places]
        tasks = [Task(self.work, operation, [items[i] for i in places], worker) for places, worker in dealt]
        began = self.timer()
        outcomes = self.backend.run(decision.way, tasks, decision.workers)
        meter.measured(decision.way, len(items) - done, self.timer() - began)
        results: list[Any] = [*first.results, *[None] * (len(items) - done)]
        failed: dict[int, Exception] = {}
        for (places, _), outcome in zip(dealt, outcomes, strict=True):
            for i, result in zip(places, outcome.results, strict=False):
                results[i] = result
            if outcome.error is not None:
                failed[places[len(outcome.results)]] = outcome.error
        if not failed:
            return Outcome(results)
        return Outcome(results[: min(failed)], failed[min(failed)])

    def _here(self, meter: Meter, operation: Operation, items: Sequence[Any], done: Sequence[Any] = ()) -> Outcome:
        began = self.timer()
        outcome = carry_out(Task(self.work, operation, items), done)
        meter.measured(HERE, len(outcome.results) - len(done), self.timer() - began)
        return outcome

    def _probe(self, meter: Meter, way: str, operation: Operation, items: Sequence[Any]) -> Outcome:
        """A few items, to learn what one costs; the first may have had to load something, so the fastest is taken."""
        times = []
        outcome = Outcome([])
        for i in range(min(PROBE, len(items))):
            began = self.timer()
            outcome = carry_out(Task(self.work, operation, items[: i + 1]), outcome.results)
            if outcome.error is not None:
                return outcome
            times.append(self.timer() - began)
        meter.measured(way, len(times), min(times) * len(times))
        self.decisions[operation] = Decision(way, 1, 1, f"to learn what a {meter.noun} costs: in {way}")
        return outcome

    def _named(self, error: Exception, operation: Operation, label: Extent) -> Exception:
        """The exception, with a note of the window it belongs to."""
        key = f" of {', '.join(map(repr, label.key))}" if label.key else ""
        label_text = f"{NOUNS[operation]} {label.number}{key} [{label.start}, {label.end})"
        what = f"in {label_text} over {self.spec.stream}, by {self.function!r}"
        if what not in getattr(error, "__notes__", ()):
            error.add_note(what)
        return error

    @property
    def goes_far(self) -> bool:
        """Was anything evaluated last on something other than this machine's threads and processes?"""
        return any(decision.way not in ON_THIS_MACHINE for decision in self.decisions.values())

    def ready(self) -> int:
        """How many ways could evaluate now."""
        return sum(way.why_not is None and not way.starts_in for way in self.backend.ways(self.work))

    # ---- who gets what

    def _spread(self) -> None:
        """A window without a pattern uses all workers; for a cluster their number is known once it has started."""
        if self.spec.pattern is None and (replicas := self.backend.replicas) > 1 and replicas != self.pattern.total:
            self.pattern = default_pattern(self.spec, self.function, replicas)

    def _workers(self, operation: Operation) -> int:
        reduce = operation == "combine" and isinstance(self.pattern.core, WindowMapReduce)
        return self.pattern.replicas if reduce else self.pattern.total

    def _dealt(self, labels: Sequence[Extent], weights: Sequence[int], chunks: int) -> Dealt:
        """Which items make up each task: for each replica, a block for each of its workers (or several smaller ones)."""
        pattern = self.pattern
        width = 1 if isinstance(pattern.core, WindowMapReduce) else pattern.width
        chunks = 1 if pattern.active else chunks
        outer = self._replicas(labels, weights, pattern.replicas * (chunks if width == 1 else 1))
        if width == 1 and pattern.replicas > 1:
            return outer
        dealt: Dealt = []
        for places, replica in outer:
            for j, (low, high) in enumerate(_blocks([weights[i] for i in places], width * chunks)):
                dealt.append((places[low:high], None if replica is None else replica * width + j))
        return dealt

    def _replicas(self, labels: Sequence[Extent], weights: Sequence[int], count: int) -> Dealt:
        """Windows (or panes) of each replica of the outer farm, and which replica, if that is fixed in advance."""
        pattern = self.pattern
        places = range(len(labels))
        if isinstance(pattern, KeyFarm):
            keys: dict[Any, list[int]] = {}
            for i, label in enumerate(labels):
                keys.setdefault(crc32(repr(label.key).encode()) % count if pattern.active else label.key, []).append(i)
            if pattern.active:
                return [(mine, replica) for replica, mine in keys.items()]
            return [(mine, None) for mine in _balanced(list(keys.values()), weights, count)]
        if isinstance(pattern, WindowFarm) and pattern.active:
            return [([i for i in places if labels[i].number % count == replica], replica) for replica in range(count)]
        if isinstance(pattern, WindowFarm):
            return [(list(places[low:high]), None) for low, high in _blocks(weights, count)]
        return [(list(places), None)]

    def _shares(self, extents: Sequence[Extent], parts: Sequence[Sequence[Extent]]) -> Dealt:
        """Of every window of a replica, a share of its parts for each of the replica's workers."""
        firsts = list(accumulate(map(len, parts), initial=0))
        width = self.pattern.width
        dealt: Dealt = []
        for windows, replica in self._replicas(extents, [len(extent) for extent in extents], self.pattern.replicas):
            for j in range(width):
                mine: list[int] = []
                for w in windows:
                    n = len(parts[w])
                    mine.extend(range(firsts[w] + n * j // width, firsts[w] + n * (j + 1) // width))
                dealt.append((mine, None if replica is None else replica * width + j))
        return dealt

    # ---- description

    def explain(self) -> str:
        """Pattern, panes, workers, where it runs and why, and a picture of the stages."""
        told = [
            f"window    {self.spec} over {self.spec.stream}",
            f"compute   {self.function!r}",
            f"pattern   {self._pattern()}",
        ]
        if self.backend.replicas > 1:
            told.append(f"backend   {self.backend.place}")
        if self.ahead is not None:
            told.append(f"ahead     {self.ahead}")
        told.append(f"panes     {self._panes()}")
        if self.sharing is not None:
            told.append(f"shared    {self.sharing}")
        for operation, decision in self.decisions.items():
            meter, each = self.meters[operation], self.meters[operation].cost(HERE)
            reason = decision.reason
            if decision in (ALONE, LITTLE) and each.each is not None:
                reason = f"{time(each.each)} per {meter.noun} measured over {count(each.items, meter.noun)}; {reason}"
            told.append(f"{DOES[operation]:<10}{reason}")
        if self.vectorised:
            told.append(
                "runs      vectorised in this process: a few numbers per pane, all keys at once; rows would cost more to send"
            )
        elif not self.decisions:
            told.append("so far    nothing evaluated; what a window costs is measured as it happens")
        told += [f"note      {note}" for note in self.backend.notes]
        return "\n".join([*told, "", as_text(self.picture())])

    def svg(self) -> str:
        """A picture of the plan."""
        return as_svg(self.picture())

    def picture(self) -> Picture:
        """The plan as stages of workers."""
        pattern, core = self.pattern, self.pattern.core
        pane = self._length(self.pane)
        per_window = None if self.pane is None else self.spec.size // self.pane
        how = ""
        if isinstance(pattern, KeyFarm):
            how = ", each key to its worker" if pattern.active else ", by key to any free worker"
        elif isinstance(pattern, WindowFarm):
            how = f", window w to w mod {pattern.workers}" if pattern.active else ", to any free worker"
        if isinstance(core, WindowMapReduce):
            stages = [
                self._stage("map", "pane", f"each window in {core.parts:,} parts{how}"),
                self._stage("reduce", "combine", "the parts of each window"),
            ]
        elif self.by_pane:
            stages = [
                self._stage("panes", "pane", f"panes of {pane}{how}"),
                self._stage(
                    "windows",
                    "combine",
                    f"{'up to ' if self.spec.kind == 'landmark' else ''}{per_window:,} panes for each window",
                ),
            ]
        else:
            stages = [self._stage("windows", "whole", f"whole windows{how}")]
        overlap = None
        if self.pane is not None and self.parts is None and self.spec.kind != "landmark":
            overlap = (self.spec.size // self.pane, self.farms * self.spec.slide // self.pane)
        return Picture(
            self._pattern(), f"{self.spec} · panes: {self._panes()}", self.spec.stream, tuple(stages), overlap
        )

    def _stage(self, name: str, operation: Operation, fed: str) -> Stage:
        reduce = name == "reduce"
        decision = self.decisions.get(operation)
        runs = "" if decision is None else f"in {many(decision.workers, decision.way)}"
        return Stage(name, f"{operation}()", fed, self.pattern.replicas, 1 if reduce else self.pattern.width, runs)

    def _pattern(self) -> str:
        pattern = self.pattern
        if pattern.total == 1:
            return repr(pattern)
        nested = f"{pattern.replicas} × {pattern.width} = " if pattern.inner is not None else ""
        able = self.backend.workers(pattern.total)
        limit = f", of which {able} at the same time here" if able < pattern.total else ""
        return f"{pattern!r}: {nested}{pattern.total} workers{limit}"

    def _panes(self) -> str:
        spec = self.spec
        if self.parts is not None:
            return f"none: each window in {self.parts:,} parts of as many rows each"
        if self.pane is None:
            parts = f"; parts of {PART_ROWS:,} rows" if self.function.decomposable else ""
            if spec.refines:
                return f"none: a window fires several times{parts}"
            return f"none: rows decide where a {spec.kind.replace('_', '-')} window begins{parts}"
        n, step = spec.size // self.pane, self.farms * spec.slide // self.pane
        slide = ("" if self.farms == 1 else f"{self.farms} × ") + self._length(spec.slide)
        own = "" if self.farms == 1 else f"; panes of its own for each of the {self.farms} replicas"
        if spec.kind == "landmark":
            return f"{self._length(self.pane)}, up to {n:,} for each window"
        unit = self._length(self.pane)
        return (
            f"gcd({self._length(spec.size)}, {slide}) = {unit}: {n:,} for each window, slide {step:,}{own}"
            f"{'' if self.function.decomposable else f'; not used, {self.function!r} takes whole windows'}"
        )

    def _length(self, length: int | None) -> str:
        if length is None:
            return ""
        if self.spec.scale is not None:
            return self.spec.scale.length(length)
        if self.spec.timed and self.spec.by_time:
            return described(length)
        return f"{length:,}" + (
            {"batches": " batches"}.get(self.spec.kind, " tuples") if self.work.by_rows or not self.spec.by_time else ""
        )


def _blocks(weights: Sequence[int], count: int) -> list[tuple[int, int]]:
    """Cut a sequence into at most ``count`` blocks of about equal weight."""
    sums = list(accumulate((w + 1 for w in weights), initial=0))
    cuts = sorted({bisect_left(sums, sums[-1] * k / count) for k in range(count + 1)})
    return list(pairwise(cuts))


def _balanced(groups: Sequence[list[int]], weights: Sequence[int], count: int) -> list[list[int]]:
    """Put groups together into at most ``count`` of about equal weight: the heaviest first, each to the lightest."""
    heavy = sorted(((sum(weights[i] + 1 for i in group), group) for group in groups), key=lambda one: -one[0])
    bins = [(0, number, list[int]()) for number in range(min(count, len(heavy)))]
    for weight, group in heavy:
        total, number, mine = heapq.heappop(bins)
        heapq.heappush(bins, (total + weight, number, mine + group))
    return [sorted(mine) for _, _, mine in sorted(bins, key=lambda one: -one[0])]
