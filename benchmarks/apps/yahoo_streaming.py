"""Yahoo streaming: views of advertisements, by campaign, in windows of ten seconds."""

from __future__ import annotations

import random

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows, at, seconds_of

CAMPAIGNS, ADS, SECONDS = 100, 1_000, 10
KINDS = ("view", "click", "purchase")


def rows(count: int, seed: int) -> Rows:
    rng = random.Random(seed)
    return [(at(0.005 * i), rng.randrange(ADS), rng.choice(KINDS)) for i in range(count)]


def app() -> App:
    app = App("yahoo_streaming")
    app.table("CREATE TABLE ads (ad BIGINT PRIMARY KEY, campaign BIGINT NOT NULL)")
    app.table("CREATE TABLE counts (campaign BIGINT, second BIGINT, n BIGINT, PRIMARY KEY (campaign, second))")
    app.stream("ads_in", "ad BIGINT, campaign BIGINT", border=True)
    app.stream("events", '"at" TIMESTAMP NOT NULL, ad BIGINT NOT NULL, kind VARCHAR NOT NULL', border=True)
    app.stream("views", '"at" TIMESTAMP NOT NULL, campaign BIGINT NOT NULL')
    per_campaign = window("views", time=f"{SECONDS}s", on="at", by="campaign", compute={"n": w.count()})

    @app.procedure(inputs="ads_in", writes=["ads"])
    def book(txn: Transaction, ads_in: Batch) -> None:
        for ad in ads_in:
            txn.upsert("ads", ad)

    @app.procedure(inputs="events", reads=["ads"], outputs=["views"])
    def match(txn: Transaction, events: Batch) -> None:
        views = [(event.at, txn.get("ads", event.ad).campaign) for event in events if event.kind == "view"]
        txn.emit("views", views)

    @app.procedure(inputs="views", writes=["counts"], windows={"per_campaign": per_campaign})
    def count(txn: Transaction, views: Batch) -> None:
        for found in txn.window("per_campaign").results:
            txn.insert("counts", (found.campaign, seconds_of(found.window_start), found.n))

    return app


def plain(rows: Rows) -> Rows:
    counts: dict[tuple[int, int], int] = {}
    last = 0
    for time, ad, kind in rows:
        if kind == "view":
            last = seconds_of(time)
            slot = (ad % CAMPAIGNS, last - last % SECONDS)
            counts[slot] = counts.get(slot, 0) + 1
    return [(campaign, second, n) for (campaign, second), n in counts.items() if second + SECONDS <= last]


CASE = Case(
    "yahoo streaming", "events", rows, app, plain, "SELECT campaign, second, n FROM counts",
    setup=[("ads_in", [(ad, ad % CAMPAIGNS) for ad in range(ADS)])],
)  # fmt: skip
