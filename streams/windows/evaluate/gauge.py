"""Whether looking ahead pays, by what rows take from end to end.

Looking ahead gives workers more at a time, and costs a second state that slides, a job's round trip, and waiting for the
results of many batches. None of these parts says what comes of it, so the whole is measured: the time from one slide to the
next while batches wait, from when they are announced. That has everything in it that keeps the ordered consumer from going
on: sending, the job, waiting, and the rest of its transaction. The two ways take turns::

    ahead      ██░░██████··                          ░ not measured: what the other way left behind
    without              ██░███████··
    groups     1  2  3  4    a turn with look-ahead holds whole evaluations, since the first of their batches waits for all

The best of the last turns counts, because other work on the machine only ever makes a turn longer. The better way is kept;
the other is tried again from time to time, less often each time that it loses, and less often the more it loses by: what
trials cost stays a small share of everything.

It decides only how fast results come, never what they are.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from math import ceil

from tidegate.streams.windows.evaluate.choosing import time

TURN_S, BATCHES = 0.1, 32  # a turn lasts this long and this many batches, at least ...
LONG_S, FEW = 0.3, 4  # ... or this long, with at least a few batches
GROUPS, MANY = 3, 512  # with look-ahead also this many evaluations, or this many batches if there were fewer
BEHIND, LEFT = 2, 128  # evaluations, or batches, that are still mixed up with the other way's
TRIALS, KEPT = 2, 3  # turns of each way until the first decision; how many of the last count
GAIN = 0.95  # looking ahead is kept if a row takes at most this share of what it takes without
TRIED = 0.03  # the share of time that trials of a way that loses may cost
REST, LONGEST = 8, 4_096  # turns until the way that lost is tried again; twice as many each time, up to the longest


class Gauge:
    """Measures slides and says whether to look ahead. One thread at a time; a turn that was disturbed does no harm.

    ``hopeless``: can it be told from what is known already that looking ahead does not pay? ``ready``: how many ways of
    evaluating several batches together could be taken now. ``ahead``: what to do now.
    """

    def __init__(self, timer: Callable[[], float], hopeless: Callable[[], bool], ready: Callable[[], int]) -> None:
        self.timer = timer
        self.hopeless = hopeless
        self.ready = ready
        self.ahead = True
        self.batches = 0  # in all
        self._turns: dict[bool, deque[float]] = {True: deque(maxlen=KEPT), False: deque(maxlen=KEPT)}
        self._last: float | None = None  # when the last slide began, or when the batches that wait were announced
        self._mixed = True  # does the other way's work still count?
        self._seconds = 0.0
        self._rows = self._batches = 0
        self._groups: int | None = None  # evaluations before this turn
        self._rests = self._rest = REST
        self._ready: int | None = None

    @property
    def each(self) -> dict[bool, float]:
        """Seconds for a row, with look-ahead (True) and without, as far as measured."""
        return {way: min(turns) for way, turns in self._turns.items() if turns}

    def announced(self) -> None:
        """Several batches begin to wait."""
        if self._last is None:
            self._last = self.timer()

    def slid(self, rows: int, waiting: bool, groups: int = 0, left: int = 0) -> None:
        """A slide by this many rows begins; do batches wait behind it? ``groups``: evaluations ahead so far; ``left``:
        batches foreseen that have not slid yet.
        """
        now = self.timer()
        self.batches += 1
        if self._groups is None:
            self._groups = groups
        if self.ahead and not self._turns[True] and self.hopeless():
            self._go(False)
        elif self._last is not None:
            self._seconds += now - self._last
            self._rows += rows
            self._batches += 1
            if self._mixed:
                if self._is_clean(groups, left):
                    self._begin_turn(groups)
            elif self._is_full(groups):
                self._end_turn(groups)
        self._last = now if waiting else None

    def _is_clean(self, groups: int, left: int) -> bool:
        if not self.ahead:
            return not left
        assert self._groups is not None
        return groups - self._groups >= BEHIND or self._batches >= LEFT

    def _is_full(self, groups: int) -> bool:
        assert self._groups is not None
        if self.ahead and groups - self._groups < GROUPS and self._batches < MANY:
            return False
        enough = self._batches >= BATCHES and self._seconds >= TURN_S
        return enough or (self._batches >= FEW and self._seconds >= LONG_S)

    def _begin_turn(self, groups: int | None) -> None:
        self._mixed = groups is None
        self._groups = groups
        self._seconds, self._rows, self._batches = 0.0, 0, 0

    def _go(self, ahead: bool) -> None:
        self.ahead = ahead
        self._begin_turn(None)

    def _end_turn(self, groups: int) -> None:
        self._turns[self.ahead].append(self._seconds / max(self._rows, 1))
        ready = self.ready()
        if self._ready not in (None, ready):  # a way has started or was given up: what was measured is of the past
            self._rests, self._rest = REST, 0
            self._turns[True].clear()
        self._ready = ready
        tried = {way: len(turns) for way, turns in self._turns.items()}
        if not tried[True] and self.hopeless():
            self._go(False)
        elif min(tried.values()) < TRIALS:
            self._go(tried[True] < tried[False] or (tried[True] == tried[False] and not self.ahead))
        else:
            self._decide(groups)

    def _decide(self, groups: int) -> None:
        each = self.each
        best = each[True] <= GAIN * each[False]
        if self.ahead is not best:  # it was tried, or is no longer the better one
            lost = each[not best] / each[best] - 1
            self._rests = min(max(2 * self._rests, ceil((1 + BEHIND / GROUPS) * lost / TRIED)), LONGEST)
            self._rest = self._rests
            self._go(best)
        elif self._rest:
            self._rest -= 1
            self._begin_turn(groups)
        else:
            self._go(not self.ahead)

    def __str__(self) -> str:
        """Both figures, and what follows."""
        each = self.each
        if len(each) < 2:
            hopeless = not self.ahead and True not in each
            return "not done: there is too little to evaluate" if hopeless else "whether it pays is not known yet"
        now = "looks ahead" if self.ahead else "each batch in its turn"
        return f"a row takes {time(each[True])} from end to end with it, {time(each[False])} without: {now}"
