"""Fraud detection: how unusual the latest purchases of a card are, by how often one kind follows another."""

from __future__ import annotations

import random
from collections import deque
from itertools import pairwise

from tidegate import App, Batch, Transaction, window
from tidegate import windows as w
from tidegate.benchmarks.apps.case import Case, Rows

CARDS, KINDS, LATEST, UNUSUAL = 500, 6, 5, 14
# how unusual kind b is after kind a, 0 to 5: kinds far apart seldom follow each other
RARITY = [[min(5, abs(a - b)) for b in range(KINDS)] for a in range(KINDS)]


def rows(count: int, seed: int) -> Rows:
    """Most cards stay near what they did; now and then one jumps."""
    rng = random.Random(seed)
    state = [rng.randrange(KINDS) for _ in range(CARDS)]
    made: Rows = []
    for _ in range(count):
        card = rng.randrange(CARDS)
        near = max(0, min(KINDS - 1, state[card] + rng.choice((-1, 0, 0, 1))))
        state[card] = rng.randrange(KINDS) if rng.random() < 0.3 else near
        made.append((card, state[card]))
    return made


def rarity(kinds: list[int]) -> int:
    return sum(RARITY[a][b] for a, b in pairwise(kinds))


def app() -> App:
    app = App("fraud_detection")
    app.table("CREATE TABLE suspects (card BIGINT, number BIGINT, score BIGINT, PRIMARY KEY (card, number))")
    app.stream("purchases", "card BIGINT NOT NULL, kind BIGINT NOT NULL", border=True)
    score = w.whole(lambda window: rarity(window["kind"].tolist()), "score BIGINT", columns=["kind"])
    latest = window("purchases", count=LATEST, slide=1, by="card", compute=score)

    @app.procedure(inputs="purchases", writes=["suspects"], windows={"latest": latest})
    def judge(txn: Transaction, purchases: Batch) -> None:
        for found in txn.window("latest").results:
            if found.score >= UNUSUAL:
                txn.insert("suspects", (found.card, found.window_number, found.score))

    return app


def plain(rows: Rows) -> Rows:
    held: dict[int, deque[int]] = {}
    numbers: dict[int, int] = {}
    suspects: Rows = []
    for card, kind in rows:
        kept = held.setdefault(card, deque(maxlen=LATEST))
        kept.append(kind)
        if len(kept) == LATEST:
            number = numbers[card] = numbers.get(card, -1) + 1
            score = rarity([*kept])
            if score >= UNUSUAL:
                suspects.append((card, number, score))
    return suspects


CASE = Case("fraud detection", "purchases", rows, app, plain, "SELECT card, number, score FROM suspects")
