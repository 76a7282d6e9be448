"""What the procedure of a declared stream does: run its statement, emit what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.storage.sql.batches import MANY
from tidegate.storage.sql.statements import Statement


def runs(statement: Statement, stream: str, inputs: int) -> Callable[..., None]:
    """The function of the procedure that feeds ``stream``, which has so many inputs."""

    def of_one(txn: Any, batch: Any) -> None:
        if len(batch) < MANY:
            txn.emit(stream, statement.run(txn))
        else:
            txn.emit(stream, statement.arrow(txn))

    def of_two(txn: Any, left: Any, right: Any) -> None:
        if len(left) + len(right) < MANY:
            txn.emit(stream, statement.run(txn))
        else:
            txn.emit(stream, statement.arrow(txn))

    return of_one if inputs == 1 else of_two
