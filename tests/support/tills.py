"""An app for the tests in this folder, and scripts of it that run in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import tidegate

HERE = Path(__file__).parent


def tills(inside: Any = None) -> tidegate.App:
    """Amounts are added up; ``inside(txn, sales)`` is called in the procedure."""
    app = tidegate.App("tills")
    app.table("CREATE TABLE totals (till VARCHAR PRIMARY KEY, cents BIGINT)")
    app.stream("sales", "till VARCHAR, cents BIGINT", border=True)
    app.stream("sums", "till VARCHAR, cents BIGINT")

    @app.procedure(inputs="sales", outputs="sums", writes=["totals"])
    def add_up(txn: Any, sales: Any) -> None:
        for sale in sales:
            row = txn.get("totals", sale.till)
            total = sale.cents + (0 if row is None else row.cents)
            txn.upsert("totals", (sale.till, total))
            txn.emit("sums", [(sale.till, total)])
        if inside is not None:
            inside(txn, sales)

    @app.procedure(writes=["totals"])
    def reset(txn: Any, till: str) -> int:
        txn.upsert("totals", (till, 0))
        if inside is not None:
            inside(txn, None)
        return 7

    return app


def total(engine: Any, till: str = "a") -> Any:
    return engine.query("SELECT cents FROM totals WHERE till = ?", till).scalar()


def run_script(text: str, *arguments: Any, expect: int = 0) -> str:
    """Run Python in a process of its own, with this folder in its path; what it printed."""
    path = os.pathsep.join([str(HERE), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == expect, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr
