"""The walk of one keyed, durable push through the engine: how many calls, in how many files, with how many changes of room.

    python -m tidegate.benchmarks.walk [--calls]

Counts, not times: the same on any machine. A call is a call of one of our Python functions, comprehensions left out. A room
is a folder with a layer of its own in ``tests/test_architecture.py``; a call upwards is one from a lower layer into a higher
one. Only the thread that pushes is followed: the log is written by a thread of its own.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import tidegate
from tidegate import App, Batch, Engine, Transaction, partition
from tidegate.benchmarks.setting import setting
from tidegate.storage.schema import GENERATED

HOME = Path(tidegate.__file__).resolve().parent.parent
LAYERS = (
    "tidegate",
    "tidegate/guard",
    "storage",
    "streams",
    "dataflows",
    "txn",
    "tidegate/directory",
    "tidegate/engine",
)
SAME = {"tidegate/outside": "tidegate/directory"}  # neighbours on one layer


class Call(NamedTuple):
    room: str
    file: str
    function: str
    depth: int


def bench() -> dict[str, Any]:
    """The counts for one push, after a few that warmed everything up."""
    walked = walk()
    crossings = [(a.room, b.room) for a, b in _callers(walked) if a.room != b.room]
    upwards = [(a, b) for a, b in crossings if _layer(b) > _layer(a)]
    return {
        "calls": len(walked),
        "files": len({call.file for call in walked}),
        "room_changes": len(crossings),
        "upwards": len(upwards),
        "upward_calls": sorted(f"{a} -> {b}" for a, b in upwards),
        "by_room": dict(Counter(call.room for call in walked).most_common()),
        **setting(),
    }


def walk() -> list[Call]:
    with tempfile.TemporaryDirectory() as path, _open(Path(path) / "data") as engine:
        for amount in range(5):
            engine.push("payments", [(7, amount)]).result()
        return _followed(engine)


def _followed(engine: Engine) -> list[Call]:
    walked: list[Call] = []
    stack: list[bool] = []  # for each frame: is it one that counts?

    def follow(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            where = _place(frame.f_code)
            stack.append(where is not None)
            if where is not None:
                walked.append(Call(*where, depth=sum(stack)))
        elif event == "return" and stack:
            stack.pop()

    rows = [(7, 100)]
    sys.setprofile(follow)
    engine.push("payments", rows)
    sys.setprofile(None)
    return walked


def _place(code: CodeType) -> tuple[str, str, str] | None:
    if code.co_name.startswith("<"):
        return None
    if code.co_filename == GENERATED:
        return "storage", "generated", code.co_qualname
    path = Path(code.co_filename).resolve()
    if not path.is_relative_to(HOME):
        return None
    inside = path.relative_to(HOME)
    parts = inside.parts
    if parts[0] == "benchmarks" or ".venv" in parts:
        return None
    room = "/".join(parts[:2]) if parts[0] == "tidegate" and len(parts) > 2 else parts[0]
    return room, str(inside), code.co_qualname


def _callers(walked: list[Call]) -> list[tuple[Call, Call]]:
    """Every call with the one it was made from."""
    found, path = [], []
    for call in walked:
        del path[call.depth - 1 :]
        if path:
            found.append((path[-1], call))
        path.append(call)
    return found


def _layer(room: str) -> int:
    return LAYERS.index(SAME.get(room, room))


def _open(path: Path) -> Engine:
    app = App("walk")
    app.table("CREATE TABLE accounts (owner INTEGER PRIMARY KEY, balance BIGINT NOT NULL)", partition_by="owner")
    app.stream("payments", "owner INTEGER NOT NULL, amount BIGINT NOT NULL", border=True, key="owner")

    @app.procedure(inputs="payments", writes=[partition("accounts")])
    def pay(txn: Transaction, payments: Batch) -> None:
        for owner, amount in payments:
            account = txn.get("accounts", owner)
            txn.upsert("accounts", (owner, amount + (0 if account is None else account.balance)))

    return tidegate.open(app, path, tune_process=False)


if __name__ == "__main__":
    if "--calls" in sys.argv:
        for call in walk():
            print(f"{'  ' * call.depth}{call.file}: {call.function}")
    for name, figure in bench().items():
        print(f"{name}: {figure}")
