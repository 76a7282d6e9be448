"""VoIP: callers whose calls look like spam, by how many numbers they call and how few answer."""

from __future__ import annotations

import random

from tidegate import App, Batch, Transaction
from tidegate.benchmarks.apps.case import Case, Rows

CALLERS, SPAMMERS, MANY, ANSWERED = 1_000, 20, 12, 0.4


def rows(count: int, seed: int) -> Rows:
    """Caller, whether the number is one that it has not called before, whether it was answered, and for how long."""
    rng = random.Random(seed)
    made: Rows = []
    for _ in range(count):
        spam = rng.random() < 0.2
        caller = rng.randrange(SPAMMERS) if spam else rng.randrange(CALLERS)
        answered = rng.random() < (0.25 if spam else 0.8)
        made.append((caller, rng.random() < (0.95 if spam else 0.3), answered, rng.randrange(300) if answered else 0))
    return made


def app() -> App:
    app = App("voip")
    app.table(
        "CREATE TABLE callers (caller BIGINT PRIMARY KEY, calls BIGINT, new BIGINT, answered BIGINT, talked_s BIGINT)"
    )
    app.table("CREATE TABLE spammers (caller BIGINT PRIMARY KEY, calls BIGINT)")
    app.stream("calls", "caller BIGINT, new BOOLEAN, answered BOOLEAN, talked_s BIGINT", border=True)
    app.stream("scored", "caller BIGINT, calls BIGINT")

    @app.procedure(inputs="calls", writes=["callers"], outputs=["scored"])
    def profile(txn: Transaction, calls: Batch) -> None:
        suspicious = []
        for caller, new, answered, talked_s in calls:
            _, n, news, answers, talked = txn.get("callers", caller) or (caller, 0, 0, 0, 0)
            row = (caller, n + 1, news + new, answers + answered, talked + talked_s)
            txn.upsert("callers", row)
            if _looks_like_spam(*row[1:4]):
                suspicious.append(row[:2])
        txn.emit("scored", suspicious)

    @app.procedure(inputs="scored", writes=["spammers"])
    def note(txn: Transaction, scored: Batch) -> None:
        for caller, calls in scored:
            if txn.get("spammers", caller) is None:
                txn.insert("spammers", (caller, calls))

    return app


def _looks_like_spam(calls: int, new: int, answered: int) -> bool:
    return calls >= MANY and answered < ANSWERED * calls and 2 * new > calls


def plain(rows: Rows) -> Rows:
    callers: dict[int, tuple[int, int, int]] = {}
    spammers: dict[int, int] = {}
    for caller, new, answered, _ in rows:
        n, news, answers = callers.get(caller, (0, 0, 0))
        callers[caller] = n + 1, news + new, answers + answered
        if caller not in spammers and _looks_like_spam(*callers[caller]):
            spammers[caller] = n + 1
    return [*spammers.items()]


CASE = Case("VoIP", "calls", rows, app, plain, "SELECT caller, calls FROM spammers")
