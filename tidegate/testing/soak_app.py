"""The app of ``tidegate soak``: transfers to a few accounts, so that everything an engine can do is done at the same time.

Each sender numbers its transfers from 1; amount and account follow from the number. So it is always known what must be
there: each number once, and balances that are the sum of them.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

from tidegate.dataflows.app import App
from tidegate.dataflows.definitions import partition
from tidegate.engine.questions import Question
from tidegate.streams.batch import Batch
from tidegate.streams.windows import window
from tidegate.txn.transaction import Transaction

ACCOUNTS = 24
LARGE = 1_000  # from this amount on a person is asked
RUN = 4  # transfers of a source to one account before it moves to another
SLOTS = 16  # of each account, for its newest amounts
BURST = 8  # transfers to an account that make one
DEADLINE_S = 2.0
SUBSCRIBERS = {
    "slow": "bursts",
    "changes": "accounts_changes",
    "remote": "handled",
}  # durable ones, and what they follow
NOBODY = "nobody"
REFUSED = "a deposit must be more than nothing"  # the only reason for which anything may be aborted

# queries that must not find a row, whenever they are asked
NEVER = (
    "SELECT 'balances' FROM (SELECT coalesce(sum(balance), 0) AS b, coalesce(sum(moves), 0) AS m FROM accounts) "
    "JOIN (SELECT coalesce(sum(amount), 0) AS a, count(*) AS n FROM ledger) ON b <> a OR m <> n",
    "SELECT account, balance, peak FROM accounts WHERE balance > peak",
    "SELECT account, amount FROM ledger WHERE account < 0 OR amount <= 0",
    "SELECT account FROM ledger JOIN rejected USING (account, source, number)",
)


def account_of(source: str, number: int) -> int:
    return ((number - 1) // RUN * 7 + zlib.crc32(source.encode())) % ACCOUNTS


def amount_of(number: int) -> int:
    return LARGE + number if number % 61 == 17 else 1 + number % 90


def rows_of(source: str, first: int, count: int) -> list[tuple[int, str, int, int]]:
    """The transfers ``first``, ``first + 1``, … of a source."""
    return [(account_of(source, n), source, n, amount_of(n)) for n in range(first, first + count)]


def answer_to(question: Question, who: str) -> bool:
    """Does ``who`` answer it? Of four questions one is answered here, one there, one by both, and one by neither."""
    return (question.key * 31 + question.batch_id) % 4 in {"embedded": (0, 1), "remote": (1, 2)}[who]


class Ascending:
    """Batch-ids of every key ascend; raises when they do not."""

    def __init__(self, who: str) -> None:
        self._who = who
        self._last: dict[Any, int] = {}

    def see(self, batch: Batch) -> None:
        last = self._last.get(batch.key)
        if last is not None and batch.id <= last:
            raise AssertionError(f"{self._who} got {batch} after batch {last}")
        self._last[batch.key] = batch.id


def soak_app() -> App:
    app = App("soak")
    _declare(app)
    _procedures(app)
    _calls(app)
    return app


def _declare(app: App) -> None:
    one = "account INTEGER, source VARCHAR, number BIGINT, amount BIGINT NOT NULL"
    key = "PRIMARY KEY (account, source, number)"
    app.table(
        "CREATE TABLE accounts (account INTEGER PRIMARY KEY, balance BIGINT NOT NULL, moves BIGINT NOT NULL, "
        "peak BIGINT NOT NULL)",
        partition_by="account",
        changelog=True,
    )
    app.table(f"CREATE TABLE ledger ({one}, {key})", partition_by="account")
    app.table(f"CREATE TABLE rejected ({one}, who VARCHAR NOT NULL, {key})", partition_by="account")
    app.table(
        "CREATE TABLE recent (account INTEGER, slot INTEGER, amount BIGINT, PRIMARY KEY (account, slot))",
        partition_by="account",
    )
    app.table("CREATE TABLE fired (account INTEGER PRIMARY KEY, n BIGINT, amount BIGINT)", partition_by="account")
    app.table("CREATE TABLE totals (id INTEGER PRIMARY KEY, n BIGINT NOT NULL, amount BIGINT NOT NULL)")
    app.stream("transfers", one, border=True, key="account")
    app.stream("large", one)
    app.stream("handled", one)
    app.stream("bursts", "account INTEGER, n BIGINT, amount BIGINT")
    app.stream(
        "decisions",
        "account INTEGER NOT NULL, approve BOOLEAN NOT NULL, who VARCHAR NOT NULL",
        border=True,
        key="account",
        deadline_s=DEADLINE_S,
        default={"approve": False, "who": NOBODY},
    )


def book(txn: Transaction, account: int, rows: Sequence[Any]) -> None:
    """Money arrives: in the ledger and on the account, and the peak follows by SQL that DuckDB answers."""
    for row in rows:
        txn.insert("ledger", row)
    before = txn.get("accounts", account)
    balance, moves, peak = (0, 0, 0) if before is None else before[1:]
    txn.upsert("accounts", (account, balance + sum(row[3] for row in rows), moves + len(rows), peak))
    txn.execute(
        "UPDATE accounts SET peak = balance WHERE account IN (SELECT account FROM accounts WHERE balance > peak)"
    )


def _procedures(app: App) -> None:
    mine = [partition("accounts"), partition("ledger"), partition("recent")]

    @app.procedure(inputs="transfers", outputs=["large", "handled"], writes=mine)
    def check(txn: Transaction, transfers: Batch) -> None:
        for row in transfers:
            txn.upsert("recent", (row.account, row.number % SLOTS, row.amount))
        total, most = next(iter(txn.execute("SELECT sum(amount), max(amount) FROM recent WHERE slot >= 0")))
        if total > SLOTS * most:
            raise AssertionError(f"{SLOTS} amounts of at most {most} can't be {total}")
        book(txn, txn.key, [row for row in transfers if row.amount < LARGE])
        txn.emit("large", [row for row in transfers if row.amount >= LARGE])
        txn.emit("handled", transfers.rows)

    @app.procedure(inputs=["large", "decisions"], writes=[*mine[:2], partition("rejected")])
    def approve(txn: Transaction, large: Batch, decisions: Batch) -> None:
        decision = decisions[0]
        if decision.approve:
            book(txn, txn.key, large.rows)
        else:
            for row in large:
                txn.insert("rejected", (*row, decision.who))

    app.nested(check, approve, name="booking")

    @app.procedure(
        inputs="transfers",
        outputs="bursts",
        writes=[partition("fired")],
        windows={"burst": window("transfers", count=BURST, slide=BURST)},
    )
    def watch(txn: Transaction, transfers: Batch) -> None:
        for burst in txn.window("burst").windows:
            amount = sum(row.amount for row in burst.rows)
            before = txn.get("fired", txn.key)
            n, total = (0, 0) if before is None else before[1:]
            txn.upsert("fired", (txn.key, n + 1, total + amount))
            txn.emit("bursts", [(txn.key, n + 1, amount)])

    @app.procedure(inputs="handled", writes=["totals"])
    def add_up(txn: Transaction, handled: Batch) -> None:
        """Sometimes by DuckDB, sometimes by row: both must work."""
        before = txn.get("totals", 1)
        if before is not None and handled.id % 4 == 0:
            txn.execute(
                "UPDATE totals SET n = n + (SELECT count(*) FROM handled), "
                "amount = amount + (SELECT sum(amount) FROM handled)"
            )
        else:
            n, amount = (0, 0) if before is None else before[1:]
            txn.upsert("totals", (1, n + len(handled), amount + sum(row.amount for row in handled)))


def _calls(app: App) -> None:
    @app.procedure(writes=[partition("accounts", by="account"), partition("ledger", by="account")])
    def deposit(txn: Transaction, account: int, source: str, number: int, amount: int) -> int:
        """Money at the counter; returns the balance. An amount of nothing is refused, after it was booked."""
        book(txn, account, [(account, source, number, amount)])
        if amount <= 0:
            txn.abort(REFUSED)
        return int(txn.get("accounts", account).balance)

    @app.procedure(reads=["ledger"])
    def last_number(txn: Transaction, source: str) -> int:
        """The last number of a source that calls, and so has no position."""
        found = txn.execute("SELECT max(number) FROM ledger WHERE source = ?", source).scalar()
        return 0 if found is None else int(found)

    @app.procedure(reads=["accounts", "ledger", "rejected"])
    def audit(txn: Transaction) -> list[str]:
        """What is wrong at this position: must be nothing."""
        return [str(row) for sql in NEVER for row in txn.execute(sql)]
