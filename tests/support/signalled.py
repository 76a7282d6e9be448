"""Pushes numbers durably until it is killed, and survives every SIGINT: a child of ``test_interrupts``.

Signals come while it is inside the engine only; what it tells is told whole.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import Any

from recovering import make_numbers

import tidegate
from tidegate import Engine
from tidegate.errors import ProcedureFailed, TidegateError


class Raised(Exception):
    """What a signal handler of somebody else's raises."""


inside = False  # the engine


def default(number: int, frame: object) -> None:
    if inside:
        signal.default_int_handler(number, frame)  # type: ignore[arg-type]


def raises(number: int, frame: object) -> None:
    if inside:
        raise Raised


def tell(*words: object) -> None:
    print(*words, flush=True)


def let_in(work: Callable[..., Any], *given: Any) -> Any:
    """Do the work, and let signals in meanwhile."""
    global inside
    try:
        inside = True
        return work(*given)
    finally:
        inside = False


def push(engine: Engine, number: int) -> None:
    engine.push("numbers", [(number,)], number).result()


def checkpoint(engine: Engine) -> None:
    engine.checkpoint(generation=True)


def push_for_ever(open_engine: Callable[[], Engine]) -> None:
    engine, number = open_engine(), 1
    while True:
        try:
            let_in(push, engine, number)
            tell("on disk", number)
            if number % 5 == 0:
                tell("total", number, let_in(engine.call, "total", number))
            if number % 40 == 0:
                let_in(checkpoint, engine)
            number += 1
        except (KeyboardInterrupt, Raised, ProcedureFailed):  # the last: a handler raised an Exception in a procedure
            tell("interrupted", number)
            if engine.scheduler.halted:
                engine.resume()  # then the number is pushed once more: if it is there, that changes nothing
        except TidegateError as error:
            tell("stopped", number, error)
            try:
                engine.close()
            except TidegateError as stopped:
                tell("closed", stopped)
            engine = open_engine()


if __name__ == "__main__":
    path, handler, sync = sys.argv[1:]
    signal.signal(signal.SIGINT, raises if handler == "raises" else default)
    push_for_ever(lambda: tidegate.open(make_numbers(), path, sync=sync, merge_every_s=0.05))  # type: ignore[arg-type]
