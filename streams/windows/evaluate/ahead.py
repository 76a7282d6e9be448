"""Running the look-ahead: which batches are coming, which thread evaluates them, and which waits.

The thread that slides a window evaluates it, together with the windows of batches that wait behind it. If
``background`` is allowed, the next groups are evaluated meanwhile: transactions then take results while the next ones
are computed, and a job that is being prepared does not keep workers waiting.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, takewhile
from typing import Any

from tidegate.mutex import Flag
from tidegate.streams.windows.evaluate.foresight import (
    ENOUGH_HERE_S,
    ENOUGH_S,
    Answered,
    Chain,
    Coming,
    Depth,
    Step,
    evaluate,
)
from tidegate.streams.windows.evaluate.gauge import Gauge
from tidegate.streams.windows.evaluate.local import THREADS_PAY_S
from tidegate.streams.windows.evaluate.plan import Plan
from tidegate.streams.windows.state.results import WindowState

log = logging.getLogger("tidegate.windows")

PASSED = 100  # batches that can't be looked ahead to, before the search for one that can is given up
GROUPS = 2  # groups evaluated in the background at a time
GLANCE = 32  # batches until it can be said that looking ahead is hopeless
TARGET_S = 1.0  # how long the first of several batches may wait for the results of all, by default

_background: list[ThreadPoolExecutor] = []


class Group:
    """Steps that are evaluated together."""

    def __init__(self, steps: list[Step]) -> None:
        self.steps = steps
        self.done = Flag()


class LookAhead:
    """The look-ahead of one declared window, over all keys of its stream.

    ``opened``: a new, empty state, for shadows. ``measured``: it looks ahead only while that pays. ``lock`` guards chains and
    what is pending; it is never held during an evaluation. A state is copied only by the thread whose turn it is to slide it.
    """

    def __init__(
        self,
        plan: Plan,
        opened: Callable[[], Any],
        limit: int,
        background: bool,
        timer: Callable[[], float] | None = None,
        measured: bool = False,
    ) -> None:
        spec = plan.spec
        self.plan = plan
        plan.ahead = self
        self.opened = opened
        self.background = background
        target = TARGET_S if spec.max_delay_us is None else spec.max_delay_us / 1e6
        self.depth = Depth(limit, target, first=min(limit, 2 * plan.pattern.total))
        self.timed = (spec.by_time and spec.on is None) or spec.idle_us is not None  # does the time of arrival matter?
        self.timer = timer or plan.timer
        self.gauge = Gauge(self.timer, self._hopeless, plan.ready) if measured else None
        self.chains: dict[Any, Chain] = {}
        self.states: set[Any] = set()  # keys that have a state
        self.pending: dict[int, Coming] = {}  # by the identity of their rows, in order of arrival
        self.chained: set[int] = set()  # by the identity of their rows: batches that chains have steps for
        self.lock = threading.Lock()
        self.numbered = 0
        self.groups: dict[Step, Group] = {}  # steps that are being evaluated
        self.in_flight = 0
        self.ended_s = 0.0  # when the last evaluation ended
        self.evaluations = self.foreseen = self.used = self.voided = 0
        self.second_s: float | None = None  # what the second state's slide takes for a batch, at best
        self.hindrance: str | None = None  # why look-ahead from a state is impossible, if it was

    def attach(self, key: Any, state: WindowState) -> ForeseenState:
        """The state of a key, such that its slides take what was foreseen."""
        with self.lock:
            self.states.add(key)
        return ForeseenState(self, key, state)

    def coming(self, key: Any, rows: Any, now_us: int) -> None:
        """A batch has its place in the order: the window will slide by it after all those announced before."""
        with self.lock:
            if id(rows) not in self.pending and id(rows) not in self.chained:
                self.numbered += 1
                self.pending[id(rows)] = Coming(self.numbered, key, rows, now_us if self.timed else 0)

    def go_on(self) -> None:
        """Start with what can be evaluated ahead before a slide needs it."""
        with self.lock:
            self._go_on()

    def announce(self, parts: Iterable[tuple[Any, Any]]) -> None:
        """These batches, by key, will come after all those announced before."""
        if self.gauge is not None:
            with self.lock:
                self.gauge.announced()
        for key, rows in parts:
            self.coming(key, rows, 0)
        self.go_on()

    def withdraw(self, keys: Mapping[int, Any]) -> None:
        """Announced batches will not come; given by the identity of their rows, with their keys."""
        with self.lock:
            for key in set(keys.values()):
                chain = self.chains.get(key)
                if chain is not None and any(id(step.coming.rows) in keys for step in chain.steps):
                    self._void(chain)
            for identity in keys:
                self.pending.pop(identity, None)

    # ---- a slide

    def slide(self, key: Any, state: Any, answered: Answered, rows: Any, now_us: int, mark: int | None) -> Any:
        """The slide of the real state, with results evaluated ahead, before or now. A watermark is not foreseen: when the
        slide by it commits, what was computed ahead is void.
        """
        if self.gauge is not None and mark is None and self._in_its_turn(self.gauge, key, rows):
            state.plan = self.plan
            return state.slide(rows, now_us)
        state.plan = answered
        step = self._step(key, state, rows, now_us if self.timed else 0) if mark is None else None
        answered.step = step
        try:
            slide = state.slide(rows, now_us, mark)
        finally:
            answered.step = None
        commit = slide._commit
        slide._commit = lambda: self._committed(key, step, commit)
        return slide

    def _in_its_turn(self, gauge: Gauge, key: Any, rows: Any) -> bool:
        """Is this slide, which begins now, one without any look-ahead?"""
        with self.lock:
            left = len(self.chained)
            gauge.slid(len(rows), len(self.pending) + left > 1, self.evaluations, left)
            if left or gauge.ahead:
                return False
            self._skip_to(key, rows)
            self.chains.pop(key, None)  # its shadow will not be the state
            return True

    def _step(self, key: Any, state: Any, rows: Any, now_us: int) -> Step | None:
        """The step with the answers for this slide; None: it is evaluated on its own."""
        while True:
            with self.lock:
                chain = self.chains.get(key)
                step = None if chain is None else chain.head(rows, now_us)
                if step is None:
                    group = self._begin(key, state, rows)
                    if group is None:
                        return None
                    mine = True
                elif step.ready:
                    self._go_on()
                    return step
                else:
                    group, mine = self.groups[step], False
                if mine:
                    self._go_on()
                    if not group.steps:  # nothing to evaluate, for this batch or for those behind it
                        continue
            if mine:
                self._evaluate(group)
            else:
                group.done.wait()

    def _begin(self, key: Any, state: Any, rows: Any) -> Group | None:
        """A group that starts with this slide; None when nothing waits behind it. The lock is held."""
        chain = self.chains.setdefault(key, Chain())
        if chain.steps:  # the state does not develop as was assumed
            self._void(chain)
        mine = self._skip_to(key, rows)
        if not self._looks:
            del self.chains[key]  # its shadow will not be the state
            return None
        if mine is None or mine.alone or not self.pending:
            return None
        steps: list[Step] = []
        if (chain.shadow is None and not self._copied(chain, state)) or not self._foresee(mine, steps):
            return None
        return self._gathered(steps)

    def _skip_to(self, key: Any, rows: Any) -> Coming | None:
        """This batch is no longer pending, nor are those of its key before it, which were skipped: aborted, dead letters,
        withdrawn. The lock is held.
        """
        mine = self.pending.get(id(rows))
        if mine is not None:
            last = mine.number
            until = takewhile(lambda item: item[1].number <= last, self.pending.items())
            for identity in [i for i, c in until if c.key == key]:
                del self.pending[identity]
        return mine

    def _copied(self, chain: Chain, state: Any) -> bool:
        shadow = self.opened()
        try:
            shadow.restore(state.save())
        except Exception as error:  # what a function returns for a pane may be anything
            self.hindrance = f"its state can't be copied: {error}"
            return False
        chain.follow(shadow)
        return True

    def _gathered(self, steps: list[Step]) -> Group:
        """A group of these steps and of those of pending batches, in order. The lock is held.

        A batch that makes no window fire is ready as it is: it is not in the group and is not counted.
        """
        limit, wanted = self.depth.limit, self.depth.of(len(steps) + len(self.pending))
        mine = {step.coming.key for step in steps}
        asking = sum(step.asks for step in steps)
        passed: set[Any] = set()
        vain = 0
        began, had = self.timer(), len(steps)
        for coming in list(islice(self.pending.values(), limit + PASSED)):
            key = coming.key
            if asking >= wanted or len(steps) >= limit or vain >= PASSED:
                break
            if coming.alone or key in passed or not (key in mine or self._foreseeable(key)):
                passed.add(key)
                vain += 1
            elif self._foresee(coming, steps):
                mine.add(key)
                asking += steps[-1].asks
            else:
                passed.add(key)
        if len(steps) - had >= 2:
            taken = (self.timer() - began) / (len(steps) - had)
            self.second_s = taken if self.second_s is None else min(self.second_s, taken)
        for step in steps:
            step.ready = not step.asks
        self.foreseen += len(steps) - asking
        group = Group([step for step in steps if step.asks])
        self.groups.update(dict.fromkeys(group.steps, group))
        return group

    def _foreseeable(self, key: Any) -> bool:
        """Is the key's shadow up to date, and is everything known that its next windows consist of?"""
        chain = self.chains.get(key)
        if chain is None and key not in self.states:
            chain = self.chains[key] = Chain()
            chain.follow(self.opened())
        if chain is None or chain.shadow is None:
            return False
        return not self.plan.by_pane or all(step.ready for step in chain.steps)

    def _foresee(self, coming: Coming, steps: list[Step]) -> bool:
        try:
            steps.append(self.chains[coming.key].foresee(coming))
        except Exception as error:  # a late row, a predicate that raises: its own transaction handles that
            log.info("can't look ahead to a batch of %s: %r", self.plan.spec.stream, error)
            coming.alone = True
            self.pending[id(coming.rows)] = coming
            return False
        self.pending.pop(id(coming.rows), None)
        self.chained.add(id(coming.rows))
        return True

    def _void(self, chain: Chain, alone: bool = False) -> None:
        """What a chain assumed is false, or could not be evaluated; its batches are pending again. The lock is held."""
        back = chain.void()
        self.voided += len(back)
        for coming in back:
            coming.alone = alone
            self.chained.discard(id(coming.rows))
            self.pending[id(coming.rows)] = coming
        if back:
            self.pending = dict(sorted(self.pending.items(), key=lambda item: item[1].number))

    def _hopeless(self) -> bool:
        """Is all that looking ahead could save, the evaluation of a batch, no more than the slide of a second state that it
        costs? Or do even as many batches as may be looked ahead to have less work than pays anywhere else?
        """
        batches = self.numbered - len(self.pending)
        if batches < GLANCE:
            return False
        work_s = self.plan.work_s / batches
        return work_s <= (self.second_s or 0.0) or work_s * self.depth.limit < 2 * THREADS_PAY_S

    @property
    def soon(self) -> int:
        """How many batches it is worth knowing in advance."""
        return self.depth.soon if self._looks else 2

    @property
    def _looks(self) -> bool:
        return self.gauge is None or self.gauge.ahead

    # ---- evaluation

    def _evaluate(self, group: Group) -> None:
        began = self.timer()
        try:
            evaluate(self.plan, group.steps)
            ended = self.timer()
            enough = ENOUGH_S if self.plan.goes_far else ENOUGH_HERE_S
            # it waited for the previous one to end
            self.depth.took(len(group.steps), ended - max(began, self.ended_s), enough)
            self.ended_s = ended
            self.evaluations += 1
            self.foreseen += len(group.steps)
        except Exception as error:  # which batch it belongs to, if any, shows when its turn comes
            log.info("looking ahead failed; each batch is evaluated in its turn: %r", error)
        finally:
            with self.lock:
                for step in group.steps:
                    del self.groups[step]
                for key in {step.coming.key for step in group.steps if not step.ready}:
                    self._void(self.chains[key], alone=True)
            group.done.set()

    def _go_on(self) -> None:
        """Have the next group evaluated in the background, if there is one. The lock is held."""
        if not self.background or self.in_flight >= GROUPS or not self.pending or not self._looks:
            return
        group = self._gathered([])
        if group.steps:
            self.in_flight += 1
            _background_threads().submit(self._evaluate_behind, group)

    def _evaluate_behind(self, group: Group) -> None:
        try:
            self._evaluate(group)
        finally:
            with self.lock:
                self.in_flight -= 1
                if len(self.pending) >= self.depth.now:  # a small group is better left to grow until a slide needs it
                    self._go_on()

    def _committed(self, key: Any, step: Step | None, commit: Callable[[], None]) -> None:
        commit()
        with self.lock:
            chain = self.chains.get(key)
            if chain is None:
                return
            if step is not None and chain.steps and chain.steps[0] is step:
                chain.steps.popleft()
                self.chained.discard(id(step.coming.rows))
                self.used += 1
            else:
                self._void(chain)

    # ---- description

    def __str__(self) -> str:
        """How far it looks ahead, and with what success."""
        return (
            f"{self.depth.now:,} batches at most now ({self.depth.limit:,} allowed, results within "
            f"{self.depth.target_s:g} s); {self.foreseen:,} batches foreseen in {self.evaluations:,} evaluations, "
            f"{self.used:,} used, {self.voided:,} void{'' if self.hindrance is None else f'; {self.hindrance}'}"
            f"{'' if self.gauge is None else f'; {self.gauge}'}"
        )


