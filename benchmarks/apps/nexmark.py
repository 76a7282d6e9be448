"""Nexmark: an auction house. Currency conversion (query 1), selection (2), and the hottest items of sliding windows (5)."""

from __future__ import annotations

import random

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows, at, seconds_of

AUCTIONS, SECONDS, SLIDE, CHOSEN = 500, 10, 2, 25


def rows(count: int, seed: int) -> Rows:
    """Bids: most are for a few hot auctions."""
    rng = random.Random(seed)
    made: Rows = []
    for i in range(count):
        auction = rng.randrange(10) if rng.random() < 0.5 else rng.randrange(AUCTIONS)
        made.append((at(0.005 * i), auction, rng.randrange(2_000), rng.randrange(100, 10_000)))
    return made


def in_euros(cents: int) -> int:
    return cents * 908 // 1_000


def app() -> App:
    app = App("nexmark")
    app.table("CREATE TABLE best (auction BIGINT PRIMARY KEY, bidder BIGINT, euros BIGINT)")
    app.table("CREATE TABLE chosen (auction BIGINT PRIMARY KEY, bids BIGINT)")
    app.table("CREATE TABLE hottest (second BIGINT PRIMARY KEY, auction BIGINT, bids BIGINT)")
    app.stream(
        "bids",
        '"at" TIMESTAMP NOT NULL, auction BIGINT NOT NULL, bidder BIGINT NOT NULL, price BIGINT NOT NULL',
        border=True,
    )
    hot = window("bids", time=f"{SECONDS}s", slide=f"{SLIDE}s", on="at", by="auction", compute={"bids": w.count()})

    @app.procedure(inputs="bids", writes=["best"])
    def convert(txn: Transaction, bids: Batch) -> None:
        for bid in bids:
            euros, before = in_euros(bid.price), txn.get("best", bid.auction)
            if before is None or euros > before.euros:
                txn.upsert("best", (bid.auction, bid.bidder, euros))

    @app.procedure(inputs="bids", writes=["chosen"])
    def select(txn: Transaction, bids: Batch) -> None:
        for bid in bids:
            if bid.auction % CHOSEN == 0:
                before = txn.get("chosen", bid.auction)
                txn.upsert("chosen", (bid.auction, (before.bids if before else 0) + 1))

    @app.procedure(inputs="bids", writes=["hottest"], windows={"hot": hot})
    def heat(txn: Transaction, bids: Batch) -> None:
        hottest: dict[int, tuple[int, int]] = {}  # of equally hot auctions the first
        for found in txn.window("hot").results:
            second = seconds_of(found.window_start)
            hottest[second] = max(hottest.get(second, (0, 0)), (found.bids, -found.auction))
        for second, (bids_for_it, auction) in hottest.items():
            txn.insert("hottest", (second, -auction, bids_for_it))

    return app


def plain(rows: Rows) -> Rows:
    best: dict[int, tuple[int, int]] = {}
    chosen: dict[int, int] = {}
    slots: dict[int, dict[int, int]] = {}
    for time, auction, bidder, price in rows:
        euros = in_euros(price)
        if auction not in best or euros > best[auction][1]:
            best[auction] = bidder, euros
        if auction % CHOSEN == 0:
            chosen[auction] = chosen.get(auction, 0) + 1
        slot = slots.setdefault(seconds_of(time) // SLIDE, {})
        slot[auction] = slot.get(auction, 0) + 1
    found: Rows = [("best", auction, bidder, euros) for auction, (bidder, euros) in best.items()]
    found += [("chosen", auction, bids, 0) for auction, bids in chosen.items()]
    last, per_window = seconds_of(rows[-1][0]), SECONDS // SLIDE
    for first in range(min(slots) - per_window + 1, max(slots) + 1):
        if first * SLIDE + SECONDS <= last:
            counts: dict[int, int] = {}
            for slot in range(first, first + per_window):
                for auction, bids in slots.get(slot, {}).items():
                    counts[auction] = counts.get(auction, 0) + bids
            bids, auction = max((bids, -auction) for auction, bids in counts.items())
            found.append(("hottest", first * SLIDE, -auction, bids))
    return found


CASE = Case(
    "Nexmark", "bids", rows, app, plain,
    "SELECT 'best', auction, bidder, euros FROM best UNION ALL SELECT 'chosen', auction, bids, 0 FROM chosen "
    "UNION ALL SELECT 'hottest', second, auction, bids FROM hottest",
)  # fmt: skip
