"""Whether looking ahead pays, by what rows take from end to end.

Looking ahead gives workers more at a time, and costs a second state that slides, a job's round trip, and waiting for the
results of many batches. None of these parts says what comes of it, so the whole is measured: the time from one slide to the
next while batches wait. That has everything in it that keeps the ordered consumer from going on: sending, the job, waiting,
and the rest of its transaction. The two ways take turns of some batches; the better one is kept, and the other is tried
again from time to time, less often each time that it loses.

It decides only how fast results come, never what they are.
"""

from __future__ import annotations

from collections.abc import Callable

from tidegate.streams.windows.evaluate.choosing import time

GLANCE = 32  # batches after which it is seen whether there is enough to do for looking ahead to pay at all
BATCHES, SECONDS = 128, 0.02  # a turn lasts this many batches and this long, at least ...
LONG_S, FEW = 0.5, 4  # ... or this long, with at least a few batches
GAIN = 0.95  # looking ahead is kept if a row takes at most this share of what it takes without
REST, LONGEST = 8, 512  # turns until the way that lost is tried again; twice as many each time, up to the longest


class Gauge:
    """Measures slides and says whether to look ahead. One thread at a time; a turn that was disturbed does no harm.

    ``hopeless``: is there too little to do for any way of evaluating it together to pay, given how many batches there were?
    ``ready``: how many such ways could be taken now. ``ahead``: what to do now. ``each``: seconds for a row, with look-ahead
    (True) and without.
    """

    def __init__(self, timer: Callable[[], float], hopeless: Callable[[int], bool], ready: Callable[[], int]) -> None:
        self.timer = timer
        self.hopeless = hopeless
        self.ready = ready
        self.ahead = True
        self.batches = 0  # in all
        self.each: dict[bool, float] = {}
        self._trying = False
        self._last: float | None = None  # when the last slide began, if batches waited behind it
        self._seconds = 0.0
        self._rows = self._batches = 0
        self._fresh = True  # the first batches of a turn still have the other way's work behind them
        self._rests = self._rest = REST
        self._ready: int | None = None

    def slid(self, rows: int, waiting: bool) -> None:
        """A slide by this many rows begins; do batches wait behind it?"""
        now = self.timer()
        self.batches += 1
        if self.batches == GLANCE and self.hopeless(GLANCE):
            self._go(False)
        if self._last is not None:
            self._seconds += now - self._last
            self._rows += rows
            self._batches += 1
            done = self._batches >= BATCHES and self._seconds >= SECONDS
            if done or (self._batches >= FEW and self._seconds >= LONG_S):
                self._end_turn()
        self._last = now if waiting else None

    def _end_turn(self) -> None:
        taken = self._seconds / max(self._rows, 1)
        self._seconds, self._rows, self._batches = 0.0, 0, 0
        if self._fresh:
            self._fresh = False
            return
        before = self.each.get(self.ahead)
        self.each[self.ahead] = taken if before is None or self._trying else (before + taken) / 2
        self._trying = False
        ready = self.ready()
        if self._ready not in (None, ready):  # a way has started or was given up: what was measured is of the past
            self._rests, self._rest = REST, 0
        self._ready = ready
        if len(self.each) < 2:
            if self.ahead or not self.hopeless(self.batches):
                self._go(not self.ahead)
            return
        best = self.each[True] <= GAIN * self.each[False]
        if self.ahead is not best:  # it was tried, or is no longer the better one
            self._rests = min(2 * self._rests, LONGEST)
            self._rest = self._rests
            self._go(best)
        elif self._rest:
            self._rest -= 1
        else:
            self._rest, self._trying = self._rests, True
            self._go(not self.ahead)

    def _go(self, ahead: bool) -> None:
        self.ahead, self._fresh = ahead, True
        self._seconds, self._rows, self._batches = 0.0, 0, 0

    def __str__(self) -> str:
        """Both figures, and what follows."""
        if len(self.each) < 2:
            return "whether it pays is not known yet" if self.ahead else "not done: there is too little to evaluate"
        ahead, without = self.each[True], self.each[False]
        now = "looks ahead" if self.ahead else "each batch in its turn"
        return f"a row takes {time(ahead)} from end to end with it, {time(without)} without: {now}"