class ForeseenState:
    """A window's state whose slides use results evaluated ahead. Otherwise it is that state."""

    def __init__(self, ahead: LookAhead, key: Any, state: Any) -> None:
        self._ahead = ahead
        self._key = key
        self._state = state
        self._answered = state.plan = Answered(ahead.plan)

    def slide(self, rows: Any, now_us: int = 0, mark: int | None = None) -> Any:
        """What taking in a batch would do. Nothing changes until the slide is committed."""
        return self._ahead.slide(self._key, self._state, self._answered, rows, now_us, mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)


class Ahead:
    """The look-ahead windows of an engine, by the border stream whose batches slide them."""

    def __init__(self, windows: Iterable[LookAhead]) -> None:
        self.by_stream: dict[str, list[LookAhead]] = {}
        for ahead in windows:
            self.by_stream.setdefault(ahead.plan.spec.stream, []).append(ahead)

    def coming(self, stream: str, key: Any, rows: Any, now_us: int) -> None:
        """A batch on ``stream`` waits for its turn. One without rows is not looked ahead to."""
        for ahead in self.by_stream.get(stream, ()) if len(rows) else ():
            ahead.coming(key, rows, now_us)

    def soon(self, stream: str, parts: Iterable[tuple[Any, Any]]) -> None:
        """These batches will wait for their turn, after those that wait now. Ignored where arrival time matters."""
        for ahead in self.by_stream.get(stream, ()):
            if not ahead.timed:
                ahead.announce(parts)

    def withdraw(self, stream: str, parts: Iterable[tuple[Any, Any]]) -> None:
        """Some announced batches will not come."""
        for ahead in self.by_stream.get(stream, ()):
            ahead.withdraw({id(rows): key for key, rows in parts})

    def wanted(self, stream: str) -> int:
        """How many batches of this stream it is worth knowing in advance; 0: none."""
        return max((ahead.soon for ahead in self.by_stream.get(stream, ())), default=0)

    def target_s(self, stream: str) -> float:
        """How long it is worth waiting for more of them."""
        return min((ahead.depth.target_s for ahead in self.by_stream.get(stream, ())), default=0.0)


def _background_threads() -> ThreadPoolExecutor:
    """A few for the whole process: each evaluation is parallel itself."""
    if not _background:
        _background.append(ThreadPoolExecutor(GROUPS, "tidegate-ahead"))
    return _background[0]
