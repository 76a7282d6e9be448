"""What executors keep with an execution, and where they report how it ended; what a ticket waits for."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, Protocol

from tidegate.errors import Aborted, ProcedureFailed, StillWaiting
from tidegate.txn.execution import Execution
from tidegate.txn.positions import Position
from tidegate.txn.program import UnitProgram
from tidegate.txn.ticket import Ticket
from tidegate.txn.transaction import Transaction


class Journal(Protocol):
    """Where executors report how executions ended."""

    def committed(self, txn: Transaction) -> None: ...
    def aborted(self, txn: Transaction, error: Aborted) -> None: ...
    def dead_letter(self, txn: Transaction, error: ProcedureFailed) -> None: ...
    def failed(self, txn: Transaction, error: ProcedureFailed) -> None: ...
    def finishing(self, tickets: list[Ticket], error: Aborted | ProcedureFailed | None) -> None: ...
    def halted(self, txn: Transaction, error: ProcedureFailed, parked: list[Position]) -> None: ...


class Context:
    """What an executor keeps with an unfinished execution."""

    __slots__ = ("arguments", "asked_at", "partitions", "program", "started_at", "tickets", "time", "txn")

    def __init__(
        self,
        program: UnitProgram,
        time: dt.datetime,
        ticket: Ticket,
        arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        partitions: dict[str, tuple[Any, ...]] | None = None,
    ) -> None:
        self.program = program
        self.arguments = arguments
        self.partitions = partitions
        self.time = time
        self.tickets = [ticket]
        self.txn: Transaction | None = None
        self.started_at: float | None = None
        self.asked_at: float | None = None


def still_waiting(executions: Iterable[Execution], ticket: Ticket) -> StillWaiting:
    mine = [e for e in executions if ticket in e.context.tickets]
    told = "; ".join(f"{e} {e.reason}" for e in mine) or "it has not been scheduled"
    return StillWaiting(
        f"accepted, but not finished: {told}. It will run when that is resolved; keep the ticket",
        ticket=ticket,
        reason=mine[0].reason if mine else None,
    )
