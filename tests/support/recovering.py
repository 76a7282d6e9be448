"""Small apps for tests of recovery, and an engine's death without closing."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from tidegate import App, Batch, Engine, Transaction, window
from tidegate.testing.workloads import ward
from tidegate.txn.log.record import HEADER


class Frame(NamedTuple):
    """A frame of a log segment, as it lies on disk."""

    offset: int
    end: int
    crc: int
    data: bytes


def frames(segment: bytes) -> list[Frame]:
    """Every frame of a segment."""
    found, offset = [], 0
    while offset < len(segment):
        size, crc = HEADER.unpack_from(segment, offset)
        end = offset + HEADER.size + size
        found.append(Frame(offset, end, crc, segment[offset:end]))
        offset = end
    return found


def let_go(engine: Engine) -> None:
    """What the death of its process does to an engine: nothing more is written, files are let go."""
    if engine.closed:
        return
    engine.executor.close()
    engine.lookout.close()
    engine.merger.close()
    writer = engine.durable.writer if engine.durable is not None else None
    if writer is not None:
        with writer._changed:
            writer._closed = True
            writer._changed.notify_all()
        if writer._thread is not None:
            writer._thread.join()
    engine.database.close()
    if engine.directory is not None:
        engine.directory.close()
    engine.closed = True


@cache
def make_numbers(recovery: Any = "weak", extra: str = "") -> App:
    """numbers → add → sums: every number once, with the sum of all before it."""
    app = App("numbers", recovery=recovery)
    app.table(f"CREATE TABLE seen (n BIGINT PRIMARY KEY, total BIGINT NOT NULL{extra})")
    app.stream("numbers", "n BIGINT NOT NULL", border=True)
    app.stream("sums", "total BIGINT")

    @app.procedure(
        inputs="numbers",
        outputs="sums",
        writes=["seen"],
        windows={"recent": window("numbers", count=3, slide=1)},
    )
    def add(txn: Transaction, numbers: Batch) -> None:
        before = txn.get("seen", numbers[0].n - 1)
        total = numbers[0].n + (0 if before is None else before.total)
        txn.insert("seen", {"n": numbers[0].n, "total": total})
        txn.emit("sums", total=total)

    @app.procedure(reads=["seen"])
    def total(txn: Transaction, n: int) -> int | None:
        row = txn.get("seen", n)
        return None if row is None else row.total

    return app


def seen(engine: Engine) -> list[int]:
    """The numbers in the table, having checked that each was added once, in order."""
    rows = [tuple(row) for row in engine.query("SELECT n, total FROM seen ORDER BY n")]
    assert rows == [(n, n * (n + 1) // 2) for n in range(1, len(rows) + 1)]
    return [n for n, _ in rows]


def push(engine: Engine, first: int, last: int) -> None:
    for number in range(first, last + 1):
        engine.push("numbers", [(number,)], number).result()


@cache
def make_ward(recovery: Any) -> App:
    """A doctor decides about risky orders; vitals halt when the world is down."""
    return ward(recovery, deadline_s=600.0)
