"""What the procedure of a declared stream does: run its statement, emit what it gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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
