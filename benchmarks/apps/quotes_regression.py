"""Quotes regression: the line through a share's latest prices, and where it will be."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows

SHARES, SIZE, SLIDE = 20, 200, 20
X = np.arange(SIZE) - (SIZE - 1) / 2


def rows(count: int, seed: int) -> Rows:
    rng = random.Random(seed)
    return [(rng.randrange(SHARES), round(100 + 0.001 * i + rng.gauss(0, 1), 4)) for i in range(count)]


def line(prices: Any) -> tuple[float, float]:
    """Its slope, and its value for the quote after the last."""
    slope = float(X @ prices / (X @ X))
    return slope, float(prices.mean()) + slope * (SIZE + 1) / 2


def app() -> App:
    app = App("quotes_regression")
    app.table(
        "CREATE TABLE lines (share BIGINT, number BIGINT, slope DOUBLE, next DOUBLE, PRIMARY KEY (share, number))"
    )
    app.stream("quotes", "share BIGINT NOT NULL, price DOUBLE NOT NULL", border=True)
    compute = w.whole(lambda window: line(window["price"]), "slope DOUBLE, next DOUBLE", columns=["price"])
    latest = window("quotes", count=SIZE, slide=SLIDE, by="share", compute=compute)

    @app.procedure(inputs="quotes", writes=["lines"], windows={"latest": latest})
    def keep(txn: Transaction, quotes: Batch) -> None:
        for found in txn.window("latest").results:
            txn.insert("lines", (found.share, found.window_number, found.slope, found.next))

    return app


def plain(rows: Rows) -> Rows:
    seen: dict[int, list[float]] = {}
    found: Rows = []
    for share, price in rows:
        prices = seen.setdefault(share, [])
        prices.append(price)
        if len(prices) >= SIZE and (len(prices) - SIZE) % SLIDE == 0:
            found.append((share, (len(prices) - SIZE) // SLIDE, *line(np.array(prices[-SIZE:]))))
    return found


CASE = Case("quotes regression", "quotes", rows, app, plain, "SELECT share, number, slope, next FROM lines")
