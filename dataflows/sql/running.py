"""What the procedure of a declared stream does: run its statement, emit what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidegate.storage.schema import Relation
from tidegate.storage.sql.batches import MANY
from tidegate.storage.sql.statements import Statement


def runs(statement: Statement, stream: str, inputs: int, window: str | None) -> Callable[..., None]:
    """The function of the procedure that feeds ``stream`` from so many inputs, or from what a window of it gives.

    Many rows go through DuckDB, and stay columns. Of a window, those count that it gives, not those that came in.
    """

    def of_batch(txn: Any, batch: Any) -> None:
        txn.emit(stream, statement.run(txn) if len(batch) < MANY else statement.arrow(txn))

    def of_window(txn: Any, *_: Any) -> None:
        slide = txn.window(window)
        if not slide.slid:
            return
        results = slide.results
        if results is None or len(results) >= MANY:
            txn.emit(stream, statement.arrow(txn))
        else:
            txn.emit(stream, statement.run(txn))

    def of_join(txn: Any, _left: Any, _right: Any) -> None:
        of_window(txn)

    if window is None:
        return of_batch
    return of_window if inputs == 1 else of_join


def runs_with_last(
    statement: Statement, stream: str, driver: str, window: str, relation: Relation
) -> Callable[..., None]:
    """The function of a procedure that joins each row of ``driver`` with the rows that its window of another stream holds."""

    def of_driver(txn: Any, _left: Any, _right: Any) -> None:
        if not len(txn.streams.get(driver, ())):
            return
        before = txn.relations
        txn.relations = {**before, window: (relation, txn.window(window).rows)}
        found = statement.run(txn)
        txn.relations = before
        txn.emit(stream, found)

    return of_driver
