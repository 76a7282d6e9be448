"""Word count: lines are split into words, and words are counted."""

from __future__ import annotations

import random
from collections import Counter

from tidegate import App, Batch, Transaction
from tidegate.benchmarks.apps.case import Case, Rows

WORDS = [f"w{n}" for n in range(1_000)]
LINE = 8


def rows(count: int, seed: int) -> Rows:
    """Lines of words; a word's frequency falls with its number."""
    rng = random.Random(seed)
    return [(" ".join(WORDS[int(rng.paretovariate(0.7)) % len(WORDS)] for _ in range(LINE)),) for _ in range(count)]


def app() -> App:
    app = App("word_count")
    app.table("CREATE TABLE counts (word VARCHAR PRIMARY KEY, n BIGINT NOT NULL)")
    app.stream("lines", "line VARCHAR NOT NULL", border=True)
    app.stream("words", "word VARCHAR NOT NULL")

    @app.procedure(inputs="lines", outputs=["words"])
    def split(txn: Transaction, lines: Batch) -> None:
        txn.emit("words", [(word,) for row in lines for word in row.line.split()])

    @app.procedure(inputs="words", writes=["counts"])
    def count(txn: Transaction, words: Batch) -> None:
        for word, n in Counter(row.word for row in words).items():
            before = txn.get("counts", word)
            txn.upsert("counts", (word, n + (before.n if before else 0)))

    return app


def plain(rows: Rows) -> Rows:
    counts: dict[str, int] = {}
    for (line,) in rows:
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
    return [*counts.items()]


CASE = Case("word count", "lines", rows, app, plain, "SELECT word, n FROM counts")
