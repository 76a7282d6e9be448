"""What the clock brings in: timers that are due, and the times of schedules.

Whatever lets time pass calls :meth:`Ticking.enter_due`: a push or a call, ``engine.tick()``, the workers of an engine with
threads, a server, or the thread that ``engine.start()`` starts. What is due enters as rows of its border stream, with the
time of the engine's clock, and the log has it: that it happens is decided once.
"""

from __future__ import annotations

import logging
import math
import threading
from typing import TYPE_CHECKING, Any

from tidegate.errors import EngineClosed
from tidegate.mutex import Flag
from tidegate.txn.entries import Advance, Rows
from tidegate.txn.log.record import from_us, to_us
from tidegate.txn.ticket import Ticket

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine

log = logging.getLogger("tidegate")

MOST = 1_000  # timers in one record
FULL_US = 20_000  # until it is tried again, when there was no room
LONGEST_S = 0.05  # between two looks at the clock, while something waits for it


class Ticking:
    """Enters what is due. The caller holds the turn."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._timers = engine.runtime.timers

    @property
    def waits(self) -> bool:
        """Is there anything that time will bring?"""
        return self._timers.next_us < math.inf

    def pause_s(self, most_s: float = LONGEST_S) -> float:
        """How long nothing is due, at most so long."""
        left_us = self._timers.next_us - to_us(self._engine.clock.now())
        return min(most_s, max(left_us / 1_000_000, 0.0))

    def enter_due(self) -> None:
        """Enter what is due by now, in the order in which it is due, as far as there is room for it."""
        timers, engine = self._timers, self._engine
        now_us = to_us(engine.clock.now())
        if now_us < timers.next_us:
            return
        ticket = Ticket(engine.teller)
        entered = False
        for stream in timers.unbegun():
            engine.acceptance.accept(Rows(engine.borders[stream], [], 0, timers=()), ticket)
            entered = True
        while self._enter_next(now_us, ticket):
            entered = True
        for stream in timers.silences:
            entered |= self._run_on(stream, now_us, ticket)
        timers.look(now_us, now_us + FULL_US)
        if entered:
            engine.acceptance.acknowledge(ticket)  # so that it gets onto the disk, as a push does

    def _run_on(self, stream: str, now_us: int, ticket: Ticket) -> bool:
        """Let event time run on, if the stream is silent and a window waits for time."""
        engine, silence = self._engine, self._timers.silences[stream]
        if now_us < silence.due_us() or engine.acceptance.is_full(stream):
            return False
        border = engine.borders[stream]
        if border.finished or (engine.scheduler.idle and not self._anything_held(stream)):
            silence.resting = True
            return False
        engine.acceptance.accept(Advance(border, silence.mark(now_us)), ticket)
        return True

    def _anything_held(self, stream: str) -> bool:
        """Does a window behind the stream hold anything?"""
        programs = self._engine.runtime.programs
        return any(
            state.held()
            for unit in self._engine.graph.caused_by.get(stream, ())
            for member in unit.members
            for states in programs[member.name].windows.values()
            for state in states.values()
        )

    def _enter_next(self, now_us: int, ticket: Ticket) -> bool:
        """Enter what is due first; False when nothing is, or there is no room."""
        timers = self._timers
        first = timers.first()
        due = {
            stream: next(schedule.due(timers.reached[stream], now_us), None)
            for stream, schedule in timers.schedules.items()
        }
        coming = sorted((us, stream) for stream, us in due.items() if us is not None)
        if coming and (first is None or coming[0][0] < first.due_us):
            us, stream = coming[0]
            return self._enter(stream, [(from_us(us),)], [], ticket)
        if first is None or first.due_us > now_us or self._engine.acceptance.is_full(first.stream):
            return False
        taken = timers.take(coming[0][0] if coming else now_us, self._room())
        try:
            return self._enter(first.stream, [timer.row for timer in taken], [timer.id for timer in taken], ticket)
        except BaseException:
            timers.put_back(taken)
            raise

    def _room(self) -> int:
        """How many timers may enter together: each may cause work that waits."""
        scheduler = self._engine.scheduler
        left = self._engine.config.capacity - len(scheduler.live) - len(scheduler.parked)
        return max(1, min(left, MOST))

    def _enter(self, stream: str, rows: list[Any], ids: list[str], ticket: Ticket) -> bool:
        engine = self._engine
        if engine.acceptance.is_full(stream):
            return False
        border = engine.borders[stream]
        checked = border.check_rows(rows)
        parts = border.split_into(checked, 1)
        engine.acceptance.accept(Rows(border, parts, 1, checked, timers=ids), ticket)
        return True


class Ticker:
    """A thread that lets time pass in an engine that has no threads of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ended = Flag()
        self._thread = threading.Thread(target=self._run, name="tidegate-ticker", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        engine = self._engine
        while not self._ended.wait(engine.acceptance.pause_s(LONGEST_S)):
            try:
                engine.tick()
            except EngineClosed:
                return
            except Exception:  # a failed log or a full disk: the next push reports it
                log.debug("time can't pass", exc_info=True)
                self._ended.wait(LONGEST_S)

    def close(self) -> None:
        """Return when the thread has ended."""
        self._ended.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()
