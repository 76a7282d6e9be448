"""Algorithmic trading: buy when the fast average of a share's price crosses the slow one upwards, sell when it falls back."""

from __future__ import annotations

import random
from typing import Any

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows

SHARES, SLOW, FAST, EVERY = 40, 60, 15, 5


def rows(count: int, seed: int) -> Rows:
    """Prices in cents, each a random walk."""
    rng = random.Random(seed)
    prices = [10_000] * SHARES
    made: Rows = []
    for _ in range(count):
        share = rng.randrange(SHARES)
        prices[share] = max(100, prices[share] + rng.randint(-20, 20))
        made.append((share, prices[share]))
    return made


def signal(prices: list[int]) -> tuple[int, int]:
    """Is the fast average above the slow one? And the newest price."""
    return int(sum(prices[-FAST:]) * SLOW > sum(prices) * FAST), prices[-1]


def traded(position: tuple[Any, ...] | None, share: int, above: int, price: int) -> tuple[Any, ...]:
    """Share, whether it is held, cash, trades."""
    _, held, cash, trades = position or (share, 0, 0, 0)
    if above == held:
        return share, held, cash, trades
    return share, above, cash + (price if held else -price), trades + 1


def app() -> App:
    app = App("algotrading")
    app.table("CREATE TABLE positions (share BIGINT PRIMARY KEY, held BIGINT, cash BIGINT, trades BIGINT)")
    app.stream("quotes", "share BIGINT NOT NULL, price BIGINT NOT NULL", border=True)
    compute = w.whole(lambda window: signal(window["price"].tolist()), "above BIGINT, price BIGINT", columns=["price"])
    averages = window("quotes", count=SLOW, slide=EVERY, by="share", compute=compute)

    @app.procedure(inputs="quotes", writes=["positions"], windows={"averages": averages})
    def trade(txn: Transaction, quotes: Batch) -> None:
        for found in txn.window("averages").results:
            position = txn.get("positions", found.share)
            txn.upsert("positions", traded(position, found.share, found.above, found.price))

    return app


def plain(rows: Rows) -> Rows:
    prices: dict[int, list[int]] = {}
    positions: dict[int, tuple[Any, ...]] = {}
    for share, price in rows:
        seen = prices.setdefault(share, [])
        seen.append(price)
        if len(seen) >= SLOW and (len(seen) - SLOW) % EVERY == 0:
            positions[share] = traded(positions.get(share), share, *signal(seen[-SLOW:]))
    return [*positions.values()]


CASE = Case("algotrading", "quotes", rows, app, plain, "SELECT share, held, cash, trades FROM positions")
