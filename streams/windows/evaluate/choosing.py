"""Where to evaluate: in this process, threads, processes or elsewhere, by the measured cost of each.

It decides only how fast results come, never what they are. Several threads may use one meter; a lost measurement is
harmless.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidegate.streams.windows.evaluate.local import HERE, Way

CHUNK_S = 0.005  # chunks are no smaller than this much work ...
CHUNKS = 4  # ... and at most this many for each worker: one that is done early takes another
REMEMBERED = 10_000  # measurements older than this many items count half
FORGOTTEN = (
    200  # a way that was not taken this many times in a row is measured again; then twice as many, and so on ...
)
LONGEST = 64 * FORGOTTEN  # ... up to this
GOOD = 0.75  # share of the best possible saving by n workers from which no other way is started


@dataclass
class Cost:
    """The measured cost of an item in one way, everything included that an evaluation takes: sending, starting, waiting.

    ``runs``: how many evaluations it was measured over.
    """

    items: float = 0
    seconds: float = 0.0
    unused: int = 0
    runs: float = 0
    rest: int = FORGOTTEN

    @property
    def each(self) -> float | None:
        return self.seconds / self.items if self.items else None

    def of(self, items: int, ideal: float) -> float:
        """What each of this many items will take, if workers that have nothing but the work take ``ideal``: what an
        evaluation took beyond that is taken to be the same for few items and for many.
        """
        ideal = min(ideal, self.seconds / self.items)
        return ideal + (self.seconds - self.items * ideal) / self.runs / items

    def add(self, items: int, seconds: float) -> None:
        if self.items > REMEMBERED:
            self.items, self.seconds, self.runs = self.items / 2, self.seconds / 2, self.runs / 2
        self.items += items
        self.seconds += seconds
        self.runs += 1
        self.unused = 0

    def passed_over(self) -> None:
        self.unused += 1
        if self.unused >= self.rest:
            self.items, self.seconds, self.runs, self.unused = 0, 0.0, 0, 0
            self.rest = min(2 * self.rest, LONGEST)


@dataclass(frozen=True)
class Decision:
    """Which way, how many workers, how many chunks for each, and why."""

    way: str
    workers: int
    chunks: int
    reason: str


ALONE = Decision(HERE, 1, 1, f"one worker: in {HERE}")
LITTLE_S = 0.0005  # for less work than this no way is weighed against another: that alone would cost too much of it
LITTLE = Decision(HERE, 1, 1, f"little work at a time: in {HERE}")


@dataclass
class Meter:
    """What one operation costs in each way, and which way to take. It never changes a result."""

    noun: str
    costs: dict[str, Cost] = field(default_factory=dict)
    waited_s: dict[str, float] = field(default_factory=dict)  # work for which a way not started yet would have paid off

    def cost(self, way: str) -> Cost:
        return self.costs.setdefault(way, Cost())

    def decide(self, items: int, workers: int, ways: Sequence[Way], start: Callable[[str], None]) -> Decision:
        """The way for this many items. ``start`` is called with a way whose start-up now pays off."""
        here, others = ways[0], ways[1:]
        cost = self.cost(here.name)
        if not others:
            return Decision(here.name, workers, 1, f"always in {many(workers, here.name)}, as asked for")
        if workers == 1:
            return Decision(here.name, 1, 1, f"one core: in {here.name}")
        if cost.each is None:
            return Decision(here.name, 1, 1, f"what a {self.noun} costs is not known yet: in {here.name}")
        work = cost.each * items
        measured = f"{time(cost.each)} per {self.noun} measured over {count(cost.items, self.noun)}"
        told = f"{measured}, {items:,} waiting: {time(work)} of work"
        allowed, hindrances = self._allowed(work, cost.each, workers, others, start)
        if not allowed:
            return Decision(here.name, 1, 1, f"{told}, {', '.join(hindrances)}: in {here.name}")
        besides = "".join(f"; {hindrance}" for hindrance in hindrances)
        chunks = max(1, min(CHUNKS, int(work / workers / CHUNK_S), items // workers))
        for way in allowed:
            if self.cost(way.name).each is None:
                return Decision(
                    way.name, workers, chunks, f"{told}, enough to try {split(workers, way.name, chunks)}{besides}"
                )
        each = {
            here.name: cost.each,
            **{way.name: self.cost(way.name).of(items, cost.each / workers) for way in allowed},
        }
        best = min(each, key=each.__getitem__)
        self.cost(best).rest = FORGOTTEN
        if best == here.name:
            workers = chunks = 1
        compared = ", ".join(f"{time(taken)} in {name}" for name, taken in each.items())
        reason = f"{told}; measured per {self.noun}: {compared}: in {split(workers, best, chunks)}"
        return Decision(best, workers, chunks, reason + besides)

    def _allowed(
        self, work: float, each: float, workers: int, ways: Sequence[Way], start: Callable[[str], None]
    ) -> tuple[list[Way], list[str]]:
        """The ways that may pay off for this much work, and why the others do not."""
        allowed: list[Way] = []
        hindrances: list[str] = []
        too_little = ""
        for way in ways:
            good = next((other.name for other in allowed if self._good(other, each, workers)), None)
            if way.why_not is not None:
                hindrances.append(way.why_not)
            elif work < way.pays_from:
                too_little = too_little or f"below the {time(way.pays_from)} at which {many(workers, way.name)} pay"
            elif not way.starts_in:
                allowed.append(way)
            elif way.starting:
                hindrances.append(f"{way.name} are starting")
            elif way.like is not None:
                hindrances.append(f"{way.name} are not started, since they would have no other cores than {way.like}")
            elif good is not None:
                hindrances.append(f"{way.name} are not started, since {good} save most of what {workers} workers can")
            else:
                hindrances.append(self._waited(way, work, start))
        return allowed, hindrances or ([too_little] if too_little else [])

    def _waited(self, way: Way, work: float, start: Callable[[str], None]) -> str:
        """As with renting and buying: it is started once the work done without it has cost as much as starting it."""
        waited = self.waited_s[way.name] = self.waited_s.get(way.name, 0.0) + work
        if waited >= way.starts_in:
            start(way.name)
            return f"{way.name} are starting"
        return f"{time(waited)} of such work so far, less than the {time(way.starts_in)} to start {way.name}"

    def _good(self, way: Way, each: float, workers: int) -> bool:
        """Does this way already save most of what this many workers could save?"""
        taken = self.cost(way.name).each
        return taken is not None and taken <= each * (1 - GOOD * (1 - 1 / workers))

    def measured(self, way: str, items: int, seconds: float) -> None:
        self.cost(way).add(items, seconds)
        for name, cost in self.costs.items():
            if name != way:
                cost.passed_over()


def time(seconds: float) -> str:
    """Seconds in words.

    >>> time(0.0021), time(0.017), time(3e-6)
    ('2.1 ms', '17 ms', '3.0 µs')
    """
    unit, size = ("s", 1.0) if seconds >= 1 else ("ms", 1e-3) if seconds >= 1e-3 else ("µs", 1e-6)
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.1f} {unit}"


def count(items: float, noun: str) -> str:
    return f"{items:,.0f} {noun}{'' if items == 1 else 's'}"


def split(workers: int, way: str, chunks: int) -> str:
    return many(workers, way) + (f", {chunks} chunks each" if chunks > 1 else "")


def many(workers: int, way: str) -> str:
    """``two processes``; this process is named as it is."""
    number = {2: "two", 3: "three", 4: "four"}.get(workers, f"{workers:,}")
    return way if way == HERE else f"{number} {way}"
