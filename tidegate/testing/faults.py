"""Something goes wrong at one moment of a run, at every moment in turn: the way SQLite tests itself.

A run is made once to count its moments, and then once for each of them, with a fault there. Moments are calls that can
fail (:class:`FaultyFiles`, :meth:`Faults.around`) or the lines of chosen modules (:class:`Lines`), between any two of
which an exception from outside may arrive.
"""

from __future__ import annotations

import _thread
import ctypes
import dis
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from types import CodeType, FrameType
from typing import Any

from tidegate.txn.log.files import AppendFile, Files

Error = Callable[[], BaseException]


class Faults:
    """Counts calls that can fail, and lets one fail: the ``at``-th, or with ``for_good`` that and all later ones.

    ``error``: makes the exception; None: writes are short. ``after``: the call is made, and then the exception is
    raised.
    """

    def __init__(
        self, at: int | None = None, error: Error | None = None, *, for_good: bool = False, after: bool = False
    ) -> None:
        self.at = at
        self.error = error
        self.for_good = for_good
        self.after = after
        self.moments: list[str] = []
        self.hit = False

    def _fails(self, what: str) -> bool:
        self.moments.append(what)
        number = len(self.moments) - 1
        fails = self.at is not None and (number >= self.at if self.for_good else number == self.at)
        self.hit = self.hit or fails
        return fails

    def call(self, what: str, function: Callable[..., Any], *given: Any) -> Any:
        """Make the call, or not."""
        if not self._fails(what) or self.error is None:
            return function(*given)
        if self.after:
            function(*given)
        raise self.error()

    def write(self, what: str, function: Callable[[Any, int], int], data: Any, at: int) -> int:
        """The same for a write, which may be short."""
        if not self._fails(what):
            return function(data, at)
        if self.error is None:
            return function(data[: max(1, len(data) // 2)], at)
        if self.after:
            function(data, at)
        raise self.error()

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, as a call that can fail."""

        @wraps(function)
        def called(*given: Any) -> Any:
            return self.call(function.__qualname__, function, *given)

        return called


class FaultyFiles:
    """A directory of log segments whose every operation can fail."""

    def __init__(self, files: Files, faults: Faults) -> None:
        self._files = files
        self._faults = faults

    def names(self) -> list[str]:
        return self._files.names()

    def read(self, name: str) -> bytes:
        return self._files.read(name)

    def create(self, name: str) -> AppendFile:
        made: list[AppendFile] = []
        try:
            self._faults.call("create", lambda: made.append(self._files.create(name)))
        except OSError:
            for file in made:  # a create that fails leaves nothing
                file.close()
                self._files.remove(name)
            raise
        return _FaultyFile(made[0], self._faults)

    def truncate(self, name: str, size: int) -> None:
        self._faults.call("truncate", self._files.truncate, name, size)

    def sync(self, name: str) -> None:
        self._faults.call("sync a segment", self._files.sync, name)

    def remove(self, name: str) -> None:
        self._faults.call("remove", self._files.remove, name)


class _FaultyFile:
    def __init__(self, file: AppendFile, faults: Faults) -> None:
        self._file = file
        self._faults = faults

    def write(self, data: bytes | memoryview, at: int) -> int:
        return self._faults.write("write", self._file.write, data, at)

    def write_synced(self, data: bytes | memoryview, at: int) -> int:
        return self._faults.write("write and sync", self._file.write_synced, data, at)

    def sync(self) -> None:
        self._faults.call("sync", self._file.sync)

    def check_place(self) -> None:
        self._file.check_place()

    def close(self) -> None:
        self._file.close()


class _Settled(BaseException):
    """Raised by a thread in itself."""


def _settle() -> None:
    """Have the interpreter note that no exception is on its way to a thread. CPython 3.11 goes on believing that one is after it
    was withdrawn (by a procedure that ended at its deadline); then the first function that is traced never begins.
    """
    try:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(threading.get_ident()), ctypes.py_object(_Settled))
        for _ in range(100_000):
            pass
    except _Settled:
        pass


Place = tuple[str, str, int]  # module file, function, line
Moment = tuple[Place, int]  # a place, and how often it has been passed before


class Lines:
    """Interrupts this thread at a line of the given source files that it runs inside a ``with`` block.

    ``error``: raised at that line. None: SIGINT arrives there, and its handler is called where Python next checks for
    signals, which is never between the end of a ``with`` block and the release of its lock.
    """

    def __init__(self, files: tuple[str, ...], at: Moment | None = None, error: Error | None = None) -> None:
        self._files = files
        self.at = at
        self.error = error
        self.passed: dict[Place, int] = {}
        self.hit = False
        # sends SIGINT when a key is looked up; a lookup is not a call, after which Python would check for signals here
        self._signal: defaultdict[Moment, None] = defaultdict(_thread.interrupt_main)
        self._wanted: dict[CodeType, bool] = {}
        self._quiet: dict[CodeType, set[int]] = {}

    def __enter__(self) -> Lines:
        _settle()
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        wanted = self._wanted.get(code)
        if wanted is None:
            wanted = self._wanted[code] = code.co_filename.endswith(self._files) and code.co_filename != __file__
        return self._line if wanted else None

    def _line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "line" or self._is_quiet(frame):
            return self._line
        code = frame.f_code
        place = (code.co_filename, code.co_qualname, frame.f_lineno)
        number = self.passed.get(place, 0)
        self.passed[place] = number + 1
        if self.at == (place, number):
            self.hit = True
            sys.settrace(None)
            if self.error is not None:
                raise self.error()
            self._signal[self.at]
        return self._line

    @property
    def moments(self) -> list[Moment]:
        """The first, the last and a middle pass of every line that was run."""
        return [(place, number) for place, n in self.passed.items() for number in sorted({0, n // 2, n - 1})]

    def _is_quiet(self, frame: FrameType) -> bool:
        """Is a ``with`` block about to end, or a ``try`` to begin? A line is traced there, but nothing can be raised: not before
        the lock is released, and not by an instruction that does nothing.
        """
        code = frame.f_code
        exits = self._quiet.get(code)
        if exits is None:
            exits = self._quiet[code] = _quiet_places(code)
        return frame.f_lasti in exits


def _quiet_places(code: CodeType) -> set[int]:
    """Where ``__exit__(None, None, None)`` begins; and where nothing is done, as at ``try:``."""
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    idle = {step.offset for step in dis.get_instructions(code) if step.opname == "NOP"}
    nothing = [step.opname in ("LOAD_CONST", "RETURN_CONST") and step.argval is None for step in steps]
    exits = {
        i
        for i in range(len(steps))
        if all(nothing[i : i + 3]) and any(s.opname == "CALL" and s.arg == 2 for s in steps[i + 3 : i + 6])
    }
    exits |= {i - 1 for i in exits if steps[i - 1].opname == "SWAP"}  # a value that is returned is put aside first
    return idle | {steps[i].offset for i in exits}
