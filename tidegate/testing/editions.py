"""Versions of one small app, as its programmer would make them: a constant, a helper, the body of a procedure changed;
a procedure added, renamed, removed. Each knows what it does to a number, so that an oracle can run each entry with the
version that was in force when it was accepted.
"""

from __future__ import annotations

import copy
import random
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Any

from tidegate.dataflows.app import App

SOURCE = """
LIMIT = {constant}


def helper(n):
    return n * {helper}


def value(n):
    return helper(n) + LIMIT - {body}


def declare(app, window):
    @app.procedure(inputs="numbers", outputs="steps", writes=["seen"], windows={{"recent": window}})
    def step(txn, numbers):
        for row in numbers:
            txn.insert("seen", (row.n, helper(row.n) + LIMIT - {body}))
            txn.emit("steps", n=row.n)

    @app.procedure(writes=["seen"])
    def correct(txn, n):
        row = txn.get("seen", n)
        if row is not None:
            txn.update("seen", n, v=row.v + LIMIT)
"""
NOTING = """
    @app.procedure(inputs="steps", writes=["noted"])
    def {note}(txn, steps):
        for row in steps:
            txn.insert("noted", (row.n, helper(row.n)))
"""


@dataclass(frozen=True)
class Edition:
    """A version of the app. ``note``: the name of the procedure that notes every number; None: there is none."""

    recovery: str = "weak"
    constant: int = 5
    helper: int = 3
    body: int = 0
    note: str | None = None

    @property
    def connected(self) -> str | None:
        """What counts in mode effects: which procedures see which batches."""
        return self.note

    def value(self, n: int) -> int:
        """What it writes for a number."""
        return n * self.helper + self.constant - self.body

    def app(self) -> App:
        return _built(self)

    def changed(self, chance: random.Random) -> Edition:
        """The next version, with one thing different."""
        match chance.choice(("constant", "helper", "body", "note")):
            case "constant":
                return replace(self, constant=self.constant + chance.randrange(1, 9))
            case "helper":
                return replace(self, helper=self.helper + chance.randrange(1, 9))
            case "body":
                return replace(self, body=self.body + chance.randrange(1, 9))
            case _:
                return replace(self, note=chance.choice([n for n in (None, "note", "write") if n != self.note]))


@lru_cache(4)
def _built(edition: Edition) -> App:
    from tidegate.streams.windows.declare.kinds import window

    app = copy.copy(_declared(edition.recovery))
    app.procedures, app.nested_groups, app.triggers = {}, {}, []
    text = SOURCE.format(constant=edition.constant, helper=edition.helper, body=edition.body)
    if edition.note is not None:
        text += NOTING.format(note=edition.note)
    scope: dict[str, Any] = {"__name__": "edited"}
    exec(compile(text, "edited.py", "exec"), scope)
    scope["declare"](app, window("numbers", count=3, slide=1))
    return app


@cache
def _declared(recovery: str) -> App:
    """What all versions have: reading a declaration takes DuckDB as long as everything else of a version."""
    app = App("edited", recovery=recovery)  # type: ignore[arg-type]
    app.table("CREATE TABLE seen (n BIGINT PRIMARY KEY, v BIGINT NOT NULL)")
    app.table("CREATE TABLE noted (n BIGINT PRIMARY KEY, v BIGINT NOT NULL)")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)
    app.stream("steps", "n BIGINT")
    return app


class Model:
    """What the tables must hold."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}
        self.noted: dict[int, int] = {}

    def push(self, edition: Edition, n: int) -> None:
        self.seen[n] = edition.value(n)
        if edition.note is not None:
            self.noted[n] = n * edition.helper

    def correct(self, edition: Edition, n: int) -> None:
        if n in self.seen:
            self.seen[n] += edition.constant
