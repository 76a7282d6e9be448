"""A process that is killed while it gives the tables of a directory their new shape."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import tidegate
from tidegate import App, Transaction, crashpoints

OLD = "k INTEGER PRIMARY KEY, n INTEGER"
NEW = "k BIGINT PRIMARY KEY, n BIGINT, x INTEGER DEFAULT 7"


def app_of(columns: str) -> App:
    """Two tables with the same rows."""
    app = App("killed")
    app.table(f"CREATE TABLE a ({columns})")
    app.table(f"CREATE TABLE b ({columns})")

    @app.procedure(writes=["a", "b"])
    def put(txn: Transaction, k: int) -> None:
        txn.insert("a", {"k": k, "n": k})
        txn.insert("b", {"k": k, "n": k})

    return app


def main(path: Path, point: str) -> None:
    with tidegate.open(app_of(OLD), path) as engine:
        engine.call("put", 1)
        engine.call("put", 2)
    crashpoints.listen(lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == point else None)
    tidegate.open(app_of(NEW), path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
