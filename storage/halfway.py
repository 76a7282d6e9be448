"""Steps that must be atomic: an interrupted one is detected, and the engine does not continue from there.

Python lets an exception from outside (Ctrl-C, a signal handler that raises, no memory) in between any two instructions.
A step that changes the log and several things in memory can then end in the middle, with nothing to undo or finish it.
So a step marks its beginning and its end, while it holds the lock that keeps others out::

    with turn:
        halfway.entering = ACCEPTING
        with lock: ...               numbered, logged
        ...                          its procedures run
        with lock:
            halfway.through = ENDING
            ...                      the log, the tables, the order
            halfway.through = None
        halfway.entering = None

A thread that gets the lock and finds a step under way knows that it never ended. The engine then refuses everything,
merges included: what is in memory may be wrong, and the log is right. (Where only the entering was interrupted, the
tables are whole, and can be read.) It costs only two assignments, and needs no handler to run, so a second exception at
the wrong moment changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tidegate.errors import EngineClosed, LogFailed, TidegateError

ACCEPTING = "the acceptance of a batch or call"
ENDING = "the end of an execution"
REASKING = "the withdrawal of a question"
TELLING = "the news of what is on disk"
DELIVERING = "the record of what a subscriber has taken"
MERGING = "a merge"


class Halfway:
    """The steps that an engine is halfway through, under its lock and under its turn; None: no step is open."""

    __slots__ = ("_durable", "entering", "through")

    def __init__(self, durable: bool) -> None:
        self.through: str | None = None
        self.entering: str | None = None
        self._durable = durable

    def check(self) -> None:
        """Under the lock, before a step begins: raise when an earlier one never ended."""
        if self.through is not None:
            raise self.stopped()

    def check_entry(self) -> None:
        """The same for a thread that also holds the turn."""
        if self.through is not None or self.entering is not None:
            raise self.stopped()

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """For a step that is rare enough for the cost of a context manager. The caller holds the lock."""
        self.check()
        before, self.through = self.through, name
        yield
        self.through = before

    def stopped(self) -> TidegateError:
        """Why the engine has stopped."""
        what = f"something interrupted {self.through or self.entering} (Ctrl-C, a signal, no memory), so the engine stops here: "
        if self._durable:
            return LogFailed(
                f"{what}what it holds in memory may not be what its log says. Close it and open the app again: recovery keeps "
                f"everything acknowledged"
            )
        return EngineClosed(
            f"{what}only half of that may have happened. It has no directory: open the app again, and start over"
        )
