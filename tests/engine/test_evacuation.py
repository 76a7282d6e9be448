"""The evacuation queries of the article on shared event analytics (q1 to q7), on generated movements of people: patterns at
several levels of abstraction, related as the article says.
"""

from __future__ import annotations

import random
import re
from functools import cache
from itertools import combinations
from typing import Any

import tidegate
from tidegate import App, Batch, Transaction, pattern

HOUR = 3_600
WITHIN = 48 * HOUR
TEXAS, OKLAHOMA = ("Dallas", "Austin", "Galveston"), ("Tulsa", "Norman")
PLACES = ("bus", "hospital", "shelter")


def concept(column: str, members: tuple[str, ...]) -> str:
    """A level of abstraction: any of its members."""
    return f"{column} IN ({', '.join(repr(one) for one in members)})"


DEFINE = {
    "TX": concept("city", TEXAS),
    "OK": concept("city", OKLAHOMA),
    "D": "city = 'Dallas'",
    "A": "city = 'Austin'",
    "G": "city = 'Galveston'",
    "T": "city = 'Tulsa'",
    "DB": "city = 'Dallas' AND place = 'bus'",
    "TB": "city = 'Tulsa' AND place = 'bus'",
    "TH": "city = 'Tulsa' AND place = 'hospital'",
}
QUERIES = {
    "q1": "SEQ(TX, OK)",  # who fled from Texas to Oklahoma
    "q2": "SEQ(D, T)",
    "q3": "SEQ(G, A, T)",
    "q4": "SEQ(G, A, OR(D, T))",
    "q5": "SEQ(DB, TB, TH)",
    "q6": "SEQ(G, A, D, T)",
    "q7": "SEQ(G, !D, A, T)",
}
STEPS = {  # the same, to be read by hand: which rows follow each other, and what must not come after the first
    "q1": ([TEXAS, OKLAHOMA], None),
    "q2": (["Dallas", "Tulsa"], None),
    "q3": (["Galveston", "Austin", "Tulsa"], None),
    "q4": (["Galveston", "Austin", ("Dallas", "Tulsa")], None),
    "q5": (["Dallas bus", "Tulsa bus", "Tulsa hospital"], None),
    "q6": (["Galveston", "Austin", "Dallas", "Tulsa"], None),
    "q7": (["Galveston", "Austin", "Tulsa"], "Dallas"),
}
Move = tuple[int, int, int, str, str]


def looked_for(match: str, **more: Any) -> Any:
    define = {name: condition for name, condition in DEFINE.items() if name in re.findall(r"\w+", match)}
    return pattern("moves", match=match, define=define, on="t", by="person", within=WITHIN, select="any", **more)


@cache
def evacuation() -> App:
    app = App("evacuation")
    app.stream(
        "moves", "person BIGINT NOT NULL, t BIGINT NOT NULL, age BIGINT NOT NULL, city VARCHAR NOT NULL, place VARCHAR NOT NULL",
        border=True,
    )  # fmt: skip
    app.table("CREATE TABLE counts (query VARCHAR, age BIGINT, n BIGINT NOT NULL, PRIMARY KEY (query, age))")
    app.table("CREATE TABLE counted (query VARCHAR PRIMARY KEY, n BIGINT NOT NULL)")
    windows = {name: looked_for(match) for name, match in QUERIES.items()}
    totals = {f"n_{name}": looked_for(match, aggregate={"n": "count(*)"}) for name, match in QUERIES.items()}

    @app.procedure(inputs="moves", writes=["counts", "counted"], windows={**windows, **totals})
    def watch(txn: Transaction, moves: Batch) -> None:
        for query in QUERIES:
            for match in txn.window(query).matches:
                age = match.rows[0].age
                known = txn.get("counts", (query, age))
                txn.upsert("counts", (query, age, 1 + (0 if known is None else known.n)))
            for row in txn.window(f"n_{query}").results:
                total = txn.get("counted", query)
                txn.upsert("counted", (query, row.n + (0 if total is None else total.n)))

    return app


def movements(seed: int, people: int = 12, rows: int = 500) -> list[Move]:
    chance = random.Random(seed)
    at, found = 0, []
    for _ in range(rows):
        at += chance.choice([0, HOUR // 4, HOUR])
        person = chance.randrange(people)
        found.append((person, at, person % 4 * 20, chance.choice(TEXAS + OKLAHOMA), chance.choice(PLACES)))
    return found


def fits(move: Move, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return move[3] in wanted
    city, _, place = wanted.partition(" ")
    return move[3] == city and place in ("", move[4])


def read(moves: list[Move], query: str) -> list[tuple[Move, ...]]:
    """All matches of one person's moves, by trying all combinations."""
    steps, absent = STEPS[query]
    found = []
    for places in combinations(range(len(moves)), len(steps)):
        rows = [moves[place] for place in places]
        between = moves[places[0] + 1 : places[1]]
        if (
            all(fits(row, step) for row, step in zip(rows, steps, strict=True))
            and rows[-1][1] - rows[0][1] < WITHIN
            and not (absent and any(fits(row, absent) for row in between))
        ):
            found.append(tuple(rows))
    return found


def test_the_queries_of_the_article_count_what_one_reads() -> None:
    moves = movements(1)
    wanted: dict[tuple[str, int], int] = {}
    matches: dict[str, set[Any]] = {query: set() for query in QUERIES}
    for person in {move[0] for move in moves}:
        mine = [move for move in moves if move[0] == person]
        for query in QUERIES:
            for match in read(mine, query):
                wanted[query, match[0][2]] = wanted.get((query, match[0][2]), 0) + 1
                matches[query].add((person, match[0][1], match[-1][1]))
    with tidegate.open(evacuation()) as engine:
        for place in range(0, len(moves), 37):
            engine.push("moves", moves[place : place + 37])
        told = {(query, age): n for query, age, n in engine.query("SELECT * FROM counts").rows}
        counted = dict(engine.query("SELECT * FROM counted").rows)
    assert told == wanted
    assert counted == {query: sum(n for (q, _), n in wanted.items() if q == query) for query in QUERIES}
    assert all(counted.values()), "every query finds something"
    assert matches["q2"] <= matches["q1"], "a finer concept finds less"
    assert matches["q7"] <= matches["q3"], "a finer pattern finds less"
    assert matches["q6"] <= matches["q3"], "q3 rolls q6 up"
