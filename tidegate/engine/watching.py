"""Where the time goes: what runs and what waits, looked at fifty times a second by a thread of its own.

Executions pay nothing for it: what runs is in ``Runtime.running`` anyway, and why something waits is what the scheduler
decided last. From the looks of the last seconds follow how busy each procedure is, which keys its work is for, and one
sentence that names what holds up the rest.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter, deque
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from tidegate.mutex import Flag
from tidegate.txn.execution import Execution, State, Why

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

EVERY_S = 0.02
KEPT = 500  # looks: ten seconds
WAITS_EVERY = 5  # looks
MOST = 500  # waiting executions looked at
FEW = 3  # that many waiting executions are no queue
HALF = 0.5


class Seen(NamedTuple):
    """One look at what runs: procedures, each with the key it runs for."""

    running: tuple[tuple[str, Any], ...]


class Wait(NamedTuple):
    """Why one execution waits. ``behind``: the unit of the execution in front of it."""

    unit: str
    key: Any
    why: Why
    item: str | None
    behind: str | None
    stream: str
    seconds: float


class Watching:
    """See the module. ``look`` may be called without the thread."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._seen: deque[Seen] = deque(maxlen=KEPT)
        self.waits: list[Wait] = []
        self._looks = 0
        self._ended = Flag()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None and not self._engine.closed:
            self._thread = threading.Thread(target=self._run, name="tidegate-watching", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Return when the thread has ended."""
        self._ended.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            try:
                self.look()
            except Exception:
                log.debug("a look at what runs failed", exc_info=True)

    def look(self) -> None:
        """What runs now; now and then also what waits, if the engine's lock is free."""
        running = list(self._engine.runtime.running.values())
        self._seen.append(Seen(tuple((txn.procedure, getattr(txn, "key", None)) for txn in running)))
        self._looks += 1
        if self._looks % WAITS_EVERY == 1 and self._engine.lock.acquire(blocking=False):
            try:
                self.waits = self._waits()
            finally:
                self._engine.lock.release()

    def _waits(self) -> list[Wait]:
        now, live = self._engine.clock.now(), self._engine.scheduler.live
        waiting = (e for e in live.values() if e.state is State.WAITING and e.context is not None)
        return [self._wait(e, (now - e.context.time).total_seconds()) for e in islice(waiting, MOST)]

    def _wait(self, execution: Execution, seconds: float) -> Wait:
        reason, unit = execution.reason, execution.unit
        front = self._engine.scheduler.live.get(reason.behind) if reason.behind is not None else None
        item = None if reason.item is None else str(reason.item)
        behind = None if front is None else front.unit.name
        stream = min(unit.ancestors, default=unit.name)  # where it came in
        return Wait(unit.name, execution.key, reason.why, item, behind, stream, seconds)

    # ---- what follows from it

    def busy(self) -> dict[str, float]:
        """The share of time that each procedure ran in; more than 1 where several threads run it."""
        seen = list(self._seen)
        count = Counter(name for one in seen for name, _ in one.running)
        return {name: number / len(seen) for name, number in count.most_common()}

    def hot_keys(self) -> list[tuple[str, Any, float]]:
        """Procedure, key, and which share of its work that runs or waits is for this key; the hottest first."""
        keys: Counter[tuple[str, Any]] = Counter()
        for one in list(self._seen):
            keys.update((name, key) for name, key in one.running if key is not None)
        looks = max(len(self._seen), 1)
        units = {member.name: unit.name for unit in self._engine.graph.units for member in unit.members}
        waiting = Counter((wait.unit, wait.key) for wait in self.waits if wait.key is not None)
        load: Counter[tuple[str, Any]] = Counter()
        for (name, key), number in keys.items():
            load[units.get(name, name), key] += number / looks  # type: ignore[assignment]
        load.update(waiting)
        total: Counter[str] = Counter()
        for (unit, _), number in load.items():
            total[unit] += number
        return [(unit, key, number / total[unit]) for (unit, key), number in load.most_common(100)]

    def bottleneck(self) -> str | None:
        """What holds up the rest, in a sentence; None when nothing does."""
        return self._lock() or self._hot_key() or self._slow()

    def _lock(self) -> str | None:
        held = Counter((wait.item, wait.behind) for wait in self.waits if wait.why is Why.LOCK)
        if not held or held.total() < max(FEW, HALF * len(self.waits)):
            return None
        (item, behind), _ = held.most_common(1)[0]
        number = sum(count for (what, _), count in held.items() if what == item)
        return f"bottleneck: the lock on {item}: {number} executions wait for it, behind {behind}{self._oldest()}"

    def _hot_key(self) -> str | None:
        waiting = Counter((wait.unit, wait.key) for wait in self.waits if wait.key is not None)
        if not waiting:
            return None
        (unit, key), number = waiting.most_common(1)[0]
        if number < FEW or number < HALF * len(self.waits):
            return None
        return (
            f"bottleneck: key {key} of {unit}: {number / len(self.waits):.0%} of what waits is for it{self._oldest()}"
        )

    def _slow(self) -> str | None:
        busy = self.busy()
        name = next(iter(busy), None)
        if name is None or busy[name] < HALF:
            return None
        return f"bottleneck: {name}, {min(busy[name], 1):.0%} busy{self._oldest()}"

    def _oldest(self) -> str:
        if not self.waits:
            return ""
        oldest = max(self.waits, key=lambda wait: wait.seconds)
        return f"; {oldest.stream} waits {oldest.seconds:.1f} s"

    def waits_for(self) -> dict[str, str]:
        """What the executions of each unit wait for, most of them."""
        found: dict[str, Counter[str]] = {}
        for wait in self.waits:
            told = f"lock on {wait.item}" if wait.why is Why.LOCK else wait.why.value
            found.setdefault(wait.unit, Counter())[told] += 1
        return {unit: f"{told.most_common(1)[0][0]} ({told.most_common(1)[0][1]})" for unit, told in found.items()}


def metrics(engine: Engine) -> dict[str, Any]:
    """See :meth:`Engine.metrics`."""
    watching, journal = engine.watching, engine.journal
    watching.start()
    return {
        "sequence": engine.sequence,
        "unfinished": len(engine.scheduler.live) + len(engine.scheduler.parked),
        "commits": dict(journal.commits),
        "aborts": dict(journal.undone),
        "dead_letters": len(journal.dead_letters),
        "busy": watching.busy(),
        "hot_keys": [[unit, key, share] for unit, key, share in watching.hot_keys()[:10]],
        "waits_for": watching.waits_for(),
        "bottleneck": watching.bottleneck(),
        "subscriptions": {name: s.lag for name, s in list(engine.outbox.subscriptions.items())},
        "unmerged_rows": engine.database.unmerged,
        "merges": engine.merger.count,
        "merge_seconds": engine.merger.seconds,
    }
