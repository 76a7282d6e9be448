"""The declaration of a table's changelog: a stream without a producer, and procedures to start it and refill tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tidegate.dataflows.definitions import Procedure, Stream, TableAccess

if TYPE_CHECKING:
    from tidegate.dataflows.app import App

COLUMNS = "row_key VARCHAR NOT NULL, before VARCHAR, after VARCHAR, position BIGINT NOT NULL"
RESTORE = "tidegate_restore"
SNAPSHOT = "tidegate_snapshot_"  # and the name of the table


def restore_rows(txn: Any, table: str, rows: Sequence[Sequence[Any]]) -> None:
    """Put the rows into an empty table; see ``tidegate.outside.changelog.rebuild``."""
    for row in rows:
        txn.insert(table, row)


def begin_subscription(txn: Any, subscription: str) -> None:
    """A position in the order: ``subscription`` begins with what the table holds there. The engine does that at commit.

    It is declared to write the table, so everything before it has committed and nothing after it has.
    """


def declare_changelog(app: App, table: str) -> None:
    """Declare the stream ``<table>_changes``, how to start it, and how tables with a changelog are refilled from it."""
    name = app.stream(f"{table}_changes", COLUMNS)
    app.streams[name] = Stream(name, app.streams[name].relation, changelog_of=table)
    if ("table", table) in app.renamed:
        app.renamed["stream", name] = f"{app.renamed['table', table]}_changes"
    tables = [s.changelog_of for s in app.streams.values() if s.changelog_of is not None]
    access = tuple(TableAccess(followed, write=True) for followed in tables)
    app.procedures[RESTORE] = Procedure(RESTORE, restore_rows, access=access)
    snapshot = SNAPSHOT + table
    app.procedures[snapshot] = Procedure(snapshot, begin_subscription, access=(TableAccess(table, write=True),))
