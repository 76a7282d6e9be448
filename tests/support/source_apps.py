"""An app that keeps every row it is given, and counts how often it came: nothing may be lost or doubled unseen."""

from __future__ import annotations

from functools import cache
from typing import Any

from tidegate import App, Batch, Engine, Transaction
from tidegate.outside.rejects import declare_rejected

COLUMNS = "id BIGINT NOT NULL, name VARCHAR, weight DOUBLE, on_day DATE"


@cache
def keeping(
    columns: str = COLUMNS, *, rejected: bool = True, recovery: Any = "weak", key: str | None = None, by: str = "id"
) -> App:
    """``by``: the column that tells rows apart."""
    app = App("keeping", recovery=recovery)
    app.stream("things", columns, border=True, key=key)
    app.table(f"CREATE TABLE kept ({columns}, times BIGINT NOT NULL, PRIMARY KEY ({by}))")
    app.stream("seen", "id BIGINT, times BIGINT")
    if rejected:
        declare_rejected(app)

    @app.procedure(inputs="things", outputs="seen", writes=["kept"])
    def keep(txn: Transaction, things: Batch) -> None:
        for thing in things:
            number = getattr(thing, by)
            known = txn.get("kept", number)
            times = 1 if known is None else known.times + 1
            txn.upsert("kept", (*thing, times))
            txn.emit("seen", [(number, times)])

    return app


def kept(engine: Engine) -> list[tuple[Any, ...]]:
    """Every row, without the count, which must be 1."""
    rows = engine.query("SELECT * FROM kept ORDER BY id").rows
    assert all(row.times == 1 for row in rows), [row for row in rows if row.times != 1][:5]
    return [tuple(row)[:-1] for row in rows]


def rejected(engine: Engine) -> list[tuple[str, str]]:
    rows = engine.query("SELECT place, reason FROM rejected ORDER BY place").rows
    return [(row.place, row.reason) for row in rows]
