"""Materialized views of a directory: when their state is computed from their tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidegate.dataflows.sql.maintaining import FILL
from tidegate.directory.upgrading.changes import Verdict
from tidegate.storage.ddl import quote

if TYPE_CHECKING:
    from tidegate.engine.engine import Engine


def fill_views(engine: Engine) -> None:
    """Materialized views that are new in this directory, or have changed, begin: a call each, with a position.

    A crash before that call is in the log leaves the state of a view empty, which the next opening sees. One that has no rows for
    the rows of its tables is computed again each time.
    """
    new = {change.name for change in engine.upgraded if change.kind == "table" and change.verdict is Verdict.ADDED}
    for view in engine.app.maintained.values():
        if view.state.name in new or (
            not _has_rows(engine, view.state.name) and any(_has_rows(engine, t) for t in view.reads)
        ):
            engine.submit(FILL + view.name)


def _has_rows(engine: Engine, table: str) -> bool:
    return bool(engine.query(f"SELECT 1 FROM {quote(table)} LIMIT 1").rows)
