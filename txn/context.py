"""What executors keep with an execution, and what a ticket waits for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from tidegate.errors import ProcedureFailed, StillWaiting
from tidegate.txn.entries import Call
from tidegate.txn.execution import Execution
from tidegate.txn.program import UnitProgram
from tidegate.txn.shown import Shown
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction


class Context:
    """What an executor keeps with an unfinished execution.

    ``shown``: the questions it has asked, the last one last. ``answered``: when the last answer came in.
    ``failure``: why its dataflow is halted in front of it.
    """

    __slots__ = ("answered", "call", "failure", "program", "shown", "started_at", "tickets", "time", "txn")

    def __init__(self, program: UnitProgram, time: dt.datetime, ticket: Ticket, call: Call | None = None) -> None:
        self.program = program
        self.call = call
        self.time = time
        self.tickets = [ticket]
        self.txn: Transaction | None = None
        self.started_at: float | None = None
        self.shown: tuple[Shown, ...] = ()
        self.answered: dt.datetime | None = None
        self.failure: ProcedureFailed | None = None


def still_waiting(executions: Iterable[Execution], ticket: Ticket) -> StillWaiting:
    mine = [e for e in executions if ticket in e.context.tickets]
    told = "; ".join(f"{e} {e.reason}" for e in mine) or "it has not been scheduled"
    return StillWaiting(
        f"accepted, but not finished: {told}. It will run when that is resolved; keep the ticket",
        ticket=ticket,
        reason=mine[0].reason if mine else None,
    )
